"""Scores of raw rows: X w by hand, in order, with ids, for every format, normalization and number of ranks."""

from __future__ import annotations

import csv
import sys

import h5py
import numpy as np
import pandas as pd
import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from distsms.base.errors import InputError
from distsms.ingest.frames import write_frame
from distsms.matrix.normalization import KINDS
from distsms.models import export, inputs, model, output, scoring
from distsms.models.evaluation import EvaluationOptions
from distsms.models.output import ScoresPart
from distsms.python import api
from distsms.python.estimator import SMSClassifier
from distsms.shards.dataset import load
from distsms.workflow.evaluate import evaluate
from distsms.workflow.predict import predict
from distsms.workflow.requests import EvaluateRequest, PredictRequest
from tests.models.test_export import with_csv
from tests.support import program
from tests.support.conversion import convert
from tests.support.files import ALONE, FORMATS, HEADER, content, mixed, normalized, numbers, on_root, write, write_csv
from tests.support.simulated_program import run, run_json


def table(folder, name="a.csv", rows=None, header=None):
    rows = mixed() if rows is None else rows
    write_csv(folder / name, ["id", *(header or HEADER)], [[f"r {k}", *row] for k, row in enumerate(rows)])
    return folder / name


def trained(folder, comm, normalize, source="a.csv", **how):
    """Return a model of a table, which the root writes."""
    how = {"label": "y", "positive": "y", **how}
    convert([folder / source], folder / "train", comm, 3, normalize=normalize, **how)
    return api.train(folder / "train", comm.mpi_comm, lam=1e-2, solver="lbfgs", max_evaluations=30)


def predicted(one, path, comm, folder, name="scores.txt", notes=None, **how):
    """Return what `distsms predict` writes, read by the csv module: ids and scores."""
    how = inputs.InputOptions(labelled=False, **how)
    output.write(str(folder / name), scoring.score_in_parts(one, path, comm, how, notes=notes), comm)
    comm.barrier()
    with open(folder / name, newline="") as file:
        lines = list(csv.reader(file, delimiter="\t"))
    comm.barrier()
    return [line[0] for line in lines if len(line) > 1], np.array([float(line[-1]) for line in lines])


@pytest.mark.parametrize("normalize", KINDS)
def test_scores_are_those_of_raw_rows_by_hand(comm, shared_dir, normalize, monkeypatch):
    """Scores are X times the model's w (rows of unit length for l2), also from shards, and w is what was trained."""
    monkeypatch.setattr(scoring, "PART_BYTES", 500)
    on_root(comm, lambda: table(shared_dir))
    one = trained(shared_dir, comm, normalize, id="id")
    X, _ = content(shared_dir / "train")
    expected = (normalized(X, "l2") if normalize == "l2" else X) @ one.w
    ids, scores = predicted(one, shared_dir / "a.csv", comm, shared_dir)
    np.testing.assert_allclose(scores, expected, rtol=1e-12, atol=1e-12)
    assert ids == [f"r {k}" for k in range(len(X))]
    again = predicted(one, shared_dir / "train", comm, shared_dir)
    assert again[0] == ids and again[1].tolist() == scores.tolist()

    block = load(shared_dir / "train", comm)
    mine = slice(block.first_row, block.first_row + len(block.labels))
    seen = block.features.margins(one.normalization.unfold(one.w))  # as training did
    np.testing.assert_allclose(seen, scores[mine], rtol=1e-11, atol=1e-11)
    assert one.info["normalize"] == normalize
    J = one.info["lambda"] / 2 * np.sum(one.normalization.unfold(one.w) ** 2) + one.info["R"]
    np.testing.assert_allclose(J, one.info["J"], rtol=1e-9)


@pytest.mark.parametrize("kind", FORMATS)
def test_every_format_scores_alike(comm, shared_dir, kind, monkeypatch):
    monkeypatch.setattr(scoring, "PART_BYTES", 300)
    X, y = numbers()
    on_root(comm, lambda: (write(shared_dir / "a.parquet", X, y), write(shared_dir / f"b.{kind}", X, y)))
    one = trained(shared_dir, comm, "maxabs", "a.parquet", positive=7)
    one = one if kind in ("csv", "tsv.gz", "parquet", "h5ad", "sparse.h5ad") else model.Model(one.w, one.info)
    assert (one.table is None) == (kind in ("svm", "npz", "sparse.npz", "npy"))
    ids, scores = predicted(one, shared_dir / f"b.{kind}", comm, shared_dir)
    np.testing.assert_allclose(scores, X @ one.w, rtol=1e-9)
    assert ids == []


