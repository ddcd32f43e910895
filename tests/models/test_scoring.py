"""Scoring without keeping rows: one part at a time in memory, the same result for all parts, ranks and formats."""

from __future__ import annotations

import os
from dataclasses import replace

import numpy as np
import pytest
from scipy import sparse

from distsms.base.errors import InputError
from distsms.matrix.normalization import Normalization
from distsms.models import evaluation, inputs, model, scoring
from distsms.shards import dataset
from distsms.shards.from_arrays import write_data
from distsms.workflow.evaluate import evaluate
from distsms.workflow.requests import EvaluateRequest
from scripts.compare import runner
from tests.ingest.formats.test_registry import FORMATS, numbers, on_root, write
from tests.support.conversion import convert
from tests.support.problems import data
from tests.support.program import finish, run, start

INFO = {"label_map": {"+1": 7, "-1": 3}, "zero_based": False}


def models_of(p, info=INFO):
    """Return two models, the second with a bias."""
    W = np.random.default_rng(5).normal(size=(2, p))
    return [model.Model(w, info | {"bias": bias}) for w, bias in zip(W, (0.0, 0.25), strict=True)]


def assert_same(found, other):
    for mine, theirs in zip(found.scores, other.scores, strict=True):
        np.testing.assert_array_equal(mine, theirs)
    np.testing.assert_array_equal(found.labels, other.labels)
    np.testing.assert_array_equal(found.weights, other.weights)
    assert found.first_row == other.first_row


def everywhere(comm, local):
    """Return all ranks' rows, in rank order."""
    return np.concatenate(comm.allgather(local))


@pytest.fixture
def small_parts(monkeypatch):
    """Return a function that makes parts of a few rows; it is called after the rows were scored as a whole."""

    def begin():
        monkeypatch.setattr(scoring, "PART_BYTES", 300)
        monkeypatch.setattr("distsms.ingest.formats.svmlight.SvmlightReader.block_bytes", 200)
        monkeypatch.setattr("distsms.shards.rows.BLOCK_ENTRIES", 20)
        monkeypatch.setattr("distsms.ingest.formats.arrow.BATCH_ROWS", 5)

    return begin


@pytest.mark.parametrize("kind", FORMATS)
def test_parts_do_not_show_in_a_file(kind, comm, shared_dir, small_parts):
    """Two models in one pass score as with one part, bit for bit, and as X w by hand up to rounding."""
    X, y = numbers()
    on_root(comm, lambda: write(shared_dir / "t.parquet", X, y))
    how = inputs.InputOptions(**on_root(comm, lambda: write(shared_dir / f"a.{kind}", X, y)))
    table = convert([shared_dir / "t.parquet"], shared_dir / "t", comm, positive=7, label="y").table
    named = kind in ("csv", "tsv.gz", "parquet", "h5ad", "sparse.h5ad")
    pair = [replace(one, table=table if named else None) for one in models_of(X.shape[1])]
    whole = scoring.score(pair, shared_dir / f"a.{kind}", comm, how)
    small_parts()
    found = scoring.score(pair, shared_dir / f"a.{kind}", comm, how)
    assert_same(found, whole)
    for scores, one in zip(found.scores, pair, strict=True):
        np.testing.assert_allclose(everywhere(comm, scores), X @ one.w + one.bias, rtol=1e-9)
    np.testing.assert_array_equal(everywhere(comm, found.labels), np.where(y == 7, 1, -1))
    assert found.counted.all() and found.counted_scores(found.scores[1], comm).scores is found.scores[1]


def test_a_file_that_is_replaced_while_it_is_scored(comm, shared_dir, monkeypatch):
    X, y = numbers()
    path, other = shared_dir / "a.svm", shared_dir / "other.svm"
    how = inputs.InputOptions(**on_root(comm, lambda: write(path, X, y)))
    on_root(comm, lambda: write(other, X, y))
    (one,), read = models_of(X.shape[1])[:1], inputs.reader_for

    def replaced(*args):
        reader = read(*args)
        on_root(comm, lambda: os.replace(other, path))
        return reader

    monkeypatch.setattr(inputs, "reader_for", replaced)
    with pytest.raises(InputError, match=r"a.svm: was changed or replaced while it was read"):
        scoring.score([one], path, comm, how)


