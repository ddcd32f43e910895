"""Logistic regression as a measure: the minimum of scikit-learn, the constant feature, the choice, the evaluation."""

from __future__ import annotations

import contextlib
from dataclasses import replace

import numpy as np
import pytest
from scipy import sparse
from scipy.special import expit
from sklearn.datasets import dump_svmlight_file

from distsms import cli
from distsms.base.communicator import Communicator
from distsms.base.errors import InputError, ModelWarning
from distsms.base.measures import FAMILIES, Measure, check_chooser
from distsms.base.scored import Scored
from distsms.cli.types import not_negative, path_measures
from distsms.metrics.ranking import log_loss
from distsms.models import model
from distsms.models.evaluation import EvaluatedRows, EvaluationOptions, evaluate, extra_measures
from distsms.optim.result import Status
from distsms.optim.settings import Settings
from distsms.python import api
from distsms.python.estimator import SMSClassifier
from distsms.shards import from_arrays
from distsms.training.fit import fit
from distsms.training.rows import TrainingObserver
from distsms.training.solver_choice import settings_for
from distsms.training.task import Distribution, TrainingTask
from distsms.workflow.auto_lambda import LambdaChoice
from distsms.workflow.train import train_task
from tests.support.problems import data, local_part, share

ALONE = Communicator()
names = pytest.mark.parametrize("name", [name for name, family in FAMILIES.items() if family.log_loss])


def trained(X, y, name, comm, settings, weights=None, step="root", bias=None):
    mine = None if weights is None else local_part(weights, comm)
    rows = from_arrays.block(X[share(comm, len(y))], local_part(y, comm), comm, weights=mine)
    measure = Measure.parse(name)
    return train_task(
        TrainingTask(rows, measure, settings, measure.bias(bias), distribution=Distribution(step=step)), comm
    )


@pytest.mark.parametrize(
    "name, lam, step",
    [
        ("logistic", 1e-1, "root"),
        ("logistic", 1e-3, "spread"),
        ("logistic-balanced", 1e-1, "spread"),
        ("logistic-balanced", 1e-3, "root"),
    ],
)
def test_the_minimum_is_that_of_scikit_learn(name, lam, step, comm):
    linear_model = pytest.importorskip("sklearn.linear_model")
    X, y = data(300, positive=0.15)
    weights = None if lam == 1e-1 else np.linspace(0.2, 3, 300)
    found = trained(X, y, name, comm, Settings(lam, 1e-7, solver="lbfgs"), weights, step)
    assert found.result.status is Status.PROVED and found.fit.bias != 0
    a = np.ones(300) if weights is None else weights / weights.mean()
    if name.endswith("balanced"):
        a *= a.sum() / (2 * np.where(y > 0, a[y > 0].sum(), a[y < 0].sum()))
    constant = sparse.hstack([X, np.ones((300, 1))]).tocsr()
    rival = linear_model.LogisticRegression(C=1 / (300 * lam), tol=1e-9, max_iter=10_000, fit_intercept=False)
    w = comm.bcast(rival.fit(constant, y, sample_weight=a).coef_[0] if comm.is_root else None)
    J = lam / 2 * w @ w + np.mean(a * np.logaddexp(0, -y * (constant @ w)))
    assert found.result.lower_bound - 1e-12 <= J <= found.result.J + 1e-9
    np.testing.assert_allclose(np.append(found.fit.w, found.fit.bias), w, atol=np.sqrt(2 * 1e-7 / lam) + 1e-4)
    assert found.scores.measures[name] == pytest.approx(found.result.R, rel=1e-12)


