"""The folder of a path, which a killed one goes on from.

path.json              what the points are of: data, measure, folds, target. A folder without it is not a path's. When
                       all points are there: also the table and the choice
points/LAMBDA_all.json, LAMBDA_foldF.json    one point: how it ended, its measures; a point without it is run again
points/LAMBDA_all.h5   the model of all rows at each lambda; of a fold, the newest one alone
model.h5               the model at the lambda that was chosen
"""

from __future__ import annotations

import json
import math
import os
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from distsms import cells, model
from distsms.cells import Fields, differences, number, number_or_null, read_objects
from distsms.errors import InputError
from distsms.files import replacing
from distsms.model import Model
from distsms.path import Point
from distsms.report import to_json
from distsms.result import Status
from distsms.settings import Settings
from distsms.training import Floats

FORMAT, VERSION = "distsms-path", 1
IDENTITY, POINTS, MODEL = "path.json", "points", "model.h5"

RESULT: Fields = {
    "status": tuple(one.name.lower() for one in Status).__contains__,
    **dict.fromkeys(("J", "lower_bound", "gap"), number_or_null),
    "evaluations": number,
    "vacuous": (False, True).__contains__,
}
POINT: Fields = {
    "lam": number,
    "lane": number,
    "result": lambda value: cells.fault(value, RESULT) is None,
    "threshold": number_or_null,
    "training": lambda value: cells.fault(value, cells.MEASURED) is None,
    "held_out": lambda value: value is None or cells.fault(value, cells.MEASURED) is None,
}
IDENTITIES: Fields = {
    "format": FORMAT.__eq__,
    "version": VERSION.__eq__,
    "problem": lambda value: isinstance(value, dict),
}


class Folder:
    """A path's folder. For the root alone; hold it with `files.exclusive`."""

    def __init__(self, path: str | os.PathLike[str]) -> None:
        self.path = Path(path)

    def check(self) -> None:
        """Raise InputError if something else than a path is there."""
        if os.path.lexists(self.path) and not self.path.is_dir():
            raise InputError(f"{self.path}: is not a folder; name another place for the path")
        if self.path.is_dir() and any(self.path.glob("[!.]*")) and not (self.path / IDENTITY).exists():
            raise InputError(f"{self.path}: holds something that is not a path; name another folder")

    def open(self, problem: Mapping[str, Any]) -> None:
        """Begin, or go on with, the path of a problem. InputError, with what differs, if another one's is there."""
        (self.path / POINTS).mkdir(exist_ok=True)
        if not (self.path / IDENTITY).exists():
            return self.describe(problem)
        remedy = "Name another folder, or remove this one"
        there = read_objects(self.path / IDENTITY, IDENTITIES, remedy)[0]["problem"]
        if differing := differences(there, json.loads(to_json(problem))):
            raise InputError(f"{self.path}: holds another path ({'; '.join(differing)}). {remedy}")

    def describe(self, problem: Mapping[str, Any], **more: Any) -> None:
        """Write path.json: the problem, and what came of it."""
        with replacing(self.path / IDENTITY) as temporary:
            words = {"format": FORMAT, "version": VERSION, "problem": problem, **more}
            temporary.write_text(to_json(words, indent=1) + "\n", encoding="utf-8")

    def points(self) -> list[Point]:
        """All that are kept: by falling lambda and lane. Raises InputError where one is damaged."""
        found = []
        for path in (self.path / POINTS).glob("[!.]*.json"):
            point = Point(**read_objects(path, POINT, f"Remove {path}, and the point is run anew")[0])
            found.append(point)
        return sorted(found, key=lambda one: (-one.lam, one.lane))

    def keep(self, point: Point, trained: Model) -> None:
        """Write a point and its model; of a fold, the older models go."""
        newest = self._file(point, "h5")
        model.save(newest, trained)
        with replacing(self._file(point, "json")) as temporary:
            temporary.write_text(to_json(point._asdict(), indent=1) + "\n", encoding="utf-8")
        if point.lane:
            for old in newest.parent.glob(f"*_{_lane(point.lane)}.h5"):
                if old != newest:
                    old.unlink()

    def start(self, lane: int, lam: float, points: Sequence[Point]) -> Floats | None:
        """Coefficients for normalized rows: of this lane's point nearest to a lambda, if one has a model, or None."""
        there = [one for one in points if one.lane == lane and self._file(one, "h5").exists()]
        if not there:
            return None
        nearest = min(there, key=lambda one: abs(math.log(one.lam / lam)))
        found = model.load(self._file(nearest, "h5"))
        return found.normalization.unfold(found.w)

    def model(self, lam: float) -> Model:
        """The model of all rows at a lambda."""
        return model.load(self.path / POINTS / f"{lam!r}_{_lane(0)}.h5")

    def _file(self, point: Point, kind: str) -> Path:
        return self.path / POINTS / f"{point.lam!r}_{_lane(point.lane)}.{kind}"


def finished(point: Point, settings: Settings) -> bool:
    """Whether a point was run to an end that these settings would not put off."""
    cut_short = point.result["status"] == Status.LIMIT.name.lower()
    return not (cut_short and point.result["evaluations"] < settings.max_evaluations)


def _lane(number: int) -> str:
    return f"fold{number}" if number else "all"
