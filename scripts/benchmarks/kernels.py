"""The kernels in which a training spends its time, each beside NumPy's or SciPy's for the same work."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any, NamedTuple

import numpy as np
from scipy import sparse

from distsms.base.communicator import Communicator
from distsms.losses.registry import make_loss
from distsms.matrix import local
from distsms.matrix.code_maps import Categories
from distsms.matrix.coded import CodedRows, code_rows, to_csr
from distsms.matrix.local import DenseRows, SparseRows

ROW = 40  # entries of a sparse row
POSITIVE = 0.03
NU = 0.1
local.SMALL = -1  # few rows, too, take the compiled loops


class Kernel(NamedTuple):
    """A kernel, the same work by another library, and the bytes that the kernel has to touch."""

    name: str
    ours: Callable[[], object]
    theirs: Callable[[], object]
    nbytes: int


def kernels(entries: int) -> Iterator[Kernel]:
    """Yield all kernels, on rows with about this many entries. Rows of one kind are made when they are needed."""
    rng = np.random.default_rng(0)
    for kind in (
        *(sparse_rows(entries, 2**10, values) for values in (np.float64, np.float32, None)),
        sparse_rows(entries, 2**20, None),
        *(dense_rows(entries, values) for values in (np.float64, np.float32)),
        *(coded_rows(entries, codes) for codes in (32, 1000)),
    ):
        yield from products(*kind(rng))
    yield from losses(entries // 2, rng)


Rows = tuple[str, Any, Any]
"""The name of a kind of rows, our rows, and the same rows as a matrix of SciPy or NumPy."""


def sparse_rows(entries: int, p: int, values: Any) -> Callable[[np.random.Generator], Rows]:
    def make(rng: np.random.Generator) -> Rows:
        n = entries // ROW
        columns = np.sort(rng.integers(0, p // ROW, (n, ROW)) + p // ROW * np.arange(ROW), axis=1).ravel()
        lengths = np.full(n, ROW, np.uint8)
        data = np.ones(len(columns)) if values is None else rng.normal(size=len(columns)).astype(values)
        held = columns.astype(np.uint16 if p <= 2**16 else np.uint32)
        ours = SparseRows(None if values is None else data, held, lengths, p, 1)
        pointers = np.arange(0, len(columns) + 1, ROW, dtype=np.int32)
        matrix = sparse.csr_matrix((data.astype(np.float64), columns.astype(np.int32), pointers), (n, p))
        what = "all values 1" if values is None else np.dtype(values).name
        return f"sparse, {what}, 2^{p.bit_length() - 1} columns", ours, matrix

    return make


def dense_rows(entries: int, values: Any) -> Callable[[np.random.Generator], Rows]:
    def make(rng: np.random.Generator) -> Rows:
        array = rng.normal(size=(entries // 200, 200))
        return f"dense, {np.dtype(values).name}, 200 columns", DenseRows(array.astype(values), 1), array

    return make


def coded_rows(entries: int, size: int) -> Callable[[np.random.Generator], Rows]:
    def make(rng: np.random.Generator) -> Rows:
        blocks = Categories((size,) * 100)
        codes = rng.integers(0, size, (entries // 100, 100), blocks.dtype)
        ours = CodedRows(blocks, code_rows(codes, blocks), [0, len(codes)], 1)
        return f"100 blocks of {size} codes", ours, to_csr(blocks, codes)

    return make


def products(name: str, rows: Any, matrix: Any) -> Iterator[Kernel]:
    """Yield the two products. No coefficient is zero, so that X'c cannot skip rows."""
    (n, p), rng = rows.shape, np.random.default_rng(1)
    w, c, s, r, transposed = rng.normal(size=p), rng.normal(size=n), np.empty(n), np.empty(p), matrix.T
    touched = rows.nbytes + 8 * (n + p)
    yield Kernel(f"X w, {name}", lambda: rows.margins(w, s), lambda: matrix @ w, touched)
    yield Kernel(f"X'c, {name}", lambda: rows.transposed_times(c, r), lambda: transposed @ c, touched + 8 * p)


def losses(n: int, rng: np.random.Generator) -> Iterator[Kernel]:
    """Yield the losses beside NumPy's stable sort of both classes. They read scores and kinds, and write coefficients.

    NumPy's usual sort is up to eight times as fast on processors with AVX-512; the stable one is the same on all.
    """
    labels = np.where(np.arange(n) % int(1 / POSITIVE) == 0, 1, -1).astype(np.int8)
    scores = rng.normal(size=n) + (labels > 0)
    positive, negative = scores[labels > 0], scores[labels < 0]

    def sort() -> object:
        return np.sort(positive, kind="stable"), np.sort(negative, kind="stable")

    def evaluate(measure: str) -> Callable[[], object]:
        loss = make_loss(measure, "exchange", labels, None, Communicator())
        return lambda: loss.evaluate(scores, NU)

    for measure, name in (("rocarea", "ROCArea"), ("prbep", "PRBEP"), ("pauc@0.05", "pauc@0.05")):
        yield Kernel(f"loss of {name}, 3 % positive", evaluate(measure), sort, 17 * n)
