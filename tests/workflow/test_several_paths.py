"""Paths for several BETA are compared on the same folds, and what choosing BETA is worth is not flattered."""

from __future__ import annotations

from argparse import ArgumentTypeError

import numpy as np
import pytest

from distsms.cli.types import path_measures
from distsms.workflow.choice import Point, _at_lambdas_of_others, judged
from distsms.workflow.path_result import L1, PathResult, compare, measures_of_betas
from distsms.workflow.path_run import _several
from distsms.workflow.requests import PathRequest

SELECT, LAMBDAS = "tpr@fpr=0.1", (1e-1, 1e-2)


def path_of(values, chance=""):
    """Return the points of a path with the values (lambdas, folds) of the measure that judges."""
    result = {"status": "proved", "evaluations": 3, "vacuous": False, "chance": chance}
    points = [Point(lam, 0, result, 0.0, {}, None) for lam in LAMBDAS]
    for lam, of_lam in zip(LAMBDAS, values, strict=True):
        for fold, value in enumerate(of_lam, 1):
            points.append(Point(lam, fold, result, 0.0, {}, {SELECT: value, "rocarea": 0.9 + fold / 1000}))
    return points


def compared(paths):
    """Return the comparison of paths with these points."""
    return compare({name: PathResult(points, SELECT, "best", {}, None) for name, points in paths.items()})


def test_the_measures_of_several_betas():
    assert measures_of_betas(path_measures("pauc@0.01,0.2,1,0.05,0.2")) == [
        "rocarea",
        "pauc@0.2",
        "pauc@0.05",
        "pauc@0.01",
    ]
    assert path_measures("pauc@0.05") == "pauc@0.05" and path_measures("auc") == "rocarea"
    assert path_measures("gauc@each") == path_measures("gauc@each,gauc@each") == "gauc@each"
    for text in ("gauc@pairs,each", "gauc@pairs,pauc@0.1", "pauc@0.1,gauc@each"):
        with pytest.raises(ArgumentTypeError, match="only if all are pauc@"):
            path_measures(text)


def test_the_gain_is_that_of_folds_that_did_not_choose():
    """An oracle: each fold, by loops over all measures and lambdas on the other folds."""
    rng = np.random.default_rng(4)
    values = {"rocarea": rng.random((2, 5)), "pauc@0.2": 0.1 + rng.random((2, 5)), "pauc@0.05": rng.random((2, 5))}
    found = compared({name: path_of(own) for name, own in values.items()})
    means = {name: own.mean(axis=1) for name, own in values.items()}
    assert found.best == max(means, key=lambda name: means[name].max())
    for name, choice in found.choices.items():
        assert choice.chosen.mean == pytest.approx(means[name].max())
        assert choice.chosen.lam == LAMBDAS[int(np.argmax(means[name]))]

    def by_hand(candidates):
        by = [max(candidates, key=lambda own: np.delete(own, fold).mean())[fold] for fold in range(5)]
        return np.array(by)

    differences = by_hand([row for own in values.values() for row in own]) - by_hand(list(values["rocarea"]))
    assert found.gain.value == pytest.approx(differences.mean())
    assert found.gain.low < found.gain.value < found.gain.high
    assert f"best      {found.best}" in found.sentences()[0]


def test_what_is_chosen_for_a_fold_does_not_depend_on_its_rows():
    """ROCArea near chance, so that many lambdas are not usable: the rows of a fold must not say which ones."""
    rng, result = np.random.default_rng(0), {"status": "proved", "evaluations": 3, "vacuous": False, "chance": ""}

    def chosen(values):
        paths = [
            [Point(lam, 0, result, 0.0, {}, None) for lam in LAMBDAS]
            + [
                Point(lam, fold, result, 0.0, {}, {"rocarea": value, "who": (name, lam)})
                for lam, of_lam in zip(LAMBDAS, own, strict=True)
                for fold, value in enumerate(of_lam, 1)
            ]
            for name, own in enumerate(values)
        ]
        alone = [[held["who"] for held in _at_lambdas_of_others(path, "rocarea", "one-se")] for path in paths]
        return list(zip([held["who"] for held in judged(paths, "rocarea")], *alone, strict=True))

    for _ in range(20):
        values = 0.5 + 0.03 * rng.normal(size=(3, 2, 4))
        before, fold = chosen(values), int(rng.integers(4))
        values[:, :, fold] = 0.5 + 0.1 * rng.normal(size=(3, 2))
        assert chosen(values)[fold] == before[fold]


def test_a_measure_whose_models_are_useless_does_not_win():
    high, low = np.full((2, 4), 0.9), np.full((2, 4), 0.3)
    paths = {"rocarea": path_of(low), "pauc@0.01": path_of(high, chance="all scores are equal")}
    found = compared(paths)
    assert found.best == "rocarea" and found.useless == ["pauc@0.01"]
    header, rows = found.table({"rocarea": 30, "pauc@0.01": 40})
    assert len(header) == len(rows[0]) and [row[-1] for row in rows] == ["best", "no better than chance"]
    assert compared({"rocarea": [point for point in path_of(low) if point.fold != 2]}) is None


def test_a_gain_is_called_clear_only_where_its_interval_is():
    base = np.array([[0.3, 0.32, 0.31, 0.29], [0.2, 0.2, 0.2, 0.2]])
    better = compared({"rocarea": path_of(base), "pauc@0.1": path_of(base + 0.2)})
    assert "clearly better" in better.sentences()[-1] and better.gain.value == pytest.approx(0.2)
    noise = np.array([[0.3, -0.25, 0.3, -0.25]] * 2)
    unclear = compared({"rocarea": path_of(base), "pauc@0.1": path_of(base + noise)})
    assert unclear.best == "pauc@0.1" and "no clear difference" in unclear.sentences()[-1]


def test_weights_that_agree_in_six_digits_have_folders_of_their_own():
    setting, requests = _several(PathRequest("data", l1=[0.1, 0.1000001, 1e-2, 0.0]))
    assert setting == L1 and {name: request.l1 for name, request in requests.items()} == {
        "0.1": [0.1],
        "0.1000001": [0.1000001],
        "0.01": [1e-2],
        "0": [0.0],
    }
