"""The state of a run after each evaluation, how it ended, its result, and the snapshots from which it can go on."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from enum import Enum
from typing import Any, NamedTuple

import numpy as np

from distsms.base import errors
from distsms.base.formatting import finite
from distsms.base.typing import Floats


class Status(Enum):
    """How a run ended: (exit code, sentence)."""

    PROVED = (errors.EXIT_OK, "proved: the gap is below the target")
    FLOOR = (errors.EXIT_FLOOR, "smoothing floor: the fixed width keeps the gap above the target")
    LIMIT = (errors.EXIT_LIMIT, "evaluation limit reached before the gap was proved")
    STALLED = (errors.EXIT_STALLED, "the solver can make no further progress")
    ROUNDING = (errors.EXIT_STALLED, "rounding errors of the scores are too large for this target")
    NONFINITE = (errors.EXIT_NONFINITE, "the objective became NaN or infinite")
    STOPPED = (errors.EXIT_REQUEUE, "stopped by a signal before the gap was proved")
    TIME = (errors.EXIT_REQUEUE, "time limit reached before the gap was proved")

    @property
    def exit_code(self) -> int:
        return self.value[0]

    @property
    def sentence(self) -> str:
        return self.value[1]


class StopRun(Exception):
    """Ends a run. It is raised in an evaluation and passes through the solver to the `TrainingRun`."""

    def __init__(self, status: Status, detail: str = "") -> None:
        super().__init__(status, detail)
        self.status, self.detail = status, detail


class State(NamedTuple):
    """The state of a run after an evaluation. Each line of a trace file is one state."""

    evaluation: int
    seconds: float
    J: float
    lower_bound: float
    gap: float  # best J so far - lower bound
    best_J: float
    J_mu: float
    R: float
    nu: float
    smoothing_gap: float
    optimization_gap: float
    width: float = 0.0  # J and R are the upper ends of intervals of this width


class Origin(NamedTuple):
    """A slice of the w and the width of an evaluation, and its share of a plane (below 1 beside the zero plane)."""

    w: Floats
    nu: float
    share: float = 1.0


def largest_gain(J_at_zero: float, lower_bound: float, lam: float, other: float) -> float:
    """Return a bound on J(0) - min J at the lambda `other`, from a lower bound at `lam`; below 1e-8 J(0) rounding."""
    return max(J_at_zero - lower_bound, 1e-8 * J_at_zero) * max(1.0, lam / other)


@dataclass(frozen=True)
class Result:
    w: Floats  # (p,), of the best J
    status: Status
    detail: str
    J: float
    R: float
    lower_bound: float  # the bound on rounding errors is subtracted from it
    gap: float  # J - lower_bound
    J_at_zero: float
    nu: float
    evaluations: int
    seconds: float
    starts: int = 1  # one more for each time that the run was resumed
    slope_at_zero: float = np.inf  # R falls no more steeply than this at w = 0; see `Planes.slope_at_zero`
    width: float = 0.0  # the exact J is at least J - width, up to rounding
    ways: dict[str, int] | None = None  # how many evaluations were made in which way, where a loss has several
    l1_limit: float = np.inf  # with l1: w = 0 is the minimum for all l1 from this one on; infinity if none is known
    # with `Settings.points`, on ranks that ran the solver: the points whose planes prove the bound, and their shares
    mixture: Sequence[Origin] | None = None
    opening: Floats | None = None  # (n_local,): the coefficients of the plane that an opening has left, if one did

    @property
    def proved(self) -> bool:
        return self.status is Status.PROVED

    @property
    def vacuous(self) -> bool:
        """Whether it is proved that no w is much better than w = 0, so that the model is useless."""
        return self.idle and bool(self.gap <= 1e-2 * self.J_at_zero)

    @property
    def idle(self) -> bool:
        """Whether J(0) - J is at most the gap (but not more than 1 % of J(0)), or at most 0.1 % of J(0)."""
        return bool(self.J_at_zero - max(min(self.gap, 1e-2 * self.J_at_zero), 1e-3 * self.J_at_zero) <= self.J)

    def numbers(self) -> dict[str, Any]:
        """Return everything but w, ready for JSON; numbers that are not finite become None."""
        arrays = ("w", "mixture", "opening")
        values = {key: value for key, value in vars(self).items() if key not in (*arrays, "status")}
        if not np.isfinite(self.l1_limit):
            del values["l1_limit"]
        if not self.ways:
            del values["ways"]
        if not (self.ways or self.width):
            del values["width"]
        return finite(values) | {"status": self.status.name.lower(), "exit_code": self.status.exit_code}


class Snapshot(NamedTuple):
    """The state of a run, or of a part of it, on a rank that runs the solver, as views that must be written at once:
    numbers for JSON, tables (k,) or (k, k) alike on all these ranks, and vectors, rows of slices, read once.
    """

    numbers: Mapping[str, Any] = {}
    tables: Mapping[str, Floats] = {}
    vectors: Mapping[str, Iterable[Floats]] = {}

    def under(self, name: str) -> Snapshot:
        """Return the snapshot with `name.` before each key, so that it can be joined to others."""
        return Snapshot._make({f"{name}.{key}": value for key, value in values.items()} for values in self)

    def part(self, name: str) -> Snapshot:
        """Return the part whose keys begin with `name.`, without that prefix."""
        start = f"{name}."
        return Snapshot._make(
            {key[len(start) :]: values[key] for key in values if key.startswith(start)} for values in self
        )

    def joined(self, other: Snapshot) -> Snapshot:
        return Snapshot._make({**mine, **theirs} for mine, theirs in zip(self, other, strict=True))
