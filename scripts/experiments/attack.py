"""Attack the proofs: solve small difficult problems in many ways, and look for a vector whose J is below a lower bound.

    python -m scripts.experiments.attack [--problems 1000] [--minutes 10] [--seed 1] [--kinds identical-rows,ties]
    mpirun -n 3 python -m scripts.experiments.attack --problems 100    the same problems, with rows on all ranks
    python -m scripts.experiments.attack --ranks 3 --problems 100      the same on ranks that this process simulates
    python -m scripts.experiments.attack --only steep:1000003 ...      only these problems, with a line for each run

The kind and the seed of a problem determine everything: the rows, the measure, lambda, the target, and the runs. One
run uses the default solver with its default settings; the others use settings that are drawn at random. J is computed
in rational arithmetic, without rounding, at the results of all runs, at those of Clarabel (if it is installed), and
along the rays from 0 through these points. No J may be below a lower bound that a run proved.
scripts/experiments/attacks/judgement.py defines when a run is false, and the floor: the size of rounding errors, below
which nothing can be proved. The exit code is 1 if any run was false.
"""

from __future__ import annotations

import argparse
import os
import sys
import time
import traceback
from collections.abc import Iterator

os.environ.setdefault("OMP_NUM_THREADS", "1")

from distsms.base.communicator import Communicator
from distsms.base.measures import Measure
from distsms.cli.types import count, positive
from distsms.parallel.mpi import world
from scripts import records
from scripts.experiments.attacks import judgement, problems, report
from scripts.experiments.attacks.judgement import Verdict
from tests.support.simulated import run_ranks


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--problems", type=count, default=1000, metavar="N", help="number of problems (%(default)s)")
    parser.add_argument("--minutes", type=positive, default=10.0, help="time limit (%(default)g)")
    parser.add_argument("--seed", type=int, default=1, help="seed of the first problem of each kind (%(default)s)")
    parser.add_argument(
        "--kinds", metavar="KIND,...", help=f"kinds of problems, out of {', '.join(problems.KINDS)} (all)"
    )
    parser.add_argument(
        "--ordering",
        choices=("gather", "exchange", "bins"),
        help="use this ordering in all runs, and leave out problems whose measure is not offered with it",
    )
    parser.add_argument(
        "--only",
        nargs="+",
        type=a_problem,
        metavar="KIND:SEED",
        help="run only these problems, and print all their runs",
    )
    parser.add_argument(
        "--ranks",
        type=count,
        metavar="N",
        help="simulate so many ranks in this process, which is faster than MPI on few cores; lmvm then spreads nothing",
    )
    records.add_json(parser)
    args = parser.parse_args()
    kinds = tuple(args.kinds.split(",")) if args.kinds else ()
    if unknown := {*kinds, *(kind for kind, _ in args.only or [])} - set(problems.KINDS):
        parser.error(f"there is no kind {', '.join(sorted(unknown))}; choose from {', '.join(problems.KINDS)}")
    names = args.only or problems.problems(args.problems, args.seed, kinds)

    def work(comm: Communicator) -> list[Verdict]:
        verdicts = list[Verdict]()
        for of_problem in attack(names, args.minutes, comm, args.ordering, simulated=args.ranks is not None):
            verdicts += of_problem
            for verdict in of_problem if comm.is_root else ():
                if args.only or verdict.false:
                    print(describe(verdict), file=sys.__stdout__, flush=True)
        return verdicts

    comm = Communicator() if args.ranks else world()
    verdicts = run_ranks(args.ranks, work)[0] if args.ranks else work(comm)
    if comm.is_root:
        found = report.all_records(verdicts)
        print("\n" + report.text(found))
        records.write(args.json, "scripts.experiments.attack", found, runs=report.runs_to_look_into(verdicts))
    return int(any(verdict.false for verdict in verdicts))


def a_problem(argument: str) -> tuple[str, int]:
    """Parse KIND:SEED; for argparse."""
    kind, seed = argument.split(":")
    return kind, int(seed)


def attack(
    names: list[tuple[str, int]],
    minutes: float,
    comm: Communicator,
    ordering: str | None = None,
    simulated: bool = False,
) -> Iterator[list[Verdict]]:
    """Return the verdicts on the runs of each problem until the time is over, the same on every rank. Collective."""
    began = time.monotonic()
    for kind, seed in names:
        if comm.bcast(time.monotonic() - began > 60 * minutes):
            return
        problem = problems.problem(kind, seed)
        if ordering:
            if ordering not in Measure.parse(problem.measure).family.losses:
                continue
            problem = problem._replace(ways=tuple(way._replace(ordering=ordering) for way in problem.ways))
        if simulated:  # PETSc cannot spread its vectors over these ranks
            at_root = (way._replace(step="root") if way.settings["solver"] == "lmvm" else way for way in problem.ways)
            problem = problem._replace(ways=tuple(at_root))
        try:
            yield judgement.verdicts(problem, comm)
        except Exception:
            print(f"python -m scripts.experiments.attack --only {problem.name}", file=sys.stderr, flush=True)
            raise


def describe(verdict: Verdict) -> str:
    """Return a line that describes a run and the verdict on it."""
    false = " ".join(f"{name} by {size:.3g}" for name, size in verdict.false.items())
    remarks = [verdict.reason, f"warned: {verdict.warned}" if verdict.warned else ""]
    return (
        f"{verdict.problem} {verdict.solver} {verdict.settings} {verdict.measure} lambda {verdict.lam:.3g}: "
        f"{verdict.status.lower()} after {verdict.evaluations}, [{verdict.lower_bound:.12g}, {verdict.J:.12g}], "
        f"least {verdict.least:.12g}, J(w) - least {verdict.excess:.3g}, target {verdict.target:.3g}, "
        f"floors {verdict.floor:.3g} and {verdict.slopes:.3g}"
        + "".join(f"; {remark}" for remark in remarks if remark)
        + (f" FALSE: {false}" if false else "")
    )


if __name__ == "__main__":
    try:
        code = main()
    except Exception:
        traceback.print_exc()
        if (everybody := world()).size > 1:
            everybody.abort(1)
        code = 2
    sys.exit(code)
