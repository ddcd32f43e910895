"""The grid of runs of a comparison, and the folder that keeps them, so that a killed comparison can continue.

The folder contains

comparison.json        what is compared: data, test data, settings, ranks. A folder without it is not a comparison
cells/NAME/            one run, named after its measure, lambda, solver and c_mu (see `RunSpec.name`):
    trace.jsonl        a line for each evaluation, as `distsms train --trace` writes it
    test.jsonl         ROCArea and PRBEP on the test rows, for the best w after some of the evaluations
    result.json        how the run ended. It is written last; if it is missing, the run is made again

The limits of time and evaluations may be larger in the next call. The runs that were ended by the smaller limit are
then made again.
"""

from __future__ import annotations

import json
import os
import shutil
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from itertools import product
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple

from distsms.base.errors import InputError
from distsms.base.files import atomic_write
from distsms.base.formatting import to_json
from distsms.base.measures import RANKING
from distsms.base.schema import (
    MEASURED,
    Fields,
    differences,
    find_fault,
    is_number,
    is_number_or_null,
    is_positive,
    read_objects,
    to_columns,
)
from distsms.base.typing import Floats
from distsms.optim.result import Status
from distsms.optim.solvers.base import SOLVERS, solver_class
from distsms.training.recorder import LINE, read_trace

if TYPE_CHECKING:
    from distsms.optim.settings import Settings


FORMAT, VERSION = "distsms-comparison", 1
IDENTITY, CELLS, TRACE, TEST, RESULT = "comparison.json", "cells", "trace.jsonl", "test.jsonl", "result.json"
OUTPUTS = ("table.md", "table.csv", "figures")
"""The files and folders that are made from the runs."""

LIMITS = {"time": ("time_limit", "seconds"), "limit": ("max_evaluations", "evaluations")}
"""For each status of a run that was ended by a limit: the setting of the limit, and the field of the result to which
the limit applies.
"""


class RunSpec(NamedTuple):
    """The specification of one run: its measure, lambda, solver and smoothing.

    c_mu is None for adaptive smoothing, and for solvers that do not smooth.
    """

    measure: str
    lam: float
    solver: str
    c_mu: float | None = None

    @property
    def name(self) -> str:
        """The name of the run's folder."""
        fixed = "" if self.c_mu is None else f"_cmu{self.c_mu!r}"
        return f"{self.measure}_{self.lam!r}_{self.solver}{fixed}"

    @property
    def method(self) -> str:
        """The solver and its smoothing, as tables and figures name them."""
        return self.solver if self.c_mu is None else f"{self.solver}, c_mu {self.c_mu:g}"


def grid(
    measures: Sequence[str], lambdas: Sequence[float], solvers: Sequence[str], c_mus: Sequence[float | None]
) -> list[RunSpec]:
    """Return every combination once. Solvers of the exact risk have no smoothing, so c_mu is None in their runs."""
    specs = [
        RunSpec(measure, lam, solver, c_mu)
        for measure, lam, solver in product(measures, lambdas, solvers)
        for c_mu in (c_mus if solver_class(solver).traits.smooth else (None,))
    ]
    return list(dict.fromkeys(specs))


@dataclass(frozen=True)
class CompletedRun:
    """A run that has ended, as its files describe it."""

    spec: RunSpec
    result: Mapping[str, Any]  # the fields of result.json
    trace: dict[str, Floats]  # the columns of trace.jsonl, each (lines,), with NaN for null; empty without lines
    test: dict[str, Floats]  # the columns of test.jsonl, in the same form

    @classmethod
    def read(cls, folder: Path) -> CompletedRun:
        """Read a run from its folder.

        Raises
        ------
        InputError
            If a file is missing or damaged, or does not agree with the others; the message names the file.
        """
        remedy = f"Remove this run's folder, {folder}; the run is then made again"
        (result,) = read_objects(folder / RESULT, RESULTS, remedy)
        trace = read_trace(folder / TRACE, remedy)
        test = to_columns(read_objects(folder / TEST, TESTED, remedy, lines=True), TESTED)
        spec = RunSpec(result["measure"], result["lambda"], result["solver"], result["c_mu"])
        if spec.name != folder.name:
            raise InputError(f"{folder / RESULT}: belongs to another run, {spec.name}. {remedy}")
        if result["J"] is None and result["status"] != NONFINITE:
            raise InputError(f"{folder / RESULT}: has no J. {remedy}")
        if (result["J"] is None) != (not trace):  # a run has no J only if its first evaluation was not finite
            lines = "lines although it has no J" if trace else "no line although it has a J"
            raise InputError(f"{folder / TRACE}: contradicts {RESULT}: the run has {lines}. {remedy}")
        return cls(spec, result, trace, test)

    def cut_short(self, settings: Settings) -> bool:
        """Whether the run was ended by a limit, and this limit is larger in the given settings."""
        if self.result["status"] not in LIMITS:
            return False
        limit, used = LIMITS[self.result["status"]]
        return self.result[used] < getattr(settings, limit)


