"""The command `distsms shard`."""

from __future__ import annotations

import argparse
from typing import TYPE_CHECKING

from distsms.base.errors import EXIT_OK, InputError
from distsms.cli.columns import add_column_options, add_list, column_options, format_columns
from distsms.cli.sequences import add_sequence_options, sequence_options
from distsms.cli.types import BY, add_compress, add_old_names, add_output_folder, count, shares, whole

if TYPE_CHECKING:
    from collections.abc import Sequence
    from typing import Any

    from distsms.cli.terminal import Speaker
    from distsms.parallel.communicator import Communicator
    from distsms.shards.column_options import ColumnReport
    from distsms.shards.manifest import Manifest

USAGE = "INPUT... OUTDIR [options]"
EPILOG = """\
The format follows from the end of the name: .csv and .tsv (also followed by .gz, .bz2, .xz or .zst), .parquet and .pq,
.npy, .npz (of NumPy, or a CSR matrix of SciPy), .h5ad, .fa and .fasta, and .strings (lines LABEL SEQUENCE). Every other
file is read as svmlight text, unless an option for sequences is given. CSV and Parquet need pyarrow (pip install
'distsms[tables]').

In tables, --label names the column of labels. Before the rows are written, a list shows how every other column is
treated. A column of numbers is one feature. A column of words becomes a feature of 0 and 1 for each category. A date
becomes a number and features for month, weekday and hour. Ids and text are left out unless --hash names them. A missing
number is replaced by the mean of its column; each column with missing values also gets a feature that says where they
are missing. These rules are kept with the data set and in the model, so that later tables are read in the same way.

Sequences of DNA, RNA or protein are kept as letters, and every pass over the rows makes the features from them. A row
has a part with the weighted degree features (--degree) and one for each --spectrum. Each part alone has length 1; all
count the same, and the whole row has length 1. All sequences have as many letters as the first.

The labels +1/-1, 1/0, 1/2, true/false, yes/no, y/n and positive/negative are understood; +1, 1, true, yes, y and
positive are positive. For other labels --positive says which one is positive, and all others are negative. Text counts
columns from 1 unless --zero-based is given. A compressed text file is read by one rank. A fault in the input stops the
conversion with a message that names file and line (or row), and no data set is left behind.

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


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Add the arguments of `distsms shard`."""
    parser.add_argument(
        "input", nargs="+", metavar="INPUT", help="Files of one format; their rows are taken in this order."
    )
    add_output_folder(parser)
    parser.add_argument(
        "--label",
        metavar="COLUMN",
        help="The column of labels. For .npy and .npz: an array of the .npz file (default: y), or another .npy file.",
    )
    parser.add_argument("--positive", metavar="LABEL", help="The label of the positive class; all others are negative.")
    parser.add_argument(
        "--id",
        metavar="COLUMN",
        help="The column with names of the rows. They are kept, and `distsms predict` writes them.",
    )
    add_list(parser, "--drop", "Leave out these columns of a table.")
    parser.add_argument(
        "--group",
        metavar="COLUMN",
        help="The column that says which rows belong together, such as a user, a day or a query; `qid` for svmlight"
        " text. For sequences, it is the NAME of words NAME=VALUE in the headers of FASTA or in comments after the"
        " sequence, and so are --time and --weight. It is kept for folds and splits, and is not a feature.",
    )
    parser.add_argument(
        "--time",
        metavar="COLUMN",
        help="The column with the time of each row, as numbers or dates. It is kept for folds and splits, and is not a"
        " feature.",
    )
    weight = parser.add_mutually_exclusive_group()
    weight.add_argument(
        "--weight",
        metavar="COLUMN",
        help="The column with the weight of each row, a number of at least 0: a row of weight 3 counts as three rows in"
        " training, measures and normalization, and a row of weight 0 is left out. It is not a feature.",
    )
    weight.add_argument(
        "--weight-file",
        metavar="FILE",
        help="A file with these weights, one on each line, in the order of the rows; for svmlight text, too.",
    )
    add_list(parser, "--keep", "Use these columns, which --group, --time or --weight names, as features, too.")
    add_column_options(parser)
    add_sequence_options(parser)
    parser.add_argument(
        "--normalize",
        choices=("none", "standard", "maxabs", "l2"),
        help="How training normalizes the rows: standard divides each column by its standard deviation, maxabs"
        " divides it by its largest absolute value, l2 scales each row to length 1. The files hold the rows as"
        " they were, and models score such rows. In tables, standard and maxabs leave features of 0 and 1 as they are"
        " (default: standard for CSV and Parquet, else none).",
    )
    parser.add_argument(
        "--like", metavar="DATA", help="Take columns, categories, labels and normalization over from this data set."
    )
    parser.add_argument(
        "--split",
        type=shares,
        metavar="F,F",
        help="Split the rows at random by these fractions, such as 0.8,0.2. Each part becomes a data set:"
        " OUTDIR/train and OUTDIR/test, or for more than two parts OUTDIR/part-1, OUTDIR/part-2 and so on.",
    )
    parser.add_argument(
        "--split-by",
        choices=BY,
        help="What --split keeps together: rows keeps nothing together, groups the rows of a group, doubles"
        " duplicate rows; with time the last part has the latest rows (default: groups with --group, time with"
        " --time alone, else rows).",
    )
    parser.add_argument(
        "--seed",
        metavar="N",
        type=whole,
        default=0,
        help="The seed of --split; another one gives other parts (default: %(default)s).",
    )
    parser.add_argument(
        "--zero-based", action="store_true", help="The svmlight text counts columns from 0, not from 1."
    )
    parser.add_argument(
        "--columns", type=count, metavar="P", help="The number of columns, if there are more than the text uses."
    )
    parser.add_argument(
        "--shards",
        type=count,
        metavar="N",
        help="The number of shards, in each part. There are more if their rows take too much memory (default: one"
        " for each 128 MiB of text, equally many for each rank).",
    )
    parser.add_argument(
        "--dtype",
        choices=("float64", "float32"),
        default="float64",
        help="The type of the values in the files; float32 takes half the space (default: %(default)s).",
    )
    add_compress(parser)
    parser.add_argument("--overwrite", action="store_true", help="Replace the data set in OUTDIR, if there is one.")
    parser.add_argument("--quiet", action="store_true", help="Print neither progress nor a summary.")
    add_old_names(parser, n_features="columns")
    parser.set_defaults(check=_check)


