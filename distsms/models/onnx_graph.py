"""A model as an ONNX graph in double precision, with the encoding of a table: raw columns in, score and label out, and
`probabilities` (n, 2). A model of a table with categories has an input (n, 1) for each column, strings or doubles with
NaN, every other one `X` of doubles, (n, columns).
"""

from __future__ import annotations

import json
import shlex
from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
from numpy.typing import NDArray

from distsms.base.errors import InputError
from distsms.base.wording import option
from distsms.models import onnx_features
from distsms.models.model import Model
from distsms.models.onnx_features import IR_VERSION, ML, ML_OPSET, OPSET, Graph, TensorProto, checker, helper
from distsms.shards.table_schema import CATEGORY, DATE, HASH, NUMBER, Column, Table, format_names

OUTPUTS = ("score", "label")
PROBABILITIES = "probabilities"
"""The output that models with probabilities have besides."""
FEW = 4
"""If at most one weight in so many is not 0, only the columns of these weights are multiplied."""
SMALLEST = 6e-309
"""Rows whose length is smaller than this are not scaled, since the inverse of the length would be infinite."""


def build(model: Model) -> bytes:
    """Return a model as the bytes of an ONNX file; see the module. Raises InputError if ONNX cannot encode a column."""
    _check(() if model.table is None else model.table.columns)
    outputs = (*OUTPUTS, *([PROBABILITIES] if model.curve else []))
    names = [] if model.table is None else input_names(model.table, outputs)
    graph = Graph(names)
    rows = _Rows(graph, model, names)
    product = rows.dot(model.w)
    if model.normalization.kind == "l2":
        length = graph.add("Sqrt", rows.dot(np.ones(model.p), squared=True))
        scaled = graph.add("Greater", length, SMALLEST)
        product = graph.add("Div", product, graph.add("Where", scaled, length, 1.0))
    graph.add("Add", product, model.bias, output="score")
    proto = helper.make_model(
        helper.make_graph(graph.nodes, "distsms", rows.inputs, _outputs(graph, model), graph.constants),
        opset_imports=[helper.make_opsetid("", OPSET), helper.make_opsetid(ML, ML_OPSET)],
        producer_name="distsms",
    )
    proto.ir_version = IR_VERSION
    helper.set_model_props(proto, _metadata(model, names))
    checker.check_model(proto)
    return proto.SerializeToString()


def input_names(table: Table, outputs: Sequence[str] = OUTPUTS) -> list[str]:
    """Return the name of the input of each column: "X" for all if none has categories, else the column's name."""
    if not _has_categories(table):
        return ["X"] * len(table.columns)
    names = [column.name for column in table.columns]
    for k, name in enumerate(names):
        while names[k] in outputs or (names[k] != name and names[k] in names[:k] + names[k + 1 :]):
            names[k] = f"column {names[k]}"
    return names


def takes_strings(column: Column) -> bool:
    """Return whether the input of a column is of strings rather than of doubles."""
    return column.kind == CATEGORY and not column.numeric


def _has_categories(table: Table) -> bool:
    return any(column.kind == CATEGORY for column in table.columns)


def _check(columns: Sequence[Column]) -> None:
    """Raise InputError, which names all columns that ONNX cannot encode, if there are some."""
    wrong: dict[str, list[str]] = {}
    for column in columns:
        why = {DATE: "dates into their parts", HASH: "words into hashes"}.get(column.kind)
        if column.numeric and any(_number(category) is None for category in column.categories or ()):
            why = "numbers of this form into categories"
        if why is not None:
            wrong.setdefault(why, []).append(column.name)
    if wrong:
        names = [name for of_reason in wrong.values() for name in of_reason]
        reasons = " and ".join(f"{why} ({format_names(of_reason)})" for why, of_reason in wrong.items())
        again = f"train again with {option('drop', [shlex.quote(','.join(names))])}"
        raise InputError(f"the operators of ONNX cannot turn {reasons}. Score with `distsms predict`, or {again}")


def _number(category: str) -> float | None:
    """Return a category as a number, or None if no double has exactly this value."""
    try:
        value = float(category)
        return value if "." in category or "e" in category.lower() or int(category) == value else None
    except (ValueError, OverflowError):
        return None


