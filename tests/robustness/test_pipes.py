"""No command opens a pipe or a device in the place of any of its files: opening may wait, and reading may never end."""

from __future__ import annotations

import os
import shutil

import numpy as np
import pytest

from tests.support import forked
from tests.support.program import run, write_svmlight

pytestmark = pytest.mark.serial
SECONDS = 20
TRAIN = "train {0}/set --lambda 0.1 --output {0}/out.h5"
REPORT = "report {0}/m.h5 --test {0}/set --output {0}/r.html"
CASES = [  # a command on files in the folder {0}, and the one of these that is odd
    *(
        (f"shard {{0}}/{odd} {{0}}/o --label y", odd)
        for odd in ("rows.svm", "x.csv", "x.parquet", "x.npz", "x.h5ad", "x.fa")
    ),
    ("shard {0}/x.npy {0}/o --label {0}/y.npy", "y.npy"),
    ("shard {0}/x.npy {0}/o --label {0}/y.npy --weight-file {0}/w", "w"),
    ("shard {0}/a.fa {0}/o --labels {0}/labels", "labels"),
    ("predict {0}/m.h5 {0}/rows.svm", "m.h5"),
    ("predict {0}/m.h5 {0}/set", "set/shard-00000.h5"),
    ("predict {0}/m.h5 {0}/rows.svm --output {0}/scores.csv", "scores.csv"),
    ("evaluate {0}/m.h5 {0}/set", "set/manifest.json"),
    ("info {0}/set --verify", "set/shard-00000.h5"),
    ("info {0}/coded", "coded/features.h5"),
    ("export {0}/m.h5 --to liblinear", "m.h5"),
    ("features {0}/set {0}/o --attributes {0}/attributes", "attributes"),
    (TRAIN + " --init {0}/m.h5", "m.h5"),
    (TRAIN + " --trace {0}/t.jsonl", "t.jsonl"),
    (TRAIN + " --checkpoint {0}/ck --resume", "ck/checkpoint.npz"),
    (REPORT, "r.html"),
    (REPORT + " --feature-names {0}/names", "names"),
    (REPORT + " --trace {0}/t.jsonl", "t.jsonl"),
    (REPORT + " --baseline {0}/b", "b/baseline.json"),
    ("path {0}/set --output {0}/p", "p/path.json"),
]


@pytest.fixture(scope="module")
def sound(tmp_path_factory):
    folder = tmp_path_factory.mktemp("sound")
    write_svmlight(folder / "rows.svm", n=60)
    np.save(folder / "x.npy", np.ones((60, 2)))
    np.save(folder / "y.npy", np.arange(60) % 2)
    (folder / "a.fa").write_text(">a\nACGT\n>b\nCCCC\n")
    run("shard", folder / "rows.svm", folder / "set")
    run("features", folder / "set", folder / "coded", "--bins", 2)
    run("train", folder / "set", "--lambda", 0.1, "--solver", "lbfgs", "--output", folder / "m.h5")
    return folder


@pytest.mark.parametrize("command, name", CASES)
def test_it_is_refused_by_name(sound, tmp_path, command, name):
    shutil.copytree(sound, tmp_path / "all")
    odd = tmp_path / "all" / name
    odd.unlink(missing_ok=True)
    odd.parent.mkdir(exist_ok=True)
    os.mkfifo(odd)
    code, out, err = forked.run(command.format(tmp_path / "all").split(), SECONDS)
    assert code != 0 and "Traceback" not in err
    assert odd.name in out + err


def test_a_device_that_never_ends_is_not_read(sound, tmp_path):
    """Behind a link, as a manifest: 4.8 GiB of it were read once."""
    shutil.copytree(sound / "set", tmp_path / "set")
    (tmp_path / "set" / "manifest.json").unlink()
    (tmp_path / "set" / "manifest.json").symlink_to("/dev/zero")
    assert "manifest.json: is no regular file" in run("info", tmp_path / "set", code=1)