def _check(args: argparse.Namespace) -> None:
    """If --output is given, treat the last word, which would be the folder otherwise, as one more input."""
    if args.folder is not None:
        args.input += [] if args.output is None else [args.output]
        args.output = args.folder


def reading_options(args: argparse.Namespace) -> dict[str, Any]:
    """Return how files are read, by the names of `ReadOptions`."""
    lists = {name: tuple(getattr(args, name)) for name in ("missing", "not_missing", "drop", "keep")}
    names = ("positive", "zero_based", "decimal", "thousands", "separator", "label", "id", "group", "time")
    options = lists | {name: getattr(args, name) for name in (*names, "weight")}
    return options | {"columns": column_options(args), "sequences": sequence_options(args)}


class Shown:
    """Prints what `convert` reports as it goes on, on the root unless the user gave --quiet."""

    def __init__(self, verbose: bool) -> None:
        from distsms.cli.progress import TaskProgress

        self._verbose, self.progress = verbose, TaskProgress(verbose)

    def text(self, text: str) -> None:
        """Print a text below the progress."""
        self.progress.close()
        if self._verbose:
            print(text, flush=True)

    def columns(self, reports: Sequence[ColumnReport]) -> None:
        """Print the list of columns."""
        self.text(format_columns(reports))


def run(args: argparse.Namespace, comm: Communicator) -> int:
    """Convert the files, and print what they contain. **Collective.**"""
    import time
    from pathlib import Path

    from distsms.cli.options import speaker
    from distsms.ingest.convert import WriteOptions, convert
    from distsms.ingest.file_names import expand
    from distsms.ingest.formats.base import ReadOptions
    from distsms.shards.dataset import read_manifest
    from distsms.shards.groupby import doubles_warning, label_warnings
    from distsms.shards.splits import Splitter, usual_split

    start = time.perf_counter()
    verbose = comm.is_root and not args.quiet
    shown = Shown(verbose)
    if args.split_by and args.split is None:
        raise InputError("--split-by says what --split keeps together; give --split, too", everywhere=True)
    by = args.split_by or usual_split(args.group, args.time)
    split = None if args.split is None else Splitter(args.split, args.seed, by)
    with comm.fail_together():
        names = expand(args.input)
    manifest = convert(
        names,
        args.output,
        comm,
        ReadOptions(**reading_options(args)),
        WriteOptions(
            n_shards=args.shards,
            n_features=args.columns,
            dtype=args.dtype,
            compression=args.compression,
            normalize=args.normalize,
            split=split,
            weight_file=args.weight_file,
        ),
        like=args.like,
        overwrite=args.overwrite,
        progress=shown.progress,
        show_columns=shown.columns,
        say=shown.text,
    )
    shown.progress.close()
    say = speaker(verbose)
    if verbose:
        parts = [manifest] if split is None else [read_manifest(Path(args.output, name)) for name in split.names]
        show_summaries(parts, say)
        for part in parts:
            for warning in label_warnings(part, args.positive is not None):
                say.warn(warning)
        if args.like and (warning := _lost_weights(read_manifest(args.like), manifest)):
            say.warn(warning)
        show_split(parts, say)
        show_rate(manifest, time.perf_counter() - start, comm, say)
        if doubles := doubles_warning(parts[0]):
            say.warn(doubles)
    say.close()
    return EXIT_OK