class _Rows:
    """The part of the graph that encodes the inputs: numbers, marks of missing numbers, and codes of categories."""

    def __init__(self, graph: Graph, model: Model, names: Sequence[str]) -> None:
        self._graph, self._model, self._table = graph, model, model.table
        self._missing = self._codes = None
        self._single: str | None = None
        self._numbers: str | None = "X"
        inputs = [] if model.table is None else list(zip(model.table.columns, names, strict=True))
        numbers = [name for column, name in inputs if column.kind == NUMBER]
        kinds: list[Any] = [("X", TensorProto.DOUBLE, ["n", len(inputs) or model.p_original])]
        if model.table is not None and _has_categories(model.table):
            text, number = TensorProto.STRING, TensorProto.DOUBLE
            kinds = [(name, text if takes_strings(column) else number, ["n", 1]) for column, name in inputs]
            self._numbers = graph.add("Concat", *numbers, axis=1) if numbers else None
        self.inputs = [helper.make_tensor_value_info(*kind) for kind in kinds]
        if model.table is None:
            return
        if self._numbers is not None:
            self._missing = graph.add("IsNaN", self._numbers)
            columns = model.table.numbers
            self._numbers = graph.add("Where", self._missing, [columns.fills], self._numbers)
            if columns.centres.any():
                self._numbers = graph.add("Sub", self._numbers, [columns.centres])
        if len(numbers) < len(names):
            codes, first = [], 0
            for column, name in inputs:
                if column.categories is not None:
                    codes.append(_encoder(graph, column, name, first, model.table.cells.marks))
                    first += len(column.categories) + 2
            self._codes = graph.add("Concat", *codes, axis=1)

    def dot(self, w: NDArray[np.float64], squared: bool = False) -> str:
        """Return <w, x>, (n,), or the sum of w_j x_j^2."""
        features = self._model.features
        if features is None:
            return self._of_columns(w, squared)
        kept = len(w) - features.coded.p
        self._single = self._single or onnx_features.single_precision(self._graph, self._encoded())
        total = onnx_features.score(self._graph, self._single, features, w[kept:])  # coded values are 0 or 1
        return self._graph.add("Add", self._of_columns(w[:kept], squared), total) if kept else total

    def _encoded(self) -> str:
        """Return the columns that the codes of a feature map are made from, (n, columns) double."""
        graph, table = self._graph, self._table
        if table is None:
            assert self._numbers is not None
            return self._numbers
        groups, place = list[str](), np.empty(table.p, np.int64)  # of each column in the groups
        numbers = [(column, start) for column, start in table.placed if column.kind == NUMBER]
        if self._numbers is not None and self._missing is not None:
            groups += [self._numbers, graph.add("Cast", self._missing, to=TensorProto.DOUBLE)]
            for k, (column, start) in enumerate(numbers):
                place[start] = k
                if column.missing:
                    place[start + column.n_values] = len(numbers) + k
        if self._codes is not None:
            words, first = [(column, start) for column, start in table.placed if column.categories is not None], 0
            words_of_columns, codes_of_columns = list[int](), list[int]()
            for k, (column, start) in enumerate(words):
                n = len(column.categories or ())
                codes = [*range(n), *[n + 1] * column.other, *[n] * column.missing]  # in the order of the columns
                place[start : start + len(codes)] = 2 * len(numbers) + len(words_of_columns) + np.arange(len(codes))
                words_of_columns += [k] * len(codes)
                codes_of_columns += [first + code for code in codes]
                first += n + 2
            each = graph.add("Gather", self._codes, np.array(words_of_columns), axis=1)
            same = graph.add("Equal", each, np.array([codes_of_columns]))
            groups.append(graph.add("Cast", same, to=TensorProto.DOUBLE))
        joined = graph.add("Concat", *groups, axis=1)
        return graph.add("Gather", joined, place, axis=1)

    def _of_columns(self, w: NDArray[np.float64], squared: bool) -> str:
        """Do what `dot` does for columns that are not coded."""
        graph, terms = self._graph, []
        placed = [] if self._table is None else self._table.placed
        weights = [(column, w[start : start + column.n_features]) for column, start in placed]
        if self._numbers is not None:
            X = graph.add("Mul", self._numbers, self._numbers) if squared else self._numbers
            numbers = [(column, part) for column, part in weights if column.kind == NUMBER]
            w = np.array([part[0] for _, part in numbers]) if self._table is not None else w
            used = np.flatnonzero(w)
            if FEW * len(used) < len(w):
                X, w = graph.add("Gather", X, used, axis=1), w[used]
            terms.append(graph.add("MatMul", X, w))
            marks = np.array([part[column.n_values] if column.missing else 0.0 for column, part in numbers])
            if self._missing is not None and any(column.missing for column, _ in numbers):
                mark = graph.add("Cast", self._missing, to=TensorProto.DOUBLE)
                terms.append(graph.add("MatMul", mark, marks))
        if self._codes is not None:
            words = [_by_code(column, part) for column, part in weights if column.categories is not None]
            picked = graph.add("Gather", np.concatenate(words), self._codes)
            terms.append(graph.add("ReduceSum", picked, [1], keepdims=0))
        return graph.sum(terms)


