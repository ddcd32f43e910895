"""The files of a run: the checkpoint folder, from which it can be resumed, and the trace, with a line of JSON for each
evaluation.
"""

from __future__ import annotations

import contextlib
import json
import os
import sys
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from distsms.base.communicator import Communicator
from distsms.base.errors import InputError
from distsms.base.files import real_path, require_regular
from distsms.base.formatting import to_json
from distsms.base.schema import Fields, is_number, is_number_or_null, is_positive, read_objects, to_columns
from distsms.base.typing import Floats
from distsms.base.wording import option
from distsms.optim.course import Watcher
from distsms.optim.objective import Objective
from distsms.optim.result import Result, State
from distsms.optim.run import minimize
from distsms.optim.settings import Settings, describe
from distsms.training.checkpoint import Checkpoint, CheckpointWriter, opened, restored
from distsms.training.task import RunOptions

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
        if self.file_entry is None:
            return
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


@dataclass
class RunRecorder:
    """Minimizes an objective and records the run; made by `recording`."""

    settings: Settings
    trace: Trace
    folder: Path
    identity: Mapping[str, Any]
    checkpoint: Checkpoint | None  # on the root, from which the run continues, and lines for the user about it
    notes: list[str]

    def __post_init__(self) -> None:
        # The evaluations before the checkpoint, and what each checkpoint keeps of the deaths that the run survived.
        numbers = self.checkpoint.numbers if self.checkpoint else {}
        self.evaluations: int = numbers.get("count", 0)
        self.survived: list[Any] = list(numbers.get("about", {}).get("survived", []))

    def minimize(
        self, objective: Objective, start: Floats | None = None, watch: Watcher = lambda state, w: None
    ) -> Result:
        """Minimize the objective from `start` (p,), or continue from the checkpoint if there is one. **Collective.**"""
        vectors = objective.vectors

        def record(state: State, w: Floats) -> None:
            watch(state, w)
            self.trace(state)

        about = {"settings": describe(self.settings), "survived": self.survived}
        writer = CheckpointWriter(self.folder, self.identity, about, vectors)
        snapshot = objective.surviving(lambda: restored(self.checkpoint, vectors))
        return minimize(objective, self.settings, start, record, writer, snapshot)


@contextlib.contextmanager
def recording(
    comm: Communicator, settings: Settings, options: RunOptions, identity: Mapping[str, Any]
) -> Iterator[RunRecorder]:
    """Open the files of a run of this identity; close them at the end. **Collective.**"""
    kept, notes, folder = None, list[str](), Path(options.checkpoint or "")
    trace = os.fspath(options.trace) if comm.is_root and options.trace is not None else None
    with contextlib.ExitStack() as closing:
        with comm.fail_together():
            if trace is not None:
                check_trace(trace)
            if comm.is_root and options.checkpoint is not None:
                kept, notes = opened(folder, identity, options.resume, closing)
                if settings.points and kept and "table.certificate.shares" not in kept.shapes:
                    problem = f"has not what a certificate needs, since its run began without {option('certificate')}"
                    raise InputError(f"{kept.path}: {problem}; leave that out, or start in another folder")
            file = Trace(trace, settings.solver, kept.numbers["count"] if kept else 0)
        closing.callback(file.close)
        yield RunRecorder(settings, file, folder, identity, kept, notes)
