"""Write scores to a file as they come, in order, with the names of the rows if they have some.

Text has a line for each row: the score with all its digits. If the row has a name, the name and a tab come before it
(quoted as in CSV if need be). A file whose name ends in .h5 or .hdf5 is HDF5: `scores` float64 (n,), and `ids`,
strings.
"""

from __future__ import annotations

import contextlib
import csv
import io
import sys
from collections.abc import Iterable, Iterator
from typing import Any, BinaryIO, Protocol

import h5py
import numpy as np
from numpy.typing import NDArray

from distsms.errors import InputError
from distsms.parallel.communicator import Communicator
from distsms.utils.files import atomic_write

ScoresPart = tuple[NDArray[np.float64], list[str] | None]


def write(path: str, parts: Iterable[ScoresPart], comm: Communicator) -> None:
    """Write the scores of all ranks, in rank order, part after part. **Collective.**

    Parameters
    ----------
    path : str
        The file; "-" is standard output.
    parts : iterable of (scores, ids)
        The parts of this rank; every rank has equally many. `ids` is None if rows have no names.
    comm : Communicator
        The ranks.

    Raises
    ------
    InputError
        If the file cannot be written. An old file then stays, as it does if `parts` raises.

    Notes
    -----
    The root holds one part of every rank.
    """
    with contextlib.ExitStack() as opened:
        with comm.fail_together():
            sink = _sink(path, opened) if comm.is_root else None
        gather = _gather_arrays if path.endswith((".h5", ".hdf5")) else _gather_lines
        for scores, ids in parts:
            whole = gather(scores, ids, comm)
            with comm.fail_together():
                if sink is not None:
                    try:
                        sink.append(whole)
                    except OSError as error:
                        if path == "-":
                            raise
                        raise InputError(f"{path}: cannot be written: {error}") from error


class _Sink(Protocol):
    def append(self, part: Any) -> None: ...


class _Text:
    def __init__(self, stream: BinaryIO) -> None:
        self.stream = stream

    def append(self, part: NDArray[np.uint8]) -> None:
        self.stream.write(part.tobytes())
        self.stream.flush()


class _HDF5:
    def __init__(self, file: h5py.File) -> None:
        self.file = file
        file.create_dataset("scores", (0,), np.float64, maxshape=(None,), chunks=(2**16,))

    def append(self, part: tuple[NDArray[np.float64], list[str] | None]) -> None:
        scores, ids = part
        if ids is not None and "ids" not in self.file:
            self.file.create_dataset("ids", (0,), h5py.string_dtype(), maxshape=(None,), chunks=(2**14,))
        self._append("scores", scores)
        if ids:
            self._append("ids", ids)

    def _append(self, name: str, values: Any) -> None:
        dataset = self.file[name]
        dataset.resize(len(dataset) + len(values), axis=0)
        dataset[len(dataset) - len(values) :] = values


def _sink(path: str, opened: contextlib.ExitStack) -> _Sink:
    if path == "-":
        return _Text(sys.stdout.buffer)
    temporary = opened.enter_context(atomic_write(path))
    if path.endswith((".h5", ".hdf5")):
        return _HDF5(opened.enter_context(h5py.File(temporary, "w", locking=False)))
    return _Text(opened.enter_context(open(temporary, "wb")))


def _gather_lines(scores: NDArray[np.float64], ids: list[str] | None, comm: Communicator) -> Any:
    """Return the lines of all ranks, on the root."""
    if ids is None:
        text = "".join(f"{score!r}\n" for score in scores.tolist())
    else:
        lines = io.StringIO()
        csv.writer(lines, delimiter="\t", lineterminator="\n").writerows(
            zip(ids, map(repr, scores.tolist()), strict=True)
        )
        text = lines.getvalue()
    return comm.gather_rows(np.frombuffer(text.encode(), np.uint8))


def _gather_arrays(scores: NDArray[np.float64], ids: list[str] | None, comm: Communicator) -> Any:
    """Return scores and ids of all ranks, on the root."""
    whole = comm.gather_rows(scores)
    if ids is None:
        return whole, None
    names = [name.encode() for name in ids]
    lengths = comm.gather_rows(np.array([len(name) for name in names], np.int64))
    joined = comm.gather_rows(np.frombuffer(b"".join(names), np.uint8))
    if lengths is None or joined is None:
        return None
    return whole, list(_cut(joined.tobytes(), lengths.tolist()))


def _cut(text: bytes, lengths: Iterable[int]) -> Iterator[str]:
    start = 0
    for length in lengths:
        yield text[start : start + length].decode()
        start += length
