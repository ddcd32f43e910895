"""Folders that store the finished parts of a long job, so that the job can be resumed after it was killed."""

from __future__ import annotations

import json
import os
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from distsms.base.errors import InputError
from distsms.base.files import atomic_write
from distsms.base.formatting import to_json
from distsms.base.schema import Fields, differences, read_objects, sealed

VERSION = 1


class ResumableStore:
    """A folder with finished parts in `parts`, and with KIND.json on the problem; for the root, which holds it."""

    kind: str
    parts: str

    def __init__(self, path: str | os.PathLike[str]) -> None:
        self.path = Path(path)

    @property
    def name(self) -> str:
        return self.kind

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
            raise InputError(
                f"{self.path}: holds the {self.name} of another problem ({'; '.join(differing)}). Name another folder, "
                "or remove this one"
            )

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
