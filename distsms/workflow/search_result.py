"""What a search among features has tried and chosen; `distsms.workflow.search` makes it."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np

if TYPE_CHECKING:
    from distsms.workflow.choice import Mean


class Tried(NamedTuple):
    """A candidate that was tried on the folds."""

    features: str  # as `distsms.workflow.candidates.parse` takes them
    measure: str  # what was trained for
    lam: float  # the best lambda
    seconds: float
    means: list[Mean]  # of the measure that chooses, for all lambdas
    values: list[float]  # of the folds, at the best lambda

    @property
    def mean(self) -> float:
        """The mean over the folds at the best lambda."""
        return float(np.mean(self.values))


@dataclass(frozen=True)
class Search:
    """What a search tried, and what it chose. All ranks have the same."""

    by: str  # the measure that chose
    rows: int  # those of the sample
    folds: int
    share: float  # of the training rows of the rarer class, those on which the models of a fold are trained
    budget: float  # seconds
    seconds: float
    tried: list[Tried]  # the columns, trained for the measure of the request, come first
    left_out: dict[str, str]  # what was not tried to the end, or would take too long on all rows, and why
    winner: Tried
    reason: str  # one sentence

    def as_json(self) -> dict[str, Any]:
        """Return what a model file gets."""
        tried = [each._asdict() | {"mean": each.mean} for each in self.tried]
        for each in tried:
            each["means"] = [mean._asdict() for mean in each["means"]]
        winner = {"features": self.winner.features, "measure": self.winner.measure}
        return vars(self) | {"tried": tried, "winner": winner}
