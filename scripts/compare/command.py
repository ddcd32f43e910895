"""The command `python -m scripts.compare`."""

from __future__ import annotations

import argparse
import sys
from collections.abc import Sequence
from contextlib import ExitStack
from typing import TYPE_CHECKING, Any

from distsms import cli
from distsms.base.errors import EXIT_OK, EXIT_REQUEUE
from distsms.base.measures import RANKING
from distsms.cli.main import main as run_program
from distsms.cli.options import COMMON, MEMORY, STOPPING, VECTORS
from distsms.cli.types import add_old_names, add_options, positive
from distsms.optim.solvers.base import SOLVERS
from distsms.parallel.signals import StopSignals

if TYPE_CHECKING:
    from collections.abc import Callable

    from distsms.base.communicator import Communicator
    from distsms.optim.settings import Settings
    from distsms.shards.manifest import Manifest
    from scripts.compare.grid import CompletedRun, RunSpec, RunStore
    from scripts.compare.runner import Runner

PROGRAM = "python -m scripts.compare"
EXIT_DISAGREE = 7
"""The exit code if what one run proved is contradicted by another."""
EPILOG = """\
Each combination of measure, lambda and solver is one run; solvers that smooth the risk run once for each --c-mu. The
seconds of a run do not include loading, a few evaluations to warm up, and scoring the test rows. The folder of --output
gets table.md, table.csv, figures/ and a folder with trace and result for each run.

If you give the same command line again, it keeps finished runs and makes the others; a run that was stopped or killed
starts from the beginning. If you add lambdas, solvers or smoothings, their runs are added. If you give larger limits,
those runs that a smaller limit ended are repeated.

exit codes:
  0 all runs have ended   1 error   2 usage   7 the J of one run is below a lower bound that another run proved
  75 stopped by a signal; give the same command line again to continue

example:
  python -m scripts.compare data/train --test data/test --lambdas 1e-2 1e-4 1e-6 --time-limit 5m --output comparison
"""

TITLE_PARTS = 3  # titles of figures show this many parts of the data set's path, such as SET/data/train in our scripts
MEASURES_HELP = "What to optimize: the two measures of the paper (default: both)."


def smoothing(text: str) -> float | None:
    """Parse a positive number, or `adaptive` (None)."""
    return None if text == "adaptive" else positive(text)


def main(argv: Sequence[str] | None = None) -> int:
    """Run the comparison of a command line (without the program's name) and return its exit code."""
    return run_program(sys.argv[1:] if argv is None else argv, lambda words: make_parser().parse_args(words))


def make_parser() -> argparse.ArgumentParser:
    """Return the parser of the command line."""
    parser = cli.Parser(prog=PROGRAM, usage=f"{PROGRAM} DATA [options]", allow_abbrev=False)
    cli.describe(
        parser, "Compare solvers over a grid of measures and lambdas, with tables and figures.", sys.modules[__name__]
    )
    return parser


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Add the arguments to the parser."""
    parser.add_argument("data", metavar="DATA", help="A data set made by `distsms shard`.")
    parser.add_argument(
        "--test",
        metavar="DATA",
        help="Measure the models on this data set, or on this file of a format that `distsms shard` reads.",
    )
    parser.add_argument(
        "--output",
        default="comparison",
        metavar="FOLDER",
        help="The folder for runs, tables and figures (default: %(default)s).",
    )
    parser.add_argument("--measures", nargs="+", choices=RANKING, default=RANKING, help=MEASURES_HELP)
    parser.add_argument(
        "--lambdas",
        nargs="+",
        type=positive,
        default=[1e-2, 1e-4, 1e-6],
        metavar="LAMBDA",
        help="The weights of the regularizer (default: 1e-2 1e-4 1e-6).",
    )
    how = parser.add_argument_group("method")
    how.add_argument(
        "--solvers",
        nargs="+",
        choices=tuple(SOLVERS),
        metavar="SOLVER",
        help=f"The solvers to compare, of {', '.join(SOLVERS)} (default: all but lbfgs, which replaces lmvm where"
        " petsc4py cannot be imported).",
    )
    how.add_argument(
        "--c-mu",
        nargs="+",
        type=smoothing,
        default=[None],
        metavar="C",
        help="The smoothings of lmvm and agm: adaptive, or values of the paper's fixed c_mu (default: adaptive).",
    )
    add_options(how, f"{VECTORS}\n{MEMORY}", COMMON)
    stopping = STOPPING.format(limit="600s for each run")
    add_options(parser, stopping, {**COMMON, "--time-limit": {"default": 600.0}})
    parser.set_defaults(signals=StopSignals())
    parser.add_argument(
        "--times-first",
        type=positive,
        metavar="N",
        help="Stop a run after N times the seconds (but not before one second) that the first of --solvers took for the"
        " same measure and lambda.",
    )
    parser.add_argument(
        "--ignore-new-features",
        action="store_true",
        help="Leave out those columns of --test that DATA lacks, instead of refusing them.",
    )
    parser.add_argument(
        "--figures",
        action=argparse.BooleanOptionalAction,
        default=True,
        help="Draw figures, which needs matplotlib (default: yes).",
    )
    parser.add_argument("--overwrite", action="store_true", help="Replace the comparison in the folder by a new one.")
    parser.add_argument("--quiet", action="store_true", help="Print nothing but errors.")
    add_old_names(parser, **{"lambda": "lambdas", "measure": "measures", "solver": "solvers"})


def run(args: argparse.Namespace, comm: Communicator) -> int:
    """Make the missing runs, then the tables and figures of all runs. **Collective.**"""
    from scripts.compare.grid import RunStore

    with args.signals as signals, ExitStack() as held:
        return _run(args, comm, signals, RunStore(args.output), held)


def _solver_for(name: str | None, measure: str, comm: Communicator, say: Callable[[str], None]) -> str:
    """Return the solver to use; `name` is the user's, or None. Print the reason for an unusual one. Collective."""
    from distsms.training.solver_choice import choose_solver

    solver, why = choose_solver(name, measure, comm)
    if why:
        say(f"solver    {solver}: {why}")
    return solver


