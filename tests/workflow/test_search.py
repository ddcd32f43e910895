"""The search of `train` on a table: what it tries and chooses, on any number of ranks, and when there is none."""

from __future__ import annotations

import logging
import re
from types import SimpleNamespace

import numpy as np
import pandas as pd
import pytest

import distsms
from distsms.__main__ import main
from distsms.base.communicator import Communicator
from distsms.base.errors import InputError, StoppedError
from distsms.base.measures import Measure
from distsms.features.growing import UNWATCHED
from distsms.shards import dataset
from distsms.shards.manifest import read_manifest
from distsms.training.task import Distribution
from distsms.workflow import auto_lambda, search
from distsms.workflow.choice import Mean
from distsms.workflow.requests import Arrays, TrainRequest
from distsms.workflow.search import Search, Tried, candidates, choose, load_sample, request_of, why_not_searched
from distsms.workflow.train import train
from tests.support.conversion import convert
from tests.support.program import finish, start
from tests.support.simulated import run_ranks
from tests.workflow.faces import run
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


def test_what_does_not_fit_into_the_budget_is_left_out(monkeypatch):
    monkeypatch.setattr(search, "LEAST_SECONDS", 0.0)
    monkeypatch.setattr(search, "TIMES", 0.0)
    model = distsms.train(interacting(), label="label", solver="lbfgs")
    found = model.info["search"]
    assert [each["features"] for each in found["tried"]] == ["raw", "raw"] and found["winner"]["features"] == "raw"
    assert found["left_out"] == dict.fromkeys(candidates_of(interacting()), "there was no time to try it")
    same(distsms.train(interacting(), label="label", solver="lbfgs", search=0), model, but=("search", "data"))


def candidates_of(frame):
    return ["bins=32", "bins=32,crosses=all", "trees=100,min-leaf=10", "bins=32,crosses=all,trees=100,min-leaf=10"]


def test_few_rows_are_not_searched_unless_that_is_said(caplog, monkeypatch):
    few = interacting(400)
    with caplog.at_level(logging.INFO, "distsms"):
        assert "search" not in distsms.train(few, label="label", solver="lbfgs").info
    assert "few to compare features; search=TIME does" in caplog.text
    no_better = lambda trials, features: ([tried(features, "rocarea", 0.5, 0.5, 0.5)], "")  # noqa: E731
    monkeypatch.setattr(search.Trials, "of_features", no_better)
    assert "search" in distsms.train(few, label="label", solver="lbfgs", search=300).info


REFUSED = {
    "lam": ({"lam": 1e-2}, "lam is for a model of the columns"),
    "l1": ({"settings": {"l1": 1e-3}}, "l1 is for a model of the columns"),
    "c_mu": ({"settings": {"c_mu": 10.0}}, "c_mu is for a model of the columns"),
    "memory": ({"memory": 2**30}, "memory is for a model of the columns"),
    "start": ({"start": "m.h5"}, "start is for a model of the columns"),
    "hashed": ({"reading": {"label": "label", "hashed": {"kind": 12}}}, "hashed is for a model of the columns"),
    "l2": ({"reading": {"label": "label", "normalize": "l2"}}, "normalize is for a model of the columns"),
    "certificate": ({"certificate": "c.h5"}, "certificate is for a model of the columns"),
    "groups": ({"measure": Measure.parse("gauc@pairs")}, "a model for gauc@pairs is one of the columns"),
    "K": ({"measure": Measure.parse("precision@100")}, "a model for precision@100 is one of the columns"),
}


@pytest.mark.parametrize("case", REFUSED)
def test_options_of_a_model_of_the_columns(case):
    """Without a word on the search they leave it out, and say so; together they are refused."""
    from distsms.base.wording import in_python as words

    options, why = REFUSED[case]
    request = TrainRequest(straight(100), **{"reading": {"label": "label"}} | options)
    assert why in words(why_not_searched(request, ALONE))
    with pytest.raises(InputError) as refused:
        why_not_searched(TrainRequest(straight(100), search=5.0, **options), ALONE)
    assert why in words(refused.value.message) and refused.value.message.startswith("--search 5s: ")
    assert ("leave one of the two out" in refused.value.message) == (case not in ("groups", "K"))
    assert why_not_searched(TrainRequest(straight(100), search=0, **options), ALONE) == ""


