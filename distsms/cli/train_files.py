"""`distsms train` on files instead of a data set: make shards, hold out test rows, and write a report at the end."""

from __future__ import annotations

import argparse
import importlib.util
import os
import time
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING

from distsms.base.errors import InputError
from distsms.cli import sequences, shard

if TYPE_CHECKING:
    from distsms.parallel.communicator import Communicator
    from distsms.workflow.tables import DataSets

COLUMNS = ["label", "positive", "id", "drop", "group", "time", "weight", "weight_file", "keep"]
COLUMNS += ["categorical", "numeric", "date", "hash", "min_count", "decimal", "thousands", "separator", "missing"]
COLUMNS += ["not_missing"]
OF_SHARD = [*COLUMNS, *sequences.NAMES, "normalize", "split", "split_by", "seed", "zero_based"]
"""The options of `distsms shard` that `distsms train` also has, for files, by their names in argparse's namespace."""
USUAL_SPLIT = (0.8, 0.2)


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Add the options for files."""
    files = parser.add_argument_group(
        "files instead of a data set",
        "The files become shards. A fifth of the rows is held out as test rows unless --split or --test says otherwise."
        " All of these options except --shards, --report and --no-report are those of `distsms shard`.",
    )
    files.add_argument(
        "--shards",
        metavar="FOLDER",
        help="Keep the shards, in FOLDER/train and, without --test, FOLDER/test (default: they lie in a temporary"
        " folder, which is removed at the end; those of the training rows are removed as soon as the rows are in"
        " memory, and without --memory their entries are there from the beginning if they fit). Runs on several"
        " hosts, and runs with --checkpoint, need it.",
    )
    report = files.add_mutually_exclusive_group()
    report.add_argument(
        "--report",
        metavar="FILE",
        help="The report on the test rows (default: report.html beside model.h5, NAME.html beside NAME.h5).",
    )
    report.add_argument("--no-report", action="store_true", help="Write no report, which takes about a second.")
    for action in _shard_parser()._actions:
        if action.dest in OF_SHARD:
            files._add_action(action)


def _shard_parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(add_help=False)
    shard.add_arguments(parser)
    return parser


def check_data_set(args: argparse.Namespace) -> None:
    """Raise InputError if options that are for files were given with a data set, or with nothing. On every rank."""
    from distsms.shards.manifest import MANIFEST

    usual = _shard_parser()
    given = [name for name in OF_SHARD if getattr(args, name, None) != usual.get_default(name)]
    given += [name for name in ("shards", "report") if getattr(args, name) is not None]
    given += ["no_report"] if args.no_report else []
    if given and not os.path.exists(args.data[0]):
        raise InputError(f"{args.data[0]}: there is no such file or data set", everywhere=True)
    if given and not os.path.exists(os.path.join(args.data[0], MANIFEST)):
        raise InputError(f"{args.data[0]}: is no data set, and no folder of CSV or Parquet files", everywhere=True)
    if given:
        option = given[0].replace("_", "-")
        raise InputError(
            f"--{option} is for files, such as CSV, and {args.data[0]} is a data set. Leave the option out; it belongs "
            "to the command `distsms shard` that makes the data set",
            everywhere=True,
        )


def write_report(args: argparse.Namespace, sets: DataSets, report: str, comm: Communicator) -> None:
    """Write the report on the test rows. **Collective.**"""
    from distsms.base.formatting import format_seconds
    from distsms.ingest.file_names import is_data_set
    from distsms.models.evaluation import EvaluationOptions
    from distsms.models.inputs import InputOptions
    from distsms.page.report import report as write
    from distsms.workflow.requests import ReportRequest

    assert sets.test is not None
    test, begun = os.fspath(sets.test), time.perf_counter()
    reading = InputOptions(weight=None if is_data_set(test) else args.weight)
    called = sets.called.get(test, test)
    try:
        write(ReportRequest(args.output, test, EvaluationOptions(), report, reading=reading, called=called), comm)
    except InputError as error:
        raise InputError(f"{error}; the model is complete: {args.output}", error.everywhere) from error
    if comm.is_root and not args.quiet:
        seconds = format_seconds(time.perf_counter() - begun)
        print(f"\nmodel: {args.output}   report on the test rows: {report} ({seconds})", flush=True)


def _report_beside(path: Path) -> Path:
    """Return the file name of a model's report, which is different for each model in a folder."""
    return path.with_name("report.html") if path.name == "model.h5" else path.with_suffix(".html")


def check_report(args: argparse.Namespace, names: Sequence[str]) -> str | None:
    """Return the report to write, or None. Raises InputError if it cannot be written. On the root.

    It may lie in a folder whose tables are read, but must not be one of these files, `names`.
    """
    from distsms.models import inputs, model

    path = args.report or str(_report_beside(Path(args.output)))
    if importlib.util.find_spec("matplotlib") is None:
        if args.report:
            raise InputError(f"{path}: a report needs matplotlib: pip install 'distsms[plot]'")
        if not args.quiet:
            print("report    none, since it needs matplotlib: pip install 'distsms[plot]'")
        return None
    model.check_writable(path)
    inputs.check_distinct(path, args.output, args.test, args.trace, *names)
    if os.path.isfile(path) and b"distsms report" not in Path(path).read_bytes()[:1000]:
        raise InputError(f"{path}: exists and is not a report; name another file with --report, or remove it first")
    return path
