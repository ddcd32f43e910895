"""Thresholds and probabilities come from held-out scores, which are those of trainings on each fold's other rows."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest
from scipy import sparse

from distsms.base.communicator import Communicator
from distsms.base.errors import InputError
from distsms.base.measures import Condition, Measure
from distsms.base.scored import Scored
from distsms.metrics.operating_points import operating_point
from distsms.metrics.tied_scores import tied_scores
from distsms.models import decision_text
from distsms.optim.run import minimize
from distsms.optim.settings import Settings
from distsms.workflow.decisions import Decisions, HeldOut, check, decision_at, findings, held_out
from distsms.workflow.folds import make_folds
from distsms.workflow.path import PathRows, Problem
from distsms.workflow.requests import TrainRequest
from tests.support.problems import block, data, drawn_scores, local_part, objective, share

ALONE = Communicator()
LAM = 1e-1
PROBLEM = Problem("rocarea", [LAM], 3, 0, Settings(lam=LAM, epsilon=1e-6))
CONDITIONS = ("precision>=0.6", "recall>=0.7", "fpr<=0.1", "top=20%")


def whole(comm, held):
    """Return the scores, labels, weights and folds of all ranks, sorted by score."""
    rows = held.scored
    parts = [rows.scores, rows.labels, held.folds, *([] if rows.weights is None else [rows.weights])]
    arrays = [comm.allgather_rows(np.asarray(part, float), comm.allgather(len(part))) for part in parts]
    order = np.lexsort(arrays[::-1])
    return [array[order] for array in arrays]


@pytest.mark.parametrize("by", ["rows", "groups", "time"])
@pytest.mark.parametrize("bias", [None, 2.0])
def test_held_out_scores_are_those_of_trainings_without_the_fold(comm, by, bias):
    X, y = data(n=150)
    keys = np.arange(150) // 5 if by == "groups" else np.arange(150)
    keys = keys.astype(np.uint64 if by == "groups" else float)
    rows = PathRows(block(comm, X, y), comm, keys[share(comm, 150)])
    held = held_out(rows, replace(PROBLEM, folds_by=by, bias=bias), (0.5, 2.0))
    these = make_folds(by, keys, y, np.ones(150, bool), 3, 0, ALONE)
    scores, labels, folds = whole(comm, held)
    assert len(scores) == np.count_nonzero(these.number) and held.record["folds_by"] == by
    for fold in (1, 2, 3) if comm.is_root else ():
        own, out = these.training(fold), these.judged(fold)
        w = minimize(objective(X[own], y[own], ALONE), Settings(lam=LAM, epsilon=1e-6)).w
        expected = 0.5 + 2 * (np.sort(X[out] @ w) - np.mean(X[own] @ w)) / np.std(X[own] @ w)
        assert scores[folds == fold] == pytest.approx(expected, abs=0.05)
        assert np.count_nonzero(labels[folds == fold] > 0) == np.count_nonzero(y[out] > 0)


def test_ranks_that_share_the_folds_get_the_same(comm):
    X, y = data(n=150)
    everything = block(ALONE, X, y)
    shared = held_out(PathRows(everything, comm, share_folds=True), PROBLEM, (-1.0, 1.0))
    alone = held_out(PathRows(everything, ALONE), PROBLEM, (-1.0, 1.0))
    for got, expected in zip(whole(comm, shared), whole(ALONE, alone), strict=True):
        assert got == pytest.approx(expected, abs=1e-12)
    assert shared.record["not_proved"] == 0


def test_a_stopped_run_finds_nothing(comm):
    X, y = data(n=150)
    assert held_out(PathRows(block(comm, X, y), comm), PROBLEM, (0.0, 1.0), stop_wanted=lambda: True) is None


def drawn(comm, weighted, n=600):
    scores, labels = drawn_scores(n, 0.2, shift=2.0)
    weights = np.random.default_rng(0).exponential(size=n) if weighted else None
    folds = (1 + np.arange(n) % 3).astype(np.int16)
    parts = [None if array is None else local_part(array, comm) for array in (scores, labels, weights, folds)]
    record = {"folds": 3, "folds_by": "rows", "seed": 0, "seconds": 0.0, "not_proved": 0}
    return HeldOut(Scored(*parts[:2], comm, parts[2]), parts[3], record), (
        scores,
        labels,
        np.ones(n) if weights is None else weights,
    )


@pytest.mark.parametrize("weighted", [False, True])
@pytest.mark.parametrize("condition", CONDITIONS)
def test_a_decision_is_that_of_all_held_out_rows_by_brute_force(comm, condition, weighted):
    held, (scores, labels, weights) = drawn(comm, weighted)
    found = decision_at(Condition.parse(condition), held, comm)
    quantity, level = Condition.parse(condition)[:2]
    best = None
    for threshold in sorted(set(scores), reverse=True):
        called = scores >= threshold
        tp, fp = weights[called & (labels > 0)].sum(), weights[called & (labels < 0)].sum()
        of_pos, of_neg = weights[labels > 0].sum(), weights[labels < 0].sum()
        value = {"precision": tp / (tp + fp), "recall": tp / of_pos, "fpr": fp / of_neg}
        value["top"] = (tp + fp) / weights.sum()
        fulfilled = value[quantity] >= level if quantity in ("precision", "recall") else value[quantity] <= level
        if fulfilled and not (quantity == "recall" and best):
            best = threshold, value
    threshold, value = best
    assert found["threshold"] == threshold and found["estimate"] == pytest.approx(value[quantity])
    assert found["low"] <= found["estimate"] <= found["high"]
    names = {"precision": "precision", "tpr": "recall", "fpr": "fpr", "called": "top"}
    assert {name: found[name] for name in names} == pytest.approx({key: value[name] for key, name in names.items()})
    assert found["positive_share"] == pytest.approx(weights[labels > 0].sum() / weights.sum())
    assert found["n"] == 600 and ("by_rows" in found) == weighted
    if weighted:  # the same rates, with every row counted once
        called, positive = scores >= threshold, labels > 0
        rates = {"called": np.mean(called), "positive_share": np.mean(positive), "precision": np.mean(positive[called])}
        rates |= {"tpr": np.mean(called[positive]), "fpr": np.mean(called[~positive]), "effective": 600}
        assert found["by_rows"] == pytest.approx(rates)
    assert any(condition in line for line in decision_text.decision(found))


def test_a_condition_that_nothing_fulfils_has_no_threshold(comm):
    held, _ = drawn(comm, False)
    worst = held._replace(scored=replace(held.scored, scores=-1.0 * (held.scored.labels > 0)))
    found = findings(Condition.parse("precision>=0.9"), None, worst, comm)
    assert found["decision"]["threshold"] is None and "threshold" not in found
    assert "no threshold of the 600 held-out rows has precision>=0.9" in found["decision"]["why"]
    assert "training rows" in decision_text.describe(found)[0]


@pytest.mark.parametrize("weighted", [False, True])
@pytest.mark.parametrize("method", ["sigmoid", "isotonic"])
def test_what_judges_a_calibration_has_not_seen_the_rows(comm, method, weighted):
    from sklearn.metrics import brier_score_loss

    from distsms.metrics import calibration

    held, (scores, labels, weights) = drawn(comm, weighted)
    found = findings(None, method, held, comm)["calibration"]
    folds, after = 1 + np.arange(600) % 3, np.empty(600)
    for fold in (1, 2, 3):
        own = folds == fold
        curve = calibration.fit(method, Scored(scores[~own], labels[~own], ALONE, weights[~own] if weighted else None))
        after[own] = calibration.probabilities(curve, scores[own])
    assert found["brier"]["after"] == pytest.approx(brier_score_loss(labels > 0, after, sample_weight=weights))
    before = 1 / (1 + np.exp(-scores))
    assert found["brier"]["before"] == pytest.approx(brier_score_loss(labels > 0, before, sample_weight=weights))
    assert found["brier"]["after"] < min(found["brier"]["before"], found["brier"]["constant"])
    assert found["log_loss"]["after"] < min(found["log_loss"]["before"], found["log_loss"]["constant"])
    assert sum(part["n"] for part in found["bins"]) == 600
    assert "Brier score" in decision_text.describe({"calibration": found})[1]


def test_what_cannot_be_asked_for_is_refused_in_words():
    for wrong, told in (
        ({"at": "top=100"}, "top=0.5%"),
        ({"at": "precision>9"}, "no condition"),
        ({"calibrate": "platt"}, "sigmoid and isotonic"),
        ({"at": "recall>=0.9", "folds": 0}, "at least 2 folds"),
    ):
        with pytest.raises(InputError, match=told):
            check(**({"at": None, "calibrate": None, "folds": 5} | wrong))
    assert Measure.parse("precision@10").on_part(0.8).k == 8 and Measure.parse("prbep").on_part(0.8).name == "prbep"


@pytest.mark.parametrize("mixed", [1, 2])
def test_folds_of_which_one_has_all_groups_of_both_classes_are_refused_before_the_training(comm, mixed):
    """The other models would do, and that of this fold would have no pair of rows to compare."""
    y = np.array([1, -1] * mixed + [1] * 5 + [-1] * 5, np.int8)
    groups = np.array([*np.arange(mixed).repeat(2), *range(mixed, mixed + 10)], np.uint64)
    rows = replace(block(comm, sparse.csr_matrix(np.ones((len(y), 1))), y), groups=groups[share(comm, len(y))])
    decisions = Decisions(None, TrainRequest(None, measure=Measure.parse("gauc@each")))
    if mixed > 1:
        assert decisions.make_folds(rows, comm).number.all()
    else:
        with pytest.raises(InputError, match="all groups with rows of both classes are in one of them"):
            decisions.make_folds(rows, comm)


def test_folds_by_time_have_the_origin_of_the_model_of_all_rows():
    """The columns have means, so that the mean score of a model depends on its w. A share stays that share."""
    rng, shares = np.random.default_rng(3), []
    for _ in range(5):
        y = np.where(rng.random(1000) < 0.2, 1, -1).astype(np.int8)
        X = rng.normal(size=(1000, 5)) + 5 + 0.5 * (y > 0)[:, None]
        rows, settings = sparse.csr_matrix(X), Settings(lam=LAM, epsilon=1e-4)
        w = minimize(objective(rows, y, ALONE), settings).w
        problem = replace(PROBLEM, folds_by="time", folds=4, settings=settings)
        in_time = PathRows(block(ALONE, rows, y), ALONE, np.arange(1000.0))
        held = held_out(in_time, problem, (np.mean(X @ w), np.std(X @ w)))
        threshold = decision_at(Condition.parse("top=20%"), held, ALONE)["threshold"]
        shares.append(np.mean(X @ w >= threshold))
    assert np.max(np.abs(np.array(shares) - 0.2)) < 0.04


def test_new_rows_keep_the_promise_of_the_folds_and_not_that_of_the_training_rows():
    """With many columns, training rows promise too much; a threshold from folds reaches about what it says."""
    rng = np.random.default_rng(0)
    level, reached = Condition.parse("precision>=0.8"), {"folds": [], "training": []}

    def drawn_rows(n):
        y = np.where(rng.random(n) < 0.15, 1, -1).astype(np.int8)
        return rng.normal(size=(n, 60)) + 0.9 * (np.arange(60) < 6) * (y > 0)[:, None], y

    for _ in range(6):
        (X, y), (new, labels) = drawn_rows(500), drawn_rows(20_000)
        settings = Settings(lam=1e-2, epsilon=1e-3)
        rows = sparse.csr_matrix(X)
        w = minimize(objective(rows, y, ALONE), settings).w
        problem = replace(PROBLEM, lambdas=[1e-2], folds=5, settings=settings)
        held = held_out(PathRows(block(ALONE, rows, y), ALONE), problem, (np.mean(X @ w), np.std(X @ w)))
        for name, scores, of in (("folds", held.scored.scores, held.scored.labels), ("training", X @ w, y)):
            threshold = operating_point(level, tied_scores(Scored(scores, of, ALONE)), ALONE).threshold
            reached[name].append(np.mean(labels[new @ w >= threshold] > 0))
    assert np.mean(reached["folds"]) > 0.77
    assert np.mean(reached["training"]) < 0.75
