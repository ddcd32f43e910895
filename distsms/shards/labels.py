"""Interpret the labels of the input: decide which value is the positive label and which are negative."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from typing import Any, TypeAlias

import numpy as np
from numpy.typing import NDArray

from distsms.base.errors import InputError
from distsms.base.formatting import format_rows
from distsms.base.wording import option, printable

Label: TypeAlias = float | str | bool

KNOWN_PAIRS: tuple[tuple[Label, Label], ...] = (
    (-1.0, 1.0),
    (0.0, 1.0),
    (2.0, 1.0),
    ("false", "true"),
    ("no", "yes"),
    ("n", "y"),
    ("negative", "positive"),
    ("neg", "pos"),
)
"""Pairs of labels in common use, in small letters: the negative and the positive one."""
MAX_LABELS = 1000
"""A column with more different values than this does not hold classes."""


def interpret(labels: Iterable[Label], positive: Label | None = None) -> dict[str, Any]:
    """Return the original label, or list of labels, of each class, "+1" and "-1", None for a class that does not occur:
    `positive` is positive, or one of `KNOWN_PAIRS`. A mapping has the rows of each label.
    """
    counts = labels if isinstance(labels, Mapping) else None
    values = sorted(set(labels))  # type: ignore[type-var]
    shown = f"{f'{len(values)} different' if len(values) > 2 else 'the'} labels: {format_labels(values, counts)}"
    if len(values) > MAX_LABELS:
        raise InputError(f"found {shown}; two classes are expected")
    if positive is None:
        plain = {plain_form(value) for value in values}
        pair = next((candidate for candidate in KNOWN_PAIRS if plain <= set(candidate)), None)
        if pair is None:
            pairs = "-1/+1, 0/1, 1/2 (1 is positive), false/true, no/yes, n/y and negative/positive"
            remedy = f"Name the positive label with {option('positive')}; then all others are negative"
            raise InputError(f"found {shown}; which one is positive is not known. Known pairs are {pairs}. {remedy}")
        positives = [value for value in values if plain_form(value) == pair[1]]
    else:
        positive_label = convert_like(positive, values)
        positives = [value for value in values if value == positive_label]
        positives = positives or [value for value in values if plain_form(value) == plain_form(positive)]
        if len(values) > 1 and not positives:
            raise InputError(f"found {shown}; {option('positive', format_labels([positive_label]))} is none of them")
    others = [value for value in values if value not in positives]
    return {"+1": _some(positives), "-1": _some(others)}


def _some(labels: list[Label]) -> Label | list[Label] | None:
    return labels if len(labels) > 1 else labels[0] if labels else None


def plain_form(label: Label) -> Label:
    """Return a form of a label that is equal for equal labels: for True, "True" and "TRUE", and for 1 and "1"."""
    if isinstance(label, bool | np.bool_):
        return "true" if label else "false"
    if not isinstance(label, str):
        return float(label)
    try:
        return float(label)
    except ValueError:
        return label.strip().lower()


def convert_like(label: Label, others: Iterable[Label]) -> Label:
    """Return a label of the command line as a number if the others are numbers, and it is one, else as a string."""
    if any(isinstance(other, str) for other in others):
        return f"{label:g}" if isinstance(label, float) else label
    try:
        return float(label)
    except ValueError:
        return label


def in_one_type(labels: Sequence[Label]) -> NDArray[Any]:
    """Return labels (n,) as float64 if all are numbers, else as strings, in which numbers are written as `12`."""
    if all(isinstance(label, float) for label in labels):
        return np.array(labels, np.float64)
    return np.array([convert_like(label, [""]) for label in labels], dtype=str)


def original_labels(label_map: Mapping[str, Any], sign: str) -> list[Label]:
    """Return the original labels of a class, "+1" or "-1": one, several, or none."""
    labels = label_map.get(sign)
    return [] if labels is None else list(labels) if isinstance(labels, list | tuple) else [labels]


def class_names(label_map: Mapping[str, Any]) -> dict[str, str]:
    """Return the original labels of "+1" and of "-1", in this order, for a message; "" for a class without any."""
    return {sign: format_labels(original_labels(label_map, sign)) for sign in ("+1", "-1")}


def to_signs(labels: NDArray[Any], label_map: Mapping[str, Any], where: str) -> NDArray[np.int8]:
    """Return +1 and -1, (n,) int8, for labels (n,), by a label map that may come from other rows. If its negative class
    has several labels, every unknown label is negative; otherwise InputError begins with `where`."""
    positive, negative = original_labels(label_map, "+1"), original_labels(label_map, "-1")
    different, inverse = np.unique(labels, return_inverse=True)
    signs = np.array([_sign(label, positive, negative) for label in different.tolist()], np.int8)
    if len(negative) > 1:
        signs[signs == 0] = -1
    elif (signs == 0).any():
        first = labels[(signs[inverse] == 0).argmax()]
        expected = f"{format_labels(positive)} (positive) and {format_labels(negative)}"
        raise InputError(f"{where}: has the label {format_labels([first.item()])}, but the model knows {expected}")
    return signs[inverse]


def _sign(label: Label, positive: list[Label], negative: list[Label]) -> int:
    """Return 1 or -1, or 0 if the label is unknown."""
    for form in (lambda value: value, plain_form):
        for sign, labels in ((1, positive), (-1, negative)):
            if form(label) in [form(value) for value in labels if value is not None]:
                return sign
    return 0


def format_labels(values: Iterable[Label | None], counts: Mapping[Label, int] | None = None) -> str:
    """Return labels for a message, at most ten, with the number of rows of each if `counts` has it."""
    shown = []
    for label in values:
        name = f"{label:g}" if isinstance(label, float) else printable(str(label))
        if counts is not None and label is not None:
            name += f" ({format_rows(counts[label])})"
        shown.append(name)
    return ", ".join(shown[:10]) + (", ..." if len(shown) > 10 else "")
