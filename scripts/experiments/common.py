"""Helpers of the experiments: command-line arguments, calls of distsms, conversion to shards, and held-out rows."""

from __future__ import annotations

import argparse
import bz2
import gzip
import json
import lzma
import os
import subprocess
import sys
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import IO, Any

from distsms.base.errors import EXIT_REQUEUE
from distsms.cli.types import count
from scripts.compare import command

HELD_OUT = 5
"""If there is no file of test rows, rows 5, 10, 15, ... of the text are held out."""
PUBLISHED: dict[str, Any] = json.loads(Path(__file__).with_name("published.json").read_text(encoding="utf-8"))
"""JMLR 13 (2012), by the names of table 1: seconds in table 2, `bmrm` and `sms`, to within 1 % of the minimal risk, at
the lambda of the best test measure, on one core of a 2.1 GHz AMD 6172 (dna and ocr on 16 of them, dna_string on 32);
and the test measures in per cent in figures 3 to 26, at lambda = 1e-2, 1e-4 and 1e-6, where their captions have them.
"""
STOPPED, CONTRADICTION = EXIT_REQUEUE, command.EXIT_DISAGREE
"""Exit codes of scripts.compare."""


def existing_file(name: str) -> Path:
    """Return the path of a file that exists; for argparse."""
    if not Path(name).is_file():
        raise argparse.ArgumentTypeError(f"there is no file {name}")
    return Path(name)


def named_files(argument: str, path_of: Callable[[str], Path] = existing_file) -> tuple[str, list[Path]]:
    """Parse NAME=TRAIN[,TEST], a name and one or two svmlight files; for argparse."""
    name, _, files = argument.partition("=")
    paths = files.split(",")
    if not (name and files) or len(paths) > 2:
        raise argparse.ArgumentTypeError(f"{argument!r} is not NAME=TRAIN or NAME=TRAIN,TEST")
    return name, [path_of(path) for path in paths]


def named_data(argument: str) -> tuple[str, list[Path]]:
    """Parse NAME=DATA, a name and an svmlight file or a data set; for argparse."""
    return named_files(argument, lambda name: Path(name) if Path(name).is_dir() else existing_file(name))


def add_ranks(parser: argparse.ArgumentParser) -> None:
    """Add the option --ranks."""
    parser.add_argument("--ranks", type=count, default=1, metavar="N", help="MPI ranks of each run (%(default)s)")


def add_train_and_test(parser: argparse.ArgumentParser) -> None:
    """Add the arguments TRAIN and TEST, both required."""
    parser.add_argument("train", type=existing_file, metavar="TRAIN", help="svmlight text, plain or compressed")
    parser.add_argument("test", type=existing_file, metavar="TEST", help="the same, with the rows to test on")


def run_program(*arguments: object, ranks: int = 1, codes: Sequence[int] = (0,)) -> int:
    """Run `distsms` and return its exit code; end this script with that code if it is not among `codes`."""
    code = _run(arguments, ranks).returncode
    if code not in codes:
        sys.exit(code)
    return code


def output_of(*arguments: object, ranks: int = 1, codes: Sequence[int] = (0,)) -> str:
    """Run `distsms` and return what it prints; end this script with all of it if the exit code is not among `codes`."""
    done = _run(arguments, ranks, capture_output=True, text=True)
    if done.returncode not in codes:
        sys.exit(f"{' '.join(map(str, arguments))}: exit code {done.returncode}\n{done.stdout}{done.stderr}")
    return done.stdout


def check_options_of_compare(options: Sequence[str]) -> None:
    """End this script with an error now if scripts.compare would later refuse these options."""
    command.make_parser().parse_args(["DATA", *options])


def shard_pair(train: Path, test: Path | None, folder: Path, ranks: int) -> tuple[Path, Path]:
    """Convert svmlight text to two data sets in `folder`, unless they exist, and return their paths.

    Without `test`, the second data set has held-out rows of `train`.
    """
    data_sets = folder / "train", folder / "test"
    if all((data_set / "manifest.json").exists() for data_set in data_sets):
        return data_sets
    folder.mkdir(parents=True, exist_ok=True)
    texts = (train, test) if test else _split(train, folder)
    for text, data_set in zip(texts, data_sets, strict=True):
        run_program("shard", text, data_set, "--quiet", "--overwrite", ranks=ranks)
        if test is None:
            text.unlink()
    return data_sets


def compare(train: Path, test: Path, output: Path, options: Sequence[str], ranks: int) -> bool:
    """Run scripts.compare and return whether no run contradicts another.

    Columns of the test rows that the training rows lack are left out.
    """
    words = [train, "--test", test, "--output", output, "--ignore-new-features", *options]
    code = _run(words, ranks, program="scripts.compare").returncode
    if code not in (0, CONTRADICTION):
        sys.exit(code)
    return code == 0


def without_empty_rows(text: Path, to: Path) -> Path:
    """Write the rows of a text that have at least one feature to the file `to`, unless it exists; return `to`."""
    if not to.exists():
        with open_bytes(text) as lines, open(to.with_name(f".{to.name}"), "wb") as kept:
            kept.writelines(line for line in lines if b":" in line.split(b"#")[0])
        to.with_name(f".{to.name}").rename(to)
    return to


def _run(
    arguments: Sequence[object], ranks: int, program: str = "distsms", **more: Any
) -> subprocess.CompletedProcess[Any]:
    launcher = ["mpirun", "-n", str(ranks)] if ranks > 1 else []
    command = [*launcher, sys.executable, "-m", program, *map(str, arguments)]
    # Python's own copy of the environment: if MPI runs in this process, it has added variables to the C library's
    # environment that would confuse mpirun.
    return subprocess.run(command, check=False, env=dict(os.environ), **more)


def _split(text: Path, folder: Path) -> tuple[Path, Path]:
    """Write the rows of a text to two files in `folder`, those to train on and those that are held out."""
    parts = folder / "train.svm", folder / "test.svm"
    with open_bytes(text) as lines, open(parts[0], "wb") as train, open(parts[1], "wb") as test:
        rows = (line for line in lines if line.split(b"#")[0].strip())
        for number, line in enumerate(rows, 1):
            (train if number % HELD_OUT else test).write(line)
    return parts


def open_bytes(path: Path) -> IO[bytes]:
    """Open a text for reading, and decompress it if its first bytes say that it is compressed."""
    start = path.open("rb").read(6)
    for magic, opener in ((b"\x1f\x8b", gzip.open), (b"BZh", bz2.open), (b"\xfd7zXZ\0", lzma.open)):
        if start.startswith(magic):
            return opener(path, "rb")  # type: ignore[return-value]
    return path.open("rb")
