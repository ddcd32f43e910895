"""Turn svmlight text, CSV, Parquet, NumPy, SciPy or AnnData files into a data set of HDF5 shards."""

from __future__ import annotations

import argparse
from typing import TYPE_CHECKING

from distsms.cli.types import BY, add_compress, count, shares, whole
from distsms.errors import EXIT_OK, InputError

if TYPE_CHECKING:
    from distsms.data.shards.manifest import Manifest
    from distsms.parallel.communicator import Communicator

NAME = "shard"
USAGE = "INPUT... OUTDIR [options]"
EPILOG = """\
The format follows from the name: .csv, .tsv (also .gz, .bz2, .xz, .zst), .parquet, .npy, .npz (NumPy's, SciPy's CSR),
.h5ad; all else is svmlight text. CSV and Parquet need pyarrow (pip install 'distsms[tables]').

Tables: --label names the label's column. A column of words becomes a 0/1 feature for each category, a missing value is
0 and has a feature of its own; the dictionary is kept with the data and goes into the model, which reads later tables
by it. Numbers are taken as they are.

Labels +1/-1, 1/0, 1/2 and true/false are understood (1 and true are positive); otherwise --positive says which label is
positive, and all others are negative. Text counts columns from 1 unless --zero-based. Compressed text is read as it
is, but by one rank for each file. A fault in the input stops the conversion with file and line (or row), and leaves
nothing behind.

examples:
  distsms shard train.svm data/train
  mpirun -n 8 distsms shard part-*.svm.gz data/train --dtype float32
  distsms shard adult.csv data/train --label income --positive '>50K' --normalize standard
  distsms shard test.csv data/test --like data/train
  distsms shard all.svm data --split 0.8,0.2 --seed 1
  distsms shard visits.csv data/visits --label bought --group user --time day
  distsms shard cells.h5ad data/cells --label cell_type --positive 'B cell' --id _index
  distsms shard X.npy data/train --label y.npy
"""


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """What `distsms shard` takes."""
    parser.add_argument("input", nargs="+", metavar="INPUT", help="files of one format, read in this order")
    parser.add_argument("output", metavar="OUTDIR", help="directory for the shards and their manifest.json")
    parser.add_argument("--label", metavar="COLUMN", help="column of labels; for .npz an array (y), or a .npy file")
    parser.add_argument("--positive", metavar="LABEL", help="the label of the positive class; all others are negative")
    parser.add_argument("--id", metavar="COLUMN", help="names of the rows: kept, and written beside predictions")
    parser.add_argument(
        "--drop", nargs=1, action="extend", default=[], metavar="COLUMN", help="leave a column out; may be repeated"
    )
    parser.add_argument(
        "--group",
        metavar="COLUMN",
        help="which rows belong together (a user, a day, a query); no feature then; kept for folds; of text: qid",
    )
    parser.add_argument(
        "--time", metavar="COLUMN", help="when rows were: numbers or dates; no feature then; kept for folds"
    )
    parser.add_argument(
        "--keep",
        nargs=1,
        action="extend",
        default=[],
        metavar="COLUMN",
        help="the column of --group or --time is a feature, too; may be repeated",
    )
    parser.add_argument(
        "--normalize",
        choices=("none", "standard", "maxabs", "l2"),
        help="for training: columns by standard deviation or largest size, or rows to length 1; models score raw rows",
    )
    parser.add_argument("--like", metavar="DATA", help="take columns, labels and normalization over from a data set")
    parser.add_argument(
        "--split",
        type=shares,
        metavar="F,F",
        help="make a data set of each part: OUTDIR/train and OUTDIR/test, or, of more than two, OUTDIR/part-1, ...",
    )
    parser.add_argument(
        "--split-by",
        choices=BY,
        help="what the parts keep together: nothing (rows), groups, equal rows (doubles); time: the last part is the"
        " latest (default: groups with --group, else rows)",
    )
    parser.add_argument("--seed", type=whole, default=0, help="of --split: another one gives other parts")
    parser.add_argument("--zero-based", action="store_true", help="columns are counted from 0 in the text")
    parser.add_argument("--n-features", type=count, metavar="P", help="number of columns, if more than the text uses")
    parser.add_argument(
        "--shards",
        type=count,
        metavar="N",
        help="number of files; more if their rows are too large (default: one for each 128 MiB of text or rank)",
    )
    parser.add_argument("--dtype", choices=("float64", "float32"), default="float64", help="of the values in the files")
    add_compress(parser)
    parser.add_argument("--overwrite", action="store_true", help="replace a data set that is in OUTDIR")
    parser.add_argument("--quiet", action="store_true", help="no progress, no summary")


def run(args: argparse.Namespace, comm: Communicator) -> int:
    """Convert, and say what was found. Collective."""
    import time
    from pathlib import Path

    from distsms.cli.progress import shard_counter
    from distsms.data.convert import convert
    from distsms.data.shards.dataset import read_manifest
    from distsms.data.splits import Splitter
    from distsms.utils.formatting import size

    start = time.perf_counter()
    talks = comm.is_root and not args.quiet
    if args.split_by and args.split is None:
        raise InputError("--split-by: says what --split keeps together; give --split, too", everywhere=True)
    split_by = args.split_by or ("groups" if args.group else "rows")
    split = None if args.split is None else Splitter(args.split, args.seed, split_by)
    manifest = convert(
        args.input,
        args.output,
        comm,
        args.shards,
        args.positive,
        args.zero_based,
        args.n_features,
        args.dtype,
        args.overwrite,
        shard_counter(talks),
        args.normalize,
        args.like,
        split,
        args.compression,
        label=args.label,
        id=args.id,
        drop=tuple(args.drop),
        group=args.group,
        time=args.time,
        keep=tuple(args.keep),
    )
    if talks:
        seconds = time.perf_counter() - start
        n_bytes = sum(one["bytes"] for one in manifest.source)
        made = [manifest] if split is None else [read_manifest(Path(args.output, name)) for name in split.names]
        for one in made:
            _tell(one)
        if manifest.split is not None and (left := manifest.split["of"] - sum(one.n for one in made)):
            print(f"  left out  {left} of {manifest.split['of']} rows: the fractions add up to {sum(args.split):g}")
        print(f"  from      {size(n_bytes)} in {seconds:.2f} s on {comm.size} rank(s), {size(n_bytes / seconds)}/s")
    return EXIT_OK


def _tell(manifest: Manifest) -> None:
    """What a data set holds, for people."""
    from distsms.cli.progress import files_in_words
    from distsms.data.groupby import describe as belonging
    from distsms.data.labels import format_labels, original_labels

    words = {sign: format_labels(original_labels(manifest.label_map, sign)) for sign in ("+1", "-1")}
    labels = ", ".join(f"{sign} is {label}" for sign, label in words.items() if label)
    print(f"{manifest.directory}: {manifest.n} rows, {manifest.p} columns, {manifest.nnz} nonzeros")
    print(f"  classes   {manifest.n_pos} positive, {manifest.n_neg} negative ({labels})")
    if manifest.table is not None:
        print(f"  columns   {manifest.table.describe()}")
    if manifest.normalization.kind != "none":
        print(f"  training  normalized ({manifest.normalization.kind}); the files hold the rows as they were")
    print(f"  files     {files_in_words(manifest)}")
    for name, told in belonging(manifest).items():
        print(f"  {name:<9} {told}")
    if not (manifest.n_pos and manifest.n_neg):
        print("  warning   only one class: fine for prediction, but no measure can be trained or evaluated on it")
