"""What the scripts share: arguments, running the program, text to shards, held-out rows, `distsms compare`."""

from __future__ import annotations

import argparse
import bz2
import gzip
import lzma
import os
import subprocess
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import IO, Any

from distsms import cli
from distsms.cli.types import count

HELD_OUT = 5  # without test rows, every fifth row is one: rows 5, 10, ... of the text
STOPPED, CONTRADICTION = 75, 7  # exit codes of `distsms compare`


def text(name: str) -> Path:
    """Of an argument: svmlight text that is there."""
    if not Path(name).is_file():
        raise argparse.ArgumentTypeError(f"there is no file {name}")
    return Path(name)


def named(words: str) -> tuple[str, list[Path]]:
    """NAME=TRAIN[,TEST]: a name and svmlight text."""
    name, _, files = words.partition("=")
    paths = files.split(",")
    if not (name and files) or len(paths) > 2:
        raise argparse.ArgumentTypeError(f"{words!r} is not NAME=TRAIN or NAME=TRAIN,TEST")
    return name, [text(one) for one in paths]


def add_ranks(parser: argparse.ArgumentParser) -> None:
    """--ranks."""
    parser.add_argument("--ranks", type=count, default=1, metavar="N", help="MPI ranks of every run (%(default)s)")


def add_train_and_test(parser: argparse.ArgumentParser) -> None:
    """TRAIN [TEST] would hold out rows; here both are files."""
    parser.add_argument("train", type=text, metavar="TRAIN", help="svmlight text, plain or compressed")
    parser.add_argument("test", type=text, metavar="TEST", help="the same")


def distsms(*words: object, ranks: int = 1, codes: Sequence[int] = (0,)) -> int:
    """Run the program; ends the script with the program's exit code if that is not among `codes`."""
    code = _run(words, ranks).returncode
    if code not in codes:
        sys.exit(code)
    return code


def told(*words: object, ranks: int = 1, codes: Sequence[int] = (0,)) -> str:
    """What the program prints; ends the script with all of it if the exit code is not among `codes`."""
    done = _run(words, ranks, capture_output=True, text=True)
    if done.returncode not in codes:
        sys.exit(f"{' '.join(map(str, words))}: exit code {done.returncode}\n{done.stdout}{done.stderr}")
    return done.stdout


def check(words: Sequence[str]) -> None:
    """Ends the script, before it takes any time, where `distsms compare` would refuse these options."""
    cli.parse(["compare", "DATA", *words])


def sharded(train: Path, test: Path | None, folder: Path, ranks: int) -> tuple[Path, Path]:
    """Data sets in `folder` of svmlight text, unless they are there; without test rows, some are held out."""
    sets = folder / "train", folder / "test"
    if all((one / "manifest.json").exists() for one in sets):
        return sets
    folder.mkdir(parents=True, exist_ok=True)
    texts = (train, test) if test else _split(train, folder)
    for text, one in zip(texts, sets, strict=True):
        distsms("shard", text, one, "--quiet", "--overwrite", ranks=ranks)
        if test is None:
            text.unlink()
    return sets


def compare(train: Path, test: Path, output: Path, words: Sequence[str], ranks: int) -> bool:
    """`distsms compare`; whether no run contradicts another. Test columns that training lacks are left out."""
    command = ["compare", train, "--test", test, "--output", output, "--ignore-new-features", *words]
    return distsms(*command, ranks=ranks, codes=(0, CONTRADICTION)) == 0


def one_set(about: str | None, words: Sequence[str], files: str) -> None:
    """A script that runs one comparison on one data set and names the files, a pattern, that it is about."""
    parser = argparse.ArgumentParser(description=about, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("train", type=text, metavar="TRAIN", help="svmlight text, plain or compressed")
    parser.add_argument("test", type=text, nargs="?", metavar="TEST", help="the same (every fifth row is held out)")
    parser.add_argument("--output", type=Path, metavar="FOLDER", help="of shards and runs (results/NAME OF TRAIN)")
    add_ranks(parser)
    args, more = parser.parse_known_args()
    check([*words, *more])
    output = args.output or Path("results") / args.train.name.split(".")[0]
    train, test = sharded(args.train, args.test, output / "data", args.ranks)
    agree = compare(train, test, output / "comparison", [*words, *more], args.ranks)
    print("\n" + "\n".join(map(str, sorted((output / "comparison").glob(files)))))
    sys.exit(0 if agree else CONTRADICTION)


def _run(words: Sequence[object], ranks: int, **more: Any) -> subprocess.CompletedProcess[Any]:
    launcher = ["mpirun", "-n", str(ranks)] if ranks > 1 else []
    command = [*launcher, sys.executable, "-m", "distsms", *map(str, words)]
    # Python's own copy of the environment: MPI, if this process has it, adds to the other what mpirun stumbles over.
    return subprocess.run(command, check=False, env=dict(os.environ), **more)


def without_empty(text: Path, to: Path) -> Path:
    """A text's rows that have features, in the file `to`, which is returned; nothing is done if it is there."""
    if not to.exists():
        with _opened(text) as lines, open(to.with_name(f".{to.name}"), "wb") as kept:
            kept.writelines(line for line in lines if b":" in line.split(b"#")[0])
        to.with_name(f".{to.name}").rename(to)
    return to


def _split(text: Path, folder: Path) -> tuple[Path, Path]:
    """The rows of a text in two files, those to train on and those held out."""
    parts = folder / "train.svm", folder / "test.svm"
    with _opened(text) as lines, open(parts[0], "wb") as train, open(parts[1], "wb") as test:
        rows = (line for line in lines if line.split(b"#")[0].strip())
        for number, line in enumerate(rows, 1):
            (train if number % HELD_OUT else test).write(line)
    return parts


def _opened(path: Path) -> IO[bytes]:
    """A text, compressed or not, as its first bytes tell."""
    start = path.open("rb").read(6)
    for magic, opener in ((b"\x1f\x8b", gzip.open), (b"BZh", bz2.open), (b"\xfd7zXZ\0", lzma.open)):
        if start.startswith(magic):
            return opener(path, "rb")  # type: ignore[return-value]
    return path.open("rb")
