"""The rules of leaves in words: the conditions on columns that lead a row to a leaf."""

from __future__ import annotations

from distsms.features.attributes import table_attributes
from distsms.features.bins import edge_text
from distsms.features.forest import Forest
from distsms.models.model import Model

_SHOWN = 8
"""How many conditions a rule shows."""


def leaf_rule(model: Model, column: int) -> str:
    """Return what leads to a leaf, given its column of w: "20 < amount <= 60 and shop=games"; "" for other columns.

    Conditions on the same number are joined. Rows with a missing number have the number that stands for it.
    """
    features = model.features
    if features is None or features.forest is None or column < features.p - features.forest.code_map.p:
        return ""
    tree, leaf = features.forest.place(column - (features.p - features.forest.code_map.p))
    attributes = [] if model.table is None else table_attributes(model.table)[0]
    binary = {j for a in attributes for j in (a.columns if a.categories else (a.missing,))}
    centres = {a.columns[0]: a.centre for a in attributes if a.categories is None}
    limits = _limits(features.forest, tree, leaf)
    words = [
        f"{'not ' * (low is None)}{model.original_name(j)}"
        if j in binary
        else _between(low, high, model.original_name(j), centres.get(j, 0.0))
        for j, (low, high) in limits.items()
    ]
    more = [f"{len(words) - _SHOWN} more"] if len(words) > _SHOWN else []
    return " and ".join(words[:_SHOWN] + more) or "all rows"


def _limits(forest: Forest, tree: int, leaf: int) -> dict[int, tuple[float | None, float | None]]:
    """Return for each column on the way to a leaf what its value is above, and what it is at most."""
    limits = dict[int, tuple[float | None, float | None]]()
    for j, threshold, left in forest.path(tree, leaf):  # each split lies within those before it
        low, high = limits.get(j, (None, None))
        limits[j] = (low, threshold) if left else (threshold, high)
    return limits


def _between(low: float | None, high: float | None, name: str, centre: float) -> str:
    below, above = ("" if end is None else edge_text(end, centre) for end in (low, high))
    if below and above:
        return f"{below} < {name} <= {above}"
    return f"{name} <= {above}" if above else f"{name} > {below}"
