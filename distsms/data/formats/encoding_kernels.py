"""The compiled loop that puts the features of a table's rows together."""

from __future__ import annotations

import numpy as np

from distsms.utils.jit import njit

NO_FEATURE = -1
NUMBER_RECORD = np.dtype([("start", np.int64), ("fill", np.float64), ("centre", np.float64), ("gap", np.int64)])


@njit()
def fill_rows(order, numbers, amounts, how, codes, indptr, indices, data):  # type: ignore[no-untyped-def]
    """Write n rows in CSR form, without zeros; return the number of entries.

    Parameters
    ----------
    order : (s,) int64
        What makes up a row, by ascending features: k is column k of the numbers, m + k is column k of the amounts, and
        -1 - k is column k of the codes.
    numbers, amounts : (m, n) and (d, n) float64
        Columns of numbers, NaN where they are missing, and of what was computed for dates.
    how : (m + d,) NUMBER_RECORD
        For each of them its feature, what a missing number counts as, what is subtracted, and the feature that marks
        missing numbers, or NO_FEATURE.
    codes : (c, n) int64
        Columns of features whose value is 1. NO_FEATURE is none, and -2 - f is feature f with the value -1.
    indptr, indices, data
        Receive the rows: (n + 1,), and as much as n rows may take.
    """
    at, m = 0, len(numbers)
    for i in range(len(indptr) - 1):
        for k in order:
            if k >= 0:
                x = numbers[k, i] if k < m else amounts[k - m, i]
                missing = x != x
                if missing:
                    x = how[k]["fill"]
                x -= how[k]["centre"]
                if x != 0:
                    indices[at], data[at] = how[k]["start"], x
                    at += 1
                if missing and how[k]["gap"] != NO_FEATURE:
                    indices[at], data[at] = how[k]["gap"], 1.0
                    at += 1
            else:
                feature = codes[-1 - k, i]
                if feature >= 0:
                    indices[at], data[at] = feature, 1.0
                    at += 1
                elif feature != NO_FEATURE:
                    indices[at], data[at] = -2 - feature, -1.0
                    at += 1
        indptr[i + 1] = at
    return at
