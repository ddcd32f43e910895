"""The obvious alternatives: fitted as said, on a path's folds, measured and told apart honestly; nothing done twice."""

from __future__ import annotations

import json
import math
import sys

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from scipy import sparse
from sklearn.metrics import roc_auc_score

from distsms import baselinewords, bootstrap, intervals, measures, shards
from distsms.baseline import Fit, Folder, Rows, Standing, chosen, complete, read_standing, run, standings, units
from distsms.comm import Communicator
from distsms.competitors import METHODS, OURS, Task, require
from distsms.errors import InputError
from distsms.folds import Folds, deal, dealt
from distsms.intervals import Interval
from distsms.settings import Settings
from tests import program
from tests.problems import data
from tests.test_intervals import error_by_pairs

pytestmark = pytest.mark.serial
ALONE = Communicator()
SETTINGS = Settings(lam=1.0, epsilon=1e-4)


def rows(n=150, folds=3, **more):
    X, y = data(n, **more)
    counted = np.ones(n, bool)
    return Rows(X, y, Folds(deal(y, counted, folds, 0, ALONE), counted))


@pytest.fixture
def folder(tmp_path):
    found = Folder(tmp_path / "out")
    found.path.mkdir()
    found.open({"measure": "rocarea"})
    return found


@pytest.mark.parametrize("method", ["logistic", "logistic-balanced", "svm", "svm-balanced"])
@pytest.mark.parametrize("lam", [1e-1, 1e-3])
def test_lambda_means_the_same_to_others(method, lam):
    """At their w the gradient of lambda/2 ||w||^2 and the weighted mean of losses is 0, but for their tolerance."""
    X, y = data(300)
    fitted = METHODS[method].fit(Task(X, y, "rocarea", SETTINGS), lam)
    assert not fitted.note
    s = fitted.score(X)
    w = sparse.linalg.lsqr(sparse.hstack([X, np.ones((300, 1))]), s, atol=1e-14, btol=1e-14)[0][:-1]
    slope = -y / (1 + np.exp(y * s)) if method.startswith("logistic") else -2 * y * np.maximum(1 - y * s, 0)
    weight = np.where(y > 0, 150 / np.sum(y > 0), 150 / np.sum(y < 0)) if "balanced" in method else np.ones(300)
    assert (
        np.abs(lam * w + X.T @ (weight * slope) / 300).max() < 1e-3 * np.abs(X.T @ (weight * slope) / 300).sum() + 1e-4
    )


def test_ours_is_proved_and_trees_see_what_no_plane_can():
    rng = np.random.default_rng(0)
    X = rng.normal(size=(600, 2))
    y = np.where(X[:, 0] * X[:, 1] > 0, 1, -1).astype(np.int8)
    task = Task(X, y, "rocarea", SETTINGS, np.arange(600) % 5 == 0)
    ours = METHODS[OURS].fit(task, 1e-2)
    assert not ours.note
    pytest.importorskip("xgboost")
    trees = METHODS["trees"].fit(task, 3.0)
    assert measures.rocarea(trees.score(X), y, ALONE) > 0.95 > 0.7 > measures.rocarea(ours.score(X), y, ALONE)
    one = np.where(np.arange(600) == 5, 1, -1).astype(np.int8)  # no rows to watch the rounds by
    assert np.isfinite(METHODS["trees"].fit(Task(sparse.csr_matrix(X), one, "prbep", SETTINGS), 3.0).score(X)).all()


values = st.lists(st.lists(st.integers(0, 4), min_size=3, max_size=3), min_size=1, max_size=4)


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
        return chosen(complete([*fits.values()], "svm", 3), "rocarea")

    before = choices()
    others = [sum(line) - line[fold] for line in table[:-1]]
    best = max([*others, 0.8])  # 7.0 has 0.1 everywhere; values are quarters
    assert before[fold] == (7.0 if best == 0.8 else 0.1 ** others.index(best))
    for line in table:
        line[fold] = other
    assert choices()[fold] == before[fold]


