"""Collect what a model file says: versions of libraries, host, command, data, settings and results, and what the run
took on each rank: every second that a user waited, bytes moved and read, and peak memory.

The time of a command begins when its launcher starts, such as mpirun, or else this process; that of a function in
Python with the call. It ends with the line on it, which is the last one.
"""

from __future__ import annotations

import os
import shlex
import sys
from collections.abc import Mapping, Sequence
from datetime import datetime, timezone
from typing import Any

import numba
import numpy as np
import scipy

from distsms.base import hdf5, program
from distsms.base._version import __version__, commit
from distsms.base.communicator import Communicator
from distsms.base.measures import Measure
from distsms.base.memory import peak_memory
from distsms.base.timing import Clock
from distsms.base.wording import without_credentials
from distsms.optim.result import Result
from distsms.optim.settings import Settings, describe
from distsms.optim.solvers import tao
from distsms.parallel import mpi, processes
from distsms.shards.dataset import DataBlock
from distsms.shards.manifest import Manifest
from distsms.training.task import Distribution

DATA_KEYS = ("n", "p", "nnz", "n_pos", "n_neg")


def versions(load_mpi: bool = False) -> dict[str, str]:
    """Return the versions of distsms and its libraries, of MPI and PETSc only if loaded, or with `load_mpi`. Local."""
    libraries = {
        "distsms": __version__,
        **({"commit": commit()} if commit() else {}),
        "python": sys.version.split()[0],
        **hdf5.versions(),
        "numpy": np.__version__,
        "scipy": scipy.__version__,
        "numba": numba.__version__,
    }
    if load_mpi or "mpi4py.MPI" in sys.modules:
        return libraries | {"petsc4py": tao.version(), **mpi.library_versions()}
    return libraries | {"petsc4py": "not loaded", "mpi4py": "not loaded"}


def provenance() -> dict[str, Any]:
    """Return the versions, the host, this process's command line and the time, ready for JSON. Local."""
    return {
        "versions": versions(),
        "host": os.uname().nodename,
        "command": shlex.join(map(without_credentials, sys.argv)),
        **({"config": _without_credentials(program.options)} if program.options else {}),
        "written": datetime.now(timezone.utc).isoformat(timespec="seconds"),
    }


def _without_credentials(value: Any) -> Any:
    """Return options, or the value of one, with addresses as they may be shown."""
    if isinstance(value, dict):
        return {name: _without_credentials(each) for name, each in value.items()}
    if isinstance(value, list | tuple):
        return [*map(_without_credentials, value)]
    return without_credentials(value) if isinstance(value, str) else value


def describe_data_set(manifest: Manifest, directory: object) -> dict[str, Any]:
    """Return what a model file says of the data set that the model was trained on. Local."""
    names = ("label_map", "zero_based", "fingerprint", *DATA_KEYS)
    return {"directory": str(directory)} | {name: getattr(manifest, name) for name in names}


def describe_rows(block: DataBlock, fingerprint: str | None, comm: Communicator) -> dict[str, Any]:
    """Return what a model file says of training rows that were given in memory. **Collective.**"""
    labels = block.labels
    counts = [len(labels), block.features.nnz, np.sum(labels > 0), np.sum(labels < 0)]
    sizes = dict(zip(("n", "nnz", "n_pos", "n_neg"), map(int, comm.sum(np.array(counts))), strict=True))
    label_map = block.label_map or {"+1": 1, "-1": -1}
    data = {"label_map": dict(label_map), "zero_based": False, "directory": None, "fingerprint": fingerprint}
    return data | {"n": sizes["n"], "p": block.p} | sizes


def model_info(
    measure: Measure,
    settings: Settings,
    result: Result,
    distribution: Distribution,
    ranks: int,
    bias: float,
    threshold: float,
    training: Mapping[str, float] | None,
    data: Mapping[str, Any],
    origin: Mapping[str, Any],
) -> dict[str, Any]:
    """Return everything that a model file says besides the coefficients, ready for JSON. Local."""
    return {
        "measure": measure.name,
        "lambda": settings.lam,
        **({"l1": settings.l1} if settings.l1 else {}),
        **result.numbers(),
        "bias": bias,
        "threshold": threshold,
        "training": training,
        "label_map": data["label_map"],
        "zero_based": data["zero_based"],
        "settings": describe(settings),
        **distribution._asdict(),
        "ranks": ranks,
        "data": {name: data[name] for name in ("directory", "fingerprint", *DATA_KEYS, "weights") if name in data},
        **origin,
    }


START, REST = "start-up", "rest"
"""The phases before the clock began (launcher, interpreter, imports, MPI), and between the other ones."""


def usage_of_ranks(clock: Clock, comm: Communicator, read: int, evaluations: int) -> list[dict[str, Any]]:
    """Return what each rank has used: phases of the clock, completed, and bytes `read`. **Collective.**"""
    seconds, since = dict(clock.seconds), clock.since_begin()
    if program.runs:
        seconds = {START: max(processes.waited() - since, 0.0)} | seconds
    seconds[REST] = max(since - sum(clock.seconds.values()), 0.0)
    sent, received = comm.bytes_moved()
    return comm.allgather(
        {
            "seconds": seconds,
            "sent": dict(clock.sent),
            "received": dict(clock.received),
            "bytes_sent": sent,
            "bytes_received": received,
            "bytes_read": read,
            "evaluations": evaluations,
            "peak_memory": peak_memory(),
        }
    )


def maximum_usage(ranks: Sequence[dict[str, Any]]) -> dict[str, Any]:
    """Return the maximum over ranks of each number in `usage_of_ranks`; this is what a model records."""
    first = ranks[0]
    return {
        name: {phase: max(usage[name].get(phase, 0) for usage in ranks) for rank in ranks for phase in rank[name]}
        if isinstance(first[name], dict)
        else max(usage[name] for usage in ranks)
        for name in first
    }
