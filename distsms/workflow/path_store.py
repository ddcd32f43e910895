"""The folder of a path, from which a killed path can continue.

It contains

path.json                  the problem: data, measure, folds, target; when the path is finished, also all points and
                           the choice. A folder without this file is not the folder of a path
points/LAMBDA_all.json     the result of training on all rows at a lambda: how it ended, and its measures
points/LAMBDA_foldF.json   the same for the training rows of fold F. A point without its file is solved again
points/LAMBDA_all.h5       the model of all rows at each lambda
points/LAMBDA_foldF.h5     the models of a fold that further points start from: of the largest and of the newest lambda
model.h5                   the model of all rows at the lambda that was chosen
"""

from __future__ import annotations

import math
from pathlib import Path

import numpy as np

from distsms.base import schema
from distsms.base.runstore import ResumableStore
from distsms.base.schema import Fields, is_number, is_number_or_null, read_objects
from distsms.base.typing import Floats
from distsms.models import model
from distsms.models.model import Model
from distsms.optim.result import Status
from distsms.optim.settings import Settings
from distsms.workflow.choice import Point

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
            points.append(
                Point.from_json(read_objects(path, POINT, f"Remove {path}, and the point is computed again")[0])
            )
        return sorted(points, key=lambda point: (-point.lam, point.fold))

    def keep(self, point: Point, trained: Model) -> None:
        """Write a point and its model. For each fold, only the models of the largest and the newest lambda are kept."""
        newest = self._file(point.lam, point.fold, "h5")
        model.save(newest, trained)
        self.write(self._file(point.lam, point.fold, "json"), point.as_json())
        models = self._models(point.fold)
        if point.fold:
            for lam, old in models.items():
                if lam != max(models) and old != newest:
                    old.unlink()

    def start(self, fold: int, lam: float, bias: float | None = None) -> Floats | None:
        """Return the coefficients, for normalized rows, from which to train: (p,), or with a `bias` (p + 1,).

        They are those of the model of this fold (0: all rows) whose lambda is nearest in the logarithm; None without
        one.
        """
        models = self._models(fold)
        if not models:
            return None
        loaded = model.load(models[min(models, key=lambda other: abs(math.log(other) - math.log(lam)))])
        w = loaded.normalization.unfold(loaded.w)
        return np.append(w, loaded.bias / bias) if bias else w

    def _models(self, fold: int) -> dict[float, Path]:
        """Return the files of the models of a fold, by lambda."""
        paths = (self.path / self.parts).glob(f"[!.]*_{_rows(fold)}.h5")
        return {float(path.name.partition("_")[0]): path for path in paths}

    def model(self, lam: float) -> Model:
        """Read the model of all rows at a lambda."""
        return model.load(self._file(lam, 0, "h5"))

    def _file(self, lam: float, fold: int, suffix: str) -> Path:
        return self.path / self.parts / f"{lam!r}_{_rows(fold)}.{suffix}"


def finished(point: Point, settings: Settings, select: str | None = None) -> bool:
    """Return whether a point need not be made again.

    Two conditions must hold. The limit of evaluations did not end the training of the point, or `settings` has no
    larger limit. And the measure `select` of the held-out rows is known, if `select` is given and the point has such
    rows.
    """
    cut_short = point.result["status"] == Status.LIMIT.name.lower()
    measured = select is None or point.held_out is None or select in point.held_out
    return measured and not (cut_short and point.result["evaluations"] < settings.max_evaluations)


def _rows(fold: int) -> str:
    return f"fold{fold}" if fold else "all"
