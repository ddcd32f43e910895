"""Keep the files of a run: the checkpoint folder, from which it can be resumed, and the trace."""

from __future__ import annotations

import contextlib
import os
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

from distsms.base.typing import Floats
from distsms.optim.course import Watcher
from distsms.optim.objective import Objective
from distsms.optim.result import Result, State
from distsms.optim.run import minimize
from distsms.optim.settings import Settings, describe
from distsms.parallel.communicator import Communicator
from distsms.training.checkpoint import Checkpoint, CheckpointWriter, opened, restored
from distsms.training.trace import Trace, check_trace


class RunRecorder:
    """Minimizes an objective and records the run; made by `recording`.

    On the root, `notes` are lines for the user about the checkpoint from which the run continues, and `evaluations`
    is the number of evaluations before it. `survived` is what each checkpoint keeps of the deaths that the run
    survived; at first, on the root, those of earlier starts.
    """

    def __init__(
        self,
        settings: Settings,
        trace: Trace,
        folder: Path,
        identity: Mapping[str, Any],
        kept: Checkpoint | None,
        notes: list[str],
    ) -> None:
        self._settings, self._trace, self._folder = settings, trace, folder
        self._identity, self._found, self.notes = identity, kept, notes
        self.evaluations: int = kept.numbers["count"] if kept else 0
        self.survived: list[Any] = list(kept.numbers.get("about", {}).get("survived", [])) if kept else []

    def minimize(
        self, objective: Objective, start: Floats | None = None, watch: Watcher = lambda state, w: None
    ) -> Result:
        """Minimize the objective from `start`, or continue from the checkpoint if there is one. **Collective.**

        `start` has shape (p,), and `watch` is that of `distsms.optim.run.minimize`.
        """
        vectors = objective.vectors

        def record(state: State, w: Floats) -> None:
            watch(state, w)
            self._trace(state)

        about = {"settings": describe(self._settings), "survived": self.survived}
        writer = CheckpointWriter(self._folder, self._identity, about, vectors)
        snapshot = objective.surviving(lambda: restored(self._found, vectors))
        return minimize(objective, self._settings, start, record, writer, snapshot)


@contextlib.contextmanager
def recording(
    comm: Communicator,
    settings: Settings,
    trace: str | os.PathLike[str] | None = None,
    checkpoint: str | os.PathLike[str] | None = None,
    resume: bool = False,
    identity: Mapping[str, Any] | None = None,
) -> Iterator[RunRecorder]:
    """Open the files of a run, and close them when the run ends. **Collective.**

    `trace`, `checkpoint` and `resume` are those of `RunOptions`; the folder is locked, so that no other job uses it.
    `identity` is what must be the same in a run that is resumed, ready for JSON. Raises InputError on all ranks, if a
    file cannot be written; if the folder holds a checkpoint of another problem, or one that would be replaced since
    `resume` was not asked for; if `trace` is a file that is not a trace.
    """
    kept, notes, identity = None, list[str](), identity or {}
    with contextlib.ExitStack() as closing:
        with comm.fail_together():
            if comm.is_root and trace is not None:
                check_trace(os.fspath(trace))
            if comm.is_root and checkpoint is not None:
                kept, notes = opened(Path(checkpoint), identity, resume, closing)
            count = kept.numbers["count"] if kept else 0
            file = Trace(os.fspath(trace) if comm.is_root and trace is not None else None, settings.solver, count)
        closing.callback(file.close)
        yield RunRecorder(settings, file, Path(checkpoint or ""), identity, kept, notes)
