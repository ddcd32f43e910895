"""What some options may be: for the command line, which offers it, and for the workflow, which checks it."""

from __future__ import annotations

from collections.abc import Sequence

from distsms.base.errors import InputError
from distsms.base.formatting import format_value
from distsms.base.wording import option

TOGETHER = ("rows", "groups", "doubles", "time")
"""What a split or folds keep together: nothing, groups, equal rows, or what is near in time."""
ORDERINGS = ("gather", "exchange", "bins")
"""How scores are sorted; see `distsms.losses.registry`."""
STEPS = ("root", "spread")
"""Where the vectors of the solver are kept: whole on the root, or a slice of each on every rank."""
RULES = ("best", "one-se")
"""How lambda is chosen: that of the best mean, or the simplest model within one standard error of it."""


def require_choice(name: str, value: object, choices: Sequence[str]) -> None:
    """Raise InputError unless an option is one of these texts. Local, and alike on ranks with the same option."""
    if value not in choices:
        raise InputError(f"{option(name)}: {format_value(value):.60} is none of {', '.join(choices)}", everywhere=True)
