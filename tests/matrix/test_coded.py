"""Coded rows give the same products as the matrix that their map describes, made here letter by letter."""

from __future__ import annotations

import itertools
import tracemalloc

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from distsms.matrix import kmer_kernels, local
from distsms.matrix.blocks import Part
from distsms.matrix.code_maps import ALPHABETS, Categories, Crosses, Spectrum, Strings
from distsms.matrix.coded import CodedRows, ExplicitProducts, code_rows, to_csr
from distsms.matrix.coded_kernels import STRIP, add_up_four, look_up_four
from distsms.matrix.coded_products import _kmer_part
from distsms.matrix.normalization import Normalization
from distsms.matrix.side_by_side import SideBySide
from tests.matrix.test_local import EPS, assert_most_terms, draw_rows, hold

pytestmark = pytest.mark.serial

MAPS = (
    Categories((3,)),
    Categories((1, 255, 2, 7, 30), (1.0, -2.0, 0.5, 3.0, 1e-3)),
    Categories((3, 200, 7, 1, 250, 2)),
    Categories((256, 3, 40, 5, 9, 1000)),
    Categories((2, 65536)),
    Crosses((3, 2), ((0, 1),)),
    Crosses((7, 30, 3, 1, 254), ((0, 1), (0, 2), (1, 2), (2, 4), (1, 3), (0, 4))),
    Crosses((300, 40, 2), ((0, 1), (0, 2), (1, 2))),
    Strings("dna", 1, 1),
    Strings("dna", 9, 3),
    Strings("rna", 3, 5),
    Strings("protein", 7, 2, ((2, 6, 3),)),
    Strings("dna", 12, 0, ((1, 12, 4),)),
    Strings("dna", 14, 4, ((1, 6, 5), (7, 14, 2), (4, 4, 1)), (1.0, 2.0, 0.5, 3.0)),
    Strings("dna", 9, 8, ((1, 9, 8),)),  # the last, since the names of its columns take long to make
)


def draw_codes(code_map, n, rng, missing=0.05):
    """Draw (n, B) codes; a share of about `missing` is missing."""
    some = rng.random((n, code_map.n_codes)) ** 2 * np.minimum(code_map.limits(), 2000)  # small codes are frequent
    return np.where(rng.random(some.shape) < missing, np.iinfo(code_map.dtype).max, some).astype(code_map.dtype)


def explicit(code_map, codes):
    """Make the matrix (n, p) from its definition, entry by entry."""
    X = np.zeros((len(codes), code_map.p))
    if isinstance(code_map, Categories):
        starts = np.cumsum([0, *code_map.sizes])
        for i, b in np.ndindex(codes.shape):
            if codes[i, b] < code_map.sizes[b]:
                X[i, starts[b] + codes[i, b]] = 1.0 if code_map.values is None else code_map.values[b]
        return X
    if isinstance(code_map, Crosses):
        columns = {code_map.column_name(j): j for j in range(code_map.p)}
        assert len(columns) == code_map.p
        for i, row in enumerate(codes):
            there = {b: f"{b}={row[b]}" for b in range(len(row)) if row[b] < code_map.sizes[b]}
            pairs = [" & ".join((there[a], there[b])) for a, b in code_map.pairs if a in there and b in there]
            X[i, [columns[name] for name in (*there.values(), *pairs)]] = 1.0
        return X
    columns = {code_map.column_name(j): j for j in range(code_map.p)}
    assert len(columns) == code_map.p
    parts = [(str, 1, code_map.length, code_map.degree)] if code_map.degree else []
    parts += [(f"{first}-{last}".format, first, last, degree) for first, last, degree in code_map.spectra]
    weights = np.array(code_map.weights or [1.0] * len(parts))
    for i, row in enumerate(codes):
        for (name, first, last, degree), weight in zip(parts, weights / np.linalg.norm(weights), strict=True):
            part = np.zeros(code_map.p)
            norm = 0.0
            for k in range(1, degree + 1):
                beta = 2 * (degree - k + 1) / (degree * (degree + 1))
                for at in range(first, last - k + 2):
                    norm += beta
                    letters = row[at - 1 : at - 1 + k]
                    if (letters != 255).all():
                        word = "".join(ALPHABETS[code_map.alphabet][letter] for letter in letters)
                        part[columns[f"{name(at)}:{word}"]] += np.sqrt(beta)
            if name is not str:
                norm = part @ part
            X[i] += weight * part / np.sqrt(norm or 1)
    return X


