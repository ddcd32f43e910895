"""Matrices of SciPy and NumPy as local rows: what callers from Python give."""

from __future__ import annotations

from typing import Any

import numpy as np
import scipy

from distsms.matrix.local import DenseRows, SparseRows
from distsms.matrix.normalization import Normalization


def as_features(X: Any) -> SparseRows | DenseRows:
    """Return the rows of a matrix as features.

    Parameters
    ----------
    X : (n_local, p) SciPy sparse matrix or array-like
        Copied only if its type or order has to change; a CSR matrix that is not in canonical format is copied first.

    Returns
    -------
    SparseRows or DenseRows
    """
    if not scipy.sparse.issparse(X):
        return DenseRows(np.asarray(X))
    X = scipy.sparse.csr_matrix(X)
    if not X.has_canonical_format:  # sort and merge duplicates, but not in the caller's own arrays
        X = X.copy()
        X.sum_duplicates()
    return SparseRows.of(X)


def normalize_matrix(X: Any, normalization: Normalization) -> None:
    """Multiply the values of a float64 matrix of SciPy (CSR) or NumPy by the factors of a normalization, in place.

    Local.
    """
    rows = as_features(X)
    rows.normalize(normalization)
    for factors, axis in ((rows.column_factors, 1), (rows.row_factors, 0)):
        if len(factors) and not scipy.sparse.issparse(X):
            X *= np.expand_dims(factors, 1 - axis)
        elif len(factors):
            X.data *= factors[X.indices] if axis else np.repeat(factors, np.diff(X.indptr))
