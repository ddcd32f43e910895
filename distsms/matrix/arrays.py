"""Matrices of SciPy and NumPy as local rows: what callers from Python give."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import numpy as np
import scipy

from distsms.base.errors import InputError
from distsms.matrix.local import DenseRows, SparseRows
from distsms.matrix.normalization import Normalization


def as_features(X: Any) -> SparseRows | DenseRows:
    """Return the rows of a matrix (n_local, p), sparse or array-like, as features; copied only where they change."""
    return SparseRows.of(without_duplicates(X)) if scipy.sparse.issparse(X) else DenseRows(np.asarray(X))


def without_duplicates(X: Any) -> Any:
    """Return sparse rows as CSR, with one entry at most for each column, in their order; X itself stays as it is."""
    X = scipy.sparse.csr_matrix(X)
    if not X.has_canonical_format:
        X = X.copy()
        X.sum_duplicates()
    return X


def as_numbers(X: Any) -> Any:
    """Return a matrix of numbers (n, p) as CSR or as an array. Raises InputError for anything else. Local."""
    try:
        if scipy.sparse.issparse(X) and hasattr(X, "check_format"):  # SciPy, too, trusts indices wherever it uses them
            type(X)(X).check_format()  # of a view, since the check may change its arrays
        X = scipy.sparse.csr_matrix(X) if scipy.sparse.issparse(X) else np.asarray(X)
        X = X if X.dtype.kind in "biuf" else X.astype(np.float64)
    except (TypeError, ValueError) as error:
        raise InputError(f"X does not hold numbers, equally many in each row: {error}") from error
    if X.ndim != 2:
        raise InputError(f"X has {X.ndim} dimensions; give a matrix with two, rows and columns")
    return X


def require_finite(X: Any, where: str = "", first: int = 0) -> None:
    """Raise InputError with `where` and the place, from row `first` on, of a value that is NaN or infinite. Local."""
    sparse = scipy.sparse.issparse(X)
    values = X.data if sparse else X
    if values.dtype.kind != "f" or not values.size or np.isfinite([values.min(), values.max()]).all():  # NaN is either
        return
    at = int((~np.isfinite(values)).argmax())
    row, column = (np.searchsorted(X.indptr, at, "right") - 1, X.indices[at]) if sparse else divmod(at, X.shape[1])
    raise InputError(f"{where}row {first + row}, column {column} (counted from 0): {values.flat[at]} is not finite")


def subtract(X: Any, offsets: Mapping[int, float]) -> Any:
    """Return X (n, p), CSR or dense, in float64 less a number for some columns; X itself if there are none. Local."""
    if not offsets:
        return X
    columns, less = np.array(sorted(offsets)), np.array([offsets[j] for j in sorted(offsets)])
    if not scipy.sparse.issparse(X):
        X = np.array(X, np.float64)
        X[:, columns] -= less
        return X
    n, k = X.shape[0], len(columns)
    parts = np.tile(less, n), np.tile(columns, n), np.arange(0, n * k + 1, k)
    return scipy.sparse.csr_matrix(X, dtype=np.float64) - scipy.sparse.csr_matrix(parts, X.shape)


def normalize_matrix(X: Any, normalization: Normalization) -> None:
    """Multiply the values of a float64 matrix, CSR or NumPy, by the factors of a normalization, in place. Local."""
    rows = as_features(X)
    rows.normalize(normalization)
    for factors, axis in ((rows.column_factors, 1), (rows.row_factors, 0)):
        if len(factors) and not scipy.sparse.issparse(X):
            X *= np.expand_dims(factors, 1 - axis)
        elif len(factors):
            X.data *= factors[X.indices] if axis else np.repeat(factors, np.diff(X.indptr))
