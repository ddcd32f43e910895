"""Runs of solvers against each other on one data set (JMLR, section 5).

Only solving is on a run's clock: data stay loaded, each solver runs a few evaluations on each measure in vain first,
and test rows are read and scored when the run is over, with w that were kept on the disk.
"""

from __future__ import annotations

import math
import tempfile
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import numpy as np

from distsms.data.shards.dataset import DataBlock
from distsms.data.shards.manifest import Manifest
from distsms.inference import inputs, scoring
from distsms.losses.registry import Loss
from distsms.metrics.ranking import ranking
from distsms.optim.objective import Objective
from distsms.optim.result import Result, State, Status
from distsms.optim.run import minimize
from distsms.optim.settings import Settings
from distsms.parallel.communicator import Communicator
from distsms.parallel.vectors import make_vectors
from distsms.study.grid import CELLS, RESULT, TEST, TRACE, RunSpec, RunStore
from distsms.training.objectives import make_losses
from distsms.training.recorder import recording
from distsms.utils.files import require_space
from distsms.utils.formatting import to_json
from distsms.utils.typing import Floats

GROWTH = 1.12  # the next w is kept after so many times the evaluations
WARMING = 3  # evaluations in vain
TESTED_BYTES = 2**26
"""Of w, and of their scores, that a rank holds to test several in one pass over the test rows."""


