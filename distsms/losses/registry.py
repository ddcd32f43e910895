"""The risks that can be minimized, one module each. A new one is a module and a line in `MEASURES`,
and a name in `distsms.measures`."""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from distsms.errors import InputError
from distsms.losses.base import Cost, Loss, LossValue
from distsms.losses.contingency import FBeta, PrecisionAtK, RecallAtK
from distsms.losses.error_rate import ErrorRate
from distsms.losses.prbep import Prbep
from distsms.losses.prbep_exchange import PrbepExchange
from distsms.losses.rocarea import RocArea
from distsms.losses.rocarea_exchange import RocAreaExchange
from distsms.measures import Measure
from distsms.parallel.communicator import Communicator
from distsms.utils.typing import Floats

__all__ = ["MEASURES", "Loss", "LossValue", "choose_ordering", "loss_class", "make_loss"]

# (family of measures, ordering) -> class; what follows the family in a measure's name goes to its constructor
MEASURES: dict[tuple[str, str], type[Loss]] = {
    ("rocarea", "gather"): RocArea,
    ("rocarea", "exchange"): RocAreaExchange,
    ("prbep", "gather"): Prbep,
    ("prbep", "exchange"): PrbepExchange,
    ("error-rate", "gather"): ErrorRate,
    ("f-beta", "gather"): FBeta,
    ("precision@k", "gather"): PrecisionAtK,
    ("recall@k", "gather"): RecallAtK,
}


def loss_class(measure: str | Measure, ordering: str) -> type[Loss]:
    """Return the class of a measure's loss for an ordering. Raises InputError if there is none."""
    family = Measure.parse(measure).family
    if (family, ordering) not in MEASURES:
        there = ", ".join(other for one, other in MEASURES if one == family)
        raise InputError(f"{measure} is not offered with the ordering {ordering!r}, only with: {there}")
    return MEASURES[family, ordering]


def make_loss(
    measure: str | Measure, ordering: str, labels: NDArray[np.int8], weights: Floats | None, comm: Communicator
) -> Loss:
    """The loss of this rank's rows; see `Loss`. Collective. Raises InputError where a class is missing, or k rows.

    ordering : a key of `MEASURES`, not "auto": see `choose_ordering`.
    """
    return loss_class(measure, ordering)(labels, weights, comm, *Measure.parse(measure).parameters)


def choose_ordering(asked: str, measure: str | Measure, n_pos: int, n_neg: int, size: int) -> tuple[str, str]:
    """The ordering asked for, or for "auto" the one that costs least on so many ranks; and why, in words.

    By the counts of `Loss.cost`, a byte and a step being one nanosecond each: about right for a network of 10 Gbit/s
    and for a kernel, and orders of magnitude are what differs. Local.
    """
    if asked != "auto":
        return asked, "as asked for"
    family = Measure.parse(measure).family
    costs = {ordering: loss.cost(n_pos, n_neg, size) for (name, ordering), loss in MEASURES.items() if name == family}
    best, *others = sorted(costs, key=lambda ordering: costs[ordering].bytes + costs[ordering].steps)
    if not others:
        return best, "the only one for this measure"
    said = "; ".join(f"{ordering} {_said(costs[ordering])}" for ordering in [best, *others])
    return best, f"the cheapest by count on {size} rank{'s' * (size > 1)} ({said}; an evaluation, on the busiest)"


def _said(cost: Cost) -> str:
    return f"{cost.bytes:.2g} bytes, {cost.steps:.2g} steps"
