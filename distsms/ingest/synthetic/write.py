"""Write synthetic data sets of any size, with all ranks in parallel.

A source makes the rows in blocks, each of which depends only on the source and the number of the block. So the data do
not depend on the number of ranks or of shards.
"""

from __future__ import annotations

import os
from collections.abc import Callable
from typing import Protocol

import numpy as np
from scipy import sparse

from distsms.base.communicator import Communicator
from distsms.ingest.synthetic.planted import LabelledRows
from distsms.shards import storage
from distsms.shards.coded_columns import CodedColumns
from distsms.shards.manifest import Manifest, publish, publishing, read_manifest
from distsms.shards.rows import of_rank
from distsms.shards.writer import ShardForm, finish_shard, stage_shard

SHARD_BYTES = 64 * 2**20
"""The size of a shard if the number of shards is not given, whatever the number of ranks."""


class RowSource(Protocol):
    """Rows that can be made block by block, in any order, on any rank."""

    n: int
    p: int
    block_rows: int
    row_bytes: float  # of a row in a file, on average
    coded: CodedColumns  # what columns codes stand for, if blocks have codes in the place of X

    def block(self, number: int) -> LabelledRows:
        """Return X (canonical) and y of the block_rows rows (the last block has fewer) of a block. Local."""


def write(
    source: RowSource,
    directory: str | os.PathLike[str],
    comm: Communicator,
    n_shards: int | None = None,
    dtype: str = "float64",
    overwrite: bool = False,
    name: str = "synthetic",
    progress: Callable[[int, int], None] = lambda done, of: None,
    compression: str = "none",
    part: tuple[int, int] | None = None,
) -> Manifest:
    """Write the rows of a source, all or those of a part (first, last + 1), as a data set, by default with a shard for
    every 64 MiB. **Collective.** A rank holds a block, and its largest shard, which is there twice for a moment.
    Raises InputError on every rank."""
    with comm.fail_together():
        storage.check_codec(compression)
    first, last = part or (0, source.n)
    n = last - first
    n_shards = min(n, n_shards or max(1, round(n * source.row_bytes / SHARD_BYTES)))
    my_shards = of_rank(n_shards, comm)
    with publishing(directory, comm, overwrite):
        entries = []
        with comm.fail_together():
            for done, k in enumerate(my_shards):
                X, y = rows(source, first + n * k // n_shards, first + n * (k + 1) // n_shards)
                X, codes = (None, [X]) if source.coded else (X, [])
                form = ShardForm(dtype, compression, source.coded)
                staged = stage_shard(directory, k, X, form, codes=codes)
                entries.append(finish_shard(staged, y, source.p))
                progress(done + 1, len(my_shards))
        entries = [entry for of_rank in comm.allgather(entries) for entry in of_rank]
        with comm.fail_together():
            if comm.is_root:
                about = {"label_map": {"+1": 1, "-1": -1}, "zero_based": False, "coded": source.coded}
                publish(directory, entries, source=[{"name": name, "bytes": 0}], **about)
    with comm.fail_together():
        return read_manifest(directory)


def rows(source: RowSource, start: int, stop: int) -> LabelledRows:
    """Return the global rows start..stop - 1 (start < stop) of a source. Local; blocks are made whole and then cut."""
    size = source.block_rows
    parts, labels = [], []
    for number in range(start // size, -(-stop // size)):
        X, y = source.block(number)
        cut = slice(max(start - number * size, 0), stop - number * size)
        parts.append(X if len(y[cut]) == len(y) else X[cut])
        labels.append(y[cut])
    X, y = parts[0], np.concatenate(labels)
    if len(parts) > 1 and sparse.issparse(X):
        X = sparse.vstack(parts, format="csr")
        X.has_canonical_format = True  # all parts are canonical; a check would take as long as writing the shard
    elif len(parts) > 1:
        X = np.concatenate(parts)
    return X, y
