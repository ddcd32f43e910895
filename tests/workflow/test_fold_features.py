"""Features of a fold do not know the fold's rows, and are those that one would make by hand, on any number of ranks."""

from __future__ import annotations

import shutil
from dataclasses import replace

import numpy as np
import pytest

from distsms.base.errors import InputError
from distsms.base.scored import Scored
from distsms.features import feature_map
from distsms.features.arrays import options
from distsms.features.build import build
from distsms.features.fit import FeatureOptions
from distsms.metrics import ranking
from distsms.optim.settings import Settings
from distsms.python import api
from distsms.shards.dataset import read_manifest
from distsms.shards.from_arrays import write_data
from distsms.workflow.candidates import distinct, named, parse
from distsms.workflow.fold_features import FoldFeatures
from distsms.workflow.folds import labels_warning, make_folds
from distsms.workflow.path import PathRows, Problem, run
from tests.support.files import ALONE, on_root
from tests.support.simulated import run_ranks

TREES, BINS = FeatureOptions(None, trees=4, min_leaf=2), FeatureOptions(5, "top:2", keep=True)
SETTINGS = Settings(lam=1.0, epsilon=1e-3, solver="lbfgs")
PROBLEM = Problem("rocarea", [1e-1, 1e-2], 3, 0, SETTINGS)
IN_TIME = Problem("rocarea", [1e-1], 2, 0, SETTINGS, folds_by="time")


def rows(n=90, seed=0):
    """Rows of which the product of two columns says the class."""
    rng = np.random.default_rng(seed)
    X = rng.normal(size=(n, 3))
    return X, np.where(X[:, 0] * X[:, 1] + 0.2 * rng.normal(size=n) > 0, 1, -1).astype(np.int8)


def written(comm, folder, X, y, **more):
    """Return a data set."""
    on_root(comm, lambda: write_data(folder, X, y, n_shards=2, **more))
    return read_manifest(folder)


def maps(manifest, options, folder, problem, comm):
    """Return the hashes of the maps of all rows and of each fold."""
    made = FoldFeatures(manifest, options, folder, problem, comm)
    return [made.manifest(fold).coded.features.hash for fold in range(problem.folds + 1)]


@pytest.mark.parametrize("options", [TREES, BINS], ids=["trees", "bins"])
def test_the_map_of_a_fold_does_not_depend_on_its_rows(options, comm, shared_dir):
    X, y = rows()
    dealt = make_folds("rows", np.empty(0), y, np.ones(len(y), bool), 3, 0, ALONE)
    first = maps(written(comm, shared_dir / "a", X, y), options, shared_dir / "of-a", PROBLEM, comm)
    other = np.where(dealt.judged(2)[:, None], np.random.default_rng(1).normal(size=X.shape), X)
    second = maps(written(comm, shared_dir / "b", other, y), options, shared_dir / "of-b", PROBLEM, comm)
    assert [a == b for a, b in zip(first, second, strict=True)] == [False, False, True, False]


@pytest.mark.parametrize("options", [TREES, BINS], ids=["trees", "bins"])
def test_the_map_of_a_fold_does_not_depend_on_its_labels(options, comm, shared_dir):
    """Folds by time do not depend on labels, and the last one is held out by the models of the fold before."""
    X, y = rows()
    first = maps(written(comm, shared_dir / "a", X, y), options, shared_dir / "of-a", IN_TIME, comm)
    flipped = np.where(np.arange(90) >= 60, -y, y).astype(np.int8)
    second = maps(written(comm, shared_dir / "b", X, flipped), options, shared_dir / "of-b", IN_TIME, comm)
    assert [a == b for a, b in zip(first, second, strict=True)] == [False, True, True]
    flipped = np.where(np.arange(90) >= 30, -y, y).astype(np.int8)
    third = maps(written(comm, shared_dir / "c", X, flipped), options, shared_dir / "of-c", IN_TIME, comm)
    assert [a == b for a, b in zip(first, third, strict=True)] == [False, True, False]


@pytest.mark.parametrize("weighted", [False, True])
@pytest.mark.parametrize("options", [TREES, BINS], ids=["trees", "bins"])
def test_the_path_is_what_one_would_do_by_hand(options, weighted, comm, shared_dir):
    """Cut the fold out, make features of the rest, train on them, and score the fold."""
    X, y = rows()
    weights = np.where(np.arange(90) % 8 == 3, 0.0, 1.0 + np.arange(90) % 3) if weighted else None
    manifest = written(comm, shared_dir / "d", X, y, weights=weights)
    made = FoldFeatures(manifest, options, shared_dir / "of-d", PROBLEM, comm)
    found = run(PathRows(made.rows, comm), PROBLEM, lambda *of_point: None).points
    assert sorted((point.lam, point.fold) for point in found) == [(lam, f) for lam in (0.01, 0.1) for f in range(4)]
    counted = np.ones(90, bool) if weights is None else weights > 0
    dealt = make_folds("rows", np.empty(0), y, counted, 3, 0, ALONE)
    for fold in (0, 2):
        own = dealt.training(fold)
        kept = None if weights is None else weights[own]
        by_hand = written(comm, shared_dir / f"of-{fold}", X[own], y[own], weights=kept)
        featured = build(by_hand.directory, shared_dir / f"features-{fold}", comm, options)
        assert featured.coded.features == made.manifest(fold).coded.features
        for point in (point for point in found if point.fold == fold):
            model = api.train(featured.directory, lam=point.lam, epsilon=1e-3, solver="lbfgs", comm=comm.mpi_comm)
            assert point.result["lower_bound"] <= model.info["J"] and model.info["lower_bound"] <= point.result["J"]
            if fold:
                judged = dealt.judged(fold)
                scores = model.features.rows(X[judged]).margins(model.w)
                of_rows = None if weights is None else weights[judged]
                by = ranking.ranking(Scored(scores, y[judged], ALONE, of_rows))
                assert point.held_out["rocarea"] == pytest.approx(by.rocarea, abs=0.05)  # both to the gap


