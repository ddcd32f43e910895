"""The objective of the trainings of all folds, which also measures their models on training and on held-out rows."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, NamedTuple

from distsms.measures import GROUPED, RANKING, Measure
from distsms.metrics import estimates
from distsms.metrics.headline import chooser_value, decision_threshold, headline_measures
from distsms.metrics.row_weights import mean_and_deviation
from distsms.metrics.within_groups import gauc_estimate
from distsms.optim.objective import Objective
from distsms.parallel.communicator import Communicator
from distsms.selection.folds import Folds
from distsms.training.verdict import ALL_TIED, scores_tie, why_chance
from distsms.utils.typing import Floats, Hashes, Labels


class KeptScores(NamedTuple):
    """The scores of a fold's held-out rows on this rank.

    Attributes
    ----------
    scores : (m,) float64
        From the model of the fold.
    labels : (m,) int8
        +1 or -1.
    weights : (m,) float64 or None
        The weights; None on every rank if no rank has others than 0 and 1.
    training : tuple of float
        The mean and the standard deviation of the model's scores of all its training rows.
    """

    scores: Floats
    labels: Labels
    weights: Floats | None
    training: tuple[float, float]


class FoldsObjective(Objective):
    """The objective of the trainings of all folds, which also computes the measures of their models.

    Attributes
    ----------
    measure : Measure
        The measure that is trained for.
    select : str or None
        Another measure that is computed on the held-out rows.
    labels : ndarray of shape (n_local,)
        The labels of this rank's rows.
    weights : ndarray of shape (n_local,) or None
        Their weights; None on every rank if no rank has others than 0 and 1.
    groups : ndarray of shape (n_local,) or None
        Their groups, for measures within groups.
    folds : Folds
        Which rows each fold trains on, and which it holds out.
    numbers : sequence of int
        The fold of each loss.
    brief : bool
        Whether to measure only what a search for lambda needs: no training rows, and no standard errors of rows.
    scores : bool
        Whether to return the scores of the held-out rows of all ranks on the root, in the order of the rows.
    kept : dict or None
        If it is not None, it gets the scores of each fold's held-out rows on this rank.
    """

    brief: bool
    scores: bool
    kept: dict[int, KeptScores] | None = None
    measure: Measure
    select: str | None
    labels: Labels
    weights: Floats | None
    groups: Hashes | None
    folds: Folds
    numbers: Sequence[int]

    def assess(
        self, scores: Floats, loss: int
    ) -> tuple[float, Mapping[str, float], Mapping[str, Any] | None, str, Floats | None]:
        """Return the threshold of a model, its measures on training and held-out rows, `chance`, and the scores.

        **Collective.**

        The models of fold 0 are trained on all rows, so their held-out measures are None. `chance` says why the model
        ranks its training rows no better than chance; it is empty if it ranks them better. With `brief`, only equal
        scores are a reason. The scores are those of the held-out rows on the root if `self.scores` says so, else None.
        """
        comm, fold = self.comm, self.numbers[loss]
        held = comm.gather_rows(scores[self.folds.judged(fold)]) if self.scores and fold else None
        own, out = self.folds.training(fold), self.folds.judged(fold) if fold else None
        if self.kept is not None and out is not None:
            mine, _, _, weights = self._some(scores, own)
            held_scores, labels, _, of_rows = self._some(scores, out)
            self.kept[fold] = KeptScores(held_scores, labels, of_rows, mean_and_deviation(mine, weights, comm))
        threshold = decision_threshold(self.losses[loss].calls_positive, *self._some(scores, own))
        if self.brief:
            return threshold, {}, self._measures(scores, out, threshold), ALL_TIED * scores_tie(scores, comm), held
        training = self._measures(scores, own, threshold)
        own_scores, own_labels, _, weights = self._some(scores, own)
        within = self._within(self.measure, scores, own)
        chance = why_chance(own_scores, own_labels, training["rocarea"], comm, weights, within)
        if out is None:
            return threshold, training, None, chance, held
        known = (name for name in (self.select, self.measure.name) if name in RANKING or name in GROUPED)
        spread_of = next(known, RANKING[0])
        spread = self._within(Measure.parse(spread_of), scores, out)
        if spread is None:
            spread = estimates.measure_estimate(spread_of, *self._some(scores, out))
        parts = {"squares": list(spread.squares), "counts": list(spread.counts), "squares_of": spread_of}
        return threshold, training, self._measures(scores, out, threshold) | parts, chance, held

    def _some(self, scores: Floats, rows: Any) -> tuple[Floats, Labels, Communicator, Floats | None]:
        """Return the scores and labels of some rows, the ranks, and the weights of these rows."""
        return scores[rows], self.labels[rows], self.comm, None if self.weights is None else self.weights[rows]

    def _within(self, measure: Measure, scores: Floats, rows: Any) -> estimates.MeanEstimate | None:
        """Return the estimate of a measure within groups; None for other measures. Collective."""
        if not measure.within_groups or self.groups is None:
            return None
        some, labels, comm, weights = self._some(scores, rows)
        return gauc_estimate(measure.within_groups, some, labels, self.groups[rows], comm, weights)

    def _measures(self, scores: Floats, rows: Any, threshold: float) -> dict[str, Any]:
        some, labels, comm, weights = self._some(scores, rows)
        groups = None if self.groups is None else self.groups[rows]
        found = headline_measures(self.measure, some, labels, threshold, comm, weights, groups)
        if self.select and self.select not in found:
            found[self.select] = chooser_value(self.select, some, labels, threshold, comm, weights, groups)
        return found
