"""A folder of finished parts that a killed job goes on from, and of what they are parts."""

from __future__ import annotations

import json
import os
from collections.abc import Mapping
from pathlib import Path
from typing import Any, ClassVar

from distsms.errors import InputError
from distsms.utils.files import replacing
from distsms.utils.formatting import to_json
from distsms.utils.schema import Fields, differences, read_objects

VERSION = 1


class ResumableStore:
    """A folder with KIND.json and finished parts below `parts`. For the root alone; hold it with `files.exclusive`."""

    kind: ClassVar[str]  # as in "path.json"
    parts: ClassVar[str]

    def __init__(self, path: str | os.PathLike[str]) -> None:
        self.path = Path(path)

    @property
    def identity(self) -> Path:
        """The file that says what the parts are of, and what came of them."""
        return self.path / f"{self.kind}.json"

    def check(self) -> None:
        """Raise InputError if something else is there."""
        if os.path.lexists(self.path) and not self.path.is_dir():
            raise InputError(f"{self.path}: is not a folder; name another place for the {self.kind}")
        if self.path.is_dir() and any(self.path.glob("[!.]*")) and not self.identity.exists():
            raise InputError(f"{self.path}: holds something that is not a {self.kind}; name another folder")

    def open(self, problem: Mapping[str, Any]) -> None:
        """Begin, or go on with, the parts of a problem. InputError, with what differs, if another one's are there."""
        (self.path / self.parts).mkdir(exist_ok=True)
        if not self.identity.exists() or not any((self.path / self.parts).glob("[!.]*")):
            return self.describe(problem)
        if differing := differences(self.read("problem")["problem"], json.loads(to_json(problem))):
            words = "; ".join(differing)
            raise InputError(
                f"{self.path}: holds another {self.kind} ({words}). Name another folder, or remove this one"
            )

    def describe(self, problem: Mapping[str, Any], **more: Any) -> None:
        """Write KIND.json: the problem, and what came of it."""
        self.write(self.identity, {"format": f"distsms-{self.kind}", "version": VERSION, "problem": problem, **more})

    def read(self, *names: str) -> dict[str, Any]:
        """KIND.json. Raises InputError unless it is one, and has these fields."""
        fields: Fields = {
            "format": f"distsms-{self.kind}".__eq__,
            "version": VERSION.__eq__,
            **dict.fromkeys(names, lambda value: isinstance(value, dict | list)),
        }
        remedy = f"So this is no {self.kind}, or a damaged or unfinished one; name another folder"
        return read_objects(self.identity, fields, remedy)[0]

    def write(self, path: Path, thing: Any) -> None:
        """Write a file of JSON, atomically."""
        with replacing(path) as temporary:
            temporary.write_text(to_json(thing, indent=1) + "\n", encoding="utf-8")
