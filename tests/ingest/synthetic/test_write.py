"""Synthetic data: the same on any ranks, as specified within the tolerances, trainable; the paper's lower bounds."""

from __future__ import annotations

import json
from itertools import pairwise
from math import ceil

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from scipy import sparse

from distsms.base.communicator import Communicator
from distsms.base.errors import InputError
from distsms.base.scored import Scored
from distsms.cli import parse
from distsms.ingest.synthetic.lower_bounds import LOWER_BOUNDS, PrbepLowerBound, RocAreaLowerBound
from distsms.ingest.synthetic.planted import BLOCK_ENTRIES, MAX_DENSITY, DenseSource, Recipe, SparseSource
from distsms.ingest.synthetic.write import rows, write
from distsms.losses.registry import make_loss
from distsms.metrics.ranking import ranking
from distsms.models import model
from distsms.optim.objective import Objective, Request
from distsms.optim.penalty import ElasticNet
from distsms.optim.run import minimize
from distsms.optim.settings import Settings
from distsms.shards.dataset import load, read_manifest
from distsms.shards.manifest import verify
from tests.ingest.synthetic.worst_cases import J as known_J
from tests.ingest.synthetic.worst_cases import iterate, iterates, minimizer
from tests.support.examples import examples
from tests.support.problems import asked
from tests.support.program import run

ONE = ElasticNet(1.0)


def source(kind, n=500, p=40, **more):
    """Return a small source of a kind."""
    if kind in LOWER_BOUNDS:
        return LOWER_BOUNDS[kind](n)
    if kind == "dense":
        return DenseSource(Recipe(n, p, **more))
    return SparseSource(Recipe(n, p, **more), 0.2, pattern=kind == "pattern")


def objective(block, comm, measure):
    return Objective(block.features, [make_loss(measure, "gather", block.labels, block.weights, comm)], comm)


KINDS = ("sparse", "pattern", "dense", *LOWER_BOUNDS)


@pytest.mark.parametrize("kind", KINDS)
def test_any_ranks_write_the_same(kind, comm, shared_dir):
    """All ranks together write what the root alone writes; another seed gives another data set."""
    here = write(source(kind), shared_dir / "all", comm, n_shards=4)
    prints = []
    if comm.is_root:
        alone = write(source(kind), shared_dir / "alone", Communicator(), n_shards=4)
        prints = [alone.fingerprint]
        assert verify(shared_dir / "all") == []
        if kind not in LOWER_BOUNDS:
            other = write(source(kind, seed=1), shared_dir / "other", Communicator(), n_shards=4)
            assert other.fingerprint != alone.fingerprint
    assert comm.bcast(prints) == [here.fingerprint]
    assert (here.layout, len(here.shards)) == ("dense" if kind == "dense" else "csr", 4)


@pytest.mark.parametrize("dtype", ["float32", "float64"])
@pytest.mark.parametrize("kind", ["sparse", "pattern", "dense"])
def test_what_is_loaded_can_be_learnt(kind, dtype, comm, shared_dir):
    """The AUC of the planted w is well above chance and below 1, and so is that of a trained one."""
    made = source(kind, n=2000, noise=0.5, positive=0.3, dtype=dtype)
    block = load(write(made, shared_dir / "d", comm, 3, dtype), comm)
    planted = ranking(Scored(block.features.margins(made.w), block.labels, comm)).rocarea
    assert 0.85 < planted < 0.99
    result = minimize(objective(block, comm, "rocarea"), Settings(lam=1e-3, epsilon=1e-2))
    assert result.gap <= 1e-2
    assert ranking(Scored(block.features.margins(result.w), block.labels, comm)).rocarea > 0.85


@pytest.mark.serial
@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("size", [1, 7, 50])
def test_rows_do_not_depend_on_where_shards_are_cut(kind, size, monkeypatch):
    made = source(kind, n=50)
    made.block_rows = 16
    whole_X, whole_y = rows(made, 0, made.n)
    cuts = [*range(0, made.n, size), made.n]
    for start, stop in pairwise(cuts):
        X, y = rows(made, start, stop)
        assert abs(X - whole_X[start:stop]).max() == 0
        assert np.array_equal(y, whole_y[start:stop])


@pytest.mark.serial
@examples(0.67)
@given(
    n=st.integers(2, 300),
    p=st.integers(1, 200),
    share=st.floats(1e-4, 0.9999),
    noise=st.floats(0.001, 5),
    density=st.floats(1e-3, MAX_DENSITY),
    skew=st.floats(0, 3),
    pattern=st.booleans(),
    dtype=st.sampled_from(["float32", "float64"]),
    seed=st.integers(0, 2**64 - 1),
)
def test_any_recipe_gives_proper_rows(n, p, share, noise, density, skew, pattern, dtype, seed):
    """Blocks have both classes, ascending columns without repetition, and values as dtype and pattern say."""
    recipe = Recipe(n, p, share, noise, seed, dtype)
    for made in (SparseSource(recipe, density, skew, pattern), DenseSource(recipe)):
        X, y = rows(made, 0, n)
        assert X.shape == (n, p)
        assert X.dtype == dtype
        assert set(np.unique(y)) == {-1, 1}
        if isinstance(made, SparseSource):
            fresh = sparse.csr_matrix((X.data, X.indices, X.indptr), shape=X.shape)  # without its flags
            assert fresh.has_canonical_format
            assert X.data.min(initial=1) > 0
            assert (X.data == 1).all() or not pattern