@names
def test_there_is_a_constant_feature_unless_it_is_refused(name, comm):
    X, y = data(80)
    how = {"measure": name, "lam": 1e-2, "solver": "lbfgs", "check": False}
    rows, own = X[share(comm, 80)], local_part(y, comm)
    biases = [api.train((rows, own), comm, bias=bias, **how).bias for bias in (None, 1.0, 0)]
    assert biases[0] == biases[1] != 0 == biases[2]
    if comm.size == 1:
        assert SMSClassifier(name, lam=1e-2).fit(X, y).intercept_[0] == pytest.approx(biases[0])
        with pytest.raises(ValueError, match="bias"):
            SMSClassifier(name, bias=-1.0).fit(X, y)
    assert [Measure.parse("rocarea").bias(asked) for asked in (None, 0.0, 2.0)] == [None, None, 2.0]


@pytest.mark.serial
def test_what_has_no_meaning_is_refused_in_words():
    with pytest.raises(InputError, match="logistic is smooth by itself"):
        settings_for("logistic", "lmvm", lam=1.0, c_mu=10.0)
    with pytest.raises(InputError, match="only rocarea can"):
        Measure.parse("logistic").within("pairs")
    for name in ("logistic", "LOGISTIC", "Logistic-Balanced", "Log-Loss", "brier"):
        with pytest.raises(InputError, match="smaller where models are better"):
            check_chooser(name)
    with pytest.raises(Exception, match="at least 0"):
        not_negative("-1")
    assert Measure.parse("logistic").chooser == Measure.parse("logistic-balanced").chooser == "rocarea"
    assert path_measures("logistic-balanced") == path_measures("Logistic-Balanced") == "logistic-balanced"


@pytest.mark.serial
@pytest.mark.parametrize("solver", ["lbfgs", "agm", "bmrm"])
def test_every_solver_finds_the_minimum_without_a_width(solver):
    X, y = data(200)
    seen = []
    rows = from_arrays.block(X, y, ALONE)
    task = TrainingTask(rows, Measure.parse("logistic"), Settings(1e-2, 1e-5, solver=solver), 1.0)

    class Observer(TrainingObserver):
        def evaluated(self, state, w):
            seen.append(state)

    found = fit(task, ALONE, observer=Observer())
    assert found.result.status is Status.PROVED and {state.nu for state in seen} == {0.0}
    least = fit(TrainingTask(rows, task.measure, Settings(1e-2, 1e-8, solver="lbfgs"), 1.0), ALONE).result.J
    assert found.result.lower_bound <= least <= found.result.J + 1e-8


@names
@pytest.mark.parametrize("weighted", [False, True])
def test_probabilities_are_measured_as_scikit_learn_does(name, weighted, comm):
    metrics = pytest.importorskip("sklearn.metrics")
    X, y = data(150)
    weights = np.linspace(0.5, 2, 150) if weighted else None
    scores = np.random.default_rng(0).normal(size=150) * 3 + y
    mine = Scored(
        local_part(scores, comm), local_part(y, comm), comm, None if weights is None else local_part(weights, comm)
    )
    a = np.ones(150) if weights is None else weights
    p = 1 / (1 + np.exp(-scores))
    model = api.train((X, y), None, measure=name, lam=1e-2, solver="lbfgs", check=False)
    rows = EvaluatedRows(local_part(np.arange(150), comm))
    (judged,), _ = evaluate([("the model", model, mine)], rows, EvaluationOptions(intervals=False))
    found = judged.measures
    if name == "logistic":
        assert log_loss(mine) == pytest.approx(metrics.log_loss(y, p, sample_weight=a), rel=1e-12)
        assert found["log_loss"] == pytest.approx(log_loss(mine), rel=1e-9)
        assert found["brier"] == pytest.approx(metrics.brier_score_loss(y, p, sample_weight=a), rel=1e-12)
    else:
        a = a / np.where(y > 0, a[y > 0].sum(), a[y < 0].sum())
        assert log_loss(mine, True) == pytest.approx(metrics.log_loss(y, p, sample_weight=a), rel=1e-12)
        assert "log_loss" not in found
    assert extra_measures(model.info, None) == []
    if name == "logistic":
        np.testing.assert_allclose(model.probabilities(scores), p, rtol=1e-14)
        assert set(model.labels(scores)) == {-1, 1}
        own = SMSClassifier(name, lam=1e-2).fit(X, y)
        np.testing.assert_allclose(own.predict_proba(X)[:, 1], model.probabilities(api.predict(model, X)), atol=1e-3)
    else:
        with pytest.raises(InputError, match="--measure logistic"):
            model.probabilities(scores)
        assert not hasattr(SMSClassifier(name), "predict_proba")