class HeldOutRows:
    """Rows of a data set or a file, with the training rows' columns; in memory a part at a time.

    Building it reads them once, so that what is wrong with them is known before anything is run. Collective.
    """

    def __init__(self, path: str, training: Manifest, comm: Communicator, ignore_new: bool = False) -> None:
        """training : the data set whose columns, labels and normalization they share. Raises InputError."""
        self._path, self._like = path, inputs.untrained_model(training)
        self._comm, self._quiet = comm, inputs.InputOptions(ignore_new, quiet=True)
        found = scoring.score([self._like], path, comm, inputs.InputOptions(ignore_new))
        rows = int(comm.maximum(np.array([len(found.labels)]))[0])
        self.at_once = max(1, TESTED_BYTES // (8 * (training.p + rows)))

    def scored(self, vectors: Sequence[Floats]) -> scoring.ScoredRows:
        """Scores of some w (p,), in one pass. Collective. Raises InputError if one is not finite."""
        models = [replace(self._like, w=self._like.normalization.fold(w)) for w in vectors]
        return scoring.score(models, self._path, self._comm, self._quiet)


class Runner:
    """Runs cells on the rows of all ranks. Building it, and all it does, is collective.

    about : words for every result.json, such as host and versions.
    """

    def __init__(
        self,
        block: DataBlock,
        test: HeldOutRows | None,
        ordering: str,
        folder: RunStore,
        comm: Communicator,
        stop_wanted: Callable[[], bool] = lambda: False,
        about: Mapping[str, Any] | None = None,
        step: str = "root",
    ) -> None:
        self.block, self.test, self.ordering = block, test, ordering
        self.folder, self.comm, self.stop_wanted, self.about = folder, comm, stop_wanted, about or {}
        self.vectors = make_vectors(step, block.features.shape[1], comm)
        self._losses: dict[str, Loss] = {}
        self._warm: set[tuple[str, str]] = set()

    def run(self, cell: RunSpec, settings: Settings) -> Result:
        """Solve, measure on the test rows, write the cell's files. A cell that a signal stopped stays unfinished."""
        self._warm_up(cell, settings)
        comm, folder = self.comm, Path()
        with comm.fail_together():
            if comm.is_root:
                folder = self.folder.begin(cell)
        with Kept(folder if comm.is_root and self.test else None, self.vectors.gather) as kept:

            def watch(state: State, w: Floats) -> None:
                if self.test is not None:
                    kept(state, w)

            with recording(comm, settings, trace=folder / TRACE) as recorder:
                result = recorder.minimize(self._objective(cell, self.stop_wanted), watch=watch)
            if result.status is Status.STOPPED:
                return result
            kept.add(result.evaluations, result.seconds, result.J, result.w)
            tested = self._tested(kept)
        with comm.fail_together():
            if comm.is_root:
                self._write(cell, folder, result, tested)
        return result

    def _objective(self, cell: RunSpec, stop_wanted: Callable[[], bool]) -> Objective:
        if cell.measure not in self._losses:
            _, (self._losses[cell.measure],) = make_losses(self.block, cell.measure, self.ordering, self.comm)
        return Objective(
            self.block.features, [self._losses[cell.measure]], self.comm, stop_wanted, vectors=self.vectors
        )

    def _warm_up(self, cell: RunSpec, settings: Settings) -> None:
        """The first evaluations load kernels and PETSc, and touch memory for the first time: let others have them."""
        if (cell.measure, cell.solver) not in self._warm:
            self._warm.add((cell.measure, cell.solver))
            minimize(self._objective(cell, lambda: False), replace(settings, max_evaluations=WARMING))

    def close(self) -> None:
        """Free what the ranks of a node share. Collective."""
        self.vectors.close()

    def _tested(self, kept: Kept) -> list[dict[str, Any]]:
        """The measures of the kept w on the test rows, on the root."""
        comm, test, lines = self.comm, self.test, list[dict[str, Any]]()
        if test is None:
            return lines
        count, p = comm.bcast(len(kept.records)), self.block.p
        for first in range(0, count, test.at_once):
            some = range(first, min(first + test.at_once, count))
            found = test.scored([comm.broadcast(kept.load(k, p) if comm.is_root else np.empty(p)) for k in some])
            for place, k in enumerate(some):
                worth = ranking(*found.counted_scores(place), comm)
                if comm.is_root:
                    lines.append({**kept.records[k], "rocarea": worth.rocarea, "prbep": worth.prbep})
        return lines

    def _write(self, cell: RunSpec, folder: Path, result: Result, tested: list[dict[str, Any]]) -> None:
        last = tested[-1] if tested else None
        words = {
            **{"measure": cell.measure, "lambda": cell.lam, "solver": cell.solver, "c_mu": cell.c_mu},
            **{**result.numbers(), "vacuous": result.vacuous},
            "test": last and {name: last[name] for name in ("rocarea", "prbep")},
            **self.about,
            "written": datetime.now(UTC).isoformat(timespec="seconds"),
        }
        place = Path(CELLS) / folder.name
        self.folder.write(place / TEST, "".join(to_json(line) + "\n" for line in tested))
        self.folder.write(place / RESULT, to_json(words, indent=1) + "\n")


class Kept:
    """The best w so far at a growing distance of evaluations, in a nameless file that a killed run does not leave.

    folder : where the file is; None keeps nothing but the records: evaluation, seconds and best J of each w.
    whole : makes of a slice of w the whole on the root, where the others have None; see `Vectors.gather`.
    On the disk: 8 p bytes for each, some 50 w for 1000 evaluations.
    """

    def __init__(self, folder: Path | None, whole: Callable[[Floats], Floats | None] = lambda w: w) -> None:
        self._whole = whole
        self.records: list[dict[str, float]] = []
        self._folder, self._next = folder, 1
        self._file = None if folder is None else tempfile.TemporaryFile(dir=folder)  # noqa: SIM115

    def __enter__(self) -> Kept:
        return self

    def __exit__(self, *failure: object) -> None:
        if self._file is not None:
            self._file.close()

    def __call__(self, state: State, w: Floats) -> None:
        """Keep w, a slice, if it is time to, and if it is another one than the last. On all ranks that step."""
        if state.evaluation >= self._next:
            self._next = max(state.evaluation + 1, math.ceil(GROWTH * state.evaluation))
            if not self.records or state.best_J < self.records[-1]["best_J"]:
                self.add(state.evaluation, state.seconds, state.best_J, self._whole(w))

    def add(self, evaluation: int, seconds: float, best_J: float, w: Floats | None) -> None:
        """Keep w (p,), whole where there is a folder."""
        self.records.append({"evaluation": evaluation, "seconds": seconds, "best_J": best_J})
        if self._file is not None:
            assert self._folder is not None and w is not None
            require_space(self._folder, w.nbytes)
            self._file.write(np.ascontiguousarray(w).data)

    def load(self, k: int, p: int) -> Floats:
        """The k-th w."""
        assert self._file is not None
        self._file.seek(8 * p * k)
        return np.frombuffer(self._file.read(8 * p)).copy()
