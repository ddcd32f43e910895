"""Say what a data set or a model is; with no argument, the versions of everything."""

from __future__ import annotations

import argparse
from typing import TYPE_CHECKING

from distsms.errors import EXIT_ERROR, EXIT_OK

if TYPE_CHECKING:
    from distsms.comm import Communicator

NAME = "info"
EPILOG = """\
Starts neither MPI nor PETSc: safe on a login node.

examples:
  distsms info
  distsms info data/train --verify
  distsms info model.h5
"""


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """What `distsms info` takes."""
    parser.add_argument("path", nargs="?", metavar="DATA|MODEL", help="a data set or a model; nothing: versions")
    parser.add_argument("--verify", action="store_true", help="recompute the checksums of a data set's files")
    parser.add_argument("--json", action="store_true", help="print one JSON object")
    parser.set_defaults(mpi=False)


def run(args: argparse.Namespace, comm: Communicator) -> int:
    """Tell. One process."""
    import os

    from distsms import report
    from distsms.errors import InputError

    if args.verify and (args.path is None or not os.path.isdir(args.path)):
        raise InputError("--verify checks a data set: give its directory")
    found = versions() if args.path is None else _data(args.path) if os.path.isdir(args.path) else _model(args.path)
    if args.json:
        print(report.to_json(found, indent=1))
    else:
        width = max(len(name) for name in found)
        for name, value in found.items():
            print(f"{name:<{width}}  {value}")
    if not args.verify:
        return EXIT_OK
    from distsms.shards import verify

    problems = verify(args.path)
    for problem in problems:
        print(problem)
    if not problems:
        print("every checksum is right")
    return EXIT_ERROR if problems else EXIT_OK


def versions() -> dict[str, str]:
    """Versions of distsms and of all it stands on, without initializing MPI or PETSc."""
    import numba
    import numpy
    import scipy

    from distsms import __version__, comm, model
    from distsms.solvers import tao

    return {
        "distsms": __version__,
        **model.versions(),
        "numpy": numpy.__version__,
        "scipy": scipy.__version__,
        "numba": numba.__version__,
        "petsc4py": tao.version(),
        **comm.library_versions(),
    }


def _data(path: str) -> dict[str, object]:
    from distsms.report import size
    from distsms.shards import read_manifest

    m = read_manifest(path)
    rows = [shard.rows for shard in m.shards]
    return {
        "data set": path,
        "rows": m.n,
        "columns": m.p,
        "nonzeros": m.nnz,
        "positive": m.n_pos,
        "negative": m.n_neg,
        "labels": ", ".join(f"{sign} was {label}" for sign, label in m.label_map.items()),
        "columns counted": "from 0" if m.zero_based else "from 1",
        "layout": m.layout,
        "values": m.dtype if any(shard.values for shard in m.shards) else "all 1, none stored",
        "row weights": "yes" if m.weights else "no",
        "shards": f"{len(m.shards)}, of {min(rows)} to {max(rows)} rows",
        "size": size(sum(shard.bytes for shard in m.shards)),
        "source": ", ".join(str(one.get("name")) for one in m.source),
        "fingerprint": m.fingerprint,
        "written by": m.creator,
    }


def _model(path: str) -> dict[str, object]:
    import numpy as np

    from distsms import model

    found = model.load(path)
    norm = {"||w||": float(np.linalg.norm(found.w)), "nonzero coefficients": int(np.count_nonzero(found.w))}
    return {"model": path, "columns": found.p, **norm, **found.info}
