"""Where rows and losses of a training are computed: on the processor, or on a device. Only `place_of` asks which."""

from __future__ import annotations

from importlib.util import find_spec
from typing import TYPE_CHECKING, Any

from distsms.base.choices import DEVICES, require_choice
from distsms.base.communicator import Communicator
from distsms.base.errors import InputError
from distsms.base.measures import Measure
from distsms.base.typing import Floats, Labels
from distsms.base.wording import option
from distsms.losses.base import Loss
from distsms.losses.registry import make_loss
from distsms.matrix.augmented import with_bias
from distsms.matrix.base import Features
from distsms.matrix.blocks import LocalRows
from distsms.matrix.side_by_side import SideBySide

if TYPE_CHECKING:
    from distsms.device.rows import DeviceFeatures

OFFERED = {"rocarea": "bins", "pauc": "bins", "prbep": "exchange", "logistic": "gather", "logistic-balanced": "gather"}
"""The families of measures that a device computes, and the ordering of each."""


class Place:
    """The processor, and the base of devices."""

    def describe(self) -> str:
        """Return the device in words; "" for the processor."""
        return ""

    def ordering(self, ordering: str, measure: Measure) -> str:
        """Return the ordering of the loss that is computed if a user asks for `ordering`. Local."""
        return ordering

    def loss(
        self, measure: Measure, ordering: str, labels: Labels, weights: Floats | None, comm: Communicator, groups: Any
    ) -> Loss:
        """Build the loss of this rank's rows; see `make_loss`. **Collective.**"""
        return make_loss(measure, ordering, labels, weights, comm, groups)

    def features(self, rows: LocalRows | SideBySide, bias: float | None, comm: Communicator) -> Features:
        """Return the products of this rank's rows, with a constant column if there is a bias. **Collective.**"""
        return with_bias(rows, bias)

    def free(self) -> None:
        """Free what the rows take where they are computed."""


PROCESSOR = Place()


class Cuda(Place):
    """The device of this rank. Creating it is **collective**, and raises InputError if there is none for each rank."""

    def __init__(self, comm: Communicator) -> None:
        from distsms.device.runtime import open_device  # only now is numba.cuda loaded

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
        self, measure: Measure, ordering: str, labels: Labels, weights: Floats | None, comm: Communicator, groups: Any
    ) -> Loss:
        from distsms.device.losses import LOSSES

        loss: Loss = LOSSES[measure.family.name](labels, weights, comm, *measure.parameters)
        return loss

    def features(self, rows: LocalRows | SideBySide, bias: float | None, comm: Communicator) -> Features:
        from distsms.device.rows import DeviceFeatures

        self.free()
        with comm.fail_together():
            self._features = DeviceFeatures(rows, bias)
        return self._features

    def free(self) -> None:
        if self._features is not None:
            self._features.close()
            self._features = None


def place_of(device: str, measure: Measure, comm: Communicator) -> Place:
    """Return where a training for a measure is computed. InputError if that is not possible. **Collective.**"""
    require_choice("device", device, DEVICES)
    if device == "cpu":
        return PROCESSOR
    family = measure.family.name
    if family not in OFFERED:
        raise InputError(
            f"{option('device', device)} offers {', '.join(OFFERED)}, and not {measure}. Leave out {option('device')}: "
            "the processor has all measures",
            everywhere=True,
        )
    if comm.failures:
        raise InputError(
            f"{option('device', device)} does not go on when a rank dies. Leave out {option('survive')}; with "
            f"{option('checkpoint')} the run can be resumed",
            everywhere=True,
        )
    with comm.fail_together():
        import numba

        if not getattr(numba.config, "ENABLE_CUDASIM", False) and find_spec("numba_cuda") is None:
            raise InputError(
                f"{option('device', device)} needs numba-cuda, which is not installed: pip install 'distsms[cuda]'. "
                f"Without {option('device')} the processor computes the same"
            )
    return Cuda(comm)
