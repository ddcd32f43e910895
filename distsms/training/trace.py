"""The trace of a run: a file of JSON lines, one for each evaluation."""

from __future__ import annotations

import contextlib
import json
import os
import sys
from pathlib import Path

from distsms.base.errors import InputError
from distsms.base.files import real_path, require_regular
from distsms.base.formatting import to_json
from distsms.base.schema import Fields, is_number, is_number_or_null, is_positive, read_objects, to_columns
from distsms.base.typing import Floats
from distsms.base.wording import option
from distsms.optim.result import State

LINE: Fields = {"evaluation": is_positive, "seconds": is_number}
TRACED: Fields = {**LINE, "best_J": is_number, "gap": is_number_or_null}


class Trace:
    """Writes JSON lines, one for each evaluation, behind those of an old file up to `after`; None: no file. Local."""

    def __init__(self, path: str | None, solver: str, after: int = 0) -> None:
        self.file_entry, self._solver = None, solver
        if path is not None:
            try:
                require_regular(Path(path))
                file = real_path(path)
                if after and file.is_file():
                    os.truncate(file, _length_up_to(file, after))
                self.file_entry = open(file, "a" if after else "w", encoding="utf-8")  # noqa: SIM115 - closed by close()
            except OSError as error:
                raise InputError(f"{path}: the trace cannot be written: {error}") from error

    def __call__(self, state: State) -> None:
        """Append the state, so that others can read it at once. If the disk is full, only the trace ends."""
        if self.file_entry is not None:
            try:
                self.file_entry.write(to_json({**state._asdict(), "solver": self._solver}) + "\n")
                self.file_entry.flush()
            except OSError as error:
                print(f"warning: the trace ends at evaluation {state.evaluation}: {error}", file=sys.stderr, flush=True)
                with contextlib.suppress(OSError):
                    self.file_entry.close()
                self.file_entry = None

    def close(self) -> None:
        """Close the file. If the disk is full, only its last lines are lost."""
        if self.file_entry is not None:
            try:
                self.file_entry.close()
            except OSError as error:
                print(f"warning: the end of the trace may be missing: {error}", file=sys.stderr, flush=True)


def check_trace(path: str) -> None:
    """Raise InputError if `path` is a file that is not a trace: writing one would destroy it. Local."""
    try:
        if not Path(path).is_file():
            return
        with open(path, "rb") as file:
            start = file.read(2**16)
        if start and "evaluation" not in json.loads(start.split(b"\n")[0]):
            raise ValueError
    except OSError as error:
        raise InputError(f"{path}: the trace cannot be written: {error}") from error
    except (ValueError, TypeError):
        raise InputError(f"{path}: exists and is not a trace; name another file, or remove it first") from None


def _length_up_to(path: Path, evaluation: int) -> int:
    """Return the length of a trace up to this evaluation, in bytes of whole lines."""
    length = 0
    with open(path, "rb") as file:
        for line in file:
            try:
                if not line.endswith(b"\n") or json.loads(line)["evaluation"] > evaluation:
                    break
            except (ValueError, KeyError, TypeError):  # written by a process that was killed, or not a trace
                break
            length += len(line)
    return length


def read_trace(
    path: Path, remedy: str = f"Give the file that `distsms train {option('trace')}` wrote"
) -> dict[str, Floats]:
    """Return the columns of a trace file by name; an empty dict if it has no lines. Raises InputError if damaged."""
    return to_columns(read_objects(path, TRACED, remedy, lines=True), TRACED)
