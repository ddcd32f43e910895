"""The command `distsms predict`."""

from __future__ import annotations

import argparse
import sys
import time
from typing import TYPE_CHECKING

from distsms.base.errors import EXIT_OK
from distsms.cli.types import COMMON, MODEL, NEW_COLUMNS, THREADS, add_options, count, from_arguments

if TYPE_CHECKING:
    from distsms.base.communicator import Communicator

USAGE = "MODEL DATA|FILE [options]"
EPILOG = """\
The score of a row x is <w, x> + bias; the higher it is, the more likely the row is positive. The end of the output
file's name says which format is written:

  .csv .tsv      a header, and for each row a line with id and score
  .parquet .pq   the columns id and score
  .npy           the scores alone
  .h5 .hdf5      HDF5 with the datasets scores and ids
  any other      text without a header: the score of a row in each line, after its id and a tab

The ids are those of `distsms shard --id`, or of --id here; if the rows have none, only scores are written. Progress and
the closing line go to standard error.

If the share of positive rows differs from the training data's, a warning says what the threshold of --labels is worth,
and how to correct the probabilities of --probability.

The data are a data set, or a file of any format that `distsms shard` reads. Rows are given as they were before any
normalization, and the columns of a table may come in any order. Labels are ignored, but svmlight text must have one in
each line (such as 0).

examples:
  distsms predict model.h5 new.svm --output scores.txt
  distsms predict model.h5 new.parquet --id customer --output scores.txt
  distsms predict model.h5 new.svm --labels --probability --output new.csv
  mpirun -n 8 distsms predict model.h5 data/new --output scores.h5
"""

OPTIONS = f"""\
{MODEL}
data DATA|FILE  A data set made by `distsms shard`, or a file of a format that it reads.
--output FILE  The file to write, such as scores.csv; - is standard output (default: -).
--labels  Also write the class of each row, as in the training data: positive where the score is at least the threshold
    that `distsms path --at` or `distsms train --at` found.
--probability  Also write the probability that a row is positive, for models of `--calibrate` or `--measure logistic`.
--reasons K  Also write the K columns of the table that move the score of the row most, with what each adds to the score
    or takes from it, compared with the mean training row: reason_1, reason_2, ...
--id COLUMN  The column that names the rows (default: the one of the training data, if the file has it).
{NEW_COLUMNS}
--verbatim  Write ids as they are (default: in .csv and .tsv with a leading ' where a spreadsheet would take them for
    formulas, and in all text with escapes such as \\x1b for what a terminal would act on).
--quiet  Print neither progress nor a closing line.
{THREADS}
"""


def add_arguments(parser: argparse.ArgumentParser) -> None:
    others = {**COMMON, "--output": {"default": "-"}, "--reasons": {"type": count, "default": 0}}
    add_options(parser, OPTIONS, others)


def run(args: argparse.Namespace, comm: Communicator) -> int:
    """Score the rows part by part, and write the scores of each part at once. **Collective.**"""
    from distsms.base.formatting import format_rows
    from distsms.cli.progress import Progress
    from distsms.cli.terminal import is_watched, print_warning
    from distsms.models.inputs import InputOptions
    from distsms.workflow.predict import predict
    from distsms.workflow.requests import PredictRequest

    start, speaks = time.perf_counter(), comm.is_root and not args.quiet
    progress = Progress("scoring", "parts", sys.stderr if speaks else None, is_watched(sys.stderr))

    reading = from_arguments(InputOptions, args, labelled=False)
    request = from_arguments(PredictRequest, args, reading=reading)
    predicted = predict(request, comm, progress)
    progress.close()
    for note in predicted.notes if comm.is_root else ():
        print_warning(note)
    for warning in predicted.warnings if comm.is_root else ():
        print_warning(warning, args.program)
    if speaks:
        seconds, place = time.perf_counter() - start, "standard output" if args.output == "-" else args.output
        scored = f"{format_rows(predicted.n, ',')} scored in {seconds:.2f} s"
        print(f"{scored}; written to {place}", file=sys.stderr, flush=True)
    return EXIT_OK
