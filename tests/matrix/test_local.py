"""Every way to store X gives the same products as a plain NumPy array, and needs as much memory as documented."""

import ctypes
import itertools
import mmap
import tracemalloc

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from scipy import sparse

from distsms.matrix import kernels, local, plain
from distsms.matrix.blocks import thread_count
from distsms.matrix.code_maps import Categories
from distsms.matrix.coded import CodedRows, code_rows
from distsms.matrix.local import DenseRows, SparseRows, index_dtype, length_dtype, unsigned
from distsms.matrix.normalization import Normalization

KINDS = ("sparse", "sorted", "pattern", "sorted pattern", "dense", "coded pattern")
EPS = np.finfo(float).eps


def draw_rows(seed, n_local, p, density, ones=False, dtype=np.float64):
    """Draw an (n_local, p) NumPy array of which a share of about `density` is not zero."""
    rng = np.random.default_rng(seed)
    values = np.ones((n_local, p)) if ones else rng.normal(size=(n_local, p))
    return (values * (rng.random((n_local, p)) < density)).astype(dtype)


def hold(kind, array, threads=1):
    if kind == "dense":
        return DenseRows(array, threads)
    if kind == "coded pattern":  # each column is a block with one code, which is missing where the entry is 0
        blocks, n = Categories((1,) * array.shape[1]), len(array)
        codes = np.where(array == 1, 0, 255).astype(np.uint8)
        cuts = [0, n // 3, n // 3, n]
        return CodedRows(blocks, code_rows(codes, blocks, cuts), cuts, threads)
    X, p = sparse.csr_matrix(array), array.shape[1]
    if kind == "sparse":
        return SparseRows.of(X, threads)
    values = None if "pattern" in kind else X.data
    return SparseRows(values, X.indices, np.diff(X.indptr), p, threads, sort="sorted" in kind)


def stored(kind):
    """Return whether exactly the entries that are not 0 are stored."""
    return kind not in ("dense", "coded pattern")


@given(
    st.sampled_from(["sparse", "sorted", "pattern", "sorted pattern"]),
    st.sampled_from([np.float32, np.float64]),
    st.integers(0, 2**31),
    st.sampled_from([0, 1, 5, 30, 700]),
    st.sampled_from([1, 7, 40]),
    st.sampled_from([0.0, 0.1, 0.5, 1.0]),
    st.booleans(),
)
def test_numpy_computes_the_same_to_the_bit(kind, dtype, seed, n_local, p, density, normalized):
    """Numbers are of all sizes, so that a sum in another order would be another number."""
    rng = np.random.default_rng(seed)
    array = draw_rows(seed, n_local, p, density, "pattern" in kind, dtype)
    if "pattern" not in kind:
        array *= (10.0 ** rng.integers(-9, 9, array.shape)).astype(dtype)
    w, c = rng.normal(size=p) * 10.0 ** rng.integers(-9, 9, p), rng.normal(size=n_local) * rng.integers(0, 2, n_local)
    results = []
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(local, "PART_ENTRIES", 2**10)
        patch.setattr(local, "is_compiled", lambda kernel, arguments: False)
        for small, loops in ((-1, kernels), (2**20, plain)):
            patch.setattr(local, "SMALL", small)
            rows = hold(kind, array)
            assert rows._loops is loops
            rows.row_factors = rows.lengths() if normalized else rows.row_factors
            of_entries = [each for each in rows.arrays if each is not None]
            found = [rows.row_entries(), rows.row_entries(np.flatnonzero(c))]
            of_entries += [edges for each in found for edges in (each.begins, each.ends)]
            products = [rows.margins(w), rows.transposed_times(c), rows.lengths(), *rows.columns()]
            results.append([*of_entries, *products, np.array(rows.largest_terms(w))])
    for ours, theirs in zip(*results, strict=True):
        assert ours.tobytes() == theirs.tobytes()


def test_kernels_take_over_after_many_products(monkeypatch):
    monkeypatch.setattr(local, "SMALL", 2**10)
    monkeypatch.setattr(local, "SOON", 20)
    monkeypatch.setattr(local, "is_compiled", lambda kernel, arguments: False)
    rows = hold("sparse", draw_rows(1, 5, 4, 0.5))
    before = rows.margins(np.ones(4))
    assert rows._loops is plain
    assert [rows.margins(np.ones(4)).tolist() for _ in range(2)] == [before.tolist()] * 2 and rows._loops is kernels


def assert_most_terms(rows, array, w):
    """Check `most_terms` at w, and at the longest row: if its entries have the same size, nothing is to spare but 2."""
    most = rows.most_terms(rows.columns().largest.max(initial=0))
    longest = array[np.argsort(np.count_nonzero(array, axis=1))[-1:]]
    for v in [w, *longest]:
        assert rows.largest_terms(v) <= most * np.sqrt(np.sum(v.astype(np.longdouble) ** 2))


cases = st.tuples(
    st.sampled_from(KINDS),
    st.sampled_from([np.float32, np.float64]),
    st.integers(0, 2**31),
    st.sampled_from([0, 1, 2, 5, 30, 600]),
    st.sampled_from([1, 2, 7, 40, 300]),
    st.sampled_from([0.0, 0.1, 0.5, 1.0]),
    st.sampled_from([1, 2, 3, 4]),
)


def build(case):
    kind, dtype, seed, n_local, p, density, threads = case
    array = draw_rows(seed, n_local, p, density, "pattern" in kind, dtype)
    return hold(kind, array, threads), array.astype(np.float64), np.random.default_rng([seed, 1])


@given(cases, st.sampled_from([0, 1, 2, 5]))
def test_products_and_the_dot_test(case, k):
    """Products agree with NumPy's for one vector (k = 0) and for k vectors, and <X w, c> = <w, X' c>."""
    rows, array, rng = build(case)
    n_local, p = rows.shape
    assert rows.shape == array.shape
    W, C = rng.normal(size=(k, p) if k else p), rng.normal(size=(k, n_local) if k else n_local)
    margins, gradients = rows.margins(W), rows.transposed_times(C)
    np.testing.assert_allclose(margins, W @ array.T, atol=1e-11)
    np.testing.assert_allclose(gradients, C @ array, atol=1e-11)
    assert np.vdot(margins, C) == pytest.approx(np.vdot(W, gradients), rel=1e-10, abs=1e-10)
    for product in (margins, gradients):
        assert product.dtype == np.float64 and product.flags.c_contiguous


@given(cases, st.sampled_from(["none", "standard", "l2"]))
def test_taken_rows_are_those_rows(case, kind):
    rows, array, rng = build(case)
    n_local, p = rows.shape
    scale = rng.uniform(0.5, 2, p)
    rows.normalize(Normalization(kind, scale if kind == "standard" else None))
    chosen, w = rng.random(n_local) < 0.4, rng.normal(size=p)
    assert_most_terms(rows, array * scale if kind == "standard" else array, w)
    taken = rows.take(chosen)
    assert taken.shape == (np.count_nonzero(chosen), p)
    np.testing.assert_allclose(taken.margins(w), rows.margins(w)[chosen], rtol=1e-12, atol=1e-12)
    assert taken.nnz == (np.count_nonzero(array[chosen]) if stored(case[0]) else taken.shape[0] * p)


@given(cases)
def test_one_pass_quantities(case):
    """Check the largest row sum of |x w| times (terms + 2), and each column's largest entry, count and squares."""
    rows, array, rng = build(case)
    w, dense = rng.normal(size=array.shape[1]), case[0] == "dense"
    terms = array.shape[1] if dense else np.count_nonzero(array, axis=1)
    largest, counts, squares = rows.columns()
    expected = ((terms + 2) * (np.abs(array) @ np.abs(w))).max(initial=0)
    if stored(case[0]) or dense:
        assert rows.largest_terms(w) == pytest.approx(expected, rel=1e-12)
    else:
        assert rows.largest_terms(w) >= expected * (1 - 1e-12)
    np.testing.assert_array_equal(largest, np.abs(array).max(axis=0, initial=0))
    np.testing.assert_array_equal(
        counts, np.full(array.shape[1], len(array)) if dense else np.count_nonzero(array, axis=0)
    )
    np.testing.assert_allclose(squares, (array**2).sum(axis=0), atol=1e-11)
    weights = rng.uniform(0, 3, len(array))
    weighed = rows.columns(weights)
    np.testing.assert_array_equal(weighed.largest, largest)
    np.testing.assert_array_equal(weighed.counts, counts)
    np.testing.assert_allclose(weighed.squares, weights @ array**2, atol=1e-11)
    np.testing.assert_array_equal(rows.columns().squares, squares)  # the weights are forgotten


@pytest.mark.parametrize("kind", KINDS)
def test_the_rounding_bound_of_ones(kind):
    """Rows of codes count one rounding more, as the entries of a block may have a value."""
    roundings = 4 + (kind == "coded pattern")
    assert hold(kind, np.ones((3, 4))).largest_terms(np.ones(4)) == (roundings + 2) * 4


@given(cases, st.sampled_from([1e8, 1e-8]))
def test_errors_stay_below_what_the_rounding_bound_assumes(case, size):
    """The error of a sum of m terms is at most m eps/2 times the sum of their sizes; compared with long doubles."""
    rows, array, rng = build(case)
    exact = array.astype(np.longdouble)
    w, c = rng.normal(size=array.shape[1]) * size, rng.normal(size=array.shape[0])
    wrong = np.abs(rows.margins(w) - exact @ w).max(initial=0)
    assert wrong <= EPS / 2 * rows.largest_terms(w)
    assert_most_terms(rows, array, w)
    wrong = np.abs(rows.transposed_times(c) - c @ exact)
    assert (wrong <= EPS / 2 * (rows.columns().counts + 2) * (np.abs(c) @ np.abs(exact))).all()


@pytest.mark.parametrize("kind", KINDS)
def test_parts_change_nothing(kind, monkeypatch):
    """Products of k vectors are the same in one part, in parts of one row each, and on several threads."""
    array = draw_rows(3, 50, 9, 0.5, ones="pattern" in kind)
    W, C = np.random.default_rng(0).normal(size=(2, 9)), np.random.default_rng(1).normal(size=(2, 50))
    whole = hold(kind, array)
    monkeypatch.setattr(local, "PART_ENTRIES", 1)
    cut = hold(kind, array)
    np.testing.assert_array_equal(cut.margins(W), whole.margins(W))
    np.testing.assert_allclose(cut.transposed_times(C), whole.transposed_times(C), rtol=1e-14)
    for threads in (2, 3, 4):
        shared = hold(kind, array, threads)
        np.testing.assert_array_equal(shared.margins(W), whole.margins(W))
        once = shared.transposed_times(C)
        np.testing.assert_allclose(once, whole.transposed_times(C), rtol=1e-13)
        np.testing.assert_array_equal(shared.transposed_times(list(C)), once)
        assert shared.largest_terms(W[0]) == whole.largest_terms(W[0])


@pytest.mark.parametrize("p, dtype", [(2, np.uint16), (2**16, np.uint16), (2**16 + 1, np.uint32)])
@pytest.mark.parametrize("values", [None, np.float32, np.float64])
def test_the_last_columns(p, dtype, values):
    """Column 65,535 is the last that fits into 16 bits; here are wide data with rows of every length up to a dozen."""
    rng = np.random.default_rng(0)
    columns = [np.sort(rng.choice(min(p, 30), size=min(i, p), replace=False))[::-1] for i in range(13)]
    indices = np.concatenate([p - 1 - row for row in columns])  # ascending, at the upper end
    lengths = np.array([len(row) for row in columns])
    data = None if values is None else rng.normal(size=len(indices)).astype(values)
    indptr = np.concatenate(([0], np.cumsum(lengths)))
    X = sparse.csr_matrix((np.ones(len(indices)) if data is None else data, indices, indptr), shape=(13, p))
    rows = SparseRows(data, indices, lengths, p)
    assert rows.arrays[0].dtype == dtype
    w, c = rng.normal(size=p), rng.normal(size=13)
    np.testing.assert_allclose(rows.margins(w), X.astype(float) @ w, rtol=1e-13, atol=1e-13)
    np.testing.assert_allclose(rows.transposed_times(c), X.astype(float).T @ c, rtol=1e-13, atol=1e-13)


@pytest.mark.parametrize("sort", [False, True])
@pytest.mark.parametrize("part", [500, local.PART_ENTRIES])
@pytest.mark.parametrize("ones", [False, True])
def test_vectors_beyond_the_caches(ones, part, sort, monkeypatch):
    """With so many columns, the loops prefetch what entries ahead name, up to the end of their part."""
    monkeypatch.setattr(local, "PART_ENTRIES", part)
    rng, p = np.random.default_rng(0), kernels.FAR + 30
    X = sparse.csr_matrix(draw_rows(4, 300, 60, 0.3) * (np.arange(300) % 5 > 0)[:, None])  # rows of 0 to 30 entries
    wide = np.sort(rng.choice(p, 60, replace=False))
    near, far = (
        SparseRows(None if ones else X.data, columns[X.indices], np.diff(X.indptr), n_columns, sort=sort)
        for columns, n_columns in ((np.arange(60), 60), (wide, p))
    )
    w, c = rng.normal(size=p), rng.normal(size=300) * (rng.random(300) < 0.8)
    np.testing.assert_array_equal(far.margins(w), near.margins(w[wide]))
    np.testing.assert_array_equal(far.transposed_times(c)[wide], near.transposed_times(c))
    assert far.largest_terms(w) == near.largest_terms(w[wide])
    for found, expected in zip(far.columns(), near.columns(), strict=True):
        np.testing.assert_array_equal(found[wide], expected)


def guarded(array):
    """Return a copy at the end of readable memory: whoever reads beyond it ends the process."""
    size = -(-array.nbytes // mmap.PAGESIZE) * mmap.PAGESIZE
    memory = mmap.mmap(-1, size + mmap.PAGESIZE)
    copy = np.frombuffer(memory, array.dtype, array.size, size - array.nbytes)
    behind, no_access = ctypes.c_void_p(copy.ctypes.data + array.nbytes), 0
    assert ctypes.CDLL(None).mprotect(behind, ctypes.c_size_t(mmap.PAGESIZE), no_access) == 0
    copy[:] = array
    return copy


@pytest.mark.parametrize("length", [200, 201, 202, 203])
def test_loops_read_no_entry_beyond_the_last(length):
    """Not even to prefetch what it names."""
    columns, values, p = guarded(np.arange(length, dtype=np.uint32)), guarded(np.ones(length)), kernels.FAR + 1
    rows = SparseRows(values, columns, np.array([length]), p)
    assert all(map(np.shares_memory, rows.arrays, (columns, values)))
    assert rows.margins(np.ones(p)).tolist() == [length]
    assert rows.transposed_times(np.ones(1)).sum() == rows.columns().counts.sum() == length
    assert rows.largest_terms(np.ones(p)) == length * (length + 2)


def test_columns_beyond_32_bits():
    rows = SparseRows(np.array([2.0]), np.array([2**32]), np.array([1]), 2**32 + 1)
    assert rows.shape == (1, 2**32 + 1) and rows.nnz == 1 and rows.nbytes == 8 + 8 + 2


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("share", [0.0, 0.05, 1.0])
@pytest.mark.parametrize("p", [6, 30])
def test_rows_without_coefficient(kind, share, p):
    """Rows with coefficient 0 add nothing, whether they are skipped (long rows, few coefficients) or not."""
    array = draw_rows(7, 3000, p, 0.7, ones="pattern" in kind)
    c = np.where(np.random.default_rng(0).random(3000) < share, 1.5, 0.0)
    rows = hold(kind, array)
    np.testing.assert_allclose(rows.transposed_times(c), c @ array, rtol=1e-11, atol=1e-11)
    if stored(kind):
        assert rows._skips(c) == (p == 30 and share < 1)


@pytest.mark.parametrize("kind", KINDS)
def test_a_rank_without_rows_adds_zero(kind):
    rows = hold(kind, np.empty((0, 4)), 2)
    assert rows.shape == (0, 4) and rows.nnz == 0 and rows.nbytes == 0
    assert rows.margins(np.ones(4)).shape == (0,)
    assert not rows.transposed_times(np.empty(0)).any()
    assert not np.any(rows.columns())
    assert rows.largest_terms(np.ones(4)) == 0


@pytest.mark.parametrize("kind", KINDS)
def test_products_leave_X_alone_and_fill_what_they_are_given(kind):
    array = draw_rows(1, 5, 4, 0.6, ones="pattern" in kind)
    rows = hold(kind, array.copy())
    rows.columns()
    s, g = np.full((4, 5), np.nan), np.full(4, np.nan)
    assert rows.margins(np.eye(4), s) is s
    assert rows.transposed_times(np.ones(5), g) is g
    np.testing.assert_array_equal(s.T, array)
    np.testing.assert_allclose(g, array.sum(axis=0), atol=1e-14)


@pytest.mark.parametrize("kind", KINDS)
def test_vectors_of_wrong_length_are_refused(kind):
    rows = hold(kind, draw_rows(1, 5, 4, 0.6, ones="pattern" in kind))
    for wrong in (
        lambda: rows.margins(np.ones(5)),
        lambda: rows.margins(np.ones((1, 5))),
        lambda: rows.transposed_times(np.ones(4)),
        lambda: rows.transposed_times([np.ones(5), np.ones(4)]),
        lambda: rows.margins(np.ones(4), np.ones(4)),
        lambda: rows.margins(np.ones(4), np.ones(5, np.float32)),
        lambda: rows.margins(np.ones(4), np.ones(10)[::2]),
    ):
        with pytest.raises(ValueError):
            wrong()
    with pytest.raises(ValueError, match="row lengths"):
        SparseRows(None, np.zeros(3, np.uint16), np.array([1, 1]), 4)
    with pytest.raises(ValueError, match="2 values, but 3 column indices"):
        SparseRows(np.ones(2), np.zeros(3, np.uint16), np.array([3]), 4)


@given(st.integers(2**50, 2**51), st.integers(1, 7))
def test_parts_of_more_entries_than_any_test_holds(nnz, threads):
    """The parts begin at the first row and end at the last one, even where floats would round."""
    lengths = np.full(1000, nnz // 1000)
    lengths[0] += nnz % 1000
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(local, "PART_ENTRIES", 2**40)
        parts = local._parts(lengths, np.arange(1000), nnz, 1, threads)
    assert parts[0].first == 0 and parts[-1].last == 1000
    assert all(a.last == b.first for a, b in itertools.pairwise(parts))


@pytest.mark.parametrize("dtype", [np.float32, np.float64])
def test_the_given_arrays_are_held_without_a_copy(dtype):
    X = sparse.csr_matrix(draw_rows(2, 50, 9, 0.5, dtype=dtype))
    columns, lengths = X.indices.astype(np.uint16), np.diff(X.indptr).astype(np.uint8)
    rows, w = SparseRows(X.data, columns, lengths, 9), np.ones(9)
    before = rows.margins(w)
    X.data *= 2
    np.testing.assert_allclose(rows.margins(w), 2 * before)
    array = np.ones((3, 2), dtype)
    dense = DenseRows(array)
    array[:] = 3
    assert dense.margins(np.ones(2))[0] == 6


@pytest.mark.parametrize("p, column", [(2**16, 2), (2**16 + 1, 4)])
@pytest.mark.parametrize("value", [0, 4, 8])
def test_bytes_per_entry(p, column, value):
    """2 or 4 bytes for the column, 0, 4 or 8 for the value; 2 for each run: one per block where rows are alike."""
    values = np.ones(12_000, f"f{value}") if value else None
    for lengths, of_rows in (np.full(1000, 12), 4 * 2), (np.tile([12, 0, 24, 12], 250), 1000 + 4 * 3 * 2):
        indices = np.concatenate([np.arange(length) for length in lengths])
        rows = SparseRows(values, indices, lengths, p, sort=len(set(lengths)) > 1)
        assert rows.nbytes == (column + value) * rows.nnz + of_rows


@pytest.mark.serial
@pytest.mark.parametrize("threads", [1, 3])
@pytest.mark.parametrize("kind", ["float32", "float64", "pattern", "dense32", "dense64"])
def test_products_allocate_next_to_nothing(kind, threads):
    """Products allocate far less than a byte for each entry once the buffers exist."""
    n, p, m = 20_000, 50, 25
    if kind.startswith("dense"):
        rows = DenseRows(np.ones((n, p), kind.replace("dense", "float")), threads)
    else:
        values = None if kind == "pattern" else np.ones(n * m, kind)
        rows = SparseRows(values, np.tile(np.arange(m, dtype=np.uint16), n), np.full(n, m, np.uint8), p, threads)
    w, c, s, g = np.ones((2, p)), np.ones((2, n)), np.empty((2, n)), np.empty((2, p))

    def evaluate():
        rows.margins(w, s)
        rows.transposed_times(c, g)
        rows.largest_terms(w[0])
        rows.columns()

    evaluate()
    tracemalloc.start()
    evaluate()
    peak = tracemalloc.get_traced_memory()[1]
    tracemalloc.stop()
    assert peak < rows.nnz / 10


@pytest.mark.parametrize(
    ("nnz", "p", "dtype"),
    [(0, 1, np.int32), (2**31 - 1, 9, np.int32), (2**31, 9, np.int64), (9, 2**31 - 1, np.int32), (9, 2**31, np.int64)],
)
def test_indices_of_files_are_32_bits_if_they_can(nnz, p, dtype):
    assert index_dtype(nnz, p) is dtype


def test_types_are_as_small_as_possible():
    for largest, expected in ((65535, np.uint16), (65536, np.uint32), (2**32 - 1, np.uint32), (2**32, np.uint64)):
        assert unsigned(largest) is expected and length_dtype(largest) is expected
    assert length_dtype(255) is np.uint8 and length_dtype(256) is np.uint16 and unsigned(0) is np.uint16
    long_row = SparseRows(None, np.arange(300), np.array([300, 0]), 300)
    assert long_row.nbytes == 2 * 300 + 2 * 3
    np.testing.assert_array_equal(long_row.margins(np.ones(300)), [300, 0])


@pytest.mark.parametrize("given, expected", [("", 1), ("3", 3), ("4,2", 4), ("0", 1), ("many", 1)])
def test_threads_are_those_of_the_environment(given, expected, monkeypatch):
    monkeypatch.setenv("OMP_NUM_THREADS", given)
    assert thread_count() == expected
