"""Nodes of ONNX graphs, and feature maps as nodes: forests as tree ensembles, bins as tables of weights.

A TreeEnsembleRegressor computes in float32. So each weight of a leaf is a sum of whole numbers below 2^24, its
*digits*, which the trees add up as separate targets, exactly, each times a power of two in float64.
"""

from __future__ import annotations

from collections.abc import Sequence
from functools import reduce
from typing import Any

import numpy as np
from numpy.typing import ArrayLike, NDArray

from distsms.base.errors import InputError
from distsms.base.typing import Floats
from distsms.base.wording import option
from distsms.features.bins import Bins
from distsms.features.feature_map import FeatureMap
from distsms.features.forest import Forest

try:
    from onnx import TensorProto, helper, numpy_helper
    from onnx import checker as checker  # onnx is imported by this module alone
except ImportError as absent:
    raise InputError(f"ONNX files need the package onnx: pip install 'distsms[export]' ({absent})") from absent

ML = "ai.onnx.ml"
OPSET, ML_OPSET, IR_VERSION = 16, 2, 8  # from early 2022: every runtime since then knows them

_BITS = 24
"""Whole numbers of at most so many bits are exact in float32."""
_EXACT = 2.0**-52
"""The weights that remain after the last digit are smaller than this share of the largest score."""
_NODE_BYTES = 64
"""About the bytes of a node in the file."""
_MOST_BYTES = 2**31
"""A file of protobuf cannot be larger."""


class Graph:
    """The nodes and constants of a graph. Their names differ from those of all columns."""

    def __init__(self, taken: Sequence[str]) -> None:
        self.nodes, self.constants = list[Any](), list[Any]()
        self._prefix = "distsms"
        while any(name.startswith(self._prefix) for name in taken):
            self._prefix += "."

    def add(self, kind: str, *inputs: Any, output: str | None = None, domain: str = "", **attributes: Any) -> str:
        """Add a node of inputs, names or constants, and return the name of its output."""
        output = output or f"{self._prefix} {len(self.nodes)}"
        names = [each if isinstance(each, str) else self.constant(each) for each in inputs]
        self.nodes.append(helper.make_node(kind, names, [output], domain=domain, **attributes))
        return output

    def sum(self, terms: Sequence[str]) -> str:
        """Return the sum of one or more values of the same shape."""
        return reduce(lambda total, term: self.add("Add", total, term), terms)

    def constant(self, value: ArrayLike) -> str:
        """Return the name of a constant."""
        name = f"{self._prefix} constant {len(self.constants)}"
        self.constants.append(numpy_helper.from_array(np.asarray(value), name))
        return name


def single_precision(graph: Graph, rows: str) -> str:
    """Return rows (n, columns) rounded to float32; numbers that are too large become the largest."""
    largest = float(np.finfo(np.float32).max)
    clipped = graph.add("Clip", rows, -largest, largest)
    return graph.add("Cast", clipped, to=TensorProto.FLOAT)


def score(graph: Graph, rows: str, feature_map: FeatureMap, w: Floats) -> str:
    """Return the sum of the weights w (coded columns,) of the codes of each row, (n,), of single-precision `rows`."""
    terms, first = list[str](), 0
    for part in feature_map.parts:
        weights = w[first : first + part.code_map.p]
        of_part = forest_score if isinstance(part, Forest) else bins_score
        terms.append(of_part(graph, rows, part, weights))  # type: ignore[arg-type]
        first += part.code_map.p
    return graph.sum(terms)


def digits(w: Floats, largest_sum: float, n_terms: int) -> tuple[Floats, Floats]:
    """Write w (p,) as sums of whole numbers (p, k) times powers of two (k,): sums of `n_terms` are below 2^24."""
    columns, powers = list[Floats](), list[float]()
    rest, bound = w.copy(), largest_sum
    while not powers or (bound > _EXACT * largest_sum and bound > 1e-290):
        power = 2.0 ** max(int(np.ceil(np.log2(bound))) - _BITS + 1, -1022) if bound > 0 else 1.0
        digit = np.rint(rest / power)
        rest -= digit * power
        columns.append(digit)
        powers.append(power)
        bound = n_terms * power / 2
    return np.column_stack(columns), np.array(powers)


def forest_score(graph: Graph, rows: str, forest: Forest, w: Floats) -> str:
    """Return the sum of the weights of the leaves that each row reaches, (n,); w : (leaves of all trees,)."""
    offsets = forest.code_map.offsets
    nodes, most = len(forest.leaf_numbers), _MOST_BYTES // _NODE_BYTES
    values, powers = digits(w, float(np.maximum.reduceat(np.abs(w), offsets[:-1]).sum()), forest.n_trees)
    if nodes > most:
        raise InputError(f"the forest has {nodes} nodes, and ONNX can hold about {most}: grow fewer {option('trees')}")
    targets = np.broadcast_to(np.arange(len(powers)), values.shape)
    sums = _add_trees(graph, rows, forest, "BRANCH_LEQ", values, targets, len(powers))
    return graph.add("MatMul", graph.add("Cast", sums, to=TensorProto.DOUBLE), powers)


