"""Model files: round trip, atomic replacement, and every way in which a file is not a model."""

from __future__ import annotations

import itertools
import json
import multiprocessing
import os
import random
import time

import h5py
import numpy as np
import pytest

from distsms import cli
from distsms.base import files
from distsms.base.errors import InputError
from distsms.models import model
from distsms.models.model import Model

pytestmark = pytest.mark.serial
INFO = {"threshold": 0.5, "zero_based": False, "label_map": {"+1": 1.0, "-1": None}, "nested": {"n": 3}}


def test_a_file_of_rows_is_no_model(tmp_path):
    (tmp_path / "a.csv").write_text("x,y\n1,0\n")
    with pytest.raises(InputError, match=r"a\.csv: is not a model.*MODEL comes first"):
        model.load(tmp_path / "a.csv")


def test_round_trip(tmp_path):
    w = np.array([1.0, -0.0, 1e-300, np.pi])
    model.save(tmp_path / "m.h5", Model(w, INFO))
    found = model.load(tmp_path / "m.h5")
    assert found.w.tobytes() == w.tobytes()
    assert found.info == INFO
    assert found.threshold == 0.5
    assert found.bias == 0.0  # models from before there was one
    assert found.p == 4
    assert os.listdir(tmp_path) == ["m.h5"]


def test_a_sparse_model_is_small_and_reads_like_any_other(tmp_path):
    w = np.zeros(10**6)
    w[::10_000] = np.random.default_rng(0).normal(size=100)
    for name, more in (("dense", {}), ("sparse", {"l1": 1e-3})):
        model.save(tmp_path / name, model.from_training(w, INFO | more, None))
        assert model.load(tmp_path / name).w.tobytes() == w.tobytes()
    assert model.load(tmp_path / "sparse").info == INFO | {"l1": 1e-3, "nonzeros": 100}
    assert model.load(tmp_path / "dense").info == INFO
    assert (tmp_path / "dense").stat().st_size > 8 * 10**6 > 100 * (tmp_path / "sparse").stat().st_size
    with h5py.File(tmp_path / "sparse") as file:  # as programs do that know nothing of it
        assert file["w"][:].tobytes() == w.tobytes() and file.attrs["version"] == 1


@pytest.mark.parametrize("wrong", [{"l1": "x"}, {"l1": None}, {"l1": -1.0}, {"nonzeros": "a"}, {"nonzeros": -5}])
def test_an_impossible_l1_is_refused(tmp_path, wrong):
    model.save(tmp_path / "m", Model(np.ones(3), INFO | {"l1": 1e-3, "nonzeros": 3} | wrong))
    with pytest.raises(InputError, match="l1 or nonzeros cannot be true"):
        model.load(tmp_path / "m")


def test_the_bias_comes_back_to_the_bit(tmp_path):
    model.save(tmp_path / "m.h5", Model(np.ones(2), INFO | {"bias": -0.1 / 3}))
    assert model.load(tmp_path / "m.h5").bias == -0.1 / 3
    for bad in (None, "1", float("nan")):
        model.save(tmp_path / "m.h5", Model(np.ones(2), INFO | {"bias": bad}))
        with pytest.raises(InputError, match="bias"):
            model.load(tmp_path / "m.h5")


@pytest.mark.parametrize("broken", ["replace", "fsync"])
def test_a_failed_write_leaves_the_old_file(tmp_path, monkeypatch, broken):
    path = tmp_path / "m.h5"
    model.save(path, Model(np.ones(3), INFO))

    def full(*_):
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(os, broken, full)
    with pytest.raises(InputError, match=r"m\.h5: cannot be written: .*No space"):
        model.save(path, Model(np.zeros(3), INFO))
    monkeypatch.undo()
    assert model.load(path).w.tolist() == [1, 1, 1]
    assert os.listdir(tmp_path) == ["m.h5"]


def test_a_model_that_finds_no_place_is_rescued(tmp_path, monkeypatch):
    monkeypatch.setattr(model.tempfile, "mkdtemp", lambda prefix, dir: str(tmp_path))
    (tmp_path / "gone").mkdir()
    (tmp_path / "gone").rmdir()
    with pytest.raises(InputError, match=r"the model was written to .*m\.h5 instead"):
        model.save_or_rescue(tmp_path / "gone" / "m.h5", Model(np.ones(3), INFO))
    assert model.load(tmp_path / "m.h5").p == 3


def test_a_rescue_that_fails_leaves_nothing(tmp_path, monkeypatch):
    places = iter("abcdef")

    def new_folder(prefix, dir):
        (folder := tmp_path / next(places)).mkdir()
        return str(folder)

    monkeypatch.setattr(model.tempfile, "mkdtemp", new_folder)
    monkeypatch.setattr(model, "require_space", lambda folder, n_bytes: (_ for _ in ()).throw(InputError("full")))
    with pytest.raises(InputError, match="full; and no other directory has room"):
        model.save_or_rescue(tmp_path / "m.h5", Model(np.ones(3), INFO))
    assert next(places, "") == "" and os.listdir(tmp_path) == []


def test_killed_at_any_moment_the_file_is_old_or_new(tmp_path):
    """A child that rewrites a model without pause is killed many times; the file is whole every time."""
    path, forking = tmp_path / "m.h5", multiprocessing.get_context("fork")

    def rewrite(written):
        for k in itertools.count():
            model.save(path, Model(np.full(5000, float(k)), INFO | {"threshold": float(k)}))
            written.set()

    for seed in range(8):
        child = forking.Process(target=rewrite, args=(written := forking.Event(),))
        child.start()
        assert written.wait(60)
        time.sleep(random.Random(seed).random() * 0.05)
        assert child.is_alive()
        child.kill()
        child.join()
        found = model.load(path)
        assert set(found.w) == {found.threshold}