def show_summaries(parts: Sequence[Manifest], say: Speaker) -> None:
    """Print what data sets contain."""
    for part in parts:
        _print_summary(part, say)


def show_split(parts: Sequence[Manifest], say: Speaker, brief: bool = False) -> None:
    """Print how the rows were split into parts; with `brief` also how many each has."""
    if brief and len(parts) == 2:
        say(f"rows      {_describe_parts(*parts)}")
    if hint := _time_hint(parts[0]):
        say(hint)
    split = parts[0].split
    if split is not None and (left := split["of"] - sum(part.n for part in parts)):
        say(f"  left out  {left} of {split['of']} rows: the fractions add up to {sum(split['fractions']):g}")


def show_rate(manifest: Manifest, seconds: float, comm: Communicator, say: Speaker) -> None:
    """Print how much was converted in how much time."""
    from distsms.base.formatting import format_bytes

    n_bytes = sum(file["bytes"] for file in manifest.source)
    say(
        f"  from      {format_bytes(n_bytes)} in {seconds:.2f} s on {comm.size} rank(s), "
        f"{format_bytes(n_bytes / seconds)}/s"
    )


def _lost_weights(like: Manifest, made: Manifest) -> str:
    """Return a warning if the other data set of --like has weights, and the one that was made has none; else ""."""
    if not like.weight or made.weight:
        return ""
    column = like.weight["column"]
    return (
        f"{like.directory} was made with weights from {column}; these rows have none, since --like does not take them"
        f" over. Give --weight {column} (or --weight-file) if they should have weights, too"
    )


def _time_hint(manifest: Manifest) -> str:
    """Return a line that proposes --time for a table with dates that was split at random, else ""."""
    by = (manifest.split or {}).get("by", "rows" if manifest.split else "time")
    dates = [report.name for report in manifest.columns or () if report.taken_for == "date"]
    if by not in ("rows", "doubles") or not dates or manifest.time is not None:
        return ""
    return (
        f"hint      the rows were split at random, though the table has dates; --time {dates[0]} would hold out the "
        "latest rows, as a model meets them"
    )


def _describe_parts(train: Manifest, test: Manifest) -> str:
    """Return how many rows are to train with and how many are held out, and how these were chosen."""
    from distsms.shards.groupby import describe

    by = (train.split or {}).get("by", "rows")
    how = {"rows": "at random", "groups": "by whole groups", "doubles": "at random, equal rows together"}
    if by == "time" and train.time is None:
        return f"{train.n:,} to train, and the last {test.n:,} held out to test, in the order of the files"
    if by == "time":
        return f"{train.n:,} to train, and the latest {test.n:,} held out to test ({describe(test)['time']})"
    return f"{train.n:,} to train, and {test.n:,} held out to test, {how[by]}"


def _print_summary(manifest: Manifest, say: Speaker) -> None:
    """Print what a data set contains."""
    from distsms.cli.progress import describe_files
    from distsms.shards.groupby import describe

    names = {sign: _label_names(manifest, sign) for sign in ("+1", "-1")}
    labels = ", ".join(f"{sign} is {label}" for sign, label in names.items() if label)
    say(f"{manifest.directory}: {manifest.n} rows, {manifest.p} columns, {manifest.describe_entries()}")
    say(f"  classes   {manifest.n_pos} positive, {manifest.n_neg} negative ({labels})")
    if manifest.table is not None:
        say(f"  columns   {manifest.table.describe()}")
        others = [about["column"] for about in (manifest.group, manifest.time, manifest.weight) if about]
        if unused := ", ".join(name for name in others if name in manifest.table.dropped):
            say(f"  apart     {unused}: no feature, unless you give --keep")
    if manifest.coded:
        say(f"  codes     {manifest.coded.describe()}")
    if manifest.normalization.kind != "none":
        which = "" if manifest.columns is None else ", but for features of 0 and 1"
        say(f"  training  normalized ({manifest.normalization.kind}){which}; the files hold the rows as they were")
    if manifest.split is not None:
        say(f"  split     by {manifest.split.get('by', 'rows')}: {manifest.n} of {manifest.split['of']} rows")
    say(f"  files     {describe_files(manifest)}")
    for name, description in describe(manifest).items():
        if name != "warning":
            say(f"  {name:<9} {description}")


def _label_names(manifest: Manifest, sign: str) -> str:
    from distsms.shards.labels import format_labels, original_labels

    return format_labels(original_labels(manifest.label_map, sign))