@pytest.mark.serial
def test_probabilities_that_lambda_pulls_away_from_the_share_are_told():
    rng = np.random.default_rng(0)
    y = np.where(rng.random(2000) < 0.02, 1, -1)
    X = rng.normal(size=(2000, 2)) + 2 * (y > 0)[:, None]
    weights = rng.uniform(0.5, 2, len(y))
    found = trained(X, y, "logistic", ALONE, Settings(1e-1, 1e-6, solver="lbfgs"), weights)
    p = expit(X @ found.fit.w + found.fit.bias)
    assert found.scores.means["by_rows"]["mean"] == pytest.approx(p.mean())
    assert found.scores.means["by_rows"]["positive"] == pytest.approx(p[y > 0].mean())
    assert found.scores.means["by_rows"]["variance"] == pytest.approx(p.var())
    assert found.scores.means["by_weight"]["share"] == pytest.approx(np.average(y > 0, weights=weights))
    mean = np.average(p, weights=weights)
    (warning,) = [text for text in found.warnings() if "too high" in text]
    assert f"{100 * mean:.3g} %" in warning and "--bias 10" in warning and "--calibrate" in warning
    assert "a smaller lambda" in warning
    chosen = LambdaChoice(1e-1, [], len(y), 0.0, "best", searched="logistic")
    (warning,) = replace(found, lambda_choice=chosen).warnings()  # with --lambda, there is no search
    assert "lambda, or" not in warning and "--bias 10" in warning and "the search tries no leaves" in warning
    assert not replace(found, lambda_choice=chosen._replace(searched="rocarea")).warnings()
    better = trained(X, y, "logistic", ALONE, Settings(1e-6, 1e-6, solver="lbfgs"))
    assert not better.warnings() and better.scores.means["by_weight"]["mean"] == pytest.approx(np.mean(y > 0), rel=0.05)
    assert trained(X, y, "logistic-balanced", ALONE, Settings(1e-1, 1e-6, solver="lbfgs")).scores.means is None
    assert trained(X, y, "rocarea", ALONE, Settings(1e-1, 1e-6, solver="lbfgs")).scores.means is None
    with pytest.warns(ModelWarning, match="too high"):
        made = api.train((X, y), measure="logistic", lam=1e-1, solver="lbfgs")
    assert made.info["mean_probability"]["by_rows"]["n"] == 2000
    calibrated = api.train((X, y), measure="logistic", lam=1e-1, solver="lbfgs", calibrate="sigmoid")
    assert not calibrated.info["warnings"]
    assert calibrated.info["calibration"]["means"]["mean"] == pytest.approx(np.mean(y > 0), rel=0.1)


@pytest.mark.serial
def test_a_path_knows_the_mean_probability_too(tmp_path):
    X, y = data(200, positive=0.3)
    dump_svmlight_file(X, y, str(tmp_path / "rows.svm"), zero_based=False)
    path = (
        "path",
        "data",
        "--measure",
        "logistic",
        "--lambdas",
        "1e-2:1e-3",
        "--folds",
        "2",
        "--output",
        "out",
        "--quiet",
    )
    with contextlib.chdir(tmp_path):
        for words in (("shard", "rows.svm", "data"), path):
            args = cli.parse(words)
            args.run(args, ALONE)
        made = model.load("out/model.h5")
    p = made.probabilities(api.predict(made, X))
    found = made.info["mean_probability"]["by_rows"]
    assert [found[name] for name in ("mean", "positive", "n")] == pytest.approx([p.mean(), p[y > 0].mean(), 200])
