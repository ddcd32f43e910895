"""Sequences from files to scores: the same on several ranks, with every solver, streamed or in memory, in folds."""

from __future__ import annotations

import gzip
import re

import numpy as np
import pytest

from distsms.base.errors import InputError
from distsms.base.measures import Measure
from distsms.models import inputs, model
from distsms.python import api
from distsms.shards import coded_columns
from distsms.shards.dataset import MemoryBudget, load, load_matrix
from distsms.shards.sequence_rules import SequenceOptions
from distsms.training.fit import fit
from distsms.training.solver_choice import settings_for
from distsms.training.task import Distribution, TrainingTask
from distsms.workflow import path
from tests.support import simulated_program
from tests.support.conversion import convert
from tests.support.files import on_root
from tests.support.problems import block
from tests.support.program import run

SEQUENCES = SequenceOptions(window=(3, 26), degree=3, spectra=((3, 14),))


def sites(n=300, seed=0, length=30):
    """Return sequences, of which the positive ones mostly have TTCAG at the positions 11 to 15, and their labels."""
    rng = np.random.default_rng(seed)
    words = rng.choice(list("ACGT"), (n, length))
    y = rng.random(n) < 0.2
    words[y, 10:15] = list("TTCAG")
    words[rng.random(words.shape) < 0.15] = "G"
    words[rng.random(words.shape) < 0.01] = "N"
    return ["".join(word) for word in words], np.where(y, "site", "none")


def write_sites(folder, name, seed=0, n=300):
    words, labels = sites(n, seed)
    lines = "".join(f"{label} {word}\n" for word, label in zip(words, labels, strict=True))
    records = "".join(
        f">s{k} label={label}\n{word}\n" for k, (word, label) in enumerate(zip(words, labels, strict=True))
    )
    (folder / f"{name}.strings").write_text(lines)
    with gzip.open(folder / f"{name}.fa.gz", "wt") as file:
        file.write(records)


@pytest.fixture
def data(comm, shared_dir, monkeypatch):
    monkeypatch.setattr(coded_columns, "PART_ROWS", 16)
    on_root(comm, lambda: write_sites(shared_dir, "a"))
    return convert([shared_dir / "a.strings"], shared_dir / "d", comm, 3, positive="site", sequences=SEQUENCES)


@pytest.mark.parametrize(
    ("how", "streamed"),
    [
        ({"solver": "lbfgs"}, False),
        ({"solver": "agm", "bias": 2.0}, False),
        ({"solver": "bmrm"}, False),
        ({"solver": "lbfgs", "measure": "prbep", "step": "spread"}, False),
        ({"solver": "lbfgs", "bias": 1.0}, True),
    ],
)
def test_training_is_that_on_the_matrix(comm, data, how, streamed):
    """The codes give the optimum that the same rows give as a matrix, within both gaps, on any number of ranks."""
    how, measure = dict(how), Measure.parse(how.get("measure", "rocarea"))
    rows = load(data, comm, budget=room() if streamed else None)
    assert any(comm.allgather(rows.features.bytes_per_pass)) == streamed
    settings = settings_for(measure, how["solver"], lam=1e-2)
    task = TrainingTask(
        rows, measure, settings, how.get("bias"), distribution=Distribution(step=how.get("step", "auto"))
    )
    found = fit(task, comm).result
    assert found.gap <= 1e-3
    if comm.is_root:
        X, y, _ = load_matrix(data)
        bias = {"bias": how["bias"]} if "bias" in how else {}
        matrix = api.train((X, y), lam=1e-2, measure=measure.name, solver="lbfgs", **bias).info
        assert abs(found.J - matrix["J"]) <= max(found.gap, matrix["gap"])


