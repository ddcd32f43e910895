"""The command `distsms shard`."""

from __future__ import annotations

import argparse
from typing import TYPE_CHECKING

from distsms.cli.columns import add_column_options, add_list, column_options, format_columns
from distsms.cli.sequences import add_sequence_options, sequence_options
from distsms.cli.types import BY, add_compress, add_old_names, add_output_folder, count, shares, whole
from distsms.errors import EXIT_OK, InputError

if TYPE_CHECKING:
    from collections.abc import Sequence

    from distsms.cli.terminal import Speaker
    from distsms.data.formats.column_options import ColumnReport
    from distsms.data.shards.manifest import Manifest
    from distsms.parallel.communicator import Communicator

MOSTLY = 0.8  # from this share of positive rows on, the wrong label may have been used as the positive one
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


def run(
    args: argparse.Namespace,
    comm: Communicator,
    brief: bool = False,
    warnings: list[str] | None = None,
    durable: bool = True,
    in_memory: bool = False,
) -> int:
    """Convert the files, and print what they contain. **Collective.**

    With `brief`, only the list of columns, the sizes of the parts, and warnings are printed. If `warnings` is given,
    warnings are put there instead. `durable` and `in_memory` are those of `convert`.
    """
    import time
    from pathlib import Path

    from distsms.cli.options import speaker
    from distsms.cli.progress import TaskProgress
    from distsms.data.convert import WriteOptions, convert
    from distsms.data.file_names import expand
    from distsms.data.formats.base import ReadOptions
    from distsms.data.groupby import doubles_warning
    from distsms.data.shards.dataset import read_manifest
    from distsms.data.splits import Splitter, usual_split
    from distsms.utils.formatting import format_bytes

    start = time.perf_counter()
    verbose = comm.is_root and not args.quiet
    progress = TaskProgress(verbose)

    def show_text(text: str) -> None:
        progress.close()
        if verbose:
            print(text, flush=True)

    def show(reports: Sequence[ColumnReport]) -> None:
        show_text(format_columns(reports))

    if args.split_by and args.split is None:
        raise InputError("--split-by says what --split keeps together; give --split, too", everywhere=True)
    by = args.split_by or usual_split(args.group, args.time)
    split = None if args.split is None else Splitter(args.split, args.seed, by)
    with comm.fail_together():
        names = expand(args.input)
    reading = ReadOptions(
        zero_based=args.zero_based,
        label=args.label,
        positive=args.positive,
        id=args.id,
        drop=tuple(args.drop),
        group=args.group,
        time=args.time,
        weight=args.weight,
        keep=tuple(args.keep),
        columns=column_options(args),
        decimal=args.decimal,
        thousands=args.thousands,
        separator=args.separator,
        missing=tuple(args.missing),
        not_missing=tuple(args.not_missing),
        sequences=sequence_options(args),
    )
    writing = WriteOptions(
        n_shards=args.shards,
        n_features=args.columns,
        dtype=args.dtype,
        compression=args.compression,
        normalize=args.normalize,
        split=split,
        weight_file=args.weight_file,
        durable=durable,
        in_memory=in_memory,
    )
    manifest = convert(
        names,
        args.output,
        comm,
        reading,
        writing,
        like=args.like,
        overwrite=args.overwrite,
        progress=progress,
        show_columns=show,
        say=show_text,
    )
    progress.close()
    say = speaker(verbose)
    if verbose:
        seconds = time.perf_counter() - start
        n_bytes = sum(file["bytes"] for file in manifest.source)
        parts = [manifest] if split is None else [read_manifest(Path(args.output, name)) for name in split.names]
        for part in parts:
            if not brief:
                _print_summary(part, say)
            for warning in _warnings(part, args.positive is not None):
                say.warn(warning) if warnings is None else warnings.append(warning)
        if brief and len(parts) == 2:
            say(f"rows      {_describe_parts(*parts)}")
        if args.like and (warning := _lost_weights(read_manifest(args.like), manifest)):
            say.warn(warning)
        if hint := _time_hint(manifest):
            say(hint)
        if manifest.split is not None and (left := manifest.split["of"] - sum(part.n for part in parts)):
            say(f"  left out  {left} of {manifest.split['of']} rows: the fractions add up to {sum(args.split):g}")
        if not brief:
            say(
                f"  from      {format_bytes(n_bytes)} in {seconds:.2f} s on {comm.size} rank(s), "
                f"{format_bytes(n_bytes / seconds)}/s"
            )
            for part in parts[:1]:
                if doubles := doubles_warning(part):
                    say.warn(doubles)
    say.close()
    return EXIT_OK


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
    from distsms.data.groupby import describe

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
    from distsms.data.groupby import describe

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


def _warnings(manifest: Manifest, positive_named: bool) -> list[str]:
    """Return what is odd about the labels and the split of a data set."""
    found = []
    if not (manifest.n_pos and manifest.n_neg):
        found.append("there is only one class: such data can be scored, but not be used to train or to evaluate")
    elif manifest.weight and not (manifest.weight["positive"] and manifest.weight["negative"]):
        sign = "negative" if manifest.weight["positive"] else "positive"
        found.append(
            f"all {sign} rows have weight 0, or vanish beside the largest weight: such data can be scored, but not be "
            "used to train or to evaluate"
        )
    elif manifest.n_pos > MOSTLY * manifest.n and not positive_named:
        positive, negative = (_label_names(manifest, sign) for sign in ("+1", "-1"))
        found.append(
            f"{manifest.n_pos / manifest.n:.1%} of the rows count as positive (label {positive}); if you look for the "
            f"rare class, name its label: --positive {negative}"
        )
    if manifest.split is not None and manifest.split.get("by") == "groups" and manifest.time is not None:
        found.append(
            "whole groups were held out, so some training rows are later than test rows; --split-by time holds out the "
            "latest rows"
        )
    return found


def _label_names(manifest: Manifest, sign: str) -> str:
    from distsms.data.labels import format_labels, original_labels

    return format_labels(original_labels(manifest.label_map, sign))
