"""Find the gap at which the measure of test rows stops to move, while a training goes on to a smaller one.

    . scripts/environment
    python -m scripts.experiments.gaps adult9=adult9.train.xz,adult9.test.xz news20=news20.xz [--json FILE]

Each set is svmlight text. Without a file of test rows, every fifth row is held out. The best w so far is tested each
time that the gap has become smaller by a factor of 1.8. The first table shows for each run the largest gap from which
on the measure differs from that of the last w by at most a quarter of its standard error on the test rows, or 0.1
points. The second one shows, for several rules to end a run, how many of the evaluations of the default they need, and
how much better the last w is on the test rows. A run that a rule does not end goes to its own end.
"""

from __future__ import annotations

import argparse
import tempfile
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
from scipy import sparse

from distsms.base.communicator import Communicator
from distsms.base.measures import RANKING, SHOWN
from distsms.base.scored import Scored
from distsms.cli.types import positive
from distsms.metrics import confidence, ranking
from distsms.optim.result import State
from distsms.optim.run import minimize
from distsms.optim.settings import Settings
from distsms.shards.dataset import load_matrix, read_manifest
from scripts import records
from scripts.benchmarks.measuring import Set, objective_of
from scripts.compare.tables import markdown
from scripts.experiments.common import named_files, shard_pair
from scripts.records import Record

ALONE = Communicator()
FACTOR, LAST = 1.8, 1e-5
MOST_EVALUATIONS, MOST_SECONDS = 1000, 40.0
STILL, LITTLE = 0.25, 1e-3
"""The measure no longer moves if it changes by at most this many standard errors, or by so little."""
DEFAULT = (1e-3, 0.0)
RULES = ((1e-2, 0.0), (3e-3, 0.0), DEFAULT, (3e-4, 0.0), (1e-3, 0.1), (1e-3, 0.02), (1e-3, 0.01))
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
            train, test = shard_pair(paths[0], paths[1] if len(paths) > 1 else None, Path(folder), 1)
            found += courses(name, train, test, args.lambdas)
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
        estimate = confidence.rocarea_estimate(ranking.placements(Scored(scores, y, ALONE)), Scored(y, y, ALONE))
    else:
        estimate = confidence.prbep_estimate(
            ranking.top_k_shares(Scored(scores, y, ALONE), int(np.sum(y > 0))), Scored(y, y, ALONE)
        )
    return float(getattr(ranking.ranking(Scored(scores, y, ALONE)), measure)), estimate.error


def settled(course: list[dict[str, float]]) -> dict[str, float]:
    """Return the first point of a course from which on the measure no longer moves."""
    last = course[-1]
    changes = np.abs([point["test"] - last["test"] for point in course])
    moving = np.flatnonzero(changes > max(STILL * last["error"], LITTLE))
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
    """Make a table of rules to end a run: what they save, and how many points of the test measure they lose."""
    header = ["trained for", "--epsilon", "--relative", "median share of the default's evaluations [%]"]
    header += ["points lost: median", "90 % quantile", "most", "where"]
    lines = []
    for measure in dict.fromkeys(record["measure"] for record in found):
        own = [record for record in found if record["measure"] == measure]
        for rule in RULES:
            shares, lost = [], []
            for record in own:
                course = record["course"]
                points = [course[-1 if (end := reached(course, some)) is None else end] for some in (rule, DEFAULT)]
                shares.append(points[0]["evaluation"] / points[1]["evaluation"])
                lost.append(100 * (course[-1]["test"] - points[0]["test"]))
            spread = [f"{value:.2f}" for value in (*np.quantile(lost, [0.5, 0.9]), max(lost))]
            worst = own[int(np.argmax(lost))]
            epsilon, relative = (f"{number:g}" if number else "" for number in rule)
            where = f"{worst['set']}, lambda {worst['lambda']:g}"
            lines.append([SHOWN[measure], epsilon, relative, f"{100 * float(np.median(shares)):.0f}", *spread, where])
    return markdown(header, lines)


if __name__ == "__main__":
    main()
