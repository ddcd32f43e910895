"""Labels and probabilities of a model: in memory, in every file that `predict` writes, in ONNX, in the estimator."""

from __future__ import annotations

import csv

import h5py
import numpy as np
import pandas as pd
import pytest
from scipy.special import expit
from sklearn.datasets import dump_svmlight_file

from distsms import SMSClassifier, cli
from distsms.base.communicator import Communicator
from distsms.base.errors import InputError, ModelWarning
from distsms.models import decision_text, export, model, output
from distsms.models.model import Model
from distsms.models.output import ScoresPart
from distsms.python import api
from tests.support.problems import data

pytestmark = pytest.mark.serial
ALONE = Communicator()
JUDGED = {
    **{"n": 9, "n_pos": 3, "folds": 3, "not_proved": 0, "before": "", "folds_by": "rows", "bins": []},
    "brier": {"before": 0.2, "after": 0.1, "constant": 0.15},
    "log_loss": {"before": 2, "after": 1, "constant": 3},
}
CURVES = {
    "sigmoid": {"method": "sigmoid", "slope": 2.0, "intercept": -1.0},
    "isotonic": {"method": "isotonic", "scores": [-1.0, 0.0, 0.5, 2.0], "probabilities": [0.1, 0.1, 0.6, 0.9]},
    "constant": {"method": "isotonic", "scores": [0.25], "probabilities": [0.3]},
}


@pytest.fixture(scope="module")
def decided():
    X, y = data(n=300)
    made = api.train((X, y), lam=1e-2, solver="lbfgs", at="recall>=0.7", calibrate="isotonic")
    return made, X.toarray(), y


def test_a_trained_model_has_them_and_keeps_them_in_its_file(decided, tmp_path):
    made, X, _ = decided
    decision, scores = made.info["decision"], api.predict(made, X)
    assert decision["tpr"] >= 0.7 and made.threshold == decision["threshold"] == made.info["threshold"]
    assert (made.labels(scores) == np.where(scores >= made.threshold, 1, -1)).all()
    model.save(tmp_path / "m.h5", made)
    again = model.load(tmp_path / "m.h5")
    assert again.info["decision"] == decision
    np.testing.assert_array_equal(again.probabilities(scores), made.probabilities(scores))
    assert (np.diff(made.probabilities(np.sort(scores))) >= 0).all()
    assert len(decision_text.describe(again.info)) >= 4


def test_an_evaluation_checks_the_promise(decided):
    made, X, y = decided
    found = api.evaluate(made, (X, y))
    called, positive = api.predict(made, X) >= made.threshold, y > 0
    assert found["fpr"] == pytest.approx(np.mean(called[~positive]))
    assert found["recall"] == pytest.approx(np.mean(called[positive]))
    for name, ends in found["intervals_at_threshold"].items():
        assert ends["value"] == found[name] and ends["low"] <= found[name] <= ends["high"]
    told, before = decision_text.promise(made.info, found), made.info["decision"]["tpr"]
    assert f"recall was {100 * before:.3g} % (" in told and "recall at least 70 % on 5 held-out folds" in told
    assert f"On these rows it is {100 * found['recall']:.3g} % (" in told
    for condition in ("precision>=0.5", "fpr<=5%", "top=5%"):
        decision = made.info["decision"] | {"condition": condition}
        now = {"p": found["precision"], "f": found["fpr"], "t": np.mean(called)}[condition[0]]
        assert f"it is {100 * now:.3g} %" in decision_text.promise({"decision": decision}, found), condition
    assert decision_text.promise(made.info, api.evaluate(made, (X, y), threshold=0.0)) == ""
    assert decision_text.promise({}, found) == ""
    few = api.evaluate(made, (X[:8], y[:8]))
    assert "(no interval)" in decision_text.promise(made.info, few)


def test_predict_warns_of_probabilities_that_are_wrong_on_average(decided, tmp_path, capsys):
    made, X, y = decided
    model.save(tmp_path / "m.h5", made)
    few = np.concatenate([np.flatnonzero(y < 0)] * 8)
    for rows, warns in ((np.arange(len(y)), False), (few, True)):
        dump_svmlight_file(X[rows], np.zeros(len(rows)), str(tmp_path / "new.svm"), zero_based=False)
        words = ["predict", tmp_path / "m.h5", tmp_path / "new.svm", "--probability", "--output", tmp_path / "p.csv"]
        args = cli.parse([*map(str, words)])
        assert args.run(args, ALONE) == 0
        told = capsys.readouterr().err
        mean = made.probabilities(api.predict(made, X[rows])).mean()
        assert (f"the mean probability of these rows is {100 * mean:.3g} %" in told) == warns


