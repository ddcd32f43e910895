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
The score of a row is <w, x> + bias; a higher score is more positive. Text output has one score in each line, with all
its digits. If the name of the output ends in .h5, it is an HDF5 file with the dataset `scores`. Where the rows have
ids (by `distsms shard --id`, or --id here), each line begins with the id and a tab, or the HDF5 file has a dataset
`ids`.

The data are a data set, or a file of any format that `distsms shard` reads. Rows are given as they were before any
normalization, and the columns of a table may come in any order. Labels are ignored; only svmlight text must have some
(0 will do). Scores are written as they are computed.

examples:
  distsms predict model.h5 new.svm --output scores.txt
  distsms predict model.h5 new.parquet --id customer --output scores.txt
  mpirun -n 8 distsms predict model.h5 data/new --output scores.h5
"""


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Add the arguments of `distsms predict`."""
    parser.add_argument("model", metavar="MODEL", help="A model written by `distsms train`.")
    parser.add_argument(
        "data", metavar="DATA|FILE", help="A data set made by `distsms shard`, or a file of a format that it reads."
    )
    parser.add_argument(
        "--output",
        default="-",
        metavar="FILE",
        help="The file to write, text or (.h5) HDF5; - is standard output (default: -).",
    )
    parser.add_argument(
        "--id",
        metavar="COLUMN",
        help="The column of a file with the names of the rows (default: as in training, if it is there).",
    )
    parser.add_argument(
        "--ignore-new-features",
        action="store_true",
        help="Leave out columns that the model lacks, instead of refusing them.",
    )
    base = parser.add_mutually_exclusive_group()
    text = "The svmlight file counts columns from %d (default: as the training data did)."
    base.add_argument("--zero-based", action="store_true", default=None, help=text % 0)
    base.add_argument("--one-based", action="store_false", dest="zero_based", default=None, help=text % 1)
    add_threads(parser)


def run(args: argparse.Namespace, comm: Communicator) -> int:
    """Score the rows, and write the scores as they are computed. **Collective.**"""
    from distsms.errors import InputError
    from distsms.inference import inputs, model, output, scoring

    with comm.fail_together():
        loaded = model.load(args.model)
        if args.output != "-":
            model.check_writable(args.output)
            inputs.check_distinct(args.output, args.data, args.model)
            if model.is_model(args.output):
                raise InputError(f"{args.output}: is a model, which the scores would replace; name another file")
    options = inputs.InputOptions(args.ignore_new_features, False, args.zero_based, id=args.id)
    output.write(args.output, scoring.score_in_parts(loaded, args.data, comm, options), comm)
    return EXIT_OK
