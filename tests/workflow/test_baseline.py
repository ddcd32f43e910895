"""The methods of a baseline: fitted as documented, on the folds of a path, evaluated without bias, and resumable."""

from __future__ import annotations

import json
import math
from operator import attrgetter

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from scipy import stats
from sklearn.metrics import roc_auc_score

from distsms.base.communicator import Communicator
from distsms.base.errors import InputError
from distsms.base.measures import display_name
from distsms.base.scored import Scored
from distsms.metrics import bootstrap, confidence, ranking
from distsms.metrics.confidence import METHOD
from distsms.metrics.summary import chooser_value
from distsms.optim.settings import Settings
from distsms.workflow import baseline_text
from distsms.workflow.baseline_fits import BaselineStore, Fit, FoldedRows, first_round, fit_alone, second_round
from distsms.workflow.competitors import METHODS, OURS, Fitted, Task, TrialResult
from distsms.workflow.folds import Folds, deal_rows, make_folds
from distsms.workflow.method_results import (
    BEST,
    BEST_FEATURES,
    Evaluator,
    MethodResult,
    _find_ends,
    choose,
    complete,
)
from distsms.workflow.path import Problem
from tests.support.methods import fits_alone  # noqa: F401 - a fixture
from tests.support.problems import data

pytestmark = [pytest.mark.serial, pytest.mark.usefixtures("fits_alone")]
ALONE = Communicator()
SETTINGS = Settings(lam=1.0, epsilon=1e-4)


def problem(measure="rocarea"):
    return Problem(measure, [], 3, 0, SETTINGS)


def evaluate(store, fits, rows, by="rocarea"):
    return Evaluator(store, fits, rows).methods(by)


def rows(n=150, folds=3, **more):
    X, y = data(n, **more)
    counted = np.ones(n, bool)
    return FoldedRows(X, y, Folds(deal_rows(y, counted, folds, 0, ALONE), counted))


@pytest.fixture
def folder(tmp_path):
    found = BaselineStore(tmp_path / "out")
    found.path.mkdir()
    found.open({"measure": "rocarea"})
    return found


