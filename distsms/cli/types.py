"""Types of command-line arguments, whose errors say what is expected, and options that several commands have."""

from __future__ import annotations

import argparse
import math
import re
from collections.abc import Callable, Mapping
from dataclasses import fields
from typing import Any, TypeVar

from distsms.base import measures
from distsms.base.errors import InputError
from distsms.base.formatting import parse_bytes, parse_duration
from distsms.base.measures import Condition, Measure

T = TypeVar("T")


def _of_numbers(allowed: Callable[[float], bool], expected: str) -> Callable[[str], float]:
    """Return a type of arguments: finite numbers that are allowed."""

    def parse(text: str) -> float:
        value = _number(text)
        if not (math.isfinite(value) and allowed(value)):
            raise argparse.ArgumentTypeError(f"{text!r} is not {expected}")
        return value

    return parse


positive = _of_numbers(lambda value: value > 0, "a positive number, such as 0.01 or 1e-2")
not_negative = _of_numbers(lambda value: value >= 0, "a number of at least 0")
finite = _of_numbers(lambda value: True, "a finite number")
share = _of_numbers(lambda value: 0 < value < 1, "between 0 and 1, as 0.95 is")


def count(text: str, least: int = 1) -> int:
    """Parse a whole number of at least `least`; 1e6 is understood."""
    value = _number(text)
    if not (least <= value <= 2**62 and value == int(value)):
        raise argparse.ArgumentTypeError(f"{text!r} is not a whole number of at least {least}")
    return int(value)


def whole(text: str) -> int:
    return count(text, 0)


def shares(text: str) -> tuple[float, ...]:
    """Parse numbers between 0 and 1, such as 0.8,0.2."""
    parts = [_number(part) for part in text.split(",")]
    if len(parts) > 1 and all(1 <= part < math.inf for part in parts):
        proposed = ",".join(f"{part / sum(parts):.4g}" for part in parts)
        raise argparse.ArgumentTypeError(f"{text!r}: shares are between 0 and 1: write {proposed}")
    return tuple(share(part) for part in text.split(","))


def checked(check: Callable[[str], T]) -> Callable[[str], T]:
    """Return a type of arguments, of a function that returns a value or raises InputError."""

    def parse(text: str) -> T:
        try:
            return check(text)
        except InputError as error:
            raise argparse.ArgumentTypeError(str(error)) from error

    return parse


condition = checked(Condition.parse)
condition_of_models = checked(lambda text: Condition.parse(text, measures.CONDITIONS_OF_MODELS))
"""Conditions for thresholds, such as precision>=0.9, and those that a model can keep."""
measure, memory, duration = checked(Measure.parse), checked(parse_bytes), checked(parse_duration)
ranking_measure, path_measures = checked(measures.check_ranking), checked(measures.check_path_measures)
chooser = checked(measures.check_chooser)
"""The measures that `baseline` and `path` train for, and those of held-out rows that can choose a lambda."""


def patience(text: str) -> float:
    """Parse a duration, or 0 for none."""
    return 0.0 if re.fullmatch(r"0+(\.0*)?[smhd]?", text) else duration(text)


def from_arguments(kind: type[T], args: argparse.Namespace, **others: Any) -> T:
    """Return a dataclass whose fields are the arguments that have their names, with `others` in their place."""
    named = {each.name: getattr(args, each.name) for each in fields(kind) if each.name in args}  # type: ignore[arg-type]
    return kind(**named | others)


TYPES: dict[str, Callable[[str], Any]] = {"N": count, "P": count, "TIME": duration, "SIZE": memory, "GAP": positive}
"""The types of options by what their help says that they take; others take a text."""
ARGUMENT = re.compile(
    r"^(?:([a-z -]+):((?:\n +.*)*)|(either |or )?([a-z-][a-z0-9-]*)(?: (\S+))?  (.*(?:\n +.*)*))$", re.MULTILINE
)
"""The heading of a group with its description, or an argument."""


