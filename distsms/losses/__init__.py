"""The risks that can be minimized, one module each. A new one is a module and a line in `MEASURES`."""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from distsms.comm import Communicator
from distsms.losses.contract import Cost, Floats, Loss, LossValue
from distsms.losses.prbep import Prbep
from distsms.losses.rocarea import RocArea
from distsms.losses.rocarea_exchange import RocAreaExchange

__all__ = ["MEASURES", "Loss", "LossValue", "choose_ordering", "make_loss"]

# (measure, ordering) -> class
MEASURES: dict[tuple[str, str], type[Loss]] = {
    ("rocarea", "gather"): RocArea,
    ("rocarea", "exchange"): RocAreaExchange,
    ("prbep", "gather"): Prbep,
}


def make_loss(
    measure: str, ordering: str, labels: NDArray[np.int8], weights: Floats | None, comm: Communicator
) -> Loss:
    """The loss of this rank's rows; see `Loss`. Collective. Raises InputError where a class is missing."""
    return MEASURES[measure, ordering](labels, weights, comm)


def choose_ordering(measure: str, n_pos: int, n_neg: int, size: int) -> tuple[str, str]:
    """The ordering that costs least for these data on so many ranks, and why, for people to read.

    By the counts of `Loss.cost`, a byte and a step being one nanosecond each: about right for a network of 10 Gbit/s
    and for a kernel, and orders of magnitude are what differs. Local.
    """
    costs = {ordering: loss.cost(n_pos, n_neg, size) for (name, ordering), loss in MEASURES.items() if name == measure}
    best, *others = sorted(costs, key=lambda ordering: sum(costs[ordering]))
    said = "; ".join(f"{ordering} {_said(costs[ordering])}" for ordering in [best, *others])
    return best, f"counted for the busiest of {size} rank(s), an evaluation: {said}"


def _said(cost: Cost) -> str:
    return f"{cost.bytes:.2g} bytes, {cost.steps:.2g} steps"
