"""Make the runs of a comparison of solvers on one data set (JMLR, section 5).

The time of a run is that of the solver alone. The data are loaded once for all runs. Before the first run with a solver
and a measure, a few evaluations are made that are not counted. The test rows are read and scored after the run, with
the vectors w that were saved on disk during the run.
"""

from __future__ import annotations

import math
import tempfile
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from datetime import datetime, timezone
from pathlib import Path
from typing import Any

import numpy as np

from distsms.base.communicator import Communicator
from distsms.base.files import require_space
from distsms.base.formatting import to_json
from distsms.base.measures import COMPARED, HeadMeasure
from distsms.base.memory import peak_memory
from distsms.base.schema import sealed
from distsms.base.typing import Floats
from distsms.cli.terminal import print_warning
from distsms.losses.base import Loss
from distsms.metrics.operating_points import head_value
from distsms.metrics.ranking import ranking
from distsms.metrics.row_weights import effective
from distsms.metrics.tied_scores import tied_scores
from distsms.models import inputs, scoring
from distsms.optim.objective import Objective
from distsms.optim.result import Result, State, Status
from distsms.optim.run import minimize
from distsms.optim.settings import Settings
from distsms.parallel.vectors import make_vectors
from distsms.shards.dataset import DataBlock
from distsms.shards.manifest import Manifest
from distsms.training.recorder import recording
from distsms.training.rows import make_losses
from distsms.training.task import RunOptions
from scripts.compare.grid import CELLS, RESULT, TEST, TRACE, RunSpec, RunStore

GROWTH = 1.12  # the number of evaluations is multiplied by this between two saved w
WARMING = 3  # number of evaluations of a run that warms up
TESTED_BYTES = 2**26
"""The memory of a rank for the vectors w, and their scores, that are tested in one pass over the test rows."""


