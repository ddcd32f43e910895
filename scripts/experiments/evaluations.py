"""Count evaluations to 1 % and 0.1 % of the least J and to a proved gap, in the paper's setting and in the default.

    . scripts/environment
    python -m scripts.experiments.paper evaluations data/a9a data/w8a [--output results/evaluations]

The count to a proved gap is that of a run with the target --epsilon. The other two counts are those of a second run,
whose target is 0.1 % of J. The least J is the smallest that any of these runs found. The counts hardly depend on the
machine. "n.a." means that a run did not reach the target within its limits; the word in brackets says how the run
ended. The program runs as one process.

The paper's setting has history 5, a fixed width of smoothing (c_mu = 10), no scaling of the variables, PETSc's default
update of the diagonal, and a proof by single planes: the gap is the best J so far minus the highest lower bound that
the plane of one evaluation gives.
"""

from __future__ import annotations

import argparse
from collections.abc import Iterator
from pathlib import Path
from statistics import median
from typing import Any

from distsms.base.communicator import Communicator
from distsms.base.measures import SHOWN
from distsms.cli.types import count, positive
from distsms.losses.registry import make_loss
from distsms.optim.objective import Objective
from distsms.optim.result import State, Status
from distsms.optim.run import minimize
from distsms.optim.settings import Settings
from distsms.shards import dataset
from scripts import records
from scripts.compare.tables import markdown
from scripts.records import Record

PAPER = {"history": 5, "planes": 2, "scaling": 0.0, "c_mu": 10.0}
PETSC = ("-tao_lmvm_mat_lmvm_alpha", "1", "-tao_lmvm_mat_lmvm_theta", "0.125")
SETTINGS: dict[str, dict[str, Any]] = {"default": {}, "paper": PAPER | {"solver_options": PETSC}}
"""The paper's setting comes last, since PETSc keeps options that were set once until the process ends."""
MEASURES = ("rocarea", "prbep")
SHARES = {"1 %": 1e-2, "0.1 %": 1e-3}
COUNTS = (*SHARES, "proof")

Problem = tuple[str, str, float]
"""Data set, measure and lambda."""
Run = dict[str, Any]
"""The fields are: proof, the evaluations to the proof, or the status of the run if there is none; course, the best J
after each evaluation of the second run; end, the status of the second run.
"""


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Add the arguments of this command."""
    parser.add_argument("data", nargs="+", type=Path, metavar="DATA", help="data sets made by `distsms shard`")
    lambdas, about = [1e-2, 1e-4, 1e-6], "weights of the regularizer (1e-2 1e-4 1e-6)"
    parser.add_argument("--lambdas", nargs="+", type=positive, metavar="LAMBDA", default=lambdas, help=about)
    parser.add_argument("--epsilon", type=positive, default=1e-3, help="gap to prove (%(default)g)")
    about = "largest number of evaluations of a run (%(default)s)"
    parser.add_argument("--max-evaluations", type=count, default=1000, metavar="N", help=about)
    about = "time limit of a run in seconds (%(default)g)"
    parser.add_argument("--time-limit", type=positive, default=60.0, metavar="S", help=about)
    about = "folder for the table and the JSON file (%(default)s)"
    parser.add_argument("--output", type=Path, metavar="FOLDER", default=Path("results/evaluations"), help=about)
    records.add_json(parser)


def run(args: argparse.Namespace) -> None:
    """Run every setting on every problem, and write the table."""
    args.output.mkdir(parents=True, exist_ok=True)
    runs: dict[str, dict[Problem, Run]] = {}
    for setting, options in SETTINGS.items():
        for data in args.data:
            runs.setdefault(setting, {}).update(_runs_of(data, options, args))
            print(f"{setting}: {data} is done", flush=True)
    found = [_record(problem, {name: runs[name][problem] for name in SETTINGS}) for problem in runs["default"]]
    text = table(found)
    (args.output / "evaluations.md").write_text(text + "\n", encoding="utf-8")
    for path in (args.output / "evaluations.json", args.json):
        records.write(path, "scripts.experiments.paper", found)
    print("\n" + text)


def table(found: list[Record]) -> str:
    """Make a table with the counts in the paper's setting / in the default, and the medians of their ratios."""
    lines: list[list[str]] = []
    ratios: dict[str, list[float]] = {name: [] for name in COUNTS}
    for record in found:
        measure = SHOWN.get(record["measure"], record["measure"])
        line = [record["set"], measure, f"{record['lambda']:g}", f"{record['least_J']:.4g}"]
        for name in COUNTS:
            paper, ours = record["paper"][name], record["default"][name]
            line.append(f"{_shown(paper)} / {_shown(ours)}")
            if isinstance(paper, int) and isinstance(ours, int):
                ratios[name].append(paper / ours)
        lines.append(line)
    medians = [f"{median(ratios[name]):.2f} ({len(ratios[name])})" if ratios[name] else "n.a." for name in COUNTS]
    lines.append(["**median ratio** (number of lines)", "", "", "", *medians])
    return markdown(["set", "measure", "lambda", "least J", *(f"{name}: paper / default" for name in COUNTS)], lines)