@pytest.mark.parametrize("seconds", [-1.0, float("nan"), float("inf")])
def test_a_time_that_is_none(seconds):
    with pytest.raises(InputError, match=rf"^search is {seconds}; it must be 0 or more seconds"):
        distsms.train(straight(100), label="label", search=seconds)


def test_the_option_to_begin_from_a_model_has_its_name_on_the_command_line():
    assert "--init is for a model" in str(why_not_searched(TrainRequest(straight(100), start="m.h5"), ALONE))


def test_too_few_groups_for_folds(caplog):
    """No advice to give fewer folds, since the number of the search's is fixed."""
    frame = interacting().assign(user=lambda table: np.arange(len(table)) % 2)
    with caplog.at_level(logging.INFO, "distsms"):
        assert "search" not in distsms.train(frame, label="label", group="user", search=300).info
    assert "search: left out: there are too few rows or groups for folds" in caplog.text


def test_a_sample_that_lacks_a_class(tmp_path):
    interacting(100).assign(w=lambda table: (table.label == "yes") * 1).to_csv(tmp_path / "a.csv", index=False)
    convert([tmp_path / "a.csv"], tmp_path / "d", ALONE, label="label", weight="w")
    assert load_sample(dataset.read_manifest(tmp_path / "d"), Measure.parse("rocarea"), ALONE) is None


def test_other_data_than_tables(tmp_path):
    (tmp_path / "a.svm").write_text("1 1:1\n-1 2:1\n")
    assert why_not_searched(TrainRequest(tmp_path / "a.svm"), ALONE) == ""
    for data in (tmp_path / "a.svm", Arrays(np.eye(2), [1, -1])):
        with pytest.raises(InputError, match="for tables"):
            train(TrainRequest(data, search=5.0), ALONE)
    assert why_not_searched(TrainRequest(straight(100)), ALONE) is None


def test_ranks_share_the_candidates_and_choose_alike(tmp_path, monkeypatch):
    """The root says which there are: here it alone of three ranks finds scikit-learn."""
    interacting(400).to_csv(tmp_path / "a.csv", index=False)

    def on_ranks(comm):
        request = TrainRequest(tmp_path / "a.csv", reading={"label": "label"}, search=300.0, solver="lbfgs")
        trained = train(request, comm)
        return trained.search, trained.model.w

    there = iter([True, True])  # for each of the two jobs
    monkeypatch.setattr(search, "find_spec", lambda name: next(there, None))
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


def test_an_ordering_is_for_the_measure_that_was_asked_for():
    """Logistic regression has no bins, and is trained as it is usually."""
    request = TrainRequest(data=[], distribution=Distribution("bins"))
    plain, winner = tried("raw", "rocarea", 0.5, 0.6), tried("raw", "logistic", 0.8, 0.9)
    outcome = Search("rocarea", 9, 2, 0.5, 30.0, 1.0, [plain, winner], {}, winner, "it is the best")
    chosen, _, _ = request_of(request, SimpleNamespace(training=None), outcome, Communicator())
    assert chosen.measure.name == "logistic" and chosen.distribution == Distribution()


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
    torn = tried("bins=32", "rocarea", 0.99, 0.60, 0.95)  # not clearly behind, and not clearly better than the columns
    assert choose([plain, torn, clear], "rocarea")[0] is clear
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


def test_the_values_of_a_candidate_are_in_the_order_of_the_folds(tmp_path, monkeypatch):
    """Folds are trained together, and end in any order; differences of two candidates are those on the same folds."""
    interacting(300).to_csv(tmp_path / "a.csv", index=False)
    convert([tmp_path / "a.csv"], tmp_path / "d", ALONE, label="label")
    measure = Measure.parse("rocarea")
    rows = load_sample(dataset.read_manifest(tmp_path / "d"), measure, ALONE)
    trials = search.Trials(TrainRequest(data=[], measure=measure), rows, lambda: False)
    one, _ = trials.of_features("raw")
    in_order = auto_lambda.cross_validate

    def reversed_points(*args):
        outcome = in_order(*args)
        return outcome._replace(points=outcome.points[::-1])

    monkeypatch.setattr(auto_lambda, "cross_validate", reversed_points)
    other, _ = trials.of_features("raw")
    assert [each.values for each in one] == [each.values for each in other]
    assert len(set(one[0].values)) == rows.n_folds


