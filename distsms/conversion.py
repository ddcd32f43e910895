"""Text to shards, in parallel over ranks: each parses and writes its own shards, the root publishes them at the end."""

from __future__ import annotations

import contextlib
import os
from collections.abc import Callable, Iterable, Iterator, Sequence
from pathlib import Path
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray
from scipy import sparse

from distsms import shards, svmlight
from distsms.comm import Communicator
from distsms.errors import InputError
from distsms.files import LOCK, exclusive

SHARD_TEXT_BYTES = 128 * 2**20
"""Text per shard where the number of shards is not given."""
KNOWN_LABELS = ({-1.0, 1.0}, {0.0, 1.0}, {1.0, 2.0})
"""Pairs of labels in common use; 1 is the positive one in each."""


class Labels(NamedTuple):
    """What the two labels of the text mean; a class that does not occur is None."""

    positive: float | None
    negative: float | None

    def signs(self, labels: NDArray[np.float64]) -> NDArray[np.int8]:
        """+1 where the label (n,) is the positive one, else -1."""
        return np.where(labels == self.positive, 1, -1).astype(np.int8)

    def as_map(self) -> dict[str, float | None]:
        """For the manifest: the text's label of each class."""
        return {"+1": self.positive, "-1": self.negative}


def interpret(found: Iterable[float], positive: float | None = None) -> Labels:
    """What the labels found in a text mean; `positive` names the positive one where they are not a common pair.

    Raises InputError where there are more than two, or two of which neither is known to be the positive one.
    """
    values = sorted(set(found))
    shown = ", ".join(f"{value:g}" for value in values[:10])
    if len(values) > 2:
        raise InputError(
            f"found {len(values)} different labels ({shown}, ...); two are expected (one class 1, the others -1)"
        )
    if positive is None:
        if not any(set(values) <= known for known in KNOWN_LABELS):
            raise InputError(
                f"found the labels {shown}; known pairs are -1/+1, 0/1 and 1/2 (1 is positive). "
                "Say which one is positive with --positive"
            )
        positive = 1.0
    elif len(values) == 2 and positive not in values:
        raise InputError(f"found the labels {shown}, and --positive {positive:g} is neither of them")
    others = [value for value in values if value != positive]
    return Labels(positive if positive in values else None, others[0] if others else None)


def convert(
    inputs: Sequence[str | os.PathLike[str]],
    directory: str | os.PathLike[str],
    comm: Communicator,
    n_shards: int | None = None,
    positive: float | None = None,
    zero_based: bool = False,
    n_features: int | None = None,
    dtype: str = "float64",
    overwrite: bool = False,
    progress: Callable[[int, int], None] = lambda done, of: None,
) -> shards.Manifest:
    """Convert svmlight text files to a data set in `directory`. Collective; raises InputError on every rank.

    Rows keep their order: files as given, lines as they stand. Unless n_shards is given there is a shard for every
    128 MiB of text, and at least one for each rank. progress : called with the number of this rank's shards that are
    written, and how many it has. Memory of a rank: the text and rows of one shard, and 8 bytes for each of its rows.
    """
    with comm.together():
        sizes = [_size(path) for path in inputs]
        n_shards = n_shards or max(comm.size, -(-sum(sizes) // SHARD_TEXT_BYTES))
        # A compressed file falls into one share whole and may leave others without any.
        shares = [share for share in svmlight.plan(inputs, min(n_shards, sum(sizes) + 1)) if share] or [[]]
    with writing(directory, comm, overwrite):
        return _convert(shares, sizes, inputs, directory, comm, positive, zero_based, n_features, dtype, progress)


@contextlib.contextmanager
def writing(directory: str | os.PathLike[str], comm: Communicator, overwrite: bool) -> Iterator[None]:
    """While entered, the shards of a new data set may be staged, finished and published. Collective.

    One job at a time: another one is refused. If the body raises InputError, what it wrote is removed, and the
    directory if nothing else is in it; a data set that was there stays.
    """
    with contextlib.ExitStack() as held:
        with comm.together():
            if comm.is_root:
                held.enter_context(exclusive(Path(directory)))
                shards.prepare(directory, overwrite)
        try:
            yield
        except InputError:
            if comm.is_root:
                _tidy(directory)
            raise


def _convert(
    shares: list[list[svmlight.Piece]],
    sizes: list[int],
    inputs: Sequence[str | os.PathLike[str]],
    directory: str | os.PathLike[str],
    comm: Communicator,
    positive: float | None,
    zero_based: bool,
    n_features: int | None,
    dtype: str,
    progress: Callable[[int, int], None],
) -> shards.Manifest:
    """Parse, write and publish the shares, one shard each. Collective."""
    n_shards = len(shares)
    mine = range(n_shards * comm.rank // comm.size, n_shards * (comm.rank + 1) // comm.size)
    staged, labels = {}, {}
    with comm.together():
        for done, k in enumerate(mine):
            rows = svmlight.concatenate(svmlight.read(shares[k], zero_based))
            _check_columns(rows, n_features, shares[k])
            X = sparse.csr_matrix(
                (rows.data, rows.indices, rows.indptr), shape=(len(rows.labels), rows.n_columns), copy=False
            )
            staged[k], labels[k] = (shards.stage_shard(directory, k, X, dtype), rows.n_columns), rows.labels
            progress(done + 1, len(mine))
    found = {float(one) for k in mine for one in np.unique(labels[k])[:10]}
    summary = comm.allgather((found, max((columns for _, columns in staged.values()), default=0)))
    p = n_features or max(1, *(columns for _, columns in summary))
    entries = []
    with comm.together():
        meaning = interpret(set().union(*(one for one, _ in summary)), positive)
        for k, (shard, _) in staged.items():
            entries.append(shards.finish_shard(shard, meaning.signs(labels[k]), p))
    entries = [entry for part in comm.allgather(entries) for entry in part]
    with comm.together():
        if comm.is_root:
            source = [{"name": Path(path).name, "bytes": size} for path, size in zip(inputs, sizes, strict=True)]
            label_map = meaning.as_map()
            shards.publish(directory, entries, label_map=label_map, zero_based=zero_based, source=source)
    with comm.together():
        return shards.read_manifest(directory)


def _size(path: str | os.PathLike[str]) -> int:
    try:
        return os.stat(path).st_size
    except OSError as error:
        raise InputError(f"{path}: cannot be read: {error.strerror}") from error


def _check_columns(rows: svmlight.Rows, n_features: int | None, share: Sequence[svmlight.Piece]) -> None:
    if n_features is not None and rows.n_columns > n_features:
        names = ", ".join(sorted({piece.path for piece in share}))
        raise InputError(
            f"{names}: uses column {rows.n_columns} (counted from 1), but --n-features is {n_features}; "
            "give a larger one, or leave it out"
        )


def _tidy(directory: str | os.PathLike[str]) -> None:
    """Remove what a failed conversion wrote, and the directory if nothing else is in it."""
    with contextlib.suppress(OSError, InputError):
        shards.prepare(directory, overwrite=True)
        (Path(directory) / LOCK).unlink(missing_ok=True)
        os.rmdir(directory)