@pytest.mark.parametrize("kind", FORMATS)
def test_no_rows_have_no_scores_and_no_measures(comm, shared_dir, kind):
    """A file with only a header has no scores, which a warning says; as a test set it is refused before training."""
    X, y = numbers()
    how = on_root(comm, lambda: (write(shared_dir / "a.parquet", X, y), write(shared_dir / f"b.{kind}", X[:0], y[:0])))
    one, path = trained(shared_dir, comm, "none", "a.parquet", positive=7), shared_dir / f"b.{kind}"
    one = one if kind in ("csv", "tsv.gz", "parquet", "h5ad", "sparse.h5ad") else model.Model(one.w, one.info)
    on_root(comm, lambda: model.save(shared_dir / "m.h5", one))
    for name in ("s.txt", "s.h5"):
        predicted = predict(PredictRequest(one, str(path), output=str(shared_dir / name)), comm)
        assert (predicted.n, predicted.warnings) == (0, [f"{path}: has no rows, so there are no scores"])
    if comm.is_root:
        assert (shared_dir / "s.txt").read_bytes() == b""
        with h5py.File(shared_dir / "s.h5") as file:
            assert file["scores"].shape == (0,)
    labelled = inputs.InputOptions(label=how[1].get("label"))
    with pytest.raises(InputError, match=rf"b.{kind}: there is no row"):
        evaluate(EvaluateRequest([str(shared_dir / "m.h5")], str(path), EvaluationOptions(), labelled), comm)
    with pytest.raises(InputError, match=rf"b.{kind}: there is no row"):
        inputs.check(path, one, labelled)


def test_hdf5_and_awkward_ids(comm, shared_dir):
    """Ids may have quotes, tabs, other alphabets and repetitions; there are as many ranks as rows."""
    names = ['a"b', "x\tünï", "plain", "plain"]
    rows = [[name, k, "yn"[k % 2]] for k, name in enumerate(names)]
    if comm.is_root:
        pq.write_table(
            pa.table(dict(zip(["id", "x", "y"], map(list, zip(*rows, strict=True)), strict=True))), shared_dir / "a.pq"
        )
    comm.barrier()
    one = trained(shared_dir, comm, "none", "a.pq", id="id")
    for source in ("a.pq", "train"):
        assert predicted(one, shared_dir / source, comm, shared_dir)[0] == names
        parts = scoring.score_in_parts(one, shared_dir / source, comm, inputs.InputOptions(labelled=False))
        output.write(str(shared_dir / "s.h5"), parts, comm)
        comm.barrier()
        with h5py.File(shared_dir / "s.h5") as file:
            assert file["ids"].asstr()[:].tolist() == names
            np.testing.assert_allclose(file["scores"][:], np.arange(4) * one.w[0])
        comm.barrier()


@pytest.mark.serial
def test_text_and_hdf5_have_all_digits(tmp_path, capsysbinary):
    scores = np.array([0.1, 1e-300, -3.0, 1 / 3])
    parts = [ScoresPart(scores[:1]), ScoresPart(scores[1:])]
    for name in ("s.txt", "-"):
        output.write(str(tmp_path / name) if name != "-" else name, parts, ALONE)
        text = (tmp_path / name).read_bytes() if name != "-" else capsysbinary.readouterr().out
        assert [float(line) for line in text.split()] == scores.tolist()
    output.write(str(tmp_path / "s.h5"), parts, ALONE)
    with h5py.File(tmp_path / "s.h5") as file:
        assert file["scores"][:].tolist() == scores.tolist()