def test_candidates_that_take_long_or_know_labels(tmp_path, monkeypatch):
    interacting(100).to_csv(tmp_path / "a.csv", index=False)
    convert([tmp_path / "a.csv"], tmp_path / "d", ALONE, label="label")
    manifest = dataset.read_manifest(tmp_path / "d")
    leaves, crosses = "trees=100,min-leaf=10", "bins=32,crosses=all"
    assert candidates(manifest, True) == (candidates_of(None), {})
    tried, left_out = candidates(manifest, False)  # for decisions on folds
    assert tried == candidates_of(None)[:2] and "look at labels" in left_out.pop(leaves) and not left_out
    with monkeypatch.context() as without:
        without.setattr(search, "find_spec", lambda name: None)
        tried, left_out = candidates(manifest, True)
        assert tried == candidates_of(None)[:2] and "scikit-learn" in left_out.pop(leaves) and not left_out
    monkeypatch.setattr(search, "MOST_ATTRIBUTES", 3)
    tried, left_out = candidates(manifest, True)
    assert tried == ["bins=32", leaves, f"bins=32,{leaves}"] and "at most 3" in left_out.pop(crosses) and not left_out
    monkeypatch.setattr(search, "MOST_COLUMNS", 5)
    tried, left_out = candidates(manifest, True)
    assert tried == ["bins=32"] and left_out.keys() == {crosses, leaves} and "at most 5" in left_out[leaves]


def test_the_lines_of_a_search(tmp_path, monkeypatch, capsys):
    """They name the user's file, also with features in a temporary folder, and say what was left out."""
    monkeypatch.setattr(search, "MOST_COLUMNS", 5)
    interacting(300).to_csv(tmp_path / "a.csv", index=False)
    words = [str(tmp_path / "a.csv"), "--label", "label", "--search", "300s", "--solver", "lbfgs", "--no-report"]
    run("train", *words, "--output", tmp_path / "m.h5")
    printed = " ".join(capsys.readouterr().out.split())
    assert re.search(rf" data {tmp_path}/a.csv: \d+ training rows", printed)
    assert "trees=100,min-leaf=10 left out: 6 columns are many" in printed
    assert distsms.load_model(tmp_path / "m.h5").info["search"]["left_out"].keys() == {"trees=100,min-leaf=10"}


def test_a_time_in_words_and_what_python_calls_plain():
    request = TrainRequest(straight(100), search="1.5m")  # type: ignore[arg-type]
    assert request.search == 90.0
    with pytest.raises(InputError, match="'soon' is not a time such as 90s"):
        distsms.train(straight(100), label="label", search="soon")
    with pytest.raises(InputError, match="search=0") as refused:
        distsms.train(straight(100), label="label", plain=True)
    assert refused.value.__cause__ is None and refused.value.__suppress_context__


def test_crosses_of_very_many_columns_are_left_out(tmp_path, monkeypatch):
    """They are counted before they are made: at most 3 * 32 + 3 codes, 3 * 32^2 pairs of numbers, 3 * 32 * 3 others."""
    interacting().to_csv(tmp_path / "a.csv", index=False)
    convert([tmp_path / "a.csv"], tmp_path / "d", ALONE, label="label")
    manifest = dataset.read_manifest(tmp_path / "d")
    rows = load_sample(manifest, Measure.parse("rocarea"), ALONE)
    most = 3 * 32 + 3 + 3 * 32**2 + 3 * 32 * 3
    assert rows.with_features("bins=32,crosses=all", 0, UNWATCHED).features.shape[1] == most
    monkeypatch.setattr(search, "MOST_CROSSED", most)
    assert candidates(manifest, True) == (candidates_of(None), {})
    monkeypatch.setattr(search, "MOST_CROSSED", most - 1)
    leaves = "trees=100,min-leaf=10"
    tried, left_out = candidates(manifest, True)
    assert tried == ["bins=32", leaves, f"bins=32,{leaves}"]
    assert f"up to {most:,} columns" in left_out["bins=32,crosses=all"]


