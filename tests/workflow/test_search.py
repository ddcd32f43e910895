"""The search of `train` on a table: what it tries and chooses, on any number of ranks, and when there is none."""

from __future__ import annotations

import logging

import numpy as np
import pandas as pd
import pytest

import distsms
from distsms.__main__ import main
from distsms.base.errors import InputError
from distsms.base.measures import Measure
from distsms.features.growing import UNWATCHED
from distsms.parallel.communicator import Communicator
from distsms.shards import dataset
from distsms.shards.manifest import read_manifest
from distsms.workflow import search
from distsms.workflow.choice import Mean
from distsms.workflow.requests import Arrays, TrainRequest
from distsms.workflow.search import Tried, candidates, choose, load_sample, why_plain
from distsms.workflow.train import TrainObserver, train
from tests.support.conversion import convert
from tests.support.simulated import run_ranks
from tests.workflow.test_faces import by_command, in_python, same

pytestmark = pytest.mark.serial
ALONE = Communicator()


def interacting(n=1200, seed=0):
    """Rows whose label depends on the product of two numbers, so that no model of the columns ranks them."""
    rng = np.random.default_rng(seed)
    X, noise = rng.normal(size=(n, 3)).round(3), rng.normal(size=n)
    kind = rng.choice(["a", "b", "c"], n)
    label = np.where(X[:, 0] * X[:, 1] + 0.3 * noise > 0.3, "yes", "no")
    return pd.DataFrame(X, columns=["one", "two", "three"]).assign(kind=kind, label=label)


def straight(n=1200, seed=0):
    """Rows that a model of the columns ranks as well as any other can."""
    rng = np.random.default_rng(seed)
    X = rng.normal(size=(n, 3)).round(3)
    label = X @ [1, 1, 0.5] + rng.logistic(size=n) > 1
    return pd.DataFrame(X, columns=["one", "two", "three"]).assign(label=np.where(label, "yes", "no"))


def test_features_are_found_and_rows_with_the_columns_are_scored(tmp_path):
    """By the command and in Python alike; a file with the columns gets the same scores as the test rows."""
    frame, later = interacting(), interacting(300, seed=1)
    frame.to_csv(tmp_path / "a.csv", index=False)
    later.to_csv(tmp_path / "b.csv", index=False)
    options = {"label": "label", "search": 300.0, "solver": "lbfgs", "split": (0.8, 0.2)}
    model = in_python(tmp_path / "a.csv", **options)
    model.info.pop("columns")
    command = by_command(tmp_path, tmp_path / "a.csv", no_report=True, **options)
    same(model, command, but=("search", "auto_lambda"))
    searches = [one.info["search"] for one in (model, command)]
    assert searches[0].keys() == searches[1].keys() and searches[0]["left_out"] == {}
    tried = [
        [(each["features"], each["measure"], each["lam"], each["values"]) for each in one["tried"]] for one in searches
    ]
    assert tried[0] == tried[1]
    names = [
        "raw",
        "bins=32",
        "bins=32,crosses=all",
        "trees=100,min-leaf=10",
        "bins=32,crosses=all,trees=100,min-leaf=10",
    ]
    assert [each[:2] for each in tried[0]] == [(name, loss) for name in names for loss in ("rocarea", "logistic")]
    best = max(searches[0]["tried"], key=lambda each: each["mean"])
    assert searches[0]["winner"]["features"] == best["features"] != "raw"
    plain = distsms.train(tmp_path / "a.csv", **options | {"search": 0})
    assert plain.info["test"]["rocarea"] < 0.65 < 0.85 < model.info["test"]["rocarea"]
    assert "search" not in plain.info and plain.features is None
    judged = distsms.evaluate(model, tmp_path / "b.csv", label="label")
    scores = distsms.predict(model, later.drop(columns="label"))
    assert judged["rocarea"] > 0.85
    assert judged["tp"] == np.sum((scores >= model.threshold) & (later.label == "yes"))
    assert not [
        text for text in model.info["warnings"] if "has learned" in text
    ]  # which leaves do, and folds have judged


