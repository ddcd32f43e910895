"""GAUC = sum_g omega_g A_g over the groups with both classes, A_g the ROCArea of their rows, omega_g proportional to
the number, or weight, of their pairs ("pairs"), or equal ("each"), with its interval. Groups are what is drawn: the
variance is that of the influence function over groups (docs/theory/intervals.md).
"""

from __future__ import annotations

import math
from dataclasses import replace
from typing import NamedTuple

import numpy as np

from distsms.base.communicator import Communicator
from distsms.base.scored import Scored
from distsms.base.typing import Floats
from distsms.metrics.confidence import (
    FEWEST,
    Interval,
    MeanEstimate,
    mean_interval,
    rocarea_difference_interval,
    too_few,
)
from distsms.metrics.ranking import rocarea
from distsms.metrics.row_weights import weighted_mean
from distsms.parallel.groups import WholeGroups


class GroupAreas(NamedTuple):
    """ROCArea of groups with rows of both classes, each on one rank."""

    areas: Floats  # (groups,) float64: ROCArea of each group that this rank handles
    pairs: Floats  # (groups,) float64: the product of both classes' sums of weights

    def __sub__(self, other: GroupAreas) -> GroupAreas:
        return self._replace(areas=self.areas - other.areas)

    def estimate(self, weighting: str, comm: Communicator) -> MeanEstimate:
        """Return GAUC by `weighting`, "pairs" or "each", and its spread over groups; or NaN. **Collective.**"""
        omega = self.pairs if weighting == "pairs" else np.ones(len(self.pairs))
        mean, squares, size = weighted_mean(self.areas, np.ones(len(omega), bool), omega, comm)
        return MeanEstimate(mean, (squares,), (size, size))


def group_areas(scored: Scored) -> GroupAreas:
    """Compute ROCArea of each group with both classes. **Collective.**"""
    assert scored.groups is not None
    whole = WholeGroups(scored.groups, *scored.classes, scored.weights, scored.comm)
    areas, pairs = [_areas(whole.extend(scored.scores), whole)], [whole.positive * whole.negative]
    for large in whole.large:
        area = rocarea(scored.of(large.rows))
        if scored.comm.is_root:  # each group is counted on one rank
            areas.append(np.array([area]))
            pairs.append(np.array([large.positive * large.negative]))
    return GroupAreas(np.concatenate(areas), np.concatenate(pairs))


def gauc_estimate(weighting: str, scored: Scored) -> MeanEstimate:
    """Estimate GAUC and its spread over groups; see `group_areas` and `GroupAreas.estimate`. **Collective.**"""
    return group_areas(scored).estimate(weighting, scored.comm)


def gauc_interval(estimate: MeanEstimate, level: float) -> Interval:
    """Return the interval of GAUC, from `gauc_estimate`. Local."""
    why = ""
    if not min(estimate.counts) >= 2:
        nothing = math.isnan(estimate.value)
        why = "rows of both classes are in no group" if nothing else "fewer than two groups say how they vary"
    return mean_interval(estimate, level, "groups, beta", why)


def gauc_difference_interval(estimate: MeanEstimate, level: float) -> Interval:
    """Return the interval of a difference of GAUC, from the `estimate` of its areas, by Student's t. Local."""
    interval = rocarea_difference_interval(estimate, level, "groups, paired")
    if not interval.why:
        return interval
    few = f"{min(estimate.counts):.4g} groups are too few; a difference needs at least {FEWEST}"
    return replace(interval, why=few if too_few(estimate.counts) else "the difference is the same in all groups")


def _areas(scores: Floats, whole: WholeGroups) -> Floats:
    """Return ROCArea of each group that this rank handles, (groups,). Local."""
    lengths = np.diff(whole.edges)
    part = np.repeat(np.arange(len(lengths)), lengths)
    group, positive = part >> 1, part % 2 == 0
    sorted_scores = scores[whole.rows]
    a, pairs = np.ones(len(sorted_scores)), whole.positive * whole.negative
    if whole.weights is not None:  # shares of the class, so that heavy groups hide no light ones in sums
        mass = np.where(positive, whole.positive[group], whole.negative[group])
        a, pairs = whole.weights[whole.rows] / np.where(mass > 0, mass, 1.0), np.ones(len(pairs))
    order = np.lexsort((sorted_scores, group))
    sorted_scores, group, positive, a = sorted_scores[order], group[order], positive[order], a[order]
    # Runs of equal scores in a group. A positive row is above the negative rows of the runs before its own.
    begins = np.ones(len(sorted_scores), bool)
    begins[1:] = (sorted_scores[1:] != sorted_scores[:-1]) | (group[1:] != group[:-1])
    run = np.cumsum(begins) - 1
    of_run = group[begins]
    above, tied = (np.bincount(run, a * rows, len(of_run)).astype(float) for rows in (positive, ~positive))
    below = np.cumsum(tied) - tied
    first = np.searchsorted(of_run, np.arange(len(whole.positive)))
    below -= below[first][of_run] if len(of_run) else 0.0
    areas: Floats = np.bincount(of_run, above * (below + 0.5 * tied), len(pairs)) / pairs
    return areas