@pytest.mark.serial
def test_more_ranks_than_rows_and_the_same_maps_on_any_number(tmp_path):
    X, _ = rows(6, seed=4)
    manifest = written(ALONE, tmp_path / "d", X, np.array([1, -1] * 3, np.int8))
    options = replace(TREES, min_leaf=1)

    def on_ranks(size):
        return run_ranks(size, lambda comm: maps(manifest, options, tmp_path / f"{size}", IN_TIME, comm))

    (alone,), *found = map(on_ranks, (1, 4, 7))
    assert found == [[alone] * 4, [alone] * 7] and len(set(alone)) == 3


def test_data_sets_are_kept_until_they_are_of_something_else(comm, shared_dir):
    X, y = rows()
    manifest, folder = written(comm, shared_dir / "d", X, y), shared_dir / "made"
    made = FoldFeatures(manifest, TREES, folder, PROBLEM, comm)
    written_at = made.manifest(1).path.stat().st_mtime_ns
    again = FoldFeatures(manifest, TREES, folder, PROBLEM, comm)
    assert again.manifest(1).path.stat().st_mtime_ns == written_at
    own, other = made.manifest(1).coded.features, made.manifest(2).coded.features

    def exchange():
        shutil.rmtree(folder / "fold1")
        shutil.copytree(folder / "fold2", folder / "fold1")
        (folder / "fold2" / "features.h5").write_bytes(b"harmed")

    on_root(comm, exchange)
    mended = FoldFeatures(manifest, TREES, folder, PROBLEM, comm)
    assert [mended.manifest(fold).coded.features for fold in (1, 2)] == [own, other] and own != other
    assert feature_map.load(mended.manifest(2)).forest is not None
    assert not comm.is_root or again.seconds(1) == made.seconds(1) > 0
    comm.barrier()
    other = FoldFeatures(manifest, replace(TREES, seed=1), folder, PROBLEM, comm)
    assert other.manifest(1).coded.features != made.manifest(1).coded.features
    other.manifest(0)
    comm.barrier()
    if comm.is_root:
        other.remove(but_all=True)
        assert {path.name for path in folder.iterdir()} >= {"all", "all.json", "features.json"}
        assert not list(folder.glob("fold*"))
        other.remove()
        assert not folder.exists()


@pytest.mark.serial
def test_words_for_candidates():
    assert parse("raw").options is None and parse("leaves").options == {"trees": 100}
    assert parse("bins=16,crosses=top:20").options == {"bins": 16, "crosses": "top:20"}
    assert parse("bins=16,crosses=a:b,c:d,keep").options == {"bins": 16, "crosses": "a:b,c:d", "keep": True}
    assert parse("trees=1e2,min-leaf=5,tree-rows=1000,seed=0").options == {
        "trees": 100,
        "min_leaf": 5,
        "tree_rows": 1000,
        "seed": 0,
    }
    assert parse("leaves,min_leaf=5").options == parse("leaves,min-leaf=5").options
    for text, told in (
        ("forest", "is not one of the features"),
        ("keep", "makes no features"),
        ("bins=4,min-leaf=3", "say how many, such as trees=100"),
        ("trees=0", "not a whole number of at least 1"),
        ("trees=many", "not a whole number"),
        ("bins=4,bins=5", "is not one"),
        ("bins=4,age:job", "is not one"),
        ("", "is not one"),
    ):
        with pytest.raises(InputError, match=told):
            parse(text)
    same = distinct([parse(text) for text in ("raw", "leaves", "trees=100", "raw", "trees=10")])
    assert [candidate.text for candidate in same] == ["raw", "leaves", "trees=10"]
    assert parse("trees=5,keep").folder == "trees=5,keep"
    assert parse("attributes=../a/b.json").folder.startswith("features-")


@pytest.mark.serial
def test_options_as_text_are_those_options_again():
    for made in (
        FeatureOptions(),
        FeatureOptions(16, "top:4", True),
        FeatureOptions(None, trees=100, min_leaf=20, tree_rows=500, seed=3),
        FeatureOptions(32, "a:b,c:d", trees=7, attributes="names.json"),
    ):
        assert options(named(made.text)) == made
    assert FeatureOptions(None, trees=100, min_leaf=20).text == "trees=100,min-leaf=20"


@pytest.mark.serial
def test_a_warning_where_trees_have_seen_the_folds(tmp_path):
    X, y = rows()
    manifest = written(ALONE, tmp_path / "d", X, y)
    assert labels_warning(manifest) == ""
    assert labels_warning(build(tmp_path / "d", tmp_path / "bins", ALONE, FeatureOptions(3))) == ""
    screened = labels_warning(build(tmp_path / "d", tmp_path / "top", ALONE, FeatureOptions(3, "top:2")))
    assert screened.startswith("the crosses") and "--features bins=3,crosses=top:2," in screened
    assert "--features trees=4" in labels_warning(build(tmp_path / "d", tmp_path / "leaves", ALONE, TREES))
    assert feature_map.load(read_manifest(tmp_path / "leaves")).forest.n_trees == 4
