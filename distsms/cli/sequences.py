"""The options that say how sequences of letters become features."""

from __future__ import annotations

import argparse
import re
from typing import TYPE_CHECKING

from distsms.cli.types import whole

if TYPE_CHECKING:
    from distsms.shards.sequence_rules import SequenceOptions

NAMES = ["fasta", "labels", "alphabet", "window", "degree", "spectrum", "spectrum_degree"]
"""The options of `add_sequence_options`, by their names in argparse's namespace."""


def add_sequence_options(parser: argparse._ActionsContainer) -> None:
    """Add the options for sequences."""
    kind = parser.add_mutually_exclusive_group()
    kind.add_argument(
        "--strings",
        dest="fasta",
        action="store_false",
        default=None,
        help="The files have lines LABEL SEQUENCE (default for names that end in .strings).",
    )
    kind.add_argument(
        "--fasta",
        action="store_true",
        default=None,
        help="The files are FASTA (default for .fa, .fasta, .fna and .faa). The label of a sequence follows label= in"
        " its header, or is the second of two words.",
    )
    parser.add_argument(
        "--labels", metavar="FILE", help="The labels of sequences in FASTA, in lines NAME LABEL; every rank holds them."
    )
    parser.add_argument(
        "--alphabet",
        choices=("dna", "rna", "protein"),
        default="dna",
        help="The letters of sequences. T and U are the same, and so are small and capital letters; k-mers with an"
        " ambiguous letter such as N count nothing, and any other character is an error (default: %(default)s).",
    )
    parser.add_argument(
        "--window",
        type=span,
        metavar="FROM:TO",
        help="Keep these positions of each sequence, counted from 1, both included (default: all).",
    )
    parser.add_argument(
        "--degree",
        type=whole,
        metavar="K",
        help="Make a feature for each position and each k-mer that begins there, k = 1 to K, with the weights of the"
        " weighted degree kernel: up to 8 for dna and rna, 4 for protein; 0 makes none (default: 5, for protein 3).",
    )
    parser.add_argument(
        "--spectrum",
        type=span,
        action="append",
        default=[],
        metavar="FROM:TO",
        help="Make a feature for each k-mer, which counts it in this region of the sequence, wherever it is there."
        " Positions are those of the whole sequence. May be repeated.",
    )
    parser.add_argument(
        "--spectrum-degree", type=whole, metavar="K", help="The largest k of --spectrum (default: that of --degree)."
    )


def sequence_options(args: argparse.Namespace) -> SequenceOptions | None:
    """Return the values of the options of `add_sequence_options`; None if none of them was given."""
    from distsms.shards.sequence_rules import SequenceOptions

    named = {name: getattr(args, name) for name in NAMES if name != "spectrum"}
    options = SequenceOptions(**named, spectra=tuple(args.spectrum))
    return None if options == SequenceOptions() else options


def span(text: str) -> tuple[int, int]:
    """Parse two positions such as 139:279."""
    positions = re.fullmatch(r"([0-9]{1,9})[:-]([0-9]{1,9})", text)
    if positions is None or not 1 <= int(positions[1]) <= int(positions[2]):
        raise argparse.ArgumentTypeError(f"{text!r} is not FROM:TO, two positions from 1, such as 139:279")
    return int(positions[1]), int(positions[2])
