"""A sample of the rows of a data set, chosen by a hash of each row's number: the same on any number of ranks."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray
from scipy import sparse

from distsms.matrix.arrays import as_features
from distsms.matrix.coded import CodedRows, code_rows
from distsms.matrix.local import DenseRows, SparseRows
from distsms.matrix.side_by_side import SideBySide
from distsms.parallel.communicator import Communicator
from distsms.shards import dataset
from distsms.shards.dataset import PART_ROWS, DataBlock
from distsms.shards.manifest import Manifest
from distsms.shards.row_metadata import in_range
from distsms.shards.row_shares import MemoryBudget, rows_in_memory
from distsms.shards.splits import Shares, in_sample


class Sample(NamedTuple):
    """This rank's rows of a sample."""

    block: DataBlock  # normalized as in training, and numbered as if the sample were a data set of its own
    rows: NDArray[np.int64]  # (n_local,), the number of each row in the whole data set


def load_sample(
    manifest: Manifest,
    comm: Communicator,
    shares: Shares,
    seed: int = 0,
    budget: MemoryBudget | None = None,
    whole_groups: bool = False,
) -> Sample:
    """Read this rank's part of a sample of the rows: a share of each class, which the seed draws. **Collective.**

    `budget` is that of `dataset.load`, and is used only if the sample has all rows. With `whole_groups`, whole groups
    are taken, with the same share of both classes, and their keys are read. Raises InputError on every rank if a shard
    cannot be read. All bytes of the shards are read once; this takes 12 bytes for each entry of the sample, twice its
    codes, and a part of a shard.
    """
    if min(shares) >= 1:
        block = dataset.load(manifest, comm, budget=budget, with_groups=whole_groups)
        return Sample(block, block.first_row + np.arange(len(block.labels)))
    first, last = (manifest.n * rank // comm.size for rank in (comm.rank, comm.rank + 1))
    if ends := rows_in_memory(manifest, comm.rank):
        first, last = (end.row for end in ends)
    X, labels, rows = list[Any](), list[NDArray[np.int8]](), list[NDArray[np.int64]]()
    weights, groups = list[NDArray[Any]](), list[NDArray[np.uint64]]()
    codes: list[list[Any]] = [[] for _ in manifest.coded.maps]
    with comm.fail_together():
        for shard, piece in dataset.open_shards(manifest, first, last):
            for part in piece.parts(PART_ROWS):
                labels_of_part = np.empty(part.stop - part.start, np.int8)
                shard.read_labels(part, labels_of_part)
                numbers = part.offset + np.arange(part.start, part.stop)
                keys = shard.read_groups(part) if whole_groups else None
                taken = in_sample(numbers if keys is None else keys, labels_of_part, shares, seed)
                if not taken.any():
                    continue
                X.append(shard.read_rows(part)[taken])
                for code_group, part_codes in zip(codes, shard.read_code_rows(part) if codes else (), strict=True):
                    code_group.append(part_codes[taken])
                labels.append(labels_of_part[taken])
                rows.append(numbers[taken])
                groups += [] if keys is None else [keys[taken]]
                if manifest.weights:
                    weight = np.empty(len(numbers))
                    shard.read_weights(part, weight)
                    weights.append(weight[taken])
    features = comm.root_first(lambda: _features(manifest, X, codes))
    with comm.fail_together():
        features.normalize(manifest.normalization)
    y = np.concatenate([np.empty(0, np.int8), *labels])
    a = in_range(np.concatenate([np.empty(0), *weights]), comm) if manifest.weights else None
    counts = comm.allgather(len(y))
    block = DataBlock(
        features,
        y,
        a,
        first_row=sum(counts[: comm.rank]),
        n=sum(counts),
        p=manifest.p,
        bytes_read=0,
        weighted=any(comm.allgather(dataset.other_weights(a))),
        groups=np.concatenate([np.empty(0, np.uint64), *groups]) if whole_groups else None,
    )
    return Sample(block, np.concatenate([np.empty(0, np.int64), *rows]))


def _features(
    manifest: Manifest, X: list[Any], codes: Sequence[list[NDArray[Any]]]
) -> SparseRows | DenseRows | CodedRows | SideBySide:
    """Return rows as features, from pieces of X and of the codes of each group, (rows, codes of a row) each."""
    groups: list[Any] = []
    if manifest.layout != "coded":
        nothing = np.empty((0, manifest.p_entries), manifest.dtype)
        dense = manifest.layout == "dense"
        groups.append(
            as_features(np.vstack([nothing, *X]) if dense else sparse.vstack([sparse.csr_matrix(nothing), *X], "csr"))
        )
    for code_map, pieces in zip(manifest.coded.maps, codes, strict=True):
        rows = np.concatenate([np.empty((0, code_map.n_codes), code_map.dtype), *pieces])
        groups.append(CodedRows(code_map, code_rows(rows, code_map), [0, len(rows)]))
    return groups[0] if len(groups) == 1 else SideBySide(groups)
