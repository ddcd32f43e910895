"""Helpers of the benchmarks: alternating timings, table rows with a target and a verdict, the triad, objectives."""

from __future__ import annotations

import sys
import time
from collections.abc import Callable, Mapping
from concurrent.futures import ThreadPoolExecutor
from dataclasses import asdict, dataclass, fields
from pathlib import Path
from typing import Any, NamedTuple

import numba
import numpy as np

from distsms.base.communicator import Communicator
from distsms.losses.registry import choose_ordering, make_loss
from distsms.optim.objective import Objective, Request
from distsms.optim.run import minimize
from distsms.optim.settings import Settings
from distsms.shards.dataset import DataBlock, load

LAMBDA, EPSILON = 1e-6, 1e-3
QUIET = 1.2
"""If the rates of the triads during a part differ by more than this factor, something else used the machine."""
_TRIAD = 2**22  # number of elements of each array; larger than the caches of a core


@dataclass(frozen=True)
class Row:
    """A row of the table: the median of the quantity `what`, its quartiles, and its target, such as ">= 10"."""

    part: str
    data: str
    what: str
    value: float
    low: float
    high: float
    unit: str = ""
    target: str = ""

    @property
    def verdict(self) -> str:
        """Whether the target is met, or by what factor it is missed; empty without a target.

        More than twice as fast on two cores is not possible. Where it was measured, other programs or cold caches
        have slowed down one of both, and there is no verdict.
        """
        if not self.target:
            return ""
        if "speedup of two" in self.what and self.low > 2:
            return "none: more than 2 is not possible"
        if "speedup of two" in self.what and self.value < 1:
            return "missed: slower than one"
        sense, bound = self.target.split()
        short = self.value / float(bound) if sense == "<=" else float(bound) / self.value if self.value else np.inf
        return "met" if short <= 1 else f"missed by a factor of {short:.4g}"

    def cells(self) -> list[str]:
        """Return the cells of this row in a Markdown table. Without a spread, all but counts were measured once."""
        once = " (once)" if self.unit else ""
        spread = f" ({self.low:.3g} to {self.high:.3g})" if self.low < self.high else once
        found = f"{self.value:.3g} {self.unit}".strip() + spread
        return [self.part, self.data, self.what, self.target, found, self.verdict]

    def numbers(self) -> dict[str, Any]:
        """Return the row as a mapping that can be written as JSON."""
        return asdict(self)

    @classmethod
    def of(cls, numbers: Mapping[str, Any]) -> Row:
        """Return the row that `numbers` has written; other keys are left out."""
        return cls(**{field.name: numbers[field.name] for field in fields(cls)})


def row(part: str, data: str, what: str, values: Any, unit: str = "", target: str = "") -> Row:
    """Make a row from one number, or from one number for each round."""
    low, middle, high = np.quantile(np.atleast_1d(values), [0.25, 0.5, 0.75]).tolist()
    return Row(part, data, what, middle, low, high, unit, target)


def timed(functions: Mapping[str, Callable[[], object]], seconds: float = 3.0) -> dict[str, np.ndarray]:
    """Return the seconds of each function in each round, (rounds,). In a round, each function is called once.

    Before the rounds, each function is called once without being timed. There are at least 5 and at most 300 rounds,
    which together take about `seconds`.
    """
    for function in functions.values():
        function()
    found: dict[str, list[float]] = {name: [] for name in functions}
    end, rounds = time.perf_counter() + seconds, 0
    while rounds < 5 or (rounds < 300 and time.perf_counter() < end):
        for name, function in functions.items():
            start = time.perf_counter()
            function()
            found[name].append(time.perf_counter() - start)
        rounds += 1
    return {name: np.array(times) for name, times in found.items()}


@numba.njit(cache=True, nogil=True)
def _triad(a: np.ndarray, b: np.ndarray, c: np.ndarray) -> None:
    for i in range(len(a)):
        a[i] = b[i] + 3.0 * c[i]


class Triad:
    """Compute a = b + 3 c over arrays that are larger than the caches, which measures the bandwidth of the memory."""

    def __init__(self) -> None:
        self._arrays = np.ones((3, _TRIAD))
        self.nbytes = self._arrays.nbytes
        _triad(*self._arrays)

    def __call__(self) -> None:
        _triad(*self._arrays)

    def rate(self, rounds: int = 9) -> float:
        """Return the bytes moved per second, the median of several rounds."""
        return float(self.nbytes / np.median(timed({"triad": self}, 0.02 * rounds)["triad"]))


def two_cores(triads: list[Triad]) -> float:
    """Return the bytes per second of several triads that run at the same time, each on a thread."""
    with ThreadPoolExecutor(len(triads)) as pool:
        return sum(pool.map(Triad.rate, triads))


class Set(NamedTuple):
    """A named data set: the shards to train on and, optionally, the shards to test on."""

    name: str
    train: Path
    test: Path | None = None

    @property
    def strings(self) -> bool:
        """Whether the set is a text of LABEL SEQUENCE lines instead: its name begins with dna. Only `coded` uses it."""
        return self.name.startswith("dna")

    def load(self, comm: Communicator | None = None) -> DataBlock:
        """Load this rank's share of the rows to train on; all rows if there is no communicator. Collective."""
        return load(self.train, comm or Communicator())


def objective_of(block: DataBlock, measure: str, comm: Communicator) -> Objective:
    """Make the objective in the same way as `distsms train`. Collective."""
    n_pos = int(comm.sum(np.array([np.count_nonzero(block.labels > 0)]))[0])
    ordering, _ = choose_ordering("auto", measure, n_pos, block.n - n_pos, comm.size)
    return Objective(block.features, [make_loss(measure, ordering, block.labels, block.weights, comm)], comm)


def requests(objective: Objective, evaluations: int = 24) -> list[Request]:
    """Train at `LAMBDA` for some evaluations, and return the requests of the second half of these. Collective.

    On the ranks that do not run the solver the result is empty.
    """
    asked: list[Request] = []
    evaluate = objective.evaluate

    def remember(some: Any) -> Any:
        asked.extend(request._replace(w=request.w.copy()) for request in some)
        return evaluate(some)

    objective.evaluate = remember  # type: ignore[assignment, method-assign]
    minimize(objective, Settings(LAMBDA, EPSILON, max_evaluations=evaluations))
    objective.evaluate = evaluate  # type: ignore[method-assign]
    return asked[len(asked) // 2 :]


def say(text: str) -> None:
    """Print a line on standard error, so that the user sees the progress."""
    print(text, file=sys.stderr, flush=True)