cases = st.tuples(
    st.sampled_from(MAPS),
    st.integers(0, 2**31),
    st.sampled_from([0, 1, 2, 5, 60]),
    st.sampled_from([0.0, 0.05, 1.0]),
    st.sampled_from([1, 2, 3]),
    st.lists(st.floats(0, 1), max_size=4),
)


def build(case):
    """Return rows, their matrix, and a generator. Every other time SciPy computes the products, as it does for few
    rows. Of many columns there are few rows, since tests make the matrix dense."""
    given_map, seed, n, missing, threads, shares = case
    n = min(n, 5) if given_map.p > 2**16 else n
    rng = np.random.default_rng(seed)
    codes = draw_codes(given_map, n, rng, missing)
    cuts = [0, *sorted(round(n * share) for share in shares), n]
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(local, "SMALL", 2**19 if seed % 2 else -1)
        rows = CodedRows(given_map, code_rows(codes, given_map, cuts), cuts, threads)
    return rows, to_csr(given_map, codes), rng


@pytest.mark.parametrize("given_map", MAPS[:-1], ids=str)
def test_the_matrix_is_the_one_of_the_definition(given_map):
    rng = np.random.default_rng(0)
    for missing in (0.0, 0.2):
        codes = draw_codes(given_map, 7, rng, missing)
        X = to_csr(given_map, codes)
        np.testing.assert_allclose(X.toarray(), explicit(given_map, codes), atol=1e-15)
        assert X.getnnz(axis=1).max() <= given_map.entries
        if isinstance(given_map, Strings) and not missing:
            np.testing.assert_allclose(X.multiply(X).sum(axis=1), 1.0)


@given(cases, st.sampled_from([0, 1, 2, 5]))
def test_products_and_the_dot_test(case, k):
    rows, X, rng = build(case)
    n_local, p = rows.shape
    assert rows.shape == X.shape and rows.nnz == n_local * rows.code_map.n_codes
    W, C = rng.normal(size=(k, p) if k else p), rng.normal(size=(k, n_local) if k else n_local)
    margins, gradients = rows.margins(W), rows.transposed_times(C)
    np.testing.assert_allclose(margins, (X @ W.T).T, atol=1e-11)
    np.testing.assert_allclose(gradients, (X.T @ C.T).T, atol=1e-11)
    assert np.vdot(margins, C) == pytest.approx(np.vdot(W, gradients), rel=1e-10, abs=1e-10)
    into = np.full_like(margins, np.nan), np.full_like(gradients, np.nan)
    assert rows.margins(W, into[0]) is into[0] and rows.transposed_times(C, into[1]) is into[1]
    np.testing.assert_array_equal(into[0], margins)
    np.testing.assert_array_equal(into[1], gradients)


@given(cases, st.sampled_from(["none", "standard", "l2"]))
def test_normalized_and_taken_rows(case, kind):
    rows, X, rng = build(case)
    n_local, p = rows.shape
    scale = rng.uniform(0.5, 2, p) if kind == "standard" else None
    rows.normalize(Normalization(kind, scale))
    dense = X.toarray() * (1 if scale is None else scale)
    sizes = np.linalg.norm(dense, axis=1)
    np.testing.assert_allclose(rows.lengths(), np.linalg.norm(X.toarray(), axis=1), atol=1e-14)
    if kind == "l2":
        dense /= np.where(sizes > 0, sizes, 1.0)[:, None]
    chosen, w, c = rng.random(n_local) < 0.4, rng.normal(size=p), rng.normal(size=n_local)
    np.testing.assert_allclose(rows.margins(w), dense @ w, atol=1e-11)
    np.testing.assert_allclose(rows.transposed_times(c), c @ dense, atol=1e-11)
    taken = rows.take(chosen)
    assert taken.shape == (np.count_nonzero(chosen), p)
    np.testing.assert_allclose(taken.margins(w), rows.margins(w)[chosen], rtol=1e-12, atol=1e-12)
    assert_most_terms(rows, dense, w)
    largest, counts, squares = rows.columns()
    np.testing.assert_allclose(squares, (dense**2).sum(axis=0), rtol=1e-10, atol=1e-14)
    nonzeros = np.count_nonzero(dense, axis=0)
    several = getattr(rows.code_map, "spectra", ())  # a row may hit a column several times, which counts as often
    assert (counts >= nonzeros).all() if several else (counts == nonzeros).all()
    assert (largest >= np.abs(dense).max(axis=0, initial=0) * (1 - 1e-14)).all()