class RunStore:
    """The folder of a comparison. Only the root may use it, and must hold it with `files.exclusive`."""

    def __init__(self, path: str | os.PathLike[str]) -> None:
        self.path = Path(path)

    def check(self, overwrite: bool = False) -> None:
        """Raise InputError if the folder holds anything but a comparison, or a damaged one without `overwrite`."""
        if os.path.lexists(self.path) and not self.path.is_dir():
            raise InputError(
                f"{self.path}: is not a folder, but a file or a link that does not lead to a folder; name another "
                "place for the comparison"
            )
        if self.path.is_dir() and any(self.path.glob("[!.]*")):
            if not (self.path / IDENTITY).exists():
                raise InputError(f"{self.path}: holds something that is not a comparison; name another folder")
            if not (overwrite and self._holds_runs_alone()):
                self._identity  # noqa: B018 - raises InputError

    def _holds_runs_alone(self) -> bool:
        """Whether the folder has runs and no other files. Then it is a comparison, even if its IDENTITY is damaged."""
        names = {path.name for path in self.path.glob("[!.]*")}
        files = {path.name for path in (self.path / CELLS).rglob("[!.]*") if path.is_symlink() or not path.is_dir()}
        return names <= {IDENTITY, CELLS, *OUTPUTS} and bool(files) and files <= {TRACE, TEST, RESULT}

    def open(self, identity: Mapping[str, Any], overwrite: bool) -> None:
        """Begin the comparison that `identity` describes, or continue it if the folder has it already.

        Raises
        ------
        InputError
            If the folder holds another comparison and `overwrite` is False; the message says what differs.
        """
        text = to_json(identity, indent=1) + "\n"
        if overwrite:
            with atomic_write(self.path / IDENTITY) as file:
                file.write(text.encode())
                file.finish()  # before the old comparison is removed
                for name in (*OUTPUTS, CELLS):
                    _remove(self.path / name)
            return
        if self._identity:
            differing = differences(self._identity, json.loads(to_json(identity)))
            if differing:
                raise InputError(
                    f"{self.path}: holds another comparison ({'; '.join(differing)}). Name another folder, or replace "
                    "this comparison (--overwrite)"
                )
            return
        self.write(IDENTITY, text)

    def finished(self, spec: RunSpec) -> CompletedRun | None:
        """Return a run, or None if it has not ended. Raises InputError if its files are damaged."""
        folder = self.path / CELLS / spec.name
        if not (folder / RESULT).exists():
            return None
        return CompletedRun.read(folder)

    def all_finished(self) -> list[CompletedRun]:
        """Return all runs that have ended, sorted by measure, falling lambda, solver and rising c_mu.

        Raises
        ------
        InputError
            If there is something else among the runs' folders, or the files of a run are damaged.
        """
        cells = self.path / CELLS
        _require_folder(cells)
        folders = list(cells.glob("[!.]*"))
        for folder in folders:
            _require_folder(folder)
        runs = [CompletedRun.read(folder) for folder in folders if (folder / RESULT).exists()]
        order = list(SOLVERS).index
        return sorted(
            runs, key=lambda run: (run.spec.measure, -run.spec.lam, order(run.spec.solver), run.spec.c_mu or 0.0)
        )

    def begin(self, spec: RunSpec) -> Path:
        """Make an empty folder for a run and return it; what a killed run left there is removed."""
        folder = self.path / CELLS / spec.name
        for path in (folder.parent, folder):
            _require_folder(path)
        _remove(folder)
        folder.mkdir(parents=True)
        return folder

    def write(self, name: str | Path, text: str) -> None:
        """Write one of the comparison's files, atomically."""
        with atomic_write(self.path / name) as file:
            file.write(text.encode())

    @property
    def _identity(self) -> dict[str, Any]:
        path = self.path / IDENTITY
        remedy = "So this is not a comparison, or a damaged one; name another folder"
        if self._holds_runs_alone():
            remedy += ", or replace it (--overwrite)"
        return read_objects(path, IDENTITIES, remedy)[0] if path.exists() else {}


def _require_folder(path: Path) -> None:
    """Raise InputError if `path` exists and is no folder. A link is refused, too, since the folder may be emptied."""
    if path.is_symlink() or (path.exists() and not path.is_dir()):
        raise InputError(
            f"{path}: is not a folder, but a file or a link. Move it elsewhere; the same command then continues"
        )


def _remove(path: Path) -> None:
    """Remove a file, a folder with its content, or a link (but not what it leads to), if there is one."""
    try:
        shutil.rmtree(path) if path.is_dir() and not path.is_symlink() else path.unlink(missing_ok=True)
    except OSError as error:
        raise InputError(f"{path}: cannot be removed: {error}") from error


def _is_file_entry(value: Any) -> bool:
    """Return whether a value from JSON describes a file: a mapping with at least "path" and "fingerprint"."""
    return isinstance(value, dict) and {"path", "fingerprint"} <= set(value)


# The required fields of each file, each with a condition on its value.
NONFINITE = Status.NONFINITE.name.lower()
TESTED: Fields = {**LINE, "best_J": is_number_or_null, **MEASURED}
RESULTS: Fields = {
    "measure": RANKING.__contains__,
    "lambda": is_positive,
    "solver": tuple(SOLVERS).__contains__,
    "c_mu": lambda value: value is None or is_positive(value),
    "status": tuple(status.name.lower() for status in Status).__contains__,
    **dict.fromkeys(("J", "lower_bound", "gap"), is_number_or_null),
    **dict.fromkeys(("J_at_zero", "seconds"), is_number),
    "evaluations": lambda value: type(value) is int and is_number(value),
    "vacuous": lambda value: isinstance(value, bool),
    "test": lambda value: value is None or find_fault(value, MEASURED) is None,
    "host": lambda value: isinstance(value, str),
}
IDENTITIES: Fields = {
    "format": FORMAT.__eq__,
    "version": VERSION.__eq__,
    "data": _is_file_entry,
    "test": _is_file_entry,
}