@pytest.mark.parametrize("named", [True, False])
def test_what_the_ending_says_is_what_is_written(comm, shared_dir, named, monkeypatch):
    """Read by pandas, h5py and NumPy: the same ids and scores, in many parts on each rank."""
    monkeypatch.setattr(scoring, "PART_BYTES", 500)
    on_root(comm, lambda: table(shared_dir))
    how = {"id": "id"} if named else {"drop": ("id",)}
    one, options = trained(shared_dir, comm, "standard", **how), inputs.InputOptions(labelled=False)
    expected = content(shared_dir / "train")[0] @ one.w
    names = [f"r {k}" for k in range(len(expected))] if named else None
    read = {
        "csv": lambda path: pd.read_csv(path, float_precision="round_trip"),
        "TSV": lambda path: pd.read_csv(path, sep="\t", float_precision="round_trip"),
        "parquet": pd.read_parquet,
        "pq": pd.read_parquet,
        "npy": lambda path: pd.DataFrame({"score": np.load(path)}),
        "txt": lambda path: pd.read_csv(path, sep="\t", names=["person", "score"][not named :], header=None),
    }
    steps = []
    for ending in read:
        parts = scoring.score_in_parts(one, shared_dir / "a.csv", comm, options, lambda *step: steps.append(step))
        assert output.write(str(shared_dir / f"s.{ending}"), parts, comm, "person") == len(expected)
    assert steps[: len(steps) // 6] == [(k + 1, len(steps) // 6) for k in range(len(steps) // 6)] and len(steps) > 6
    comm.barrier()
    for ending, reader in read.items():
        found = reader(shared_dir / f"s.{ending}")
        np.testing.assert_allclose(found["score"], expected, rtol=1e-12, atol=1e-12)
        assert list(found.columns) == (["person", "score"] if named and ending != "npy" else ["score"])
        assert not named or ending == "npy" or found["person"].tolist() == names
    first = (shared_dir / "s.csv").read_text().splitlines()[:2]
    assert first[0] == ("person,score" if named else "score") and first[1].count(",") == named
    comm.barrier()


def test_endings_of_other_formats_are_refused(comm, shared_dir):
    for ending in ("csv.gz", "json", "xlsx", "npz"):
        with pytest.raises(InputError, match=rf"s\.{ending}: scores cannot be written as .*\.parquet"):
            output.write(str(shared_dir / f"s.{ending}"), iter([ScoresPart(np.zeros(1))]), comm)
    output.write(str(shared_dir / "scores.2024"), iter([ScoresPart(np.zeros(1))]), comm)
    comm.barrier()
    assert [file.name for file in shared_dir.iterdir()] == ["scores.2024"]


@pytest.mark.serial
@pytest.mark.parametrize("normalize", ["standard", "maxabs"])
def test_exports_score_raw_rows(tmp_path, normalize):
    table(tmp_path)
    one = trained(tmp_path, ALONE, normalize, id="id")
    model.save(tmp_path / "m.h5", one)
    read = model.load(tmp_path / "m.h5")
    assert (
        read.table == one.table and read.normalization == one.normalization and read.feature_names == one.feature_names
    )
    X, _ = content(tmp_path / "train")
    scores = predicted(read, tmp_path / "a.csv", ALONE, tmp_path)[1]
    np.testing.assert_allclose(with_csv(export.csv(read), X, read.feature_names)[0], scores, rtol=1e-9, atol=1e-9)
    classifier = SMSClassifier.from_model(tmp_path / "m.h5")
    assert classifier.feature_names_in_.tolist() == read.feature_names
    X = pd.DataFrame(X, columns=read.feature_names)
    np.testing.assert_allclose(classifier.decision_function(X) + classifier.threshold_, scores, rtol=1e-9, atol=1e-9)


@pytest.mark.serial
def test_what_cannot_be_said_of_unit_rows_is_refused(tmp_path):
    table(tmp_path)
    one = trained(tmp_path, ALONE, "l2", id="id")
    model.save(tmp_path / "m.h5", one)
    for use in (
        lambda: SMSClassifier.from_model(tmp_path / "m.h5"),
        lambda: export.write(one, "csv", tmp_path / "m", None),
    ):
        with pytest.raises(InputError, match="normalized by l2"):
            use()
    convert([tmp_path / "a.csv"], tmp_path / "raw", ALONE, positive="y", label="y", id="id")
    with pytest.raises(InputError, match="normalized as l2, the data are standard"):
        api.train(tmp_path / "raw", start=one, solver="lbfgs")


@pytest.mark.serial
def test_a_start_is_brought_to_the_scale_of_the_data(tmp_path):
    """A model that starts the same problem is at its own J at once."""
    table(tmp_path)
    one = trained(tmp_path, ALONE, "standard", id="id")
    again = api.train(tmp_path / "train", lam=1e-2, solver="lbfgs", start=one, max_evaluations=1)
    np.testing.assert_allclose(again.info["J"], one.info["J"], rtol=1e-9)


@pytest.mark.parametrize("ranks", [1, 3])
def test_the_commands(tmp_path, ranks):
    """Run shard, train with --test, evaluate, report and predict on a table; an error is printed once."""
    path, new = table(tmp_path), table(tmp_path, "new.csv", mixed(30, 5))
    how = ("--label", "y", "--positive", "y", "--id", "id", "--normalize", "standard", "--drop", "k")
    told = run(ranks, "shard", path, tmp_path / "train", *how)
    assert "1 of numbers, 1 of categories: w (4); 2 for missing values" in told and "normalized (standard)" in told
    train = ("--lambda", "1e-2", "--solver", "lbfgs", "--output", tmp_path / "m.h5")
    assert "normalized: standard" in run(ranks, "train", tmp_path / "train", *train, "--test", new)
    found = run_json(ranks, "evaluate", tmp_path / "m.h5", new)
    assert found["n"] == 30
    scores = tmp_path / "scores.txt"
    run(ranks, "predict", tmp_path / "m.h5", new, "--output", scores)
    lines = scores.read_text().splitlines()
    assert [line.split("\t")[0] for line in lines] == [f"r {k}" for k in range(30)]
    none = table(tmp_path, "none.csv", [])
    for line in (("evaluate", tmp_path / "m.h5", none), ("train", tmp_path / "train", *train, "--test", none)):
        assert run(ranks, *line, code=1).count("none.csv: there is no row") == 1
    run(ranks, "predict", tmp_path / "m.h5", none, "--output", scores)
    assert scores.read_text() == ""
    assert "like: 30 rows, 7 columns" in run(ranks, "shard", new, tmp_path / "like", "--like", tmp_path / "train")
    assert run_json(ranks, "evaluate", tmp_path / "m.h5", tmp_path / "like")["rocarea"] == found["rocarea"]
    assert run_json(1, "info", tmp_path / "m.h5")["normalize"] == "standard"
    assert "standard" in run(1, "info", tmp_path / "train")


@pytest.mark.e2e
def test_tables_need_pyarrow_and_say_so(tmp_path):
    words = ("shard", table(tmp_path), tmp_path / "x", "--label", "y")
    assert "pip install" in program.run(*words, code=1, program=("-c", NO_ARROW), env={"PYTHONPATH": "."})


NO_ARROW = "import sys; sys.modules['pyarrow'] = None\nfrom distsms.__main__ import main\nsys.exit(main(sys.argv[1:]))"


@pytest.mark.serial
def test_parquet_files_and_tables_in_memory_need_it_too(tmp_path, monkeypatch):
    """What lacks is said in words, without a traceback."""
    frame = pd.DataFrame({"x": [1.0]})
    monkeypatch.setitem(sys.modules, "pyarrow", None)
    monkeypatch.delitem(sys.modules, "distsms.ingest.formats.columns", raising=False)
    with pytest.raises(InputError, match=r"s\.pq: Parquet is written by pyarrow.*pip install"):
        output.check_ending(str(tmp_path / "s.pq"))
    with pytest.raises(InputError, match=r"tables are read by pyarrow.*pip install"):
        write_frame(frame, tmp_path / "t.parquet")


@pytest.mark.serial
def test_names_are_harmless_in_text_unless_they_are_to_be_verbatim(tmp_path):
    """A spreadsheet finds no formula in a name, and a terminal no escape; numbers stay numbers, other formats exact."""
    names = ["=1+1", "-12", "-a", "a\x1b[2Jb", "two\nlines", "+49 1"]
    scores = np.array([-0.5, 1, 2, 3, 4, -1e-300])
    harmless = ["'=1+1", "-12", "'-a", r"a\x1b[2Jb", "two\nlines", "'+49 1"]
    shown = ["=1+1", "-12", "-a", r"a\x1b[2Jb", "two\nlines", "+49 1"]
    for ending, separator, expected in (("csv", ",", harmless), ("tsv", "\t", harmless), ("txt", "\t", shown)):
        for verbatim in (False, True):
            path = tmp_path / f"s.{ending}"
            output.write(str(path), [ScoresPart(scores, names)], ALONE, "=id", verbatim)
            with open(path, newline="") as file:
                rows = list(csv.reader(file, delimiter=separator))
            if ending != "txt":
                assert rows.pop(0) == ["=id" if verbatim else "'=id", "score"]
            assert [row[0] for row in rows] == (names if verbatim else expected)
            assert [float(row[1]) for row in rows] == scores.tolist()
    output.write(str(tmp_path / "s.parquet"), [ScoresPart(scores, names)], ALONE)
    assert pd.read_parquet(tmp_path / "s.parquet")["id"].tolist() == names