@given(cases, st.sampled_from([1e8, 1e-8]))
def test_errors_stay_below_what_the_rounding_bound_assumes(case, size):
    """Long doubles stand for exact numbers; the entries themselves are rounded, which the bound covers as well."""
    rows, X, rng = build(case)
    exact = X.toarray().astype(np.longdouble)
    w, c = rng.normal(size=X.shape[1]) * size, rng.normal(size=X.shape[0])
    assert np.abs(rows.margins(w) - exact @ w).max(initial=0) <= EPS / 2 * rows.largest_terms(w)
    wrong = np.abs(rows.transposed_times(c) - c @ exact)
    terms = rows.columns().counts + 4
    assert (wrong <= EPS * terms * (np.abs(c) @ np.abs(exact))).all()


@given(cases, st.sampled_from(["sparse", "sorted pattern", "dense"]), st.sampled_from([0, 1, 3]), st.booleans())
def test_groups_side_by_side(case, kind, k, normalized):
    coded, X, rng = build(case)
    n_local = len(X.toarray())
    other = draw_rows(case[1], n_local, 5, 0.5, ones="pattern" in kind)
    rows = SideBySide([hold(kind, other), coded])
    whole = np.c_[other, X.toarray()]
    if normalized:
        rows.normalize(Normalization("l2"))
        sizes = np.linalg.norm(whole, axis=1)
        whole = whole / np.where(sizes > 0, sizes, 1.0)[:, None]
    assert rows.shape == whole.shape
    W, C = (rng.normal(size=(k, size) if k else size) for size in reversed(whole.shape))
    np.testing.assert_allclose(rows.margins(W), W @ whole.T, atol=1e-11)
    np.testing.assert_allclose(rows.transposed_times(C), C @ whole, atol=1e-11)
    np.testing.assert_allclose(rows.columns().squares, (whole**2).sum(axis=0), rtol=1e-10, atol=1e-14)
    w, exact = rng.normal(size=whole.shape[1]), whole.astype(np.longdouble)
    if not normalized:
        assert np.abs(rows.margins(w) - exact @ w).max(initial=0) <= EPS / 2 * rows.largest_terms(w)
    assert_most_terms(rows, whole, w)
    chosen = rng.random(n_local) < 0.5
    np.testing.assert_allclose(rows.take(chosen).margins(w), rows.margins(w)[chosen], rtol=1e-12, atol=1e-12)


def test_groups_of_ones_side_by_side():
    """Here the bounds of the groups are tight, and that of all of them is not far above that of undivided rows."""
    rows, whole = SideBySide([hold("pattern", np.ones((3, 4)))] * 2), np.ones((3, 8))
    assert_most_terms(rows, whole, np.ones(8))
    assert rows.largest_terms(np.ones(8)) < 1.5 * hold("pattern", whole).largest_terms(np.ones(8))


@pytest.mark.parametrize(("n", "few"), [(6, True), (7, False)])
def test_few_entries_are_left_to_scipy(n, few, monkeypatch):
    """Their number decides, since they are made explicit."""
    monkeypatch.setattr(local, "SMALL", 12)
    rows = CodedRows(Categories((3, 4)), np.zeros(2 * n, np.uint8), [0, n])
    assert isinstance(rows._products, ExplicitProducts) == few


