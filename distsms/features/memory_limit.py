"""What a rank that makes features has left of the memory that it may take (`--memory`)."""

from __future__ import annotations

from distsms.base.errors import InputError
from distsms.base.formatting import format_bytes
from distsms.base.memory import resident
from distsms.base.wording import option
from distsms.features.growing import check_growing
from distsms.features.quantiles import BYTES, VALUE_BYTES
from distsms.features.rows import PART_ENTRIES
from distsms.parallel.communicator import Communicator
from distsms.shards.manifest import Manifest

_ENTRY_BYTES = 40
"""Bytes for each entry of a part of the rows, as it is read and looked through."""
_LEAST = 2**24


def room(manifest: Manifest, comm: Communicator, memory: float, n_trees: int | None = None) -> float:
    """Return the bytes that each rank has left for features, besides what it takes now. **Collective.**

    What buffers for reading the rows of a data set will take is subtracted. Raises InputError if hardly anything is
    left of the `memory` that a rank may take.
    """
    if n_trees:
        with comm.fail_together():
            check_growing(n_trees)  # loads scikit-learn, which takes memory, too
    entries = manifest.nnz if manifest.layout == "csr" else manifest.n * manifest.p
    reading = _ENTRY_BYTES * min(PART_ENTRIES, -(-entries // comm.size))
    left = min(comm.allgather(memory - resident() - reading))
    if left < _LEAST:
        raise InputError(
            f"{option('memory', text=format_bytes(memory))} is too little: Python with its libraries, and buffers for "
            f"reading rows, take {format_bytes(memory - left + _LEAST)}",
            everywhere=True,
        )
    return left


def bytes_for_columns(n_local: int, comm: Communicator, room: float) -> int:
    """Return how much memory a rank may use for the values of the columns that it divides. **Collective.**

    n_local : the number of rows of this rank. Raises InputError if the values of one column do not fit.
    """
    require(VALUE_BYTES * n_local, "the values of one column, while they are divided,", comm, room)
    return int(min(BYTES, room))


def require(n_bytes: int, what: str, comm: Communicator, room: float) -> None:
    """Raise InputError if something takes more bytes than a rank has left. **Collective.**"""
    most = max(comm.allgather(n_bytes))
    if most > room:
        raise InputError(
            f"{what} take {format_bytes(most)}, and {option('memory')} leaves {format_bytes(room)}: allow more "
            "memory, or start more ranks",
            everywhere=True,
        )
