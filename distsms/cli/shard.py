"""The command `distsms shard`."""

from __future__ import annotations

import argparse
import time
from dataclasses import fields
from typing import TYPE_CHECKING, Any

from distsms.base.choices import TOGETHER
from distsms.base.errors import EXIT_OK
from distsms.cli import columns, types
from distsms.cli.columns import LIST
from distsms.cli.terminal import Speaker
from distsms.cli.types import add_old_names, add_options, shares, whole

if TYPE_CHECKING:
    from distsms.base.communicator import Communicator
    from distsms.workflow.requests import ShardRequest

USAGE = "INPUT... OUTDIR [options]"
EPILOG = """\
The format follows from the end of the name: .csv and .tsv (also followed by .gz, .bz2, .xz or .zst), .parquet and .pq,
.npy, .npz (of NumPy, or a CSR matrix of SciPy), .h5ad, .fa and .fasta, and .strings (lines LABEL SEQUENCE). Every other
file is read as svmlight text, unless an option for sequences is given. CSV and Parquet need pyarrow (pip install
'distsms[tables]').

In tables, --label names the column of labels, and a list shows how every other column is treated: numbers are one
feature; words become a feature of 0 and 1 for each category; a date becomes a number and features for month, weekday
and hour; ids and text are left out unless --hash names them. Missing numbers are replaced by the mean, and get a
feature of their own. The rules are kept with the data set and in the model, for later tables.

Sequences of DNA, RNA or protein, all of one length, are kept as letters, and every pass over the rows makes the
features from them: a part with weighted degree features (--degree) and one for each --spectrum, which count the same.

The labels +1/-1, 1/0, 1/2, true/false, yes/no, y/n and positive/negative are understood; for others --positive says
which one is positive, and all others are negative. Text counts columns from 1 unless --zero-based is given. A fault in
the input stops the conversion with a message that names file and line (or row), and no data set is left behind.

examples:
  distsms shard train.svm data/train
  mpirun -n 8 distsms shard part-*.svm.gz data/train --dtype float32
  distsms shard adult.csv data/train --label income --positive '>50K' --categorical job --min-count 20
  distsms shard test.csv data/test --like data/train
  distsms shard all.svm data --split 0.8,0.2 --seed 1
  distsms shard visits.csv data/visits --label bought --group user --time day
  distsms shard payments.csv data/payments --label isFraud --weight amount
  distsms shard cells.h5ad data/cells --label cell_type --positive 'B cell' --id _index
  distsms shard X.npy data/train --label y.npy
  distsms shard sites.fa data/sites --labels labels.txt --window 139:279 --degree 8
  distsms shard sites.txt data/sites --strings --degree 6 --spectrum 1:60 --spectrum 80:141
  distsms shard sites.fa data/sites --group chromosome
"""