@pytest.mark.parametrize("given_map", MAPS, ids=str)
def test_streamed_rows_are_the_same(given_map):
    """A source gives one part after the other, from the start of an array that the next part overwrites."""
    rng, cuts = np.random.default_rng(0), [0, 20, 33, 50]
    codes = draw_codes(given_map, 50, rng)
    flat = code_rows(codes, given_map, cuts)
    for threads in (1, 3):
        held, source = CodedRows(given_map, flat, cuts, threads), Source(given_map, flat)
        source.rows = rows = CodedRows(given_map, flat[:0], cuts, threads, source)
        assert rows.bytes_per_pass == flat.nbytes and held.bytes_per_pass == 0
        W, C, chosen = rng.normal(size=(2, rows.shape[1])), rng.normal(size=(2, 50)), rng.random(50) < 0.5
        for kind in ("none", "l2"):
            for some in (rows, held):
                some.normalize(Normalization(kind))
            np.testing.assert_array_equal(rows.margins(W), held.margins(W))
            np.testing.assert_array_equal(rows.transposed_times(C), held.transposed_times(C))
            assert rows.largest_terms(W[0]) == held.largest_terms(W[0])
            for found, expected in zip(rows.columns(), held.columns(), strict=True):
                np.testing.assert_array_equal(found, expected)
            np.testing.assert_array_equal(rows.take(chosen).margins(W), held.take(chosen).margins(W))


class Source:
    """Loads the codes of a part, as the rows that are streamed from files do."""

    nbytes = 0

    def __init__(self, given_map, flat):
        self.flat, self.size, self.bytes_per_pass = flat, given_map.n_codes, flat.nbytes

    def passing(self, thread, backward=False):
        buffer = np.empty_like(self.flat)
        for part in self.rows.runs[thread][:: -1 if backward else 1]:
            n = part.last - part.first
            places = part.start + np.add.outer(part.run * np.arange(self.size), np.arange(n))
            buffer[: part.stop - part.start] = self.flat[places.ravel()]
            yield part._replace(start=0, stop=part.stop - part.start, run=n), (buffer,)
            buffer[:] = np.iinfo(buffer.dtype).max


@pytest.mark.parametrize(
    "given_map",
    [
        Categories((3, 200, 7, 1, 250, 2)),
        Categories((3, 2000, 7, 1, 20_000, 2)),
        Crosses((32, 200, 7, 1, 250, 2), tuple(itertools.combinations(range(6), 2))),
        Strings("dna", 9, 4, ((2, 8, 3),)),
        Strings("protein", 4, 3),
        Strings("dna", 8, 8),
    ],
    ids=str,
)
def test_more_rows_than_a_strip(given_map):
    """Codes are missing in some strips only, and more of them at the end."""
    rng, n = np.random.default_rng(1), 70_000
    codes = draw_codes(given_map, n, rng, 0.0)
    codes[20_000::100, 0] = codes[-5000:, 2] = np.iinfo(codes.dtype).max
    cuts = [0, 1, 65_537, n]
    rows, X = CodedRows(given_map, code_rows(codes, given_map, cuts), cuts, 2), to_csr(given_map, codes)
    w, c = rng.normal(size=X.shape[1]), rng.normal(size=n)
    np.testing.assert_allclose(rows.margins(w), X @ w, atol=1e-11)
    np.testing.assert_allclose(rows.transposed_times(c), X.T @ c, atol=1e-9)
    largest, _, squares = rows.columns()
    np.testing.assert_allclose(squares, X.multiply(X).sum(axis=0).A1, rtol=1e-9)
    assert (largest >= abs(X).max(axis=0).toarray().ravel() * (1 - 1e-14)).all()
    sizes = np.sqrt(X.multiply(X).sum(axis=1).A1)
    np.testing.assert_allclose(rows.lengths(), sizes, atol=1e-14)