@pytest.mark.serial
@pytest.mark.parametrize("share", [0.001, 0.02, 0.5, 0.9])
@pytest.mark.parametrize("kind", ["sparse", "pattern", "dense", "wide"])
def test_the_share_of_positives(kind, share):
    """The share is within 3 % of itself (of the rarer class; 10 % below 0.01) and four standard deviations."""
    n, rarer = 50_000, min(share, 1 - share)
    made = source(kind, n=n, p=250 if kind == "wide" else 30, positive=share, seed=5)
    found = np.mean(rows(made, 0, n)[1] > 0)
    assert abs(found - share) < (0.03 if rarer >= 0.01 else 0.1) * rarer + 4 * np.sqrt(share * (1 - share) / n)


@pytest.mark.serial
@pytest.mark.parametrize("density", [0.001, 0.05, 0.5, MAX_DENSITY])
@pytest.mark.parametrize("skew", [0.0, 1.0, 2.0])
def test_density_and_popularity(density, skew):
    """Each column is in the share of rows that the class promises, within five standard deviations of chance."""
    n, p = 20_000, 200
    made = SparseSource(Recipe(n, p, seed=2), density, skew)
    q = -np.expm1(-np.diff(made.ends, prepend=0))
    assert q.mean() == pytest.approx(density, rel=1e-6)
    assert q.max() <= 0.951
    if skew:
        assert (np.diff(q) <= 1e-9).all()
    X, _ = rows(made, 0, n)
    assert np.all(np.abs(X.getnnz(axis=0) / n - q) < 5 * np.sqrt(q * (1 - q) / n) + 3 / n)
    deviation = np.sqrt(np.sum(q * (1 - q)) / n) / p
    assert abs(X.nnz / n / p - density) < 5 * deviation


@pytest.mark.serial
def test_columns_are_independent():
    """Two columns are in a row together as often as chance has it; several points on one column would break this."""
    n = 40_000
    X, _ = rows(SparseSource(Recipe(n, 6, seed=3), 0.5, 1.0, pattern=True), 0, n)
    together, q = (X.T @ X).toarray() / n, X.mean(axis=0).A1
    correlation = (together - np.outer(q, q)) / np.sqrt(np.outer(q * (1 - q), q * (1 - q)))
    assert np.abs(correlation - np.diag(np.diag(correlation))).max() < 5 / np.sqrt(n)


