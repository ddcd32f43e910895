"""Comparisons: the grid, runs that can be killed and resumed, what is measured on the way, and what the tables say."""

from __future__ import annotations

import json
import math
import os
from dataclasses import replace

import numpy as np
import pytest

from distsms import inputs, tables
from distsms.cells import Cell, Finished, Folder, grid
from distsms.comparison import HeldOutRows, Kept, Runner
from distsms.errors import InputError
from distsms.features import Sparse
from distsms.result import State, Status
from distsms.settings import Settings
from distsms.shards import Block, read_manifest, write_data
from distsms.vectors import STEPS
from tests.problems import data, share

DATA = {"data": {"path": "a", "fingerprint": "f"}, "test": {"path": "t", "fingerprint": "e"}}
IDENTITY = {"format": "distsms-comparison", "version": 1, **DATA, "epsilon": 1e-3}
CELL = Cell("rocarea", 1e-2, "lmvm")
EPSILON = 1e-4


def block(comm, X, y):
    """This rank's share of X and y, as `shards.load` would hold it."""
    rows, part = share(comm, len(y)), X[share(comm, len(y))].tocsr()
    features = Sparse.of(part)
    return Block(features, y[rows], None, rows.start, len(y), X.shape[1], 0)


def runner(comm, folder, stop_wanted=lambda: False, seed=3, step="root"):
    """A runner on small data with test rows, and these test rows."""
    X, y = data(n=150, seed=seed)
    test = data(n=90, seed=seed + 1)
    one = Folder(folder)
    with comm.together():
        if comm.is_root:
            one.open(IDENTITY, overwrite=False)
            write_data(folder / "test", *test, 3)
    rows = HeldOutRows(folder / "test", read_manifest(folder / "test"), comm)
    return Runner(block(comm, X, y), rows, "gather", one, comm, stop_wanted, {"host": "here"}, step), test


def lines(path):
    return [json.loads(line) for line in path.read_text().splitlines()]


@pytest.mark.serial
def test_the_grid_has_every_combination_once():
    cells = grid(["rocarea", "prbep"], [1e-2, 1e-4, 1e-2], ["lmvm", "bmrm"], [None, 10.0])
    assert len(cells) == len(set(cells)) == 2 * 2 * 3
    assert Cell("prbep", 1e-4, "lmvm", 10.0) in cells
    assert not any(cell.c_mu for cell in cells if cell.solver == "bmrm")
    names = {cell.name for cell in grid(["rocarea"], [0.1, 0.1 + 1e-16, 1e-6], ["lmvm"], [None, 1.0, 1 + 1e-15])}
    assert len(names) == 9
    assert Cell("prbep", 1e-06, "agm", 10.0).name == "prbep_1e-06_agm_cmu10.0"


@pytest.mark.parametrize("step", STEPS)
@pytest.mark.parametrize("cell", [CELL, Cell("prbep", 1e-3, "bmrm"), Cell("prbep", 1e-2, "agm", 10.0)])
def test_a_run_leaves_its_course_and_its_test_measures(cell, step, comm, shared_dir):
    metrics = pytest.importorskip("sklearn.metrics")
    one, (X, y) = runner(comm, shared_dir, step=step)
    settings = Settings(lam=cell.lam, epsilon=EPSILON, solver=cell.solver, c_mu=cell.c_mu, max_evaluations=60)
    result = one.run(cell, settings)
    one.close()
    if not comm.is_root:
        return
    found = one.folder.finished(cell)
    assert found.result["J"] == result.J
    assert found.result["status"] == result.status.name.lower()
    np.testing.assert_array_equal(found.trace["evaluation"], np.arange(1, result.evaluations + 1))
    evaluations, best = found.test["evaluation"].astype(int), found.test["best_J"]
    assert evaluations[0] == 1
    assert evaluations[-1] == result.evaluations
    np.testing.assert_array_equal(best, found.trace["best_J"][evaluations - 1])
    last = metrics.roc_auc_score(y, X @ result.w)
    assert found.test["rocarea"][-1] == found.result["test"]["rocarea"] == pytest.approx(last, abs=1e-12)
    assert found.test["rocarea"][0] == 0.5  # w = 0
    assert [path.name for path in (shared_dir / "cells" / cell.name).iterdir() if path.name.startswith(".")] == []


