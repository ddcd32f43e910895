"""JSON files: checks that they have the required fields, descriptions of how two JSON objects differ, and folders that
store the finished parts of a long job, so that the job can be resumed after it was killed.
"""

from __future__ import annotations

import hashlib
import json
import os
import sys
from collections.abc import Callable, Iterable, Mapping, Sequence
from contextlib import ExitStack
from pathlib import Path
from typing import Any

import numpy as np

from distsms.base.errors import InputError
from distsms.base.files import atomic_write, exclusive, read_whole
from distsms.base.formatting import to_json
from distsms.base.measures import RANKING
from distsms.base.typing import Floats

LIMITS = ("time_limit", "max_evaluations")
"""Settings that may change when a folder is resumed."""


def differences(there: Mapping[str, Any], here: Mapping[str, Any], prefix: str = "") -> list[str]:
    """Return how a folder's problem differs from this one, `LIMITS` aside; of files, the fingerprints count."""
    texts = []
    for name in dict.fromkeys([*there, *here]):
        old, new = there.get(name), here.get(name)
        if isinstance(old, dict) and isinstance(new, dict):
            if "fingerprint" not in new:
                texts += differences(old, new, f"{prefix}{name}.")
            elif old["fingerprint"] != new["fingerprint"]:
                changed = ", with other content" if old["path"] == new["path"] else ""
                label = "test data" if name == "test" else name
                texts.append(f"{label}: there {_plain(old['path'])}, now {_plain(new['path'])}{changed}")
        elif old != new and name not in LIMITS:
            texts.append(f"{prefix}{name}: there {_plain(old)}, now {_plain(new)}")
    return texts


def _plain(value: Any) -> str:
    return "none" if value is None else str(value)


Fields = Mapping[str, Callable[[Any], bool]]


def is_number(value: Any) -> bool:
    """Return whether a value is a finite float, or an integer in their range; Python's JSON reads others, too."""
    return type(value) in (int, float) and abs(value) <= sys.float_info.max


def is_share(value: Any) -> bool:
    return is_number(value) and 0 <= value <= 1


def is_number_or_null(value: Any) -> bool:
    return value is None or is_number(value)


def is_text(value: Any) -> bool:
    return isinstance(value, str)


def is_positive(value: Any) -> bool:
    return is_number(value) and bool(value > 0)


MEASURED: Fields = dict.fromkeys(RANKING, is_number_or_null)


def find_fault(value: Any, fields: Fields) -> str | None:
    """Describe why a value is not an object with these fields; None if it is one."""
    if not isinstance(value, dict):
        return "it is not an object"
    wrong = [name for name, is_valid in fields.items() if name not in value or is_valid(value[name]) is not True]
    return f"the field {wrong[0]!r} is missing or has an impossible value" if wrong else None


def sealed(value: Mapping[str, Any]) -> dict[str, Any]:
    """Return an object with its checksum, the SHA-256 of its JSON, which `read_objects` compares."""
    return {**value, "sha256": hashlib.sha256(to_json(value).encode()).hexdigest()}


def read_objects(path: Path, fields: Fields, remedy: str, lines: bool = False) -> list[dict[str, Any]]:
    """Read JSON objects, one or with `lines` one in each, whose values fulfil `fields`; else InputError with remedy."""
    objects, number = [], 0
    try:
        text = read_whole(path).decode("utf-8")
        for number, part in enumerate(text.splitlines() if lines else [text], 1):  # noqa: B007 - used in the message
            objects.append(json.loads(part))
            if isinstance(objects[-1], dict) and "sha256" in objects[-1]:
                written = objects[-1]
                objects[-1] = {key: value for key, value in written.items() if key != "sha256"}
                if written != sealed(objects[-1]):
                    raise ValueError("it is not what was written (SHA-256 differs)")
            if why := find_fault(objects[-1], fields):
                raise ValueError(why)
    except (OSError, ValueError, RecursionError, InputError) as error:
        where = f" at line {number}" if lines and number else ""
        raise InputError(f"{path}: cannot be read{where}: {error}. {remedy}") from error
    return objects


def to_columns(lines: Sequence[Mapping[str, Any]], names: Iterable[str]) -> dict[str, Floats]:
    """Return an array (lines,) float64 for each named field, with NaN for null; no arrays if `lines` is empty."""
    return {name: np.array([line[name] for line in lines], float) for name in names} if lines else {}


VERSION = 1


class ResumableStore:
    """A folder with finished parts in `parts`, and with KIND.json on the problem; for the root, which holds it."""

    kind: str
    parts: str

    def __init__(self, path: str | os.PathLike[str]) -> None:
        self.path, self.name = Path(path), self.kind

    @property
    def identity(self) -> Path:
        """The path of KIND.json, which describes the problem and, when the job is finished, the results."""
        return self.path / f"{self.kind}.json"

    def check(self) -> None:
        """Raise InputError if the path is not a folder, or holds something else."""
        if os.path.lexists(self.path) and not self.path.is_dir():
            raise InputError(f"{self.path}: is not a folder; name another path for the {self.name}")
        if self.path.is_dir() and any(self.path.glob("[!.]*")) and not self.identity.exists():
            raise InputError(f"{self.path}: holds something that is not a {self.name}; name another folder")

    def open(self, problem: Mapping[str, Any]) -> None:
        """Start a new store for a problem, or resume the one that exists; InputError lists how another differs."""
        parts = self.path / self.parts
        if not self.identity.exists() or not any(parts.glob("[!.]*")):
            self.describe(problem)
            parts.mkdir(exist_ok=True)  # not before, since a folder without KIND.json is taken for something else
            return
        if differing := differences(self.read("problem")["problem"], json.loads(to_json(problem))):
            other = f"holds the {self.name} of another problem ({'; '.join(differing)})"
            raise InputError(f"{self.path}: {other}. Name another folder, or remove this one")

    def hold(self, problem: Mapping[str, Any], opened: ExitStack) -> None:
        """Check and open the folder for a problem; other processes may not hold it until `opened` is closed."""
        self.check()
        opened.enter_context(exclusive(self.path))
        self.open(problem)

    def describe(self, problem: Mapping[str, Any], **more: Any) -> None:
        self.write(self.identity, {"format": f"distsms-{self.kind}", "version": VERSION, "problem": problem, **more})

    def read(self, *names: str) -> dict[str, Any]:
        """Read KIND.json; InputError if it is not of this kind and version, or lacks one of the fields in `names`."""
        fields: Fields = {
            "format": f"distsms-{self.kind}".__eq__,
            "version": VERSION.__eq__,
            **dict.fromkeys(names, lambda value: isinstance(value, dict | list)),
        }
        remedy = f"So this is not a {self.name}, or it is damaged or unfinished; name another folder"
        return read_objects(self.identity, fields, remedy)[0]

    def write(self, path: Path, value: Any) -> None:
        with atomic_write(path) as file:
            file.write((to_json(sealed(value), indent=1) + "\n").encode())
