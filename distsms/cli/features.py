"""The command `distsms features`."""

from __future__ import annotations

import argparse
from typing import TYPE_CHECKING, Any

from distsms.base.errors import EXIT_OK
from distsms.cli.types import COMMON, OUTPUT_FOLDER, WRITING, add_options, count, from_arguments, take_folder, whole

if TYPE_CHECKING:
    from distsms.base.communicator import Communicator

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

OPTIONS = f"""\
data DATA  A data set that distsms shard has made, but not of sequences.
{OUTPUT_FOLDER}
--bins B  The most bins of a column of numbers (default: 32).
--crosses all|top:K|A:B,...  Also cross pairs of attributes: all pairs, the K pairs with the strongest interaction on a
    sample of the rows, or the pairs that are named.
--trees N  Grow N extremely randomized trees; the leaves that a row reaches are its features. There are also bins if an
    option for them is given. Growing needs scikit-learn (pip install 'distsms[sklearn]').
--min-leaf N  The least number of rows in a leaf (default: 3).
--tree-rows N  If there are more rows, trees grow on a sample of at most N of them (default: 1e6).
--seed N  Another seed grows other trees, on another sample (default: 0).
--keep  Keep the original columns as features, too.
--attributes FILE  Use these columns. FILE is a JSON object that has a column, or a list of columns of 0 and 1 that are
    one categorical attribute, for each name: {{"age": "age", "job": ["job=clerk", "job=cook"]}}. Columns of data
    without names are numbers, counted as in their source.
--like FEATURES  Make the features that this data set has, as for test rows.
--shards N  The number of shards. There are more if their rows take too much memory (default: as many as DATA has, and
    at least one for each rank).
--memory SIZE  The most memory that each rank may take, for everything. Fewer columns are then divided at a time, and
    shards are smaller, with the same features. The rows on which trees grow cannot be divided: if they or the trees do
    not fit, the command is refused, and says with how many --tree-rows they would.
{WRITING}
--usage  Show what each step took on each rank: seconds, bytes, memory.
--quiet  Print neither progress nor a summary.
"""


def add_arguments(parser: argparse.ArgumentParser) -> None:
    others = {"--bins": {"type": count}, "--seed": {"type": whole}, "--keep": {"action": "store_true", "default": None}}
    add_options(parser, OPTIONS, COMMON | others)
    parser.set_defaults(check=_check)


def _check(args: argparse.Namespace) -> str | None:
    """Return what is wrong with the arguments, or None."""
    options = [f"--{name.replace('_', '-')}" for name in _options(args)]
    if args.like and options:
        return f"--like takes all rules from the other data set; leave out {options[0]}"
    of_trees = [name for name in options if name in ("--min-leaf", "--tree-rows", "--seed")]
    if args.trees is None and of_trees:
        return f"{of_trees[0]} is about trees; say how many with --trees N"
    return take_folder(args)


def _options(args: argparse.Namespace) -> dict[str, Any]:
    """Return the options of features that the user has given."""
    names = ("bins", "crosses", "attributes", "trees", "keep", "min_leaf", "tree_rows", "seed")
    return {name: getattr(args, name) for name in names if getattr(args, name) is not None}


def run(args: argparse.Namespace, comm: Communicator) -> int:
    """Make the features, and print what they are. **Collective.**"""
    from distsms.cli.features_text import FeaturesNarrator
    from distsms.workflow.features import make_features
    from distsms.workflow.requests import FeaturesRequest

    request = from_arguments(FeaturesRequest, args, options=_options(args))
    narrator = FeaturesNarrator(args, comm)
    narrator.conclude(make_features(request, comm, narrator))
    return EXIT_OK
