"""What options may be: for the command line, which offers it, and for the workflow, which checks it."""

from __future__ import annotations

import operator
import os
from collections.abc import Mapping, Sequence
from dataclasses import fields
from numbers import Integral, Real
from typing import Any

from distsms.base.errors import InputError
from distsms.base.wording import format_value, option

TOGETHER = ("rows", "groups", "doubles", "time")
"""What a split or folds keep together: nothing, groups, equal rows, or what is near in time."""
ORDERINGS = ("gather", "exchange", "bins")
"""How scores are sorted; see `distsms.losses.registry`."""
DEVICES = ("cpu", "cuda")
"""What computes with the rows; see `distsms.device.place`."""
STEPS = ("root", "spread")
"""Where the vectors of the solver are kept: whole on the root, or a slice of each on every rank."""
RULES = ("best", "one-se")
"""How lambda is chosen: that of the best mean, or the simplest model within one standard error of it."""


def require_choice(name: str, value: object, choices: Sequence[str]) -> None:
    """Raise InputError unless an option is one of these texts. Local, and alike on ranks with the same option."""
    if value not in choices:
        raise InputError(f"{option(name)}: {format_value(value):.60} is none of {', '.join(choices)}", everywhere=True)


KINDS: dict[str, tuple[Any, str]] = {
    "int": (Integral, "whole number"),
    "float": (Real, "number"),
    "bool": (bool, "truth value"),
    "str": (str, "text"),
    "Path": ((str, os.PathLike), "path"),
}
"""The types that `check_fields` knows, by their annotations, and what people call them."""


def check_fields(record: Any, least: Mapping[str, int], **options: str) -> None:
    """Raise InputError unless the fields of a dataclass have the types of their annotations, and no smaller numbers.
    Numbers of NumPy become those of Python, which files of JSON can hold. `options` says what users call some fields.
    """
    for each in fields(record):
        value, annotation = getattr(record, each.name), str(each.type).removesuffix(" | None")
        name = option(options.get(each.name, each.name))
        of_list = annotation.startswith("Sequence[")
        kind, noun = KINDS.get(annotation.removeprefix("Sequence[").removesuffix("]"), (None, ""))
        if kind is None or (value is None and annotation != each.type):
            continue
        is_list = isinstance(value, Sequence) and not isinstance(value, str)
        values = value if of_list and is_list else [value]
        plain = [one.item() if hasattr(one, "dtype") and not hasattr(one, "__len__") else one for one in values]
        fits = all(isinstance(one, kind) and isinstance(one, bool) == (kind is bool) for one in plain)
        if not fits or (of_list and not is_list):
            expected = f"list of {noun}s" if of_list else noun
            raise InputError(f"{name} is {format_value(value):.60}, and not a {expected}", True)
        if any(map(operator.is_not, plain, values)):
            object.__setattr__(record, each.name, plain if of_list else plain[0])
        if kind is Integral and not least.get(each.name, value) <= value <= 2**62:  # as on the command line
            bound = "at most 2^62" if value > 2**62 else f"at least {least[each.name]}"
            raise InputError(f"{name} is {value}; it must be {bound}", everywhere=True)
