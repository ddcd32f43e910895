"""The command line: one module per command, which is loaded when it is asked for.

Nothing here loads numpy, MPI or PETSc before a command runs.
"""

from __future__ import annotations

import argparse
import contextlib
import importlib
import io
import os
import re
import sys
import textwrap
import time
from collections.abc import Iterable, Sequence
from typing import Any, NoReturn

from distsms.base._version import full_version
from distsms.base.errors import EXIT_USAGE
from distsms.base.formatting import did_you_mean
from distsms.cli import config
from distsms.cli.terminal import fold
from distsms.cli.types import add_options, patience
from distsms.parallel import processes

FIRST_SECONDS = 3.0
"""So long the other ranks wait with the message of a usage error; usually the launcher ends them when rank 0 ends."""
COMMANDS = {
    "shard": "Turn svmlight text, sequences, CSV, Parquet, NumPy, SciPy or AnnData files into a data set of HDF5"
    " shards.",
    "features": "Make bins, crosses of two columns, or leaves of trees from the columns of a data set.",
    "synth": "Write a synthetic data set of any size, or a data set on which cutting-plane methods are slow.",
    "train": "Train a linear model to a proved gap.",
    "path": "Train models for a path of lambdas, cross-validate them, and choose a lambda.",
    "baseline": "Compare distsms with other methods on the same folds: does direct optimization pay on these data?",
    "evaluate": "Evaluate models on labelled rows (ROCArea, PRBEP, contingency table and more, with intervals), and"
    " compare them.",
    "report": "Write a web page on a model: measures with intervals, curves, convergence, weights.",
    "verify": "Check the J of a model on its training rows, and by a certificate its proved gap.",
    "predict": "Score rows with a model, in the order of the input.",
    "export": "Write a model as ONNX, as a model file of LIBLINEAR, or as CSV.",
    "info": "Show what a data set or a model contains, or list several models; without arguments, show versions of"
    " libraries.",
}
"""The commands, and what each does."""

COMPARE_MOVED = "distsms compare has moved: in a clone of distsms, it is python -m scripts.compare DATA [options]"
PETSC = "petsc"
"""The name of the words after -- in the file of --config."""
OF_DATA_SETS = ("features", "path")
"""The commands whose rows must be a data set."""
GLUE = "\N{NO-BREAK SPACE}"

OF_RANKS = """\
--stall-timeout TIME  If a rank does not answer for this time, end the job and name the rank; with 0, never (default:
    10m).
--config FILE  Read options from this TOML file, such as lambda = 1e-4; those of the command line come before them.
    `distsms info MODEL --config` prints the file that repeats a model's run.
"""
"""The options of all commands that run on several ranks."""
DESCRIPTION = """\
Linear models that directly optimize ROCArea (AUC), PRBEP (precision/recall break-even point), F-beta and other
measures, on data of any size, with a proved gap to the optimum. Every command runs as one process. From a million rows
on, start it under mpirun or srun on several ranks, which share the work.
"""

EXAMPLE = """\
example:
  distsms shard train.svm data/train
  distsms train data/train --measure rocarea --lambda 1e-4 --output model.h5
  distsms predict model.h5 new.svm --output scores.txt
"""


class HelpFormatter(argparse.HelpFormatter):
    """Wraps descriptions by paragraphs; commands of examples end wrapped lines with a backslash, to be copied."""

    def _fill_text(self, text: str, width: int, indent: str) -> str:
        return "\n\n".join(self._fill_paragraph(part, width) for part in text.strip().split("\n\n")) + "\n"

    @staticmethod
    def _fill_paragraph(text: str, width: int) -> str:
        heading, *lines = text.splitlines()
        if heading.startswith(" "):
            return "\n".join(textwrap.fill(line, width, subsequent_indent=" " * 17) for line in [heading, *lines])
        if not lines or not lines[0].startswith(" "):
            return textwrap.fill(text, width)
        if not heading.startswith("example"):
            return "\n".join([heading, *(textwrap.fill(line, width, subsequent_indent="    ") for line in lines)])
        # Lines of commands may break before an option, and nowhere else.
        glued = (re.sub(" (?!--)", GLUE, command) for command in lines)
        wrapper = textwrap.TextWrapper(
            width - 2, subsequent_indent="    ", break_long_words=False, break_on_hyphens=False
        )
        return "\n".join([heading, *(" \\\n".join(wrapper.wrap(command)) for command in glued)]).replace(GLUE, " ")


class Parser(argparse.ArgumentParser):
    """A parser whose errors fit the terminal."""

    def error(self, message: str) -> NoReturn:
        if processes.rank_of(os.getpid()) not in ("0", "?"):
            time.sleep(FIRST_SECONDS)
        without_value = re.fullmatch("argument (--[a-z-]+): expected one argument", message)
        action = without_value and self._option_string_actions.get(without_value[1])
        if action and action.choices:
            message += f": {' or '.join(map(str, action.choices))}"
        self.print_usage(sys.stderr)
        self.exit(EXIT_USAGE, fold(f"{self.prog}: error: {message}") + "\n")


class _Version(argparse.Action):
    """Prints the version. It is made when it is asked for, since asking a clone for its commit takes a process."""

    def __call__(self, parser: argparse.ArgumentParser, *_: Any) -> NoReturn:
        print(f"distsms {full_version()}")
        parser.exit()


