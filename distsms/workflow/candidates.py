"""Candidates for features, as the option `--features` names them: `raw`, `leaves`, or `bins=16,crosses=all`."""

from __future__ import annotations

import hashlib
import re
from collections.abc import Mapping, Sequence
from contextlib import suppress
from typing import Any, NamedTuple

from distsms.base.errors import InputError
from distsms.base.wording import format_value

PRESETS: dict[str, dict[str, Any]] = {
    "bins": {"bins": 32},
    "crosses": {"bins": 32, "crosses": "all"},
    "leaves": {"trees": 100},
    "trees": {"trees": 100},
}
"""The options of features that are asked for by one word."""

RAW = "raw"  # the original columns
_NUMBERS = {"bins": 2, "trees": 1, "min-leaf": 1, "tree-rows": 1, "seed": 0}
_TEXTS = ("crosses", "attributes")
_HELP = (
    "`raw`, `bins`, `crosses`, `leaves` or `trees` (the same), or options of distsms features, such as "
    "bins=16,crosses=top:20 or trees=300,min-leaf=5,keep"
)


class Candidate(NamedTuple):
    """Features that a user has named."""

    text: str  # the words of the user
    options: Mapping[str, Any] | None  # fields of `FeatureOptions`; None stands for the original columns

    @property
    def folder(self) -> str:
        """The text as the name of a folder: one that is too long, or has other characters, gets a hash in its place."""
        if re.fullmatch(r"[\w.=,:+-]{1,100}", self.text) and not self.text.startswith("."):
            return self.text
        return f"features-{hashlib.sha256(self.text.encode()).hexdigest()[:16]}"


COLUMNS = Candidate(RAW, None)


def distinct(candidates: Sequence[Candidate]) -> list[Candidate]:
    """Return the candidates without those that make the same features as one before."""
    options = [candidate.options for candidate in candidates]
    return [candidate for k, candidate in enumerate(candidates) if candidate.options not in options[:k]]


def named(features: str | Mapping[str, Any]) -> Mapping[str, Any]:
    """Return the options that a text of `parse` or a mapping of options stand for. InputError if they are none."""
    if not isinstance(features, (str, Mapping)):
        words = ", ".join(map(repr, PRESETS))
        raise InputError(f"features={format_value(features)}: needs one of {words}, or a dict of options")
    try:
        options = parse(features).options if isinstance(features, str) else features
    except InputError as error:
        text = error.message.replace("min-leaf", "min_leaf").replace("tree-rows", "tree_rows")
        raise InputError(f"features={text}, or a dict of options") from error
    if options is None:
        raise InputError(f"features={format_value(features)} makes no features")
    return options


def parse(text: str) -> Candidate:
    """Return the candidate that a word, or options separated by commas, stand for, with names as on the command line or
    in Python. Raises InputError if they are none.

    >>> parse("raw")
    Candidate(text='raw', options=None)
    >>> parse("bins=8,crosses=a:b,a:c,keep").options
    {'bins': 8, 'crosses': 'a:b,a:c', 'keep': True}
    """
    if text == RAW or text in PRESETS:
        return Candidate(text, PRESETS.get(text))
    options, name = dict[str, Any](), ""
    for part in text.split(","):
        before, equals, value = part.partition("=")
        before = before.replace("_", "-")
        if part in PRESETS and not options.keys() & PRESETS[part].keys():
            options |= PRESETS[part]
        elif part == "keep":
            options["keep"] = True
        elif equals and before in (*_NUMBERS, *_TEXTS) and before.replace("-", "_") not in options:
            name = before
            options[name.replace("-", "_")] = _number(text, name, value) if name in _NUMBERS else value
        elif name == "crosses" and not equals:  # the pairs themselves are separated by commas
            options["crosses"] += f",{part}"
        else:
            raise InputError(f"{text!r}: {part!r} is not one of the features. Give {_HELP}")
    if not options.keys() & {"bins", "crosses", "attributes", "trees"}:
        raise InputError(f"{text!r} makes no features. Give {_HELP}")
    if "trees" not in options and (of_trees := options.keys() & {"min_leaf", "tree_rows", "seed"}):
        raise InputError(f"{text!r}: {min(of_trees).replace('_', '-')} is about trees; say how many, such as trees=100")
    return Candidate(text, options)


def _number(text: str, name: str, value: str) -> int:
    least = _NUMBERS[name]
    with suppress(ValueError, OverflowError):
        number = float(value)
        if number == int(number) and number >= least:
            return int(number)
    raise InputError(f"{text!r}: {name} is {value!r}, and not a whole number of at least {least}")
