"""Time the products of coded rows on one rank and on two, alternately, and triads. Print the seconds as JSON.

    mpirun -n 2 python -m scripts.benchmarks.coded_ranks ROWS ROUNDS [TEXT]

TEXT has LABEL SEQUENCE lines; without it the codes are categories that are drawn. The root has all rows in addition to
its half. While it works alone, the other rank sleeps. Each time is a pair: seconds of the clock, and seconds in which
the processor worked for the slower rank, which other programs on the machine disturb less.
"""

from __future__ import annotations

import json
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

from distsms.base.communicator import Communicator
from distsms.matrix.code_maps import CodeMap
from distsms.matrix.coded import CodedRows, code_rows
from distsms.parallel.mpi import world
from distsms.shards.coded_columns import rows_of_part
from scripts.benchmarks.coded import maps, products
from scripts.benchmarks.measuring import Triad
from scripts.benchmarks.two_ranks import wait


def main() -> None:
    n, rounds, comm, triad = int(sys.argv[1]), int(sys.argv[2]), world(), Triad()
    found: dict[str, dict[str, list[Any]]] = {}
    given = maps("strings", Path(sys.argv[3]) if len(sys.argv) > 3 else None, n)
    for name in list(given):
        code_map, codes = given.pop(name)
        alone: dict[str, Callable[[], object]] = (
            {**products(as_stored(code_map, codes)), "triad": triad} if comm.is_root else {}
        )
        half = as_stored(code_map, codes[n * comm.rank // 2 : n * (comm.rank + 1) // 2])
        times = [in_turns(alone, {**products(half), "triad": triad}, comm) for _ in range(1 + rounds)][1:]
        found[name] = {what: [turn[what] for turn in times] for what in times[0]}
    if comm.is_root:
        print(json.dumps(found))


def as_stored(code_map: CodeMap, codes: Any) -> CodedRows:
    """Return rows in parts of the size that shards have, for one thread."""
    cuts = [*range(0, len(codes), rows_of_part(code_map)), len(codes)]
    return CodedRows(code_map, code_rows(codes, code_map, cuts), cuts, 1)


def in_turns(
    alone: dict[str, Callable[[], object]], both: dict[str, Callable[[], object]], comm: Communicator
) -> dict[str, tuple[float, ...]]:
    """Return the times of each function on one rank and on two at once. `alone` is for the root. Collective."""
    times: dict[str, tuple[float, ...]] = {}
    for what, work in both.items():
        wait()
        if comm.is_root:
            times[f"{what} on 1"] = spent(alone[what])
        wait()
        comm.barrier()
        times[f"{what} on 2"] = tuple(map(max, zip(*comm.allgather(spent(work)), strict=True)))
    return times


def spent(work: Callable[[], object]) -> tuple[float, float]:
    """Return the seconds of the clock, and those of the processor, that a function takes."""
    start, busy = time.perf_counter(), time.process_time()
    work()
    return time.perf_counter() - start, time.process_time() - busy


if __name__ == "__main__":
    main()
