"""Exported models in the programs that read them: they give the scores and decisions of `distsms predict`."""

from __future__ import annotations

import csv
import io
import sys

import numpy as np
import pytest
from scipy import sparse
from sklearn.datasets import load_svmlight_file

from distsms import SMSClassifier, predict
from distsms.base.errors import InputError
from distsms.cli.export import FORMATS
from distsms.models import export, model
from distsms.shards.table_schema import Column, Table
from tests.support.program import run, write_svmlight

pytestmark = pytest.mark.serial


def with_onnx(content, X):
    runtime = pytest.importorskip("onnxruntime")
    session = runtime.InferenceSession(content, providers=["CPUExecutionProvider"])
    label, score = session.run(["label", "score"], {"X": X})
    return score, label.tolist()


def with_liblinear(content, X, folder, threshold):
    consumer = pytest.importorskip("liblinear.liblinearutil")
    (folder / "liblinear").write_bytes(content)
    read = consumer.load_model(str(folder / "liblinear"))
    labels, _, values = consumer.predict([], sparse.csr_matrix(X), read, "-q")
    return np.array(values)[:, 0] + threshold, [int(one) for one in labels]


def with_csv(content, X, names=None):
    rows = dict(list(csv.reader(io.StringIO(content.decode())))[1:])
    w = [float(rows[str(name)]) for name in names or range(X.shape[1])]
    return X @ w + float(rows["bias"]), float(rows["threshold"])


@pytest.fixture(scope="module")
def trained(tmp_path_factory):
    """Return a model with a bias for the labels 3 and 7, its rows, and their scores as the program gives them."""
    folder = tmp_path_factory.mktemp("export")
    write_svmlight(folder / "plain.svm", seed=1, shift=3.0)
    text = (folder / "plain.svm").read_text()
    (folder / "train.svm").write_text(
        "".join("37"[line[0] != "-"] + line[line.index(" ") :] for line in text.splitlines(True))
    )
    run("shard", folder / "train.svm", folder / "train", "--positive", "7")
    words = ("--measure", "prbep", "--bias", "--solver", "lbfgs", "--quiet", "--output", folder / "model.h5")
    run("train", folder / "train", *words)
    run("predict", folder / "model.h5", folder / "train.svm", "--output", folder / "scores.txt")
    X = load_svmlight_file(str(folder / "train.svm"))[0].toarray()
    return folder, X, np.loadtxt(folder / "scores.txt")


def exported(folder, to):
    run("export", folder / "model.h5", "--to", to, "--output", folder / f"model.{to}")
    return (folder / f"model.{to}").read_bytes()


@pytest.mark.e2e
def test_every_consumer_gives_the_programs_scores(trained, tmp_path):
    folder, X, scores = trained
    read = model.load(folder / "model.h5")
    expected = [7 if called else 3 for called in scores >= read.threshold]
    assert 0 < expected.count(7) < len(expected)

    score, labels = with_onnx(exported(folder, "onnx"), X)
    np.testing.assert_allclose(score, scores, rtol=1e-12, atol=1e-12)
    assert labels == expected

    score, threshold = with_csv(exported(folder, "csv"), X)
    np.testing.assert_allclose(score, scores, rtol=1e-12, atol=1e-12)
    assert threshold == read.threshold

    classifier = SMSClassifier.from_model(folder / "model.h5")
    score = classifier.decision_function(sparse.csr_matrix(X)) + classifier.threshold_
    np.testing.assert_allclose(score, scores, rtol=1e-12, atol=1e-12)
    assert classifier.predict(X).tolist() == expected
    assert classifier.gap_ == read.info["gap"]

    score, labels = with_liblinear(exported(folder, "liblinear"), X, tmp_path, read.threshold)
    np.testing.assert_allclose(score, scores, rtol=1e-12, atol=1e-12)
    assert labels == expected


def made(w, threshold=0.0, bias=0.0, labels=(-1.0, 1.0)):
    meaning = {"-1": labels[0], "+1": labels[1]}
    return model.Model(
        np.array(w, float), {"threshold": threshold, "bias": bias, "label_map": meaning, "zero_based": False}
    )


EDGES = [(0.0, 0.0), (2.0, 0.0), (-2.0, 0.0), (1e8, 0.0), (1e-8, 0.0), (0.0, 2.0), (0.0, -1e-8)]


