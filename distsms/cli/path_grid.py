"""The options on measure, lambdas, l1 and folds that `path` and `baseline` have in common, and how they are parsed."""

from __future__ import annotations

import argparse
from typing import TYPE_CHECKING

from distsms.base.measures import CHOOSERS
from distsms.cli.types import BY, add_old_names, chooser, count, not_negative, positive, whole

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

USUAL = "1:1e-5"
"""The lambdas that are tried if the user gives none; `distsms path` adds more at an end where it finds the best one."""


def lambdas(text: str) -> list[float]:
    """Parse a positive number, or FROM:TO[:COUNT] with COUNT numbers evenly spaced in the logarithm.

    Without COUNT there is one number for each power of ten.
    """
    import math

    try:
        ends = [positive(end) for end in text.split(":")[:2]]
    except argparse.ArgumentTypeError as error:
        raise argparse.ArgumentTypeError(f"{error}, nor FROM:TO or FROM:TO:COUNT, as 1e-1:1e-7 is") from error
    if ":" not in text:
        return ends
    if text.count(":") > 2:
        raise argparse.ArgumentTypeError(f"{text!r} is not FROM:TO or FROM:TO:COUNT, as 1e-1:1e-7 is")
    first, last = math.log10(ends[0]), math.log10(ends[1])
    number = count(text.split(":")[2]) if text.count(":") == 2 else round(abs(first - last)) + 1
    steps = max(number - 1, 1)
    return [float(f"{10 ** (first + (last - first) * i / steps):.6g}") for i in range(number)]


def l1s(text: str) -> list[float]:
    """Parse a number of at least 0, or several positive ones as `lambdas` does."""
    return lambdas(text) if ":" in text else [not_negative(text)]


def grid(args: argparse.Namespace) -> list[float]:
    """Return the lambdas of `--lambdas`, or the usual ones if it was not given, from the largest to the smallest."""
    return sorted({lam for some in args.lambdas or [lambdas(USUAL)] for lam in some}, reverse=True)


def folds(text: str) -> int:
    """Parse a whole number of at least 2, or 0."""
    number = whole(text)
    if number == 1:
        raise argparse.ArgumentTypeError("1 fold would leave no rows to train on; give at least 2, or 0 for no folds")
    return number


_CHOOSERS = CHOOSERS.replace("%", "%%")  # as argparse wants it


def add_grid(parser: argparse.ArgumentParser, type: Callable[[str], str], names: Sequence[str]) -> None:
    """Add the options on measure, lambdas and folds, which `path` and `baseline` have in common.

    type : parses a measure that can be optimized. names : their names, for people.
    """
    parser.add_argument(
        "--lambdas",
        nargs="+",
        type=lambdas,
        metavar="LAMBDA",
        help="The weights of the regularizer to try: numbers, or FROM:TO for one at each power of ten, or"
        f" FROM:TO:COUNT for COUNT of them, evenly spaced in the logarithm (default: {USUAL}).",
    )
    parser.add_argument(
        "--measure",
        type=type,
        default="rocarea",
        metavar="NAME",
        help=f"What to optimize, and what chooses lambda: {', '.join(names)} (default: %(default)s).",
    )
    parser.add_argument(
        "--select",
        type=chooser,
        metavar="MEASURE",
        help=f"Choose lambda by another measure of the held-out rows: {_CHOOSERS}. K counts the rows of a fold"
        " (default: the measure that is optimized).",
    )
    parser.add_argument(
        "--folds",
        type=folds,
        default=5,
        metavar="K",
        help="The number of folds; 0 trains the path alone (default: %(default)s).",
    )
    parser.add_argument(
        "--folds-by",
        choices=BY,
        help="What the folds keep together: rows keeps nothing together, groups the rows of a group of `distsms"
        " shard --group`, doubles duplicate rows; with time, models are evaluated on rows that come later"
        " than those they are trained on (default: groups where the data have them, else rows).",
    )
    parser.add_argument(
        "--seed", metavar="N", type=whole, default=0, help="The seed of the folds (default: %(default)s)."
    )
    add_old_names(parser, **{"lambda": "lambdas"})
