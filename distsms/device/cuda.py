"""The place `cuda`: the device of each rank, through numba.cuda."""

from __future__ import annotations

from typing import Any

from numpy.typing import NDArray

from distsms.base.errors import InputError
from distsms.base.measures import Measure
from distsms.base.typing import Floats, Labels
from distsms.base.wording import option
from distsms.device.losses import DeviceLogistic, DeviceLogisticBalanced, DevicePauc, DevicePrbep, DeviceRocArea
from distsms.device.place import OFFERED, Place
from distsms.device.rows import DeviceFeatures
from distsms.device.runtime import open_device
from distsms.losses.base import Loss
from distsms.matrix.base import Features
from distsms.matrix.blocks import LocalRows
from distsms.matrix.side_by_side import SideBySide
from distsms.parallel.communicator import Communicator

LOSSES: dict[str, Any] = {
    "rocarea": DeviceRocArea,
    "pauc": DevicePauc,
    "prbep": DevicePrbep,
    "logistic": DeviceLogistic,
    "logistic-balanced": DeviceLogisticBalanced,
}


class Cuda(Place):
    """The device of this rank. Creating it is **collective**, and raises InputError if there is none for each rank."""

    def __init__(self, comm: Communicator) -> None:
        self._in_words = open_device(comm)
        self._features: DeviceFeatures | None = None

    def describe(self) -> str:
        return self._in_words

    def ordering(self, ordering: str, measure: Measure) -> str:
        """Return the only ordering of a measure that is offered; InputError if another one is asked for. Local."""
        offered = OFFERED[measure.family.name]
        if ordering not in ("auto", offered):
            raise InputError(
                f"{option('device', 'cuda')} computes {measure} with {option('ordering', offered)}, and not with "
                f"{option('ordering', ordering)}: leave out one of the two options",
                everywhere=True,
            )
        return offered

    def loss(
        self,
        measure: Measure,
        ordering: str,
        labels: Labels,
        weights: Floats | None,
        comm: Communicator,
        groups: NDArray[Any] | None,
    ) -> Loss:
        loss: Loss = LOSSES[measure.family.name](labels, weights, comm, *measure.parameters)
        return loss

    def features(self, rows: LocalRows | SideBySide, bias: float | None, comm: Communicator) -> Features:
        self.free()
        with comm.fail_together():
            self._features = DeviceFeatures(rows, bias)
        return self._features

    def free(self) -> None:
        if self._features is not None:
            self._features.close()
            self._features = None