def add_options(
    parser: argparse._ActionsContainer, text: str, others: Mapping[str, Any] = {}
) -> argparse._ActionsContainer:
    """Add the arguments of a text, which has them as the help shows them: the name, what it takes (nothing for a flag),
    two spaces, and the help, whose further lines begin with spaces. Those with `either` and `or` exclude each other,
    and those behind a heading are a group; the last one is returned. `others` are what else argparse is told of an
    argument: its default, choices, or a type that is not that of `TYPES`.
    """
    if rest := ARGUMENT.sub("", text).strip():
        raise ValueError(f"no argument: {rest}")
    group = parser
    for heading, description, choice, name, metavar, words in ARGUMENT.findall(text):
        if heading:
            group = parser.add_argument_group(heading, " ".join(description.split()) or None)
            continue
        if choice == "either ":
            alternatives = group.add_mutually_exclusive_group()
        usual: dict[str, Any] = {"metavar": metavar, "type": TYPES.get(metavar)} if metavar else {}
        more = others.get(name, {} if metavar else {"action": "store_true"})
        (alternatives if choice else group).add_argument(name, **usual | more, help=" ".join(words.split()))
    return group


class _OutputFolder(argparse.Action):
    """The option --output: it sets the folder, and the positional argument OUTDIR is then not required."""

    def __call__(
        self, parser: argparse.ArgumentParser, namespace: argparse.Namespace, values: Any, _: Any = ""
    ) -> None:
        setattr(namespace, self.dest, values)
        for action in parser._actions:
            if action.dest == "output":
                action.required = False


def take_folder(args: argparse.Namespace) -> str | None:
    """Take the folder that is named by --output for OUTDIR; return what is wrong if both are given, or None."""
    if args.output is not None and args.folder is not None:
        return f"OUTDIR is given twice: {args.output} and --output {args.folder}"
    args.output = args.output or args.folder
    return None


COMMON: dict[str, dict[str, Any]] = {
    "--compress": {"action": "store_const", "dest": "compression", "const": "blosc-lz4", "default": "none"},
    "--ignore-new-features": {"dest": "ignore_new", "action": "store_true"},
    "--missing-group": {"choices": ("own", "drop"), "default": "own"},
    "--output": {"dest": "folder", "action": _OutputFolder},  # where it is a folder of shards
    "--one-based": {"action": "store_false", "default": None, "dest": "zero_based"},
    "--zero-based": {"action": "store_true", "default": None},
}
"""What argparse is told of options that several commands have."""
MISSING_GROUP = """\
--missing-group  Rows of a table without a group: each is a group of its own, or they are dropped (default:
    %(default)s)."""
THREADS = """\
--threads N  How many threads each rank computes with; they share its memory (default: OMP_NUM_THREADS, or else 1)."""
"""For the commands that compute scores. The program sets the number before it loads numpy."""
WRITING = """\
--compress  Compress the files by Blosc's LZ4, for slow disks. It needs numcodecs (pip install 'distsms[codecs]').
--overwrite  Replace the data set in OUTDIR, if there is one."""
MODEL = "model MODEL  A model written by `distsms train`."
NEW_COLUMNS = """\
--ignore-new-features  Leave out columns that the model lacks, instead of refusing them.
either --zero-based  The svmlight file counts columns from 0 (default: as the training data did).
or --one-based  The svmlight file counts columns from 1 (default: as the training data did)."""
OUTPUT_FOLDER = """\
output OUTDIR  The folder to make: it gets the shards and their manifest.json.
--output OUTDIR  Another way to name the folder."""


def add_old_names(parser: argparse.ArgumentParser, **old: str) -> None:
    """Accept older names of options, which the help does not show: an old and a new one, as in `out="output"`."""
    for name, new in old.items():
        action = parser._option_string_actions[f"--{new}"]
        parser._option_string_actions[f"--{name.replace('_', '-')}"] = action


def _number(text: str) -> float:
    try:
        return float(text)
    except ValueError:
        return math.nan
