"""The edges of bins are the quantiles of all ranks' rows, exactly."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from scipy import sparse

from distsms.features.attributes import Attribute
from distsms.features.quantiles import edges_of
from distsms.features.rows import Rows, as_single


def expected(values, weights, n_bins):
    """The definition, with all rows in one place."""
    different, which = np.unique(as_single(np.asarray(values, float)), return_inverse=True)
    if len(different) <= n_bins:
        return different[1:]
    mass = np.bincount(which, weights)
    heavy = mass > 2 * mass.sum() / n_bins
    bins = n_bins - 2 * np.count_nonzero(heavy)
    others = np.cumsum(np.where(heavy, 0, mass))
    edges = set(different[heavy]) | set(different[1:][heavy[:-1]])
    for k in range(1, bins):
        edges.add(different[np.flatnonzero(others > k * others[-1] / bins)[0]])
    return np.array(sorted(edges - {different[0]}), np.float32)


def found(comm, columns, weights, n_bins, cuts, as_sparse=False, **more):
    """The edges, from the rows of each rank in two parts. cuts: where the rows of each rank begin, as shares."""
    X = np.column_stack(columns)
    n = len(X)
    ends = [0, *(round(n * share) for share in sorted(cuts[: comm.size - 1])), n]
    ends = ends if len(ends) == comm.size + 1 else [n * rank // comm.size for rank in range(comm.size + 1)]
    first, last = ends[comm.rank], ends[comm.rank + 1]
    X, own = X[first:last], None if weights is None else np.asarray(weights, float)[first:last]
    X = sparse.csr_matrix(X) if as_sparse else X
    middle = (last - first) // 3

    def passes():
        for rows in (slice(0, middle), slice(middle, None)):
            labels = np.ones(X[rows].shape[0], np.int8)
            yield Rows(X[rows], labels, None if own is None else own[rows])

    return edges_of(
        passes, [Attribute(f"column {j}", (j,)) for j in range(X.shape[1])], n_bins, last - first, comm, **more
    )


values = st.one_of(
    st.lists(st.integers(-3, 12), min_size=1, max_size=60),
    st.lists(st.floats(-1e40, 1e40), min_size=1, max_size=60),
    st.lists(st.sampled_from([0.0, -0.0, 0.0, 0.0, 1.5, -2.0, 1e-40, 3.4028235e38]), min_size=1, max_size=60),
)


@given(
    values,
    st.integers(2, 9),
    st.booleans(),
    st.booleans(),
    st.integers(0, 2**31),
    st.lists(st.floats(0, 1), max_size=3),
)
def test_edges_are_those_of_the_definition(comm, given_values, n_bins, weighted, as_sparse, seed, cuts):
    rng = np.random.default_rng(seed)
    weights = rng.integers(1, 5, len(given_values)) if weighted else None
    columns = [
        np.array(given_values, float),
        rng.permutation(given_values),
        rng.integers(0, 3, len(given_values)) * 1.0,
    ]
    some = found(comm, columns, weights, n_bins, cuts, as_sparse, n_bytes=1)
    for own, column in zip(some, columns, strict=True):
        wanted = expected(column, weights, n_bins)
        np.testing.assert_array_equal(own, wanted)
        assert own.dtype == np.float32 and len(own) < n_bins
    for own, again in zip(some, found(comm, columns, weights, n_bins, cuts, as_sparse), strict=True):
        np.testing.assert_array_equal(own, again)


def test_without_frequent_values_they_are_order_statistics(comm):
    """As NumPy sorts them, and as pandas.qcut divides them but for the side of the edges."""
    rng = np.random.default_rng(0)
    column = rng.normal(size=1003).astype(np.float32).astype(float)
    (edges,) = found(comm, [column], None, 32, [])
    np.testing.assert_array_equal(edges, np.sort(column)[np.arange(1, 32) * 1003 // 32])
    sizes = np.bincount(np.searchsorted(edges, column, side="right"))
    assert len(sizes) == 32 and sizes.min() >= 31 and sizes.max() <= 32


def test_a_frequent_value_has_a_bin_of_its_own(comm):
    """Of a column with 90 % zeros, the other values get all bins but two, as many rows each."""
    rng = np.random.default_rng(1)
    column = np.where(rng.random(5000) < 0.9, 0.0, rng.permutation(5000) + 1.0)
    (edges,) = found(comm, [column], None, 16, [], as_sparse=True)
    sizes = np.bincount(np.searchsorted(edges, column, side="right"))
    assert sizes[0] == np.count_nonzero(column == 0)
    assert len(sizes) == 15 and np.ptp(sizes[1:]) <= 1


def test_missing_numbers_and_ranks_without_rows(comm):
    """Rows whose number is missing count in no bin, and a column of which all numbers are missing has one bin."""
    n = 40 * (comm.rank or comm.size == 1)  # none on the root, if there are others
    X = np.column_stack([np.arange(n) % 40, np.arange(n) % 2, np.ones(n)])
    passes = [Rows(X, np.ones(n, np.int8))] if n else []
    numbers = [Attribute(f"missing in {missing}", (0,), missing=missing) for missing in (1, 2, None)]
    some = edges_of(lambda: passes, numbers, 20, n, comm)
    np.testing.assert_array_equal(some[0], np.arange(2, 40, 2))
    np.testing.assert_array_equal(some[2], np.arange(2, 40, 2))
    assert len(some[1]) == 0


def test_edges_do_not_depend_on_the_order_of_the_rows(comm):
    rng = np.random.default_rng(2)
    column, weights = np.round(rng.gamma(1, size=500), 2), rng.integers(0, 4, 500) + 0.0
    weights = np.maximum(weights, 1.0)
    (first,) = found(comm, [column], weights, 12, [0.1, 0.7, 0.9])
    order = rng.permutation(500)
    (second,) = found(comm, [column[order]], weights[order], 12, [])
    np.testing.assert_array_equal(first, second)


@pytest.mark.parametrize("kind", [np.float32, np.float64])
def test_numbers_are_compared_as_float32(kind):
    column = np.array([0.1, 0.3, -0.0, 1e300, -1e300, 1e-46]).astype(kind) if kind is np.float64 else None
    column = np.array([0.1, 0.3, -0.0, 3.4028235e38, -3.4028235e38, 0], kind) if column is None else column
    np.testing.assert_array_equal(
        as_single(column), np.array([0.1, 0.3, 0.0, 3.4028235e38, -3.4028235e38, 0.0], np.float32)
    )
    assert not np.signbit(as_single(column)[[2, 5]]).any()


@pytest.mark.parametrize("n_bins", [2, 5])
def test_equal_weights_that_are_no_whole_numbers_change_nothing(n_bins, comm):
    """Sums of 0.1 are not exact, and depend on which rank has which rows; edges do not."""
    columns = [np.arange(1.0, 11), np.array([0.0] * 4 + [1, 2, 3, 4, 5, 6])]
    for own, wanted in zip(
        found(comm, columns, np.full(10, 0.1), n_bins, []), found(comm, columns, None, n_bins, []), strict=True
    ):
        np.testing.assert_array_equal(own, wanted)
