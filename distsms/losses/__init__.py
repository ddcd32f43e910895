"""The risks that can be minimized, one module each. A new one is a module and a line in `MEASURES`,
and a name in `distsms.measure_names`."""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from distsms import measure_names
from distsms.comm import Communicator
from distsms.errors import InputError
from distsms.losses.contingency import FBeta, PrecisionAtK, RecallAtK
from distsms.losses.contract import Floats, Loss, LossValue
from distsms.losses.error_rate import ErrorRate
from distsms.losses.prbep import Prbep
from distsms.losses.rocarea import RocArea

__all__ = ["MEASURES", "Loss", "LossValue", "loss_class", "make_loss"]

# (family of measures, ordering) -> class; what follows the family in a measure's name goes to its constructor
MEASURES: dict[tuple[str, str], type[Loss]] = {
    ("rocarea", "gather"): RocArea,
    ("prbep", "gather"): Prbep,
    ("error-rate", "gather"): ErrorRate,
    ("f-beta", "gather"): FBeta,
    ("precision@k", "gather"): PrecisionAtK,
    ("recall@k", "gather"): RecallAtK,
}


def loss_class(measure: str, ordering: str) -> type[Loss]:
    """The class of a measure by its name, such as "precision@100". Raises InputError if there is none."""
    family, _ = measure_names.parse(measure)
    if (family, ordering) not in MEASURES:
        there = ", ".join(other for one, other in MEASURES if one == family)
        raise InputError(f"{measure} is not offered with the ordering {ordering!r}, only with: {there}")
    return MEASURES[family, ordering]


def make_loss(
    measure: str, ordering: str, labels: NDArray[np.int8], weights: Floats | None, comm: Communicator
) -> Loss:
    """The loss of this rank's rows; see `Loss`. Collective. Raises InputError where a class is missing, or k rows."""
    return loss_class(measure, ordering)(labels, weights, comm, *measure_names.parse(measure)[1])
