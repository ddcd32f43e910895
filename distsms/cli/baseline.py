"""Set the obvious alternatives beside distsms on the same folds: does direct optimization pay on these data?"""

from __future__ import annotations

import argparse
from typing import TYPE_CHECKING, Any

from distsms.cli.options import SOLVERS_HELP, USUAL_SOLVER, add_stopping, long_run
from distsms.cli.path import add_grid
from distsms.cli.types import add_threads, count
from distsms.errors import EXIT_OK, EXIT_REQUEUE, InputError
from distsms.measures import SHOWN
from distsms.optim.solvers.base import SOLVERS

if TYPE_CHECKING:
    from collections.abc import Callable

    from distsms.data.shards.manifest import Manifest
    from distsms.optim.settings import Settings
    from distsms.parallel.communicator import Communicator
    from distsms.parallel.signals import StopSignals
    from distsms.selection.baseline import BaselineStore, Fit, Rows, Try, Unit

PROBLEM = ("measure", "folds", "folds_by", "seed", "epsilon", "relative")
"""What `--path` says instead of the options."""
NAME = "baseline"
USAGE = "DATA [options]"
METHODS = ("distsms", "logistic", "logistic-balanced", "svm", "svm-balanced", "trees")
EPILOG = """\
The methods are distsms itself, LogisticRegression and LinearSVC of scikit-learn (classes as they are, and balanced),
and the trees of XGBoost. All of them are trained on the folds that `distsms path` makes with the same --folds,
--folds-by and --seed. The linear methods are tuned on the same lambdas (scikit-learn's C is 1 / (lambda n)), and each
fold is measured at the lambda that is best on the other folds. Differences are paired by row.

The trees' settings are searched for each fold on its training rows alone. --tree-fits settings are tried (leaves,
learning rate, minimum child weight, regularization, shares of columns and rows; the first is XGBoost's own, of depth
6). Each is trained on four fifths of these rows, stops early by the measure on the other fifth, and is judged by it.
The best setting is then fitted to all training rows. So trees take --folds x (--tree-fits + 1) fits.

An interval says how the method, trained on new rows, would do on new rows: the variance of the rows is enlarged for
what other training rows would change (Nadeau and Bengio). The other folds also choose which of the other linear
methods is the best one. With fewer than 10 rows of a class there is no verdict.

Fits are dealt out to the ranks. Each rank holds all rows, since the other libraries need them in one process; take a
sample of larger data. The command needs scikit-learn and XGBoost (pip install 'distsms[baseline]').

The folder of --output gets baseline.json and a folder `fits` with each fit and its scores. The same command line again
keeps what is finished and makes the rest; more lambdas and methods add fits.

exit codes:
  0 the table is complete   1 error   2 usage   75 stopped by a signal or --time-limit; the same command line goes on

examples:
  distsms baseline data/train --measure rocarea
  distsms path data/train --output path
  mpirun -n 4 distsms baseline data/train --path path --output beside-path
"""

BYTES = 48
"""Of a stored entry: SciPy's rows, a training's copy of them, and what the libraries make of it."""


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """What `distsms baseline` takes."""
    parser.add_argument("data", metavar="DATA", help="A data set made by `distsms shard`.")
    add_grid(parser)
    parser.add_argument(
        "--path",
        metavar="FOLDER",
        help="Take measure, lambdas, folds, seed and target from this folder of `distsms path`.",
    )
    parser.add_argument(
        "--methods", nargs="+", choices=METHODS, default=METHODS, help="The methods to compare (default: all)."
    )
    parser.add_argument(
        "--tree-fits",
        type=count,
        default=20,
        metavar="N",
        help="How many settings of trees are tried for each fold (default: %(default)s).",
    )
    parser.add_argument(
        "--output", default="baseline", metavar="FOLDER", help="The folder for fits and table (default: %(default)s)."
    )
    parser.add_argument(
        "--solver", choices=tuple(SOLVERS), help=f"The solver of the fits of distsms. {SOLVERS_HELP}. {USUAL_SOLVER}."
    )
    add_stopping(parser, float("inf"))
    parser.set_defaults(usual={name: parser.get_default(name) for name in PROBLEM})
    add_threads(parser)
    parser.add_argument("--quiet", action="store_true", help="Print nothing but errors.")


def run(args: argparse.Namespace, comm: Communicator) -> int:
    """Fit what is missing, then the table. Collective."""
    from distsms.selection.baseline import BaselineStore

    with long_run(args, comm) as (signals, held):
        return _run(args, comm, signals, BaselineStore(args.output), held)


