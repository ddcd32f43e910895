"""The options on the columns of tables and on sequences of letters, and the list that shows how columns are used."""

from __future__ import annotations

import argparse
import re
import textwrap
from collections import Counter
from typing import TYPE_CHECKING

from distsms.base.errors import InputError
from distsms.base.wording import Message, printable
from distsms.cli.types import add_options, from_arguments, whole
from distsms.shards.column_options import BITS

if TYPE_CHECKING:
    from collections.abc import Sequence
    from typing import Any

    from distsms.shards.column_options import ColumnOptions, ColumnReport
    from distsms.shards.sequence_rules import SequenceOptions

WIDTH, NAME_WIDTH, MOST_SHOWN = 80, 28, 15
"""The largest numbers of characters in a line, of characters in a name, and of lines in the list of columns."""
MOST_NAMED = 5
"""A note that is true of more columns than this names only the first of them."""
SEQUENCES = ["fasta", "labels", "alphabet", "window", "degree", "spectrum", "spectrum_degree"]
"""The options of `add_sequence_options`, by their names in argparse's namespace."""

LIST: dict[str, Any] = {"nargs": "+", "action": "extend", "default": []}
"""An option for columns. They may be separated by spaces or commas, and the option may be repeated."""
COLUMNS = f"""\
--categorical COLUMN  Take these columns of a table for categories, such as codes that are written as numbers. Here and
    in the other options for columns, several are written as a,b or a b.
--numeric COLUMN  Take these columns for numbers, also if they look like ids.
--date COLUMN[:FORM]  Take these columns for dates, written in the FORM of strptime, such as day:%%d.%%m.%%Y (default:
    as 2024-05-31 or 2024-05-31T12:30:00, which needs no option).
--hash COLUMN[:BITS]  Keep these columns of text, ids or very many categories: each word (or value) adds 1 or -1 to one
    of 2^BITS features (default: {BITS}). From 20 bits on, training takes more than 1 GiB of memory.
--min-count N  Put categories with fewer than N rows together as one (default: %(default)s).
--decimal  The decimal mark of numbers in CSV; with semicolons between fields, both are read (default: %(default)s).
--thousands MARK  The mark between thousands: . , ' or space; with a point, numbers have decimal commas (default: none).
--separator MARK  What separates the fields of CSV: a character, tab or space (default: comma, semicolon, tab or bar, as
    the first lines show).
--no-header  CSV has rows from the first line on. Its columns are called column_1, column_2, ..., or as --names says.
--names NAME  The names of the columns, from left to right, of CSV that does not have them.
--missing MARK  Further marks of missing values, strings or numbers, in all columns, such as --missing=-999. In columns
    of numbers, marks such as - ? None and \\N are missing values without this option.
--not-missing MARK  Usual marks of missing values that are values here, such as NA for Namibia.
"""
SEQUENCE_OPTIONS = """\
either --strings  The files have lines LABEL SEQUENCE (default for names that end in .strings).
or --fasta  The files are FASTA (default for .fa, .fasta, .fna and .faa). The label of a sequence follows label= in its
    header, or is the second of two words.
--labels FILE  The labels of sequences in FASTA, in lines NAME LABEL; every rank holds them.
--alphabet  The letters of sequences. T and U are the same, and so are small and capital letters; k-mers with an
    ambiguous letter such as N count nothing, and any other character is an error (default: %(default)s).
--window FROM:TO  Keep these positions of each sequence, counted from 1, both included (default: all).
--degree K  Make a feature for each position and each k-mer that begins there, k = 1 to K, with the weights of the
    weighted degree kernel: up to 8 for dna and rna, 4 for protein; 0 makes none (default: 5, for protein 3).
--spectrum FROM:TO  Make a feature for each k-mer, which counts it in this region of the sequence, wherever it is there.
    Positions are those of the whole sequence. May be repeated.
--spectrum-degree K  The largest k of --spectrum (default: that of --degree).
"""


def add_column_options(parser: argparse._ActionsContainer) -> None:
    """Add the options that say what the columns of a table contain."""
    others = dict.fromkeys(("--categorical", "--numeric", "--names", "--missing", "--not-missing"), LIST)
    others |= {"--date": {**LIST, "type": _date}, "--hash": {**LIST, "type": _hash}, "--min-count": {"default": 1}}
    others |= {"--decimal": {"choices": (".", ","), "default": "."}, "--separator": {"type": _mark, "default": ""}}
    others["--thousands"] = {"choices": ("", ".", ",", "'", " "), "type": _mark, "default": ""}
    add_options(parser, COLUMNS, others)


def column_options(args: argparse.Namespace) -> ColumnOptions:
    """Return the values of the options of `add_column_options`."""
    from distsms.shards.column_options import ColumnOptions

    hashed = [pair for pairs in args.hash for pair in pairs]
    for option, columns in (("date", args.date), ("hash", hashed)):
        if len({column for column, _ in columns}) < len(columns):
            raise InputError(f"--{option}: a column is named twice", everywhere=True)
    lists = {"categorical": tuple(args.categorical), "numeric": tuple(args.numeric)}
    return from_arguments(ColumnOptions, args, **lists, dates=dict(args.date), hashed=dict(hashed))


