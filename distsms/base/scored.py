"""Scores of rows with their labels, which measures are computed from."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from distsms.base.communicator import Communicator
from distsms.base.typing import Floats, Hashes, Labels


@dataclass(frozen=True, eq=False)
class Scored:
    """This rank's rows that count, with the scores that a model gives them. Measures are those of all ranks' rows."""

    scores: Floats  # (n_local,)
    labels: Labels  # (n_local,): +1 or -1
    comm: Communicator
    weights: Floats | None = None  # (n_local,): above 0; None on every rank if each row counts once
    groups: Hashes | None = None  # (n_local,); None on every rank if they are not needed, or not there

    @property
    def classes(self) -> tuple[NDArray[np.bool_], NDArray[np.bool_]]:
        """Which rows are positive, and which are negative."""
        return self.labels > 0, self.labels < 0

    @property
    def mass(self) -> Floats:
        """The weight of each row, 1 without weights."""
        return np.ones(len(self.labels)) if self.weights is None else self.weights

    def weights_of(self, rows: Any) -> Floats | None:
        """Return the weights of some rows; None without weights."""
        return None if self.weights is None else self.weights[rows]

    def of(self, rows: Any) -> Scored:
        """Return some of these rows, those of a mask or of a slice."""
        groups = None if self.groups is None else self.groups[rows]
        return Scored(self.scores[rows], self.labels[rows], self.comm, self.weights_of(rows), groups)
