"""The loss of each measure and ordering. "gather" sorts all scores on the root; "exchange" leaves rows on their ranks,
which exchange what comparisons need; "bins" counts rows by score, and encloses R.
"""

from __future__ import annotations

from importlib import import_module
from typing import Any

from distsms.base.communicator import Communicator
from distsms.base.errors import InputError
from distsms.base.measures import Family, Measure
from distsms.base.typing import Floats, Hashes, Labels
from distsms.base.wording import Message, option
from distsms.losses.base import Loss

NO_GROUPS = Message(
    "ROCArea within groups needs the group of each row: make the data set with distsms shard "
    f"{option('group', text='COLUMN')}"
)


def load_class(family: Family, ordering: str) -> type[Loss]:
    """Return a class; only now is its module loaded, since a training needs few of them."""
    module, _, name = family.losses[ordering].partition(".")
    loss: type[Loss] = getattr(import_module(f"distsms.losses.{module}"), name)
    return loss


def loss_class(measure: str | Measure, ordering: str) -> type[Loss]:
    """Return the class for a measure, such as "precision@100", and an ordering; InputError if it is not offered."""
    family = Measure.parse(measure).family
    if ordering not in family.losses:
        offered = ", ".join(family.losses)
        raise InputError(f"{measure} is not offered with the ordering {ordering!r}; choose one of: {offered}")
    return load_class(family, ordering)


def make_loss(
    measure: str | Measure,
    ordering: str,
    labels: Labels,
    weights: Floats | None,
    comm: Communicator,
    groups: Hashes | None = None,
) -> Loss:
    """Build the loss of this rank's rows, see `Loss`, for an ordering but "auto"; `groups` (n_local,) uint64 are the
    keys of rows for measures within groups. **Collective.** InputError as `Loss`, or without groups.
    """
    measure = Measure.parse(measure)
    if not measure.within_groups:
        return loss_class(measure, ordering)(labels, weights, comm, *measure.parameters)
    if groups is None:
        raise InputError(NO_GROUPS, everywhere=True)
    within_groups: Any = loss_class(measure, "exchange")
    loss: Loss = within_groups(labels, weights, comm, measure.within_groups, groups)
    return loss


def choose_ordering(ordering: str, measure: str | Measure, n_pos: int, n_neg: int, size: int) -> tuple[str, str]:
    """Return the ordering, for "auto" the cheapest on `size` ranks by `Loss.cost`, and the reason in words. Local."""
    if ordering != "auto":
        return ordering, "as asked for"
    family = Measure.parse(measure).family
    costs = {ordering: load_class(family, ordering).cost(n_pos, n_neg, size) for ordering in family.losses}
    by_cost = sorted(costs.items(), key=lambda each: each[1].bytes + each[1].steps)
    best = by_cost[0][0]
    if len(by_cost) == 1:
        return best, "the only one for this measure"
    listed = "; ".join(f"{ordering} {cost.bytes:.2g} bytes, {cost.steps:.2g} steps" for ordering, cost in by_cost)
    ranks = "1 rank" if size == 1 else f"{size} ranks"
    return best, f"the cheapest by count on {ranks} (for one evaluation, on the busiest rank: {listed})"