@pytest.mark.serial
@pytest.mark.parametrize("n", [2, 10**12])
def test_memory_is_that_of_a_block(n):
    """For any n, a block has few entries, and the last block of a vast data set is made as fast as the first."""
    for made in (SparseSource(Recipe(n, 10**4), 1e-3), DenseSource(Recipe(n, 100))):
        last = -(-n // made.block_rows) - 1
        X, y = made.block(last)
        assert len(y) == n - last * made.block_rows
        assert X.size <= 1.1 * BLOCK_ENTRIES


@pytest.mark.serial
def test_what_cannot_be_made():
    for wrong in ({"n": 1}, {"p": 0}, {"positive": 0}, {"positive": 1}, {"noise": 0}, {"seed": -1}, {"dtype": "int8"}):
        with pytest.raises(InputError, match="--"):
            Recipe(**{"n": 10, "p": 10, **wrong})
    for density, skew in ((0, 1), (0.96, 1), (0.1, -1), (float("nan"), 1), (0.1, float("nan"))):
        with pytest.raises(InputError, match="--"):
            SparseSource(Recipe(10, 10), density, skew)
    for wrong in (0.0, -1.0, 2.0, float("nan")):
        with pytest.raises(InputError, match="--epsilon"):
            PrbepLowerBound.of(wrong)
    with pytest.raises(InputError, match="--n"):
        PrbepLowerBound(1)


def test_a_set_that_is_there_stays(comm, shared_dir):
    first = write(source("dense"), shared_dir / "d", comm)
    with pytest.raises(InputError, match="overwrite"):
        write(source("dense", seed=1), shared_dir / "d", comm)
    comm.barrier()
    assert verify(shared_dir / "d") == []
    assert write(source("dense", seed=1), shared_dir / "d", comm, overwrite=True).fingerprint != first.fingerprint


@pytest.mark.parametrize("kind", LOWER_BOUNDS)
@pytest.mark.parametrize("size", [2, 3, 30])
def test_lower_bounds_in_closed_form(kind, size, comm, shared_dir):
    """The objective gives J at w_0, at every w_k of (10) and (12), and at w*; no point nearby is lower than w*."""
    made = LOWER_BOUNDS[kind](size)
    block = load(write(made, shared_dir / "d", comm, 3), comm)
    ks = range(1, iterates(made) + 1)
    rng = np.random.default_rng(0)
    nearby = [minimizer(made) + 10.0**-e * rng.normal(size=made.p) for e in range(6) for _ in range(5)]
    points = [made.w_0, minimizer(made), *(iterate(made, k) for k in ks), *nearby]
    found = asked(objective(block, comm, made.measure), [Request(w, 1e-3, ONE) for w in points])
    if comm.is_root:
        J = np.array([one.J for one in found])
        closed = {"prbep": lambda k: (2 + 1 / k) / 4, "rocarea": lambda k: (1 / size + 1 / k) / 2}
        expected = [closed[made.measure](k) for k in ks]
        np.testing.assert_allclose(J[2 : 2 + len(ks)], expected, rtol=1e-12)
        assert [known_J(made, k) for k in ks] == expected
        np.testing.assert_allclose(J[:2], [made.J_0, made.minimum], rtol=1e-12)
        assert J.min() >= made.minimum * (1 - 1e-12)


@pytest.mark.parametrize("kind", LOWER_BOUNDS)
def test_the_minimum_of_the_lower_bounds_is_proved(kind, comm, shared_dir):
    made = LOWER_BOUNDS[kind](25)
    block = load(write(made, shared_dir / "d", comm, 2), comm)
    result = minimize(objective(block, comm, made.measure), Settings(lam=1.0, epsilon=1e-5), made.w_0)
    assert result.lower_bound - 1e-12 <= made.minimum <= result.J + 1e-12
    assert result.gap <= 1e-5


@pytest.mark.serial
@pytest.mark.parametrize("epsilon", [1, 0.5, 0.3, 0.04, 0.001, 0.0007])
def test_the_size_for_an_epsilon(epsilon):
    """n is as in the paper, and J is more than epsilon above the minimum before step `steps`, as its theorems say."""
    prbep, rocarea = PrbepLowerBound.of(epsilon), RocAreaLowerBound.of(epsilon)
    assert prbep.size == ceil(1 / epsilon - 1e-9) + 1
    assert rocarea.size == int(1 / epsilon + 1e-9)
    for made in (prbep, rocarea):
        for k in range(1, min(made.steps, iterates(made) + 1)):
            assert known_J(made, k) - made.minimum > epsilon


def command(comm, *words):
    """Run a command on all ranks of this run; return its exit code. Collective."""
    args = parse([str(word) for word in words])
    return args.run(args, comm)


def test_the_command(comm, shared_dir, capsys):
    words = ["--rows", 3000, "--columns", 200, "--density", 0.05, "--positive", 0.2, "--shards", 3]
    assert command(comm, "synth", "sparse", shared_dir / "d", *words) == 0
    out = capsys.readouterr().out
    for word in ("3000 rows, 200 columns", "% positive", "3 shard(s)", "rows/s") if comm.is_root else ():
        assert word in out
    assert "--density 0.05" in read_manifest(shared_dir / "d").source[0]["name"]
    with pytest.raises(InputError, match="holds a data set"):
        command(comm, "synth", "sparse", shared_dir / "d")
    with pytest.raises(InputError, match="--density is not an option of dense"):
        command(comm, "synth", "dense", shared_dir / "x", "--density", 0.1)
    assert not (shared_dir / "x").exists()
    command(comm, "synth", "dense", shared_dir / "d", "--rows", 50, "--overwrite", "--quiet")
    assert read_manifest(shared_dir / "d").n == 50


@pytest.mark.serial
@pytest.mark.e2e
@pytest.mark.by_turns
def test_the_program(comm, tmp_path):
    """Two ranks in processes of their own write what this process writes."""
    words = ["synth", "sparse", tmp_path / "two", "--rows", 1000, "--columns", 50]
    assert "1000 rows, 50 columns" in run(*words, ranks=2)
    command(comm, *words[:2], tmp_path / "one", *words[3:])
    assert read_manifest(tmp_path / "one").fingerprint == read_manifest(tmp_path / "two").fingerprint


@pytest.mark.parametrize("kind", LOWER_BOUNDS)
def test_training_starts_from_the_papers_point(kind, comm, shared_dir, capsys):
    made, d = LOWER_BOUNDS[kind].of(0.02), shared_dir / "d"
    command(comm, "synth", kind, d, "--epsilon", 0.02)
    assert f"min J = {made.minimum:.8g}" in capsys.readouterr().out or not comm.is_root
    start = d / "w0.h5"
    assert np.array_equal(model.load(start).w, made.w_0)
    words = ["--measure", made.measure, "--lambda", 1, "--init", start, "--output", shared_dir / "m.h5", "--quiet"]
    assert command(comm, "train", d, *words, "--trace", shared_dir / "trace") == 0
    assert command(comm, "evaluate", start, d) == 0
    if comm.is_root:
        first = json.loads((shared_dir / "trace").read_text().splitlines()[0])
        assert first["J"] == pytest.approx(made.J_0, rel=1e-12)
        assert abs(model.load(shared_dir / "m.h5").info["J"] - made.minimum) <= 1e-3
