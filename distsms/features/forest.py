"""A forest of decision trees as a map of features: the leaves that a row reaches are its codes. A value, rounded to
float32, goes to the left up to a node's threshold, as in scikit-learn and the trees of ONNX."""

from __future__ import annotations

from concurrent.futures import ThreadPoolExecutor
from functools import cached_property
from typing import Any

import numpy as np
import scipy
from numpy.typing import NDArray

from distsms.base.typing import Floats
from distsms.features import forest_kernels
from distsms.matrix import local
from distsms.matrix.arrays import without_duplicates
from distsms.matrix.blocks import thread_count
from distsms.matrix.code_maps import Categories

MOST_LEAVES = 2**16 - 1
"""The leaves of a tree have numbers below 65,535, which stands for a missing code."""
MOST_TREES = 2**20
_BLOCK = 2**20
"""The most values that go through one tree after the other, unless these are of fewer than eight rows."""


class Forest:
    """Trees that divide rows by their columns, their nodes in preorder. Local. `column` (nodes,) is the column that a
    node compares, or -1 in a leaf, and `threshold` the largest value that goes to the left, or 0. Leaves of a tree
    count from 0. `start` (trees + 1,) has the first node of each tree, `importance` (p,) the share of each column in
    what all splits gained. Raises ValueError for arrays that are no forest, since kernels trust them."""

    def __init__(self, column: Any, threshold: Any, start: Any, importance: Any) -> None:
        self.column = column = np.ascontiguousarray(column, np.int32)
        self.threshold = threshold = np.ascontiguousarray(threshold, np.float32)
        self.start = start = np.ascontiguousarray(start, np.int64)
        self.importance = np.ascontiguousarray(importance, np.float64)
        if not column.ndim == threshold.ndim == start.ndim == self.importance.ndim == 1:
            raise ValueError("the arrays of a forest are vectors")
        self.columns, n = len(self.importance), len(column)
        if not 1 <= self.columns < 2**31 or not 1 <= n < 2**31 or not 2 <= len(start) <= MOST_TREES + 1:
            raise ValueError(f"a forest needs columns, nodes and 1 to {MOST_TREES} trees")
        if len(threshold) != n or start[0] != 0 or start[-1] != n or (np.diff(start) < 1).any():
            raise ValueError("the trees do not follow one another from the first node to the last")
        if column.min() < -1 or column.max() >= self.columns:
            raise ValueError(f"a node compares a column that is not one of the {self.columns} columns")
        sizes, self._other = np.zeros(len(start) - 1, np.int64), np.empty(n, np.int32)
        wrong = forest_kernels.read_order(column, start, self._other, sizes)
        if wrong >= 0:
            raise ValueError(f"the nodes of tree {wrong} do not form a tree")
        if sizes.max() > MOST_LEAVES:
            raise ValueError(f"tree {sizes.argmax()} has {sizes.max()} leaves; at most {MOST_LEAVES} are possible")
        self.sizes: tuple[int, ...] = tuple(sizes.tolist())

    def arrays(self) -> dict[str, NDArray[Any]]:
        """Return the parameters of `Forest`, not copied."""
        return {name: getattr(self, name) for name in ("column", "threshold", "start", "importance")}

    def record(self) -> dict[str, Any]:
        return {"trees": self.n_trees, "leaves": self.code_map.p}

    def describe(self) -> str:
        return f"the leaves of {self.n_trees} trees ({self.code_map.p} columns)"

    @cached_property
    def code_map(self) -> Categories:
        """What the leaves stand for: a column for each leaf of each tree."""
        return Categories(self.sizes)

    def column_name(self, j: int) -> str:
        """Return the name of a leaf, given the number of its column; trees and leaves are counted from 0."""
        tree, leaf = self.code_map.place(j)
        return f"tree {tree}, leaf {leaf}"

    @property
    def n_trees(self) -> int:
        return len(self.sizes)

    @cached_property
    def used(self) -> NDArray[np.int64]:
        """The columns that the trees compare, ascending."""
        return np.unique(self.column[self.column >= 0]).astype(np.int64)

    @cached_property
    def children(self) -> tuple[NDArray[np.int32], NDArray[np.int32]]:
        """The left and the right child of each node, counted over all trees; both are the node itself in a leaf."""
        nodes, inner = np.arange(len(self._other), dtype=np.int32), self.column >= 0
        return np.where(inner, nodes + 1, nodes), np.where(inner, self._other, nodes)

    @cached_property
    def leaf_numbers(self) -> NDArray[np.int32]:
        """The number of each leaf in its tree, (nodes,); -1 for other nodes."""
        return np.where(self.column < 0, self._other, -1)

    @cached_property
    def _nodes(self) -> NDArray[Any]:
        nodes = np.zeros(len(self._other), forest_kernels.NODE)
        nodes["column"] = np.searchsorted(self.used, np.maximum(self.column, 0)) if len(self.used) else 0
        nodes["column"][self.column < 0] = 0
        nodes["threshold"] = self.threshold
        nodes["left"], nodes["right"] = self.children
        return nodes

    def codes(self, X: Any) -> NDArray[Any]:
        """Return the leaves of rows X (n, columns), without NaN, (n, trees), in the type of the code map, those of each
        tree together."""
        X = without_duplicates(X) if scipy.sparse.issparse(X) else np.asarray(X)
        if X.dtype not in (np.float32, np.float64):
            X = X.astype(np.float64)
        n = X.shape[0]
        out = np.empty((self.n_trees, n), self.code_map.dtype).T
        threads = min(thread_count(), max(1, n // forest_kernels.TOGETHER))
        ends = [n * k // threads for k in range(threads + 1)]
        if threads == 1:
            self._leaves(X, 0, n, out)
        else:
            with ThreadPoolExecutor(threads) as pool:
                list(pool.map(lambda k: self._leaves(X, ends[k], ends[k + 1], out), range(threads)))
        return out

    def _leaves(self, X: Any, first: int, last: int, out: NDArray[Any]) -> None:
        """Find the leaves of the rows first..last - 1."""
        if (last - first) * max(self.n_trees, len(self.used)) <= local.SMALL:
            self._leaves_of_few(X[first:last], out[first:last])
            return
        used = max(1, len(self.used))
        # The values of these rows, which each tree reads, take about as much memory as a tree, which each block reads.
        rows = max(forest_kernels.TOGETHER, self._nodes.nbytes // (4 * used * self.n_trees))
        block = np.zeros((min(rows, max(8, _BLOCK // used), max(1, last - first)), used), np.float32)
        nodes, start, numbers, out = self._nodes, self.start, self._other, out[first:last]
        if scipy.sparse.issparse(X):
            indptr = X.indptr[first : last + 1]
            forest_kernels.leaves_of_sparse(indptr, X.indices, X.data, self._places, nodes, start, numbers, block, out)
        else:
            forest_kernels.leaves_of_dense(X[first:last], self.used, nodes, start, numbers, block, out)

    def _leaves_of_few(self, X: Any, out: NDArray[Any]) -> None:
        """Find the leaves of X by NumPy, which needs no compiling: all rows go one step down all trees at a time."""
        values = X[:, self.used].toarray() if scipy.sparse.issparse(X) else X[:, self.used]
        block = np.zeros((len(values), max(1, len(self.used))), np.float32)
        with np.errstate(over="ignore"):  # huge values become infinite, as in the kernels
            block[:, : len(self.used)] = values
        before, at = None, np.tile(self.start[:-1], (len(block), 1))
        while before is None or not np.array_equal(at, before):
            nodes = self._nodes[at]
            low = np.take_along_axis(block, nodes["column"].astype(np.intp), axis=1) <= nodes["threshold"]
            before, at = at, np.where(low, nodes["left"], nodes["right"]).astype(at.dtype)
        out[:] = self._other[at]

    @cached_property
    def _places(self) -> NDArray[np.int32]:
        """The place of each column among those in use, or -1: (p,)."""
        places = np.full(self.columns, -1, np.int32)
        places[self.used] = np.arange(len(self.used))
        return places

    def explained(self, values: Floats, rows: Floats, sums: Floats) -> Floats:
        """Return `forest_kernels.explained` (columns,) for the values, rows and sums of all leaves."""
        column, start, offsets, contributions = self.column, self.start, self.code_map.offsets, np.zeros(self.columns)
        forest_kernels.explained(column, self._other, start, offsets, values, rows, sums, contributions)
        return contributions

    def path(self, tree: int, leaf: int) -> list[tuple[int, float, bool]]:
        """Return what leads to a leaf: for each node from the root on, its column, its threshold, and whether left."""
        node, end = self.start[tree : tree + 2].tolist()
        goal, steps = node + int(np.flatnonzero(self.leaf_numbers[node:end] == leaf)[0]), []
        while node != goal:
            left = goal < self._other[node]  # the nodes are in preorder
            steps.append((int(self.column[node]), float(self.threshold[node]), bool(left)))
            node = node + 1 if left else int(self._other[node])
        return steps
