"""What the functions of `distsms` do alike: ranks and arguments, settings by name, progress and warnings."""

from __future__ import annotations

import logging
import warnings
from collections.abc import Callable, Mapping, Sequence
from typing import Any, TypeVar

import numpy as np

from distsms.base.communicator import Communicator
from distsms.base.errors import ColumnWarning, InputError, ModelWarning
from distsms.base.wording import format_value, in_python
from distsms.parallel.arguments import require_same_arguments
from distsms.parallel.mpi import as_communicator

T = TypeVar("T")


def ranks_of(comm: Any, arguments: Mapping[str, Any]) -> Communicator:
    """Return the ranks of a call. Raises InputError on all of them unless its arguments are alike. **Collective.**

    `arguments` are the locals of the function, and its settings, which are among its locals, too.
    """
    ranks, others = as_communicator(comm), {"comm", "settings", "reading", "watch"}
    require_same_arguments(ranks, **{name: value for name, value in arguments.items() if name not in others})
    return ranks


def numbers(values: float | Sequence[float], name: str) -> list[float]:
    """Return a number or several as a list. Raises InputError for anything else."""
    try:
        return [float(value) for value in np.atleast_1d(np.asarray(values, float))]
    except (TypeError, ValueError) as error:
        raise InputError(f"{name}={format_value(values)}: needs a number, or several") from error


def require_columns(weight: Any, group: Any, of_arrays: bool) -> None:
    """Raise InputError unless weights and groups are arrays for rows in memory, and names of columns for tables."""
    if of_arrays and any(isinstance(value, str) for value in (weight, group)):
        raise InputError("weight and group are names of columns for tables, and arrays for rows in memory", True)
    if not of_arrays and any(not isinstance(value, str | None) for value in (weight, group)):
        raise InputError("weight and group are names of columns for tables; put these into the table", everywhere=True)


def logger(comm: Communicator) -> Callable[..., None]:
    """Return what logs the main steps under the name ``distsms``, at the level INFO, on the root."""
    return logging.getLogger("distsms").info if comm.is_root else lambda message, *values: None


def watching(observer: T, method: str, watch: Callable[..., None] | None) -> T:
    """Return the observer, which calls `watch`, if there is one, in place of a method."""
    if watch is not None:
        setattr(observer, method, watch)
    return observer


def warn(comm: Communicator, texts: Sequence[str], of_columns: Sequence[str] = ()) -> None:
    """Give warnings on columns, and on models and rows, as the function that calls this. On the root."""
    for text, category in [*((text, ColumnWarning) for text in of_columns), *((text, ModelWarning) for text in texts)]:
        if comm.is_root:
            warnings.warn(in_python(text), category, stacklevel=3)
