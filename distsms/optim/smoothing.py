"""The smoothing width nu of a run, which is either fixed, as in the paper, or adaptive.

Smoothing lowers R by at most kappa nu (`distsms.losses.base.Loss.smoothing_cost`). In the paper nu is fixed; the
setting `c_mu` chooses it. By default nu is adaptive. It starts large, since J_mu is then easy to minimize. It is
reduced when the smoothing gap at the present w contributes more to the gap than the optimization gap. A loss that is
smooth by itself needs no width: nu is 0 then.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from distsms.losses.base import Loss
from distsms.optim.evaluation import Evaluation
from distsms.optim.result import Status, StopRun
from distsms.optim.settings import Settings

START_COST = 0.02  # the first width lowers R by at most this; runs take longer with a much larger or smaller value
SHRINK = 0.3
EVALUATIONS_BETWEEN_SHRINKS = 5
# With a fixed width, the run checks whether it can end if the optimization gap is below this share of the target.
FLOOR_SHARE = 1e-3


class SmoothingSchedule:
    """The present width nu of the smoothing, and the decision when to reduce it.

    nu is 0 if the solver minimizes the exact risk, or if that is smooth by itself (`unneeded`); `adaptive` says whether
    it shrinks. In the methods, `last` is the solver's last evaluation, `target` the gap to prove, and `count` the
    number of evaluations.
    """

    def __init__(self, loss: Loss, settings: Settings) -> None:
        self.unneeded = loss.family.smooth_by_itself
        smooth = settings.traits.smooth and not self.unneeded
        self.adaptive, self._fixed = smooth and settings.c_mu is None, smooth and settings.c_mu is not None
        self.nu, self._count_at_shrink = 0.0, 0
        if self._fixed and settings.c_mu is not None:
            self.nu = loss.paper_width(settings.c_mu, settings.target(1.0))
        elif smooth:
            self.nu = START_COST / loss.smoothing_cost()

    def too_wide(self, last: Evaluation, target: float, count: int) -> bool:
        """Return whether the width has to be reduced. Raises StopRun if a fixed width makes the target unreachable."""
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
            share = f"smoothing with nu = {self.nu:.3g} adds {last.smoothing_gap:.3g} to the gap"
            raise StopRun(Status.FLOOR, f"{share}; a smaller --c-mu adds less")

    def matters(self, last: Evaluation, target: float) -> bool:
        """Return whether to reduce the width and restart a solver that can make no further progress."""
        return self.adaptive and last.smoothing_gap > target / 4

    def shrink(self, count: int) -> None:
        """Reduce the width."""
        self.nu *= SHRINK
        self._count_at_shrink = count

    def numbers(self) -> dict[str, Any]:
        """Return what `restore` needs, ready for JSON."""
        return {"nu": self.nu, "count_at_shrink": self._count_at_shrink}

    def restore(self, numbers: Mapping[str, Any]) -> None:
        """Set the state to that of another schedule. A fixed width is not changed."""
        self._count_at_shrink = numbers["count_at_shrink"]
        if self.adaptive:
            self.nu = numbers["nu"]
