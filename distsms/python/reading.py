"""How the functions of `distsms` take options on the reading of tables, and what they say of columns."""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from dataclasses import asdict, fields
from typing import Any

from distsms.base.errors import InputError
from distsms.base.formatting import did_you_mean
from distsms.base.wording import format_value, in_python, option
from distsms.shards.column_options import ColumnOptions, ColumnReport
from distsms.shards.sequence_rules import SequenceOptions
from distsms.workflow.requests import READING

SHOWN = 8
"""So many columns a warning describes."""


def shares(split: Any) -> tuple[float, ...] | None:
    """Return the shares of a split; None stays. Raises InputError if they are no numbers."""
    try:
        return None if split is None else tuple(map(float, split))
    except (TypeError, ValueError) as error:
        raise InputError(
            f"split={format_value(split)}: give the shares of both as {option('split', (0.8, 0.2))}", True
        ) from error


def conversion_options(
    arguments: Mapping[str, Any], others: Collection[str] = (), function: str = "train"
) -> dict[str, Any]:
    """Return options for `convert`, whose lists and options for columns users may write shorter. InputError names the
    function, and for an unknown option the one that may be meant, also one of the `others` of the caller."""
    if not isinstance(label := arguments.get("label"), str | None):
        raise InputError(
            f"label is the name of a column, and a {type(label).__name__} was given. Put the labels into the table, as "
            f"in {function}(frame.assign(y=labels), label='y')"
        )
    options: dict[str, Any] = {
        name: tuple(value) if isinstance(value, list) else value for name, value in arguments.items()
    }
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
        every = {field.name for kind in (ColumnOptions, SequenceOptions) for field in fields(kind)}.union(
            allowed, others
        )
        raise InputError(f"{function}: there is no option {min(wrong)!r}{did_you_mean(min(wrong), every)}")
    return options


def _take(options: dict[str, Any], kind: Any) -> dict[str, Any]:
    return {field.name: options.pop(field.name) for field in fields(kind) if field.name in options}


def _span(name: str, span: Any) -> tuple[int, int]:
    """Return two positions that are given as a pair or as text FROM:TO."""
    try:
        first, last = map(int, span.split(":") if isinstance(span, str) else span)
    except (TypeError, ValueError, AttributeError) as error:
        raise InputError(
            f"train: {name}={format_value(span)}: expected a pair of positions, such as (139, 279)"
        ) from error
    return first, last


def describe_columns(
    reports: Sequence[ColumnReport], where: str = "model.info['columns'] describes"
) -> tuple[list[dict[str, Any]], str]:
    """Return the list of columns as records, and a warning of those that were left out or look odd; "" if none is."""
    records = [asdict(report) | {"notes": [in_python(note) for note in report.notes]} for report in reports]
    odd = [record for record in records if record["notes"] or not record["features"]]
    if not odd:
        return records, ""
    # those that are lost first, and no more lines than a person reads
    shown = sorted(odd, key=lambda record: record["features"] > 0)[:SHOWN]
    lines = [f"{record['name'] or '(no name)'}: {'; '.join(record['notes']) or 'left out'}" for record in shown]
    lines += [f"and {len(odd) - SHOWN} more columns"] if len(odd) > SHOWN else []
    head = "some columns are left out, or may mean something else than numbers or categories"
    return records, "\n  ".join([f"{head}; {where} all of them:", *lines])