class HeldOutRows:
    """The test rows, of a data set or a file. They are read again, in parts, for each call of `scored`."""

    def __init__(self, path: str, training: Manifest, comm: Communicator, ignore_new: bool = False) -> None:
        """Read the rows once, so that an error in them is found before the first run. **Collective.**

        The rows must have the columns and labels of the data set `training`, but with `ignore_new` other columns are
        left out. Raises InputError if the rows cannot be read.
        """
        self._path, self._like = path, inputs.untrained_model(training)
        self._comm, self._reading = comm, inputs.InputOptions(ignore_new)
        found = scoring.score([self._like], path, comm, self._reading)
        for note in found.notes if comm.is_root else ():
            print_warning(note)
        rows = int(comm.maximum(np.array([len(found.labels)]))[0])
        self.at_once = max(1, TESTED_BYTES // (8 * (training.p + rows)))

    def scored(self, vectors: Sequence[Floats]) -> scoring.ScoredRows:
        """Score the rows by each w (p,), in one pass. **Collective.** Raises InputError if a score is not finite."""
        models = [replace(self._like, w=self._like.normalization.fold(w)) for w in vectors]
        return scoring.score(models, self._path, self._comm, self._reading)


class Runner:
    """Makes runs on the rows of all ranks. The constructor and all methods are **collective**.

    Parameters
    ----------
    block : DataBlock
        This rank's training rows.
    test : HeldOutRows or None
        The test rows, if any.
    ordering : str
        The ordering of the losses; see `distsms.losses.registry.choose_ordering`.
    folder : RunStore
        Where the runs are saved.
    comm : Communicator
        The ranks.
    stop_wanted : callable
        See `distsms.optim.objective.Objective`.
    about : mapping
        More fields for every result.json, such as host and versions.
    step : {"root", "spread"}
        Whether the root holds the solver's vectors, or each rank a slice; see `distsms.parallel.vectors`.
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
        """Make a run, compute its measures on the test rows, and write its files.

        If a signal stops the run, its results are not written, and the next call makes it again.
        """
        self._warm_up(cell, settings)
        comm, folder = self.comm, Path()
        with comm.fail_together():
            if comm.is_root:
                folder = self.folder.begin(cell)
        with SavedIterates(folder if comm.is_root and self.test else None, self.vectors.gather) as saved:

            def watch(state: State, w: Floats) -> None:
                if self.test is not None:
                    saved(state, w)

            with recording(comm, settings, RunOptions(trace=folder / TRACE), {}) as recorder:
                result = recorder.minimize(self._objective(cell, self.stop_wanted), watch=watch)
            if result.status is Status.STOPPED:
                return result
            saved.add(result.evaluations, result.seconds, result.J, result.w)
            tested = self._tested(saved)
        memory = sum(comm.allgather(peak_memory()))
        with comm.fail_together():
            if comm.is_root:
                self._write(cell, folder, result, tested, memory)
        return result

    def _objective(self, cell: RunSpec, stop_wanted: Callable[[], bool]) -> Objective:
        if cell.measure not in self._losses:
            _, (self._losses[cell.measure],) = make_losses(self.block, cell.measure, self.ordering, self.comm)
        block, losses = self.block, [self._losses[cell.measure]]
        return Objective(block.features, losses, self.comm, stop_wanted, vectors=self.vectors, weights=block.weights)

    def _warm_up(self, cell: RunSpec, settings: Settings) -> None:
        """Make a few evaluations that are not counted. The first ones are slow, since they load kernels and PETSc."""
        if (cell.measure, cell.solver) not in self._warm:
            self._warm.add((cell.measure, cell.solver))
            minimize(self._objective(cell, lambda: False), replace(settings, max_evaluations=WARMING))

    def close(self) -> None:
        """Free the memory that the ranks of a node share. **Collective.**"""
        self.vectors.close()

    def _tested(self, saved: SavedIterates) -> list[dict[str, Any]]:
        """Return the measures of the saved w on the test rows, on the root. **Collective.**"""
        comm, test, lines = self.comm, self.test, list[dict[str, Any]]()
        if test is None:
            return lines
        count, p = comm.bcast(len(saved.records)), self.block.p
        for first in range(0, count, test.at_once):
            batch = range(first, min(first + test.at_once, count))
            scored = test.scored([comm.broadcast(saved.load(k, p) if comm.is_root else np.empty(p)) for k in batch])
            for place, k in enumerate(batch):
                counted = scored.counted_scores(scored.scores[place], comm)
                measures = ranking(counted)
                found = {"rocarea": measures.rocarea, "prbep": measures.prbep}
                if k == count - 1:
                    tied = tied_scores(effective(counted))
                    of_head = filter(None, map(HeadMeasure.parse, COMPARED))
                    found |= {measure.name: head_value(measure, tied, comm) for measure in of_head}
                if comm.is_root:
                    lines.append({**saved.records[k], **found})
        return lines

    def _write(self, cell: RunSpec, folder: Path, result: Result, tested: list[dict[str, Any]], memory: int) -> None:
        last = tested[-1] if tested else None
        fields = {
            **{"measure": cell.measure, "lambda": cell.lam, "solver": cell.solver, "c_mu": cell.c_mu},
            **{**result.numbers(), "vacuous": result.vacuous},
            "test": last and {name: last[name] for name in ("rocarea", "prbep", *COMPARED)},
            **self.about,
            "memory": memory,  # the peak of all ranks together, of this run and those before it in this process
            "written": datetime.now(timezone.utc).isoformat(timespec="seconds"),
        }
        place = Path(CELLS) / folder.name
        self.folder.write(place / TEST, "".join(to_json(sealed(line)) + "\n" for line in tested))
        self.folder.write(place / RESULT, to_json(sealed(fields), indent=1) + "\n")


class SavedIterates:
    """Saves the best w so far after some of the evaluations, at intervals that grow during the run.

    The vectors are in a file without a name, which disappears with the process. Each takes 8 p bytes. A run of 1000
    evaluations saves about 50 of them.

    Parameters
    ----------
    folder : Path or None
        The folder of the file. With None no vectors are saved, only the records (evaluation, seconds and best J).
    gather : callable
        Returns the whole w from this rank's slice, on the root, and None on the other ranks; see `Vectors.gather`.
    """

    def __init__(self, folder: Path | None, gather: Callable[[Floats], Floats | None] = lambda w: w) -> None:
        self._gather = gather
        self.records: list[dict[str, float]] = []
        self._folder, self._next = folder, 1
        self._file = None if folder is None else tempfile.TemporaryFile(dir=folder)  # noqa: SIM115

    def __enter__(self) -> SavedIterates:
        return self

    def __exit__(self, *failure: object) -> None:
        if self._file is not None:
            self._file.close()

    def __call__(self, state: State, w: Floats) -> None:
        """Save w if it is time to, and if J has become smaller since the last w was saved.

        w : this rank's slice. Collective among the ranks that have a slice.
        """
        if state.evaluation >= self._next:
            self._next = max(state.evaluation + 1, math.ceil(GROWTH * state.evaluation))
            if not self.records or state.best_J < self.records[-1]["best_J"]:
                self.add(state.evaluation, state.seconds, state.best_J, self._gather(w))

    def add(self, evaluation: int, seconds: float, best_J: float, w: Floats | None) -> None:
        """Save w (p,), which must be whole if there is a folder."""
        self.records.append({"evaluation": evaluation, "seconds": seconds, "best_J": best_J})
        if self._file is not None:
            assert self._folder is not None and w is not None
            require_space(self._folder, w.nbytes)
            self._file.write(np.ascontiguousarray(w).data)

    def load(self, k: int, p: int) -> Floats:
        """Read the w with the number k."""
        assert self._file is not None
        self._file.seek(8 * p * k)
        return np.frombuffer(self._file.read(8 * p)).copy()
