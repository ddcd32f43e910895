"""The folder of a comparison: which settings may change, damaged files, links, and beginning anew."""

from __future__ import annotations

import errno
import json
import math
import os
from dataclasses import replace

import pytest

from distsms.base.errors import InputError
from distsms.models import inputs
from distsms.optim.settings import Settings
from scripts.compare.grid import RunSpec, RunStore, grid
from tests.support.problems import CELL, IDENTITY, lines, made


@pytest.mark.serial
def test_the_grid_has_every_combination_once():
    cells = grid(["rocarea", "prbep"], [1e-2, 1e-4, 1e-2], ["lmvm", "bmrm"], [None, 10.0])
    assert len(cells) == len(set(cells)) == 2 * 2 * 3
    assert RunSpec("prbep", 1e-4, "lmvm", 10.0) in cells
    assert not any(cell.c_mu for cell in cells if cell.solver == "bmrm")
    names = {cell.name for cell in grid(["rocarea"], [0.1, 0.1 + 1e-16, 1e-6], ["lmvm"], [None, 1.0, 1 + 1e-15])}
    assert len(names) == 9
    assert RunSpec("prbep", 1e-06, "agm", 10.0).name == "prbep_1e-06_agm_cmu10.0"


@pytest.mark.serial
class TestFolder:
    def test_the_grid_may_grow_and_nothing_else_may_change(self, tmp_path):
        folder = RunStore(tmp_path / "new")
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
        """With a larger limit, only those runs count as cut short that the old limit ended."""
        folder, limits = RunStore(tmp_path), {"time_limit": 5.0, "max_evaluations": 10}
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

    def test_beginning_anew_forgets_the_runs(self, tmp_path, monkeypatch):
        def full(handle, data):
            raise OSError(errno.ENOSPC, "No space left on device")

        folder = RunStore(tmp_path)
        folder.open(IDENTITY, overwrite=False)
        made(tmp_path, CELL, [1.0])
        (tmp_path / "table.md").touch()
        assert folder.finished(CELL)
        with monkeypatch.context() as patch, pytest.raises(InputError, match="No space left"):
            patch.setattr(os, "write", full)
            folder.open({**IDENTITY, "epsilon": 1.0}, overwrite=True)
        folder.open(IDENTITY, overwrite=False)
        assert folder.finished(CELL)  # nothing was removed
        folder.open({**IDENTITY, "epsilon": 1.0}, overwrite=True)
        assert not folder.finished(CELL)
        assert [path.name for path in tmp_path.iterdir()] == ["comparison.json"]

    @pytest.mark.parametrize("name, text", [("thesis.tex", "all of it"), ("comparison.json", '{"format": "other"}')])
    def test_what_is_no_comparison_is_left_alone(self, tmp_path, name, text):
        (tmp_path / name).write_text(text)
        for overwrite in (False, True):
            with pytest.raises(InputError, match="not a comparison"):
                RunStore(tmp_path).check(overwrite)
        with pytest.raises(InputError, match="not a folder"):
            RunStore(tmp_path / name).check()
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
        remedy = f"Remove this run's folder, {path.parent}; the run is then made again"
        self.refused(tmp_path, f"{path}: cannot be read.*{remedy}")

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
        self.refused(tmp_path, "trace.jsonl: contradicts result.json: the run has no line")
        result = json.loads((path.parent / "result.json").read_text()) | {"J": None, "status": "nonfinite"}
        (path.parent / "result.json").write_text(json.dumps(result))
        assert RunStore(tmp_path).all_finished()[0].trace == {}
        path.write_text(whole)
        self.refused(tmp_path, "trace.jsonl: contradicts result.json: the run has lines")

    def refused(self, path, words):
        """Check that both ways of reading a run refuse it."""
        for reader in (RunStore(path).all_finished, lambda: RunStore(path).finished(CELL)):
            with pytest.raises(InputError, match=words):
                reader()

    @pytest.mark.parametrize("place", ["cells", f"cells/{CELL.name}"])
    @pytest.mark.parametrize("kind", ["file", "link", "circle", "dangling"])
    def test_what_is_no_folder_among_the_runs(self, tmp_path, place, kind):
        """It is refused. Beginning anew removes it, but never what a link leads to."""
        folder, kept, odd = RunStore(tmp_path / "out"), tmp_path / "kept", tmp_path / "out" / place
        folder.path.mkdir()
        folder.open(IDENTITY, overwrite=False)
        odd.parent.mkdir(exist_ok=True)
        made(kept, CELL, [1.0])
        odd.touch() if kind == "file" else odd.symlink_to(
            {"link": kept, "circle": odd, "dangling": tmp_path / "none"}[kind]
        )
        for refuses in (folder.all_finished, lambda: folder.begin(CELL)):
            with pytest.raises(InputError, match=f"{odd}: is not a folder, but a file or a link. Move it elsewhere"):
                refuses()
        folder.open(IDENTITY, overwrite=True)
        assert not os.path.lexists(odd)
        assert len(RunStore(kept).all_finished()) == 1

    @pytest.mark.parametrize("name", ["figures", "table.md"])
    def test_a_link_to_an_output_goes_and_what_it_leads_to_stays(self, tmp_path, name):
        folder = RunStore(tmp_path / "out")
        made(tmp_path / "kept", CELL, [1.0])
        folder.path.mkdir()
        (folder.path / name).symlink_to(tmp_path / "kept")
        folder.open(IDENTITY, overwrite=True)
        assert not os.path.lexists(folder.path / name)
        assert len(RunStore(tmp_path / "kept").all_finished()) == 1

    @pytest.mark.parametrize("target", ["out", "none"])
    def test_a_link_to_nothing_is_no_place(self, tmp_path, target):
        path = tmp_path / "out"
        path.symlink_to(tmp_path / target)
        inputs.check_distinct(path, tmp_path / "data")
        with pytest.raises(InputError, match="a link that does not lead to a folder; name another place"):
            RunStore(path).check()

    @pytest.mark.parametrize(
        "text", ["garbage", "", "null", "[]", "{}", '{"format": "distsms-comparison"}', "[" * 10**5]
    )
    def test_a_damaged_identity(self, tmp_path, text):
        """It may be begun anew only if runs show that it is a comparison, and nothing else is in the folder."""
        folder, path = RunStore(tmp_path), tmp_path / "comparison.json"
        path.write_text(text)
        with pytest.raises(InputError, match=r"not a comparison, or a damaged one; name another folder$"):
            folder.check(overwrite=True)
        made(tmp_path, CELL, [1.0])
        with pytest.raises(InputError, match=r"or replace it \(--overwrite\)"):
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
