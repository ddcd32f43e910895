"""When the bundle of planes evaluates in place of the solver: where its steps narrow the gap faster.

A solver of the smoothed risk is fast where many rows make the risk nearly smooth. It stalls where there are many more
columns than rows, or where most rows are alike. There the level steps of the bundle (`CuttingPlaneBundle.level_point`,
on the exact risk) need a fraction of the solver's evaluations; elsewhere they need many times as many. The schedule
finds out by trying: it takes a step now and then, more as long as they pay, and ever fewer where they do not.
"""

from __future__ import annotations

from collections.abc import Callable

import numpy as np

from distsms.optim.state import Snapshot

FIRST = 5  # evaluations of the solver before the first trial, and between trials that pay
GROWTH = 2.0  # of the evaluations between trials that do not pay
WORTH = 1.5  # a step of the bundle pays if it narrows the gap by this many times what the solver's evaluations do
RECENT, STALLED = 5, 0.2  # the solver stalls where its last evaluations gain less than this share of its mean gain
PATIENCE = (
    3  # so many steps in a row need not pay if the solver stalls, since a bundle may need some planes first; more,
)
# in proportion, if the solver has had more evaluations since the last trial
REPEATS, LITTLE = 20, 1e-4  # the same if the solver cannot go on, and the gain that counts then


class LevelStepSchedule:
    """Compares what evaluations of solver and bundle gain, each as a difference of log gap.

    It is given the same numbers on every rank that runs the solver, and so decides the same there.
    """

    def __init__(self) -> None:
        self._gap = np.inf
        self._gains: list[float] = []  # the solver's
        self._interval, self._since = float(FIRST), 0

    def solver_evaluated(self, gap: float) -> None:
        """Note the gap after an evaluation that the solver asked for."""
        if np.isfinite(self._gap):
            self._gains.append(_gain(self._gap, gap))
        self._gap = gap
        self._since += 1

    def snapshot(self) -> Snapshot:
        """Return the state; see `restore`."""
        numbers = {"gap": self._gap, "interval": self._interval, "since": self._since}
        return Snapshot(numbers, {"gains": np.array(self._gains)})

    def restore(self, snapshot: Snapshot) -> None:
        """Take over the state of another schedule."""
        self._gap, self._interval, self._since = (snapshot.numbers[name] for name in ("gap", "interval", "since"))
        self._gains = snapshot.tables["gains"].tolist()

    @property
    def trial_due(self) -> bool:
        """Whether the bundle is to try again."""
        return self._since >= self._interval and bool(self._gains)

    def trial(self, step: Callable[[], float]) -> None:
        """Let the bundle take steps as long as they pay; `step` takes one and returns the gap after it."""
        mean = float(np.mean(self._gains))
        stalled = np.mean(self._gains[-RECENT:]) < STALLED * mean
        paid = self._steps(step, WORTH * mean, max(PATIENCE, int(self._interval) // 2) if stalled else 0)
        self._interval, self._since = FIRST if paid else GROWTH * self._interval, 0

    def rescue(self, step: Callable[[], float]) -> None:
        """Let the bundle take steps as long as they gain a little, since the solver cannot go on."""
        self._steps(step, LITTLE, REPEATS)

    def _steps(self, step: Callable[[], float], least: float, patience: int) -> int:
        """Take steps until more than `patience` in a row gained no more than `least`; return how many gained more."""
        paid = failures = 0
        while failures <= patience:
            before, self._gap = self._gap, step()
            gain = _gain(before, self._gap)
            paid, failures = (paid + 1, 0) if gain > least else (paid, failures + 1)
        return paid


def _gain(before: float, after: float) -> float:
    return float(np.log(before / after)) if after > 0 else np.inf
