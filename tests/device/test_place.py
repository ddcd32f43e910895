"""What is said where no device can be driven."""

from __future__ import annotations

import numba
import pytest

import distsms
from distsms.base.communicator import Communicator
from distsms.base.errors import InputError
from distsms.base.measures import Measure
from distsms.device import place

pytestmark = pytest.mark.serial
ROCAREA = Measure.parse("rocarea")
DRIVEN = not numba.config.ENABLE_CUDASIM and place.find_spec("numba_cuda") is not None


@pytest.mark.skipif(bool(numba.config.ENABLE_CUDASIM), reason="the simulator needs no numba-cuda")
def test_without_numba_cuda(monkeypatch):
    monkeypatch.setattr(place, "find_spec", lambda name: None)
    with pytest.raises(InputError, match=r"needs numba-cuda, which is not installed: pip install 'distsms\[cuda\]'"):
        place.place_of("cuda", ROCAREA, Communicator())
    with pytest.raises(InputError, match=r"device='cuda' needs numba-cuda"):
        distsms.train(([[1.0], [0.0]], [1, -1]), lam=0.1, device="cuda")


@pytest.mark.skipif(bool(numba.config.ENABLE_CUDASIM) or DRIVEN, reason="there may be a device")
def test_without_a_driver(monkeypatch):
    monkeypatch.setattr(place, "find_spec", lambda name: object())
    with pytest.raises(InputError, match=r"no device, or its driver cannot be loaded \(.*\)\. `nvidia-smi` shows"):
        place.place_of("cuda", ROCAREA, Communicator())


def test_ranks_may_not_go_on_without_others():
    comm = Communicator()
    comm.failures = (RuntimeError,)
    with pytest.raises(InputError, match=r"does not go on when a rank dies\. Leave out --survive"):
        place.place_of("cuda", ROCAREA, comm)
