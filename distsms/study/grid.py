"""The grid of a comparison, and the folder of its runs, which a killed comparison goes on from.

comparison.json        what is compared: data, test data, settings, ranks. A folder without it is not a comparison.
                       Limits of time and evaluations may grow: runs that the old ones cut short are run again
cells/CELL/            one run, named after measure, lambda, solver and c_mu:
    trace.jsonl        a line for each evaluation, as `distsms train --trace` writes it
    test.jsonl         ROCArea and PRBEP on the test rows, of the best w at some of the evaluations
    result.json        how the run ended; written last: a cell without it is run again
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

from distsms.errors import InputError
from distsms.measures import RANKING
from distsms.optim.result import Status
from distsms.optim.solvers.base import SOLVERS, solver_class
from distsms.training.trace import LINE, read_trace
from distsms.utils.files import atomic_write
from distsms.utils.formatting import to_json
from distsms.utils.schema import (
    MEASURED,
    Fields,
    differences,
    find_fault,
    is_file_entry,
    is_number,
    is_number_or_null,
    is_positive,
    read_objects,
    to_columns,
)
from distsms.utils.typing import Floats

if TYPE_CHECKING:
    from distsms.optim.settings import Settings


FORMAT, VERSION = "distsms-comparison", 1
IDENTITY, CELLS, TRACE, TEST, RESULT = "comparison.json", "cells", "trace.jsonl", "test.jsonl", "result.json"
OUTPUTS = ("table.md", "table.csv", "figures")
"""What is made from the cells."""

LIMITS = {"time": ("time_limit", "seconds"), "limit": ("max_evaluations", "evaluations")}
"""Status of a run that a limit cut short -> the setting, and what the run had used up of it."""


class RunSpec(NamedTuple):
    """One run of the grid; c_mu is None for the adaptive width, and for solvers that do not smooth."""

    measure: str
    lam: float
    solver: str
    c_mu: float | None = None

    @property
    def name(self) -> str:
        """The name of its folder."""
        fixed = "" if self.c_mu is None else f"_cmu{self.c_mu!r}"
        return f"{self.measure}_{self.lam!r}_{self.solver}{fixed}"

    @property
    def method(self) -> str:
        """Solver and smoothing, for people."""
        return self.solver if self.c_mu is None else f"{self.solver}, c_mu {self.c_mu:g}"


def grid(
    measures: Sequence[str], lambdas: Sequence[float], solvers: Sequence[str], c_mus: Sequence[float | None]
) -> list[RunSpec]:
    """Every combination once; solvers of the exact risk once for all c_mus."""
    cells = [
        RunSpec(measure, lam, solver, c_mu)
        for measure, lam, solver in product(measures, lambdas, solvers)
        for c_mu in (c_mus if solver_class(solver).traits.smooth else (None,))
    ]
    return list(dict.fromkeys(cells))


@dataclass(frozen=True)
class CompletedRun:
    """A cell that has been run: what its files say. `result` holds the words of result.json.

    trace, test : the columns of trace.jsonl and test.jsonl, each (lines,), null as NaN; no columns without lines.
    """

    cell: RunSpec
    result: Mapping[str, Any]
    trace: dict[str, Floats]
    test: dict[str, Floats]

    @classmethod
    def read(cls, folder: Path) -> CompletedRun:
        """From a cell's folder. Raises InputError, naming the file, unless the files are what a run leaves."""
        remedy = f"Remove this run's folder, {folder}, and it is run anew"
        (result,) = read_objects(folder / RESULT, RESULTS, remedy)
        trace = read_trace(folder / TRACE, remedy)
        test = to_columns(read_objects(folder / TEST, TESTED, remedy, lines=True), TESTED)
        cell = RunSpec(result["measure"], result["lambda"], result["solver"], result["c_mu"])
        if cell.name != folder.name:
            raise InputError(f"{folder / RESULT}: belongs to another run, {cell.name}. {remedy}")
        if result["J"] is None and result["status"] != NONFINITE:
            raise InputError(f"{folder / RESULT}: has no J. {remedy}")
        if (result["J"] is None) != (not trace):  # not finite from the first evaluation on
            raise InputError(f"{folder / TRACE}: has {'a' if trace else 'no'} line, against {RESULT}. {remedy}")
        return cls(cell, result, trace, test)

    def cut_short(self, settings: Settings) -> bool:
        """Whether a limit ended it that these settings would have let it pass."""
        if self.result["status"] not in LIMITS:
            return False
        limit, used = LIMITS[self.result["status"]]
        return self.result[used] < getattr(settings, limit)


