"""The table of the smaller class: places by definition, and loops that stay inside their arrays."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from distsms.losses import pairwise_kernels as kernel
from distsms.losses.pairwise import SortedClass

numbers = st.lists(st.integers(-6, 6).map(float), min_size=1, max_size=9)


@pytest.mark.serial
@given(numbers, st.floats(-8, 8), st.sampled_from([kernel.TINY, 0.5, 3.0]), st.data())
def test_the_search_finds_the_place_from_any_bucket(q, b, width, data):
    """How many different q have b - q >= width, even if the bucket that the search begins with is a wrong one."""
    value = np.concatenate([[-np.inf], np.unique(q), [np.inf]])
    d = len(value) - 2
    low = data.draw(st.integers(0, d))
    high = data.draw(st.integers(low, d))
    found = kernel._search(b, width, d, value, np.uint64(low), np.uint64(high))
    assert found == np.sum(b - np.unique(q) >= width)


@pytest.mark.serial
@pytest.mark.parametrize("extra", [0, 1, 7])
@pytest.mark.parametrize("weighted", [False, True])
def test_points_in_chunks_stay_inside_their_arrays(extra, weighted, monkeypatch):
    """As plain Python, which looks at every index, the loop over points gives what the compiled one does."""
    rng, n = np.random.default_rng(extra), kernel.CHUNK + extra
    q, points = np.sort(np.round(rng.normal(size=30), 1)), rng.normal(size=n) + 10  # all of them above all q
    of_q, of_points = (rng.random(30), rng.random(n)) if weighted else (None, None)
    results = []
    compiled = kernel.add_points, kernel._pair
    for add_points, pair in (compiled, [function.py_func for function in compiled]):
        monkeypatch.setattr(kernel, "_pair", pair)
        table, out = kernel.Table.allocate(len(q)), np.empty(n)
        d = kernel.tabulate(q, of_q, 9.0, table)
        rows = np.arange(n, dtype=np.uint32)
        buffers = kernel.Buffers.allocate(rows, d, weighted)
        sums = add_points(points, rows, of_points, 1.0, 0.0, 9.0, d, table, 1.0, out, buffers)
        results.append(np.concatenate([sums, out]))
    np.testing.assert_allclose(*results, rtol=1e-12)


@pytest.mark.serial
@pytest.mark.parametrize("weighted", [False, True])
@pytest.mark.parametrize("nu", [0.0, 0.5])
def test_points_that_are_brought_together_by_slices(nu, weighted):
    """With more points than values, in place of their scores, the results are those of few points at a time."""
    rng, n, k = np.random.default_rng(3), 20_000, 3 * kernel.SLICE // kernel.BUCKETS
    scores, rows = rng.normal(size=n), np.flatnonzero(rng.random(n) < 0.9).astype(np.uint32)
    q, few = np.sort(rng.normal(size=k) - 0.5), kernel.WORTH * k // 2
    of_q, of_rows = (rng.random(k), rng.random(n)) if weighted else (None, None)
    plain, out = SortedClass(k, weighted), np.full(n, 7.0)
    plain.tabulate(q, nu, of_q)
    for start in range(0, len(rows), few):
        plain.add_points(scores, rows[start : start + few], 1.0, 0.25, 2.0, out, of_rows)
    sliced, in_place = SortedClass(k, weighted), scores.copy()
    sliced.tabulate(q, nu, of_q)
    sliced.add_points(in_place, rows, 1.0, 0.25, 2.0, in_place, of_rows)
    np.testing.assert_allclose(in_place[rows], out[rows], rtol=1e-12)
    others = np.setdiff1d(np.arange(n), rows)
    np.testing.assert_array_equal(in_place[others], scores[others])
    np.testing.assert_allclose(sliced.sums, plain.sums, rtol=1e-12)
    np.testing.assert_allclose(sliced.gamma(), plain.gamma(), rtol=1e-9)