def _run(args: argparse.Namespace, comm: Communicator, signals: StopSignals, folder: RunStore, held: Any) -> int:
    import os
    from dataclasses import fields

    from distsms.base import files
    from distsms.cli.options import rows_held
    from distsms.cli.terminal import Speaker
    from distsms.models import inputs
    from distsms.optim.settings import Settings
    from distsms.parallel.vectors import choose_step
    from distsms.shards import dataset
    from distsms.training.plan import make_plan
    from distsms.training.solver_choice import settings_for
    from distsms.training.task import Distribution
    from distsms.workflow.provenance import versions
    from scripts.compare.grid import grid
    from scripts.compare.runner import HeldOutRows, Runner

    say, neighbours = Speaker(comm.is_root and not args.quiet), comm.node_ranks()
    held.callback(say.close)
    solvers = args.solvers or [None, *(name for name in SOLVERS if name not in ("lmvm", "lbfgs"))]
    solvers = [_solver_for(name, args.measures[0], comm, say) for name in solvers]
    with comm.fail_together():  # all checks that can be made before the data are read
        cells = grid(args.measures, args.lambdas, solvers, args.c_mu)
        alike = {each.name: getattr(args, each.name) for each in fields(Settings) if each.name in args}
        del alike["c_mu"], alike["solver_options"]
        settings = {c: settings_for(c.measure, c.solver, lam=c.lam, c_mu=c.c_mu, **alike) for c in cells}
        common = next(iter(settings.values()))
        manifest = dataset.read_manifest(args.data)
        losses = len({cell.measure for cell in cells})
        distribution = Distribution(args.ordering, args.step)
        plans = [
            make_plan(manifest, c.measure, one, comm.size, neighbours, distribution, memory=args.memory, losses=losses)
            for c, one in settings.items()
        ]
        room = min((budget for plan in plans if (budget := plan.room(comm.is_root))), default=None)
        if args.test:
            inputs.check(args.test, inputs.untrained_model(manifest), inputs.InputOptions(args.ignore_new_features))
        if comm.is_root:
            inputs.check_distinct(args.output, args.data, args.test)
            folder.check(args.overwrite)
            held.enter_context(files.exclusive(folder.path))
            identity = _identity(args, common, manifest, comm.size)
            if not args.overwrite:
                folder.open(identity, overwrite=False)
                folder.all_finished()  # raises InputError where a run is damaged
    say(f"{args.data}: {manifest.n} rows, {manifest.p} columns, {manifest.n_pos} positive; {comm.size} rank(s)")
    block = dataset.load(manifest, comm, budget=room)
    if args.memory:
        for line in rows_held(block, comm, args.memory, whole=False):
            say(line)
    test = HeldOutRows(args.test, manifest, comm, args.ignore_new_features) if args.test else None
    with comm.fail_together():
        if comm.is_root and args.overwrite:  # nothing that could be wrong with the data costs the old comparison
            folder.open(identity, overwrite=True)
    about = {"host": os.uname().nodename, "versions": versions()}
    step, _ = choose_step(args.step, manifest.p, comm.size)
    runner = Runner(block, test, args.ordering, folder, comm, signals.wanted, about, step)
    stopped = _run_cells(settings, runner, say, args.times_first)
    runner.close()
    disagree, draws = 0, args.figures and not stopped  # no figures after a signal: the process is to end soon
    heading = _heading(args.data, manifest, common, comm.size)
    with comm.fail_together():
        if comm.is_root:
            disagree = _conclude(args.data, folder, settings, heading, draws, say)
    code = EXIT_REQUEUE if stopped else comm.bcast(EXIT_DISAGREE if disagree else EXIT_OK)
    say.close()
    return code


