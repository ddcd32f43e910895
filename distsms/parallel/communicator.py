"""mpi4py's communicator of this process alone."""

from __future__ import annotations

import os
from typing import Any


def self_communicator() -> Any:
    """Return mpi4py's communicator of this process alone, for libraries that need one; None without mpi4py."""
    # Without the first setting, Open MPI starts a daemon beside a process that no launcher started. Without the second,
    # all such processes of a host use one folder, which each of them removes as it ends: another one that is just
    # starting would fail. Without the third, it looks for networks, and a library for one of them waits 0.2 s for its
    # device. The programs that this process starts must not inherit them.
    settings = {
        "OMPI_MCA_ess_singleton_isolated": "1",
        "OMPI_MCA_orte_create_session_dirs": "0",
        "OMPI_MCA_pml": "^cm,ucx",
    }
    new = [name for name in settings if name not in os.environ]
    os.environ.update({name: settings[name] for name in new})
    try:
        from mpi4py import MPI
    except (ImportError, RuntimeError):  # RuntimeError: mpi4py is there, but no MPI library
        return None
    finally:
        for name in new:
            del os.environ[name]
    return MPI.COMM_SELF