@pytest.mark.parametrize("normalize", ["none", "l2", "maxabs"])
@pytest.mark.parametrize("kind", ["float32", "pattern", "dense"])
def test_parts_do_not_show_in_a_set(kind, normalize, comm, shared_dir, small_parts):
    """A rank's rows, their order and their scores are those of `dataset.load`, bit for bit; weight 0 does not count."""
    X, y = data(150, 9)
    X.data[:] = 1 if kind == "pattern" else X.data
    weights = np.arange(150) % 4
    dtype = "float32" if kind == "float32" else "float64"
    rows = X.toarray() if kind == "dense" else X
    on_root(comm, lambda: write_data(shared_dir / "d", rows, y, 3, weights, dtype, INFO["label_map"]))
    how = Normalization(normalize, np.linspace(0.3, 3, 9) if normalize == "maxabs" else None)
    block = dataset.load(shared_dir / "d", comm, normalization=how)
    small_parts()
    pair = [replace(one, info=one.info | {"normalize": normalize}, scale=how.scale) for one in models_of(9)]
    found = scoring.score([replace(one, w=how.fold(one.w)) for one in pair], shared_dir / "d", comm)
    margins = [block.features.margins(one.w) + one.bias for one in pair]
    assert_same(found, scoring.ScoredRows(margins, block.labels, block.weights, first_row=block.first_row))
    counted = found.counted_scores(found.scores[1], comm)
    np.testing.assert_array_equal(counted.scores, margins[1][block.weights != 0])
    np.testing.assert_array_equal(everywhere(comm, counted.weights), weights[weights != 0])
    np.testing.assert_array_equal(everywhere(comm, counted.labels), y[weights != 0])


def test_what_is_told_of_models_does_not_depend_on_parts(comm, shared_dir, small_parts):
    """Models of other columns are evaluated as well; they see the rows in a pass of their own."""
    X, y = data(150, 9)
    on_root(comm, lambda: write_data(shared_dir / "d", X, y, 3, label_map=INFO["label_map"]))
    some = [*models_of(9), *models_of(12), *models_of(9)]
    paths = [str(shared_dir / f"{k}.h5") for k in range(len(some))]
    for path, one in zip(paths, some, strict=True):
        on_root(comm, lambda path=path, one=one: model.save(path, replace(one, info=one.info | {"threshold": 0.1})))
    asked = EvaluateRequest(paths, str(shared_dir / "d"), evaluation.EvaluationOptions(replicates=20))

    def told():
        judged = evaluate(asked, comm)
        measures = [one.measures for one in judged.models]
        return judged.rows.row_numbers.tolist(), measures, [one.as_json() for one in judged.pairs]

    whole = told()
    small_parts()
    assert told() == whole
    numbers, found, _ = whole
    assert found[0] == found[4] and found[0] != found[1] and np.ptp(numbers) == len(numbers) - 1


@pytest.mark.parametrize("name", ["d", "a.svm"])
def test_a_score_that_is_not_finite_is_named_by_its_row(name, comm, shared_dir, small_parts):
    X, y = numbers()
    X[41, :2] = 1e308
    on_root(comm, lambda: write(shared_dir / "a.svm", X, y))
    convert([shared_dir / "a.svm"], shared_dir / "d", comm, 3, positive=7)
    small_parts()
    one = model.Model(np.full(7, 10.0), INFO)
    for score in (
        lambda: scoring.score([one], shared_dir / name, comm),
        lambda: in_turns(one, shared_dir / name, comm),
    ):
        with pytest.raises(InputError, match=rf"{name}: row 41 \(counted from 0\) has the score inf"):
            score()


def in_turns(one, path, comm):
    return list(scoring.score_in_parts(one, path, comm, inputs.AS_TRAINED))