@pytest.mark.parametrize("threshold, bias", EDGES)
def test_a_score_of_just_the_threshold_is_positive_everywhere(threshold, bias, tmp_path):
    """A score equal to the threshold is positive; the next smaller one is not, if scores are computed exactly."""
    one = made([1.0], threshold, bias)
    at = threshold - bias
    X = np.array([[np.nextafter(at, -np.inf)], [at], [np.nextafter(at, np.inf)]])
    model.save(tmp_path / "model.h5", one)
    assert SMSClassifier.from_model(tmp_path / "model.h5").predict(X).tolist() == [-1, 1, 1]
    assert with_onnx(export.onnx(one), X)[1] == [1 if score >= threshold else -1 for score in predict(one, X)]
    assert with_liblinear(export.liblinear(one), X, tmp_path, 0.0)[1] == [-1, 1, 1]


@pytest.mark.parametrize(
    "labels, called",
    [
        ((2.0, 1.0), (2, 1)),
        ((0.5, 1.5), (0.5, 1.5)),
        (([1.0, 2.0], 3.0), (-1, 1)),
        ((None, 3.0), (-1, 1)),
        (("no", "yes"),) * 2,
        ((False, True),) * 2,
    ],
)
def test_labels(labels, called, tmp_path):
    one, X = made([1.0], labels=labels), np.array([[-1.0], [1.0]])
    assert one.classes == called
    found = with_onnx(export.onnx(one), X)[1]
    assert found == (list(called) if type(called[0]) is int else list(map(str, called)))
    model.save(tmp_path / "model.h5", one)
    assert SMSClassifier.from_model(tmp_path / "model.h5").predict(X).tolist() == list(called)
    whole = called if type(called[0]) is int else (-1, 1)
    assert with_liblinear(export.liblinear(one), X, tmp_path, 0.0)[1] == list(whole)


def test_liblinear_writes_the_probabilities_of_logistic_regression(tmp_path):
    consumer = pytest.importorskip("liblinear.liblinearutil")
    one, X = made([1.0, -2.0], bias=0.5), np.random.default_rng(0).normal(size=(20, 2))
    one.info["measure"] = "logistic"
    (tmp_path / "model").write_bytes(export.liblinear(one))
    read = consumer.load_model(str(tmp_path / "model"))
    values = consumer.predict([], sparse.csr_matrix(X), read, "-q -b 1")[2]
    np.testing.assert_allclose(np.array(values)[:, 0], one.probabilities(predict(one, X)), rtol=1e-12)
    for change in ({"measure": "logistic-balanced"}, {"threshold": 1.0}, {"calibration": {"method": "isotonic"}}):
        assert b"L2R_LR" not in export.liblinear(model.Model(one.w, one.info | change))


def test_a_tables_columns_go_by_name():
    """The names in CSV are in the order that the other formats use; names may hold commas and quotes."""
    table = Table((Column("age", None, True), Column('city, "c"', ("a", "b"), False)), "y", None)
    one = made(np.arange(5.0))
    named = export.csv(model.Model(one.w, one.info, table))
    found = list(csv.reader(io.StringIO(named.decode())))[3:]
    assert [name for name, _ in found] == [*table.feature_names, "column 5"]
    assert [float(weight) for _, weight in found] == one.w.tolist()


def test_names_that_a_spreadsheet_would_take_for_formulas():
    table = Table((Column("=a", None, False), Column("-5", None, False)), "y", None)
    one = made(np.array([-0.5, 2.0]))
    for verbatim, name in ((False, "'=a"), (True, "=a")):
        text = export.csv(model.Model(one.w, one.info, table), verbatim).decode()
        assert text.splitlines()[3:] == [f"{name},-0.5", "-5,2.0"]


def test_every_format_is_offered():
    assert tuple(export.FORMATS) == FORMATS


def test_a_missing_package_is_named(monkeypatch):
    monkeypatch.setitem(sys.modules, "onnx", None)
    for name in ("graph", "features", "nodes"):
        monkeypatch.delitem(sys.modules, f"distsms.models.onnx_{name}", raising=False)
    with pytest.raises(InputError, match=r"pip install 'distsms\[export\]'"):
        export.onnx(made([1.0]))


@pytest.mark.e2e
def test_what_cannot_be_written_is_refused(trained, tmp_path):
    folder = trained[0]
    path = folder / "model.h5"
    assert "in use" in run("export", path, "--to", "csv", "--output", path, code=1)
    (tmp_path / "other.h5").write_bytes(path.read_bytes())
    assert "is a model" in run("export", path, "--to", "csv", "--output", tmp_path / "other.h5", code=1)
    assert "does not exist" in run("export", path, "--to", "csv", "--output", tmp_path / "no" / "x", code=1)
    assert run("export", path, "--to", "csv").startswith("name,value\nthreshold,")