def test_a_stopped_run_is_not_finished_and_leftovers_go(comm, shared_dir):
    one, _ = runner(comm, shared_dir, stop_wanted=lambda: comm.rank == comm.size - 1)
    settings = Settings(lam=1e-2, epsilon=EPSILON)
    assert one.run(CELL, settings).status is Status.STOPPED
    if comm.is_root:
        assert one.folder.finished(CELL) is None
        assert one.folder.all_finished() == []
        (shared_dir / "cells" / CELL.name / "trace.jsonl").write_text("half a li")
        (shared_dir / "cells" / CELL.name / "left").touch()
    one.stop_wanted = lambda: False
    assert one.run(CELL, settings).status is Status.PROVED
    if comm.is_root:
        found = one.folder.finished(CELL)
        assert len(found.trace["best_J"]) == found.result["evaluations"]
        assert not (shared_dir / "cells" / CELL.name / "left").exists()


@pytest.mark.serial
def test_kept_w_are_those_of_their_evaluations(tmp_path):
    """A w for each improvement, at most as often as the grid of evaluations says; the disk holds them."""
    rng = np.random.default_rng(0)
    best, ws = np.minimum.accumulate(rng.random(2000)), {}
    with Kept(tmp_path) as kept:
        for k, J in enumerate(best.tolist(), 1):
            w = np.full(5, float(np.flatnonzero(best == J)[0]))  # the same as long as J is
            kept(State(k, 0.5 * k, 1.0, 0.0, J, J, J, J, 0.1, 0.0, 0.0), w)
            ws[k] = w
        kept.add(2000, 1000.0, best[-1], ws[2000])
        assert list(tmp_path.iterdir()) == []
        times = [int(one["evaluation"]) for one in kept.records]
        assert times[:2] == [1, 2] or best[1] == best[0]
        assert len(times) < 60
        for k, (time, one) in enumerate(zip(times, kept.records, strict=True)):
            assert one["best_J"] == best[time - 1]
            assert one["seconds"] == 0.5 * time
            np.testing.assert_array_equal(kept.load(k, 5), ws[time])


