"""The risks that can be minimized, one module each. A new one is a module and a line in `MEASURES`."""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from distsms.comm import Communicator
from distsms.losses.contract import Floats, Loss, LossValue
from distsms.losses.prbep import Prbep
from distsms.losses.prbep_exchange import PrbepExchange
from distsms.losses.rocarea import RocArea

__all__ = ["MEASURES", "Loss", "LossValue", "make_loss"]

# (measure, ordering) -> class
MEASURES: dict[tuple[str, str], type[Loss]] = {
    ("rocarea", "gather"): RocArea,
    ("prbep", "gather"): Prbep,
    ("prbep", "exchange"): PrbepExchange,
}


def make_loss(
    measure: str, ordering: str, labels: NDArray[np.int8], weights: Floats | None, comm: Communicator
) -> Loss:
    """The loss of this rank's rows; see `Loss`. Collective. Raises InputError where a class is missing."""
    return MEASURES[measure, ordering](labels, weights, comm)
