"""What the program leaves out, and users' own processes keep."""

from __future__ import annotations

import subprocess
import sys

import pytest

SCRIPT = """
import sys
from distsms.base import program
program.runs = {runs}
import distsms.ingest.formats.columns
import pyarrow
pyarrow.array(["a"])
print("pandas" in sys.modules)
import pandas
print(len(pandas.DataFrame({{"a": [1, 2]}})))
"""


@pytest.mark.serial
@pytest.mark.parametrize("runs", [False, True])
def test_only_the_program_leaves_out_pandas(runs):
    run = subprocess.run([sys.executable, "-c", SCRIPT.format(runs=runs)], capture_output=True, text=True, check=True)
    assert run.stdout.split() == [str(not runs), "2"]