@given(st.integers(0, 20))
def test_the_mean_of_folds_has_the_error_of_independent_parts(seed):
    rng, found, errors, areas = np.random.default_rng(seed), [], [], []
    for n in (9, 14, 11):
        y = np.where(np.arange(n) % 3, -1, 1).astype(np.int8)
        s = rng.integers(0, 5, n).astype(float)
        found.append(intervals.delong(measures.placements(s, y, ALONE), y, ALONE))
        errors.append(error_by_pairs(y, s))
        areas.append(roc_auc_score(y, s))
    value, error, why = intervals.mean_of_folds(found)
    assert value == pytest.approx(np.mean(areas)) and not why
    assert error == pytest.approx(math.sqrt(sum(one**2 for one in errors)) / 3)
    assert intervals.mean_of_folds([*found, (0.5, math.nan, "too few")])[2] == "too few"


def test_standings_are_means_over_folds_and_paired(folder):
    these = rows()
    wanted = units([OURS, "logistic"], [1e-1, 1e-2], 3)
    assert len(wanted) == 12
    assert not run(these, wanted, "rocarea", SETTINGS, folder.keep)
    fits = folder.fits()
    ours, other = standings(folder, fits, these, "rocarea")
    assert (ours.method, other.method, ours.less) == (OURS, "logistic", {})
    by = {(one.method, one.setting, one.fold): one for one in fits}
    for one in (ours, other):
        own = [by[one.method, setting, f] for f, setting in enumerate(one.chosen, 1)]
        areas = [roc_auc_score(these.y[these.fold == fit.fold], folder.scores(fit)) for fit in own]
        assert one.sure["rocarea"].value == pytest.approx(np.mean(areas))
        assert one.sure["prbep"].value == pytest.approx(np.mean([fit.prbep for fit in own]))
        assert one.sure["rocarea"].low < one.sure["rocarea"].value < one.sure["rocarea"].high
        assert one.seconds == pytest.approx(sum(fit.seconds for fit in fits if fit.method == one.method))
    for name, less in other.less.items():
        assert less.value == pytest.approx(ours.sure[name].value - other.sure[name].value)
    back = read_standing(json.loads(json.dumps(other.as_json())), "here")
    assert back.less["rocarea"] == other.less["rocarea"] and back.chosen == other.chosen
    # A method that is nowhere finished has no place, one that lacks a fold of all its settings neither.
    assert [s.method for s in standings(folder, [f for f in fits if f.method == OURS], these, "rocarea")] == [OURS]
    partly = [f for f in fits if f.method == OURS or f.fold < 3]
    assert [s.method for s in standings(folder, partly, these, "rocarea")] == [OURS]


def test_rows_that_are_never_judged(folder):
    """By time, each fit is trained on what comes before; the first block is in no score and no interval."""
    X, y = data(160)
    these = Rows(X, y, dealt("time", np.arange(160), y, np.ones(160, bool), 3, 0, ALONE))
    run(these, units([OURS, "logistic"], [1e-1], 3), "rocarea", SETTINGS, folder.keep)
    for one in standings(folder, folder.fits(), these, "rocarea"):
        own = sorted((fit for fit in folder.fits() if fit.method == one.method), key=lambda fit: fit.fold)
        for fit in own:
            judged, scores = slice(40 * fit.fold, 40 * fit.fold + 40), folder.scores(fit)
            assert fit.rocarea == pytest.approx(roc_auc_score(y[judged], scores))
            before = slice(0, 40 * fit.fold)
            again = METHODS[one.method].fit(Task(X[before], y[before], "rocarea", SETTINGS), 1e-1).score(X[judged])
            assert scores == pytest.approx(again, abs=1e-6)
        assert one.sure["rocarea"].value == pytest.approx(np.mean([fit.rocarea for fit in own]))
        assert one.sure["rocarea"].low < one.sure["rocarea"].value < one.sure["rocarea"].high