def _runs_of(data: Path, options: dict[str, Any], args: argparse.Namespace) -> Iterator[tuple[Problem, Run]]:
    comm = Communicator()
    block = dataset.load(dataset.read_manifest(data), comm)
    limits = {"max_evaluations": args.max_evaluations, "time_limit": args.time_limit}
    for measure in MEASURES:
        loss = make_loss(measure, "exchange", block.labels, block.weights, comm)
        objective = Objective(block.features, [loss], comm)
        for lam in args.lambdas:
            if options:
                proof, course = _by_one_plane(objective, lam, args.epsilon, limits | options)
            else:
                proof, course = _run(objective, Settings(lam, args.epsilon, **limits))
            end, longer = _run(objective, Settings(lam, None, 1e-3, **limits, **options))
            longer = longer if len(longer) >= len(course) else course
            yield (data.name, measure, lam), {"proof": proof, "course": longer, "end": end}


def _run(objective: Objective, settings: Settings) -> tuple[int | str, list[float]]:
    """Return the evaluations to the proof, or how else the run ended, and the best J after each evaluation."""
    course: list[float] = []

    def note(state: State, w: Any) -> None:
        course.append(state.best_J)

    result = minimize(objective, settings, watch=note)
    return result.evaluations if result.status is Status.PROVED else result.status.name.lower(), course


class _Proved(Exception):
    """Raised by the function that watches a run, to end the run."""


def _by_one_plane(
    objective: Objective, lam: float, epsilon: float, more: dict[str, Any]
) -> tuple[int | str, list[float]]:
    """Return the same as `_run`, for a proof that uses the plane of one evaluation at a time.

    The settings of the run have a far smaller target and the same width of smoothing, so that the run does not end
    before such a proof.
    """
    course: list[float] = []
    bounds: list[float] = []

    def note(state: State, w: Any) -> None:
        course.append(state.best_J)
        bounds.append(state.J - state.smoothing_gap - state.optimization_gap)
        if state.best_J - max(bounds) <= epsilon:
            raise _Proved

    further = 1e-4
    settings = Settings(lam, epsilon * further, **more | {"c_mu": more["c_mu"] / further})
    try:
        result = minimize(objective, settings, watch=note)
    except _Proved:
        return len(course), course
    return result.status.name.lower(), course


def _record(problem: Problem, runs: dict[str, Run]) -> Record:
    """Make the record of a problem: the least J, and for each setting the counts and the course of the second run."""
    data, measure, lam = problem
    least = min(min(run["course"]) for run in runs.values())
    counts = {name: _counts(run, least) | {"course": run["course"]} for name, run in runs.items()}
    return {"set": data, "measure": measure, "lambda": lam, "least_J": least, **counts}


def _counts(run: Run, least: float) -> dict[str, Any]:
    """Return for each target in COUNTS the number of evaluations, or the status of the run if it was not reached."""
    found: dict[str, Any] = {"proof": run["proof"]}
    for name, share in SHARES.items():
        reached = (number for number, J in enumerate(run["course"], 1) if least * (1 + share) >= J)
        found[name] = next(reached, run["end"])
    return found


def _shown(evaluations: int | str) -> str:
    return str(evaluations) if isinstance(evaluations, int) else f"n.a. ({evaluations})"
