"""`distsms train` on files instead of a data set: make shards, hold out test rows, and write a report at the end."""

from __future__ import annotations

import argparse
import contextlib
import importlib.util
import io
import json
import os
import time
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

from distsms.cli import sequences, shard
from distsms.errors import EXIT_REQUEUE, InputError
from distsms.utils.files import atomic_write, naming_failures, read_whole

if TYPE_CHECKING:
    from distsms.data.shards.manifest import Manifest
    from distsms.parallel.communicator import Communicator

COLUMNS = ["label", "positive", "id", "drop", "group", "time", "weight", "weight_file", "keep"]
COLUMNS += ["categorical", "numeric", "date", "hash", "min_count", "decimal", "thousands", "separator", "missing"]
COLUMNS += ["not_missing"]
OF_SHARD = [*COLUMNS, *sequences.NAMES, "normalize", "split", "split_by", "seed", "zero_based"]
"""The options of `distsms shard` that `distsms train` also has, for files, by their names in argparse's namespace."""
USUAL_SPLIT = (0.8, 0.2)
REQUEST = "made-from.json"
"""The file, in the folder of --shards, that says what the shards were made from."""


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
    from distsms.data.shards.manifest import MANIFEST

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


def same_rows(training: Manifest | None, test: str | None) -> bool:
    """Return whether the test rows are the data set of the training, also under another name. Local."""
    from distsms.data.file_names import is_data_set
    from distsms.data.shards.dataset import read_manifest

    if training is None or test is None or not is_data_set(test):
        return False
    return read_manifest(test).fingerprint == training.fingerprint


@dataclass(frozen=True)
class TrainingFiles:
    """The files that the user named, from which data sets have been made, and the report to write.

    Parameters
    ----------
    names : tuple of str
        The files.
    report : str or None
        The report to write; None if there is nothing to report on, or nothing to draw with.
    """

    names: tuple[str, ...]
    report: str | None

    def finish(self, args: argparse.Namespace, code: int, comm: Communicator) -> None:
        """Write the names of the files into the model, and write the report. **Collective.**

        `code` is the exit code of the training.
        """
        from distsms import cli
        from distsms.data import frames
        from distsms.data.file_names import is_data_set
        from distsms.inference import model
        from distsms.utils.formatting import format_seconds

        with comm.fail_together():
            if comm.is_root and args.shards is None:  # the shards are temporary; name the files instead
                trained = model.load(args.output)
                trained.info["data"]["directory"] = frames.short_list(self.names)
                model.save(args.output, trained)
        if self.report is None or code == EXIT_REQUEUE:
            return
        weight = [] if args.weight is None or is_data_set(args.test) else ["--weight", args.weight]
        asked = cli.parse(["report", args.output, "--test", args.test, "--output", self.report, *weight])
        asked.shown = args.shown
        begun = time.perf_counter()
        try:
            with contextlib.redirect_stdout(io.StringIO()):
                asked.run(asked, comm)
        except InputError as error:
            raise InputError(f"{error}; the model is complete: {args.output}", error.everywhere) from error
        if comm.is_root and not args.quiet:
            seconds = format_seconds(time.perf_counter() - begun)
            print(f"\nmodel: {args.output}   report on the test rows: {self.report} ({seconds})", flush=True)


@contextlib.contextmanager
def as_data_sets(args: argparse.Namespace, comm: Communicator) -> Iterator[TrainingFiles]:
    """Make data sets of the files, and put their names into `args.data` and `args.test`. **Collective.**

    Temporary data sets are removed at the end, also after an error.

    Raises
    ------
    InputError
        On every rank, whenever `distsms shard` raises it; if a folder for the shards is needed and not given; if model
        or report cannot be written; or if the test rows are of one class.
    """
    from distsms.data import frames
    from distsms.data.file_names import expand, files_of, is_data_set
    from distsms.data.shards.dataset import read_manifest
    from distsms.inference import inputs, model
    from distsms.training.plan import INTERPRETER
    from distsms.utils.formatting import format_bytes

    several, report, shown = frames.on_several_hosts(comm), None, {}
    with comm.fail_together():
        if args.survive:
            raise InputError(
                "--survive is for data sets; make one from these files by `distsms shard`, and train on it"
            )
        _check_folder(args, several)
        if args.memory is not None and args.memory < INTERPRETER:
            raise InputError(
                f"--memory {format_bytes(args.memory)} is too little: Python and its libraries alone take "
                f"{format_bytes(INTERPRETER)}. Allow more memory"
            )
        if args.split and args.test:
            raise InputError("--split holds out test rows, and --test names others: give one of them")
        if args.split and len(args.split) != 2:
            first = args.split[0] if len(args.split) == 1 else USUAL_SPLIT[0]
            raise InputError(f"--split takes two shares, for training and test rows, such as {first:g},{1 - first:g}")
        tested = files_of(args.test) if args.test else []
        if not all(map(os.path.exists, tested)):
            raise InputError(f"--test {args.test}: there is no such file or data set")
        names = expand(args.data)
        args.same_rows = any(os.path.samefile(name, other) for name in names for other in tested)
        if comm.is_root:
            _check_shards(args)
            model.check_replaceable(args.output)
            report = None if args.no_report else _check_report(args, names)
            for output in filter(None, (args.output, args.trace)):
                inputs.check_distinct(output, *names)
    names, report = comm.bcast((names, report))
    with contextlib.ExitStack() as held:
        base = args.shards
        if base is None:
            base = os.path.join(held.enter_context(frames.folder_of_all(comm)), Path(names[0]).name)
            whole = frames.short_list(names)
            shown = {os.path.join(base, "train"): whole, os.path.join(base, "test"): f"test rows of {whole}"}
            shown |= {base: whole}
        held.enter_context(frames.renaming(shown))
        args.data = os.path.join(base, "train")
        if not args.test:
            args.test = os.path.join(base, "test")
        args.shown, args.brief, args.temporary = shown, not args.usage, args.shards is None
        with args.signals.ending_at_once(), args.clock.phase("shards"):
            _make_shards(args, names, base, comm)
        with comm.fail_together():
            training = read_manifest(args.data)
            if not (training.n_pos and training.n_neg):
                label = "positive" if training.n_pos else "negative"
                raise InputError(
                    f"{frames.short_list(names)}: all {training.n} training rows are {label}; two classes are needed"
                )
            test = read_manifest(args.test) if is_data_set(args.test) else None
            if test is not None and not (test.n_pos and test.n_neg):
                raise InputError(
                    f"the {test.n} test rows have {test.n_pos} positive and {test.n_neg} negative ones, so no model can"
                    " be judged by them; hold out more rows by --split, or others by --split-by or --seed"
                )
        yield TrainingFiles(tuple(names), report)


