"""The proved gap of a run: the best J found so far minus the lower bound that the planes below the risk prove."""

from __future__ import annotations

import math

import numpy as np

from distsms.base.typing import Floats
from distsms.optim.objective import Evaluation, Evaluator
from distsms.optim.penalty import ElasticNet
from distsms.optim.planes import Origins, Planes
from distsms.optim.result import Origin, Snapshot, Status, StopRun
from distsms.optim.settings import Settings
from distsms.optim.solvers.base import PlaneUse

TOLERATED = 0.01
"""The lower bound may be smaller than necessary by this share of the target, if that saves a pass over the planes."""
HARMLESS, SMALL, LARGE = 1e-6, 1e-3, 1e3
"""Rounding errors are harmless if they may change the gap by at most `HARMLESS`: a target that they make impossible is
too small then. J is nearly 0 below `SMALL`, and entries are large above `LARGE`.
"""
_NOTHING = np.empty(0)
NONE_YET = Evaluation(_NOTHING, 0.0, np.inf, np.inf, _NOTHING, np.nan, np.nan, _NOTHING, np.nan, 0.0, np.inf)
"""The value of the best evaluation before the first evaluation."""
BEST = tuple(name for name in Evaluation._fields if name not in ("w", "gradient", "r"))
"""The fields of the best evaluation that a snapshot contains in addition to w."""


class Proof:
    """The best evaluation of a run, and the `planes` that bound min J; alike on all ranks with the solver."""

    def __init__(self, objective: Evaluator, settings: Settings) -> None:
        vectors, self._objective, self._settings = objective.vectors, objective, settings
        self.best, self.regularizer = NONE_YET, ElasticNet(settings.lam, settings.l1)
        zero, pair = objective.losses[0].nonnegative and settings.zero_plane, settings.traits.planes is PlaneUse.PAIR
        errors, d_error = objective.plane_errors()
        kind: type[Planes] = Planes
        if settings.l1:
            from distsms.optim.elastic_planes import ElasticPlanes

            kind = ElasticPlanes
        self.planes: Planes = kind(
            vectors,
            self.regularizer,
            zero_plane=zero and not pair,
            capacity=settings.planes_within(vectors.longest),
            errors=errors,
            d_error=d_error,
            origins=Origins(settings.points_within(vectors.longest)) if settings.points else None,
        )
        if zero and pair:  # as in BMRM 2007, Algorithm 2: here the zero plane is a usual plane, which may be merged
            self.planes.add(np.zeros(vectors.length), 0.0)

    def add(self, evaluation: Evaluation) -> None:
        """Add the plane of an evaluation, and remember the evaluation if it is the best one."""
        if evaluation.J <= self.best.J:  # <=, so that of two evaluations at the same w the later is kept
            self.best = evaluation.without_slopes()
        r, d, share = evaluation.r, evaluation.d, 1.0
        limit = self._objective.losses[0].planes_up_to
        if limit < evaluation.R:
            share = limit / evaluation.R
            r, d = share * r, share * d
        with self._objective.clock.phase("certificate"):
            self.planes.add(r, d, TOLERATED * self.target, Origin(evaluation.w, evaluation.nu, share))

    @property
    def gap(self) -> float:
        """The best J minus the lower bound. The rounding error of J is not included; see `proved`."""
        return max(0.0, self.best.J - self.planes.lower_bound)

    @property
    def target(self) -> float:
        return self._settings.target(self.best.J)

    def level_point(self, level: float) -> Floats:
        with self._objective.clock.phase("certificate"):
            return self.planes.level_point(self.best.w, self.best.J, level)

    def proved(self) -> tuple[float, float, float]:
        """Return the lower bound, the gap, and the rounding error of J in both. May take a pass over the data."""
        if not np.isfinite(self.best.J):  # nor is there a w, if no evaluation was finite
            return self.planes.lower_bound, np.inf, 0.0
        rounding = self._objective.rounding(self.best, TOLERATED * self.target)
        return self.planes.lower_bound - rounding, self.gap + rounding, rounding

    @property
    def hopeless(self) -> bool:
        """Whether rounding errors in the planes are above half of the target, and a quarter of the present gap."""
        lost = self.planes.unavoidable
        return not lost <= self.target / 2 and self.gap <= 4 * lost

    def check(self, at_end: bool = False) -> None:
        """Raise StopRun if the gap is proved, or rounding (`at_end`: this mixture's) may be over half of the target."""
        _, gap, rounding = self.proved()
        if gap <= self.target:
            raise StopRun(Status.PROVED)
        rounding += self.planes.bound.taken if at_end else self.planes.unavoidable
        if not rounding <= self.target / 2:
            raise StopRun(Status.ROUNDING, f"they may change the gap by {rounding:.3g}; {self._remedy(rounding)}")

    def _remedy(self, rounding: float) -> str:
        """Say what helps where rounding may change the gap so much. **Collective** among the ranks of the solver."""
        if rounding <= HARMLESS and math.isfinite(enough := max(2.5 * rounding, self.proved()[1])):
            digit = 10.0 ** math.floor(math.log10(enough))
            text = f"{math.ceil(enough / digit) * digit:.1g}"  # rounded up, so that it is enough
            if self.best.J < SMALL:
                return f"J is nearly 0 ({self.best.J:.3g}), so ask for a gap as a difference, epsilon {text} or more"
            return f"ask for a gap of {text} or more"
        errors, of_d = self._objective.plane_errors()
        largest = errors if isinstance(errors, float) else -self._objective.vectors.minimum(-errors)
        if largest / of_d > LARGE:  # this is about the largest |x_ij|
            return "scale columns of large values (centre them first if their mean is large), or ask for a larger gap"
        return "lambda is very small: take a larger one, or ask for a larger gap"

    def snapshot(self) -> Snapshot:
        numbers = {name: getattr(self.best, name) for name in BEST}
        kept = Snapshot({}, {}, {"w": [self.best.w]}).joined(Snapshot(numbers).under("best"))
        return kept.joined(self.planes.snapshot().under("certificate"))

    def restore(self, snapshot: Snapshot) -> None:
        (w,) = snapshot.vectors["w"]
        self.best = NONE_YET._replace(w=w, **snapshot.part("best").numbers)
        self.planes.restore(snapshot.part("certificate"))