def test_within_groups_every_method_is_judged_by_gauc(folder):
    """An oracle: scikit-learn's ROCArea of each group of a fold, with its number of pairs as its weight."""
    made = rows(240)
    made = made._replace(groups=(np.arange(240) // 5).astype(np.uint64))
    methods, lambdas = ["distsms", "logistic"], [1e-1, 1e-2]
    fit_alone(made, first_round(methods, lambdas, 3, 0), problem("gauc@pairs"), folder.keep)
    found = {result.method: result for result in evaluate(folder, folder.fits(), made, "gauc@pairs")}

    def gauc(fit):
        inside, total, pairs = made.folds.number == fit.fold, 0.0, 0
        y, scores, groups = made.y[inside], folder.scores(fit), made.groups[inside]
        for group in np.unique(groups):
            own = y[groups == group]
            if m := np.sum(own > 0) * np.sum(own < 0):
                total, pairs = total + m * roc_auc_score(own, scores[groups == group]), pairs + m
        return total / pairs

    for method in methods:
        chosen = choose(complete(folder.fits(), method, 3), gauc)
        assert [fit.setting for fit in chosen] == found[method].settings
        assert found[method].intervals["gauc@pairs"].value == pytest.approx(np.mean([*map(gauc, chosen)]))
    ahead = found["logistic"].differences["gauc@pairs"]
    values = [found[method].intervals["gauc@pairs"].value for method in methods]
    assert ahead.value == pytest.approx(values[0] - values[1]) and ahead.low < ahead.value < ahead.high
    assert Evaluator(folder, folder.fits(), made).head("gauc@pairs") == {}
    texts = baseline_text.sentences(list(found.values()), "gauc@pairs")
    assert any("points of GAUC (pairs)" in text for text in texts)


values = st.lists(st.lists(st.integers(0, 4), min_size=3, max_size=3), min_size=1, max_size=4)


def test_a_search_uses_the_training_rows_alone_and_fits_its_best_once(monkeypatch, folder):
    """The search takes the best setting on inner rows, even if it is worst on the fold; a stopped search continues."""
    these, seen, grown = rows(), [], []

    def search(task, number):
        seen.append(len(task.y))
        return TrialResult([0.5, 0.9, 0.9][int(number)], 10 + int(number))

    def fit(task, number):
        grown.append((number, task.rounds))
        return Fitted(lambda X: np.arange(X.shape[0], dtype=float) if number else these.y[: X.shape[0]].astype(float))

    monkeypatch.setitem(METHODS, "trees", METHODS["trees"]._replace(search=search, fit=fit))
    tries = first_round(["trees"], [], 3, 3)
    assert not fit_alone(these, tries, problem(), folder.keep)
    assert sorted(seen) == sorted(3 * [int(np.sum(these.folds.number != fold)) for fold in (1, 2, 3)]) and not grown
    assert {one[:3] for one in folder.done()} == {one[:3] for one in tries} and not second_round(folder.trials(), 4)
    assert not evaluate(folder, folder.fits(), these)  # no table of what is only tried
    wanted = second_round(folder.trials(), 3)
    assert [(*one[:3], one.best.setting, one.best.rounds) for one in wanted] == [
        ("trees", 3.0, f, 1.0, 11) for f in (1, 2, 3)
    ]
    assert [one.best.setting for one in second_round(folder.trials(), 1)] == [0.0] * 3  # a smaller budget
    fit_alone(these, second_round(folder.trials(), 1), problem(), folder.keep)
    fit_alone(these, wanted, problem(), folder.keep)
    assert grown == [(0.0, 10)] * 3 + [(1.0, 11)] * 3 and {one[:3] for one in folder.done()} == {
        one[:3] for one in tries
    }
    (found,) = evaluate(folder, folder.fits(), these)
    assert (
        found.settings == [3.0] * 3 and found.intervals["rocarea"].value < 0.9
    )  # of the larger one, though it did worse
    assert found.seconds >= sum(one.seconds for one in folder.trials())
    assert "best of 3" in baseline_text.table([found], "rocarea")


@given(values, st.integers(0, 2), st.integers(0, 4))
def test_no_fold_helps_to_choose_its_own_setting(table, fold, other):
    def choices():
        fits = {
            (0.1**k, f + 1): Fit("svm", 0.1**k, f + 1, 1.0, value / 4, math.nan, "")
            for k, line in enumerate(table)
            for f, value in enumerate(line)
        }
        del fits[min(fits)]  # a setting that one fold lacks is no choice
        fits |= {(7.0, f): Fit("svm", 7.0, f, 1.0, 0.1, 0.0, "") for f in (1, 2, 3)}
        return [one.setting for one in choose(complete([*fits.values()], "svm", 3), attrgetter("rocarea"))]

    before = choices()
    others = [sum(line) - line[fold] for line in table[:-1]]
    best = max([*others, 0.8])  # 7.0 has 0.1 everywhere; values are quarters
    assert before[fold] == (7.0 if best == 0.8 else 0.1 ** others.index(best))
    for line in table:
        line[fold] = other
    assert choices()[fold] == before[fold]


@given(st.data())
def test_the_best_other_is_chosen_on_folds_that_do_not_judge_it(data):
    """Compare with brute force over methods and settings; the values of a fold do not change its own choice."""
    candidates = [(name, lam) for name in ("logistic", "svm") for lam in (1.0, 0.1)]
    table = {one: data.draw(st.lists(st.integers(0, 4), min_size=3, max_size=3)) for one in candidates}

    def choices():
        these = {
            (one, fold + 1): Fit(one[0], one[1], fold + 1, 1.0, 0.0, value / 4, "")
            for one, line in table.items()
            for fold, value in enumerate(line)
        }
        return [(fit.method, fit.setting) for fit in choose(these.values(), attrgetter("prbep"))]

    before, fold = choices(), data.draw(st.integers(0, 2))
    others = {one: sum(line) - line[fold] for one, line in table.items()}
    assert before[fold] == max(others, key=others.get)  # of several the first
    for line in table.values():
        line[fold] = data.draw(st.integers(0, 4))
    assert choices()[fold] == before[fold]


def test_standings_are_means_over_folds_and_paired(folder):
    these = rows()
    wanted = first_round([OURS, "logistic"], [1e-1, 1e-2], 3, 4)
    assert len(wanted) == 12
    assert not fit_alone(these, wanted, problem(), folder.keep)
    fits = folder.fits()
    ours, other, best = evaluate(folder, fits, these)
    assert (ours.method, other.method, ours.differences) == (OURS, "logistic", {})
    assert best == other._replace(
        method=BEST, at_end=False, beyond="", seconds=0.0, notes=f"logistic ({METHODS['logistic'].about}) in 3"
    )
    by = {(one.method, one.setting, one.fold): one for one in fits}
    for one in (ours, other):
        own = [by[one.method, setting, f] for f, setting in enumerate(one.settings, 1)]
        areas = [roc_auc_score(these.y[these.folds.number == fit.fold], folder.scores(fit)) for fit in own]
        assert one.intervals["rocarea"].value == pytest.approx(np.mean(areas))
        assert one.intervals["prbep"].value == pytest.approx(np.mean([fit.prbep for fit in own]))
        assert one.intervals["rocarea"].low < one.intervals["rocarea"].value < one.intervals["rocarea"].high
        assert one.seconds == pytest.approx(sum(fit.seconds for fit in fits if fit.method == one.method))
    for name, less in other.differences.items():
        assert less.value == pytest.approx(ours.intervals[name].value - other.intervals[name].value)
    back = MethodResult.from_json(json.loads(json.dumps(other.as_json())), "here")
    assert back.differences["rocarea"] == other.differences["rocarea"] and back.settings == other.settings
    # A method without fits is not in the table, and neither is one that lacks a fold in all its settings.
    assert [s.method for s in evaluate(folder, [f for f in fits if f.method == OURS], these)] == [OURS]
    partly = [f for f in fits if f.method == OURS or f.fold < 3]
    assert [s.method for s in evaluate(folder, partly, these)] == [OURS]


@pytest.mark.parametrize(
    ("curve", "chosen", "found"),
    [
        ((0.5, 0.6, 0.7), [0.01] * 3, (True, "below 0.01")),
        ((0.7, 0.6, 0.5), [0.1, 1.0, 0.1], (True, "above 1")),
        ((0.5, 0.7, 0.6), [0.1] * 3, (False, "")),
        ((0.5, 0.7, 0.7), [0.01] * 3, (True, "")),  # flat
        ((0.5,), [1.0] * 3, (False, "")),  # the only lambda was chosen by the user
    ],
)
def test_where_a_better_lambda_may_be_beyond_the_grid(curve, chosen, found):
    fits = [
        Fit("svm", lam, fold, 1.0, value + 0.01 * fold, 0.0, "")
        for lam, value in zip((1.0, 0.1, 0.01), curve, strict=False)
        for fold in (1, 2, 3)
    ]
    assert _find_ends(fits, chosen, attrgetter("rocarea")) == found


def test_every_method_is_tuned_for_the_measure_of_the_head(folder):
    """For each of these measures, settings, means and differences are those that choosing by this measure gives."""
    these = rows(n=240)
    fit_alone(these, first_round([OURS, "logistic"], [1.0, 1e-1, 1e-3], 3, 4), problem(), folder.keep)
    fits = folder.fits()
    found = Evaluator(folder, fits, these).head("rocarea", "tpr@fpr=0.1")
    assert list(found) == ["recall@precision=0.9", "pauc@0.05", "tpr@fpr=0.1"]  # folds are too small for FPR 1 %

    def value(fit, name):
        return chooser_value(name, Scored(folder.scores(fit), these.y[these.folds.number == fit.fold], ALONE), math.nan)

    for name, (ours, other, best) in found.items():
        for one in (ours, other):
            chosen = choose(complete(fits, one.method, 3), lambda fit, name=name: value(fit, name))
            assert one.settings == [fit.setting for fit in chosen]
            assert one.intervals[name].value == pytest.approx(np.mean([value(fit, name) for fit in chosen]))
        ahead = ours.intervals[name].value - other.intervals[name].value
        assert other.differences[name].value == best.differences[name].value == pytest.approx(ahead)
        assert best.differences[name].low <= best.differences[name].high and best.differences[name].of == METHOD
    assert "partial AUC to FPR 5 %" in baseline_text.head_table(found)
    for name, results in found.items():
        (sentence,) = (one for one in baseline_text.head_sentences(found) if display_name(name) in one)
        side = "behind" if results[-1].differences[name].value < 0 else "ahead of"
        assert side in sentence or "not decided" in sentence


def test_rows_that_are_never_judged(folder):
    """By time, each fit is trained on the earlier rows only; the first block is in no score and no interval."""
    X, y = data(160)
    these = FoldedRows(X, y, make_folds("time", np.arange(160), y, np.ones(160, bool), 3, 0, ALONE))
    fit_alone(these, first_round([OURS, "logistic"], [1e-1], 3, 4), problem(), folder.keep)
    for one in evaluate(folder, folder.fits(), these):
        if one.method == BEST:
            continue
        own = sorted((fit for fit in folder.fits() if fit.method == one.method), key=lambda fit: fit.fold)
        for fit in own:
            judged, scores = slice(40 * fit.fold, 40 * fit.fold + 40), folder.scores(fit)
            assert fit.rocarea == pytest.approx(roc_auc_score(y[judged], scores))
            before = slice(0, 40 * fit.fold)
            again = METHODS[one.method].fit(Task(X[before], y[before], "rocarea", SETTINGS), 1e-1).score(X[judged])
            assert scores == pytest.approx(again, abs=1e-6)
        assert one.intervals["rocarea"].value == pytest.approx(np.mean([fit.rocarea for fit in own]))
        assert one.intervals["rocarea"].low < one.intervals["rocarea"].value < one.intervals["rocarea"].high


def test_the_best_other_has_on_each_fold_the_scores_of_its_own_choice(folder):
    these = rows(n=240)
    fit_alone(these, first_round([OURS, "logistic", "svm-balanced"], [1.0, 1e-3], 3, 4), problem(), folder.keep)
    fits = folder.fits()
    of = {(one.method, one.setting, one.fold): one.rocarea for one in fits}
    others = {key[:2] for key in of if key[0] != OURS}
    values = []
    for fold in (1, 2, 3):
        name, setting = max(others, key=lambda one: sum(of[(*one, f)] for f in (1, 2, 3) if f != fold))
        values.append(of[name, setting, fold])
    found = {one.method: one for one in evaluate(folder, fits, these)}
    assert found[BEST].intervals["rocarea"].value == pytest.approx(np.mean(values))
    assert list(found) == [OURS, "logistic", "svm-balanced", BEST]
    words = baseline_text.sentences([*found.values()], "rocarea")
    assert found[BEST].notes in words[0] and BEST in baseline_text.table([*found.values()], "rocarea")


def test_features_are_chosen_by_the_other_folds_and_compared_on_the_same(folder):
    these, names = rows(n=240), [OURS, "logistic", "distsms-leaves", "logistic-leaves"]
    fit_alone(these, first_round(names, [1e-1], 3, 4), problem(), folder.keep)
    fits = folder.fits()
    of = {(one.method, one.fold): one.rocarea for one in fits}
    values = []
    for fold in (1, 2, 3):
        best = max(names[::2], key=lambda one: sum(of[one, f] for f in (1, 2, 3) if f != fold))
        values.append(of[best, fold])
    found = {one.method: one for one in evaluate(folder, fits, these)}
    assert list(found) == [*names, BEST, BEST_FEATURES]
    assert found[BEST_FEATURES].intervals["rocarea"].value == pytest.approx(np.mean(values))
    assert f"logistic ({METHODS['logistic'].about}) in 3" == found[BEST].notes  # not on leaves
    means = {one: np.mean([of[one, fold] for fold in (1, 2, 3)]) for one in names}
    beside = found["logistic-leaves"].with_features["rocarea"]
    assert beside.value == pytest.approx(means["distsms-leaves"] - means["logistic-leaves"])
    assert beside.low < beside.value < beside.high
    assert [one for one in found if found[one].with_features] == ["logistic-leaves"]
    again = MethodResult.from_json(json.loads(json.dumps(found["logistic-leaves"].as_json())), "here")
    assert again.with_features["rocarea"].value == beside.value
    words = " ".join(baseline_text.sentences([*found.values()], "rocarea"))
    side = "behind" if beside.value < 0 else "ahead of"
    assert f"On leaves, distsms is {side} logistic-leaves, by {100 * abs(beside.value):.3f} points" in words
    gain = np.mean(values) - means[OURS]
    side = "behind" if gain < 0 else "ahead of"
    assert f"{side} distsms on the original columns, by {100 * abs(gain):.3f} points" in words
    trees = found["logistic-leaves"]._replace(method="trees", settings=[20.0] * 3)
    said = " ".join(baseline_text.sentences([*found.values(), trees], "rocarea"))
    assert f"With the best features, distsms is {'behind' if beside.value < 0 else 'ahead of'} these trees" in said


def test_intervals_of_folds_are_enlarged_for_new_training_rows(folder):
    """The limits of PRBEP by hand: the replicates, with 1 + k / (k - 1) times their variance about the value."""
    these = rows(n=600)
    fit_alone(these, first_round([OURS], [1e-1], 3, 4), problem("prbep"), folder.keep)
    (ours,) = evaluate(folder, folder.fits(), these, "prbep")
    drawn, shares = [], []
    for fit in sorted(folder.fits(), key=lambda one: one.fold):
        at = np.flatnonzero(these.folds.number == fit.fold)
        scores, y = folder.scores(fit), these.y[at]
        drawn.append(bootstrap.prbep_replicates(Scored(scores, y, ALONE), bootstrap.Draws(at, 1000)))
        shares.append(
            confidence.prbep_estimate(
                ranking.top_k_shares(Scored(scores, y, ALONE), int(np.sum(y > 0))), Scored(y, y, ALONE)
            )
        )
    interval, replicates = ours.intervals["prbep"], np.mean(drawn, axis=0)
    ends = [np.quantile(replicates, q, method=method) for q, method in ((0.025, "lower"), (0.975, "higher"))]
    far = [interval.value + math.sqrt(2.5) * (end - interval.value) for end in ends]
    low, high = confidence.limits(confidence.pool_folds(shares), 0.95)
    assert (interval.low, interval.high) == pytest.approx((min(low, far[0]), max(high, far[1])))
    assert interval.of == confidence.METHOD


def test_fits_are_kept_and_damage_is_told(folder):
    these, wanted = rows(), first_round([OURS], [1e-1, 1e-2], 3, 4)
    asked = iter([False, False, True])
    assert fit_alone(these, wanted, problem(), folder.keep, lambda: next(asked))
    assert {(one.setting, one.fold) for one in folder.fits()} == {(0.1, 1), (0.1, 2)}
    path = folder.path / "fits" / "distsms_0.1_fold1.npy"
    whole = path.read_bytes()
    path.write_bytes(whole[:20])
    with pytest.raises(InputError, match="fitted again"):
        folder.scores(folder.fits()[0] if folder.fits()[0].fold == 1 else folder.fits()[1])
    path.with_suffix(".json").write_text("{}")
    with pytest.raises(InputError, match=r"distsms_0\.1_fold1\.json"):
        folder.fits()


def test_scores_that_are_not_finite_are_refused(monkeypatch, folder):
    these = rows()
    broken = METHODS[OURS]._replace(fit=lambda task, lam: type("F", (), {"score": lambda X: X @ np.full(12, np.nan)}))
    monkeypatch.setitem(METHODS, OURS, broken)
    with pytest.raises(InputError, match="not finite"):
        fit_alone(these, first_round([OURS], [1e-1], 3, 4), problem(), folder.keep)


def test_too_few_positives_give_no_verdict(folder):
    these = rows(n=100)
    few = np.flatnonzero(these.y > 0)[9:]
    X, y = these.X, these.y.copy()
    y[few] = -1
    counted = np.ones(100, bool)
    these = FoldedRows(X, y, Folds(deal_rows(y, counted, 3, 0, ALONE), counted))
    fit_alone(these, first_round([OURS, "svm"], [1e-1], 3, 4), problem(), folder.keep)
    found = evaluate(folder, folder.fits(), these)
    (first, *_) = baseline_text.sentences(found, "rocarea")
    assert first.startswith("There is no verdict on whether direct optimization is ahead of the best of the other")
    assert ": 9 positive rows are too few" in first
    assert all(one.intervals[name].low < one.intervals[name].high for one in found for name in one.intervals)


def test_the_measure_that_selects_is_shown_and_compared(folder):
    """Oracle: precision@5 of each fold by sorting, and SciPy's t interval with the enlarged variance."""
    these, select = rows(n=240, folds=4), "precision@5"
    fit_alone(these, first_round([OURS, "logistic"], [1e-1], 4, 4), problem(), folder.keep)
    ours, other, best = evaluate(folder, folder.fits(), these, select)
    values = {}
    for fit in folder.fits():
        order = np.argsort(-folder.scores(fit), kind="stable")[:5]
        values[fit.method, fit.fold] = np.mean(these.y[these.folds.number == fit.fold][order] > 0)
    precision = {method: np.array([values[method, fold] for fold in range(1, 5)]) for method in (OURS, "logistic")}
    for result in (ours, other):
        assert result.intervals[select].value == pytest.approx(precision[result.method].mean())
    ahead = precision[OURS] - precision["logistic"]
    half = stats.t.ppf(0.975, 3) * ahead.std(ddof=1) * np.sqrt(1 / 4 + 1 / 3)
    for result in (other, best):
        found = result.differences[select]
        assert (found.value, found.low, found.high) == pytest.approx(
            (ahead.mean(), ahead.mean() - half, ahead.mean() + half)
        )
        assert set(result.intervals) == {"rocarea", "prbep", select}
    assert f"{select} [%]" in baseline_text.table([ours, other, best], select)
    assert MethodResult.from_json(other.as_json(), "there").differences[select].high == other.differences[select].high
    first, known, *more = baseline_text.sentences([ours, other, best], "rocarea", select)
    assert "points of precision@5 (interval" in first and "What distsms trains for ROCArea is itself" in known
    assert more[0].startswith("By ROCArea, ") and more[1].startswith("By PRBEP, ")