def _check_folder(args: argparse.Namespace, several: bool) -> None:
    """Raise InputError if the user must name a folder for the shards, and did not. Local."""
    if args.shards is not None:
        return
    from distsms.data.frames import NO_FOLDER

    if several:
        raise InputError(NO_FOLDER % "--shards FOLDER")
    if args.checkpoint:
        raise InputError(
            "a run with --checkpoint needs its shards again when it is resumed; give --shards FOLDER to keep them there"
        )


def _check_shards(args: argparse.Namespace) -> None:
    """Raise InputError if the folder for the shards cannot be used. On the root."""
    if args.shards is None or args.resume or not os.path.lexists(args.shards):
        return
    if not os.path.isdir(args.shards):
        raise InputError(f"--shards {args.shards}: is not a folder")
    target = os.path.join(args.shards, "train")
    if os.path.exists(os.path.join(target, "manifest.json")):
        raise InputError(
            f"{target}: holds a data set already. Train on it (distsms train {target}), name another folder with "
            "--shards, or remove it first"
        )


def _report_beside(path: Path) -> Path:
    """Return the file name of a model's report, which is different for each model in a folder."""
    return path.with_name("report.html") if path.name == "model.h5" else path.with_suffix(".html")


def _check_report(args: argparse.Namespace, names: list[str]) -> str | None:
    """Return the report to write, or None. Raises InputError if it cannot be written. On the root.

    It may lie in a folder whose tables are read, but must not be one of these files, `names`.
    """
    from distsms.inference import inputs, model

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


def _make_shards(args: argparse.Namespace, names: list[str], base: str, comm: Communicator) -> None:
    """Run `distsms shard` on the files, unless --resume is given and an earlier start has made them. **Collective.**"""
    from distsms.data.shards.dataset import read_manifest

    apart = os.path.join(base, "test") != args.test
    asked = _shard_parser().parse_args([*names, args.data if apart else base])
    if args.split is None and not apart:
        args.split = USUAL_SPLIT
    for name in OF_SHARD:
        if name in asked:
            setattr(asked, name, getattr(args, name))
    again = False
    with comm.fail_together():
        if comm.is_root and args.resume and os.path.isdir(args.data):
            known = [file["name"] for file in read_manifest(args.data).source]
            if known != [Path(name).name for name in names]:
                raise InputError(f"{args.data}: was made from other files than these; name another folder")
            _check_request(base, _request(asked, names))
            again = True
    if comm.bcast(again):
        return
    asked.quiet = args.quiet
    in_memory = args.shards is None and args.memory is None
    shard.run(asked, comm, args.brief, args.warnings, durable=args.shards is not None, in_memory=in_memory)
    with comm.fail_together():
        if comm.is_root and args.shards is not None:
            with atomic_write(os.path.join(base, REQUEST)) as file:
                file.write(json.dumps(_request(asked, names), indent=1).encode())


def _request(asked: argparse.Namespace, names: list[str]) -> dict[str, Any]:
    """Return what the shards follow from, ready for JSON: files with their sizes and times, and options."""
    about = {name: os.stat(name) for name in names}
    files = [{"name": Path(name).name, "bytes": at.st_size, "changed": at.st_mtime_ns} for name, at in about.items()]
    options = {name.replace("_", "-"): repr(getattr(asked, name)) for name in OF_SHARD if name in asked}
    return {"files": files, "options": options}


def _check_request(base: str, request: dict[str, Any]) -> None:
    """Raise InputError if the shards that are there were made from other files, or with other options. On the root.

    Shards of earlier versions have no record of that.
    """
    path = os.path.join(base, REQUEST)
    if not os.path.exists(path):
        return
    with naming_failures(path):
        try:
            before = json.loads(read_whole(path))
            files, options = before["files"], dict(before["options"])
        except (ValueError, LookupError, TypeError) as error:
            raise InputError(f"{path}: is damaged: {error!r}; remove {base} to make the shards again") from error
    remedy = f"Give the same, or remove {base} and the checkpoint to begin again"
    if files != request["files"]:
        raise InputError(f"{base}: the files have changed since these shards were made from them. {remedy}")
    for name, value in request["options"].items():
        if options.get(name, value) != value:
            raise InputError(f"{base}: these shards were made with another --{name}. {remedy}")
