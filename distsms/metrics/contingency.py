"""The contingency table at a threshold, over all ranks: a row is called positive if its score is at least that."""

from __future__ import annotations

from dataclasses import dataclass

from distsms.base.communicator import Communicator
from distsms.base.typing import Floats, Labels
from distsms.metrics.row_weights import masses


@dataclass(frozen=True)
class Contingency:
    """The numbers, or weights, of true and false positives and negatives at a threshold, over all ranks."""

    tp: float
    fp: float
    fn: float
    tn: float

    @property
    def precision(self) -> float:
        """tp / (tp + fp)."""
        return ratio(self.tp, self.tp + self.fp)

    @property
    def recall(self) -> float:
        """tp / (tp + fn)."""
        return ratio(self.tp, self.tp + self.fn)

    def f(self, beta: float) -> float:
        """Return (1 + beta^2) tp / ((1 + beta^2) tp + beta^2 fn + fp); beta above 1 favours recall."""
        true = (1 + beta * beta) * self.tp
        return ratio(true, true + beta * beta * self.fn + self.fp)

    @property
    def f1(self) -> float:
        """The harmonic mean of precision and recall."""
        return self.f(1.0)

    @property
    def error_rate(self) -> float:
        """(fp + fn) / n."""
        return ratio(self.fp + self.fn, self.tp + self.fp + self.fn + self.tn)


def contingency(
    scores: Floats, labels: Labels, threshold: float, comm: Communicator, weights: Floats | None = None
) -> Contingency:
    """Compute the contingency table of all ranks' rows, on every rank. **Collective**, four numbers."""
    called, positive = scores >= threshold, labels > 0
    groups = called & positive, called & ~positive, ~called & positive, ~called & ~positive
    return Contingency(*masses(groups, weights, comm).tolist())


def ratio(part: float, whole: float) -> float:
    """Return part / whole, or NaN if the whole is 0."""
    return part / whole if whole else float("nan")