def damage(path, how):
    if how == "missing":
        path.unlink()
    elif how == "cut":
        os.truncate(path, path.stat().st_size // 2)
    elif how == "text":
        path.write_text("hello")
    else:
        with h5py.File(path, "r+") as file:
            if how == "nan":
                file["w"][1] = np.nan
            elif how == "sign":
                file["w"][0] *= -1
            elif how == "info":
                file.attrs["info"] = json.dumps({**INFO, "threshold": 0.25})
            elif how == "checksum":
                file.attrs["complete"] = 1
            elif how == "no w":
                del file["w"]
            elif how == "matrix":
                del file["w"]
                file["w"] = np.ones((2, 2))
            elif how == "no threshold":
                file.attrs["info"] = json.dumps({**INFO, "threshold": None})
            elif how == "no json":
                file.attrs["info"] = "{"
            elif how == "incomplete":
                del file.attrs["complete"]
            elif how == "newer":
                file.attrs["version"] = 99
            elif how == "other":
                file.attrs["format"] = "something else"


@pytest.mark.parametrize(
    "how",
    [
        "missing",
        "cut",
        "text",
        "nan",
        "sign",
        "info",
        "checksum",
        "no w",
        "matrix",
        "no json",
        "no threshold",
        "incomplete",
        "newer",
        "other",
    ],
)
def test_what_is_no_model_is_refused_by_name(tmp_path, how):
    path = tmp_path / "m.h5"
    model.save(path, Model(np.ones(3), INFO))
    damage(path, how)
    with pytest.raises(InputError, match=r"m\.h5"):
        model.load(path)


def test_a_checksum_is_right_or_missing(tmp_path, capsys):
    """Models of earlier versions have none, and are read as before."""
    path = tmp_path / "m.h5"
    model.save(path, Model(np.arange(3.0), INFO | {"lambda": 0.5}))
    arguments = cli.parse(["info", os.fspath(path), "--verify"])
    assert arguments.run(arguments, None) == 0
    assert capsys.readouterr().out.endswith("the checksum is right\n")
    in_json = cli.parse(["info", os.fspath(path), "--verify", "--json"])
    assert in_json.run(in_json, None) == 0
    verified = json.loads(capsys.readouterr().out)["verified"]
    assert verified == {"checksum": "the checksum is right", "problems": []}
    with h5py.File(path, "r+") as file:
        file.attrs["complete"] = True
    assert model.load(path).w.tolist() == [0, 1, 2]
    assert arguments.run(arguments, None) == 0
    assert capsys.readouterr().out.endswith("an earlier version wrote this model, without a checksum\n")
    with h5py.File(path, "r+") as file:
        file.attrs["complete"] = np.bytes_("0" * 64)
    with pytest.raises(InputError, match=r"m\.h5: is damaged: its content is not what was written"):
        arguments.run(arguments, None)


def test_a_place_that_cannot_be_written_is_found_before(tmp_path):
    files.check_writable(tmp_path / "new.h5")
    (tmp_path / "link.h5").symlink_to(tmp_path / "no" / "m.h5")
    for name, why in (("no/m.h5", "does not exist"), ("", "not a regular"), ("link.h5", "does not exist")):
        with pytest.raises(InputError, match=why):
            files.check_writable(tmp_path / name)


def test_devices_and_links(tmp_path):
    """A path that is not a regular file is left alone; a link is followed."""
    os.mkfifo(tmp_path / "pipe")
    with pytest.raises(InputError, match="regular"):
        files.check_writable(tmp_path / "pipe")
    with pytest.raises(InputError, match="regular"):
        model.save(tmp_path / "pipe", Model(np.ones(2), INFO))
    (tmp_path / "link.h5").symlink_to("real.h5")
    model.save(tmp_path / "link.h5", Model(np.ones(2), INFO))
    assert (tmp_path / "link.h5").is_symlink()
    assert model.load(tmp_path / "real.h5").p == 2


def test_what_is_no_model_is_not_replaced(tmp_path):
    (tmp_path / "thesis.h5").write_text("years of work")
    with pytest.raises(InputError, match="not a model"):
        model.check_replaceable(tmp_path / "thesis.h5")
    model.save(tmp_path / "m.h5", Model(np.ones(2), INFO))
    model.check_replaceable(tmp_path / "m.h5")


def test_two_jobs_that_write_one_model(tmp_path):
    """Both writers end well; afterwards the file is the whole model of the one that ended last."""
    path = tmp_path / "m.h5"
    model.save(path, model.Model(np.full(3, 1.0), INFO))
    content = path.read_bytes()
    path.unlink()
    with files.atomic_write(path) as first:
        first.write(content)
        model.save(path, model.Model(np.full(3, 2.0), INFO))
        assert model.load(path).w[0] == 2.0
    assert model.load(path).w[0] == 1.0
    assert [one.name for one in tmp_path.iterdir()] == ["m.h5"]


def test_a_model_is_shown_in_a_line():
    info = {"measure": "prbep", "lambda": 1e-3, "status": "proved", "gap": 5e-4, "test": {"rocarea": 0.75}}
    shown = repr(Model(np.zeros(9000), info))
    assert shown.startswith("<distsms.Model: prbep, lambda=0.001, 9000 columns, proved, gap=0.0005, ROCArea 0.7500")
    assert "\n" not in shown and "status unknown" in repr(Model(np.zeros(3), {}))