class RunStore:
    """A comparison's folder. For the root alone; hold it with `files.exclusive`."""

    def __init__(self, path: str | os.PathLike[str]) -> None:
        self.path = Path(path)

    def check(self, overwrite: bool = False) -> None:
        """Raise InputError if something else than a comparison is there, or a damaged one that is not to go."""
        if os.path.lexists(self.path) and not self.path.is_dir():
            raise InputError(
                f"{self.path}: is not a folder, but a file or a link that leads to none; name another place for the "
                "comparison"
            )
        if self.path.is_dir() and any(self.path.glob("[!.]*")):
            if not (self.path / IDENTITY).exists():
                raise InputError(f"{self.path}: holds something that is not a comparison; name another folder")
            if not (overwrite and self._holds_runs_alone()):
                self._identity  # noqa: B018 - raises InputError

    def _holds_runs_alone(self) -> bool:
        """Whether there is a run, and nothing but what a comparison writes: it is one, whatever IDENTITY says."""
        names = {path.name for path in self.path.glob("[!.]*")}
        files = {path.name for path in (self.path / CELLS).rglob("[!.]*") if path.is_symlink() or not path.is_dir()}
        return names <= {IDENTITY, CELLS, *OUTPUTS} and bool(files) and files <= {TRACE, TEST, RESULT}

    def open(self, identity: Mapping[str, Any], overwrite: bool) -> None:
        """Begin, or go on with, the comparison that `identity` describes. InputError if another one is there."""
        if overwrite:
            for name in (*OUTPUTS, CELLS):
                _remove(self.path / name)
        elif self._identity:
            differing = differences(self._identity, json.loads(to_json(identity)))
            if differing:
                raise InputError(
                    f"{self.path}: holds another comparison ({'; '.join(differing)}). Name another folder, or begin "
                    "anew with --overwrite"
                )
            return
        self.write(IDENTITY, to_json(identity, indent=1) + "\n")

    def finished(self, cell: RunSpec) -> CompletedRun | None:
        """A cell's results, if it was run to its end. Raises InputError where its files are damaged."""
        folder = self.path / CELLS / cell.name
        if not (folder / RESULT).exists():
            return None
        return CompletedRun.read(folder)

    def all_finished(self) -> list[CompletedRun]:
        """Every cell that was run to its end, now or before: by measure, falling lambda, solver and rising c_mu.

        Raises InputError where something else is among the cells, or the files of one are damaged.
        """
        cells = self.path / CELLS
        _require_folder(cells)
        folders = list(cells.glob("[!.]*"))
        for one in folders:
            _require_folder(one)
        found = [CompletedRun.read(one) for one in folders if (one / RESULT).exists()]
        order = list(SOLVERS).index
        return sorted(
            found, key=lambda one: (one.cell.measure, -one.cell.lam, order(one.cell.solver), one.cell.c_mu or 0.0)
        )

    def begin(self, cell: RunSpec) -> Path:
        """An empty folder for a cell; what a killed run left there is gone."""
        folder = self.path / CELLS / cell.name
        for one in (folder.parent, folder):
            _require_folder(one)
        _remove(folder)
        folder.mkdir(parents=True)
        return folder

    def write(self, name: str | Path, text: str) -> None:
        """Replace one of the folder's files, atomically."""
        with atomic_write(self.path / name) as temporary:
            temporary.write_text(text, encoding="utf-8")

    @property
    def _identity(self) -> dict[str, Any]:
        path = self.path / IDENTITY
        remedy = "So this is not a comparison, or a damaged one; name another folder"
        if self._holds_runs_alone():
            remedy += ", or begin anew with --overwrite"
        return read_objects(path, IDENTITIES, remedy)[0] if path.exists() else {}


def _require_folder(path: Path) -> None:
    """Raise InputError if something else is at `path`: a link, too, since what is in the folder may be removed."""
    if path.is_symlink() or (path.exists() and not path.is_dir()):
        raise InputError(
            f"{path}: is no folder, but a file or a link. Move it elsewhere, and the same line again goes on"
        )


def _remove(path: Path) -> None:
    """Remove a file, a folder with all that is in it, or a link, not what it leads to, if it is there."""
    try:
        shutil.rmtree(path) if path.is_dir() and not path.is_symlink() else path.unlink(missing_ok=True)
    except OSError as error:
        raise InputError(f"{path}: cannot be removed: {error}") from error


# What the files say, checked: field -> whether a value will do


NONFINITE = Status.NONFINITE.name.lower()
TESTED: Fields = {**LINE, "best_J": is_number_or_null, **MEASURED}
RESULTS: Fields = {
    "measure": RANKING.__contains__,
    "lambda": is_positive,
    "solver": tuple(SOLVERS).__contains__,
    "c_mu": lambda value: value is None or is_positive(value),
    "status": tuple(one.name.lower() for one in Status).__contains__,
    **dict.fromkeys(("J", "lower_bound", "gap"), is_number_or_null),
    **dict.fromkeys(("J_at_zero", "seconds"), is_number),
    "evaluations": lambda value: type(value) is int and is_number(value),
    "vacuous": lambda value: isinstance(value, bool),
    "test": lambda value: value is None or find_fault(value, MEASURED) is None,
    "host": lambda value: isinstance(value, str),
}
IDENTITIES: Fields = {"format": FORMAT.__eq__, "version": VERSION.__eq__, "data": is_file_entry, "test": is_file_entry}
