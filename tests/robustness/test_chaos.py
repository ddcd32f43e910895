"""Two cells of the chaos matrix; `python -m tests.robustness.chaos` runs the whole."""

from __future__ import annotations

import pytest

from tests.robustness.chaos import cells, commands, faults
from tests.robustness.chaos.cells import Cell

pytestmark = [pytest.mark.e2e, pytest.mark.serial]
SAMPLE = [
    Cell("train", "kill -9 of mpirun", streams=True, checkpoint=True),
    pytest.param(Cell("shard", "quota"), marks=pytest.mark.by_turns),
]


@pytest.fixture(scope="module")
def matrix(tmp_path_factory):
    return cells.Matrix(tmp_path_factory.mktemp("chaos"))


@pytest.mark.parametrize("cell", SAMPLE, ids=lambda cell: f"{cell.command}-{cell.fault.replace(' ', '-')}")
def test_no_cell_hangs_or_loses_a_result(matrix, cell):
    record = matrix.run(cell, seed=0)
    if record["skipped"]:
        pytest.skip(record["skipped"])
    assert not record["bad"], record


def test_every_command_meets_every_fault_that_applies():
    every = cells.all_cells()
    assert {cell.command for cell in every} == set(commands.COMMANDS)
    for name, command in commands.COMMANDS.items():
        met = {cell.fault for cell in every if cell.command == name}
        assert met == {fault for fault, about in faults.FAULTS.items() if command.result or not about.writes}
