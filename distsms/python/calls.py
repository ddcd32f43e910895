"""What the functions of `distsms` do alike: ranks and arguments, options on reading tables, progress and warnings."""

from __future__ import annotations

import warnings
from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import asdict, fields
from typing import Any, TypeVar

import numpy as np
from threadpoolctl import threadpool_limits

from distsms.base.communicator import Communicator
from distsms.base.errors import ColumnWarning, InputError, ModelWarning
from distsms.base.formatting import did_you_mean
from distsms.base.wording import format_value, in_python, option
from distsms.matrix.blocks import thread_count
from distsms.parallel.arguments import require_same_arguments
from distsms.parallel.mpi import as_communicator
from distsms.shards.column_options import ColumnOptions, ColumnReport
from distsms.shards.sequence_rules import SequenceOptions
from distsms.workflow.requests import READING

T = TypeVar("T")
SHOWN = 8
"""So many columns a warning describes."""


def ranks_of(comm: Any, arguments: Mapping[str, Any]) -> Communicator:
    """Return the ranks of a call. InputError unless its arguments, locals and settings, are alike. **Collective.**"""
    ranks, others = as_communicator(comm), {"comm", "settings", "reading", "watch"}
    require_same_arguments(ranks, **{name: value for name, value in arguments.items() if name not in others})
    return ranks


def blas_like_kernels() -> threadpool_limits:
    """Give BLAS as many threads as the kernels have, within a `with`. One for each core would slow down the small
    systems of equations of the solver and the proof. A command sets the environment for it, before NumPy is loaded."""
    return threadpool_limits(thread_count(), "blas")


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


def watching(observer: T, method: str, watch: Callable[..., None] | None) -> T:
    """Return the observer, which calls `watch`, if there is one, in place of a method."""
    if watch is not None:
        setattr(observer, method, watch)
    return observer


def warn(comm: Communicator, texts: Sequence[str], of_columns: Sequence[str] = ()) -> None:
    """Give warnings on columns, and on models and rows, as the function that calls this. On the root."""
    for text in [*of_columns, *texts] if comm.is_root else ():
        warnings.warn(in_python(text), ColumnWarning if text in of_columns else ModelWarning, stacklevel=3)


def shares(split: Any) -> tuple[float, ...] | None:
    """Return the shares of a split; None stays. Raises InputError if they are no numbers."""
    try:
        return None if split is None else tuple(map(float, split))
    except (TypeError, ValueError) as error:
        raise InputError(f"split={format_value(split)}: give shares as {option('split', (0.8, 0.2))}", True) from error


def conversion_options(
    arguments: Mapping[str, Any], others: Collection[str] = (), function: str = "train"
) -> dict[str, Any]:
    """Return options for `convert`, whose lists and options for columns users may write shorter. InputError names the
    function, and for an unknown option the one that may be meant, also one of the `others` of the caller."""
    if not isinstance(label := arguments.get("label"), str | None):
        remedy = f"Put the labels into the table, as in {function}(frame.assign(y=labels), label='y')"
        raise InputError(f"label is the name of a column, and a {type(label).__name__} was given. {remedy}")
    options = {name: tuple(value) if isinstance(value, list) else value for name, value in arguments.items()}
    lists = {"drop", "keep", "categorical", "numeric", "missing", "not_missing", "names"}
    options |= {name: (value,) for name, value in options.items() if name in lists and isinstance(value, str)}
    if of_columns := _take(options, ColumnOptions):
        options["columns"] = ColumnOptions(**of_columns)
    if of_sequences := _take(options, SequenceOptions):
        if "window" in of_sequences:
            of_sequences["window"] = _span("window", of_sequences["window"])
        if "spectra" in of_sequences:
            of_sequences["spectra"] = tuple(_span("spectra", region) for region in of_sequences["spectra"])
        options["sequences"] = SequenceOptions(**of_sequences)
    allowed = READING | ({"n_features", "compression"} if function == "shard" else set())
    if wrong := set(options) - allowed:
        every = {each.name for kind in (ColumnOptions, SequenceOptions) for each in fields(kind)} | allowed | {*others}
        raise InputError(f"{function}: there is no option {min(wrong)!r}{did_you_mean(min(wrong), every)}")
    return options


def _take(options: dict[str, Any], kind: Any) -> dict[str, Any]:
    return {field.name: options.pop(field.name) for field in fields(kind) if field.name in options}


def _span(name: str, span: Any) -> tuple[int, int]:
    """Return two positions that are given as a pair or as text FROM:TO."""
    try:
        first, last = map(int, span.split(":") if isinstance(span, str) else span)
    except (TypeError, ValueError, AttributeError) as error:
        raise InputError(f"{name}={format_value(span)}: expected a pair of positions, such as (139, 279)") from error
    return first, last


def describe_columns(
    reports: Sequence[ColumnReport], where: str = "model.info['columns'] describes"
) -> tuple[list[dict[str, Any]], list[str]]:
    """Return the list of columns as records, and the warning on those that were left out or look odd, if some are."""
    records = [asdict(report) | {"notes": [in_python(note) for note in report.notes]} for report in reports]
    odd = [record for record in records if record["notes"] or not record["features"]]
    if not odd:
        return records, []
    # those that are lost first, and no more lines than a person reads
    shown = sorted(odd, key=lambda record: record["features"] > 0)[:SHOWN]
    lines = [f"{record['name'] or '(no name)'}: {'; '.join(record['notes']) or 'left out'}" for record in shown]
    lines += [f"and {len(odd) - SHOWN} more columns"] if len(odd) > SHOWN else []
    head = "some columns are left out, or may mean something else than numbers or categories"
    return records, ["\n  ".join([f"{head}; {where} all of them:", *lines])]
