"""The three ways of holding X give the same products as a plain numpy array."""

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from scipy import sparse

from distsms.features import Dense, Pattern, Sparse, index_dtype

CLASSES = ("sparse", "pattern", "dense")


def draw_rows(seed, n_local, p, density, ones=False):
    """(n_local, p) numpy array with about `density` nonzeros."""
    rng = np.random.default_rng(seed)
    values = np.ones((n_local, p)) if ones else rng.normal(size=(n_local, p))
    return values * (rng.random((n_local, p)) < density)


def hold(kind, array):
    if kind == "dense":
        return Dense(array)
    X = sparse.csr_matrix(array)
    if kind == "pattern":
        return Pattern(X.indices, X.indptr, array.shape[1])
    return Sparse(X.data, X.indices, X.indptr, array.shape[1])


cases = st.tuples(
    st.sampled_from(CLASSES),
    st.integers(0, 2**31),
    st.sampled_from([0, 1, 2, 5, 30]),
    st.sampled_from([1, 2, 7, 40]),
    st.sampled_from([0.0, 0.1, 0.5, 1.0]),
)


def build(case):
    kind, seed, n_local, p, density = case
    array = draw_rows(seed, n_local, p, density, ones=kind == "pattern")
    return hold(kind, array), array, np.random.default_rng([seed, 1])


@settings(derandomize=True, deadline=None)
@given(cases)
def test_dot(case):
    features, array, rng = build(case)
    w, c = rng.normal(size=array.shape[1]), rng.normal(size=array.shape[0])
    left, right = np.dot(features.margins(w), c), np.dot(w, features.transposed_times(c))
    assert left == pytest.approx(right, rel=1e-10, abs=1e-10)


@settings(derandomize=True, deadline=None)
@given(cases)
def test_agrees_with_numpy(case):
    features, array, rng = build(case)
    w, c = rng.normal(size=array.shape[1]), rng.normal(size=array.shape[0])
    assert features.shape == array.shape
    np.testing.assert_allclose(features.margins(w), array @ w, atol=1e-12)
    np.testing.assert_allclose(features.transposed_times(c), array.T @ c, atol=1e-12)
    np.testing.assert_allclose(features.second_moments(), (array**2).sum(axis=0), atol=1e-12)


@settings(derandomize=True, deadline=None)
@given(cases, st.sampled_from([1, 2, 5]))
def test_k_columns_are_k_single_products(case, k):
    features, array, rng = build(case)
    W, C = rng.normal(size=(array.shape[1], k)), rng.normal(size=(array.shape[0], k))
    margins, gradients = features.margins(W), features.transposed_times(C)
    assert margins.shape == (array.shape[0], k) and gradients.shape == (array.shape[1], k)
    for j in range(k):
        np.testing.assert_allclose(margins[:, j], features.margins(W[:, j].copy()), atol=1e-12)
        np.testing.assert_allclose(gradients[:, j], features.transposed_times(C[:, j].copy()), atol=1e-12)


@pytest.mark.parametrize("kind", CLASSES)
@pytest.mark.parametrize("n_local", [0, 3])
def test_results_are_float64_and_C_ordered(kind, n_local):
    features = hold(kind, draw_rows(0, n_local, 4, 0.5, ones=kind == "pattern"))
    for W, C in ((np.ones(4), np.ones(n_local)), (np.ones((4, 2)), np.ones((n_local, 2)))):
        for product in (features.margins(W), features.transposed_times(C)):
            assert product.dtype == np.float64 and product.flags.c_contiguous
    assert features.second_moments().shape == (4,)


@pytest.mark.parametrize("kind", CLASSES)
def test_a_rank_without_rows_adds_zero(kind):
    features = hold(kind, np.empty((0, 4)))
    assert features.shape == (0, 4) and features.nnz == 0
    assert features.margins(np.ones(4)).shape == (0,)
    assert not features.transposed_times(np.empty(0)).any()
    assert not features.second_moments().any()


@pytest.mark.parametrize("kind", CLASSES)
def test_products_leave_X_alone(kind):
    array = draw_rows(1, 5, 4, 0.6, ones=kind == "pattern")
    features = hold(kind, array.copy())
    features.second_moments()
    features.margins(np.ones((4, 2)))
    np.testing.assert_array_equal(features.margins(np.eye(4)), array)


def test_sparse_and_dense_hold_the_given_arrays_without_a_copy():
    X = sparse.csr_matrix(draw_rows(2, 50, 9, 0.5))
    features = Sparse(X.data, X.indices, X.indptr, 9)
    w = np.ones(9)
    before = features.margins(w)
    X.data *= 2
    np.testing.assert_allclose(features.margins(w), 2 * before)
    assert features.nnz == X.nnz
    assert features.nbytes == 12 * X.nnz + 4 * 51
    array = np.ones((3, 2))
    assert Dense(array).nbytes == 48 and Dense(array).nnz == 6
    dense = Dense(array)
    array[:] = 3
    assert dense.margins(np.ones(2))[0] == 6


def test_float32_values_become_float64():
    array = np.array([[0.1, 0.0], [0.0, 0.7]], np.float32)
    for features in (hold("sparse", array), hold("dense", array)):
        np.testing.assert_array_equal(features.margins(np.ones(2)), array.astype(np.float64).sum(axis=1))


@pytest.mark.parametrize(
    ("nnz", "p", "dtype"),
    [(0, 1, np.int32), (2**31 - 1, 9, np.int32), (2**31, 9, np.int64), (9, 2**31 - 1, np.int32), (9, 2**31, np.int64)],
)
def test_indices_are_as_small_as_possible(nnz, p, dtype):
    assert index_dtype(nnz, p) is dtype


def test_columns_beyond_int32():
    features = Sparse(np.array([2.0]), np.array([2**31]), np.array([0, 1]), 2**31 + 1)
    assert features.shape == (1, 2**31 + 1) and features.nnz == 1


@settings(derandomize=True, deadline=None)
@given(cases, st.integers(1, 9))
def test_what_rounding_bounds_are_made_of(case, held_at_a_time):
    """The largest row sum of |x w| times its terms + 2, and each column's largest entry and count of entries."""
    features, array, rng = build(case)
    w = rng.normal(size=array.shape[1])
    dense = case[0] == "dense"
    terms = array.shape[1] if dense else np.count_nonzero(array, axis=1)
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr("distsms.features._TERMS", held_at_a_time)
        found, (largest, counts) = features.largest_terms(w), features.columns()
    assert found == pytest.approx(((terms + 2) * (np.abs(array) @ np.abs(w))).max(initial=0), rel=1e-12)
    np.testing.assert_array_equal(largest, np.abs(array).max(axis=0, initial=0))
    np.testing.assert_array_equal(
        counts, np.full(array.shape[1], len(array)) if dense else np.count_nonzero(array, axis=0)
    )
