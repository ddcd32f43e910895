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
import math
import os
import shutil
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from itertools import product
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from distsms.errors import InputError
from distsms.files import replacing
from distsms.report import to_json
from distsms.solvers import SOLVERS, solver_class

if TYPE_CHECKING:
    from distsms.settings import Settings

Floats = NDArray[np.float64]

FORMAT, VERSION = "distsms-comparison", 1
IDENTITY, CELLS, TRACE, TEST, RESULT = "comparison.json", "cells", "trace.jsonl", "test.jsonl", "result.json"
OUTPUTS = ("table.md", "table.csv", "figures")
"""What is made from the cells."""

LIMITS = {"time": ("time_limit", "seconds"), "limit": ("max_evaluations", "evaluations")}
"""Status of a run that a limit cut short -> the setting, and what the run had used up of it."""


class Cell(NamedTuple):
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
) -> list[Cell]:
    """Every combination once; solvers of the exact risk once for all c_mus."""
    cells = [
        Cell(measure, lam, solver, c_mu)
        for measure, lam, solver in product(measures, lambdas, solvers)
        for c_mu in (c_mus if solver_class(solver).traits.smooth else (None,))
    ]
    return list(dict.fromkeys(cells))


@dataclass(frozen=True)
class Finished:
    """A cell that has been run: what its files say. `result` holds the words of result.json."""

    cell: Cell
    result: Mapping[str, Any]
    folder: Path

    def cut_short(self, settings: Settings) -> bool:
        """Whether a limit ended it that these settings would have let it pass."""
        if self.result["status"] not in LIMITS:
            return False
        limit, used = LIMITS[self.result["status"]]
        return self.result[used] < getattr(settings, limit)

    @cached_property
    def trace(self) -> dict[str, Floats]:
        """The columns of trace.jsonl, each (evaluations,)."""
        return _columns(self.folder / TRACE)

    @cached_property
    def test(self) -> dict[str, Floats]:
        """The columns of test.jsonl; empty without test rows."""
        return _columns(self.folder / TEST)


class Folder:
    """A comparison's folder. For the root alone; hold it with `files.exclusive`."""

    def __init__(self, path: str | os.PathLike[str]) -> None:
        self.path = Path(path)

    def check(self) -> None:
        """Raise InputError if something else than a comparison is there."""
        if self.path.exists() and not self.path.is_dir():
            raise InputError(f"{self.path}: is not a folder; name another place for the comparison")
        if (
            self.path.is_dir()
            and not self._identity
            and any(not one.name.startswith(".") for one in self.path.iterdir())
        ):
            raise InputError(f"{self.path}: holds something that is not a comparison; name another folder")

    def open(self, identity: Mapping[str, Any], overwrite: bool) -> None:
        """Begin, or go on with, the comparison that `identity` describes. InputError if another one is there."""
        if overwrite:
            for name in (*OUTPUTS, CELLS):
                one = self.path / name
                shutil.rmtree(one) if one.is_dir() else one.unlink(missing_ok=True)
        elif self._identity:
            differing = differences(self._identity, json.loads(to_json(identity)))
            if differing:
                raise InputError(
                    f"{self.path}: holds another comparison ({'; '.join(differing)}). Name another folder, or begin "
                    "anew with --overwrite"
                )
            return
        self.write(IDENTITY, to_json(identity, indent=1) + "\n")

    def finished(self, cell: Cell) -> Finished | None:
        """A cell's results, if it was run to its end."""
        folder = self.path / CELLS / cell.name
        if not (folder / RESULT).exists():
            return None
        return Finished(cell, _parsed(folder / RESULT), folder)

    def all_finished(self) -> list[Finished]:
        """Every cell that was run to its end, now or before: by measure, falling lambda, solver and rising c_mu."""
        found = []
        for path in (self.path / CELLS).glob(f"*/{RESULT}"):
            result = _parsed(path)
            cell = Cell(result["measure"], result["lambda"], result["solver"], result["c_mu"])
            found.append(Finished(cell, result, path.parent))
        order = list(SOLVERS).index
        return sorted(
            found, key=lambda one: (one.cell.measure, -one.cell.lam, order(one.cell.solver), one.cell.c_mu or 0.0)
        )

    def begin(self, cell: Cell) -> Path:
        """An empty folder for a cell; what a killed run left there is gone."""
        folder = self.path / CELLS / cell.name
        shutil.rmtree(folder, ignore_errors=True)
        folder.mkdir(parents=True)
        return folder

    def write(self, name: str | Path, text: str) -> None:
        """Replace one of the folder's files, atomically."""
        with replacing(self.path / name) as temporary:
            temporary.write_text(text, encoding="utf-8")

    @property
    def _identity(self) -> dict[str, Any]:
        path = self.path / IDENTITY
        found = _parsed(path) if path.exists() else {}
        if found and found.get("format") != FORMAT:
            raise InputError(f"{path}: not a comparison of distsms")
        return found


def differences(there: Mapping[str, Any], here: Mapping[str, Any], prefix: str = "") -> list[str]:
    """In words, where two mappings of the same kind differ but for limits; files by their fingerprints, not places."""
    words = []
    for name in dict.fromkeys([*there, *here]):
        old, new = there.get(name), here.get(name)
        if isinstance(old, dict) and isinstance(new, dict):
            if "fingerprint" not in new:
                words += differences(old, new, f"{prefix}{name}.")
            elif old["fingerprint"] != new["fingerprint"]:
                changed = ", with other content" if old["path"] == new["path"] else ""
                called = "test data" if name == "test" else name
                words.append(f"{called}: there {_plain(old['path'])}, now {_plain(new['path'])}{changed}")
        elif old != new and name not in {limit for limit, _ in LIMITS.values()}:
            words.append(f"{prefix}{name}: there {_plain(old)}, now {_plain(new)}")
    return words


def _plain(value: Any) -> str:
    return "none" if value is None else str(value)


def _parsed(path: Path) -> dict[str, Any]:
    try:
        return dict(json.loads(path.read_text(encoding="utf-8")))
    except (OSError, ValueError) as error:
        raise InputError(f"{path}: cannot be read: {error}. Remove it, or begin anew with --overwrite") from error


def _columns(path: Path) -> dict[str, Floats]:
    """JSON lines as columns; null is NaN."""
    lines = [json.loads(line) for line in path.read_text(encoding="utf-8").splitlines()]
    names = lines[0] if lines else ()
    return {name: np.array([math.nan if one[name] is None else one[name] for one in lines], float) for name in names}
