"""Attacks the proofs: solves small nasty problems in many ways, and looks for a vector whose J is below a lower bound.

    python -m scripts.experiments.attack [--problems 1000] [--minutes 10] [--seed 1] [--kinds identical-rows,ties]
    mpirun -n 3 python -m scripts.experiments.attack ...               the same problems, their rows over ranks
    python -m scripts.experiments.attack --only steep:1000003 ...      these problems alone, run by run

A problem follows from its kind and its seed: rows, measure, lambda, target, and how it is solved: by the default
solver as it is, and by others with settings drawn at random. Vectors whose J is compared with the bounds are those of
all runs, of Clarabel (where it is installed), and along the rays through them, in rational arithmetic: nothing
rounds. What counts as false, and what is the floor below which nothing can be proved, is in
scripts/experiments/attacks/judgement.py. Exit code 1 if anything was false.
"""

from __future__ import annotations

import argparse
import json
import os
import sys
import time
import traceback
from collections.abc import Iterator
from pathlib import Path

os.environ.setdefault("OMP_NUM_THREADS", "1")

from distsms.cli.types import count, positive
from distsms.parallel.communicator import Communicator, world
from scripts.experiments.attacks import judgement, problems, report
from scripts.experiments.attacks.judgement import Verdict


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--problems", type=count, default=1000, metavar="N", help="how many (%(default)s)")
    parser.add_argument("--minutes", type=positive, default=10.0, help="and for how long at most (%(default)g)")
    parser.add_argument("--seed", type=int, default=1, help="of the first problem of each kind (%(default)s)")
    parser.add_argument("--kinds", metavar="KIND,...", help=f"of {', '.join(problems.KINDS)}; all by default")
    parser.add_argument("--only", nargs="+", metavar="KIND:SEED", help="these problems alone, with all their runs")
    parser.add_argument("--json", type=Path, metavar="FILE", help="what is told, and the runs to look into")
    args = parser.parse_args()
    kinds = tuple(args.kinds.split(",")) if args.kinds else ()
    named = [(kind, int(seed)) for kind, seed in (name.split(":") for name in args.only or [])]
    if unknown := {*kinds, *(kind for kind, _ in named)} - set(problems.KINDS):
        parser.error(f"no such kind: {', '.join(sorted(unknown))}")
    comm = world()
    verdicts: list[Verdict] = []
    for some in attack(named or problems.problems(args.problems, args.seed, kinds), args.minutes, comm):
        verdicts += some
        if comm.is_root:
            for one in some:
                if args.only or one.false:
                    print(told(one), flush=True)
    if comm.is_root:
        print("\n" + report.tables(verdicts))
        if args.json:
            args.json.write_text(json.dumps(report.numbers(verdicts), indent=1) + "\n", encoding="utf-8")
    return int(any(one.false for one in verdicts))


def attack(names: list[tuple[str, int]], minutes: float, comm: Communicator) -> Iterator[list[Verdict]]:
    """The verdicts on the runs of each problem, until the time is over; the same on every rank. Collective."""
    began = time.monotonic()
    for kind, seed in names:
        if comm.bcast(time.monotonic() - began > 60 * minutes):
            return
        problem = problems.problem(kind, seed)
        try:
            yield judgement.verdicts(problem, comm)
        except Exception:
            print(f"python -m scripts.experiments.attack --only {problem.name}", file=sys.stderr, flush=True)
            raise


def told(one: Verdict) -> str:
    """A run in a line."""
    false = " ".join(f"{name} by {size:.3g}" for name, size in one.false.items())
    return (
        f"{one.problem} {one.solver} {one.settings} {one.measure} lambda {one.lam:.3g}: {one.status.lower()} after "
        f"{one.evaluations}, [{one.lower_bound:.12g}, {one.J:.12g}], least {one.least:.12g}, J(w) - least "
        f"{one.excess:.3g}, target {one.target:.3g}, floors {one.floor:.3g} and {one.slopes:.3g}"
        + "".join(f"; {word}" for word in (one.reason, one.warned and f"warned: {one.warned}") if word)
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
