"""Time ROCArea and PRBEP to a proved gap on one core, compared with logistic regression by LIBLINEAR and scikit-learn.

All programs are given the same rows in memory. LIBLINEAR (-s 0) and scikit-learn (lbfgs) minimize the logistic loss
with C = 1 / (lambda n), each until its default tolerance. The times are seconds of the processor, since other programs
on the machine disturb them less. The programs take turns in each round.

    python -m scripts.benchmarks.liblinear DATA QUICK    print the seconds as JSON; QUICK is 0 or 1
"""

from __future__ import annotations

import json
import sys
import time
import warnings
from collections.abc import Callable, Iterator
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
from scipy import sparse

from distsms.base.communicator import Communicator
from distsms.base.measures import SHOWN
from distsms.optim.result import Result, Status
from distsms.optim.run import minimize
from distsms.optim.settings import Settings
from distsms.shards.dataset import load_matrix, read_manifest
from scripts.benchmarks.made import MADE
from scripts.benchmarks.measuring import Row, Set, objective_of, row, say
from scripts.benchmarks.running import run_module

LAMBDAS = (1e-2, 1e-4, 1e-6)
MEASURES = ("rocarea", "prbep")
EPSILON, RELATIVE = 1e-4, 1e-2
MEDIAN, WORST, LEVEL = "<= 0.7", "<= 1.5", "<= 1"
ROUNDS, LIMIT = 5, 6.0
"""The most rounds for each lambda, and the seconds after which no further round begins."""


def benchmark(given: Set, folder: Path, quick: bool) -> Iterator[Row]:
    """Yield the table rows for a data set."""
    found = run_module("liblinear", given.train, int(quick))
    for lam, record in found.items():
        for measure in MEASURES:
            ours, about = np.array(record["seconds"][measure]), record["proofs"][measure]
            what = f"{SHOWN.get(measure, measure)}, lambda {lam}, {about}: time ratio to "
            for name in sorted(set(record["seconds"]) - set(MEASURES)):
                ratio = ours / np.array(record["seconds"][name])
                yield row("liblinear", given.name, what + name, ratio, "x", WORST * (name == "LIBLINEAR"))


def summary(rows: list[Row]) -> Iterator[Row]:
    """Yield the medians of the ratios of real sets, of made ones and of all, and the worst ratios."""
    groups = {"real sets": [False], "made sets": [True], "all sets": [False, True]}
    for name, target in (("LIBLINEAR", MEDIAN), ("scikit-learn", LEVEL)):
        for sets, kinds in groups.items():
            lines = [line for line in rows if line.what.endswith(name) and (line.data in MADE) in kinds]
            if lines:
                what = f"{len(lines)} time ratios to {name}"
                yield row("liblinear", sets, f"{what}: median", [line.value for line in lines], "x", target)
                if len(kinds) == 1:
                    worst = max(lines, key=lambda line: line.value)
                    yield replace(worst, data=f"{sets}: {worst.data}", what=f"worst: {worst.what}")


def rivals(X: Any, y: np.ndarray, lam: float) -> dict[str, Callable[[], Any]]:
    """Return the other programs, which are given all rows."""
    from sklearn.linear_model import LogisticRegression

    C = 1 / (lam * len(y))

    def scikit() -> None:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            LogisticRegression(C=C, max_iter=1000, fit_intercept=False).fit(X, y)

    found: dict[str, Callable[[], Any]] = {"scikit-learn": scikit}
    try:
        from liblinear.liblinearutil import parameter, problem, train
    except ImportError:
        say("liblinear: LIBLINEAR is not installed, so it is left out; install it: pip install liblinear-official")
        return found
    rows = problem(y.astype(float), sparse.csr_matrix(X))
    return found | {"LIBLINEAR": lambda: train(rows, parameter(f"-s 0 -c {C!r} -q"))}


def main() -> None:
    data, quick = Path(sys.argv[1]), bool(int(sys.argv[2]))
    block = Set("", data).load()
    X, y, _ = load_matrix(read_manifest(data))
    found = {}
    for lam in LAMBDAS[:1] if quick else LAMBDAS:
        results: dict[str, Result] = {}

        def solve(measure: str, settings: Settings, results: dict[str, Result] = results) -> None:
            results[measure] = minimize(objective_of(block, measure, Communicator()), settings)

        settings = Settings(lam, EPSILON, RELATIVE, time_limit=60.0)
        programs = rivals(X, y, lam) | {measure: partial(solve, measure, settings) for measure in MEASURES}
        warm = Settings(lam, EPSILON, max_evaluations=8)  # compiles what is used, and loads PETSc
        for measure in MEASURES:
            solve(measure, warm)
        seconds: dict[str, list[float]] = {name: [] for name in programs}
        end = time.perf_counter() + LIMIT
        for _ in range(1 if quick else ROUNDS):
            for name, run in programs.items():
                start = time.process_time()
                run()
                seconds[name].append(time.process_time() - start)
            if time.perf_counter() > end:
                break
        proofs = {name: _about(result) for name, result in results.items()}
        found[f"{lam:g}"] = {"seconds": seconds, "proofs": proofs}
    print(json.dumps(found))


def _about(result: Result) -> str:
    gap = f"gap {result.gap:.2g} of J {result.J:.3g}"
    return f"{result.evaluations} evaluations, " + (gap if result.status is Status.PROVED else result.status.sentence)


if __name__ == "__main__":
    main()
