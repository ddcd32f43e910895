"""Normalized rows agree with NumPy, and do not depend on the order of the rows."""

from __future__ import annotations

import tracemalloc

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from scipy import sparse

from distsms.base.errors import InputError
from distsms.matrix import normalization
from distsms.shards.dataset import load
from tests.support.conversion import convert
from tests.support.files import ALONE, content, normalized, numbers, on_root, write


@pytest.mark.parametrize("kind", normalization.KINDS)
@pytest.mark.parametrize("dtype", ["float64", "float32"])
def test_training_sees_normalized_rows(comm, shared_dir, kind, dtype):
    """With a constant column, an empty one, an empty row and time stamps; the files keep the raw rows."""
    X, y = numbers(40, 6)
    X[:, 1], X[:, 2], X[3], X[:, 4] = 5, 0, 0, 1.7e9 + np.arange(40)
    X = X.astype(dtype).astype(float)
    on_root(comm, lambda: write(shared_dir / "a.svm", X, y))
    convert([shared_dir / "a.svm"], shared_dir / "d", comm, 3, 7, dtype=dtype, normalize=kind, n_features=6)
    np.testing.assert_array_equal(content(shared_dir / "d")[0], X)
    block = load(shared_dir / "d", comm)
    mine = slice(block.first_row, block.first_row + len(block.labels))
    found = block.features.margins(np.eye(6)).T
    np.testing.assert_allclose(found, normalized(X, kind)[mine], rtol=1e-6 if dtype == "float32" else 1e-12, atol=0)


@pytest.mark.serial
@given(
    st.lists(st.lists(st.floats(-1e100, 1e100) | st.just(0.0), min_size=3, max_size=3), min_size=2, max_size=20),
    st.randoms(),
)
def test_deviations_are_sums_without_order(rows, random):
    """Deviations have the same bits for any order of rows and any parts, and agree with exact fractions to 1e-10."""
    from fractions import Fraction

    def scale(rows):
        X = sparse.csr_matrix(np.array(rows))
        parts = (
            [(X.indices[:k], X.data[:k]), (X.indices[k:], X.data[k:])] if (k := X.nnz // 2) else [(X.indices, X.data)]
        )
        return normalization.fit("standard", lambda: parts, (len(rows), 3), ALONE).scale

    first = scale(rows)
    shuffled = list(rows)
    random.shuffle(shuffled)
    assert first.tolist() == scale(shuffled).tolist()
    for j in range(3):
        column = [Fraction(row[j]) for row in rows]
        mean = sum(column) / len(column)
        spread = max(column) - min(column)
        if spread > 100 * normalization.CONSTANT * float(max(map(abs, column))):  # certainly not treated as constant
            variance = sum(((value - mean) / spread) ** 2 for value in column) / len(column)
            wanted = 1 / (float(spread) * float(variance) ** 0.5) if float(spread) > 1e-290 else None
            assert wanted is None or abs(first[j] - wanted) <= 1e-10 * wanted
        elif not spread:
            assert first[j] == 1


@pytest.mark.serial
def test_few_entries_and_many_add_the_same_whole_numbers():
    """Few are added by NumPy and many by a compiled loop."""
    rng = np.random.default_rng(0)
    indices, values = rng.integers(0, 3, 200), rng.normal(size=200)
    middle, size = np.array([-1.0, 0.0, 0.5]), np.full(3, 9.0)
    sums = np.zeros((2, 4, 3), np.int64)
    for add, into in zip((normalization._add_whole, normalization._add_many), sums, strict=True):
        add(indices, values, middle, size, into)
    np.testing.assert_array_equal(*sums)
    assert (sums[0] != 0).all()


@pytest.mark.serial
@pytest.mark.parametrize("many", [1, normalization.MANY])
def test_parts_take_time_and_memory_for_their_entries_and_not_for_all_columns(many, monkeypatch):
    monkeypatch.setattr(normalization, "MANY", many)
    extent, weights = normalization.Extent(10**6), np.array([0.5, 1.0, 2.0, 0.0])
    parts = (np.array([3, 5, 3, 7]), np.array([-1.0, 2.0, 4.0, 9.0]))
    extent.add(*parts, weights)  # which compiles the loop
    tracemalloc.start()
    extent.add(*parts)
    extent.add(*parts, weights)
    peak = tracemalloc.get_traced_memory()[1]
    tracemalloc.stop()
    assert peak < 10**6
    assert extent.count[[3, 5, 7]].tolist() == [6, 3, 1] and extent.count.sum() == 10
    assert extent.mass[[3, 5, 7]].tolist() == [5.0, 2.0, 0.0]
    assert extent.low[[3, 5, 7]].tolist() == [-1, 2, 9] and extent.high[[3, 5, 7]].tolist() == [4, 2, 9]


@pytest.mark.serial
@pytest.mark.parametrize("last", [0.3, 3.0, 1e-300])
def test_a_column_that_only_rounding_moves_stays_as_it_is(last):
    entries = [(np.array([0]), np.array([value])) for value in (last, np.nextafter(last, 4), last)]
    assert normalization.fit("standard", lambda: entries, (3, 1), ALONE).scale.tolist() == [1]


@pytest.mark.serial
def test_weights_that_do_not_add_up_exactly_leave_no_zeros():
    """Ten times 0.1 is less than 1 in floating point; the rest is not the weight of rows with 0, which is far away."""
    values, weights = 1e9 + np.arange(10), np.full(10, 0.1)
    entries = [(np.zeros(10, np.int64), values, weights)]
    scale = normalization.fit("standard", lambda: entries, (10, 1), ALONE, weight=1.0).scale
    assert 1 / scale[0] == pytest.approx(np.std(values), rel=1e-12)


@pytest.mark.serial
def test_normalizations_are_equal_if_their_kinds_and_factors_are():
    Normalization = normalization.Normalization
    factors = [None, np.array([1.0, 2.0]), np.array([1.0, 3.0])]
    several = [Normalization("l2"), *(Normalization("maxabs", scale) for scale in factors)]
    for i, first in enumerate(several):
        assert first == Normalization(first.kind, None if first.scale is None else first.scale.copy())
        assert all((first == other) == (i == j) for j, other in enumerate(several))
    assert several[0] != "l2"


@pytest.mark.parametrize("kind", normalization.KINDS)
def test_more_columns_than_memory_are_refused(comm, monkeypatch, kind):
    """Before any vector of that length is made."""
    p = 10**15

    def fitted():
        return normalization.fit(kind, lambda: iter([(np.array([p - 1]), np.ones(1))]), (1, p), comm)

    if kind in normalization.BY_COLUMN:
        with pytest.raises(InputError, match=rf"--normalize {kind} takes \d+ bytes for each of the {p} columns"):
            fitted()
    else:
        assert fitted().kind == kind


def test_rows_that_one_rank_cannot_read_the_second_time(comm):
    """All ranks are told, and none waits for the others."""
    passes = []

    def entries():
        passes.append(len(passes))
        yield np.array([0, 1]), np.array([1.0, 2.5])
        if len(passes) == 2 and comm.rank == comm.size - 1:
            raise InputError("the disk is gone")

    with pytest.raises(InputError, match="the disk is gone"):
        normalization.fit("standard", entries, (comm.size, 2), comm)
    assert len(passes) == 2
