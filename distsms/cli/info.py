"""Say what a data set or a model is; with no argument, the versions of everything."""

from __future__ import annotations

import argparse
from typing import TYPE_CHECKING, Any

from distsms.errors import EXIT_ERROR, EXIT_OK

if TYPE_CHECKING:
    from distsms.comm import Communicator

NAME = "info"
USAGE = "[DATA|MODEL] [options]"
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
            print(f"{name:<{width}}  {_shown(name, value)}")
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


def _data(path: str) -> dict[str, Any]:
    """The manifest, with sums over the shards in place of their list."""
    from dataclasses import asdict

    from distsms.shards import read_manifest

    manifest = read_manifest(path)
    found = asdict(manifest) | {"directory": path, "fingerprint": manifest.fingerprint}
    del found["shards"]
    rows = [shard.rows for shard in manifest.shards]
    return found | {
        "shards": len(rows),
        "rows_per_shard": [min(rows), max(rows)],
        "values_stored": any(shard.values for shard in manifest.shards),
        "bytes": sum(shard.bytes for shard in manifest.shards),
    }


def _model(path: str) -> dict[str, Any]:
    import numpy as np

    from distsms import model

    found = model.load(path)
    size = {"p": found.p, "norm": float(np.linalg.norm(found.w)), "nonzeros": int(np.count_nonzero(found.w))}
    return {"model": path, **size, **found.info}


def _shown(name: str, value: Any) -> str:
    """A value for people."""
    from distsms.report import size

    if isinstance(value, dict):
        return ", ".join(f"{key} {_shown(key, one)}" for key, one in value.items())
    if isinstance(value, (list, tuple)):
        return ", ".join(_shown("", one) for one in value)
    if name == "bytes":
        return size(value)
    return f"{value:.8g}" if isinstance(value, float) else str(value)