def test_a_model_without_them_refuses_in_words():
    X, y = data(n=100)
    plain = api.train((X, y), lam=1e-2, solver="lbfgs")
    with pytest.raises(InputError, match="--at"):
        plain.labels(np.zeros(2))
    with pytest.raises(InputError, match="--calibrate"):
        plain.probabilities(np.zeros(2))
    balanced = Model(plain.w, plain.info | {"measure": "logistic-balanced"})
    with pytest.raises(InputError, match="gives both classes the same weight"):
        balanced.probabilities(np.zeros(2))
    by_error = api.train((X, y), measure="error-rate", bias=1.0, lam=1e-2, solver="lbfgs")
    assert by_error.labels(np.array([-1.0, 1.0])).tolist() == [-1, 1]


@pytest.mark.parametrize("name", ["a.csv", "a.tsv", "a.txt", "a.parquet", "a.h5"])
@pytest.mark.parametrize("words", [False, True])
@pytest.mark.parametrize("named", [False, True])
def test_columns_in_every_format(decided, tmp_path, name, words, named):
    made, X, _ = decided
    if words:
        made = Model(made.w, made.info | {"label_map": {"-1": "good, really", "+1": "fraud"}})
    scores, ids = api.predict(made, X), [f"row {k}" for k in range(len(X))] if named else None
    parts = [ScoresPart(scores[:7], ids and ids[:7]), ScoresPart(scores[7:], ids and ids[7:])]

    def further(some):
        return {"label": made.labels(some), "probability": made.probabilities(some)}

    output.write(str(tmp_path / name), iter(parts), ALONE, "id", False, further)
    if name.endswith("h5"):
        with h5py.File(tmp_path / name) as file:
            labels = file["labels"].asstr()[:] if words else file["labels"][:]
            found = [file["scores"][:], labels, file["probabilities"][:]]
            assert not named or file["ids"].asstr()[:].tolist() == ids
    elif name.endswith("parquet"):
        table = pd.read_parquet(tmp_path / name)
        assert list(table.columns) == ["id"] * named + ["score", "label", "probability"]
        found = [table[column].to_numpy() for column in table.columns[named:]]
    else:
        with open(tmp_path / name, newline="") as file:
            rows = list(csv.reader(file, delimiter="," if name.endswith("csv") else "\t"))
        if not name.endswith("txt"):
            assert rows.pop(0) == ["id"] * named + ["score", "label", "probability"]
        columns = [np.array(column) for column in zip(*rows, strict=True)][named:]
        found = [columns[0].astype(float), columns[1] if words else columns[1].astype(int), columns[2].astype(float)]
    np.testing.assert_array_equal(found[0], scores)
    assert found[1].tolist() == made.labels(scores).tolist()
    np.testing.assert_array_equal(found[2], made.probabilities(scores))


def test_npy_has_scores_alone(tmp_path):
    with pytest.raises(InputError, match=r"scores alone, and not label.*\.csv"):
        output.check_ending(str(tmp_path / "a.npy"), ["label"])


@pytest.mark.parametrize("curve", CURVES)
def test_onnx_and_the_estimator_give_the_same(tmp_path, curve):
    onnxruntime = pytest.importorskip("onnxruntime")
    info = {"threshold": 0.5, "zero_based": False, "label_map": {"+1": 1.0, "-1": 0.0}, "bias": 0.25}
    made = Model(np.array([1.0, -0.5]), info | {"calibration": CURVES[curve] | JUDGED})
    X = np.random.default_rng(0).normal(size=(50, 2))
    X[:4] = [[-1.25, 0.0], [-0.25, 0.0], [0.25, 0.0], [1.75, 0.0]]  # exactly at the ends of the pieces
    scores = api.predict(made, X)
    session = onnxruntime.InferenceSession(export.onnx(made), providers=["CPUExecutionProvider"])
    (found,) = session.run(["probabilities"], {"X": X})
    np.testing.assert_allclose(found[:, 1], made.probabilities(scores), rtol=1e-13)
    np.testing.assert_allclose(found.sum(axis=1), 1, rtol=1e-15)
    model.save(tmp_path / "m.h5", made)
    read = SMSClassifier.from_model(tmp_path / "m.h5")
    np.testing.assert_allclose(read.predict_proba(X), found, rtol=1e-13)
    if curve == "sigmoid":
        np.testing.assert_allclose(found[:, 1], expit(2 * scores - 1), rtol=1e-13)


