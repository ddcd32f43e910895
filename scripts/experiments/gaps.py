"""Find the gap at which the measure of test rows stops to move, while a training goes on to a smaller one.

    . scripts/environment
    python -m scripts.experiments.gaps adult9=adult9.train.xz,adult9.test.xz news20=news20.xz [--json FILE]

Each set is svmlight text. Without a file of test rows, every fifth row is held out. The best w so far is tested each
time that the gap has become smaller by a factor of 1.8. The change of a measure is its difference from that of the
last w, in standard errors of the measure on the test rows. The first table shows for each run the largest gap from
which on the change is at most a quarter of a standard error. The second one shows, for several rules to end a run, the
largest change over all runs, and how many of the evaluations the rule needs that the default needs.
"""

from __future__ import annotations

import argparse
import tempfile
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
from scipy import sparse

from distsms.cli.types import positive
from distsms.data.shards.dataset import load_matrix, read_manifest
from distsms.measures import RANKING, SHOWN
from distsms.metrics import estimates, ranking
from distsms.optim.result import State
from distsms.optim.run import minimize
from distsms.optim.settings import Settings
from distsms.parallel.communicator import Communicator
from distsms.study.tables import markdown
from scripts import records
from scripts.benchmarks.measuring import Set, objective_of
from scripts.experiments.common import named_files, shard_pair
from scripts.records import Record

ALONE = Communicator()
FACTOR, LAST = 1.8, 1e-5
MOST_EVALUATIONS, MOST_SECONDS = 1000, 40.0
STILL = 0.25
"""The measure no longer moves if it changes by at most this many standard errors."""
DEFAULT = (1e-3, 0.0)
RULES = ((1e-2, 0.0), (3e-3, 0.0), DEFAULT, (1e-3, 0.2), (1e-3, 0.1), (1e-3, 0.05), (1e-3, 0.02), (1e-3, 0.01))
"""The gap of a rule is the larger of a number and a share of J: --epsilon and --relative."""


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("sets", nargs="+", type=named_files, metavar="NAME=TRAIN[,TEST]", help="the sets, see above")
    about = "weights of the regularizer (1e-2 1e-4 1e-6)"
    parser.add_argument("--lambdas", nargs="+", type=positive, default=[1e-2, 1e-4, 1e-6], metavar="LAMBDA", help=about)
    records.add_json(parser)
    args = parser.parse_args()
    found: list[Record] = []
    for name, paths in args.sets:
        with tempfile.TemporaryDirectory() as folder:
            found += courses(name, *shard_pair(*[*paths, None][:2], Path(folder), 1), args.lambdas)
        records.write(args.json, "scripts.experiments.gaps", found)
    print(f"{table(found)}\n\n{table_of_rules(found)}")


def courses(name: str, train: Path, test: Path, lambdas: Sequence[float]) -> list[Record]:
    """Train for both measures at each lambda, and return the course of each run."""
    block, (X, y, _), found = Set(name, train).load(), load_matrix(read_manifest(test)), []
    X = sparse.csr_matrix(X)
    X.resize(X.shape[0], block.p)
    for measure in RANKING:
        for lam in lambdas:
            course: list[dict[str, float]] = []

            def watch(state: State, w: Any, course: list[dict[str, float]] = course, measure: str = measure) -> None:
                if not course or FACTOR * state.gap <= course[-1]["gap"] or state.gap <= LAST:
                    value, error = tested(X @ w, y, measure)
                    point = {"evaluation": state.evaluation, "gap": state.gap, "J": state.best_J}
                    course.append({**point, "test": value, "error": error})

            settings = Settings(lam, LAST, max_evaluations=MOST_EVALUATIONS, time_limit=MOST_SECONDS)
            result = minimize(objective_of(block, measure, ALONE), settings, watch=watch)
            found.append({"set": name, "measure": measure, "lambda": lam, "status": result.status.name.lower()})
            found[-1]["course"] = course
            print(
                f"{name}, {measure}, lambda {lam:g}: {result.evaluations} evaluations, gap {result.gap:.2g}", flush=True
            )
    return found


def tested(scores: Any, y: Any, measure: str) -> tuple[float, float]:
    """Return a measure of scores, and its standard error."""
    if measure == "rocarea":
        estimate = estimates.rocarea_estimate(ranking.placements(scores, y, ALONE), y, ALONE)
    else:
        estimate = estimates.prbep_estimate(ranking.top_k_shares(scores, int(np.sum(y > 0)), ALONE), y, ALONE)
    return float(getattr(ranking.ranking(scores, y, ALONE), measure)), estimate.error


def changes(course: list[dict[str, float]]) -> Any:
    """Return how much the measure differs from the last one, in its standard errors, at each point of a course."""
    last = course[-1]
    return np.abs([point["test"] - last["test"] for point in course]) / max(last["error"], 1e-12)


def settled(course: list[dict[str, float]]) -> dict[str, float]:
    """Return the first point of a course from which on the measure no longer moves."""
    moving = np.flatnonzero(changes(course) > STILL)
    return course[moving[-1] + 1 if len(moving) else 0]


def reached(course: list[dict[str, float]], rule: tuple[float, float]) -> int | None:
    """Return the first point of a course at which a rule ends the run; None if there is none."""
    ends = [k for k, point in enumerate(course) if point["gap"] <= max(rule[0], rule[1] * point["J"])]
    return ends[0] if ends else None


def table(found: list[Record]) -> str:
    """Make a table of the gaps at which the measures of test rows stop to move."""
    header = ["set", "trained for", "lambda", "J", "gap from which on it is still", "as a share of J [%]"]
    header += ["evaluations", "evaluations to 1e-3", "test [%]", "standard error [%]"]
    lines = []
    for record in found:
        course = record["course"]
        still, end, last = settled(course), reached(course, DEFAULT), course[-1]
        lines.append(
            [
                record["set"],
                SHOWN[record["measure"]],
                f"{record['lambda']:g}",
                f"{last['J']:.4g}",
                f"{still['gap']:.2g}",
                f"{100 * still['gap'] / still['J']:.2g}",
                f"{still['evaluation']:.0f}",
                "n.a." if end is None else f"{course[end]['evaluation']:.0f}",
                f"{100 * last['test']:.2f}",
                f"{100 * last['error']:.2f}",
            ]
        )
    return markdown(header, lines)


def table_of_rules(found: list[Record]) -> str:
    """Make a table of rules to end a run: what they save, and how far the measures are then from the last ones."""
    header = ["--epsilon", "--relative", "runs that it ends", "median share of the default's evaluations [%]"]
    header += ["change in standard errors: median", "90 % quantile", "largest"]
    lines = []
    for rule in RULES:
        shares, moved = [], []
        for record in found:
            course = record["course"]
            end, usual = reached(course, rule), reached(course, DEFAULT)
            if end is not None:
                moved.append(changes(course)[end])
                shares.append(course[end]["evaluation"] / course[-1 if usual is None else usual]["evaluation"])
        spread = [f"{value:.2g}" for value in np.quantile(moved, [0.5, 0.9, 1.0])] if moved else ["n.a."] * 3
        share = f"{100 * float(np.median(shares)):.0f}" if shares else "n.a."
        lines.append(
            [f"{rule[0]:g}", f"{rule[1]:g}" if rule[1] else "", f"{len(moved)} of {len(found)}", share, *spread]
        )
    return markdown(header, lines)


if __name__ == "__main__":
    main()
