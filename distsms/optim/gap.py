"""What a run has proved so far: its best evaluation, the planes below the risk, and the gap between the two."""

from __future__ import annotations

import numpy as np

from distsms.optim.bundle import CuttingPlaneBundle
from distsms.optim.objective import Evaluation, Evaluator
from distsms.optim.penalty import SquaredNorm
from distsms.optim.result import Status, StopRun
from distsms.optim.settings import Settings
from distsms.optim.solvers.base import Planes
from distsms.optim.state import Snapshot
from distsms.utils.typing import Floats

TOLERATED = 0.01
"""Share of the target that rounding may take off a bound where that saves a pass over the planes."""
_NOTHING = np.empty(0)
NONE_YET = Evaluation(_NOTHING, 0.0, np.inf, np.inf, _NOTHING, np.nan, np.nan, _NOTHING, np.nan, 0.0, np.inf)
"""Before the first evaluation."""
BEST = tuple(name for name in Evaluation._fields if name not in ("w", "gradient", "r"))
"""What a snapshot has of the best evaluation besides w."""


class GapTracker:
    """On each rank that steps: vectors are slices, numbers the same on all of them.

    best : the evaluation of least J, without gradients; before the first one `NONE_YET`.
    """

    def __init__(self, objective: Evaluator, settings: Settings) -> None:
        vectors, self._objective, self._settings = objective.vectors, objective, settings
        self.best, self.regularizer = NONE_YET, SquaredNorm(settings.lam)
        zero, pair = objective.losses[0].nonnegative and settings.zero_plane, settings.traits.planes is Planes.PAIR
        planes = settings.planes_within(vectors.longest)
        self.certificate = CuttingPlaneBundle(
            vectors, self.regularizer, zero and not pair, planes, *objective.plane_errors()
        )
        if zero and pair:  # BMRM 2007, Algorithm 2: the first plane of the mixture, rather than one that stays
            self.certificate.add(np.zeros(vectors.length), 0.0)

    def add(self, evaluation: Evaluation) -> None:
        """Take an evaluation into account."""
        if evaluation.J <= self.best.J:  # at the same w, the one of the present width
            self.best = evaluation.without_slopes()
        with self._objective.clock.phase("certificate"):
            self.certificate.add(evaluation.r, evaluation.d, TOLERATED * self.target)

    @property
    def gap(self) -> float:
        """best J - lower bound, but for rounding in J."""
        return max(0.0, self.best.J - self.certificate.lower_bound)

    @property
    def target(self) -> float:
        """The gap to be proved."""
        return self._settings.target(self.best.J)

    def level_point(self, level: float) -> Floats:
        """Where the planes suggest to evaluate next: see `CuttingPlaneBundle.level_point`."""
        with self._objective.clock.phase("certificate"):
            return self.certificate.level_point(self.best.w, self.best.J, level)

    def proved(self) -> tuple[float, float, float]:
        """(lower bound, gap, what rounding can have done to J, which is in both). One more pass over the data."""
        rounding = self._objective.rounding(self.best)
        return self.certificate.lower_bound - rounding, self.gap + rounding, rounding

    @property
    def hopeless(self) -> bool:
        """Whether rounding in the planes alone takes half of the target, and most of what is left of the gap."""
        lost = self.certificate.unavoidable
        return not lost <= self.target / 2 and self.gap <= 4 * lost

    def check(self, at_end: bool = False) -> None:
        """Raise Finished if the gap is proved, or if rounding alone takes half of the target.

        at_end : whether the run cannot go on, so that what the present mixture of planes loses will not become less.
        """
        _, gap, rounding = self.proved()
        if gap <= self.target:
            raise StopRun(Status.PROVED)
        rounding += self.certificate.bound.taken if at_end else self.certificate.unavoidable
        if not rounding <= self.target / 2:
            hint = "centre or scale columns of large values, or ask for a larger gap"
            raise StopRun(Status.ROUNDING, f"they may change the gap by {rounding:.3g}; {hint}")

    def snapshot(self) -> Snapshot:
        """All that it knows; see `restore`."""
        numbers = {name: getattr(self.best, name) for name in BEST}
        kept = Snapshot({}, {}, {"w": [self.best.w]}).joined(Snapshot(numbers).under("best"))
        return kept.joined(self.certificate.snapshot().under("certificate"))

    def restore(self, snapshot: Snapshot) -> None:
        """Know what another one knew."""
        self.best = NONE_YET._replace(w=snapshot.vectors["w"][0], **snapshot.part("best").numbers)
        self.certificate.restore(snapshot.part("certificate"))
