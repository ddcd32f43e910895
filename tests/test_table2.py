"""The paper's table 2 for all sets: what runs become in its tables and figures, and what has not run says so."""

from __future__ import annotations

import json

import numpy as np
import pytest

from scripts.compare.grid import RunSpec
from scripts.experiments import table2
from scripts.experiments.common import PUBLISHED
from tests.support.problems import made
from tests.support.program import run_module, write_svmlight

pytestmark = pytest.mark.serial
ABOUT = {"set": "web8", "real": True, "scale": 1.0, "ranks": 2, "n": 100, "p": 30, "nonzeros": 400, "streamed": False}
SPECS = [RunSpec("prbep", lam, solver) for lam in (1e-2, 1e-6) for solver in ("lmvm", "bmrm")]
SPECS += [RunSpec("prbep", 1e-6, "lmvm", 10.0)]


@pytest.fixture
def found(tmp_path):
    records = []
    for k, spec in enumerate(SPECS):
        course = [0.5 + 0.5**step for step in range(1 + (spec.solver == "bmrm"), 60)]
        records.append(ABOUT | table2.record_of(made(tmp_path, spec, course, bound=0.4, test=0.7 + 0.01 * k), 0.5))
        records[-1] |= {"gap": 1e-4, "memory": 2**20}
    return json.loads(json.dumps(records))


def cells(text, *begin):
    (line,) = [line for line in text.splitlines() if line.startswith(f"| {' | '.join(begin)} |")]
    return [cell.strip() for cell in line.split("|")[1:-1]]


def test_each_set_has_its_lines(found):
    best = table2.table(found, "best")
    assert len(best.splitlines()) == 2 + 2 * len(PUBLISHED)
    assert cells(best, "web8", "PRBEP") == [
        *("web8", "PRBEP", "1e-06", "0.500000, 20 %", "8.00 s (8)", "7.00 s (7)", "1.26 s", "4.35 s", "72.00", "79.56")
    ]
    assert cells(best, "kddb", "ROCArea")[2:] == ["", "", "not run yet", "", "10592 s", "n.a.", "", "85.29"]
    sets = table2.table(found, "sets")
    assert cells(sets, "web8")[1:] == ["100", "30", "400", "0.03", "real rows, 2 ranks"]
    assert cells(sets, "kddb")[1:3] == ["16,008,000", "29,890,000"] and "table2 results/table2 kddb`" in sets
    every = table2.table(found, "every").splitlines()[2:]
    assert len(every) == 4  # fixed widths are for the figures alone
    seconds, nonzeros = found[0]["seconds"], 400 * found[0]["evaluations"]
    assert f"| {1e9 * seconds / nonzeros:.2f} | 1 MiB |" in every[0]


@pytest.mark.by_turns
def test_courses_are_thinned_and_drawn(found):
    course = found[0]["course"]
    assert len(course["best_J"]) <= table2.POINTS and course["evaluation"][-1] == 59
    assert np.all(np.diff(course["evaluation"]) > 0)
    pytest.importorskip("matplotlib")
    svg = table2.figure(found, "figure web8 prbep")
    for word in ("web8: PRBEP", "lambda = 0.01", "bmrm", "test PRBEP [%]", "best J so far"):
        assert f">{word}<" in svg, word
    assert ">lmvm, c_mu 10<" not in svg and ">lmvm, c_mu 10<" in table2.figure(found, "figure c_mu web8 prbep")
    shown = ("figure web8 prbep", "figure c_mu web8 prbep", "figure agm web8 prbep", "figure web8 rocarea", "best")
    assert [table2.has(found, show) for show in shown] == [True, True, False, False, True]


def test_other_problems_of_an_earlier_file_stay_with_their_commit(tmp_path, found):
    file, changes = tmp_path / "found.json", ({"set": "fd"}, {"lambda": 0.5}, {"measure": "rocarea"})
    others = [found[0] | change for change in changes]
    assert table2.earlier(None, set()) == table2.earlier(file, set()) == []
    file.write_text(json.dumps({"commit": "abc", "records": [*found, *others]}))
    again = {table2.problem_of(record) for record in found}
    assert table2.earlier(file, again) == [{"commit": "abc", **record} for record in others]
    file.write_text(json.dumps({"commit": "def", "records": table2.earlier(file, again)}))
    assert table2.earlier(file, set())[0]["commit"] == "abc"


@pytest.mark.slow
@pytest.mark.e2e
def test_the_program_goes_on_where_it_was(tmp_path):
    write_svmlight(tmp_path / "rows.svm", n=200)
    options = "--ranks", "1", "--lambdas", "1e-1", "1e-2", "--json", tmp_path / "found.json"
    first = tmp_path / "out", f"web8={tmp_path / 'rows.svm'}"
    run_module("scripts.experiments.table2", *first, *options)
    out = run_module("scripts.experiments.table2", *first, "fd", "--scale", "0.001", *options)
    assert "web8 is finished" in out  # the scale is that of twins alone
    found = json.loads((tmp_path / "found.json").read_text())["records"]
    assert {record["set"] for record in found} == {"web8", "fd"} and len(found) == 16
    assert all(record["status"] in ("proved", "time") and record["memory"] > 2**20 for record in found)
    limits = {
        (r["set"], r["measure"], r["lambda"]): max(1.0, 10 * r["seconds"]) for r in found if r["solver"] == "lmvm"
    }
    for record in found:  # what the limit ended took as long as it allows
        key = record["set"], record["measure"], record["lambda"]
        assert record["status"] == "proved" or record["seconds"] >= limits[key]