def test_replicates_of_folds_are_those_of_their_rows(folder):
    these = rows()
    run(these, units([OURS], [1e-1], 3), "prbep", SETTINGS, folder.keep)
    (ours,) = standings(folder, folder.fits(), these, "prbep")
    drawn = []
    for fit in sorted(folder.fits(), key=lambda one: one.fold):
        at = np.flatnonzero(these.fold == fit.fold)
        drawn.append(bootstrap.prbep(folder.scores(fit), these.y[at], at, 1000, 0, ALONE))
    assert ours.sure["prbep"].low == pytest.approx(np.nanquantile(np.mean(drawn, axis=0), 0.025))


def test_fits_are_kept_and_damage_is_told(folder):
    these, wanted = rows(), units([OURS], [1e-1, 1e-2], 3)
    asked = iter([False, False, True])
    assert run(these, wanted, "rocarea", SETTINGS, folder.keep, lambda: next(asked))
    assert {(one.setting, one.fold) for one in folder.fits()} == {(0.1, 1), (0.1, 2)}
    path = folder.path / "fits" / "distsms_0.1_fold1.npy"
    whole = path.read_bytes()
    path.write_bytes(whole[:20])
    with pytest.raises(InputError, match="fitted anew"):
        folder.scores(folder.fits()[0] if folder.fits()[0].fold == 1 else folder.fits()[1])
    path.with_suffix(".json").write_text("{}")
    with pytest.raises(InputError, match=r"distsms_0\.1_fold1\.json"):
        folder.fits()


def test_scores_that_are_not_finite_are_refused(monkeypatch, folder):
    these = rows()
    broken = METHODS[OURS]._replace(fit=lambda task, lam: type("F", (), {"score": lambda X: X @ np.full(12, np.nan)}))
    monkeypatch.setitem(METHODS, OURS, broken)
    with pytest.raises(InputError, match="not finite"):
        run(these, units([OURS], [1e-1], 3), "rocarea", SETTINGS, folder.keep)


def test_a_package_that_is_missing_is_named_with_the_remedy(monkeypatch):
    monkeypatch.setitem(sys.modules, "xgboost", None)
    require(["distsms", "logistic"])
    with pytest.raises(InputError, match=r"trees wants xgboost.*distsms\[baseline\].*--methods"):
        require(["distsms", "trees"])


@pytest.mark.parametrize("kind", ["values", "pattern", "dense"])
def test_the_matrix_of_a_data_set(tmp_path, kind):
    X, y = data(60)
    X = X.toarray() if kind == "dense" else X
    if kind == "pattern":
        X = (X != 0).astype(float)
    weights = np.where(np.arange(60) % 7 == 3, 0.0, 1.0)
    found, labels, _ = shards.matrix(shards.write_data(tmp_path / "a", X, y, 3))
    assert (found != X).sum() == 0 and np.array_equal(labels, y) and found.dtype == float
    found, labels, _ = shards.matrix(shards.write_data(tmp_path / "b", X, y, 2, weights))
    assert (found != X[weights > 0]).sum() == 0 and np.array_equal(labels, y[weights > 0])


@pytest.mark.e2e
@pytest.mark.parametrize("kind", ["standard", "l2"])
def test_others_get_the_rows_that_training_sees(tmp_path, kind):
    program.write_svmlight(tmp_path / "rows.svm", n=80)
    program.run("shard", tmp_path / "rows.svm", tmp_path / "data", "--normalize", kind)
    manifest = shards.read_manifest(tmp_path / "data")
    X, _, _ = shards.matrix(manifest)
    w = np.random.default_rng(0).normal(size=X.shape[1])
    assert X @ w == pytest.approx(shards.load(manifest, ALONE).features.margins(w))


def standing(method, value, less=None, **more):
    def interval(one):
        return Interval(one[0], 0.1, *one[1:], "DeLong", p=0.5)

    sure = dict.fromkeys(("rocarea", "prbep"), interval((value, value - 0.1, value + 0.1)))
    found = {} if less is None else dict.fromkeys(("rocarea", "prbep"), interval(less))
    told = {"chosen": [0.1, 0.1, 0.01], "at_end": False, "seconds": 1.0, "notes": ""}
    return Standing(method, sure=sure, less=found, **{**told, **more})


