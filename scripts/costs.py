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
from typing import Any

import numpy as np
from scipy.optimize import nnls


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
    }[kind]


KINDS = ("broadcast", "reduce", "allreduce", "allgather", "reduce-scatter", "gather", "scatter")


@dataclass(frozen=True)
class Network:
    """Latency [s] and seconds a byte of each kind of collective."""

    latency: dict[str, float]
    per_byte: dict[str, float]

    def seconds(self, kind: str, n_bytes: float, ranks: int) -> float:
        """What a collective of so many bytes takes."""
        return self.latency[kind] * rounds(ranks) + self.per_byte[kind] * share(kind, ranks) * n_bytes

    @classmethod
    def fitted(cls, samples: Sequence[tuple[str, int, float, float]]) -> Network:
        """The network that explains measurements (kind, ranks, bytes, seconds) best, in relative terms."""
        latency, per_byte = {}, {}
        for kind in KINDS:
            mine = [sample[1:] for sample in samples if sample[0] == kind]
            design = np.array([[rounds(ranks), share(kind, ranks) * n_bytes] for ranks, n_bytes, _ in mine])
            seconds = np.array([one[-1] for one in mine])
            found, _ = nnls(design / seconds[:, None], np.ones(len(mine)))
            latency[kind], per_byte[kind] = map(float, found)
        return cls(latency, per_byte)

    @classmethod
    def ideal(cls, latency: float, bandwidth: float, efficiency: float) -> Network:
        """A wire of which every collective gets the same share."""
        return cls(dict.fromkeys(KINDS, latency), dict.fromkeys(KINDS, 1 / (bandwidth * efficiency)))


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

    @property
    def n_min(self) -> float:
        return min(self.n_pos, self.n_neg)


@dataclass(frozen=True)
class Rates:
    """Seconds that one rank on an idle core takes, measured on one data set; see `scripts/cost_model rates`.

    margins, gradient : for each nonzero.  gathered : of ordering all rows on the root, for each row.
    large, small : of the exchange, for each row of the larger class that the rank holds, and of the whole smaller one.
    step : of the solver and the proof, for each column.  fixed : what is left, for each evaluation.
    """

    margins: float
    gradient: float
    gathered: float
    large: float
    small: float
    step: float
    fixed: float


def evaluation(
    problem: Problem,
    rates: Rates,
    network: Network,
    ranks: int,
    crowding: float,
    ordering: str,
    measure: str,
    step: str,
    inward: str,
) -> dict[str, float]:
    """Seconds of one evaluation by phase."""
    vector = 8.0 * problem.p
    outward = "allgather" if step == "spread" else "broadcast"
    steppers = ranks if step == "spread" else 1
    found: dict[str, Any] = {
        outward: network.seconds(outward, vector, ranks),
        "margins X w": rates.margins * problem.nnz / ranks * crowding,
        "gradient X'c": rates.gradient * problem.nnz / ranks * crowding,
        inward: network.seconds(inward, vector, ranks),
        "step": rates.step * problem.p / steppers * (crowding if steppers > 1 else 1.0) + rates.fixed,
    }
    if ordering == "gather":
        moved = network.seconds("gather", 8.0 * problem.n, ranks) + network.seconds("scatter", 8.0 * problem.n, ranks)
        found["loss"] = rates.gathered * problem.n + moved
    elif measure == "rocarea":
        moved = network.seconds("allgather", 8.0 * problem.n_min, ranks)
        moved += network.seconds("allreduce", 8.0 * problem.n_min, ranks)
        local = rates.large * (problem.n - problem.n_min) / ranks + rates.small * problem.n_min
        found["loss"] = local * crowding + moved
    else:
        moved = 2 * network.seconds("allreduce", 28 * 1024, ranks) + network.seconds("allreduce", 72, ranks)
        found["loss"] = rates.large * problem.n / ranks * crowding + moved
    return found