def _by_code(column: Column, w: NDArray[np.float64]) -> NDArray[np.float64]:
    """Return the weights of the categories, of a missing value, and of an unknown category."""
    n = len(column.categories or ())
    return np.array([*w[:n], w[column.n_values] if column.missing else 0.0, w[n] if column.other else 0.0])


def _encoder(graph: Graph, column: Column, name: str, first: int, missing: Sequence[str]) -> str:
    """Return the code of each row, (n, 1) int64, from `first` on in the order of `_by_code`."""
    categories = list(column.categories or ())
    if not takes_strings(column):
        same = graph.add("Equal", name, np.array([[_number(category) for category in categories]], float))
        code = onnx_features.first_set(graph, graph.add("Concat", same, graph.add("IsNaN", name), axis=1))
        return graph.add("Add", code, np.int64(first))
    codes = {category: first + k for k, category in enumerate(categories)}
    if {category.lower() for category in categories} <= {"true", "false"}:  # as in `columns.codes`
        spellings = (str.lower, str.capitalize, str.upper)
        codes = {spell(category): code for spell in spellings for category, code in codes.items()} | codes
    codes |= {text: first + len(categories) for text in missing if text not in codes}
    about: dict[str, Any] = {"keys_strings": list(codes), "values_int64s": list(codes.values())}
    return graph.add("LabelEncoder", name, domain=ML, default_int64=first + len(categories) + 1, **about)


def _outputs(graph: Graph, model: Model) -> list[Any]:
    """Add the label to the graph, and return what the graph's outputs are."""
    classes = model.classes
    labels = np.array(classes if all(type(label) is int for label in classes) else list(map(str, classes)))
    called = graph.add("GreaterOrEqual", "score", model.threshold)
    graph.add("Where", called, graph.constant(labels[1]), graph.constant(labels[0]), output="label")
    kind = TensorProto.INT64 if labels.dtype.kind == "i" else TensorProto.STRING
    outputs: list[Any] = [("label", kind, ["n"]), ("score", TensorProto.DOUBLE, ["n"])]
    if model.curve:
        _add_probabilities(graph, model.curve)
        outputs.append((PROBABILITIES, TensorProto.DOUBLE, ["n", 2]))
    return [helper.make_tensor_value_info(*each) for each in outputs]


def _add_probabilities(graph: Graph, curve: Mapping[str, Any]) -> None:
    """Add the probabilities of both classes; see `distsms.metrics.calibration`."""
    if curve["method"] == "sigmoid":
        odds = graph.add("Mul", "score", curve["slope"])
        value = graph.add("Neg", graph.add("Add", odds, curve["intercept"]))
        # Not the operator Sigmoid, which onnxruntime lacks for doubles.
        positive = graph.add("Div", 1.0, graph.add("Add", 1.0, graph.add("Exp", value)))
    else:
        x, y = np.array(curve["scores"]), np.array(curve["probabilities"])
        x, y = np.append(x, np.nextafter(x[-1], np.inf)), np.append(y, y[-1])  # two ends at least
        inside = graph.add("Max", graph.add("Min", "score", x[-2]), x[0])
        column = graph.add("Unsqueeze", inside, np.array([1]))
        reached = graph.add("GreaterOrEqual", column, x[None, 1:-1])
        counted = graph.add("Cast", reached, to=TensorProto.INT64)
        piece = graph.add("ReduceSum", counted, np.array([1]), keepdims=0)
        tables = x[:-1], y[:-1], np.diff(y) / np.diff(x)
        start, low, slope = (graph.add("Gather", values, piece) for values in tables)
        rise = graph.add("Mul", slope, graph.add("Sub", inside, start))
        positive = graph.add("Add", low, rise)
    both = [graph.add("Unsqueeze", part, [1]) for part in (graph.add("Sub", 1.0, positive), positive)]
    graph.add("Concat", *both, output=PROBABILITIES, axis=1)


def _metadata(model: Model, names: Sequence[str]) -> dict[str, str]:
    """Return the metadata of the model, whose values are JSON texts."""
    about: dict[str, Any] = {"measure": model.info.get("measure"), "threshold": model.threshold}
    if model.table is not None:
        kinds = {True: "string", False: "double"}
        about["columns"] = [
            {"name": column.name, "input": name, "kind": column.kind, "type": kinds[takes_strings(column)]}
            for column, name in zip(model.table.columns, names, strict=True)
        ]
    return {key: json.dumps(value) for key, value in about.items()}
