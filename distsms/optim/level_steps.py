"""The decision when the run takes level steps in place of evaluations of the solver.

A level step evaluates the exact objective at `Planes.level_point`. A solver of the smoothed risk is fast if
there are many different rows, which make the risk nearly smooth. It stalls if there are many more columns than rows, or
if most rows are similar. In these cases, level steps need only a fraction of the solver's evaluations; otherwise they
need many times as many. The schedule decides by trials: it takes a level step now and then, further ones as long as
they pay, and waits longer for the next trial each time that they do not.

At first, the gap says little about either of them: the lower bound is far below J until the solver comes close to the
minimum. So the first trial waits until the gap is small compared with the first gap, and a trial has an end, after
which the solver shows what it gains by now.
"""

from __future__ import annotations

from collections.abc import Callable

import numpy as np

from distsms.optim.result import Snapshot

# The gain of an evaluation is the decrease of log(gap).
FIRST = 5  # number of evaluations of the solver before the first trial, and before the next if a trial paid
SMALL, LATEST = 0.2, 50  # the first trial waits for this share of the first gap, or for this many evaluations
LONGEST = 10  # the number of steps in a trial; it is doubled each time that a trial is ended by it
GROWTH = 2.0  # if a trial did not pay, the number of evaluations before the next is multiplied by this
WORTH = 1.5  # a level step pays if it gains this many times the mean gain of the solver's evaluations
RECENT, STALLED = 5, 0.2  # the solver has stalled if its last 5 evaluations gained less than 0.2 of its mean gain
# If the solver has stalled, a trial continues in spite of this many steps in a row that do not pay, since the bundle
# may need some planes first. If the solver had many evaluations since the last trial, the number is larger.
PATIENCE = 3
REPEATS, LITTLE = 20, 1e-4  # PATIENCE, and the gain above which a step pays, if the solver cannot continue


class LevelStepSchedule:
    """Compares the gains of the solver's evaluations with those of level steps, alike on all ranks that run the solver.

    eager : whether to make trials also while the solver has not stalled. They pay then only if there are more columns
    than rows, and if the risk is not smooth by itself; elsewhere runs take 5 % fewer evaluations without them.
    """

    def __init__(self, eager: bool) -> None:
        self._eager = eager
        self._gap, self._first_gap, self._longest = np.inf, np.inf, LONGEST
        self._gains: list[float] = []  # the gain of each evaluation of the solver
        self._interval, self._since = float(FIRST), 0

    def solver_evaluated(self, gap: float) -> None:
        """Note the gap after an evaluation that the solver asked for."""
        if np.isfinite(self._gap):
            self._gains.append(_gain(self._gap, gap))
        else:
            self._first_gap = gap
        self._gap = gap
        self._since += 1

    def snapshot(self) -> Snapshot:
        """Return the state; see `restore`."""
        numbers = {"gap": self._gap, "first_gap": self._first_gap, "longest": self._longest}
        numbers |= {"interval": self._interval, "since": self._since}
        return Snapshot(numbers, {"gains": np.array(self._gains)})

    def restore(self, snapshot: Snapshot) -> None:
        """Set the state to that of another schedule."""
        numbers = snapshot.numbers
        self._gap, self._interval, self._since = (numbers[name] for name in ("gap", "interval", "since"))
        self._first_gap = numbers.get("first_gap", np.inf)  # checkpoints of version 0.1.0 have neither
        self._longest = numbers.get("longest", LONGEST)
        self._gains = snapshot.tables["gains"].tolist()

    @property
    def trial_due(self) -> bool:
        """Whether it is time for the next trial of level steps."""
        begun = self._gap <= SMALL * self._first_gap or len(self._gains) >= LATEST
        due = begun and self._since >= self._interval and bool(self._gains)
        return due and (self._eager or self._stalled)

    @property
    def _stalled(self) -> bool:
        """Whether the solver's last evaluations gained much less than those before."""
        return bool(np.mean(self._gains[-RECENT:]) < STALLED * np.mean(self._gains))

    def trial(self, step: Callable[[], float]) -> None:
        """Take level steps as long as they pay, but not too many of them.

        `step` takes one level step and returns the gap after it.
        """
        mean = float(np.mean(self._gains))
        patience = max(PATIENCE, int(self._interval) // 2) if self._stalled else 0
        paid, to_the_end = self._steps(step, WORTH * mean, patience, self._longest + patience)
        self._longest = 2 * self._longest if to_the_end else LONGEST
        self._interval, self._since = FIRST if paid else GROWTH * self._interval, 0

    def rescue(self, step: Callable[[], float]) -> None:
        """Take level steps as long as they gain anything. To be called if the solver cannot continue."""
        self._steps(step, LITTLE, REPEATS)

    def _steps(
        self, step: Callable[[], float], least: float, patience: int, longest: float = np.inf
    ) -> tuple[int, bool]:
        """Take at most `longest` steps, until more than `patience` in a row gained no more than `least`.

        Return how many gained more, and whether they paid to the end.
        """
        taken = paid = failures = 0
        while failures <= patience and taken < longest:
            before, self._gap = self._gap, step()
            gain = _gain(before, self._gap)
            paid, failures = (paid + 1, 0) if gain > least else (paid, failures + 1)
            taken += 1
        return paid, failures <= patience


def _gain(before: float, after: float) -> float:
    return float(np.log(before / after)) if after > 0 else np.inf