@pytest.mark.serial
class TestFolder:
    def test_the_grid_may_grow_and_nothing_else_may_change(self, tmp_path):
        folder = Folder(tmp_path / "new")
        folder.path.mkdir()
        folder.check()
        folder.open(IDENTITY, overwrite=False)
        moved = {**IDENTITY, "data": {**IDENTITY["data"], "path": "elsewhere"}}
        folder.check()
        folder.open(moved, overwrite=False)
        for change, words in (
            ({"epsilon": 1e-2}, "epsilon: there 0.001, now 0.01"),
            ({"data": {"path": "a", "fingerprint": "g"}}, "data: there a, now a, with other content"),
            ({"data": {"path": "b", "fingerprint": "g"}}, r"data: there a, now b\)"),
            ({"test": {"path": None, "fingerprint": None}}, "test data: there t, now none"),
            ({"ranks": 2}, "ranks: there none, now 2"),
        ):
            with pytest.raises(InputError, match=words):
                folder.open({**IDENTITY, **change}, overwrite=False)

    def test_limits_may_grow(self, tmp_path):
        """Runs that the old limit ended, and no others, are cut short."""
        folder, limits = Folder(tmp_path), {"time_limit": 5.0, "max_evaluations": 10}
        folder.open({**IDENTITY, "settings": limits}, overwrite=False)
        folder.open({**IDENTITY, "settings": {**limits, "time_limit": 50.0}}, overwrite=False)
        more = Settings(lam=1.0, time_limit=5.0, max_evaluations=10)
        for status, time_limit, evaluations, cut in (
            ("time", 3.0, 10, False),  # took 3 s
            ("time", 3.1, 10, True),
            ("limit", 9.0, 3, False),
            ("limit", 1.0, 4, True),
            ("proved", 9.0, 99, False),
            ("stalled", 9.0, 99, False),
        ):
            one = made(tmp_path / f"{status}{cut}", CELL, [1.0, 1.0, 1.0], status)
            assert one.cut_short(replace(more, time_limit=time_limit, max_evaluations=evaluations)) is cut

    def test_beginning_anew_forgets_the_runs(self, tmp_path):
        folder = Folder(tmp_path)
        folder.open(IDENTITY, overwrite=False)
        made(tmp_path, CELL, [1.0])
        (tmp_path / "table.md").touch()
        assert folder.finished(CELL)
        folder.open({**IDENTITY, "epsilon": 1.0}, overwrite=True)
        assert not folder.finished(CELL)
        assert [path.name for path in tmp_path.iterdir()] == ["comparison.json"]

    @pytest.mark.parametrize("name, text", [("thesis.tex", "all of it"), ("comparison.json", '{"format": "other"}')])
    def test_what_is_no_comparison_is_left_alone(self, tmp_path, name, text):
        (tmp_path / name).write_text(text)
        for overwrite in (False, True):
            with pytest.raises(InputError, match="not a comparison"):
                Folder(tmp_path).check(overwrite)
        with pytest.raises(InputError, match="not a folder"):
            Folder(tmp_path / name).check()
        assert (tmp_path / name).read_text() == text

    @pytest.mark.parametrize("name", ["result.json", "trace.jsonl", "test.jsonl"])
    @pytest.mark.parametrize(
        "text",
        [
            *(
                "garbage",
                "{}",
                "[]",
                "null",
                '"x"',
                '{"J": 1',
                '{"evaluation": 1}',
                '{"measure": "prbep"}',
                "[" * 10**5,
            ),
            *(
                "\x00",
                '{"evaluation": 1, "seconds": 0.5, "best_J": 1.0, "gap": 1.0, "rocarea": 0.5, "prbep": 0.5}\n{"ev',
            ),
            None,
        ],
    )
    def test_damage_is_named(self, tmp_path, name, text):
        path = made(tmp_path, CELL, [2.0, 1.0], test=0.5, files=True) / name
        path.unlink()
        path.mkdir() if text is None else path.write_text(text)
        self.refused(tmp_path, rf"{path}: cannot be read.*Remove this run's folder, {path.parent}, and it is run anew")

    @pytest.mark.parametrize("name", ["trace.jsonl", "test.jsonl"])
    def test_a_lost_file_is_named(self, tmp_path, name):
        path = made(tmp_path, CELL, [2.0, 1.0], files=True) / name
        path.unlink()
        self.refused(tmp_path, f"{path}: cannot be read")

    @pytest.mark.parametrize(
        "name, value",
        [
            *[("measure", one) for one in ("f1", None, [], 3)],
            *[("solver", one) for one in ("newton", None, {}, "lmv")],
            *[("lambda", one) for one in (0, -1.0, None, True, "1", math.nan, math.inf, 10**400, 2e-2)],
            *[("c_mu", one) for one in (0, "adaptive", math.nan, 10.0)],  # the folder's name has no c_mu
            *[("J", one) for one in (None, "1", math.nan, True, [1.0])],
            *[("status", one) for one in ("well", None, [])],
            *[("test", one) for one in ({}, {"rocarea": 0.5}, [], 0.5, {"rocarea": "0.5", "prbep": 0.5})],
            *[("evaluations", one) for one in (1.0, None, True)],
            *[("vacuous", one) for one in (0, None)],
            *[("host", one) for one in (0, None)],
            *[(name, None) for name in ("J_at_zero", "seconds")],
            *[(name, "0") for name in ("lower_bound", "gap", "J_at_zero", "seconds")],
        ],
    )
    def test_an_impossible_field_of_a_result_is_named(self, tmp_path, name, value):
        path = made(tmp_path, CELL, [2.0, 1.0], files=True) / "result.json"
        path.write_text(json.dumps(json.loads(path.read_text()) | {name: value}))
        self.refused(tmp_path, str(path))

    @pytest.mark.parametrize("name", ["measure", "solver", "lambda", "c_mu", "J", "status", "test", "gap", "host"])
    def test_a_field_that_lacks_is_named(self, tmp_path, name):
        path = made(tmp_path, CELL, [2.0, 1.0], files=True) / "result.json"
        path.write_text(json.dumps({key: one for key, one in json.loads(path.read_text()).items() if key != name}))
        self.refused(tmp_path, f"{path}: cannot be read: the field '{name}'")

    @pytest.mark.parametrize("value", [None, math.nan, -math.inf, "1", True, 10**400])
    def test_an_impossible_field_of_a_course_is_named_with_its_line(self, tmp_path, value):
        path = made(tmp_path, CELL, [2.0, 1.0, 0.5], files=True) / "trace.jsonl"
        path.write_text("".join(json.dumps(one | {"best_J": value}) + "\n" for one in lines(path)))
        self.refused(tmp_path, f"{path}: cannot be read at line 1: the field 'best_J'")

    def test_a_course_is_there_where_a_J_is(self, tmp_path):
        path = made(tmp_path, CELL, [2.0, 1.0], files=True) / "trace.jsonl"
        whole = path.read_text()
        path.write_text("")
        self.refused(tmp_path, "trace.jsonl: has no line")
        result = json.loads((path.parent / "result.json").read_text()) | {"J": None, "status": "nonfinite"}
        (path.parent / "result.json").write_text(json.dumps(result))
        assert Folder(tmp_path).all_finished()[0].trace == {}
        path.write_text(whole)
        self.refused(tmp_path, "trace.jsonl: has a line")

    def refused(self, path, words):
        """By both readers."""
        for reader in (Folder(path).all_finished, lambda: Folder(path).finished(CELL)):
            with pytest.raises(InputError, match=words):
                reader()

    @pytest.mark.parametrize("place", ["cells", f"cells/{CELL.name}"])
    @pytest.mark.parametrize("kind", ["file", "link", "circle", "dangling"])
    def test_what_is_no_folder_among_the_runs(self, tmp_path, place, kind):
        """Refused; begun anew it goes, but never what a link leads to."""
        folder, kept, odd = Folder(tmp_path / "out"), tmp_path / "kept", tmp_path / "out" / place
        folder.path.mkdir()
        folder.open(IDENTITY, overwrite=False)
        odd.parent.mkdir(exist_ok=True)
        made(kept, CELL, [1.0])
        odd.touch() if kind == "file" else odd.symlink_to(
            {"link": kept, "circle": odd, "dangling": tmp_path / "none"}[kind]
        )
        for refuses in (folder.all_finished, lambda: folder.begin(CELL)):
            with pytest.raises(InputError, match=f"{odd}: is no folder, but a file or a link. Move it elsewhere"):
                refuses()
        folder.open(IDENTITY, overwrite=True)
        assert not os.path.lexists(odd)
        assert len(Folder(kept).all_finished()) == 1

    @pytest.mark.parametrize("name", ["figures", "table.md"])
    def test_a_link_to_an_output_goes_and_what_it_leads_to_stays(self, tmp_path, name):
        folder = Folder(tmp_path / "out")
        made(tmp_path / "kept", CELL, [1.0])
        folder.path.mkdir()
        (folder.path / name).symlink_to(tmp_path / "kept")
        folder.open(IDENTITY, overwrite=True)
        assert not os.path.lexists(folder.path / name)
        assert len(Folder(tmp_path / "kept").all_finished()) == 1

    @pytest.mark.parametrize("target", ["out", "none"])
    def test_a_link_to_nothing_is_no_place(self, tmp_path, target):
        path = tmp_path / "out"
        path.symlink_to(tmp_path / target)
        inputs.check_distinct(path, tmp_path / "data")
        with pytest.raises(InputError, match="a link that leads to none; name another place"):
            Folder(path).check()

    @pytest.mark.parametrize(
        "text", ["garbage", "", "null", "[]", "{}", '{"format": "distsms-comparison"}', "[" * 10**5]
    )
    def test_a_damaged_identity(self, tmp_path, text):
        """Only where runs say that it is a comparison, and nothing else is there, may it be begun anew."""
        folder, path = Folder(tmp_path), tmp_path / "comparison.json"
        path.write_text(text)
        with pytest.raises(InputError, match=r"not a comparison, or a damaged one; name another folder$"):
            folder.check(overwrite=True)
        made(tmp_path, CELL, [1.0])
        with pytest.raises(InputError, match="or begin anew with --overwrite"):
            folder.check()
        for mine in (
            tmp_path / "thesis.tex",
            tmp_path / "cells" / "thesis.tex",
            tmp_path / "cells" / CELL.name / "mine",
        ):
            mine.touch()
            with pytest.raises(InputError, match=r"name another folder$"):
                folder.check(overwrite=True)
            mine.unlink()
        folder.check(overwrite=True)
        folder.open(IDENTITY, overwrite=True)
        folder.check()
        assert folder.all_finished() == []


