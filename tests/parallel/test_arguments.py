"""Ranks that were started differently, or read different files at one path, are refused before they compute."""

import os
import shutil

import numpy as np
import pytest

import distsms
from distsms.base.communicator import Communicator
from distsms.base.errors import InputError
from distsms.parallel import arguments
from distsms.parallel.arguments import require_same_arguments, require_same_command
from distsms.shards.dataset import load
from distsms.shards.from_arrays import write_data
from tests.support.conversion import convert
from tests.support.sharded import ALONE, draw

pytestmark = pytest.mark.mpi


class Second(Communicator):
    """Rank 1 of 2, whose rank 0 contributes to every `allgather` what it did before."""

    size = 2

    def __init__(self, first=None):
        super().__init__()
        self.rank, self.first, self.said = int(first is not None), first, []

    def allgather(self, item):
        self.said.append(item)
        return [item, item] if self.first is None else [self.first.said[len(self.said) - 1], item]


def refused(call, first, second, message):
    """Give `call` the arguments of rank 0 and of rank 1."""
    root = Second()
    call(first, root)
    call(first, Second(root))  # the same is not refused
    with pytest.raises(InputError, match=message) as caught:
        call(second, Second(root))
    assert caught.value.everywhere


@pytest.mark.parametrize(
    ("second", "message"),
    [
        (
            "train d --lambda 0.1",
            "rank 1 of 2 was given another command line than rank 0: --lambda 0.1 instead of --la",
        ),
        ("train d --lambda=0.1", "--lambda 0.1 instead of --lambda 1e-3"),
        ("train d", "no --lambda instead of --lambda 1e-3"),
        ("train e --lambda 1e-3", "command train e instead of command train d"),
        ("train d --lambda 1e-3 --quiet", "--quiet instead of no --quiet"),
    ],
)
def test_other_command_lines(second, message):
    first = "train d --lambda 1e-3"
    refused(lambda words, comm: require_same_command(words.split(), comm), first, second, message)


def test_another_version(monkeypatch):
    def call(version, comm):
        monkeypatch.setattr(arguments, "__version__", version)
        require_same_command(["info"], comm)

    refused(
        call, "1", "2", "another version than rank 0: distsms 2 instead of distsms 1. Start all ranks with the same"
    )


@pytest.mark.parametrize(
    ("first", "second", "message"),
    [
        ({"lam": 0.1}, {"lam": 0.2}, "another argument than rank 0: lam 0.2 instead of lam 0.1"),
        ({"lam": 0.1}, {"lam": np.float64(0.3)}, "lam 0.3"),
        ({"split": (0.8, 0.2)}, {"split": (0.5, 0.5)}, "split"),
        ({"weight": "w"}, {"weight": None}, "weight None"),
        ({"data": "d"}, {"data": "e"}, "data 'e'"),
        ({"start": None}, {"start": np.ones(2)}, "start a ndarray"),
    ],
)
def test_other_arguments(first, second, message):
    rows = {"data": [[1.0], [2.0]], "watch": print}
    refused(lambda given, comm: require_same_arguments(comm, **rows | given), first, second, message)


def test_rows_and_functions_may_differ():
    root = Second()
    require_same_arguments(root, data=([[1.0]], [1]), weight=[1.0], watch=print)
    require_same_arguments(Second(root), data=([[2.0]], [-1]), weight=[2.0], watch=repr)


def test_another_model():
    X, y = np.array([[1.0], [0.0], [2.0]]), [1, -1, 1]
    models = [distsms.train((X, y), lam=lam, solver="bmrm") for lam in (0.1, 1.0)]
    refused(lambda start, comm: require_same_arguments(comm, start=start), *models, "start a Model with the digest")


@pytest.fixture
def own_place(comm, shared_dir, monkeypatch):
    """A folder for each rank, in which it works, so that the same relative path leads each rank to another file."""
    place = shared_dir / str(comm.rank)
    place.mkdir()
    monkeypatch.chdir(place)


def test_files_that_are_not_the_same_for_all_ranks(comm, own_place):
    if comm.size == 1:
        pytest.skip("needs several ranks")
    X, y = draw()
    write_data("d", X, y)
    write_data("e", X, y if comm.is_root else -y)
    model = distsms.train("d", solver="bmrm", lam=0.1)
    if comm.is_root:
        distsms.save_model("same.h5", model)
    comm.barrier()
    if not comm.is_root:
        shutil.copy("../0/same.h5", "same.h5")
    distsms.save_model("m.h5", model if comm.is_root else distsms.train("d", solver="bmrm", lam=1.0))
    text = "".join(f"{int(label)} 1:{k}\n" for k, label in enumerate(y))
    for name, changed in (("same.svm", text), ("t.svm", text.replace("1:7", "1:8"))):
        with open(name, "w", encoding="utf-8") as file:
            file.write(text if comm.is_root else changed)
        os.utime(name, (comm.rank, comm.rank))  # as copies are
    assert load("d", comm).n == 40
    assert distsms.predict("same.h5", "same.svm", comm._comm, ignore_new_features=True).shape
    for call, name in (
        (lambda: load("e", comm), r"e/manifest\.json"),
        (lambda: distsms.train("e", comm._comm, solver="bmrm", lam=0.1), r"e/manifest\.json"),
        (lambda: distsms.predict("m.h5", "d", comm._comm), r"m\.h5"),
        (lambda: distsms.predict("same.h5", "t.svm", comm._comm), r"t\.svm"),
        (lambda: convert(["t.svm"], "made", comm), r"t\.svm"),
        (lambda: convert(["same.svm"], "made", comm, weight_file="t.svm"), r"t\.svm"),
    ):
        with pytest.raises(InputError, match=rf"^{name}: rank \d of {comm.size} reads another content than rank 0"):
            call()


def test_a_file_that_changes_between_two_readings_is_not_an_error(own_dir):
    """Only what ranks read at the same time is compared."""
    write_data(own_dir, *draw())
    load(own_dir, ALONE)
    write_data(own_dir, *draw(seed=1), overwrite=True)
    assert load(own_dir, ALONE).n == 40
