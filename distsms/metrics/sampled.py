"""Measures with what says how sure they are: of one model, of two on the same rows, or of a method over folds."""

from __future__ import annotations

from typing import Any, NamedTuple

import numpy as np

from distsms.base.measures import GROUPED, WHOLE, HeadMeasure
from distsms.base.scored import Scored
from distsms.base.typing import Floats
from distsms.metrics import confidence, head_intervals, influence, within_groups
from distsms.metrics.bootstrap import Draws, prbep_replicates
from distsms.metrics.confidence import Interval, MeanEstimate
from distsms.metrics.operating_points import head_value
from distsms.metrics.ranking import placements, top_k_shares
from distsms.metrics.row_weights import effective, effective_sizes, mass_of_classes
from distsms.metrics.tied_scores import tied_scores


class Sampled(NamedTuple):
    """A measure of a model, or with `paired` by how much one model has more of it than another one on the same rows."""

    name: str
    value: Any  # what can be subtracted: placements, shares, influences, areas of groups, or a measure of the head
    scored: Scored
    replicates: Floats = np.empty(0)  # (replicates,), of PRBEP and of the head
    head: HeadMeasure | None = None  # which measure of the head it is, if it is one
    sizes: tuple[float, float] = (np.nan, np.nan)  # of the head: the effective numbers of positive and negative rows
    paired: bool = False

    def less(self, other: Sampled) -> Sampled:
        """Return the difference of this model and another one."""
        replicates = self.replicates - other.replicates
        return self._replace(value=self.value - other.value, replicates=replicates, paired=True)

    def estimate(self) -> MeanEstimate:
        """Return it as a mean over rows. **Collective.**"""
        if self.head is not None and self.paired:  # its spread is that of the replicates
            return MeanEstimate(self.value, (np.nan,), self.sizes)
        if self.head is not None:
            return head_intervals.head_estimate(self.head, self.value, *self.sizes)
        if self.name in WHOLE:
            return influence.influence_estimate(self.value, self.scored)
        if self.name in GROUPED:
            estimate: MeanEstimate = self.value.estimate(self.name.removeprefix("gauc@"), self.scored.comm)
            return estimate
        of_rows = confidence.prbep_estimate if self.name == "prbep" else confidence.rocarea_estimate
        return of_rows(self.value, self.scored)

    def interval(self, level: float, pooled: MeanEstimate | None = None) -> Interval:
        """Return its interval, or with `pooled` that of folds, whose mean replicates these are. **Collective.**"""
        estimate = pooled or self.estimate()
        if self.head is not None and not self.paired:
            return head_intervals.head_interval(self.head, estimate, self.replicates, level)
        if self.head is not None or self.name == "prbep":
            make = confidence.prbep_difference_interval if self.paired else confidence.prbep_interval
            return make(estimate, self.replicates, level)
        if self.name in GROUPED:
            of_groups = within_groups.gauc_difference_interval if self.paired else within_groups.gauc_interval
            return of_groups(estimate, level)
        of_classes = confidence.rocarea_difference_interval if self.paired else confidence.rocarea_interval
        spread = "influence of rows" if self.name in WHOLE else "DeLong"
        return of_classes(estimate, level, f"{spread}, {'paired' if self.paired else 'beta'}")


def sampled(name: str, scored: Scored, draws: Draws) -> Sampled:
    """Return ROCArea, PRBEP, GAUC or a measure of the head of scores. **Collective.**"""
    if name == "rocarea":
        return Sampled(name, placements(scored), scored)
    if name == "prbep":
        shares = top_k_shares(scored, mass_of_classes(scored)[0])
        return Sampled(name, shares, scored, prbep_replicates(scored, draws))
    if (head := HeadMeasure.parse(name)) is None:
        return Sampled(name, within_groups.group_areas(scored), scored)
    scaled = effective(scored)
    tied = tied_scores(scaled)
    drawn = head_intervals.head_replicates([head], tied, scaled, draws)[name]
    return Sampled(name, head_value(head, tied, scored.comm), scored, drawn, head, effective_sizes(scored))
