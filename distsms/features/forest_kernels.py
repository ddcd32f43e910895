"""The compiled loops of forests: reading the order of the nodes, and finding the leaves of rows. Values are rounded to
float32 before they are compared, as scikit-learn and ONNX do."""

from __future__ import annotations

from typing import Any

import numpy as np
from numpy.typing import NDArray

from distsms.base.jit import njit

Array = NDArray[Any]

NODE = np.dtype([("column", np.uint32), ("threshold", np.float32), ("left", np.uint32), ("right", np.uint32)])
"""A node as the loops want it. `column` is a place among the columns that the forest uses. A row goes to the node
`left` if its value there is at most the threshold, and else to `right`. Both children of a leaf are the leaf itself.
"""
TOGETHER = 2**9
"""Rows that walk through a tree together."""


@njit()
def read_order(feature: Array, starts: Array, other: Array, leaves: Array) -> int:
    """Find the right child, or number, of each node in preorder and the leaves of each tree; return the first that is
    none, or -1. `feature` is below 0 in leaves. `other` (nodes,) and `leaves` (trees,) receive these."""
    waiting = np.empty(len(feature), np.int32)  # nodes whose right child has not begun
    for t in range(len(leaves)):
        depth, done = 0, False
        for i in range(starts[t], starts[t + 1]):
            if done:
                return t
            if feature[i] >= 0:
                waiting[depth] = i
                depth += 1
                continue
            other[i] = leaves[t]
            leaves[t] += 1
            if depth == 0:
                done = True
            else:
                depth -= 1
                other[waiting[depth]] = i + 1
        if not done:
            return t
    return -1


@njit()
def preorder(left: Array, right: Array, inner: Array) -> Array:
    """Return the nodes of a tree in preorder. Nodes that are not `inner` become leaves, and their children vanish."""
    order, waiting = np.empty(len(left), np.int64), np.empty(len(left) + 1, np.int64)
    n, depth, waiting[0] = 0, 1, 0
    while depth:
        depth -= 1
        i = waiting[depth]
        order[n] = i
        n += 1
        if inner[i]:
            waiting[depth], waiting[depth + 1] = right[i], left[i]
            depth += 2
    return order[:n]


@njit()
def _find(nodes: Array, starts: Array, numbers: Array, block: Array, out: Array) -> None:
    """Find the leaf of each row of a block (rows, columns in use) in each tree: `out` (rows, trees)."""
    width, all_values = np.uint64(block.shape[1]), block.ravel()
    at, walking = np.empty(TOGETHER, np.uint32), np.empty(TOGETHER, np.uint32)
    for t in range(len(starts) - 1):
        for first in range(0, len(block), TOGETHER):
            n, values = min(TOGETHER, len(block) - first), all_values[first * block.shape[1] :]
            at[:], walking[:] = starts[t], np.arange(TOGETHER)
            walkers: Any = n
            while walkers:
                kept: Any = np.uint64(0)  # unsigned, as all numbers here, so that no index is checked for a minus
                for k in range(walkers):
                    r: Any = np.uint64(walking[np.uint64(k)])
                    i = at[r]
                    node = nodes[i]
                    low = values[r * width + np.uint64(node.column)] <= node.threshold
                    at[r] = node.left if low else node.right
                    walking[kept] = r
                    kept += np.uint64(at[r] != i)
                walkers = kept
            for k in range(n):
                out[first + k, t] = numbers[at[k]]


@njit()
def leaves_of_dense(X, columns, nodes, starts, numbers, block, out):  # type: ignore[no-untyped-def]
    """Find the leaves of dense rows X (n, p) in `out` (n, trees). `columns` (used,) are those of the forest, `numbers`
    (nodes,) the leaves in their trees, and `block` (rows, used) is float32 working space."""
    for first in range(0, len(X), len(block)):
        n = min(len(block), len(X) - first)
        for r in range(n):
            for k in range(len(columns)):
                block[r, k] = X[first + r, columns[k]]
        _find(nodes, starts, numbers, block[:n], out[first : first + n])


@njit()
def leaves_of_sparse(indptr, indices, data, places, nodes, starts, numbers, block, out):  # type: ignore[no-untyped-def]
    """Find the leaves of sparse rows, too; places (p,): of each column among those used, or -1."""
    for first in range(0, len(out), len(block)):
        n = min(len(block), len(out) - first)
        for r in range(n):
            for e in range(indptr[first + r], indptr[first + r + 1]):
                k = places[indices[e]]
                if k >= 0:
                    block[r, k] = data[e]
        _find(nodes, starts, numbers, block[:n], out[first : first + n])
        for r in range(n):
            for e in range(indptr[first + r], indptr[first + r + 1]):
                k = places[indices[e]]
                if k >= 0:
                    block[r, k] = 0.0


@njit()
def explained(column, other, starts, firsts, values, rows, sums, out):  # type: ignore[no-untyped-def]
    """Add to `out` (columns,) what the splits on each column contribute to the sum of r_i s(x_i) over the rows i
    (Saabas): steps from the mean of a node, over its rows, to that of its child.

    `column` and `other` (nodes,) are a node's column and right child, or -1 and the number of a leaf, in preorder;
    `starts` and `firsts` (trees + 1,) the first node and leaf of each tree; `values`, `rows` and `sums` (leaves,) the
    value of a leaf, the weight of its rows, and its sum of r_i.
    """
    for t in range(len(starts) - 1):
        first, n = starts[t], starts[t + 1] - starts[t]
        mass, mean, total = np.zeros(n), np.zeros(n), np.zeros(n)
        for k in range(n - 1, -1, -1):  # children before their parents
            i = first + k
            if column[i] < 0:
                leaf = firsts[t] + other[i]
                mass[k], mean[k], total[k] = rows[leaf], values[leaf], sums[leaf]
                continue
            left, right = k + 1, other[i] - first
            mass[k], total[k] = mass[left] + mass[right], total[left] + total[right]
            if mass[k] > 0:
                mean[k] = (mass[left] * mean[left] + mass[right] * mean[right]) / mass[k]
            for child in (left, right):
                if mass[child] > 0:
                    out[column[i]] += (mean[child] - mean[k]) * total[child]
