"""What an evaluation should take: a model of compute and network, of measured rates and of nothing else.

    seconds of a collective  =  latency * rounds(P)  +  bytes * share(P) / bandwidth
    seconds of a product     =  nonzeros / P * (measured seconds a nonzero) * crowding,   and so on by rows and columns

rounds and share are those of the algorithms that MPI libraries use for short and for long messages (binomial trees;
rings, and scatter followed by allgather). Crowding is how many ranks share a core. Latency and bandwidth are fitted
for each collective by itself, so that what a library makes of the wire is in them.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
from scipy.optimize import nnls

from distsms.losses.rocarea_exchange import by_ranges


def rounds(ranks: int) -> float:
    """How many messages follow one another in a tree over so many ranks."""
    return math.ceil(math.log2(ranks)) if ranks > 1 else 0.0


def share(kind: str, ranks: int) -> float:
    """How often a rank's bytes pass the busiest wire. Bytes are those of the whole vector, on whatever ranks."""
    if ranks == 1:
        return 0.0
    ring = (ranks - 1) / ranks
    return {
        "broadcast": min(rounds(ranks), 2 * ring),
        "reduce": min(rounds(ranks), 2 * ring),
        "allreduce": 2 * ring,
        "allgather": ring,
        "reduce-scatter": ring,
        "gather": ring,  # to the root, and from there
        "scatter": ring,
        "alltoall": ring,
    }[kind]


VARIANTS = {"reduce by pieces": "reduce", "reduces in turn": "reduce-scatter"}  # other ways to the same end
KINDS = ("broadcast", "reduce", "allreduce", "allgather", "reduce-scatter", "gather", "scatter", "alltoall")


@dataclass(frozen=True)
class Network:
    """Latency [s] and seconds a byte of each kind of collective."""

    latency: dict[str, float]
    per_byte: dict[str, float]

    ranks_per_node: int = 1

    def seconds(self, kind: str, n_bytes: float, ranks: int) -> float:
        """What a collective of so many bytes takes: rings and trees pass a node's wire once, all-to-all does not."""
        nodes = max(1, ranks // self.ranks_per_node)
        wire = share(kind, nodes) * n_bytes / (nodes if kind == "alltoall" else 1)
        return self.latency[kind] * rounds(ranks) + self.per_byte[kind] * wire

    @classmethod
    def fitted(cls, samples: Sequence[tuple[str, int, float, float]]) -> Network:
        """The network that explains measurements (kind, ranks, bytes, seconds) best, in relative terms."""
        latency, per_byte = {}, {}
        for kind in KINDS:
            mine = [sample[1:] for sample in samples if sample[0] == kind]
            divided = kind == "alltoall"
            design = np.array(
                [
                    [rounds(ranks), share(kind, ranks) * n_bytes / (ranks if divided else 1)]
                    for ranks, n_bytes, _ in mine
                ]
            )
            seconds = np.array([one[-1] for one in mine])
            found, _ = nnls(design / seconds[:, None], np.ones(len(mine)))
            latency[kind], per_byte[kind] = map(float, found)
        return cls(latency, per_byte)

    @classmethod
    def alike(cls, latency: float, bandwidth: float, ranks_per_node: int) -> Network:
        """A network of so many bytes a second and node, all of which every collective gets."""
        return cls(dict.fromkeys(KINDS, latency), dict.fromkeys(KINDS, 1 / bandwidth), ranks_per_node)


@dataclass(frozen=True)
class Problem:
    """What is trained on."""

    n_pos: float
    n_neg: float
    nnz: float
    p: int

    @property
    def n(self) -> float:
        return self.n_pos + self.n_neg

    def times(self, factor: float) -> Problem:
        """The same with so many times the rows."""
        return Problem(self.n_pos * factor, self.n_neg * factor, self.nnz * factor, self.p)

    @property
    def n_min(self) -> float:
        return min(self.n_pos, self.n_neg)


@dataclass(frozen=True)
class Run:
    """How it is trained. crowding : how many times slower a rank computes than alone on an idle machine."""

    measure: str
    ordering: str
    step: str
    ranks: int
    crowding: float
    outward: str
    inward: str


@dataclass(frozen=True)
class Rates:
    """Seconds that one rank on an idle core takes, measured on one data set; see `scripts/cost_model rates`.

    margins, gradient : for each nonzero.  gathered : of ordering all rows on the root, for each row.
    large, small : of the exchange, for each row of the larger class that the rank holds, and of the whole smaller one.
    ranged : of the exchange by ranges of scores, for each row that the rank holds.
    step : of the solver and the proof, for each column.  fixed : what is left, for each evaluation.
    """

    margins: float
    gradient: float
    gathered: float
    large: float
    small: float
    ranged: float
    step: float
    fixed: float


def evaluation(problem: Problem, rates: Rates, network: Network, run: Run) -> dict[str, float]:
    """Seconds of one evaluation by phase, by the names that `distsms train` has for them, and the solver's step."""
    vector, ranks, crowding = 8.0 * problem.p, run.ranks, run.crowding
    spread = run.step == "spread"
    return {
        run.outward: network.seconds(run.outward, vector, ranks),
        "margins X w": rates.margins * problem.nnz / ranks * crowding,
        "loss": _loss(problem, rates, network, run),
        "gradient X'c": rates.gradient * problem.nnz / ranks * crowding,
        run.inward: network.seconds(VARIANTS.get(run.inward, run.inward), vector, ranks),
        "step": rates.step * problem.p * (crowding / ranks if spread else 1.0) + rates.fixed,
    }


def _loss(problem: Problem, rates: Rates, network: Network, run: Run) -> float:
    """Seconds of bringing margins into order, whichever way is taken."""
    ranks, n, n_min = run.ranks, problem.n, problem.n_min
    if run.ordering == "gather":
        moved = network.seconds("gather", 8.0 * n, ranks) + network.seconds("scatter", 8.0 * n, ranks)
        return rates.gathered * n + moved
    if run.measure == "prbep":
        moved = 2 * network.seconds("allreduce", 28 * 1024, ranks) + network.seconds("allreduce", 72, ranks)
        return rates.large * n / ranks * run.crowding + moved
    if by_ranges(int(problem.n_pos), int(problem.n_neg), ranks):
        moved = network.seconds("alltoall", 16.0 * n_min + 32.0 * (n - n_min), ranks)
        return rates.ranged * n / ranks * run.crowding + moved
    moved = network.seconds("allgather", 8.0 * n_min, ranks) + network.seconds("allreduce", 8.0 * n_min, ranks)
    local = rates.large * (n - n_min) / ranks + rates.small * n_min
    return local * run.crowding + moved
