"""The options that say what the columns of a table contain, and the list that shows how each column is used."""

from __future__ import annotations

import argparse
import re
from typing import TYPE_CHECKING

from distsms.cli.types import count
from distsms.utils.untrusted_text import printable

if TYPE_CHECKING:
    from collections.abc import Sequence

    from distsms.data.formats.column_options import ColumnOptions, ColumnReport

BITS = 16
"""A hashed column gets 2^BITS features, unless the user gives another exponent."""
WIDTH, NAME_WIDTH, MOST_SHOWN = 80, 28, 40
"""The largest numbers of characters in a line, of characters in a name, and of lines in the list of columns."""


def add_column_options(parser: argparse._ActionsContainer) -> None:
    """Add the options that say what the columns of a table contain."""
    parser.add_argument(
        "--categorical",
        nargs="+",
        action="extend",
        default=[],
        metavar="COLUMN",
        help="Take these columns of a table for categories, such as codes that are written as numbers.",
    )
    parser.add_argument(
        "--numeric",
        nargs="+",
        action="extend",
        default=[],
        metavar="COLUMN",
        help="Take these columns for numbers, also if they look like ids.",
    )
    parser.add_argument(
        "--date",
        nargs="+",
        action="extend",
        default=[],
        type=_date,
        metavar="COLUMN[:FORM]",
        help="Take these columns for dates, written in the FORM of strptime, such as day:%%d.%%m.%%Y (default: as"
        " 2024-05-31 or 2024-05-31T12:30:00, which needs no option).",
    )
    parser.add_argument(
        "--hash",
        nargs="+",
        action="extend",
        default=[],
        type=_hash,
        metavar="COLUMN[:BITS]",
        help="Keep these columns of text, ids or very many categories: each word (or value) adds 1 or -1 to one of"
        f" 2^BITS features (default: {BITS}).",
    )
    parser.add_argument(
        "--min-count",
        type=count,
        default=1,
        metavar="N",
        help="Put categories with fewer than N rows together as one (default: %(default)s).",
    )
    parser.add_argument(
        "--decimal",
        choices=(".", ","),
        default=".",
        help="The decimal mark of numbers in CSV. Where semicolons separate the fields, both are read"
        " (default: %(default)s).",
    )


def column_options(args: argparse.Namespace) -> ColumnOptions:
    """Return the values of the options of `add_column_options`."""
    from distsms.data.formats.column_options import ColumnOptions
    from distsms.errors import InputError

    for name, given in (("date", args.date), ("hash", args.hash)):
        if len({column for column, _ in given}) < len(given):
            raise InputError(f"--{name}: a column is named twice", everywhere=True)
    columns = tuple(args.categorical), tuple(args.numeric), dict(args.date), dict(args.hash)
    return ColumnOptions(*columns, args.min_count)


def _date(text: str) -> tuple[str, str | None]:
    found = re.fullmatch(r"(.*?):(.*%.*)", text, re.DOTALL)
    return (found[1], found[2]) if found else (text, None)


def _hash(text: str) -> tuple[str, int]:
    found = re.fullmatch(r"(.*):([0-9]{1,9})", text, re.DOTALL)
    return (found[1], int(found[2])) if found else (text, BITS)


def format_columns(reports: Sequence[ColumnReport]) -> str:
    """Return a list that says how each column is used, followed by notes on columns that look wrong.

    No line is longer than `WIDTH`. If there are more than `MOST_SHOWN` columns, the list leaves out columns of numbers
    without notes.
    """
    import textwrap

    shown = list(reports)
    if len(shown) > MOST_SHOWN:
        shown = [report for report in shown if report.taken_for != "number" or report.notes][:MOST_SHOWN]
    lines = [f"{'column':<{NAME_WIDTH}}  {'taken for':<9}  {'values':>11}  {'missing':>11}  {'features':>9}"]
    for report in shown:
        values = f"{'' if report.exact else '~'}{report.values:,}"
        features = f"{report.features:,}" if report.features else "left out"
        lines.append(
            f"{shorten(report.name):<{NAME_WIDTH}}  {report.taken_for:<9}  {values:>11}  {report.missing:>11,}"
            f"  {features:>9}"
        )
    if rest := len(reports) - len(shown):
        what = "more columns" if len(shown) >= MOST_SHOWN else "columns of numbers"
        lines.append(f"and {rest:,} {what}, {sum(report.features for report in reports):,} features in all")
    for report in shown:
        for note in report.notes:
            lines += textwrap.wrap(
                f"{printable(report.name)}: {note}",
                WIDTH,
                initial_indent="  ",
                subsequent_indent="    ",
                break_on_hyphens=False,
            )
    return "\n".join(lines)


def shorten(name: str) -> str:
    """Return a name that fits into the table."""
    name = printable(name)
    return name if len(name) <= NAME_WIDTH else name[: NAME_WIDTH - 3] + "..."
