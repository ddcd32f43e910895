"""Turn svmlight text into a data set of HDF5 shards.

Labels may be +1/-1, 1/0 or 1/2 (1 is positive), or any two values with --positive.
"""

from __future__ import annotations

import argparse
from typing import TYPE_CHECKING

from distsms.cli.types import count
from distsms.errors import EXIT_OK

if TYPE_CHECKING:
    from distsms.comm import Communicator

NAME = "shard"
USAGE = "INPUT... OUTDIR [options]"
EPILOG = """\
Labels +1/-1, 1/0 and 1/2 are understood (1 is positive); any other two with --positive. Columns are counted from 1
unless --zero-based. Compressed files (.gz, .bz2, .xz) are read as they are, but by one rank each; plain files by all.
A fault in the text stops the conversion with file and line, and leaves nothing behind.

examples:
  distsms shard train.svm data/train
  mpirun -n 8 distsms shard part-*.svm.gz data/train --dtype float32
"""


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """What `distsms shard` takes."""
    parser.add_argument(
        "input", nargs="+", metavar="INPUT", help="svmlight text, plain or compressed; read in this order"
    )
    parser.add_argument("output", metavar="OUTDIR", help="directory for the shards and their manifest.json")
    parser.add_argument("--positive", type=float, metavar="LABEL", help="the label of the positive class")
    parser.add_argument("--zero-based", action="store_true", help="columns are counted from 0 in the text")
    parser.add_argument("--n-features", type=count, metavar="P", help="number of columns, if more than the text uses")
    parser.add_argument(
        "--shards", type=count, metavar="N", help="number of files (default: one for each 128 MiB of text or rank)"
    )
    parser.add_argument("--dtype", choices=("float64", "float32"), default="float64", help="of the values in the files")
    parser.add_argument("--overwrite", action="store_true", help="replace a data set that is in OUTDIR")
    parser.add_argument("--quiet", action="store_true", help="no progress, no summary")


def run(args: argparse.Namespace, comm: Communicator) -> int:
    """Convert, and say what was found. Collective."""
    import time

    from distsms.conversion import convert
    from distsms.report import shard_counter, size

    start = time.perf_counter()
    talks = comm.is_root and not args.quiet

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
    )
    if talks:
        seconds = time.perf_counter() - start
        n_bytes = sum(one["bytes"] for one in manifest.source)
        labels = ", ".join(f"{sign} is {label:g}" for sign, label in manifest.label_map.items() if label is not None)
        print(f"{args.output}: {manifest.n} rows, {manifest.p} columns, {manifest.nnz} nonzeros")
        print(f"  classes   {manifest.n_pos} positive, {manifest.n_neg} negative ({labels})")
        stored = "none, all are 1" if not any(s.values for s in manifest.shards) else manifest.dtype
        print(
            f"  files     {len(manifest.shards)} shard(s), "
            f"{size(sum(s.bytes for s in manifest.shards))}, values: {stored}"
        )
        print(f"  from      {size(n_bytes)} in {seconds:.2f} s on {comm.size} rank(s), {size(n_bytes / seconds)}/s")
        if not (manifest.n_pos and manifest.n_neg):
            print("  warning   only one class: fine for prediction, but no measure can be trained or evaluated on it")
    return EXIT_OK
