"""Check JSON that files hold: fields and their conditions, and what differs between two objects."""

from __future__ import annotations

import json
import sys
from collections.abc import Callable, Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np

from distsms.errors import InputError
from distsms.measures import RANKING
from distsms.utils.typing import Floats

LIMITS = ("time_limit", "max_evaluations")
"""Settings that may grow while a folder is resumed."""


def differences(there: Mapping[str, Any], here: Mapping[str, Any], prefix: str = "") -> list[str]:
    """In words, where two mappings of the same kind differ but for limits; files by their fingerprints, not places."""
    words = []
    for name in dict.fromkeys([*there, *here]):
        old, new = there.get(name), here.get(name)
        if isinstance(old, dict) and isinstance(new, dict):
            if "fingerprint" not in new:
                words += differences(old, new, f"{prefix}{name}.")
            elif old["fingerprint"] != new["fingerprint"]:
                changed = ", with other content" if old["path"] == new["path"] else ""
                called = "test data" if name == "test" else name
                words.append(f"{called}: there {_plain(old['path'])}, now {_plain(new['path'])}{changed}")
        elif old != new and name not in LIMITS:
            words.append(f"{prefix}{name}: there {_plain(old)}, now {_plain(new)}")
    return words


def _plain(value: Any) -> str:
    return "none" if value is None else str(value)


Fields = Mapping[str, Callable[[Any], bool]]


def number(value: Any) -> bool:
    """Python's JSON knows NaN, infinities and integers beyond any float, too."""
    return type(value) in (int, float) and abs(value) <= sys.float_info.max


def number_or_null(value: Any) -> bool:
    return value is None or number(value)


def positive(value: Any) -> bool:
    return number(value) and bool(value > 0)


def file_entry(value: Any) -> bool:
    return isinstance(value, dict) and {"path", "fingerprint"} <= set(value)


MEASURED: Fields = dict.fromkeys(RANKING, number_or_null)


def fault(thing: Any, fields: Fields) -> str | None:
    """In words, why a value is not an object with these fields, if so."""
    if not isinstance(thing, dict):
        return "it is not an object"
    wrong = [name for name, will_do in fields.items() if name not in thing or will_do(thing[name]) is not True]
    return f"the field {wrong[0]!r} is missing or impossible" if wrong else None


def read_objects(path: Path, fields: Fields, remedy: str, lines: bool = False) -> list[dict[str, Any]]:
    """The objects of a file, one or one in each line. Raises InputError, with the remedy, if it is damaged."""
    found, number = [], 0
    try:
        text = path.read_text(encoding="utf-8")
        for number, one in enumerate(text.splitlines() if lines else [text], 1):  # noqa: B007 - told below
            found.append(json.loads(one))
            if why := fault(found[-1], fields):
                raise ValueError(why)
    except (OSError, ValueError, RecursionError) as error:
        where = f" at line {number}" if lines and number else ""
        raise InputError(f"{path}: cannot be read{where}: {error}. {remedy}") from error
    return found


def columns(lines: Sequence[Mapping[str, Any]], names: Iterable[str]) -> dict[str, Floats]:
    return {name: np.array([one[name] for one in lines], float) for name in names} if lines else {}  # null: NaN
