"""Who narrows the gap faster for an evaluation: the solver, or steps of the bundle that proves the gap.

A solver of the smoothed risk is quick where many rows make the risk all but smooth, and stalls where few do: where
columns are many more than rows, or where most rows are alike. There the bundle's own steps (`Certificate.level_point`,
on the exact risk) need a fraction of its evaluations; elsewhere they need many times as many. Which it is shows by
trying: a step now and then, more as long as they pay, and ever fewer where they do not.
"""

from __future__ import annotations

from collections.abc import Callable

import numpy as np

from distsms.optim.state import Snapshot

FIRST = 5  # evaluations of the solver before the first trial; also between trials that pay
GROWTH = 2.0  # of the evaluations between trials that do not pay
WORTH = 1.5  # a step of the bundle pays if it narrows the gap by this many times what the solver's evaluations do
RECENT, STALLED = 5, 0.2  # the solver stalls where its last evaluations gain less than this share of its mean gain
PATIENCE = 3  # steps in a row that need not pay, if the solver stalls: a bundle may have to learn first. More, in
# proportion, where the solver has had more evaluations since the last trial
REPEATS, LITTLE = 20, 1e-4  # the same, where the solver cannot go on; and what a step has to gain then


class LevelStepSchedule:
    """What an evaluation gained on either side, as a difference of log gap. Told the same on every process."""

    def __init__(self) -> None:
        self._gap = np.inf
        self._gains: list[float] = []  # the solver's
        self._interval, self._since = float(FIRST), 0

    def solver_evaluated(self, gap: float) -> None:
        """The gap after an evaluation that the solver asked for."""
        if np.isfinite(self._gap):
            self._gains.append(_gain(self._gap, gap))
        self._gap = gap
        self._since += 1

    def snapshot(self) -> Snapshot:
        """All that it knows; see `restore`."""
        numbers = {"gap": self._gap, "interval": self._interval, "since": self._since}
        return Snapshot(numbers, {"gains": np.array(self._gains)})

    def restore(self, snapshot: Snapshot) -> None:
        """Know what another one knew."""
        self._gap, self._interval, self._since = (snapshot.numbers[name] for name in ("gap", "interval", "since"))
        self._gains = snapshot.tables["gains"].tolist()

    @property
    def trial_due(self) -> bool:
        """Whether the bundle may try again."""
        return self._since >= self._interval and bool(self._gains)

    def trial(self, step: Callable[[], float]) -> None:
        """Let the bundle take steps as long as they pay. step : takes one and returns the gap after it."""
        mean = float(np.mean(self._gains))
        stalled = np.mean(self._gains[-RECENT:]) < STALLED * mean
        paid = self._steps(step, WORTH * mean, max(PATIENCE, int(self._interval) // 2) if stalled else 0)
        self._interval, self._since = FIRST if paid else GROWTH * self._interval, 0

    def rescue(self, step: Callable[[], float]) -> None:
        """Let the bundle take steps as long as they gain a little: the solver cannot go on."""
        self._steps(step, LITTLE, REPEATS)

    def _steps(self, step: Callable[[], float], least: float, patience: int) -> int:
        """How many gained more than `least`; `patience` is how many in a row need not."""
        paid = failures = 0
        while failures <= patience:
            before, self._gap = self._gap, step()
            gain = _gain(before, self._gap)
            paid, failures = (paid + 1, 0) if gain > least else (paid, failures + 1)
        return paid


def _gain(before: float, after: float) -> float:
    return float(np.log(before / after)) if after > 0 else np.inf