def test_strings_in_memory_are_scored_as_those_in_files(comm, data, shared_dir):
    """A list of this rank's strings gives the scores and measures of the file on any number of ranks."""
    made = api.train(data.directory, comm, lam=1e-2, solver="lbfgs")
    words, labels = sites()
    mine = slice(300 * comm.rank // comm.size, 300 * (comm.rank + 1) // comm.size)
    scores = np.concatenate(comm.allgather(api.predict(made, words[mine], comm)))
    found = np.concatenate(comm.allgather(api.predict(made, shared_dir / "a.strings", comm)))
    np.testing.assert_allclose(scores, found, rtol=1e-12)
    np.testing.assert_array_equal(api.predict(made, np.array([word.lower() for word in words])), scores)
    here, there = (api.evaluate(made, rows, comm) for rows in ((words[mine], labels[mine]), shared_dir / "a.strings"))
    assert here["rocarea"] == pytest.approx(there["rocarea"]) and here["tp"] == there["tp"]
    for wrong, message in (
        (["ACGT"], "sequence 0 .* has 4 letters, and not 30"),
        ([words[0], words[1][:29] + "é"], "sequence 1 .*: character 30, 'é', is no letter of dna"),
        ([words[0], None], "sequence 1 .* has the type NoneType"),
    ):
        with pytest.raises(InputError, match=message):
            api.predict(made, wrong, comm)


@pytest.mark.parametrize("streamed", [False, True])
def test_folds_are_those_of_the_matrix(comm, data, streamed):
    """A path over folds gives the values of the matrix on one rank, up to the gaps."""
    problem = path.Problem("rocarea", [0.1, 0.01], 2, 0, settings_for("rocarea", "lbfgs", 1e-5, lam=1.0))
    X, y, _ = load_matrix(data)
    found = []
    for rows in (load(data, comm, budget=room() if streamed else None), block(comm, X, y)):
        made = path.run(path.PathRows(rows, comm), problem, lambda point, result, scores: None)
        found.append([point.result["J"] for point in made.points])
    np.testing.assert_allclose(*found, atol=2e-5)


def room():
    """Return the memory for the buffers of 16 rows, and for hardly more rows."""
    return MemoryBudget(2 * 16 * 24 + 30)


@pytest.mark.e2e
@pytest.mark.by_turns
@pytest.mark.serial
def test_from_sequences_to_scores(tmp_path):
    for seed, name in enumerate(("train", "new")):
        write_sites(tmp_path, name, seed)
    asked = ["--positive", "site", "--window", "3:26", "--degree", 3, "--spectrum", "3:14"]
    out = simulated_program.run(2, "shard", tmp_path / "train.fa.gz", tmp_path / "d", *asked)
    assert "300 rows, " in out and "7200 codes" in out
    assert "window 3:26, weighted degree 3, spectrum 3:14 of degree 3" in re.sub(r"\s+", " ", out)
    new, made = tmp_path / "new.strings", tmp_path / "m.h5"
    run("train", tmp_path / "d", "--lambda", "1e-2", "--solver", "lbfgs", "--output", made, "--test", new)
    assert "window 3:26" in run("info", tmp_path / "m.h5")
    scores = {}
    for kind, ranks in (("strings", 1), ("fa.gz", 2)):
        words = ("predict", made, tmp_path / f"new.{kind}", "--output", tmp_path / "s.csv", "--quiet")
        simulated_program.run(ranks, *words)
        scores[kind] = [float(line.split(",")[-1]) for line in (tmp_path / "s.csv").read_text().split("\n")[1:-1]]
    assert len(scores["fa.gz"]) == 300
    np.testing.assert_allclose(scores["strings"], scores["fa.gz"], rtol=1e-12)  # the order of sums may differ
    run("report", tmp_path / "m.h5", "--test", tmp_path / "new.fa.gz", "--output", tmp_path / "r.html")
    found = model.load(tmp_path / "m.h5")
    largest = found.feature_names[int(np.argmax(np.abs(found.w)))]
    assert f">{largest}</th>" in (tmp_path / "r.html").read_text() and largest in ("11:T", "12:T", "13:C", "14:A")
    out = run("export", tmp_path / "m.h5", "--to", "onnx", "--output", tmp_path / "m.onnx", code=1)
    assert "which onnx cannot turn into columns" in out


@pytest.mark.e2e
@pytest.mark.by_turns
@pytest.mark.serial
def test_a_file_in_one_command(tmp_path):
    write_sites(tmp_path, "a")
    words = (
        "--positive",
        "site",
        "--degree",
        3,
        "--lambda",
        "1e-2",
        "--solver",
        "lbfgs",
        "--output",
        tmp_path / "m.h5",
    )
    out = run("train", tmp_path / "a.strings", *words)
    assert "proved" in out
    found = model.load(tmp_path / "m.h5")
    assert found.coded.sequences.window == (1, 30) and found.info["test"]["rocarea"] > 0.8
    again = api.train(tmp_path / "a.strings", positive="site", degree=3, window=[3, 26], lam=1e-2, solver="lbfgs")
    assert again.coded.sequences.window == (3, 26) and again.info["status"] == "proved"
    (tmp_path / "b.strings").write_text("none ACGT\n")
    with pytest.raises(InputError, match=r"b.strings:1: the sequence has 4 letters, but the training data have 30"):
        inputs.check(tmp_path / "b.strings", found)
