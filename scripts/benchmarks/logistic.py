"""Time logistic regression until J is within 1 % and 0.1 % of its minimum, compared with scikit-learn and LIBLINEAR.

All programs get the same rows with a constant column, and minimize J / lambda with C = 1 / (lambda n). Each program is
stopped at its first iterate, or with the largest of its tolerances, that comes as close as is asked for. For distsms
that is the least limit of evaluations. So the time for noticing that does not count, and neither does that for loading.
The programs take turns in each round; those that are slow take part in the first round only. With two ranks, only
distsms uses both.

    [mpirun -n 2] python -m scripts.benchmarks.logistic DATA ROUNDS    print the seconds as JSON
"""

from __future__ import annotations

import json
import sys
import warnings
from collections.abc import Callable, Iterator
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
from scipy import sparse

from distsms.base.communicator import Communicator
from distsms.losses.registry import make_loss
from distsms.matrix.augmented import with_bias
from distsms.optim.objective import Objective, Request
from distsms.optim.penalty import ElasticNet
from distsms.optim.result import State
from distsms.optim.run import minimize
from distsms.optim.settings import Settings
from distsms.parallel.mpi import world
from distsms.shards.dataset import load_matrix, read_manifest
from scripts.benchmarks.measuring import Row, Set, row, say
from scripts.benchmarks.running import run_module
from scripts.benchmarks.two_ranks import seconds, wait

LAMBDAS, SHARES = (1e-4, 1e-6), (0.01, 0.001)
OURS = "distsms"
MOST_COLUMNS = 2000
"""newton-cholesky solves with a dense matrix of p^2 numbers; it is left out if p is larger."""
SMALL = 0.1
"""The gap that distsms has to prove, as a share of the distance from the minimum: it does not end the run earlier."""
SLOW = 5
"""A program that takes this many times as long as the fastest one takes part in the first round only."""
STEPS = np.unique(np.round(1.15 ** np.arange(50)).astype(int)).tolist()
TOLERANCES = (10.0 ** (-0.25 * np.arange(2, 40))).tolist()

Program = tuple[Callable[[Any], np.ndarray], list[Any]]  # what returns w, and its limits, from loose to tight


def benchmark(given: Set, folder: Path, quick: bool) -> Iterator[Row]:
    """Yield the table rows for a data set."""
    rounds = 2 if quick else 9
    for ranks, target in ((1, "<= 1.5"), (2, "<= 1")):
        found = run_module("logistic", given.train, rounds, ranks=ranks)
        for what, times in found.items():
            others = {name: np.array(values) for name, values in times.items() if name != OURS}
            fastest = min(others, key=lambda name: float(np.median(others[name])))
            ratio = np.array(times[OURS][: len(others[fastest])]) / others[fastest]
            quantity = f"logistic, {what}: time ratio distsms on {ranks} rank(s) / {fastest}"
            yield row("logistic", given.name, quantity, ratio, "x", target)
            for name, values in times.items() if ranks == 1 else [(OURS, times[OURS])]:
                yield row("logistic", given.name, f"logistic, {what}: {name}, {ranks} rank(s)", values, "s")


def programs(X: sparse.csr_matrix, y: np.ndarray, lam: float) -> dict[str, Program]:
    """Return the other programs, which are given all rows with the constant column."""
    from sklearn.linear_model import LogisticRegression

    C = 1 / (lam * len(y))

    def scikit(solver: str) -> Program:
        def fit(steps: int) -> np.ndarray:
            with warnings.catch_warnings():
                warnings.simplefilter("ignore")
                model = LogisticRegression(C=C, solver=solver, max_iter=steps, tol=1e-12, fit_intercept=False)
                return model.fit(X, y).coef_[0]

        return fit, STEPS

    found = {"lbfgs of scikit-learn": scikit("lbfgs")}
    if X.shape[1] <= MOST_COLUMNS:
        found["newton-cholesky of scikit-learn"] = scikit("newton-cholesky")
    try:
        from liblinear.liblinearutil import parameter, problem, train
    except ImportError:
        say("logistic: LIBLINEAR is not installed, so it is left out; install it: pip install liblinear-official")
        return found
    rows = problem(y.astype(float), X)

    def liblinear(kind: int) -> Program:
        def fit(tolerance: float) -> np.ndarray:
            model = train(rows, parameter(f"-s {kind} -c {C!r} -e {tolerance!r} -q"))
            return np.ctypeslib.as_array(model.w, (X.shape[1],)).copy() * (1 if model.label[0] > 0 else -1)

        return fit, TOLERANCES

    return found | {"LIBLINEAR, primal": liblinear(0), "LIBLINEAR, dual": liblinear(7)}


def objective_of(given: Set, comm: Communicator) -> Objective:
    """Return the objective of this rank's rows with the constant column. Collective."""
    block = given.load(comm)
    loss = make_loss("logistic", "gather", block.labels, block.weights, comm)
    return Objective(with_bias(block.features, 1.0), [loss], comm)


def main() -> None:
    given, rounds, comm = Set("", Path(sys.argv[1])), int(sys.argv[2]), world()
    shared = objective_of(given, comm)
    others: dict[str, Program] = {}
    found: dict[str, dict[str, list[float]]] = {}
    if comm.is_root:
        alone = objective_of(given, Communicator())
        X, y, _ = load_matrix(read_manifest(given.train))
        X = sparse.csr_matrix(sparse.hstack([sparse.csr_matrix(X), np.ones((len(y), 1))]))
    quick = rounds <= 2
    for lam in LAMBDAS[:1] if quick else LAMBDAS:
        course: list[State] = []
        least = 0.0

        def remember(state: State, w: np.ndarray, course: list[State] = course) -> None:
            course.append(state)

        if comm.is_root:
            others = programs(X, y, lam)
            settings = Settings(lam, 1e-9, relative=1e-5, max_evaluations=2000)
            least = minimize(alone, settings, watch=remember).J
        for share in SHARES[:1] if quick else SHARES:
            chosen: dict[str, Callable[[], Any]] = {}
            count = 0
            if comm.is_root:
                near, close = (1 + share) * least, partial(Settings, lam, SMALL * share * least)
                count = next(state.evaluation for state in course if near >= state.best_J)
                while count > 1 and near >= minimize(alone, close(max_evaluations=count - 1)).J:
                    count -= 1
                for name, (fit, limits) in others.items():
                    for limit in limits:
                        request = Request(fit(limit), 0.0, ElasticNet(lam))
                        if (1 + share) * least >= alone.evaluate([request])[0].J:
                            chosen[name] = partial(fit, limit)
                            break
            ours = Settings(lam, SMALL * share * comm.bcast(least), max_evaluations=comm.bcast(count))
            minimize(shared, ours)
            times: dict[str, list[float]] = {name: [] for name in (OURS, *chosen)}
            for _ in range(rounds):
                limit = SLOW * min((min(first) for first in times.values() if first), default=np.inf)
                for name, run in chosen.items():
                    if not times[name] or times[name][0] <= limit:
                        times[name].append(seconds(run))
                wait()
                times[OURS].append(seconds(partial(minimize, shared, ours)))
            found[f"lambda {lam:g}, to {100 * share:g} %"] = times
    if comm.is_root:
        print(json.dumps(found))


if __name__ == "__main__":
    main()
