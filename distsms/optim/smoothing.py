"""The smoothing width nu of a run: fixed, as in the paper, or adaptive, and when it is too wide.

Smoothing lowers R by at most kappa nu. The paper fixes nu (`c_mu`). By default the width starts wide, where J_mu is
easy to minimize, and shrinks when the smoothing gap at the present w matters more than what is left to optimize there.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from distsms.losses.registry import Loss
from distsms.optim.objective import Evaluation
from distsms.optim.result import Status, StopRun
from distsms.optim.settings import Settings

START_COST = 0.02  # the most that the first width may take off R; several times more or less takes longer
SHRINK = 0.3
EVALUATIONS_BETWEEN_SHRINKS = 5
FLOOR_SHARE = 1e-3  # a fixed width is at its floor when less than this share of the target is left to optimize


class SmoothingSchedule:
    """The width of the smoothing in the course of a run.

    In the methods, `last` is the solver's last evaluation, `target` the gap to prove, and `count` the number of all
    evaluations.

    Attributes
    ----------
    nu : float
        The present width; 0 if the solver minimizes the exact risk.
    adaptive : bool
        Whether the width shrinks.
    """

    def __init__(self, loss: Loss, settings: Settings) -> None:
        smooth = settings.traits.smooth
        self.adaptive, self._fixed = smooth and settings.c_mu is None, smooth and settings.c_mu is not None
        self.nu, self._count_at_shrink = 0.0, 0
        if settings.c_mu is not None:
            self.nu = loss.paper_width(settings.c_mu, settings.target(1.0))
        elif smooth:
            self.nu = START_COST / loss.smoothing_cost()

    def too_wide(self, last: Evaluation, target: float, count: int) -> bool:
        """Return whether the smoothing gap is too large. Raises StopRun at the floor of a fixed width."""
        smoothing, optimization = last.smoothing_gap, last.optimization_gap
        if optimization < FLOOR_SHARE * target:
            self.check_floor(last, target)
        return (
            self.adaptive
            and smoothing > target / 2
            and optimization < 10 * max(smoothing, target)
            and count - self._count_at_shrink >= EVALUATIONS_BETWEEN_SHRINKS
        )

    def check_floor(self, last: Evaluation, target: float) -> None:
        """Raise StopRun if a fixed width alone keeps the gap above the target."""
        if self._fixed and last.smoothing_gap > target / 2:
            costs = f"nu = {self.nu:.3g} costs {last.smoothing_gap:.3g}; a smaller --c-mu gets further"
            raise StopRun(Status.FLOOR, costs)

    def matters(self, last: Evaluation, target: float) -> bool:
        """Return whether a narrower width is worth a new start of a solver that cannot go on."""
        return self.adaptive and last.smoothing_gap > target / 4

    def shrink(self, count: int) -> None:
        """Reduce the width."""
        self.nu *= SHRINK
        self._count_at_shrink = count

    def numbers(self) -> dict[str, Any]:
        """Return what `restore` needs, ready for JSON."""
        return {"nu": self.nu, "count_at_shrink": self._count_at_shrink}

    def restore(self, numbers: Mapping[str, Any]) -> None:
        """Take over the state of another schedule; a fixed width is not taken over."""
        self._count_at_shrink = numbers["count_at_shrink"]
        if self.adaptive:
            self.nu = numbers["nu"]
