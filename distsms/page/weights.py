"""Write the section of a report on the largest weights: numbers by the step that training made alike, and columns of 0
and 1 by themselves, those of one column of a table together, since their sizes cannot be compared with each other.
"""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from distsms.base.typing import Floats
from distsms.models.contributions import Values, leaf_rule, values_of
from distsms.models.model import Model
from distsms.page import html
from distsms.page.html import Html, element
from distsms.workflow.report import ReportData

LARGEST, SHOWN = 20, 8
"""How many of the largest weights, or columns of a table, are listed; and how many values of each of these columns."""
STEPS = {"standard": "by one standard deviation", "maxabs": "from 0 to its largest absolute value"}
"""The step of a column by which its normalized weight says what the score gains."""


def section(data: ReportData) -> Html:
    """Return the section with a table for each kind of columns."""
    model = data.evaluation.model
    if sequences := model.coded.sequences:
        meaning = (
            "A column is named by the position at which a word begins (12:GT), or by the region in which it is counted "
            "(1-60:GT). A word at a position adds its weight, times a factor that is smaller for longer words, to the "
            "score; so do the shorter words in it."
            + (" The table of words above adds them up." if sequences.code_map.degree else "")
        )
        return html.section("Largest weights", element("p", meaning), *_largest(data, np.arange(model.p)))
    n_kept = model.p - model.coded.p  # the columns of codes come after all others
    flags = _flags(model)[:n_kept]
    parts = list[Html]()
    if not flags.all():
        step = STEPS.get(model.normalization.kind, "by one unit; sizes compare only between columns of like units")
        meaning = f"The weight of a column is what a row's score gains when the column grows {step}."
        parts += [element("p", meaning), *_largest(data, np.flatnonzero(~flags))]
    parts += _values(model, flags)
    if model.coded:
        meaning = "Bins, categories, crosses and leaves are columns of 0 and 1: a row gets the weights of all it has."
        parts += [element("p", meaning), *_largest(data, np.arange(n_kept, model.p))]
    return html.section("Largest weights", *parts)


def _flags(model: Model) -> NDArray[np.bool_]:
    """Return which columns are 0 or 1, or counts of hashed words, as far as the model knows, (p,)."""
    flags = np.zeros(model.p, bool)
    if model.table is not None and model.p > model.coded.p:
        of_table = slice(0, model.table.p)
        flags[of_table] = ~model.table.measured()
        if model.scale is not None:  # training leaves columns of 0 and 1 as they are
            flags[of_table] |= model.scale[of_table] == 1
    return flags


def _largest(data: ReportData, columns: NDArray[np.intp]) -> list[Html]:
    """Return a table of the largest weights of some columns; nothing if all are 0."""
    model, names = data.evaluation.model, data.feature_names
    w = model.normalization.unfold(model.w)  # those of the normalized columns
    largest = columns[np.argsort(-np.abs(w[columns]), kind="stable")[:LARGEST]]
    largest = largest[w[largest] != 0]
    rows = []
    for column in largest.tolist():
        value, share = float(w[column]), abs(w[column] / w[largest[0]])
        kind = "bar" if value > 0 else "bar minus"
        bar = element("span", class_=kind, style=f"width: {8 * share:.2f}em", aria_hidden="true")
        name = names[column] if names else model.original_name(column)
        rule = leaf_rule(model, column)
        rows.append([f"{name}: {rule}" if rule else name, f"{value:+.4g}", bar])
    counted = "" if names else f", columns counted from {0 if data.info['zero_based'] else 1}"
    caption = f"The {len(rows)} largest of {np.count_nonzero(w[columns]):,} weights that are not 0{counted}"
    return [html.table(caption, ["column", "weight", ""], rows)] if rows else []


def _values(model: Model, flags: NDArray[np.bool_]) -> list[Html]:
    """Return what is said of columns of 0 and 1, those of one column of the table together; nothing without any."""
    if model.table is None or not flags.any():
        return []
    groups = sorted(values_of(model.table, flags), key=lambda values: -values.span(model.w))
    rows = [[each.name, f"{each.span(model.w):.4g}", _weights_of(each, model.w)] for each in groups[:LARGEST]]
    meaning = (
        "The values of a column that has no numbers, and missing values, are columns of 0 and 1. A row gets the weights"
        " of those that it has, per value and not per standard deviation, so these weights do not compare with those of"
        " numbers. The largest difference is what two rows can differ by that have other values here."
    )
    caption = f"The {len(rows)} largest of {len(groups):,} columns with values" if len(rows) < len(groups) else "Values"
    return [
        element("p", meaning),
        html.table(caption, ["column", "largest difference", "weights"], rows, text=True),
    ]


def _weights_of(values: Values, w: Floats) -> str:
    """Return the values with their weights, from the largest on; of many, those at both ends."""
    weights, half = w[values.columns], SHOWN // 2
    order = np.argsort(-weights, kind="stable").tolist()
    middle = [f"({len(order) - SHOWN:,} more)"] if len(order) > SHOWN else []
    ends = (order[:half], order[-half:]) if middle else (order, [])
    first, last = ([f"{values.names[k]} {weights[k]:+.3g}" for k in end] for end in ends)
    return ", ".join([*first, *middle, *last])
