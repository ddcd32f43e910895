"""Where rows and losses of a training are computed: on the processor, or on a device. `place_of` decides, and nothing
else asks which it is.
"""

from __future__ import annotations

from importlib.util import find_spec
from typing import Any

from numpy.typing import NDArray

from distsms.base.choices import DEVICES, require_choice
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
from distsms.parallel.communicator import Communicator

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
        self,
        measure: Measure,
        ordering: str,
        labels: Labels,
        weights: Floats | None,
        comm: Communicator,
        groups: NDArray[Any] | None,
    ) -> Loss:
        """Build the loss of this rank's rows; see `make_loss`. **Collective.**"""
        return make_loss(measure, ordering, labels, weights, comm, groups)

    def features(self, rows: LocalRows | SideBySide, bias: float | None, comm: Communicator) -> Features:
        """Return the products of this rank's rows, with a constant column if there is a bias. **Collective.**"""
        return with_bias(rows, bias)

    def free(self) -> None:
        """Free what the rows take where they are computed."""


PROCESSOR = Place()


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
    from distsms.device.cuda import Cuda  # only now is numba.cuda loaded

    return Cuda(comm)
