"""Start the tests of this folder in CUDA's simulator."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

from tests.device.conftest import OF_DEVICE


@pytest.mark.serial
@pytest.mark.by_turns
@pytest.mark.parametrize("file", OF_DEVICE)
def test_what_a_device_computes(file):
    words = ["-m", "pytest", "-q", "-p", "no:cacheprovider", "-p", "no:xdist", "-m", "cuda", "--ranks", "3"]
    environment = {**os.environ, "NUMBA_ENABLE_CUDASIM": "1"}
    path = Path(__file__).with_name(file)
    ended = subprocess.run(
        [sys.executable, *words, str(path)], cwd=path.parents[2], env=environment, capture_output=True, text=True
    )
    assert ended.returncode == 0, ended.stdout[-8000:] + ended.stderr[-2000:]
    assert "skipped" not in ended.stdout.splitlines()[-1]