@pytest.mark.parametrize("missing", [0.0, 1e-4])
def test_a_part_of_more_rows_than_a_long_strip(missing):
    given_map, n, rng = Categories((3, 40, 9000, 7, 20)), 2**18 + 1000, np.random.default_rng(2)
    codes = draw_codes(given_map, n, rng, missing)
    rows, X = CodedRows(given_map, code_rows(codes, given_map), [0, n]), to_csr(given_map, codes)
    w, c = rng.normal(size=X.shape[1]), rng.normal(size=n)
    np.testing.assert_allclose(rows.margins(w), X @ w, atol=1e-13)
    np.testing.assert_allclose(rows.transposed_times(c), X.T @ c, atol=1e-9)


def test_the_score_of_a_row_does_not_depend_on_other_rows():
    """To the last digit, in large parts and small ones, and beside rows with missing codes."""
    given_map, n, rng = Categories((3, 9000, 40, 7, 20, 300)), 5000, np.random.default_rng(3)
    codes = draw_codes(given_map, n, rng, 0.0)
    codes[10, 2] = np.iinfo(codes.dtype).max
    w = rng.normal(size=given_map.p)
    whole = CodedRows(given_map, code_rows(codes, given_map), [0, n]).margins(w)
    for some in (slice(0, 9), slice(5, 4000), slice(100, n)):
        own = CodedRows(given_map, code_rows(codes[some], given_map), [0, len(codes[some])]).margins(w)
        np.testing.assert_array_equal(own, whole[some])


def test_neighbouring_rows_with_the_same_code():
    """Two rows are added at a time: the sums are those of one row after the other, to the last digit."""
    rng = np.random.default_rng(0)
    for n in (0, 1, 2, 7, 50):
        codes, c = rng.integers(0, 2, (4, n), np.uint8), rng.normal(size=n)
        tables, wanted = np.ones((4, 2)), np.ones((4, 2))
        add_up_four(codes.ravel(), n, c, tables)
        for of_block, table in zip(codes, wanted, strict=True):
            np.add.at(table, of_block, c)
        np.testing.assert_array_equal(tables, wanted)


def test_four_tables_are_looked_up_at_a_time():
    """In Python, which checks that each code is there; the compiled loop does not."""
    rng, n = np.random.default_rng(0), 7
    codes, tables, scores = rng.integers(0, 5, (4, n), np.uint8), rng.normal(size=(4, 5)), np.zeros(n)
    look_up_four.py_func(codes.ravel(), n, tables, scores)
    np.testing.assert_allclose(scores, np.take_along_axis(tables, codes.astype(int), axis=1).sum(axis=0))


def test_four_crosses_that_are_small_one_by_one():
    """Each fills its own table only, in which the place of rows without the cross stays 0."""
    given_map = Crosses((100, 80, 70, 2, 3, 2), ((0, 1), (0, 2), (0, 3), (0, 4), (0, 5)))
    rng, n = np.random.default_rng(4), 600
    codes = draw_codes(given_map, n, rng, 0.2)
    rows, X = CodedRows(given_map, code_rows(codes, given_map), [0, n]), to_csr(given_map, codes)
    w, c = rng.normal(size=given_map.p), rng.normal(size=n)
    np.testing.assert_allclose(rows.margins(w), X @ w, atol=1e-12)
    np.testing.assert_allclose(rows.transposed_times(c), X.T @ c, atol=1e-12)


def test_positions_that_share_their_columns():
    """A position may have the columns of the one before: X'c is still the transposed of X w."""
    rng, n = np.random.default_rng(0), 20
    kmers = _kmer_part(Spectrum(1, 4, 2), 4, np.array([0, 0, 20, 20]), np.array([0.5, 0.25]), 1.0)
    part, codes, no_factors = Part(0, n, 0, 4 * n, n), rng.integers(0, 4, 4 * n, np.uint8), np.empty(0)
    w, c, scores, gradient = rng.normal(size=40), rng.normal(size=n), np.zeros(n), np.zeros(40)
    kmer_kernels.dot_kmers(codes, part, kmers, no_factors, False, w, scores)
    kmer_kernels.add_kmers(codes, part, kmers, no_factors, c, gradient)
    assert scores @ c == pytest.approx(w @ gradient, rel=1e-12)