def test_features_of_replaced_rows_are_removed(tmp_path):
    frame, kept = interacting(300), tmp_path / "kept"
    frame.to_csv(tmp_path / "a.csv", index=False)
    words = ["train", str(tmp_path / "a.csv"), "--label", "label", "--lambda", "0.1", "--plain", "--no-report"]
    words += ["--output", str(tmp_path / "m.h5"), "--shards", str(kept)]
    assert main(words) in (0, 8)
    features = kept / "train" / "features"  # where a search puts them
    assert main(["features", str(kept / "train"), str(features), "--bins", "4"]) == 0
    assert main([*words, "--overwrite"]) in (0, 8)
    assert not features.exists()
    convert([tmp_path / "a.csv"], features, ALONE, label="label")  # rows of a user, not features
    assert main([*words, "--overwrite"]) in (0, 8)
    assert read_manifest(features).n == 300


def test_the_columns_are_kept_if_nothing_is_clearly_better():
    """The model is then the one of a training without a search, to the bit."""
    model = distsms.train(straight(), label="label", search=300)
    plain = distsms.train(straight(), label="label", search=0)
    assert model.info["search"]["winner"] == {"features": "raw", "measure": "rocarea"}
    assert len(model.info["search"]["tried"]) == 10
    same(plain, model, but=("search", "data"))


def test_what_does_not_fit_into_the_budget_is_left_out():
    model = distsms.train(interacting(), label="label", search=1e-6)
    found = model.info["search"]
    assert [each["features"] for each in found["tried"]] == ["raw", "raw"] and found["winner"]["features"] == "raw"
    assert found["left_out"] == dict.fromkeys(candidates_of(interacting()), "there was no time to try it")
    same(distsms.train(interacting(), label="label", search=0), model, but=("search", "data"))


def candidates_of(frame):
    return ["bins=32", "bins=32,crosses=all", "trees=100,min-leaf=10", "bins=32,crosses=all,trees=100,min-leaf=10"]


class Told(TrainObserver):
    def __init__(self):
        self.why, self.outcome = [], None

    def left_out_search(self, why):
        self.why.append(str(why))

    def searched(self, outcome):
        self.outcome = outcome


def test_few_rows_are_not_searched_unless_that_is_said(caplog):
    few = interacting(400)
    with caplog.at_level(logging.INFO, "distsms"):
        assert "search" not in distsms.train(few, label="label").info
    assert "few to compare features; search=TIME does" in caplog.text
    assert "search" in distsms.train(few, label="label", search=300).info


REFUSED = {
    "lam": ({"lam": 1e-2}, "lam is for a model of the columns"),
    "l1": ({"settings": {"l1": 1e-3}}, "l1 is for a model of the columns"),
    "c_mu": ({"settings": {"c_mu": 10.0}}, "c_mu is for a model of the columns"),
    "memory": ({"memory": 2**30}, "memory is for a model of the columns"),
    "start": ({"start": "m.h5"}, "start is for a model of the columns"),
    "certificate": ({"certificate": "c.h5"}, "certificate is for a model of the columns"),
    "groups": ({"measure": Measure.parse("gauc@pairs")}, "a model for gauc@pairs is one of the columns"),
    "K": ({"measure": Measure.parse("precision@100")}, "a model for precision@100 is one of the columns"),
}


@pytest.mark.parametrize("case", REFUSED)
def test_options_of_a_model_of_the_columns(case):
    """Without a word on the search they leave it out, and say so; together they are refused."""
    from distsms.base.wording import in_python as words

    options, why = REFUSED[case]
    request = TrainRequest(straight(100), reading={"label": "label"}, **options)
    assert why in words(why_plain(request, ALONE))
    with pytest.raises(InputError) as refused:
        why_plain(TrainRequest(straight(100), search=5.0, **options), ALONE)
    assert why in words(refused.value.message)
    assert why_plain(TrainRequest(straight(100), search=0, **options), ALONE) == ""


def test_other_data_than_tables(tmp_path):
    (tmp_path / "a.svm").write_text("1 1:1\n-1 2:1\n")
    assert why_plain(TrainRequest(tmp_path / "a.svm"), ALONE) == ""
    for data in (tmp_path / "a.svm", Arrays(np.eye(2), [1, -1])):
        with pytest.raises(InputError, match="for tables"):
            train(TrainRequest(data, search=5.0), ALONE)
    assert why_plain(TrainRequest(straight(100)), ALONE) is None