def make_parsers(names: Iterable[str] = COMMANDS) -> tuple[argparse.ArgumentParser, dict[str, argparse.ArgumentParser]]:
    """Return the parser of the whole command line, and the parsers of some commands by their names."""
    parser = Parser(prog="distsms", description=DESCRIPTION, epilog=EXAMPLE, formatter_class=HelpFormatter)
    hidden, text = argparse.SUPPRESS, "show the version and, if it is known, the commit"
    parser.add_argument("--version", action=_Version, nargs=0, dest=hidden, default=hidden, help=text)
    commands = parser.add_subparsers(dest="command", metavar="COMMAND")
    parsers: dict[str, argparse.ArgumentParser] = {}
    for name in names:
        module = importlib.import_module(f"distsms.cli.{name}")
        usage = f"distsms {name} {module.USAGE}"
        parsers[name] = commands.add_parser(name, help=COMMANDS[name], allow_abbrev=False, usage=usage)
        describe(parsers[name], COMMANDS[name], module)
    return parser, parsers


def describe(parser: argparse.ArgumentParser, summary: str, module: Any) -> None:
    """Give a parser the summary and the arguments of a command's module, and what `__main__` asks of a command."""
    parser.description = summary
    parser.epilog, parser.formatter_class = module.EPILOG, HelpFormatter
    parser.set_defaults(program=parser.prog, run=module.run, check=lambda args: None, given={}, written="")
    parser.set_defaults(mpi=True, survive=False, threads=None, signals=None, solver_options=())
    module.add_arguments(parser)
    if parser.get_default("mpi"):
        add_options(parser, OF_RANKS, {"--stall-timeout": {"type": patience, "default": 600.0}})


def parse(argv: Sequence[str]) -> argparse.Namespace:
    """Parse a command line, without the name of the program; `run` of the options is the command's function."""
    argv, command = list(argv), argv[0] if argv else ""
    parser, parsers = make_parsers([command] if command in COMMANDS else COMMANDS)
    of_command = parsers.get(command, parser)
    if command == "compare":
        parser.exit(EXIT_USAGE, fold(COMPARE_MOVED) + "\n")
    if command and command not in COMMANDS and not command.startswith("-"):
        meant = did_you_mean(command, COMMANDS) or f"; the commands are {', '.join(COMMANDS)}"
        parser.error(f"there is no command {command!r}{meant}")
    options: list[str] = []
    if command == "train" and "--" in argv:  # the words after -- are PETSc's options
        at = argv.index("--")
        argv, options = argv[:at], argv[at + 1 :]
    try:
        file, values = config.read(argv) if command in parsers and command != "info" else ("", {})
        words = values.pop(PETSC, []) if command == "train" else []
        if not isinstance(words, list) or not all(isinstance(word, str) for word in words):
            raise ValueError(f"--config {file}: {PETSC}: takes a list of texts")
        options = options or words
        values = config.apply(file, values, of_command, argv)
    except ValueError as error:
        of_command.error(str(error))
    args, unknown = _parse_known(parser, of_command, argv)
    if args.command is None:
        parser.print_help(sys.stderr)
        parser.exit(EXIT_USAGE)
    # Files may stand behind options: evaluate MODEL --json DATA.
    of_command, words = parsers[args.command], argv[argv.index(args.command) + 1 :]
    if unknown and not any(word.startswith("-") for word in unknown):
        args, unknown = of_command.parse_known_intermixed_args(words, argparse.Namespace(command=args.command))
    if unknown:
        hint = _hint(args.command, of_command, unknown)
        of_command.error(f"unrecognized arguments: {' '.join(unknown)}{hint} (see --help)")
    if options and not options[0].startswith("-"):
        of_command.error(f"only PETSc's options may follow --, such as -tao_monitor; found {options[0]!r}")
    if "--json" in argv[:-1] and (file := argv[argv.index("--json") + 1]).endswith(".json"):
        of_command.error(f"--json takes no file, since it prints to standard output: --json > {file}")
    if problem := args.check(args):
        of_command.error(problem)
    args.solver_options = tuple(options)
    if args.mpi:
        args.given = values | config.given(of_command, words) | ({PETSC: options} if options else {})
    return args


def _hint(command: str, parser: argparse.ArgumentParser, unknown: Sequence[str]) -> str:
    """Return what may have been meant by words that a command does not know, with a semicolon before it, or ""."""
    options = [word.partition("=")[0] for word in unknown if word.startswith("-")]
    if any(option.startswith("-tao") for option in options):
        return "; PETSc's options go after --"
    if not options:
        inputs = importlib.import_module(f"distsms.cli.{command}").USAGE.partition(" [options]")[0]
        several = "; for several files give a folder, or a pattern in quotes" if "FILE" in inputs else ""
        return f"; the command takes {inputs}, and no more at a time{several}"
    if command in OF_DATA_SETS and options[0] in make_parsers(["shard"])[1]["shard"]._option_string_actions:
        return f"; {options[0]} is an option of distsms shard, which makes the data sets that distsms {command} takes"
    return "".join(did_you_mean(option, parser._option_string_actions) for option in options)


def _parse_known(
    parser: argparse.ArgumentParser, of_command: argparse.ArgumentParser, argv: Sequence[str]
) -> tuple[argparse.Namespace, list[str]]:
    """Parse the words: `--drop a b` names two columns, and `distsms train --drop a my.csv` a column and a file."""
    said = io.StringIO()
    try:
        with contextlib.redirect_stderr(said):
            return parser.parse_known_args(argv)
    except SystemExit as ended:
        lists = [action for action in of_command._actions if action.dest in ("drop", "keep")]
        if ended.code == EXIT_USAGE and lists:
            for action in lists:
                action.nargs = 1
            with contextlib.suppress(SystemExit), contextlib.redirect_stderr(io.StringIO()):
                return parser.parse_known_args(argv)
        print(said.getvalue(), end="", file=sys.stderr)
        raise