ROWS = f"""\
input INPUT  Files of one format; their rows are taken in this order.
{types.OUTPUT_FOLDER}
--label COLUMN  The column of labels. For .npy and .npz: an array of the .npz file (default: y), or another .npy file.
--positive LABEL  The label of the positive class; all others are negative.
--id COLUMN  The column with names of the rows. They are kept, and `distsms predict` writes them.
--drop COLUMN  Leave out these columns of a table.
--group COLUMN  The column that says which rows belong together, such as a user, a day or a query; `qid` for svmlight
    text. For sequences, it is the NAME of words NAME=VALUE in the headers of FASTA or in comments after the sequence,
    and so are --time and --weight. It is kept for folds and splits, and is not a feature.
{types.MISSING_GROUP}
--time COLUMN  The column with the time of each row, as numbers or dates, for folds and splits. It is not a feature.
either --weight COLUMN  The column with the weight of each row, a number of at least 0: a row of weight 3 counts as
    three rows in training, measures and normalization, and a row of weight 0 is left out. It is not a feature.
or --weight-file FILE  A file with these weights, one on each line, in the order of the rows; for svmlight text, too.
--keep COLUMN  Use these columns, which --group, --time or --weight names, as features, too.
"""
OPTIONS = f"""\
--normalize  How training normalizes the rows: standard divides each column by its standard deviation, maxabs divides it
    by its largest absolute value, l2 scales each row to length 1. The files hold the rows as they were, and models
    score such rows. In tables, standard and maxabs leave features of 0 and 1 as they are (default: standard for CSV and
    Parquet, else none).
--like DATA  Take columns, categories, labels and normalization over from this data set.
--split F,F  Split the rows at random by these fractions, such as 0.8,0.2. Each part becomes a data set: OUTDIR/train
    and OUTDIR/test, or for more than two parts OUTDIR/part-1, OUTDIR/part-2 and so on.
--split-by  What --split keeps together: rows keeps nothing together, groups the rows of a group, doubles duplicate
    rows; with time the last part has the latest rows (default: groups with --group, time with --time alone, else rows).
--seed N  The seed of --split; another one gives other parts (default: %(default)s).
--zero-based  The svmlight text counts columns from 0, not from 1.
--columns P  The number of columns, if there are more than the text uses.
--shards N  The number of shards, in each part. There are more if their rows take too much memory (default: one for each
    128 MiB of text, equally many for each rank).
--dtype  The type of the values in the files; float32 takes half the space (default: %(default)s).
{types.WRITING}
--quiet  Print neither progress nor a summary.
"""


def add_arguments(parser: argparse.ArgumentParser) -> None:
    add_options(parser, ROWS, {**types.COMMON, "input": {"nargs": "+"}, "--drop": LIST, "--keep": LIST})
    columns.add_column_options(parser)
    columns.add_sequence_options(parser)
    others: dict[str, dict[str, Any]] = {
        "--normalize": {"choices": ("none", "standard", "maxabs", "l2")},
        "--split": {"type": shares},
        "--split-by": {"choices": TOGETHER},
        "--seed": {"type": whole, "default": 0},
        "--dtype": {"choices": ("float64", "float32"), "default": "float64"},
        "--zero-based": {"action": "store_true"},
    }
    add_options(parser, OPTIONS, types.COMMON | others)
    add_old_names(parser, n_features="columns")
    parser.set_defaults(check=_check)


def _check(args: argparse.Namespace) -> None:
    """If --output is given, treat the last word, which would be the folder otherwise, as one more input."""
    if args.folder is not None:
        args.input += [] if args.output is None else [args.output]
        args.output = args.folder


def reading_options(args: argparse.Namespace) -> dict[str, Any]:
    """Return how files are read, by the names of `ReadOptions`."""
    from distsms.ingest.options import ReadOptions

    named = {each.name: getattr(args, each.name) for each in fields(ReadOptions) if hasattr(args, each.name)}
    options = {name: tuple(value) if isinstance(value, list) else value for name, value in named.items()}
    return options | {"columns": columns.column_options(args), "sequences": columns.sequence_options(args)}


def run(args: argparse.Namespace, comm: Communicator) -> int:
    """Convert the files, and print what they contain. **Collective.**"""
    from distsms.cli import shard_text
    from distsms.workflow.shard import shard

    start, verbose = time.perf_counter(), comm.is_root and not args.quiet
    narrator, say = shard_text.ShardNarrator(verbose), Speaker(verbose)
    result = shard(_request(args), comm, narrator)
    narrator.close()
    if verbose:
        for manifest in result.data_sets:
            shard_text.show_summary(manifest, say)
        shard_text.show_split(result.data_sets, say)
        shard_text.show_rate(result.data_sets[0], time.perf_counter() - start, comm, say)
    say.close(result.warnings)
    return EXIT_OK


def _request(args: argparse.Namespace) -> ShardRequest:
    from distsms.ingest.options import ReadOptions, WriteOptions
    from distsms.workflow.requests import ShardRequest, Split

    return types.from_arguments(
        ShardRequest,
        args,
        data=args.input,
        reading=ReadOptions(**reading_options(args)),
        writing=types.from_arguments(WriteOptions, args, n_shards=args.shards, n_features=args.columns, split=None),
        split=Split(args.split, args.split_by, args.seed),
    )