def _run_cells(
    settings: dict[RunSpec, Settings], runner: Runner, say: Callable[[str], None], times_first: float | None
) -> bool:
    """Make the runs that are not finished, and return whether a signal stopped them; with `times_first`, shorten the
    time limits in `settings`. **Collective.**"""
    from dataclasses import replace

    from distsms.base.formatting import format_objective
    from distsms.optim.result import Status

    comm, width, first = runner.comm, len(str(len(settings))), next(iter(settings))
    for number, (cell, one) in enumerate(settings.items(), 1):
        if times_first and cell.solver != first.solver:
            before = (
                runner.folder.finished(first._replace(measure=cell.measure, lam=cell.lam)) if comm.is_root else None
            )
            seconds = comm.bcast(before and before.result["seconds"])
            one = settings[cell] = replace(one, time_limit=min(one.time_limit, max(1.0, times_first * seconds)))
        head = f"[{number:{width}d}/{len(settings)}] {cell.measure} {cell.lam:g} {cell.method}"
        if comm.bcast(comm.is_root and _is_done(runner.folder, cell, one)):
            say(f"{head} was run before")
            continue
        result = runner.run(cell, one)
        say(
            f"{head}\n  {result.status.name.lower()}, J {format_objective(result.J)}, gap {result.gap:.2g},"
            f" {result.evaluations} evaluations, {result.seconds:.2f} s"
        )
        if result.status is Status.STOPPED:
            say("stopped by a signal; finished runs are kept. Give the same command line again: it repeats this run")
            return True
    return False


def _is_done(folder: RunStore, cell: RunSpec, settings: Settings) -> bool:
    """Return whether a run need not be repeated: it ended, and no limit that ended it is larger now. On the root."""
    found = folder.finished(cell)
    return found is not None and not found.cut_short(settings)


def _conclude(
    data: str, folder: RunStore, grid: dict[RunSpec, Settings], heading: str, draws: bool, say: Callable[[str], None]
) -> int:
    """Write tables and figures of all runs in the folder, and return the number of contradictions. On the root."""
    from scripts.compare import tables

    runs = folder.all_finished()
    hosts = ", ".join(sorted({run.result["host"] for run in runs}))
    folder.write("table.csv", tables.as_csv(runs))
    heading += f" Run on {hosts or 'no host yet'}."
    done = sum(_is_done(folder, cell, settings) for cell, settings in grid.items())
    if done < len(grid):
        heading += (
            f"\n\n**{done} of the {len(grid)} runs asked for last are finished**; to continue, repeat the command."
        )
    folder.write("table.md", tables.as_markdown(runs, heading))
    say(f"\n{folder.path / 'table.md'}, {folder.path / 'table.csv'}: {len(runs)} runs")
    if draws and runs:
        say(_figures(data, folder, runs))
    if any(run.result["test"] for run in runs):
        say("\n" + tables.aligned(*tables.table2(runs)))
    contradictions = tables.disagreements(runs)
    for contradiction in contradictions:
        print(f"{PROGRAM}: the runs contradict each other: {contradiction}", file=sys.stderr)
    return len(contradictions)


def _figures(data: str, folder: RunStore, runs: list[CompletedRun]) -> str:
    """Draw the figures, and return a line that says where they are, or what is missing to draw them."""
    from pathlib import Path

    from distsms.base.files import naming_failures

    try:
        from scripts.compare import figures
    except ImportError as error:
        return f"no figures: {error}. To draw them: pip install 'distsms[plot]', and repeat the command"
    title = "/".join(Path(data).resolve().parts[-TITLE_PARTS:])
    with naming_failures(folder.path / "figures"):
        written = figures.draw(runs, title, folder.path / "figures")
    return f"{folder.path / 'figures'}: {len(written)} files"


def _identity(args: argparse.Namespace, settings: Settings, manifest: Manifest, ranks: int) -> dict[str, Any]:
    """Return the options and data that must be the same for all runs of a comparison."""
    from distsms.optim.settings import describe
    from scripts.compare import grid

    own = ("lam", "solver", "c_mu", "solver_options")
    return {
        "format": grid.FORMAT,
        "version": grid.VERSION,
        "data": {"path": args.data, "fingerprint": manifest.fingerprint},
        "test": {"path": args.test, "fingerprint": _fingerprint(args.test)},
        "settings": {name: value for name, value in describe(settings).items() if name not in own},
        "ordering": args.ordering,
        "step": args.step,
        "ignore_new_features": args.ignore_new_features,
        "ranks": ranks,
        "memory": args.memory,  # seconds depend on it
    }


def _fingerprint(path: str | None) -> str | None:
    """Return the fingerprint of a data set or of files."""
    from pathlib import Path

    from distsms.ingest.file_names import files_of, is_data_set
    from distsms.shards import manifest

    if path is None:
        return None
    if is_data_set(path):
        return manifest.read_manifest(path).fingerprint
    return " ".join(manifest.file_sha256(Path(file)) for file in files_of(path))


def _heading(data: str, manifest: Manifest, common: Settings, ranks: int) -> str:
    return (
        f"# {data}\n\n{manifest.n} rows, {manifest.p} columns, {manifest.describe_entries()}, {manifest.n_pos} positive"
        f"; gap to prove {common.describe_target()}, at most {common.time_limit:g} s and {common.max_evaluations} "
        f"evaluations a run (limits of the last call), {ranks} rank(s). Seconds are of solving alone."
    )
