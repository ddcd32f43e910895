"""How much memory the rows of a data set take, and how much they may take."""

from __future__ import annotations

from typing import NamedTuple

from distsms.matrix.local import PART_ENTRIES, unsigned
from distsms.shards.codes import rows_of_part
from distsms.shards.manifest import Manifest
from distsms.shards.storage import CHUNK

_WORK = 40
"""Bytes for each row of a part that the products of coded rows take."""


class MemoryBudget(NamedTuple):
    """The memory that a rank may use for its rows.

    `bytes` is the total. `of_row` is what each row needs in addition to its entries, in bytes.
    """

    bytes: int
    of_row: int = 0

    def entries(self, n_local: int) -> int:
        """Return the bytes that are left for the entries of `n_local` rows."""
        return self.bytes - self.of_row * n_local


def entry_bytes(manifest: Manifest) -> tuple[int, int]:
    """Return the bytes of an entry in memory, and those in the files (0 for dense rows, whose form is the same).

    A sparse entry consists of a column index and a value; there is no value if all values are 1.
    """
    value, p = 4 if manifest.dtype == "float32" else 8, manifest.p_entries
    if manifest.layout != "csr":
        return value * (manifest.layout == "dense"), 0
    value *= any(shard.values for shard in manifest.shards)
    return unsigned(p - 1)().itemsize + value, (4 if p < 2**31 else 8) + value


def held_bytes(manifest: Manifest, rows: int, nnz: int) -> int:
    """Return the bytes that so many rows, with so many stored entries and codes, take in memory."""
    return entry_bytes(manifest)[0] * manifest.entries(rows, nnz) + manifest.coded.row_bytes * rows


def work_bytes(manifest: Manifest) -> int:
    """Return the bytes that the products of coded rows take for a thread, besides codes and tables of the columns.

    The loops need the numbers of k-mers, their places in a table, and sums, for each row of a part.
    """
    return _WORK * max((min(manifest.n, rows_of_part(group)) for group in manifest.coded.maps), default=0)


def buffer_bytes(manifest: Manifest, threads: int) -> int:
    """Return the bytes of memory that streaming takes.

    For each thread these are two parts as they are in memory, one part as it is in the files, and a working copy. More
    is needed if a sparse row is longer than a sixteenth of a part; the manifest does not say whether there is one.
    """
    in_memory, stored = entry_bytes(manifest)
    coded = 0
    for group in manifest.coded.maps:
        coded += threads * 2 * group.n_codes * group.dtype.itemsize * rows_of_part(group)
    if manifest.layout == "coded":
        return coded
    more = max(
        PART_ENTRIES // 16, manifest.p_entries * (manifest.layout == "dense")
    )  # parts consist of whole blocks of rows
    chunks = 0 if manifest.compression == "none" else 2 * 8 * max(CHUNK, more)  # a compressed and an expanded chunk
    return coded + threads * ((PART_ENTRIES + more) * (2 * in_memory + stored + 12) + chunks)