def test_rows_held_out_are_tested_in_any_number_of_passes(comm, shared_dir, monkeypatch, capsys):
    """A warning says once what is left out."""
    X, y = data(60, 5)
    on_root(comm, lambda: write_data(shared_dir / "d", X, y))
    text = "".join(
        f"{label} qid:1 " + " ".join(f"{j + 1}:{v!r}" for j, v in enumerate(map(float, row))) + "\n"
        for row, label in zip(X.toarray(), y, strict=True)
    )
    on_root(comm, lambda: (shared_dir / "a.svm").write_text(text))
    manifest, W = dataset.read_manifest(shared_dir / "d"), list(np.random.default_rng(0).normal(size=(3, 5)))
    held_out = runner.HeldOutRows(str(shared_dir / "a.svm"), manifest, comm)
    assert held_out.at_once > 1
    assert capsys.readouterr().err.count("query ids") == comm.is_root
    together = held_out.scored(W)
    for w, scores in zip(W, together.scores, strict=True):
        np.testing.assert_array_equal(held_out.scored([w]).scores[0], scores)
        np.testing.assert_allclose(everywhere(comm, scores), X @ w, atol=1e-12)
    assert capsys.readouterr().err == ""
    monkeypatch.setattr(runner, "TESTED_BYTES", 1)
    assert runner.HeldOutRows(str(shared_dir / "d"), manifest, comm).at_once == 1


PEAK = """
import re, sys
from pathlib import Path
from distsms.ingest.formats import svmlight
from distsms.base import text_files
from distsms.models import scoring
from distsms.__main__ import main

scoring.PART_BYTES = svmlight.SvmlightReader.block_bytes = 2**20
text_files.read_blocks.__defaults__ = (2**20,)
code = main(sys.argv[1:])
print("peak", re.search(r"VmHWM:\\s+(\\d+) kB", Path("/proc/self/status").read_text())[1], file=sys.stderr)
sys.exit(code)
"""


def peak(*words):
    """Return the peak memory of a command in bytes, with parts and blocks of 1 MiB."""
    code, out, err = finish(start(*words, program=("-c", PEAK)))
    assert code == 0, out + err
    return 1024 * int(err.split("peak ")[-1])


SLOW = [pytest.param(kind, marks=pytest.mark.slow) for kind in ("svm", "csv")]


@pytest.mark.e2e
@pytest.mark.serial
@pytest.mark.parametrize("kind", [pytest.param("set", marks=pytest.mark.by_turns), *SLOW])
def test_memory_does_not_grow_with_the_entries(kind, tmp_path):
    """Memory grows by less than a quarter of the rows' size: for scores, labels and what measures make of them."""
    rng, p = np.random.default_rng(0), 60
    X, y = rng.integers(1, 100, (1000, p)) / 8, np.tile([1, -1], 500)
    X[:, 0] += y
    few, many = 10, 110  # times these rows; the fewer ones have several parts
    block = "".join(
        ",".join(map(str, [label, *row])) + "\n"
        if kind == "csv"
        else f"{label} " + " ".join(f"{j + 1}:{v}" for j, v in enumerate(row)) + "\n"
        for row, label in zip(X.tolist(), y, strict=True)
    )
    header = ",".join(["y", *(f"c{j}" for j in range(p))]) + "\n" if kind == "csv" else ""
    label = ["--label", "y"] if kind == "csv" else []
    name = "rows.csv" if kind == "csv" else "rows.svm"
    places = {}
    for times in (1, few, many):
        path = tmp_path / f"{times}{name}"
        if kind == "set" and times > 1:
            path = tmp_path / str(times)
            write_data(path, sparse.csr_matrix(np.tile(X, (times, 1))), np.tile(y, times), 3)
        else:
            path.write_text(header + times * block)
        places[times] = path
    run("shard", places[1], tmp_path / "train", *label)
    train = ("train", tmp_path / "train", "--lambda", 1, "--solver", "lbfgs", "--output", tmp_path / "m.h5", "--test")
    more = 12 * (many - few) * X.size
    run(*train[:-1])
    for command in (("evaluate", tmp_path / "m.h5"), train)[: 1 + (kind == "set")]:
        growth = peak(*command, places[many]) - peak(*command, places[few])
        assert growth < more / 4, (growth / more, command)
