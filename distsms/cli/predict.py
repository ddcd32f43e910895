"""The command `distsms predict`."""

from __future__ import annotations

import argparse
import sys
from typing import TYPE_CHECKING, Any

from distsms.base.errors import EXIT_OK
from distsms.cli.types import add_new_columns, add_threads

if TYPE_CHECKING:
    from collections.abc import Iterator

    from distsms.base.typing import Floats
    from distsms.models.model import Model
    from distsms.models.output import ScoresPart
    from distsms.parallel.communicator import Communicator

USAGE = "MODEL DATA|FILE [options]"
EPILOG = """\
The score of a row x is <w, x> + bias; the higher it is, the more likely the row is positive. The end of the output
file's name says which format is written:

  .csv .tsv      a header, and for each row a line with id and score
  .parquet .pq   the columns id and score
  .npy           the scores alone
  .h5 .hdf5      HDF5 with the datasets scores and ids
  any other      text without a header: the score of a row in each line, after its id and a tab

The ids are those of `distsms shard --id`, or of --id here; the output calls their column as the table did. If the rows
have no ids, only scores are written. Scores in text are written with all digits that they have. Progress and the
closing line go to standard error.

With --labels, each row also gets its class, by the threshold that held-out folds support (`distsms path --at`,
`distsms train --at`); with --probability, the probability that it is positive (--calibrate of the same commands). The
columns are called label and probability, and in HDF5 labels and probabilities. If the share of rows that are labelled
positive, or the share of positive rows of a data set, differs from the training data's, a warning says what the
threshold then is worth. With --probability, the mean probability is compared with the training data's, and a warning
says how to correct the probabilities if only the share of positive rows has changed.

The data are a data set, or a file of any format that `distsms shard` reads. Rows are given as they were before any
normalization, and the columns of a table may come in any order. Labels are ignored, but svmlight text must have one in
each line (such as 0). Scores are written while the rest is still being computed.

examples:
  distsms predict model.h5 new.svm --output scores.txt
  distsms predict model.h5 new.parquet --id customer --output scores.txt
  distsms predict model.h5 new.svm --labels --probability --output new.csv
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
        help="The file to write, such as scores.csv; - is standard output (default: -).",
    )
    parser.add_argument(
        "--labels",
        action="store_true",
        help="Also write the class of each row, as in the training data: positive where the score is at least the"
        " threshold that `distsms path --at` or `distsms train --at` found.",
    )
    parser.add_argument(
        "--probability",
        action="store_true",
        help="Also write the probability that the row is positive, for models of `--calibrate` or `--measure"
        " logistic`.",
    )
    parser.add_argument(
        "--id",
        metavar="COLUMN",
        help="The column that names the rows (default: the one of the training data, if the file has it).",
    )
    add_new_columns(parser)
    parser.add_argument(
        "--verbatim",
        action="store_true",
        help="Write ids as they are (default: in .csv and .tsv with a leading ' where a spreadsheet would take them for"
        " formulas, and in all text with escapes such as \\x1b for what a terminal would act on).",
    )
    parser.add_argument("--quiet", action="store_true", help="Print neither progress nor a closing line.")
    add_threads(parser)


def run(args: argparse.Namespace, comm: Communicator) -> int:
    """Score the rows part by part, and write the scores of each part at once. **Collective.**"""
    import time

    import numpy as np

    from distsms.base.errors import InputError
    from distsms.cli.progress import Progress
    from distsms.cli.terminal import fold, is_watched
    from distsms.ingest.file_names import files_of
    from distsms.ingest.formats.registry import format_of
    from distsms.models import inputs, model, output, scoring, shift

    start = time.perf_counter()
    with comm.fail_together():
        loaded = model.load(args.model)
        further = _further(args, loaded)
        further(np.empty(0))  # says so if the model lacks what is asked for
        if args.output != "-":
            output.check_ending(args.output, list(further(np.empty(0))))
            model.check_writable(args.output)
            inputs.check_distinct(args.output, args.data, args.model)
            if model.is_model(args.output):
                raise InputError(f"{args.output}: is a model, which the scores would replace; name another file")
    options = inputs.InputOptions(args.ignore_new_features, False, args.zero_based, id=args.id)
    speaks = comm.is_root and not args.quiet
    progress = Progress("scoring", "parts", sys.stderr if speaks else None, is_watched(sys.stderr))
    sums = np.zeros(4)
    parts = _summing(scoring.score_in_parts(loaded, args.data, comm, options, progress), loaded, args, sums)
    n = output.write(args.output, parts, comm, inputs.id_name(loaded, args.data, options), args.verbatim, further)
    progress.close()
    called, of_p, of_squares, named = comm.sum(sums).tolist()
    positive, warnings = _positive(args.data) if args.labels or args.probability else None, []
    missing = loaded.table.id if loaded.table is not None and n and not named else None
    if missing is not None and format_of(files_of(args.data)[0]) == "table":
        warnings.append(
            f"{args.data}: has no column {missing!r}, which names the rows in the training data, so the output has the"
            " scores without names; --id COLUMN takes another column"
        )
    if args.labels:
        warnings.append(shift.describe(loaded.info, int(called), n, positive))
    if args.probability and n:
        spread = of_squares / n - (of_p / n) ** 2
        warnings.append(shift.describe_probabilities(loaded.info, of_p / n, spread, n, positive))
    for warning in warnings:
        if warning and comm.is_root:
            print(fold(f"distsms predict: warning: {warning}"), file=sys.stderr, flush=True)
    if speaks:
        seconds, place = time.perf_counter() - start, "standard output" if args.output == "-" else args.output
        print(f"{n:,} rows scored in {seconds:.2f} s; written to {place}", file=sys.stderr, flush=True)
    return EXIT_OK


def _further(args: argparse.Namespace, loaded: Model) -> Any:
    """Return the function that computes the further columns from scores."""
    wanted = {"label": loaded.labels} if args.labels else {}
    if args.probability:
        wanted["probability"] = loaded.probabilities
    return lambda scores: {name: of_scores(scores) for name, of_scores in wanted.items()}


def _summing(
    parts: Iterator[ScoresPart], loaded: Model, args: argparse.Namespace, sums: Floats
) -> Iterator[ScoresPart]:
    """Yield the parts, and add to `sums`: how many rows are called positive, p, p^2, and how many rows have names."""
    for scores, ids in parts:
        sums[0] += (scores >= loaded.threshold).sum()
        if args.probability:
            p = loaded.probabilities(scores)
            sums[1:3] += p.sum(), p @ p
        sums[3] += len(ids or ())
        yield scores, ids


def _positive(data: str) -> float | None:
    """Return the share of positive rows of a data set; None for files and for data sets of one class."""
    from distsms.ingest.file_names import is_data_set
    from distsms.shards.dataset import read_manifest

    if not is_data_set(data):
        return None
    manifest = read_manifest(data)
    return manifest.n_pos / manifest.n if manifest.n_pos and manifest.n_neg else None
