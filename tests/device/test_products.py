"""Products with rows on a device, beside NumPy and rational arithmetic."""

from __future__ import annotations

import math

import numpy as np
import pytest
from numba import cuda
from scipy import sparse

from distsms.base.errors import InputError
from distsms.device import product_kernels as kernel
from distsms.device import rows as device_rows
from distsms.device import runtime
from distsms.device.rows import DeviceFeatures, Scale
from distsms.device.runtime import DeviceVector
from distsms.matrix.augmented import with_bias
from distsms.matrix.code_maps import Categories, Strings
from distsms.matrix.coded import CodedRows, code_rows, to_csr
from distsms.matrix.local import DenseRows, SparseRows
from distsms.matrix.normalization import Normalization
from distsms.matrix.side_by_side import SideBySide
from tests.support.oracles import rational

pytestmark = pytest.mark.cuda
EPS = np.finfo(float).eps
KINDS = ["dense", "float32", "sparse", "sorted", "pattern", "codes", "side by side"]


def rows_of(kind, n=200, seed=0):
    """Return rows of a kind, and the matrix that they stand for."""
    rng = np.random.default_rng(seed)
    if kind in ("dense", "float32"):
        X = rng.normal(size=(n, 6)).astype(np.float32 if kind == "float32" else np.float64)
        return DenseRows(X), X.astype(float)
    if kind in ("sparse", "sorted", "pattern"):
        lengths = rng.integers(0, 9, n) if n else np.empty(0, np.int64)  # some rows have no entries
        columns = [np.sort(rng.choice(30, length, replace=False)) for length in lengths]
        indices, pointers = np.concatenate([np.empty(0, int), *columns]), np.append(0, np.cumsum(lengths))
        values = np.ones(len(indices)) if kind == "pattern" else rng.normal(size=len(indices))
        X = sparse.csr_matrix((values, indices, pointers), (n, 30))
        if kind == "pattern":
            return SparseRows(None, indices.astype(np.uint16), lengths.astype(np.uint8), 30), X.toarray()
        if kind == "sorted":  # stored by length inside of blocks
            stored = values.copy(), indices.astype(np.uint16)
            return SparseRows(*stored, lengths.astype(np.uint8), 30, sort=True), X.toarray()
        return SparseRows.of(X), X.toarray()
    if kind == "codes":
        code_map = Categories((3, 5 * kernel.HOT, 7), (1.0, -0.5, 2.0))
        codes = np.stack([rng.integers(0, size, n) for size in code_map.sizes], axis=1).astype(code_map.dtype)
        codes[rng.random(codes.shape) < 0.1] = np.iinfo(codes.dtype).max  # missing
        cuts = [0, 0, *(n * share // 6 for share in range(1, 7))]
        return CodedRows(code_map, code_rows(codes, code_map, cuts), cuts), to_csr(code_map, codes).toarray()
    parts = [rows_of(kind, n, seed) for kind in ("float32", "sparse", "codes")]
    return SideBySide([rows for rows, _ in parts]), np.hstack([X for _, X in parts])


def compare(device, host, X, rng):
    """X w and X'c are those of NumPy up to rounding, and the same on the device's vectors as on the host's."""
    w, c = rng.normal(size=X.shape[1]), rng.normal(size=len(X)) / max(1, len(X))
    W, C = np.array([w, -2 * w]), [DeviceVector.of(c), DeviceVector.of(3 * c)]
    scores, sums = device.margins(W, device.score_buffer(2)), device.transposed_times(C)
    np.testing.assert_allclose(np.array(list(map(np.asarray, scores))), W @ X.T, rtol=1e-13, atol=1e-13)
    np.testing.assert_allclose(sums, [X.T @ c, 3 * (X.T @ c)], rtol=1e-13, atol=1e-15)
    np.testing.assert_array_equal(device.margins(w), np.asarray(scores[0]))
    np.testing.assert_array_equal(device.transposed_times(c), sums[0])
    assert device.largest_terms(w) == host.largest_terms(w)
    assert all(map(np.array_equal, device.columns(), host.columns()))


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("scaled", ["none", "standard", "l2"])
def test_products(kind, scaled):
    rows, X = rows_of(kind)
    rng = np.random.default_rng(1)
    if scaled == "l2":
        rows.normalize(Normalization("l2"))
        X = X / np.maximum(np.linalg.norm(X, axis=1), 1e-300)[:, None]
    elif scaled == "standard":
        scale = rng.uniform(0.5, 3.0, X.shape[1])
        rows.normalize(Normalization("standard", scale))
        X = X * scale
    bias = None if scaled == "none" else 2.0
    X = X if bias is None else np.hstack([X, np.full((len(X), 1), bias)])
    compare(DeviceFeatures(rows, bias), with_bias(rows, bias), X, rng)


@pytest.mark.parametrize("kind", ["float32", "sorted", "codes", "side by side"])
def test_streamed_rows_give_the_same_bits(kind, monkeypatch):
    monkeypatch.setattr(device_rows, "BLOCK", 2**9)
    rows, X = rows_of(kind, n=4 * max(runtime.TILE, 256) + 130)
    groups = rows.groups if isinstance(rows, SideBySide) else [rows]
    besides, rng = device_rows._besides(groups, rows.shape), np.random.default_rng(2)
    w, c = rng.normal(size=X.shape[1]), rng.normal(size=len(X))
    whole, streamed = (
        DeviceFeatures(rows),
        DeviceFeatures(rows, room=besides + (0.9 if len(groups) == 1 else 0.6) * rows.nbytes),
    )
    assert 0 == whole.streamed < streamed.streamed < rows.nbytes
    np.testing.assert_array_equal(streamed.margins(w), whole.margins(w))
    np.testing.assert_array_equal(streamed.transposed_times(c), whole.transposed_times(c))
    streamed.close()


@pytest.mark.parametrize("kind", ["float32", "sparse", "codes"])
def test_the_order_of_threads_changes_no_bit(kind, monkeypatch):
    rows, X = rows_of(kind)
    rng, results = np.random.default_rng(3), []
    w, c = rng.normal(size=X.shape[1]), rng.normal(size=len(X))
    for threads, blocks in ((runtime.THREADS, runtime.BLOCKS), (7, 3), (3, 1)):
        monkeypatch.setattr(runtime, "THREADS", threads)
        monkeypatch.setattr(runtime, "BLOCKS", blocks)
        features = DeviceFeatures(rows, 1.0)
        results.append((features.margins(np.append(w, 0.5)), features.transposed_times(c)))
    for margins, sums in results[1:]:
        np.testing.assert_array_equal(margins, results[0][0])
        np.testing.assert_array_equal(sums, results[0][1])


@pytest.mark.parametrize("kind", KINDS)
def test_no_rows(kind):
    rows, X = rows_of(kind, n=0)
    device = DeviceFeatures(rows, 1.0)
    assert device.margins(np.ones(X.shape[1] + 1)).shape == (0,)
    assert not device.transposed_times(np.empty(0)).any()


@pytest.mark.parametrize("share", [0.9, 1 / 60, 1e-30, 0.0])
def test_rounding_is_what_the_proof_allows(share):
    """X'c in rational numbers: sum |c_i| = 2, one coefficient with the given share of it; the others are as large."""
    rng = np.random.default_rng(4)
    n = 60
    X = rng.normal(size=(n, 3)) * [1.0, 1e-200, 3e100]
    S = sparse.csr_matrix(X)
    c = rng.choice([-1.0, 1.0], n)
    c[1:] *= (1 - share) / (n - 1) if share > 0 else 0.0
    c[0] *= share
    c *= 2.0
    for rows in (DenseRows(X), SparseRows.of(S)):
        exact = [sum(rational(X[:, j]) * rational(c)) for j in range(3)]
        errors = [
            abs(float(a - b)) for a, b in zip(rational(DeviceFeatures(rows).transposed_times(c)), exact, strict=True)
        ]
        assert np.all(errors <= (n / 2 + 8) * EPS * np.abs(X).max(axis=0))
    assert DeviceFeatures(DenseRows(X)).transposed_times(np.full(n, np.nan)) == pytest.approx([np.nan] * 3, nan_ok=True)


def test_limbs_do_not_overflow():
    """All rows have the same code, and numbers that fill limbs of 25 bits, which are emptied after 2^7 rows."""
    n, bits = 3 * runtime.TILE // 2, 32 - int(math.log2(runtime.TILE))
    code_map = Categories((2,))
    rows = CodedRows(code_map, np.ones(n, np.uint8), [0, n])
    (group,) = DeviceFeatures(rows)._groups
    (block,) = group._resident
    numbers = np.full(n, (2.0**52 - 1) * 2.0**-52)
    numbers[1::2] *= -1
    numbers[:64] = -1.0
    for sign in (1.0, -1.0):
        runtime.launch(runtime.fill, 1, group._totals, 0)
        group.add(block, DeviceVector.of(sign * numbers).array, Scale(53, 53, bits))
        total = sum(int(number * 2.0**53) for number in sign * numbers)
        assert group._totals.copy_to_host().tolist() == [0, total]


@pytest.mark.parametrize("most", [2.0, 0.01, 2.0**-7, 2.0**-7 * (1 + 1e-15), 1e-9, 1e-300])
def test_scales_leave_room(most):
    scale = Scale.of(most, 2.0)
    assert most * 2.0**scale.limbs < 2.0 ** (3 * scale.bits - 1) and 2.0 * 2.0**scale.whole <= 2.0**60
    assert min(scale.limbs, scale.whole) >= 53
    rows = scale.together * runtime.TILE
    assert rows * (2**scale.bits - 1) < 2**32 and rows * 2 ** (scale.bits - 1) <= 2**31


def test_what_is_refused():
    letters = np.zeros((4, 5), np.uint8)
    strings = Strings("dna", 5, degree=2)
    with pytest.raises(InputError, match="k-mers"):
        DeviceFeatures(CodedRows(strings, code_rows(letters, strings), [0, 4]))
    rows, _ = rows_of("float32")
    with pytest.raises(InputError, match=r"need \d+\.\d+ [KM]iB more on its device, which has 1000 B left"):
        DeviceFeatures(rows, room=1000)
    besides = device_rows._besides([rows], rows.shape)
    with pytest.raises(InputError, match="Start more ranks"):
        DeviceFeatures(rows, room=besides + 100)


@pytest.mark.skipif(not runtime.SIMULATED, reason="a real device has its own memory")
def test_the_free_memory_is_asked_for(monkeypatch):
    rows, _ = rows_of("float32")
    monkeypatch.setattr(type(cuda.current_context()), "get_memory_info", lambda self: (1000, 2000))
    with pytest.raises(InputError, match="950 B left"):
        DeviceFeatures(rows)