@pytest.mark.parametrize(
    "less, word",
    [
        ((0.02, 0.01, 0.03), "is ahead of svm, the best of the other linear models, by 2.000 points"),
        (
            (-0.02, -0.03, -0.01),
            "does not pay here: it is behind svm, the best of the other linear models, by 2.000 points",
        ),
        ((0.02, -0.01, 0.05), "makes no difference"),
    ],
)
def test_what_is_said_is_what_the_interval_says(less, word):
    found = [standing(OURS, 0.9), standing("svm", 0.88, less), standing("logistic", 0.8, (0.1, 0.05, 0.15))]
    (first, *_) = baselinewords.sentences(found, "rocarea")
    assert word in first and "logistic" not in first  # against the best of the others
    trees = standing("trees", 0.95, (-0.05, -0.06, -0.04), notes="2 fits odd", at_end=True)
    said = " ".join(baselinewords.sentences([*found, trees], "rocarea"))
    assert "Trees are ahead by 5.000 points" in said and "trees: 2 fits odd." in said and "end of the grid" in said
    assert "irect" not in " ".join(baselinewords.sentences(found[1:2], "rocarea"))
    assert "0.1" in baselinewords.table(found, "rocarea")


WITHOUT_PETSC = """
import sys
sys.modules["petsc4py"] = None
from distsms.__main__ import main

sys.exit(main(sys.argv[1:]))
"""


@pytest.mark.e2e
def test_the_program(tmp_path):
    """On two ranks, stopped, gone on with on one, on a path's folds, and shown in a report."""
    program.write_svmlight(tmp_path / "rows.svm", n=200)
    program.run("shard", tmp_path / "rows.svm", tmp_path / "data")
    words = ("baseline", tmp_path / "data", "--output", tmp_path / "out")
    program.run("path", tmp_path / "data", "--lambdas", 1e-1, 1e-2, "--folds", 3, "--output", tmp_path / "path")
    those = (*words, "--path", tmp_path / "path", "--methods", "distsms", "logistic")
    out = program.run(*those, "--time-limit", "1e-6s", ranks=2, code=75)
    assert "same line again goes on" in out
    out = program.run(*those, ranks=2)
    assert "of this rank" in out and "Direct optimization" in out
    whole = json.loads((tmp_path / "out" / "baseline.json").read_text())
    assert [one["method"] for one in whole["methods"]] == ["distsms", "logistic"]
    assert "12, of which 12 are there" in program.run(*those)
    alone = (*words[:-1], tmp_path / "alone", *those[4:], "--solver", "lbfgs")
    assert "Direct optimization" in program.run(*alone, program=("-c", WITHOUT_PETSC))
    again = json.loads((tmp_path / "out" / "baseline.json").read_text())
    assert again == whole
    held = {
        (one["lam"], one["lane"]): one["held_out"]
        for one in json.loads((tmp_path / "path/path.json").read_text())["points"]
    }
    for path in (tmp_path / "out" / "fits").glob("distsms_*.json"):
        fit = json.loads(path.read_text())
        assert fit["rocarea"] == pytest.approx(
            held[fit["setting"], fit["fold"]]["rocarea"], abs=0.02
        )  # both to epsilon
    assert "is a path with measure rocarea" in program.run(*those, "--measure", "prbep", code=1)
    assert "folds: there 3, now 4" in program.run(*words, "--folds", 4, "--methods", "distsms", code=1)
    pytest.importorskip("matplotlib")
    page = tmp_path / "report.html"
    rest = ("--on", tmp_path / "data", "--out", page, "--bootstrap", 0)
    program.run("report", tmp_path / "path" / "model.h5", *rest, "--baseline", tmp_path / "out")
    assert "Path of lambdas, 3 folds" in page.read_text() and "Beside other methods" in page.read_text()
