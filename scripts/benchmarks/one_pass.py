"""Time a path with 5 folds: alternately with all models in one pass and one by one. Print the seconds as JSON.

python -m scripts.benchmarks.one_pass DATA ROUNDS          works under mpirun, too
"""

from __future__ import annotations

import json
import sys
import time
from pathlib import Path

from distsms.optim.settings import Settings
from distsms.parallel.mpi import world
from distsms.workflow.path import CrossValidation, PathRows, Problem
from scripts.benchmarks.measuring import EPSILON, Set

LAMBDAS, FOLDS = [1e-1, 1e-2, 1e-3, 1e-4, 1e-5], 5
WAYS = {"one pass": FOLDS + 1, "one by one": 1}
PRODUCTS = ("margins X w", "gradient X'c")


def main() -> None:
    comm, rounds = world(), int(sys.argv[2])
    block, found = Set("", Path(sys.argv[1])).load(comm), {}
    for measure in ("rocarea", "prbep"):
        times: dict[str, list[float]] = {f"{what}{way}": [] for way in WAYS for what in ("", "products ")}
        for number in range(1 + rounds):  # the first is not counted
            for way, at_once in WAYS.items():
                problem = Problem(measure, LAMBDAS, FOLDS, 0, Settings(LAMBDAS[0], EPSILON), at_once=at_once)
                start = time.perf_counter()
                models = CrossValidation(PathRows(block, comm), problem)
                models.run(lambda point, result, scores: None, [LAMBDAS] * (FOLDS + 1), lambda fold, lam: None)
                models.vectors.close()
                if number:
                    times[way].append(time.perf_counter() - start)
                    times[f"products {way}"].append(sum(models.clock.seconds[name] for name in PRODUCTS))
        found[measure] = times
    if comm.is_root:
        print(json.dumps(found))


if __name__ == "__main__":
    main()
