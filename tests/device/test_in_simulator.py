"""Start the tests of this folder in CUDA's simulator."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest


@pytest.mark.serial
def test_what_a_device_computes():
    words = ["-m", "pytest", "-q", "-p", "no:cacheprovider", "-p", "no:xdist", "-m", "cuda", "--ranks", "3"]
    environment = {**os.environ, "NUMBA_ENABLE_CUDASIM": "1"}
    folder = Path(__file__).parent
    ended = subprocess.run(
        [sys.executable, *words, str(folder)], cwd=folder.parents[1], env=environment, capture_output=True, text=True
    )
    assert ended.returncode == 0, ended.stdout[-8000:] + ended.stderr[-2000:]
    assert "skipped" not in ended.stdout.splitlines()[-1]
