"""The opening of a run: who has one, and what it finds. The method is dual coordinate ascent."""

from __future__ import annotations

from typing import NamedTuple

import numpy as np

from distsms.base.typing import Floats
from distsms.optim.objective import Objective
from distsms.optim.settings import Settings, ascends

ROUNDING = 0.02
"""The opening subtracts this share of the target from its bounds, since the proof subtracts what rounding may do."""
LEAST = 3
"""A run that may take no more evaluations has no opening, unless the risk is smooth by itself."""


class Opened(NamedTuple):
    """What the opening found: slices of the best w and of a plane <r, w> + d below R, and what it took.

    `final`: whether the evaluation at w probably ends the run, by a proof, by a limit or since it was asked to stop.
    """

    w: Floats
    r: Floats
    d: float
    evaluations: int
    seconds: float
    final: bool = False


def is_usual(objective: Objective, settings: Settings) -> bool:
    """Return whether a run has one of the usual solvers and problems, for which a start was found to pay. Local."""
    loss = objective.losses[0]
    usual = settings.traits.movable and settings.bundle_steps and settings.c_mu is None and not settings.solver_options
    # The starts know no other regularizer than lambda/2 ||w||^2, and cannot go on without the rows of a rank that dies.
    usual &= len(objective.losses) == 1 and not settings.l1 and not objective.comm.failures
    return usual and loss.family.smooth and loss.nonnegative and loss.planes_up_to == np.inf and settings.zero_plane


def suits(objective: Objective, settings: Settings) -> bool:
    """Return whether a run with w = 0 at its start shall have an opening. **Collective.**

    It is for the usual solvers. Runs that write checkpoints have none, since its state is not among what they write,
    and streamed rows have none, since it takes memory for each row.
    """
    loss, features = objective.losses[0], objective.features
    least = 1 if loss.family.smooth_by_itself else LEAST
    possible = is_usual(objective, settings) and loss.family.has_dual and settings.checkpoint_every is None
    if not (possible and settings.max_evaluations > least):
        return False
    n, streamed = objective.comm.sum(np.array([features.shape[0], getattr(features, "bytes_per_pass", 0)], float))
    return not streamed and ascends(n, objective.p, loss.family.smooth_by_itself)