def made(folder, cell, best_J, status="proved", bound=None, test=None, vacuous=False, files=False):
    """A finished run by hand: one evaluation a second, with these best J; its folder if `files`, or what is read."""
    place = folder / "cells" / cell.name
    place.mkdir(parents=True)
    trace = [{"evaluation": k, "seconds": float(k), "best_J": J, "gap": J} for k, J in enumerate(best_J, 1)]
    measures = None if test is None else {"rocarea": test, "prbep": test}
    tests = [] if test is None else [{**line, **measures} for line in trace]
    for name, rows in (("trace.jsonl", trace), ("test.jsonl", tests)):
        (place / name).write_text("".join(json.dumps(row) + "\n" for row in rows))
    J = best_J[-1] if best_J else None
    result = {"measure": cell.measure, "lambda": cell.lam, "solver": cell.solver, "c_mu": cell.c_mu, "J": J}
    result |= {"lower_bound": bound, "gap": None, "status": status, "evaluations": len(best_J), "vacuous": vacuous}
    result |= {"seconds": float(len(best_J)), "test": measures, "J_at_zero": 1.0, "host": "here"}
    (place / "result.json").write_text(json.dumps(result))
    return place if files else Finished.read(place)


@pytest.mark.serial
class TestTables:
    def test_within_one_percent(self, tmp_path):
        one = made(tmp_path, CELL, [3.0, 1.02, 1.011, 1.01, 1.0005, 1.0])
        assert tables.within(one, 1.0, 0.01)[:2] == (4, 4.0)
        assert tables.within(one, 1.0, 0.001)[:2] == (5, 5.0)
        assert tables.within(one, 1.0, 0.0)[:2] == (6, 6.0)
        assert str(tables.within(one, 1.0, 0.01)) == "4.00 s (4)"

    @pytest.mark.parametrize(
        "status, words",
        [("time", "time limit"), ("limit", "evaluation limit"), ("floor", "smoothing floor"), ("stalled", "progress")],
    )
    def test_not_reached_says_why_and_how_far(self, tmp_path, status, words):
        one = made(tmp_path, CELL, [2.0, 1.25], status)
        found = tables.within(one, 1.0, 0.01)
        assert found.seconds is None
        assert words in str(found)
        assert "25 % above" in str(found)

    def test_a_run_without_any_finite_J(self, tmp_path):
        runs = [made(tmp_path, CELL, [], "nonfinite"), made(tmp_path, CELL._replace(solver="agm"), [1.0], bound=0.9)]
        assert str(tables.within(runs[0], 1.0, 0.01)) == "n.a. (J not finite)"
        assert tables.disagreements(runs) == []
        assert "J not finite" in tables.as_markdown(runs, "# x")
        assert tables.best_run(runs[:1]) is None
        assert math.isnan(tables.rows(runs[:1])[0]["least_J"])

    def test_of_equal_test_measures_the_larger_lambda(self, tmp_path):
        runs = [
            made(tmp_path, Cell("rocarea", lam, solver), [J], bound=0.38, test=test)
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
        elsewhere = made(tmp_path, Cell("rocarea", 1e-6, "bmrm"), [0.31], bound=0.2)
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
        """Two proved intervals that do not intersect; a third one, and another lambda, are innocent."""
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
        runs = Folder(tmp_path).all_finished()
        assert [one.cell for one in runs] == [cells[3], cells[0], cells[2], cells[1]]
        assert len(tables.as_csv(runs).splitlines()) == 5
        text = tables.as_markdown(runs, "# x")
        assert text.count("| rocarea | 0.01 |") == 3
        assert "| rocarea | 0.01, vacuous | 50.00 |" in text
        assert "n.a. (proved to its target, 0.2 % above)" in text  # to 0.1 %
        assert tables.as_csv([]) == "\n"
        untested = [made(tmp_path / "untested", CELL, [1.0])]
        assert "Without test rows no lambda is chosen" in tables.as_markdown(untested, "# x")
        assert "Without test rows" not in text