def test_ranks_share_the_candidates_and_choose_alike(tmp_path):
    interacting().to_csv(tmp_path / "a.csv", index=False)

    def on_ranks(comm):
        told = Told()
        request = TrainRequest(tmp_path / "a.csv", reading={"label": "label"}, search=300.0, solver="lbfgs")
        trained = train(request, comm, told)
        return told.outcome, trained.model.w

    of_one, of_three = run_ranks(1, on_ranks), run_ranks(3, on_ranks)
    for outcome, w in of_three:
        assert outcome == of_three[0][0]
        assert [each[:3] for each in outcome.tried] == [each[:3] for each in of_one[0][0].tried]
        np.testing.assert_allclose(
            [each.values for each in outcome.tried], [each.values for each in of_one[0][0].tried]
        )
        assert outcome.winner[:3] == of_one[0][0].winner[:3]
        np.testing.assert_array_equal(w, of_three[0][1])


def tried(features, measure, *values):
    return Tried(features, measure, 1e-2, 0.0, [Mean(1e-2, float(np.mean(values)), 0.0)], list(values))


def test_the_choice():
    """The best mean, unless it leads the columns by at most a standard error of the folds' differences."""
    plain = tried("raw", "rocarea", 0.80, 0.82, 0.84)
    assert choose([plain], "rocarea")[0] is plain
    ahead, better = tried("bins=32", "rocarea", 0.81, 0.83, 0.85), tried("raw", "logistic", 0.84, 0.85, 0.87)
    assert choose([plain, ahead], "rocarea")[0] is ahead
    assert choose([plain, ahead, better], "rocarea")[0] is better
    close = tried("bins=32", "logistic", 0.84, 0.82, 0.86)
    assert choose([plain, ahead, close], "rocarea")[0] is ahead  # the measure of the request, which is as good
    clear = tried("bins=32", "logistic", 0.86, 0.88, 0.9)
    assert choose([plain, ahead, clear], "rocarea")[0] is clear
    by_chance = tried("bins=32", "rocarea", 0.70, 0.84, 0.93)
    assert choose([plain, by_chance], "rocarea")[0] is plain
    assert "0.8200" in choose([plain, by_chance], "rocarea")[1]


def test_the_sample_has_weights_and_whole_groups(tmp_path, monkeypatch):
    """On each rank all rows that count, those of a group in one fold; features of a fold do not see its rows."""
    frame = interacting(900)
    rng = np.random.default_rng(1)
    frame["w"], frame["user"] = rng.integers(0, 3, len(frame)), rng.integers(0, 40, len(frame))
    frame.to_csv(tmp_path / "a.csv", index=False)
    convert([tmp_path / "a.csv"], tmp_path / "d", ALONE, label="label", weight="w", group="user")
    manifest = dataset.read_manifest(tmp_path / "d")
    samples = run_ranks(3, lambda comm: load_sample(manifest, Measure.parse("rocarea"), comm))
    one = load_sample(manifest, Measure.parse("rocarea"), ALONE)
    counted = frame[frame.w > 0]
    for sample in (one, *samples):
        np.testing.assert_array_equal(sample.y > 0, counted.label == "yes")
        np.testing.assert_array_equal(sample.weights, counted.w)
        np.testing.assert_array_equal(np.asarray(sample.X), np.asarray(one.X))
        assert sample.by == "groups"
        assert pd.Series(sample.folds.number).groupby(counted.user.to_numpy()).nunique().max() == 1
    features = "bins=32,trees=5,min-leaf=10"
    rows = one.with_features(features, 1, UNWATCHED).features
    one.y[one.folds.judged(1)] *= -1
    one.maps.clear()
    np.testing.assert_array_equal(
        one.with_features(features, 1, UNWATCHED).features.margins(np.arange(rows.shape[1])),
        rows.margins(np.arange(rows.shape[1])),
    )


def test_candidates_that_take_long_or_know_labels(tmp_path, monkeypatch):
    interacting(100).to_csv(tmp_path / "a.csv", index=False)
    convert([tmp_path / "a.csv"], tmp_path / "d", ALONE, label="label")
    manifest = dataset.read_manifest(tmp_path / "d")
    assert candidates(manifest, True) == candidates_of(None)
    assert candidates(manifest, False) == candidates_of(None)[:2]  # for decisions on folds
    monkeypatch.setattr(search, "MOST_ATTRIBUTES", 3)
    assert candidates(manifest, True) == ["bins=32", "trees=100,min-leaf=10", "bins=32,trees=100,min-leaf=10"]
    monkeypatch.setattr(search, "MOST_COLUMNS", 5)
    assert candidates(manifest, True) == ["bins=32"]
