"""Score rows with a model, in the order of the input."""

from __future__ import annotations

import argparse
from typing import TYPE_CHECKING

from distsms.cli.types import add_threads
from distsms.errors import EXIT_OK

if TYPE_CHECKING:
    from distsms.parallel.communicator import Communicator

NAME = "predict"
USAGE = "MODEL DATA|FILE [options]"
EPILOG = """\
The score of a row is <w, x> + bias; higher is more positive. Text output has one score a line, with all its digits; a
name that ends in .h5 gives an HDF5 file with the dataset `scores`. Where the rows have ids (`distsms shard --id`, or
--id here) each score comes after its row's id and a tab, or with the dataset `ids`. DATA may be a data set or any file
that `distsms shard` reads: rows as they were before any normalization, tables by the names of their columns, in any
order. Labels are ignored; only svmlight text must have some (0 will do). Scores are written as they come.

examples:
  distsms predict model.h5 new.svm --output scores.txt
  distsms predict model.h5 new.parquet --id customer --output scores.txt
  mpirun -n 8 distsms predict model.h5 data/new --output scores.h5
"""


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """What `distsms predict` takes."""
    parser.add_argument("model", metavar="MODEL", help="a model written by `distsms train`")
    parser.add_argument("data", metavar="DATA|FILE", help="a data set made by `distsms shard`, or a file that it reads")
    parser.add_argument(
        "--output", default="-", metavar="FILE", help="scores.txt or scores.h5; - is standard output (default)"
    )
    parser.add_argument(
        "--id", metavar="COLUMN", help="of a file: names of the rows (default: as in training, if there)"
    )
    parser.add_argument("--ignore-new-features", action="store_true", help="leave out columns that the model lacks")
    base = parser.add_mutually_exclusive_group()
    text = "the svmlight file counts columns from %d (default: as the model's training data did)"
    base.add_argument("--zero-based", action="store_true", default=None, help=text % 0)
    base.add_argument("--one-based", action="store_false", dest="zero_based", default=None, help=text % 1)
    add_threads(parser)


def run(args: argparse.Namespace, comm: Communicator) -> int:
    """Score, and write as the scores come. Collective."""
    from distsms.errors import InputError
    from distsms.inference import inputs, model, output, scoring

    with comm.together():
        judge = model.load(args.model)
        if args.output != "-":
            model.check_writable(args.output)
            inputs.check_distinct(args.output, args.data, args.model)
            if model.is_model(args.output):
                raise InputError(f"{args.output}: is a model, which the scores would replace; name another file")
    how = inputs.InputOptions(args.ignore_new_features, False, args.zero_based, id=args.id)
    output.write(args.output, scoring.score_in_parts(judge, args.data, comm, how), comm)
    return EXIT_OK