def test_codes_beyond_their_limits_count_as_missing():
    """The loops stay within their tables whatever the codes are, since files can be damaged after they were checked."""
    for given_map in MAPS:
        n, size = 40, given_map.dtype.itemsize
        codes = np.random.default_rng(0).integers(0, 256, n * given_map.n_codes * size, np.uint8).view(given_map.dtype)
        rows, table = CodedRows(given_map, codes, [0, n]), codes.reshape(-1, n).T
        table[0] = given_map.limits()  # the first codes that are too large
        X, w = to_csr(given_map, table), np.random.default_rng(1).normal(size=given_map.p)
        np.testing.assert_allclose(rows.margins(w), X @ w, atol=1e-11)
        np.testing.assert_allclose(rows.transposed_times(w[:1].repeat(n)), X.T @ w[:1].repeat(n), atol=1e-11)
        np.testing.assert_allclose(rows.lengths(), np.sqrt(X.multiply(X).sum(axis=1).A1), atol=1e-14)


def test_a_long_row_of_one_letter():
    """A k-mer occurs more often than 16 bits can count."""
    given_map = Strings("dna", 70_000, 0, ((1, 70_000, 1),))
    rows = CodedRows(given_map, np.zeros(70_000, np.uint8), [0, 1])
    np.testing.assert_allclose(rows.margins(np.eye(4)), [[1], [0], [0], [0]], rtol=1e-12)


def test_parts_are_large_enough_for_their_tables():
    assert Categories((60_000,) * 5).part_rows > Categories((20_000,) * 5).part_rows > 2**16
    assert Categories((3, 4)).part_rows == Strings("dna", 60, 5, ((1, 9, 7),)).part_rows == 2**16
    assert Strings("dna", 60, 5, ((1, 9, 8),)).part_rows == 2**18
    assert Strings("protein", 60, 4).part_rows == 4 * 20**4


def test_bytes_per_row():
    """A letter takes one byte, and a spectrum 8 bytes a row; products need some numbers for each row of a strip."""
    given_map, n = Strings("dna", 100, 3, ((1, 50, 3), (51, 100, 3))), 60_000
    codes = draw_codes(given_map, n, np.random.default_rng(0))
    rows = CodedRows(given_map, code_rows(codes, given_map), [0, n])
    w, c, s, g = np.ones(given_map.p), np.ones(n), np.empty(n), np.empty(given_map.p)

    def evaluate():
        rows.margins(w, s)
        rows.transposed_times(c, g)

    evaluate()
    assert rows.nbytes == (100 + 2 * 8) * n
    tracemalloc.start()
    evaluate()
    peak = tracemalloc.get_traced_memory()[1]
    tracemalloc.stop()
    assert peak < 20 * STRIP


def test_codes_that_do_not_fit_are_refused():
    given_map = Categories((3, 4))
    codes = np.array([[0, 3], [2, 255], [3, 0]], np.uint8)
    with pytest.raises(ValueError, match="row 2: code 0 is 3, but must be below 3, or missing"):
        code_rows(codes, given_map)
    with pytest.raises(ValueError, match="uint8"):
        code_rows(codes.astype(int), given_map)
    flat = code_rows(codes[:2], given_map)
    for wrong in ([0, 3], [1, 2], [0, 2, 1, 2]):
        with pytest.raises(ValueError):
            CodedRows(given_map, flat, wrong)


def test_parts_hold_the_places_of_their_rows():
    """What a source of entries relies on: a part lies in one cut, and says where the codes of its rows are."""
    given_map, cuts = Strings("dna", 5, 2), [0, 4, 4, 11]
    codes = draw_codes(given_map, 11, np.random.default_rng(0))
    flat = code_rows(codes, given_map, cuts)
    for threads in (1, 2, 3):
        rows = CodedRows(given_map, flat, cuts, threads)
        parts = list(itertools.chain(*rows.runs))
        assert [i for part in parts for i in range(part.first, part.last)] == list(range(11))
        for part in parts:
            assert part.stop - part.start == 5 * (part.last - part.first)
            for i, b in itertools.product(range(part.first, part.last), range(5)):
                assert flat[part.start + i - part.first + b * part.run] == codes[i, b]
