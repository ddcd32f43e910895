"""What the labels of the input mean: which value is the positive one, and what the others are."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Any, NamedTuple, TypeAlias

import numpy as np
from numpy.typing import NDArray

from distsms.errors import InputError

Label: TypeAlias = float | str

KNOWN_PAIRS: tuple[set[Label], ...] = ({-1.0, 1.0}, {0.0, 1.0}, {1.0, 2.0}, {"false", "true"})
"""Pairs of labels in common use; 1 (and true) is the positive one in each."""
MOST = 1000
"""Different labels, beyond which a column is none of classes."""


class Labels(NamedTuple):
    """What labels mean; a class that does not occur is None, one with several labels a list."""

    positive: Label | None
    negative: Label | list[Label] | None

    def signs(self, labels: NDArray[Any]) -> NDArray[np.int8]:
        """+1 where the label (n,) is the positive one, else -1."""
        return np.where(labels == self.positive, 1, -1).astype(np.int8)

    def as_map(self) -> dict[str, Any]:
        """For the manifest: the original label, or list of labels, of each class."""
        return {"+1": self.positive, "-1": self.negative}


def interpret(found: Iterable[Label], positive: Label | None = None) -> Labels:
    """What the labels found mean: all numbers, or all words. `positive` names the positive one; the rest is negative.

    Raises InputError, with the labels, where it does not occur among several, or is needed and not given.
    """
    values = sorted(set(found))
    shown = f"{f'{len(values)} different' if len(values) > 2 else 'the'} labels: {in_words(values)}"
    if len(values) > MOST:
        raise InputError(f"found {shown}; two classes are expected")
    if positive is None:
        known = next((pair for pair in KNOWN_PAIRS if set(values) <= pair), None)
        if known is None:
            raise InputError(
                f"found {shown}; known pairs are -1/+1, 0/1, 1/2 (1 is positive) and false/true. "
                "Say which one is positive with --positive; all others are negative then"
            )
        positive = "true" if "true" in known else 1.0
    elif values:
        positive = like(positive, values)
    if len(values) > 1 and positive not in values:
        raise InputError(f"found {shown}; --positive {in_words([positive])} is none of them")
    others = [value for value in values if value != positive]
    negative = others if len(others) > 1 else others[0] if others else None
    return Labels(positive if positive in values else None, negative)


def like(label: Label, others: Iterable[Label]) -> Label:
    """A label of the command line as what the others are: a number, or a word. Stays a word where it is no number."""
    if any(isinstance(one, str) for one in others):
        return f"{label:g}" if isinstance(label, float) else label
    try:
        return float(label)
    except ValueError:
        return label


def known(label_map: Mapping[str, Any], sign: str) -> list[Label]:
    """The original labels of a class, "+1" or "-1": one, several, or none."""
    found = label_map.get(sign)
    return [] if found is None else list(found) if isinstance(found, list | tuple) else [found]


def signs(labels: NDArray[Any], label_map: Mapping[str, Any], where: str) -> NDArray[np.int8]:
    """+1 and -1 for labels (n,), numbers or strings, of other rows than those that made the map.

    Where the negative class had several labels, it is the rest, whatever else may come. Raises InputError, beginning
    with `where`, for labels that are unknown otherwise.
    """
    positive, negative = known(label_map, "+1"), known(label_map, "-1")
    is_positive, is_negative = np.isin(labels, positive), np.isin(labels, negative)
    unknown = labels[~(is_positive | is_negative)]
    if len(unknown) and len(negative) <= 1:
        ours = f"{in_words(positive)} (positive) and {in_words(negative)}"
        raise InputError(f"{where}: has the label {in_words(unknown[:1].tolist())}; the model knows {ours}")
    return np.where(is_positive, 1, -1).astype(np.int8)


def in_words(values: Iterable[Label | None]) -> str:
    """Labels for people, ten at most."""
    shown = [f"{one:g}" if isinstance(one, float) else str(one) for one in values]
    return ", ".join(shown[:10]) + (", ..." if len(shown) > 10 else "")
