"""Time evaluations of the same w, and triads, alternately on one rank and on two. Print the seconds as JSON.

    mpirun -n 2 python -m scripts.benchmarks.two_ranks DATA ROUNDS [MEASURE ...]

The root loads all rows in addition to its share. While it works alone, the other rank sleeps.
"""

from __future__ import annotations

import json
import sys
import time
from collections.abc import Callable
from pathlib import Path

from mpi4py import MPI

from distsms.base.communicator import Communicator
from distsms.optim.objective import Objective, Request
from distsms.parallel.mpi import world
from scripts.benchmarks.measuring import Set, Triad, objective_of, requests


def main() -> None:
    data, rounds, comm = Set("", Path(sys.argv[1])), int(sys.argv[2]), world()
    shared, triad = data.load(comm), Triad()
    whole = data.load() if comm.is_root else None
    found = {}
    for measure in sys.argv[3:] or ("rocarea", "prbep"):
        both = objective_of(shared, measure, comm)
        asked = requests(both)
        alone = objective_of(whole, measure, Communicator()) if whole else None
        times = [in_turns(alone, both, asked, triad, comm) for _ in range(1 + rounds)][1:]
        found[measure] = {name: [turn[name] for turn in times] for name in times[0]}
    if comm.is_root:
        print(json.dumps(found))


def in_turns(
    alone: Objective | None, both: Objective, asked: list[Request], triad: Triad, comm: Communicator
) -> dict[str, float]:
    """Return the seconds of an evaluation on one rank and on two, of one triad, and of two at once. Collective.

    `alone` is None on all ranks but the root.
    """
    times = {}
    if alone:
        times["one"] = seconds(lambda: [alone.evaluate([request]) for request in asked]) / len(asked)
        times["triad alone"] = seconds(triad)
    wait()
    if comm.is_root:
        times["two"] = seconds(lambda: [both.evaluate([request]) for request in asked]) / len(asked)
        both.release()
    else:
        both.serve()
    comm.barrier()
    times["triads"] = max(comm.allgather(seconds(triad)))
    return times


def seconds(work: Callable[[], object]) -> float:
    start = time.perf_counter()
    work()
    return time.perf_counter() - start


def wait() -> None:
    """Wait for all ranks without using the processor, which a usual barrier would do."""
    request = MPI.COMM_WORLD.Ibarrier()
    while not request.Test():
        time.sleep(1e-3)


if __name__ == "__main__":
    main()
