"""The table of the smaller class: places by definition, and loops that stay inside their arrays."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from distsms.losses import pairwise

numbers = st.lists(st.integers(-6, 6).map(float), min_size=1, max_size=9)


@pytest.mark.serial
@given(numbers, st.floats(-8, 8), st.sampled_from([pairwise.TINY, 0.5, 3.0]), st.data())
def test_the_search_finds_the_place_from_any_bucket(q, b, width, data):
    """How many different q have b - q >= width, even if the bucket that the search begins with is a wrong one."""
    value = np.concatenate([[-np.inf], np.unique(q), [np.inf]])
    d = len(value) - 2
    low = data.draw(st.integers(0, d))
    high = data.draw(st.integers(low, d))
    found = pairwise._search(b, width, d, value, np.uint64(low), np.uint64(high))
    assert found == np.sum(b - np.unique(q) >= width)


@pytest.mark.serial
@pytest.mark.parametrize("extra", [0, 1, 7])
@pytest.mark.parametrize("weighted", [False, True])
def test_points_in_chunks_stay_inside_their_arrays(extra, weighted):
    """As plain Python, which looks at every index, the loop over points gives what the compiled one does."""
    rng, n = np.random.default_rng(extra), pairwise.CHUNK + extra
    q, points = np.sort(np.round(rng.normal(size=30), 1)), rng.normal(size=n) + 10  # all of them above all q
    of_q, of_points = (rng.random(30), rng.random(n)) if weighted else (None, None)
    results = []
    for add_points in (pairwise._add_points, pairwise._add_points.py_func):
        table, out = pairwise.Table.allocate(len(q)), np.empty(n)
        d = pairwise._tabulate(q, of_q, 9.0, table)
        rows = np.arange(n, dtype=np.uint32)
        sums = add_points(points, rows, of_points, 1.0, 0.0, 9.0, d, table, 1.0, out)
        results.append(np.concatenate([sums, out]))
    np.testing.assert_allclose(*results, rtol=1e-12)