def _run(args: argparse.Namespace, comm: Communicator, signals: StopSignals, folder: BaselineStore, held: Any) -> int:
    import time

    import numpy as np

    from distsms.cli.options import solver_for, speaker
    from distsms.data.shards import dataset
    from distsms.inference import inputs
    from distsms.selection import baseline, competitors, folds
    from distsms.utils import files

    say, known = speaker(comm.is_root and not args.quiet), set[Any]()
    ours = competitors.OURS in args.methods
    solver = solver_for(args, args.solver, args.measure, comm, say) if ours else args.solver or "lmvm"
    with comm.fail_together():  # everything that can be refused before the data are read
        manifest = dataset.read_manifest(args.data)
        dataset.check_readable(manifest)
        identity, lambdas, settings = _asked(args, solver, manifest)
        competitors.require(args.methods)
        _require_memory(manifest, len(comm.node_ranks()))
        if comm.is_root:
            inputs.check_distinct(args.output, args.data, args.path)
            folder.check()
            held.enter_context(files.exclusive(folder.path))
            folder.open(identity)
            known = folder.done()
    known = comm.bcast(known)
    wanted = baseline.units(args.methods, lambdas, identity["folds"], args.tree_fits)
    missing = [one for one in wanted if one not in known]
    say(f"data      {args.data}: {manifest.n} rows, {manifest.p} columns, {manifest.n_pos} positive")
    say(
        f"problem   {identity['measure']}; {identity['folds']} folds by {identity['folds_by']}; lambda "
        + ", ".join(f"{one:g}" for one in lambdas)
    )
    say(f"fits      {len(wanted)}, of which {len(wanted) - len(missing)} are there")
    if "trees" in args.methods:
        say(f"trees     {args.tree_fits} settings tried for each fold, on its training rows; then the best is fitted")
    say("")
    with comm.fail_together():
        X, y, counted = dataset.load_matrix(manifest)
        belonging = folds.marks(manifest, identity["folds_by"], 0, manifest.n)[counted]
        how = identity["folds"], identity["seed"], competitors.ALONE
        by = identity["folds_by"]
        rows = baseline.Rows(X, y, folds.dealt(by, belonging, y, np.ones(len(y), bool), *how), by, belonging)
    end = time.monotonic() + args.time_limit

    def enough() -> bool:
        return signals.wanted() or time.monotonic() > end

    def run(these: list[Unit]) -> bool:
        """Fit what is this rank's of these; whether any rank was stopped before. Collective."""
        own = these[comm.rank :: comm.size]
        told = Teller(folder, identity["measure"], len(own), comm.size, say)
        stopped = baseline.run(rows, own, identity["measure"], settings, told.keep, enough, told.begin)
        return any(comm.allgather(stopped))

    stopped = run(missing)
    if not stopped:
        with comm.fail_together():
            if comm.is_root:
                there = {(one.method, one.setting, one.fold) for one in folder.fits()}
                best = baseline.searched(folder.tries(), args.tree_fits) if "trees" in args.methods else []
                missing = [one for one in best if one[:3] not in there]
        stopped = run(comm.bcast(missing))
    if stopped:
        say("\nstopped; finished fits are kept, and the same line again goes on")
        code = EXIT_REQUEUE
    else:
        code = EXIT_OK
        with comm.fail_together():
            if comm.is_root:
                _conclude(folder, identity, rows, solver, _notes(identity, manifest), say)
    comm.barrier()  # a launcher may kill the rest once one rank returns an exit code other than 0
    return code


