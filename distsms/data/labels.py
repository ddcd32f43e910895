"""What the labels of the input mean: which value is the positive one, and what the others are."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Any, NamedTuple, TypeAlias

import numpy as np
from numpy.typing import NDArray

from distsms.errors import InputError

Label: TypeAlias = float | str

KNOWN_PAIRS: tuple[set[Label], ...] = ({-1.0, 1.0}, {0.0, 1.0}, {1.0, 2.0}, {"false", "true"})
"""Pairs of labels in common use. 1 (or "true") is the positive one of each."""
MAX_LABELS = 1000
"""A column with more different values than this does not hold classes."""


class LabelMeaning(NamedTuple):
    """The original label of each class: None if the class does not occur, a list if it has several labels."""

    positive: Label | None
    negative: Label | list[Label] | None

    def as_map(self) -> dict[str, Any]:
        """Return the label map of the manifest: the original label, or list of labels, of each class."""
        return {"+1": self.positive, "-1": self.negative}


def interpret(found: Iterable[Label], positive: Label | None = None) -> LabelMeaning:
    """Find out which label is positive.

    Parameters
    ----------
    found : iterable of float or of str
        The labels of all rows: all numbers, or all strings.
    positive : float or str, optional
        The positive label; all others are negative. None: the labels must be one of `KNOWN_PAIRS`.

    Raises
    ------
    InputError
        If `positive` is not among several labels, or if it is needed and not given. The message shows the labels.
    """
    values = sorted(set(found))
    shown = f"{f'{len(values)} different' if len(values) > 2 else 'the'} labels: {format_labels(values)}"
    if len(values) > MAX_LABELS:
        raise InputError(f"found {shown}; two classes are expected")
    if positive is None:
        pair = next((known for known in KNOWN_PAIRS if set(values) <= known), None)
        if pair is None:
            raise InputError(
                f"found {shown}; known pairs are -1/+1, 0/1, 1/2 (1 is positive) and false/true. "
                "Name the positive one by --positive; all others are negative then"
            )
        positive = "true" if "true" in pair else 1.0
    elif values:
        positive = convert_like(positive, values)
    if len(values) > 1 and positive not in values:
        raise InputError(f"found {shown}; --positive {format_labels([positive])} is none of them")
    others = [value for value in values if value != positive]
    negative = others if len(others) > 1 else others[0] if others else None
    return LabelMeaning(positive if positive in values else None, negative)


def convert_like(label: Label, others: Iterable[Label]) -> Label:
    """Return a label of the command line as a number if the others are numbers, else as a string.

    A label that is not a number stays a string.
    """
    if any(isinstance(other, str) for other in others):
        return f"{label:g}" if isinstance(label, float) else label
    try:
        return float(label)
    except ValueError:
        return label


def original_labels(label_map: Mapping[str, Any], sign: str) -> list[Label]:
    """Return the original labels of a class, "+1" or "-1": one, several, or none."""
    found = label_map.get(sign)
    return [] if found is None else list(found) if isinstance(found, list | tuple) else [found]


def to_signs(labels: NDArray[Any], label_map: Mapping[str, Any], where: str) -> NDArray[np.int8]:
    """Return +1 and -1, (n,) int8, for labels (n,) of rows that did not make the label map.

    Parameters
    ----------
    labels : (n,) array of numbers or strings
        The original labels.
    label_map : mapping
        The original labels of each class. If the negative class has several, every unknown label is negative.
    where : str
        What the labels are of, at the beginning of the message.

    Raises
    ------
    InputError
        If a label is unknown and the negative class does not have several.
    """
    positive, negative = original_labels(label_map, "+1"), original_labels(label_map, "-1")
    is_positive, is_negative = np.isin(labels, positive), np.isin(labels, negative)
    unknown = labels[~(is_positive | is_negative)]
    if len(unknown) and len(negative) <= 1:
        ours = f"{format_labels(positive)} (positive) and {format_labels(negative)}"
        raise InputError(f"{where}: has the label {format_labels(unknown[:1].tolist())}, but the model knows {ours}")
    return np.where(is_positive, 1, -1).astype(np.int8)


def format_labels(values: Iterable[Label | None]) -> str:
    """Return labels for a message, at most ten."""
    shown = [f"{label:g}" if isinstance(label, float) else str(label) for label in values]
    return ", ".join(shown[:10]) + (", ..." if len(shown) > 10 else "")
