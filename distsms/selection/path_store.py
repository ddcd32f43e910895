"""The folder of a path, from which a killed path can go on.

It contains

path.json                  the problem: data, measure, folds, target; once the path is finished, also all points and
                           the choice. A folder without this file is not a path
points/LAMBDA_all.json     the result of training on all rows at a lambda: how it ended, and its measures
points/LAMBDA_foldF.json   the same for the training rows of fold F. A point without its file is solved again
points/LAMBDA_all.h5       the model of all rows at each lambda
points/LAMBDA_foldF.h5     the model of a fold, for its newest point only, from which the next point starts
model.h5                   the model of all rows at the lambda that was chosen
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
    "status": tuple(status.name.lower() for status in Status).__contains__,
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
    """The folder of a path. Only the root may use it, and must hold it with `files.exclusive`."""

    kind, parts = "path", "points"

    def points(self) -> list[Point]:
        """Read all points, by falling lambda and then by fold. Raises InputError if one is damaged."""
        points = []
        for path in (self.path / self.parts).glob("[!.]*.json"):
            points.append(Point(**read_objects(path, POINT, f"Remove {path}, and the point is run anew")[0]))
        return sorted(points, key=lambda point: (-point.lam, point.lane))

    def keep(self, point: Point, trained: Model) -> None:
        """Write a point and its model; the model of an older point of the same fold is removed."""
        newest = self._file(point.lam, point.lane, "h5")
        model.save(newest, trained)
        self.write(self._file(point.lam, point.lane, "json"), point._asdict())
        if point.lane:
            for old in newest.parent.glob(f"*_{_rows(point.lane)}.h5"):
                if old != newest:
                    old.unlink()

    def start(self, lane: int, lam: float, points: Sequence[Point]) -> Floats | None:
        """Return the coefficients from which to train at a lambda.

        Parameters
        ----------
        lane : int
            The fold on whose training rows to train, 0 for all rows.
        lam : float
            The lambda to train at.
        points : sequence of Point
            The points whose models may be taken.

        Returns
        -------
        ndarray, shape (p,), or None
            The coefficients, for normalized rows, of that point of this fold whose lambda is nearest in the logarithm;
            None if no such point has a model.
        """
        kept = [point for point in points if point.lane == lane and self._file(point.lam, lane, "h5").exists()]
        if not kept:
            return None
        nearest = min(kept, key=lambda point: abs(math.log(point.lam / lam)))
        loaded = model.load(self._file(nearest.lam, lane, "h5"))
        return loaded.normalization.unfold(loaded.w)

    def model(self, lam: float) -> Model:
        """Read the model of all rows at a lambda."""
        return model.load(self._file(lam, 0, "h5"))

    def _file(self, lam: float, lane: int, suffix: str) -> Path:
        return self.path / self.parts / f"{lam!r}_{_rows(lane)}.{suffix}"


def finished(point: Point, settings: Settings) -> bool:
    """Whether a point is final: no limit ended it, or these settings have no larger limit of evaluations."""
    cut_short = point.result["status"] == Status.LIMIT.name.lower()
    return not (cut_short and point.result["evaluations"] < settings.max_evaluations)


def _rows(lane: int) -> str:
    return f"fold{lane}" if lane else "all"