def test_what_does_not_fit_into_the_memory_is_left_out(monkeypatch):
    with_features = search.SampleRows.with_features

    def short_of_memory(rows, features, *rest):
        if "crosses" in features:
            raise MemoryError
        return with_features(rows, features, *rest)

    monkeypatch.setattr(search.SampleRows, "with_features", short_of_memory)
    outcome = distsms.train(interacting(300), label="label", solver="lbfgs", search=300).info["search"]
    crossed = [features for features in candidates_of(None) if "crosses" in features]
    assert outcome["left_out"] == dict.fromkeys(crossed, "there was not enough memory to try it")
    assert {each["features"] for each in outcome["tried"]} == {"raw", "bins=32", "trees=100,min-leaf=10"}


def test_a_search_that_is_stopped_leaves_no_model(tmp_path, monkeypatch):
    """Asked of one rank of three during its second candidate: all end after it, and an older model stays."""
    interacting().to_csv(tmp_path / "a.csv", index=False)
    (tmp_path / "m.h5").write_bytes(b"")
    candidates_of_ranks = list[str]()
    options = {"reading": {"label": "label"}, "search": 300.0, "solver": "lbfgs", "output": tmp_path / "m.h5"}

    def of_features(trials, features):
        candidates_of_ranks.append(features)
        return [tried(features, "rocarea", 0.5, 0.5, 0.5)], ""

    def on_ranks(comm):
        def stop_wanted():
            return comm.rank == 2 and "trees=100,min-leaf=10" in candidates_of_ranks

        with pytest.raises(StoppedError, match="no model is written") as stopped:
            train(TrainRequest(tmp_path / "a.csv", **options), comm, stop_wanted=stop_wanted)
        assert stopped.value.everywhere

    monkeypatch.setattr(search.Trials, "of_features", of_features)
    run_ranks(3, on_ranks)
    assert sorted(candidates_of_ranks) == sorted(["raw", *candidates_of(None)[:3]])
    assert (tmp_path / "m.h5").read_bytes() == b""


STOPPED = """
import os, signal, sys
from distsms.__main__ import main
from distsms.workflow import auto_lambda, search

load_sample = search.load_sample
def signalled(*words):
    os.kill(os.getpid(), getattr(signal, sys.argv[1]))
    return load_sample(*words)

search.load_sample = signalled
sys.exit(main(sys.argv[2:]))
"""


@pytest.mark.e2e
def test_a_signal_during_the_search(tmp_path):
    interacting().to_csv(tmp_path / "a.csv", index=False)
    words = "train", tmp_path / "a.csv", "--label", "label", "--search", "300s", "--output", tmp_path / "m.h5"
    code, out, err = finish(start(*words, program=("-c", STOPPED, "SIGTERM")))
    assert code == 75, out + err
    assert "no model is written" in " ".join(err.split()) and not (tmp_path / "m.h5").exists()


def test_a_time_that_is_too_short_for_the_columns_leaves_the_search_out(tmp_path, capsys):
    straight().to_csv(tmp_path / "a.csv", index=False)
    words = [str(tmp_path / "a.csv"), "--label", "label", "--solver", "lbfgs", "--no-report", "--search", "0.0001"]
    run("train", *words, "--output", tmp_path / "m.h5")
    printed = " ".join(capsys.readouterr().out.split())
    assert "for at most 0.0001 s" in printed
    assert "search left out: the columns were not tried to the end: there was no time" in printed
    model = distsms.load_model(tmp_path / "m.h5")
    assert "search" not in model.info and model.features is None
    plain = distsms.train(tmp_path / "a.csv", label="label", solver="lbfgs", search=0, split=(0.8, 0.2))
    np.testing.assert_array_equal(model.w, plain.w)


@pytest.mark.parametrize("case", ["trace", "test", "folds"])
def test_faults_are_told_before_the_search(tmp_path, monkeypatch, case):
    interacting().to_csv(tmp_path / "a.csv", index=False)
    (tmp_path / "z.csv").write_text("other,label\n1,yes\n2,no\n")
    options, why = {
        "trace": ({"trace": tmp_path / "z.csv"}, "is not a trace"),
        "test": ({"test": tmp_path / "z.csv"}, "z.csv: "),
        "folds": ({"at": "precision>=0.9", "folds": 1}, "folds"),
    }[case]
    monkeypatch.setattr(search, "load_sample", lambda *words: pytest.fail("the search has begun"))
    with pytest.raises(InputError, match=why):
        train(TrainRequest(tmp_path / "a.csv", reading={"label": "label"}, search=300.0, **options), ALONE)
