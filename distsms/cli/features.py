"""The command `distsms features`."""

from __future__ import annotations

import argparse
import math
from typing import TYPE_CHECKING

from distsms.base.errors import EXIT_OK
from distsms.cli.types import add_compress, add_output_folder, count, memory, whole

if TYPE_CHECKING:
    from distsms.parallel.communicator import Communicator

USAGE = "DATA OUTDIR [options]"
EPILOG = """\
A linear model on these features is a table of one number for each bin, for each category, for each pair of them that is
crossed, and for each leaf: it can follow curves and interactions, and `distsms train` still proves its optimum. A row
takes a byte or two for each attribute and for each tree. Crosses take nothing more.

Bins are quantiles over all rows of all ranks, which are exact. Equal values are never divided. A value that many rows
have, such as 0 in sparse columns, gets a bin of its own, and so do missing numbers of a table. The features of 0 and 1
that `distsms shard` has made from one column of a table are one categorical attribute. In other data, neighbouring
columns of 0 and 1 are taken as one if no row sets two of them, and at least 90 % of the rows set one.

The rules are kept in OUTDIR and in every model that is trained on it. So `distsms predict`, `evaluate` and `report`
take rows with the original columns: CSV, Parquet, text, or a data set that `distsms shard` has made. They also take a
data set that this command has made with --like.

examples:
  distsms features data/train data/bins
  distsms features data/train data/pairs --bins 16 --crosses all
  distsms features data/train data/one --crosses age:job
  mpirun -n 8 distsms features data/train data/top --crosses top:100
  distsms features data/train data/leaves --trees 100
  distsms features data/test data/test-leaves --like data/leaves
"""


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Add the arguments of `distsms features`."""
    parser.add_argument("data", metavar="DATA", help="A data set that distsms shard has made, but not of sequences.")
    add_output_folder(parser)
    parser.add_argument("--bins", type=count, metavar="B", help="The most bins of a column of numbers (default: 32).")
    parser.add_argument(
        "--crosses",
        metavar="all|top:K|A:B,...",
        help="Also cross pairs of attributes: all pairs, the K pairs with the strongest interaction on a sample of the"
        " rows, or the pairs that are named.",
    )
    parser.add_argument(
        "--trees",
        type=count,
        metavar="N",
        help="Grow N extremely randomized trees; the leaves that a row reaches are its features. There are also bins if"
        " an option for them is given. Growing needs scikit-learn (pip install 'distsms[sklearn]').",
    )
    parser.add_argument("--min-leaf", type=count, metavar="N", help="The least number of rows in a leaf (default: 3).")
    parser.add_argument(
        "--tree-rows",
        type=count,
        metavar="N",
        help="If there are more rows, trees grow on a sample of at most N of them (default: 1e6).",
    )
    parser.add_argument(
        "--seed", type=whole, metavar="N", help="Another seed grows other trees, on another sample (default: 0)."
    )
    parser.add_argument(
        "--keep", action="store_true", dest="keep_columns", help="Keep the original columns as features, too."
    )
    parser.add_argument(
        "--attributes",
        metavar="FILE",
        help="Use these columns. FILE is a JSON object that has a column, or a list of columns of 0 and 1 that are one"
        ' categorical attribute, for each name: {"age": "age", "job": ["job=clerk", "job=cook"]}. Columns of data'
        " without names are numbers, counted as in their source.",
    )
    parser.add_argument(
        "--like", metavar="FEATURES", help="Make the features that this data set has, as for test rows."
    )
    parser.add_argument(
        "--shards",
        type=count,
        metavar="N",
        help="The number of shards. There are more if their rows take too much memory (default: as many as DATA has,"
        " and at least one for each rank).",
    )
    parser.add_argument(
        "--memory",
        type=memory,
        metavar="SIZE",
        help="The most memory that each rank may take, for everything. Fewer columns are then divided at a time, and"
        " shards are smaller, with the same features. The rows on which trees grow cannot be divided: if they or the"
        " trees do not fit, the command is refused, and says with how many --tree-rows they would.",
    )
    add_compress(parser)
    parser.add_argument("--overwrite", action="store_true", help="Replace the data set in OUTDIR, if there is one.")
    parser.add_argument(
        "--usage", action="store_true", help="Show what each step took on each rank: seconds, bytes, memory."
    )
    parser.add_argument("--quiet", action="store_true", help="Print neither progress nor a summary.")
    parser.set_defaults(check=_check)


def _check(args: argparse.Namespace) -> str | None:
    if args.folder is not None:
        args.output = args.folder
    if args.output is None:
        return "the following arguments are required: OUTDIR"
    of_trees = {"--min-leaf": args.min_leaf, "--tree-rows": args.tree_rows, "--seed": args.seed}
    made = {"--bins": args.bins, "--crosses": args.crosses, "--attributes": args.attributes, "--trees": args.trees}
    made |= {"--keep": args.keep_columns or None} | of_trees
    if args.like and (given := [name for name, value in made.items() if value is not None]):
        return f"--like takes all rules from the other data set; leave out {given[0]}"
    if args.trees is None and (given := [name for name, value in of_trees.items() if value is not None]):
        return f"{given[0]} is about trees; say how many with --trees N"
    return None


def run(args: argparse.Namespace, comm: Communicator) -> int:
    """Make the features, and print what they are. **Collective.**"""
    import shlex
    import time

    from distsms.base.usage import ReadCounter, resource_usage
    from distsms.cli.options import speaker
    from distsms.cli.progress import TaskProgress, describe_files, usage_line, usage_table
    from distsms.features import feature_map
    from distsms.features.build import build
    from distsms.features.fit import FeatureOptions
    from distsms.features.memory_limit import room
    from distsms.shards.manifest import read_manifest

    start = time.perf_counter()
    verbose = comm.is_root and not args.quiet
    progress, say = TaskProgress(verbose), speaker(verbose)

    def show(text: str) -> None:
        progress.close()
        say(text)

    binned = args.trees is None or any(given is not None for given in (args.bins, args.crosses, args.attributes))
    options = FeatureOptions(
        (args.bins or FeatureOptions().bins) if binned else None, args.crosses, args.keep_columns, args.attributes
    )
    of_trees = {"trees": args.trees, "min_leaf": args.min_leaf, "tree_rows": args.tree_rows, "seed": args.seed}
    options = options._replace(**{name: value for name, value in of_trees.items() if value is not None})
    left, reading = math.inf, ReadCounter()
    if args.memory is not None:
        with comm.fail_together():
            manifest = read_manifest(args.data)
        left = room(manifest, comm, args.memory, args.trees)
    with reading:
        manifest = build(
            args.data,
            args.output,
            comm,
            options,
            args.like,
            args.shards,
            args.compression,
            args.overwrite,
            progress,
            show,
            room=left,
        )
    progress.close()
    usage = comm.allgather(resource_usage(progress.clock, comm.bytes_moved(), reading.bytes, 0))
    if verbose:
        made, seconds = feature_map.load(manifest), time.perf_counter() - start
        assert made is not None
        say(f"{manifest.directory}: {manifest.n} rows, {manifest.p} columns, {manifest.describe_entries()}")
        say(f"  features  {made.describe()}")
        for line in made.listing():
            say(f"  {line}")
        if made.chosen_by_labels and not args.like:
            say(
                f"  note      {made.chosen_by_labels} know the labels of these rows: judge models on other rows"
                f" (--test), or give `distsms path` the data {args.data}, with --features {shlex.quote(made.options)}"
            )
        say(f"  files     {describe_files(manifest)}")
        say(f"  from      {args.data} in {seconds:.2f} s on {comm.size} rank(s)")
        say(usage_line(usage))
        if args.usage:
            say(usage_table(usage))
    say.close()
    return EXIT_OK
