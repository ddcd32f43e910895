"""The tables of a comparison."""

from __future__ import annotations

import math

import pytest

from scripts.compare import tables
from scripts.compare.grid import RunSpec, RunStore
from tests.support.problems import CELL, made


@pytest.mark.serial
class TestTables:
    def test_within_one_percent(self, tmp_path):
        one = made(tmp_path, CELL, [3.0, 1.02, 1.011, 1.01, 1.0005, 1.0])
        assert tables.time_to(one, 1.0, 0.01)[:2] == (4, 4.0)
        assert tables.time_to(one, 1.0, 0.001)[:2] == (5, 5.0)
        assert tables.time_to(one, 1.0, 0.0)[:2] == (6, 6.0)
        assert str(tables.time_to(one, 1.0, 0.01)) == "4.00 s (4)"

    @pytest.mark.parametrize(
        "status, words",
        [("time", "time limit"), ("limit", "evaluation limit"), ("floor", "smoothing floor"), ("stalled", "progress")],
    )
    def test_not_reached_says_why_and_how_far(self, tmp_path, status, words):
        one = made(tmp_path, CELL, [2.0, 1.25], status)
        found = tables.time_to(one, 1.0, 0.01)
        assert found.seconds is None
        assert words in str(found)
        assert "25 % above" in str(found)

    def test_a_run_without_any_finite_J(self, tmp_path):
        runs = [made(tmp_path, CELL, [], "nonfinite"), made(tmp_path, CELL._replace(solver="agm"), [1.0], bound=0.9)]
        assert str(tables.time_to(runs[0], 1.0, 0.01)) == "n.a. (J not finite)"
        assert tables.disagreements(runs) == []
        assert "J not finite" in tables.as_markdown(runs, "# x")
        assert tables.best_run(runs[:1]) is None
        assert math.isnan(tables.rows(runs[:1])[0]["least_J"])

    def test_of_equal_test_measures_the_larger_lambda(self, tmp_path):
        runs = [
            made(tmp_path, RunSpec("rocarea", lam, solver), [J], bound=0.38, test=test)
            for lam, solver, J, test in (
                (1e-2, "lmvm", 1.0, 0.80004),
                (1e-4, "lmvm", 0.5, 0.9),  # not the least J at this lambda
                (1e-4, "agm", 0.4, 0.80001),  # proved to be within 5 % of it
                (1e-6, "lmvm", 0.3, 0.7999),
            )
        ]
        assert tables.best_lambda(runs, "rocarea") == 1e-2
        assert tables.best_lambda(runs[1:], "rocarea") == 1e-4
        assert tables.best_lambda(runs, "prbep") is None
        elsewhere = made(tmp_path, RunSpec("rocarea", 1e-6, "bmrm"), [0.31], bound=0.2)
        assert tables.table2([*runs[1:], elsewhere])[1][0][-1] == "not run at lambda 0.0001"
        header, (line,) = tables.table2(runs[1:])
        assert header[4:] == ["lmvm", "agm"]
        assert line == [
            "rocarea",
            "0.0001",
            "80.00",
            "0.400000, 5 %",
            "n.a. (proved to its target, 25 % above)",
            "1.00 s (1)",
        ]

    def test_what_excludes_another_is_found(self, tmp_path):
        """Two runs prove intervals that do not intersect; a third run, and one at another lambda, agree with both."""
        runs = [
            made(tmp_path, CELL, [1.0], bound=0.99),
            made(tmp_path, CELL._replace(solver="agm"), [0.98], bound=0.97),
            made(tmp_path, CELL._replace(solver="bmrm"), [1.1], bound=0.9),
            made(tmp_path, CELL._replace(lam=1.0), [0.5], bound=0.4),
        ]
        (found,) = tables.disagreements(runs)
        assert "agm found J = 0.98, below the lower bound 0.99 that lmvm proved" in found
        assert found in tables.as_markdown(runs, "# x")
        assert tables.disagreements(runs[1:]) == []
        assert "No run found a J below" in tables.as_markdown(runs[1:], "# x")

    def test_the_tables_hold_every_run(self, tmp_path):
        cells = [CELL, CELL._replace(solver="bmrm"), CELL._replace(c_mu=10.0), CELL._replace(measure="prbep")]
        for k, cell in enumerate(cells):
            made(tmp_path, cell, [2.0, 1.0 + 0.002 * k], bound=0.9, test=0.5 + 0.1 * k, vacuous=k == 0)
        runs = RunStore(tmp_path).all_finished()
        assert [one.spec for one in runs] == [cells[3], cells[0], cells[2], cells[1]]
        assert len(tables.as_csv(runs).splitlines()) == 5
        text = tables.as_markdown(runs, "# x")
        assert text.count("| rocarea | 0.01 |") == 3
        assert "| rocarea | 0.01, vacuous | 50.00 |" in text
        assert "n.a. (proved to its target, 0.2 % above)" in text  # to 0.1 %
        assert tables.as_csv([]) == "\n"
        untested = [made(tmp_path / "untested", CELL, [1.0])]
        assert "Without test rows no lambda is chosen" in tables.as_markdown(untested, "# x")
        assert "Without test rows" not in text
