"""Keep the files of a run: the checkpoint folder, from which it can be resumed, and the trace of its evaluations."""

from __future__ import annotations

import contextlib
import os
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from distsms.base.communicator import Communicator
from distsms.base.errors import InputError
from distsms.base.typing import Floats
from distsms.base.wording import option
from distsms.optim.course import Watcher
from distsms.optim.objective import Objective
from distsms.optim.result import Result, State
from distsms.optim.run import minimize
from distsms.optim.settings import Settings, describe
from distsms.training.checkpoint import Checkpoint, CheckpointWriter, opened, restored
from distsms.training.trace import Trace, check_trace


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
    comm: Communicator,
    settings: Settings,
    trace: str | os.PathLike[str] | None = None,
    checkpoint: str | os.PathLike[str] | None = None,
    resume: bool = False,
    identity: Mapping[str, Any] | None = None,
) -> Iterator[RunRecorder]:
    """Open the files of a run (see `RunOptions`) of this identity; close them at the end. **Collective.**"""
    kept, notes, identity = None, list[str](), identity or {}
    with contextlib.ExitStack() as closing:
        with comm.fail_together():
            if comm.is_root and trace is not None:
                check_trace(os.fspath(trace))
            if comm.is_root and checkpoint is not None:
                kept, notes = opened(Path(checkpoint), identity, resume, closing)
                if settings.points and kept and "table.certificate.shares" not in kept.shapes:
                    raise InputError(
                        f"{kept.path}: has not what a certificate needs, since its run was started without "
                        f"{option('certificate')}; leave that out, or start again in another folder"
                    )
            count = kept.numbers["count"] if kept else 0
            file = Trace(os.fspath(trace) if comm.is_root and trace is not None else None, settings.solver, count)
        closing.callback(file.close)
        yield RunRecorder(settings, file, Path(checkpoint or ""), identity, kept, notes)
