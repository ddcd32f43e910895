"""Compare the models of a path with quick ROCArea models on the same folds, at the measure that chooses lambda."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import replace
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from distsms.data.shards.dataset import DataBlock
from distsms.measures import display_name
from distsms.metrics.confidence import LEVEL, Interval, folds_interval
from distsms.parallel.communicator import Communicator
from distsms.selection.choice import values_of_folds
from distsms.selection.lambda_search import DEFAULT, moderate_choice, search
from distsms.selection.path import Problem
from distsms.selection.point import Point
from distsms.training.advice import is_clear


class Comparison(NamedTuple):
    """By how much quick ROCArea models are better on the folds than those of the path.

    Attributes
    ----------
    lam : float
        The lambda that the folds choose for the ROCArea models.
    ours, theirs : float
        The means of the measure over the folds: of the path's models, and of the ROCArea models. For each fold,
        the lambda is the one that the other folds choose.
    gain : Interval
        `theirs` minus `ours`, with an interval from the spread of the folds.
    """

    lam: float
    ours: float
    theirs: float
    gain: Interval

    def as_json(self) -> dict[str, Any]:
        """Return the fields as path.json has them."""
        return self._asdict() | {"gain": self.gain.as_json()}

    def warning(self, measure: str, chance: bool) -> str:
        """Return a warning if the ROCArea models are clearly better, or the path's models are useless; otherwise "".

        Parameters
        ----------
        measure : str
            The measure that was compared.
        chance : bool
            Whether the path's model ranks no better than chance.
        """
        clear = is_clear(self.gain, self.ours, self.theirs)
        if not clear and not chance:
            return ""
        advice = f"Use the measure rocarea with lambda {self.lam:g} instead" if clear else "So they do not help, either"
        return (
            f"Quick ROCArea models have {display_name(measure)} {self.theirs:.3f} on the same folds instead of "
            f"{self.ours:.3f} ({self.gain.low:+.3f} to {self.gain.high:+.3f}, with {100 * LEVEL:g} % "
            f"confidence). {advice}"
        )


def compare_on_folds(
    block: DataBlock,
    problem: Problem,
    points: Sequence[Point],
    comm: Communicator,
    fold_keys: NDArray[Any] | None,
    share_folds: bool,
    stop_wanted: Callable[[], bool],
    rule: str = "best",
) -> Comparison | None:
    """Train quick ROCArea models on the folds of a path, and compare them with its models. **Collective.**

    Parameters
    ----------
    block, problem, comm, fold_keys, share_folds
        Those of the path, see `distsms.selection.path.run`.
    points : sequence of Point
        The points of the path. Only those of the root matter.
    stop_wanted : callable
        Asked on every rank at each evaluation; True ends the comparison without a result.
    rule : {"best", "one-se"}
        The rule by which the path chooses.

    Returns
    -------
    Comparison or None
        The comparison on the root. None on the other ranks, and if it was stopped or has no folds to compare.
    """
    by = problem.select or problem.measure
    quick = replace(problem, measure="rocarea", select=by, bias=None)
    found = search(block, quick, comm, stop_wanted, fold_keys, share_folds)
    if found.stopped or not comm.is_root:
        return None
    ours, theirs = values_of_folds(points, by, rule), values_of_folds(found.points, by)
    if not ours or len(ours) != len(theirs):
        return None
    both = moderate_choice(found.points, by)
    lam = both[1].lam if both else DEFAULT
    gain = folds_interval((np.array(theirs) - ours).tolist(), LEVEL)
    return Comparison(lam, float(np.mean(ours)), float(np.mean(theirs)), gain)
