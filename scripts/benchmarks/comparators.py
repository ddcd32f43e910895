"""Time training to a proved gap on one core: lmvm compared with dlib's trainer and with cutting planes (bmrm).

dlib's `svm_rank_trainer` minimizes 1/2 ||w||^2 + C R(w), where R is the mean over pairs of max(0, 1 - (s_i - s_j)).
With C = 1 / lambda this is J / lambda. dlib's epsilon is a gap in R, and that of distsms a gap in J; both programs get
the same epsilon. This module computes J at dlib's w, which shows how close dlib came to the minimum. It also compares
the times until J is within 1 % and within 0.1 % of the least J. dlib cannot train for PRBEP. The time for loading the
data does not count.

    python -m scripts.benchmarks.comparators DATA C EPSILON W    run dlib once, write w to the file W, print JSON
"""

from __future__ import annotations

import json
import sys
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np

from distsms.base.communicator import Communicator
from distsms.optim.objective import Objective, Request
from distsms.optim.penalty import ElasticNet
from distsms.optim.result import Result, State
from distsms.optim.run import minimize
from distsms.optim.settings import Settings
from distsms.shards.dataset import load_matrix, read_manifest
from scripts.benchmarks.measuring import EPSILON, LAMBDA, Row, Set, objective_of, row, say
from scripts.benchmarks.running import run_module

LADDER = (0.1, 0.03, 0.01, 0.003, EPSILON, 3e-4, 1e-4)
FASTER = ("adult9", "web8")
"""A data set has a target if its name begins with one of these words."""


def benchmark(given: Set, folder: Path, quick: bool) -> Iterator[Row]:
    """Yield the table rows for a data set.

    If a program does not end within the limit, the limit counts as its time. The true ratio is then larger than the
    one in the table.
    """
    limit = 3.0 if quick else 600.0
    block = given.load()
    target = ">= 50" if given.name.startswith(FASTER) else ""
    for measure in ("rocarea", "prbep"):
        objective = objective_of(block, measure, Communicator())
        runs = [solve(objective, Settings(LAMBDA, EPSILON)) for _ in range(1 if quick else 5)]
        ours = [result.seconds for result, _ in runs]
        yield row("comparators", given.name, f"{measure}: lmvm, time to prove a gap of {EPSILON:g}", ours, "s")
        planes = solve(objective, Settings(LAMBDA, EPSILON, solver="bmrm", time_limit=limit))[0]
        note = "" if planes.status.exit_code == 0 else f" (bmrm stopped without a proof after {planes.seconds:.0f} s)"
        ratio = planes.seconds / np.array(ours)
        what = f"{measure}: time ratio bmrm / lmvm to prove a gap of {EPSILON:g}{note}"
        yield row("comparators", given.name, what, ratio, "x", target)
        if measure == "rocarea":
            yield from _dlib(given, folder, objective, ours, limit, target)


def solve(objective: Objective, settings: Settings) -> tuple[Result, list[State]]:
    """Make a run; return its result and its state after each evaluation."""
    course: list[State] = []
    return minimize(objective, settings, watch=lambda state, w: course.append(state)), course


def _dlib(
    given: Set, folder: Path, objective: Objective, ours: list[float], limit: float, target: str
) -> Iterator[Row]:
    best, course = solve(objective, Settings(LAMBDA, EPSILON / 100, max_evaluations=500, time_limit=limit))
    try:
        import dlib  # noqa: F401
    except ImportError:
        say("comparators: dlib is not installed, so its rows are missing; install it: pip install 'distsms[bench]'")
        return
    rungs = []  # (epsilon, seconds, J)
    for epsilon in LADDER:
        found = run_module("comparators", given.train, 1 / LAMBDA, epsilon, folder / "w.npy", limit=limit)
        if found is None:
            break
        request = Request(np.load(folder / "w.npy"), 0.0, ElasticNet(LAMBDA))
        rungs.append((epsilon, found["seconds"], objective.evaluate([request])[0].J))
    least = min([best.J, *(J for _, _, J in rungs)])
    proofs = [seconds for epsilon, seconds, _ in rungs if epsilon == EPSILON]
    note = "" if proofs else f" (dlib stopped after {limit:.0f} s)"
    ratio = (proofs[0] if proofs else limit) / np.array(ours)
    what = f"rocarea: time ratio dlib / lmvm to prove a gap of {EPSILON:g}{note}"
    yield row("comparators", given.name, what, ratio, "x", target)
    for epsilon, _, J in rungs:
        if epsilon == EPSILON:
            yield row("comparators", given.name, "rocarea: J of dlib's model minus the least J", J - least)
    for share in (0.01, 0.001):
        mine = next((state.seconds for state in course if state.best_J <= (1 + share) * least), np.nan)
        theirs = next((seconds for _, seconds, J in rungs if (1 + share) * least >= J), np.nan)
        if np.isfinite(theirs):
            what = f"rocarea: time ratio dlib / lmvm until J is within {100 * share:g} % of the least"
            yield row("comparators", given.name, what, theirs / mine, "x")
        else:
            what = f"rocarea: lmvm, time until J is within {100 * share:g} % of the least (dlib does not get there)"
            yield row("comparators", given.name, what, mine, "s")


def run_dlib(data: Path, C: float, epsilon: float, w_file: Path) -> dict[str, Any]:
    """Train once with dlib, write w to a file, and return the seconds."""
    import dlib

    X, y, _ = load_matrix(read_manifest(data))
    pair = dlib.sparse_ranking_pair()
    for i in range(X.shape[0]):
        entries = dlib.sparse_vector()
        for k in range(X.indptr[i], X.indptr[i + 1]):
            entries.append(dlib.pair(int(X.indices[k]), float(X.data[k])))
        (pair.relevant if y[i] > 0 else pair.nonrelevant).append(entries)
    trainer = dlib.svm_rank_trainer_sparse()
    trainer.c, trainer.epsilon, trainer.max_iterations = C, epsilon, 10**6
    start = time.perf_counter()
    ranker = trainer.train(pair)
    seconds = time.perf_counter() - start
    w = np.zeros(X.shape[1])
    for entry in ranker.weights:
        w[entry.first] = entry.second
    np.save(w_file, w)
    return {"seconds": seconds}


if __name__ == "__main__":
    print(json.dumps(run_dlib(Path(sys.argv[1]), float(sys.argv[2]), float(sys.argv[3]), Path(sys.argv[4]))))