def _add_trees(
    graph: Graph, rows: str, forest: Forest, mode: str, values: Floats, targets: NDArray[Any], n_targets: int
) -> str:
    """Return the sums (n, n_targets), float32, of the values that leaves add to targets, both (leaves, k)."""
    tree = np.repeat(np.arange(forest.n_trees), np.diff(forest.start))
    first, leaf, each = forest.start[tree], forest.column < 0, values.shape[1]
    left, right = (np.where(leaf, 0, nodes - first) for nodes in forest.children)
    number = np.arange(len(tree)) - first
    return graph.add(
        "TreeEnsembleRegressor",
        rows,
        domain=ML,
        n_targets=n_targets,
        nodes_treeids=tree.tolist(),
        nodes_nodeids=number.tolist(),
        nodes_featureids=np.maximum(forest.column, 0).tolist(),
        nodes_modes=np.where(leaf, "LEAF", mode).tolist(),
        nodes_values=forest.threshold.tolist(),
        nodes_truenodeids=left.tolist(),
        nodes_falsenodeids=right.tolist(),
        target_treeids=np.repeat(tree[leaf], each).tolist(),
        target_nodeids=np.repeat(number[leaf], each).tolist(),
        target_ids=targets.ravel().tolist(),
        target_weights=values.ravel().tolist(),
    )


def bins_score(graph: Graph, rows: str, bins: Bins, w: Floats) -> str:
    """Return the sum of the weights of the codes of each row, and of its crosses, (n,)."""
    sizes = np.array(bins.sizes)
    codes, order = _codes(graph, rows, bins)
    place = np.argsort(order)  # of each attribute among the codes
    pieces = [[*w[bins.blocks.offsets[k] : bins.blocks.offsets[k + 1]], 0.0] for k in order]
    total = _looked_up(graph, pieces, codes)
    if not bins.pairs:
        return total
    a, b = np.array(bins.pairs).T
    tables = [
        np.pad(w[start : start + sizes[k] * sizes[m]].reshape(sizes[k], sizes[m]), (0, 1)).ravel()
        for start, k, m in zip(bins.code_map.offsets, a, b, strict=False)
    ]
    first, second = (graph.add("Gather", codes, place[k], axis=1) for k in (a, b))
    of_pair = graph.add("Add", graph.add("Mul", first, sizes[b][None] + 1), second)
    return graph.add("Add", total, _looked_up(graph, tables, of_pair))


def _looked_up(graph: Graph, tables: Sequence[ArrayLike], codes: str) -> str:
    """Return the sum over tables of their entries at the codes (n, tables) of each row, (n,)."""
    starts = np.cumsum([0, *map(np.size, tables)])[:-1]
    at = graph.add("Add", codes, starts[None])
    return graph.add("ReduceSum", graph.add("Gather", np.concatenate(tables), at), [1], keepdims=0)


def _codes(graph: Graph, rows: str, bins: Bins) -> tuple[str, NDArray[np.int64]]:
    """Return the codes of rows (n, attributes), int64, the number of codes for a missing one, and the attributes."""
    groups, order = list[str](), list[int]()
    numbers = [k for k, attribute in enumerate(bins.attributes) if attribute.categories is None]
    if numbers:
        codes = graph.add("Cast", _bins_of_numbers(graph, rows, bins, numbers), to=TensorProto.INT64)
        marked = [i for i, k in enumerate(numbers) if bins.attributes[k].missing is not None]
        for part in filter(None, (marked, [i for i in range(len(numbers)) if i not in set(marked)])):
            groups.append(graph.add("Gather", codes, np.array(part), axis=1))
            order += [numbers[i] for i in part]
        if marked:
            attributes = [numbers[i] for i in marked]
            last = np.array([len(bins.edges[k]) + 1 for k in attributes])
            is_missing = _is_set(graph, rows, [bins.attributes[k].missing for k in attributes])
            groups[0] = graph.add("Where", is_missing, last[None], groups[0])
    for k, attribute in enumerate(bins.attributes):
        if attribute.categories is not None:
            groups.append(first_set(graph, _is_set(graph, rows, attribute.columns)))
            order.append(k)
    return graph.add("Concat", *groups, axis=1), np.array(order)


def first_set(graph: Graph, marks: str) -> str:
    """Return the place of the first mark in each row of marks (n, k) that is set, k if none is, (n, 1) int64."""
    marks = graph.add("Cast", marks, to=TensorProto.FLOAT)
    nothing = graph.add("Mul", graph.add("ReduceMin", marks, axes=[1], keepdims=1), np.float32(0))
    half = graph.add("Add", nothing, np.float32(0.5))  # the largest if no mark is 1
    return graph.add("ArgMax", graph.add("Concat", marks, half, axis=1), axis=1, keepdims=1)


def _is_set(graph: Graph, rows: str, columns: Any) -> str:
    values = graph.add("Gather", rows, np.array(columns, np.int64), axis=1)
    return graph.add("Greater", values, np.float32(0.5))


def _bins_of_numbers(graph: Graph, rows: str, bins: Bins, numbers: list[int]) -> str:
    """Return how many edges of some attributes are at most the number, (n, numbers) float32, by balanced trees."""
    trees = [_balanced(bins.edges[k].tolist()) for k in numbers]
    edges = [edge for tree in trees for edge in tree]
    of = np.repeat([bins.attributes[k].columns[0] for k in numbers], [len(tree) for tree in trees])
    column = [-1 if edge is None else j for edge, j in zip(edges, of.tolist(), strict=True)]
    start = np.cumsum([0, *map(len, trees)])
    forest = Forest(column, [edge or 0.0 for edge in edges], start, np.zeros(of.max() + 1))
    codes = forest.leaf_numbers[forest.leaf_numbers >= 0]
    targets = np.repeat(np.arange(len(trees)), forest.sizes)
    return _add_trees(graph, rows, forest, "BRANCH_LT", codes[:, None].astype(float), targets[:, None], len(trees))


def _balanced(edges: list[float]) -> list[float | None]:
    """Return edges as the nodes of a tree in preorder, with None for leaves."""
    if not edges:
        return [None]
    middle = len(edges) // 2
    return [edges[middle], *_balanced(edges[:middle]), *_balanced(edges[middle + 1 :])]