def test_damaged_ones_are_refused(decided, tmp_path):
    info = {"threshold": 0.5, "zero_based": False, "label_map": {"+1": 1.0, "-1": None}}
    fine = decided[0].info["decision"]
    curve, no_interval = CURVES["sigmoid"] | JUDGED, {"low": "x", "high": None, "value": 0.5}
    for wrong in (
        *({"calibration": {"method": "sigmoid"}}, {"decision": 3}, {"decision": {"threshold": "x"}}),
        *({"calibration": curve | harm} for harm in ({"n": None}, {"brier": "x"}, {"log_loss": {}}, {"bins": [{}]})),
        {"calibration": CURVES["isotonic"] | JUDGED | {"scores": [10**400]}},
        *({"decision": fine | harm} for harm in ({"called": -1}, {"effective": 0}, {"positive_share": 1e308})),
        {"decision": fine | {"intervals": fine["intervals"] | {"precision": no_interval}}},
        {"decision": fine | {"by_rows": {"called": 2}}},
    ):
        model.save(tmp_path / "m.h5", Model(np.ones(2), info | wrong))
        with pytest.raises(InputError, match="damaged model"):
            model.load(tmp_path / "m.h5")


def test_the_estimator_decides_by_held_out_folds():
    X, y = data(n=300)
    made = SMSClassifier(lam=1e-2, at="recall>=0.7", calibrate="sigmoid", folds=3).fit(X, y)
    assert made.decision_["folds"] == 3 and made.threshold_ == made.decision_["threshold"]
    assert np.mean(made.predict(X)[y > 0] > 0) >= 0.6
    own = made.predict_proba(X)
    assert own.shape == (300, 2) and ((own > 0) & (own < 1)).all()
    order = np.argsort(made.decision_function(X))
    assert (np.diff(own[order, 1]) >= 0).all()
    again = made.set_params(at=None, calibrate=None).fit(X, y)
    assert not hasattr(again, "decision_") and not hasattr(again, "predict_proba")
    with pytest.raises(AttributeError) as refused:
        again.set_params(measure="logistic-balanced").predict_proba(X)
    assert "gives both classes the same weight" in str(refused.value)
    with pytest.raises(ValueError, match="at least 2 folds"):
        SMSClassifier(at="recall>=0.7", folds=1).fit(X, y)


def test_scikit_learns_calibration_is_near():
    """CalibratedClassifierCV without an ensemble does the same with other folds."""
    from sklearn.calibration import CalibratedClassifierCV

    X, y = data(n=600)
    oracle = CalibratedClassifierCV(SMSClassifier(lam=1e-2), cv=5, ensemble=False).fit(X, y).predict_proba(X)[:, 1]
    own = SMSClassifier(lam=1e-2, calibrate="sigmoid").fit(X, y).predict_proba(X)[:, 1]
    assert np.abs(own - oracle).max() < 0.03


def test_a_run_that_is_stopped_in_its_folds_says_so_and_asks_to_be_run_again():
    X, y = data(n=300)
    asked = [0]

    def stop_wanted(limit):
        asked[0] += 1
        return asked[0] > limit

    api.train((X, y), lam=1e-2, solver="lbfgs", stop_wanted=lambda: stop_wanted(1e9))
    limit, asked[0] = asked[0] + 2, 0
    with pytest.warns(ModelWarning, match="ended before the models of the folds were trained"):
        made = api.train((X, y), lam=1e-2, solver="lbfgs", at="recall>=0.7", stop_wanted=lambda: stop_wanted(limit))
    assert made.info["status"] == "proved" and made.info["exit_code"] == 75 and "decision" not in made.info