def _asked(args: argparse.Namespace, solver: str, manifest: Manifest) -> tuple[dict[str, Any], list[float], Settings]:
    """What fits must share to stand in one table, the lambdas, and the settings of ours. Raises InputError."""
    from distsms.selection import folds
    from distsms.selection.path_store import PathStore
    from distsms.training.solver_choice import settings_for

    problem = {name: getattr(args, name) for name in PROBLEM}
    lambdas = sorted({one for some in args.lambdas for one in some}, reverse=True)
    if args.path:
        there = PathStore(args.path)
        told = there.read("problem", "points")
        if told["problem"]["data"]["fingerprint"] != manifest.fingerprint:
            raise InputError(f"{args.path}: is a path on other data, {told['problem']['data']['path']}")
        given = {name: value for name, value in problem.items() if value != args.usual[name]}
        problem = {name: told["problem"].get(name, problem[name]) for name in problem}
        for name, value in given.items():
            if value != problem[name]:
                raise InputError(
                    f"--{name.replace('_', '-')} {value}: {args.path} is a path with {name} {problem[name]}; leave out "
                    "one of both"
                )
        lambdas = sorted({one.lam for one in there.points()}, reverse=True)
    if not problem["folds"]:
        raise InputError(
            "a baseline wants folds: at least 2" + f", and the path {args.path} has none" * bool(args.path)
        )
    target = problem["epsilon"], problem["relative"]
    settings = settings_for(problem["measure"], solver, *target, lam=lambdas[0], max_evaluations=args.max_evaluations)
    problem |= {"epsilon": settings.epsilon, "relative": settings.relative}
    problem |= {"folds_by": folds.chosen(problem["folds_by"], manifest)}
    return {"data": {"path": args.data, "fingerprint": manifest.fingerprint}, **problem}, lambdas, settings


def _require_memory(manifest: Manifest, here: int) -> None:
    """Raise InputError if this node's ranks would need more memory than it has. Local."""
    from distsms.training import plan
    from distsms.utils.formatting import format_bytes

    each, there = plan.INTERPRETER + BYTES * manifest.nnz + plan.ROW_BYTES * manifest.n, plan.available()
    if here * each > there:
        raise InputError(
            f"{here} rank(s) of this node would need {format_bytes(here * each)}, and {format_bytes(there)} are there: "
            f"each holds all rows, about {format_bytes(each)}. Take fewer ranks, or a sample of the rows"
        )


class Teller:
    """Keeps this rank's fits, and says a line for each: what is being fitted, then what came of it."""

    def __init__(self, folder: BaselineStore, measure: str, count: int, ranks: int, say: Callable[..., None]) -> None:
        self._folder, self._measure, self._say = folder, measure, say
        self._done, self._count, self._of = 0, count, f"/{count}{' of this rank' if ranks > 1 else ''}]"
        self._what = ""

    def begin(self, unit: Unit) -> None:
        """Before a fit."""
        from distsms.selection import trees

        self._done += 1
        number, setting, self._what = f"[{self._done:{len(str(self._count))}d}{self._of}", f"{unit.setting:g}", ""
        if unit.method == "trees":
            setting = f"best of {setting}" if unit.best else f"try {setting}"
            self._what = trees.words(int(unit.best.setting if unit.best else unit.setting))
        self._say(f"{number} {unit.method:17s} {setting:<10s} fold {unit.fold}  ", end="")

    def keep(self, found: Fit | Try, scores: Any = None) -> None:
        """After it."""
        from distsms.selection.baseline import Try

        self._folder.keep(found, scores)
        if isinstance(found, Try):
            said, note = f"inner rows' {SHOWN[self._measure]} {found.value:.6f}, {found.rounds} rounds", self._what
        else:
            said, note = f"ROCArea {found.rocarea:.6f}  PRBEP {found.prbep:.6f}", found.note or self._what
        self._say(f"{said}  {found.seconds:8.2f} s  {note}")


def _notes(identity: dict[str, Any], manifest: Manifest) -> list[str]:
    """What to know of folds by what belongs together, in sentences."""
    from distsms.data import duplicates
    from distsms.selection import folds

    by = identity["folds_by"]
    known = [one for one in folds.CAVEATS if one == by or (one == "groups" and manifest.group)]
    warning = "" if by == "doubles" else duplicates.warning(manifest.doubles, manifest.n)
    return [f"Note: {folds.CAVEATS[one]}." for one in known] + [f"Warning: {warning}."] * bool(warning)


def _conclude(
    folder: BaselineStore,
    identity: dict[str, Any],
    rows: Rows,
    solver: str,
    notes: list[str],
    say: Callable[[str], None],
) -> None:
    """The table and baseline.json, of all fits in the folder that are complete. On the root."""
    from distsms.selection import baseline, baseline_text

    measure = identity["measure"]
    found = baseline.standings(folder, folder.fits(), rows, measure)
    words = [*baseline_text.sentences(found, measure), *notes]
    say(f"\n{baseline_text.table(found, measure)}\n")
    for line in words:
        say(line)
    folder.describe(identity, solver=solver, methods=[one.as_json() for one in found], sentences=words)
    say(f"\n{folder.identity}, and each fit beside it in {folder.parts}/")
