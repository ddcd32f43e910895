"""The table of all losses, by measure and ordering.

An ordering is a way to compare the scores of rows that are on different ranks. "gather" collects all scores on the root
and sorts them there. "exchange" leaves the rows on their ranks, and the ranks exchange what the comparison needs.
"bins" counts rows by score in place of sorting, and encloses R in a small interval.

To add a loss, write a module, and add a line to `MEASURES` and a name to `distsms.base.measures`.
"""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from distsms.base.errors import InputError
from distsms.base.measures import Measure
from distsms.base.typing import Floats
from distsms.base.wording import Message, option
from distsms.losses.base import Loss, LossValue
from distsms.losses.binned import PaucBins, RocAreaBins
from distsms.losses.contingency import FBeta, PrecisionAtK, RecallAtK
from distsms.losses.error_rate import ErrorRate
from distsms.losses.logistic import Logistic, LogisticBalanced
from distsms.losses.normal_auc import NormalAuc
from distsms.losses.pauc import Pauc
from distsms.losses.pauc_exchange import PaucExchange
from distsms.losses.prbep import Prbep
from distsms.losses.prbep_exchange import PrbepExchange
from distsms.losses.rocarea import RocArea
from distsms.losses.rocarea_exchange import RocAreaExchange
from distsms.losses.within_groups import RocAreaWithinGroups
from distsms.parallel.communicator import Communicator

__all__ = ["MEASURES", "Loss", "LossValue", "choose_ordering", "loss_class", "make_loss"]

# (family of measures, ordering) -> class; the parameters in a measure's name are passed to its constructor
MEASURES: dict[tuple[str, str], type[Loss]] = {
    ("rocarea", "gather"): RocArea,
    ("rocarea", "exchange"): RocAreaExchange,
    ("rocarea", "bins"): RocAreaBins,
    ("gauc", "exchange"): RocAreaWithinGroups,
    ("pauc", "gather"): Pauc,
    ("pauc", "exchange"): PaucExchange,
    ("pauc", "bins"): PaucBins,
    ("prbep", "gather"): Prbep,
    ("prbep", "exchange"): PrbepExchange,
    ("error-rate", "gather"): ErrorRate,
    ("logistic", "gather"): Logistic,
    ("logistic-balanced", "gather"): LogisticBalanced,
    ("normal-auc", "gather"): NormalAuc,
    ("f-beta", "gather"): FBeta,
    ("precision@k", "gather"): PrecisionAtK,
    ("recall@k", "gather"): RecallAtK,
}

NO_GROUPS = Message(
    "ROCArea within groups needs the group of each row: make the data set with distsms shard "
    f"{option('group', text='COLUMN')}"
)


def loss_class(measure: str | Measure, ordering: str) -> type[Loss]:
    """Return the class for a measure, such as "precision@100", and an ordering.

    Raises
    ------
    InputError
        If there is no such measure, or it is not offered with this ordering.
    """
    family = Measure.parse(measure).family
    if (family, ordering) not in MEASURES:
        offered = ", ".join(key_ordering for key_family, key_ordering in MEASURES if key_family == family)
        raise InputError(f"{measure} is not offered with the ordering {ordering!r}; choose one of: {offered}")
    return MEASURES[family, ordering]


def make_loss(
    measure: str | Measure,
    ordering: str,
    labels: NDArray[np.int8],
    weights: Floats | None,
    comm: Communicator,
    groups: NDArray[np.uint64] | None = None,
) -> Loss:
    """Build the loss of this rank's rows. **Collective.**

    Parameters
    ----------
    measure : str or Measure
        Such as "precision@100".
    ordering : str
        "gather", "exchange" or "bins". The value "auto" is not allowed here; `choose_ordering` replaces it.
    labels, weights, comm
        See `Loss`.
    groups : (n_local,) uint64, optional
        The key of each row's group, for measures within groups.

    Raises
    ------
    InputError
        If a class has no rows, there are fewer than k rows, or a measure within groups gets no groups.
    """
    measure = Measure.parse(measure)
    if not measure.within_groups:
        return loss_class(measure, ordering)(labels, weights, comm, *measure.parameters)
    if groups is None:
        raise InputError(NO_GROUPS, everywhere=True)
    return RocAreaWithinGroups(labels, weights, comm, measure.within_groups, groups)


def choose_ordering(asked: str, measure: str | Measure, n_pos: int, n_neg: int, size: int) -> tuple[str, str]:
    """Choose the ordering, and say why. Local.

    Parameters
    ----------
    asked : str
        The ordering that the user asked for; "auto" asks for the one that is cheapest on `size` ranks.
    measure : str or Measure
        Such as "rocarea".
    n_pos, n_neg, size : int
        The number of positives, negatives and ranks.

    Returns
    -------
    ordering, why : str
        "gather", "exchange" or "bins", and the reason in words.

    Notes
    -----
    The costs are those of `Loss.cost`, with one nanosecond for each byte and for each step. That is about the speed of
    a network of 10 Gbit/s and of a compiled loop. More precise figures would not change the choice, since the costs of
    the orderings differ by orders of magnitude.
    """
    if asked != "auto":
        return asked, "as asked for"
    family = Measure.parse(measure).family
    costs = {ordering: loss.cost(n_pos, n_neg, size) for (name, ordering), loss in MEASURES.items() if name == family}
    best, *others = sorted(costs, key=lambda ordering: costs[ordering].bytes + costs[ordering].steps)
    if not others:
        return best, "the only one for this measure"
    listed = "; ".join(
        f"{ordering} {costs[ordering].bytes:.2g} bytes, {costs[ordering].steps:.2g} steps"
        for ordering in [best, *others]
    )
    ranks = "1 rank" if size == 1 else f"{size} ranks"
    return best, f"the cheapest by count on {ranks} (for one evaluation, on the busiest rank: {listed})"