def _mark(text: str) -> str:
    return {"space": " ", "tab": "\t"}.get(text, text)


def _date(text: str) -> tuple[str, str | None]:
    match = re.fullmatch(r"(.*?):(.*%.*)", text, re.DOTALL)
    return (match[1], match[2]) if match else (text, None)


def _hash(text: str) -> list[tuple[str, int]]:
    parts = re.sub(r"(:[0-9]{1,9}),", r"\1\n", text).split("\n")  # a:10,b:12 has two parts, and a,b:12 has one
    matches = [re.fullmatch(r"(.*):([0-9]{1,9})", part) for part in parts]
    return [(pair[1], int(pair[2])) if pair else (part, BITS) for part, pair in zip(parts, matches, strict=True)]


def add_sequence_options(parser: argparse._ActionsContainer) -> None:
    """Add the options for sequences."""
    others: dict[str, dict[str, Any]] = {
        "--strings": {"action": "store_false", "default": None, "dest": "fasta"},
        "--fasta": {"action": "store_true", "default": None},
        "--alphabet": {"choices": ("dna", "rna", "protein"), "default": "dna"},
        "--window": {"type": span},
        "--degree": {"type": whole},
        "--spectrum": {"type": span, "action": "append", "default": []},
        "--spectrum-degree": {"type": whole},
    }
    add_options(parser, SEQUENCE_OPTIONS, others)


def sequence_options(args: argparse.Namespace) -> SequenceOptions | None:
    """Return the values of the options of `add_sequence_options`; None if none of them was given."""
    from distsms.shards.sequence_rules import SequenceOptions

    options = from_arguments(SequenceOptions, args, spectra=tuple(args.spectrum))
    return None if options == SequenceOptions() else options


def span(text: str) -> tuple[int, int]:
    """Parse two positions such as 139:279."""
    positions = re.fullmatch(r"([0-9]{1,9})[:-]([0-9]{1,9})", text)
    if positions is None or not 1 <= int(positions[1]) <= int(positions[2]):
        raise argparse.ArgumentTypeError(f"{text!r} is not FROM:TO, two positions from 1, such as 139:279")
    return int(positions[1]), int(positions[2])


def format_columns(reports: Sequence[ColumnReport]) -> str:
    """Return a list of how columns are used, those with notes (?) first, and last the numbers if they are very many."""
    first = sorted(reports, key=lambda report: (not report.notes, report.taken_for == "number"))[:MOST_SHOWN]
    listed = {report.name for report in first}
    shown = [report for report in reports if report.name in listed]
    lines = [f"{'column':<{NAME_WIDTH}}  {'type':<10}  {'values':>11}  {'missing':>11}  {'features':>9}"]
    for report in shown:
        values = f"{'' if report.exact else '~'}{report.values:,}"
        features = f"{report.features:,}" if report.features else "left out"
        taken_for = f"{report.taken_for} ?" if report.features and report.notes else report.taken_for
        lines.append(
            f"{shorten(report.name):<{NAME_WIDTH}}  {taken_for:<10}  {values:>11}  {report.missing:>11,}  {features:>9}"
        )
    if rest := Counter(report.taken_for for report in reports if report.name not in listed):
        kinds = ", ".join(f"{number:,} {kind}" for kind, number in rest.items())
        in_all = sum(report.features for report in reports)
        lines.append(f"... and {rest.total():,} more ({kinds}); {in_all:,} features in all")
    wrapper = textwrap.TextWrapper(WIDTH, initial_indent="  ", subsequent_indent="    ", break_on_hyphens=False)
    for text, names in _notes(reports).items():
        more = f" and {len(names) - MOST_NAMED:,} more" if len(names) > MOST_NAMED else ""
        lines += wrapper.wrap(f"{', '.join(names[:MOST_NAMED])}{more}: {text}")
    return "\n".join(lines)


def _notes(reports: Sequence[ColumnReport]) -> dict[str, list[str]]:
    """Return the notes, each with the names of its columns. A note of several columns says COLUMN for their names."""
    alike: dict[str, list[tuple[str, str]]] = {}
    for report in reports:
        for note in report.notes:
            alike.setdefault(_general(note, report.name), []).append((printable(report.name) or "(no name)", note))
    return {printable(same[0][1] if len(same) == 1 else key): [name for name, _ in same] for key, same in alike.items()}


def _general(note: str, name: str) -> str:
    """Return a note with COLUMN in the place of its column's name in options."""
    parts = note.parts if isinstance(note, Message) else (note,)
    options = (
        (part, part) if isinstance(part, str) else (part.command, part.command.removesuffix(f" {name}"))
        for part in parts
    )
    return "".join(text if rest == text else f"{rest} COLUMN" for text, rest in options)


def shorten(name: str) -> str:
    """Return a name that fits into the table; "(no name)" for an empty one."""
    name = printable(name) or "(no name)"
    return name if len(name) <= NAME_WIDTH else name[: NAME_WIDTH - 3] + "..."
