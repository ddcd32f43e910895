"""The folder of a path, which a killed one goes on from.

path.json              what the points are of: data, measure, folds, target. A folder without it is not a path's. When
                       all points are there: also the table and the choice
points/LAMBDA_all.json, LAMBDA_foldF.json    one point: how it ended, its measures; a point without it is run again
points/LAMBDA_all.h5   the model of all rows at each lambda; of a fold, the newest one alone
model.h5               the model at the lambda that was chosen
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from pathlib import Path

from distsms.inference import model
from distsms.inference.model import Model
from distsms.optim.result import Status
from distsms.optim.settings import Settings
from distsms.selection.path import Point
from distsms.utils import schema
from distsms.utils.runstore import ResumableStore
from distsms.utils.schema import Fields, is_number, is_number_or_null, read_objects
from distsms.utils.typing import Floats

MODEL = "model.h5"

RESULT: Fields = {
    "status": tuple(one.name.lower() for one in Status).__contains__,
    **dict.fromkeys(("J", "lower_bound", "gap"), is_number_or_null),
    "evaluations": is_number,
    "vacuous": (False, True).__contains__,
}
POINT: Fields = {
    "lam": is_number,
    "lane": is_number,
    "result": lambda value: schema.find_fault(value, RESULT) is None,
    "threshold": is_number_or_null,
    "training": lambda value: schema.find_fault(value, schema.MEASURED) is None,
    "held_out": lambda value: value is None or schema.find_fault(value, schema.MEASURED) is None,
}


class PathStore(ResumableStore):
    """A path's folder. For the root alone; hold it with `files.exclusive`."""

    kind, parts = "path", "points"

    def points(self) -> list[Point]:
        """All that are kept: by falling lambda and lane. Raises InputError where one is damaged."""
        found = []
        for path in (self.path / self.parts).glob("[!.]*.json"):
            point = Point(**read_objects(path, POINT, f"Remove {path}, and the point is run anew")[0])
            found.append(point)
        return sorted(found, key=lambda one: (-one.lam, one.lane))

    def keep(self, point: Point, trained: Model) -> None:
        """Write a point and its model; of a fold, the older models go."""
        newest = self.file_entry(point, "h5")
        model.save(newest, trained)
        self.write(self.file_entry(point, "json"), point._asdict())
        if point.lane:
            for old in newest.parent.glob(f"*_{_lane(point.lane)}.h5"):
                if old != newest:
                    old.unlink()

    def start(self, lane: int, lam: float, points: Sequence[Point]) -> Floats | None:
        """Coefficients for normalized rows: of this lane's point nearest to a lambda, if one has a model, or None."""
        there = [one for one in points if one.lane == lane and self.file_entry(one, "h5").exists()]
        if not there:
            return None
        nearest = min(there, key=lambda one: abs(math.log(one.lam / lam)))
        found = model.load(self.file_entry(nearest, "h5"))
        return found.normalization.unfold(found.w)

    def model(self, lam: float) -> Model:
        """The model of all rows at a lambda."""
        return model.load(self.path / self.parts / f"{lam!r}_{_lane(0)}.h5")

    def file_entry(self, point: Point, kind: str) -> Path:
        return self.path / self.parts / f"{point.lam!r}_{_lane(point.lane)}.{kind}"


def finished(point: Point, settings: Settings) -> bool:
    """Whether a point was run to an end that these settings would not put off."""
    cut_short = point.result["status"] == Status.LIMIT.name.lower()
    return not (cut_short and point.result["evaluations"] < settings.max_evaluations)


def _lane(number: int) -> str:
    return f"fold{number}" if number else "all"
