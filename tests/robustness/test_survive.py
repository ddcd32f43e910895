"""A training goes on when ranks are killed; where MPI has no ULFM, this is skipped, and says so."""

from __future__ import annotations

import json
import shutil
from argparse import Namespace

import pytest

from tests.robustness import survive
from tests.support.program import run, run_module

pytestmark = [pytest.mark.e2e, pytest.mark.serial]


@pytest.fixture(scope="module", autouse=True)
def ulfm():
    if shutil.which("mpirun") is None:
        pytest.skip("there is no mpirun")
    if why := survive.missing_ulfm(Namespace(mpirun="mpirun --with-ft ulfm")):
        pytest.skip(why)


def test_killed_ranks_cost_no_result(tmp_path):
    run("synth", "dense", tmp_path / "data", "--rows", 6000, "--columns", 60, "--positive", 0.1, "--shards", 3)
    words = [tmp_path / "data", "--kills", 4, "--ranks", 4, "--json", tmp_path / "kills.json"]
    run_module("tests.robustness.survive", *words, "--", "--lambda", "1e-5", "--epsilon", "1e-5", "--no-check")
    records = json.loads((tmp_path / "kills.json").read_text())["records"]
    assert not any(record["bad"] for record in records)
    assert any(record["survived"] for record in records)
