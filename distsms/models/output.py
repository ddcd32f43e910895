"""Write scores to a file part by part, in the order of the rows, with the names of the rows if they have names: `.csv`,
`.tsv`, `.parquet`, `.pq`, `.npy` (scores alone), `.h5`, `.hdf5`, and text for others but endings of other formats.
Further columns come after the score. Names are harmless for a terminal and a spreadsheet unless they are to be
verbatim.
"""

from __future__ import annotations

import contextlib
import csv
import io
import sys
from collections.abc import Callable, Iterable, Mapping, Sequence
from functools import partial
from itertools import pairwise
from pathlib import Path
from typing import Any, BinaryIO, NamedTuple, Protocol

import h5py
import numpy as np
from numpy.typing import NDArray

from distsms.base import hdf5
from distsms.base.communicator import Communicator
from distsms.base.errors import InputError
from distsms.base.files import OutputFile, atomic_write, naming_failures
from distsms.base.program import failure_of_standard_output
from distsms.base.text_files import COMPRESSED
from distsms.base.wording import harmless_cell, printable

Columns = Mapping[str, NDArray[Any]]
Further = Callable[[NDArray[np.float64]], Columns]


class ScoresPart(NamedTuple):
    """The scores of some rows, with the names of the rows, and columns of texts by name."""

    scores: NDArray[np.float64]
    ids: list[str] | None = None
    texts: Mapping[str, list[str]] = {}


PLURALS = {"score": "scores", "label": "labels", "probability": "probabilities"}
"""What HDF5 files call these columns."""
DELIMITERS = {".csv": ",", ".tsv": "\t"}
REFUSED = {*COMPRESSED, ".zip", ".json", ".jsonl", ".ndjson", ".xlsx", ".xls", ".ods", ".npz", ".feather", ".arrow"}
REFUSED |= {".pkl", ".pickle", ".h5ad", ".mat", ".sqlite", ".db", ".orc", ".avro", ".html", ".xml", ".yaml", ".yml"}
"""Ends of file names that are refused, since they promise formats that are not written."""


def check_ending(path: str, columns: Sequence[str] = ()) -> None:
    """Raise InputError if the end of the file's name stands for a format that is not written with these columns."""
    ending, possible = _ending(path), "name a file .csv, .tsv, .txt, .parquet or .h5"
    if columns and ending == ".npy":
        raise InputError(f"{path}: a .npy file has the scores alone, and not {' and '.join(columns)}; {possible}")
    if ending in REFUSED:
        raise InputError(f"{path}: scores cannot be written as {ending}; {possible}, or .npy for scores alone")


def write(
    path: str,
    parts: Iterable[ScoresPart],
    comm: Communicator,
    id_name: str = "id",
    verbatim: bool = False,
    further: Further = lambda scores: {},
    texts: Sequence[str] = (),
) -> int:
    """Write all ranks' scores, `further` columns and the `texts` of these names that the parts have; return the number
    of rows. Every rank has equally many `parts`, at least one. **Collective.**"""
    # The column of ids must not have the name of another column.
    others = [*further(np.empty(0)), *texts]
    id_name = "id" if id_name in ("score", *others) else id_name
    n, make = 0, None if path == "-" else _SINKS.get(_ending(path))
    delimiter = "" if path == "-" else DELIMITERS.get(_ending(path), "")
    spell = str if verbatim else harmless_cell if delimiter else partial(printable, kept="\t\r\n")
    with contextlib.ExitStack() as opened:
        with comm.fail_together():
            check_ending(path, others)
            file = opened.enter_context(atomic_write(path)) if comm.is_root and path != "-" else None
            sink: _Sink | None = _Text(file or sys.stdout.buffer) if comm.is_root else None
            if file is not None and make is not None:
                sink = make(file, id_name, further, opened)
        for k, part in enumerate(parts):
            if make is None:
                names = [id_name, "score", *others][part.ids is None :]
                header = names if not k and delimiter and comm.is_root else None
                whole = _gather_lines(part, further(part.scores), comm, delimiter or "\t", header, spell)
            else:
                whole = _gather_arrays(part, comm)
            n += len(part.scores)
            with comm.fail_together():
                if file is not None and sink is not None:
                    with naming_failures(path, file):
                        sink.append(whole)
                        file.check()
                elif sink is not None:
                    sink.append(whole)
                    if (failure := failure_of_standard_output()) is not None:
                        raise failure  # to score further rows would be in vain
        with comm.fail_together():
            opened.close()  # completes the file
    return int(comm.sum(np.array([n]))[0])


def _ending(path: str) -> str:
    return Path(path).suffix.lower()


class _Sink(Protocol):
    def append(self, part: Any) -> None: ...


class _Text:
    def __init__(self, stream: BinaryIO | OutputFile) -> None:
        self.stream = stream

    def append(self, part: NDArray[np.uint8]) -> None:
        self.stream.write(part.data)
        self.stream.flush()


class _HDF5:
    def __init__(self, stream: OutputFile, id_name: str, further: Further, opened: contextlib.ExitStack) -> None:
        self.file, self.further = opened.enter_context(hdf5.write_to(stream)), further

    def append(self, part: ScoresPart) -> None:
        columns: dict[str, Any] = {"score": part.scores, **self.further(part.scores)}
        columns = {PLURALS.get(name, name): values for name, values in columns.items()}
        columns |= ({} if part.ids is None else {"ids": part.ids}) | dict(part.texts)
        for name, values in columns.items():
            is_text = isinstance(values, list) or values.dtype.kind == "U"
            if name not in self.file:
                kind, chunk = h5py.string_dtype() if is_text else values.dtype, 2**14 if is_text else 2**16
                self.file.create_dataset(name, (0,), kind, maxshape=(None,), chunks=(chunk,))
            dataset = self.file[name]
            dataset.resize(len(dataset) + len(values), axis=0)
            if len(values):
                dataset[len(dataset) - len(values) :] = np.asarray(values, object) if is_text else values


class _Npy:
    """A .npy file. Its header has the number of rows and is rewritten after each part; NumPy pads it for that."""

    def __init__(self, stream: OutputFile, id_name: str, further: Further, opened: contextlib.ExitStack) -> None:
        self.stream, self.n = stream, 0
        self._header()

    def append(self, part: ScoresPart) -> None:
        self.stream.write(part.scores.astype("<f8").tobytes())
        self.n += len(part.scores)
        self._header()

    def _header(self) -> None:
        self.stream.seek(0)
        about = {"descr": "<f8", "fortran_order": False, "shape": (self.n,)}
        np.lib.format.write_array_header_1_0(self.stream, about)
        self.stream.seek(0, io.SEEK_END)


class _Parquet:
    def __init__(self, stream: OutputFile, id_name: str, further: Further, opened: contextlib.ExitStack) -> None:
        self.stream, self.id_name, self.further, self.opened = stream, id_name, further, opened
        self.writer: Any = None

    def append(self, part: ScoresPart) -> None:
        import pyarrow as pa
        import pyarrow.parquet as arrow_parquet

        columns: dict[str, Any] = {} if part.ids is None else {self.id_name: part.ids}
        columns |= {"score": part.scores} | dict(self.further(part.scores)) | dict(part.texts)
        kinds = {name: pa.string() if isinstance(values, list) else None for name, values in columns.items()}
        table = pa.table({name: pa.array(values, kinds[name]) for name, values in columns.items()})
        if self.writer is None:
            self.writer = self.opened.enter_context(arrow_parquet.ParquetWriter(self.stream, table.schema))
        self.writer.write_table(table)


_SINKS: dict[str, Callable[[OutputFile, str, Further, contextlib.ExitStack], _Sink]] = {
    ".h5": _HDF5,
    ".hdf5": _HDF5,
    ".npy": _Npy,
    ".parquet": _Parquet,
    ".pq": _Parquet,
}


def _gather_lines(
    part: ScoresPart,
    further: Columns,
    comm: Communicator,
    delimiter: str,
    header: list[str] | None,
    spell: Callable[[str], str],
) -> Any:
    """Return the lines of all ranks, on the root, with a `header` before the first part; `spell` writes names."""
    lines = io.StringIO()
    written = csv.writer(lines, delimiter=delimiter, lineterminator="\n")
    if header is not None:
        written.writerow(map(spell, header))
    others = [map(spell if values.dtype.kind == "U" else repr, values.tolist()) for values in further.values()]
    others += [map(spell, texts) for texts in part.texts.values()]
    named = [] if part.ids is None else [map(spell, part.ids)]
    scores = map(repr, part.scores.tolist())
    if named or others:
        written.writerows(zip(*named, scores, *others, strict=True))
    else:
        lines.write("".join(f"{score}\n" for score in scores))
    return comm.gather_rows(np.frombuffer(lines.getvalue().encode(), np.uint8))


def _gather_arrays(part: ScoresPart, comm: Communicator) -> ScoresPart | None:
    """Return scores, ids and texts of all ranks, on the root."""
    whole = comm.gather_rows(part.scores)
    ids = None if part.ids is None else _gather_texts(part.ids, comm)
    texts = {name: _gather_texts(of_rows, comm) for name, of_rows in part.texts.items()}
    return None if whole is None else ScoresPart(whole, ids, texts)


def _gather_texts(texts: list[str], comm: Communicator) -> list[str]:
    """Return the texts of all ranks, on the root; elsewhere none."""
    encoded = [text.encode() for text in texts]
    lengths = comm.gather_rows(np.array([len(text) for text in encoded], np.int64))
    joined = comm.gather_rows(np.frombuffer(b"".join(encoded), np.uint8))
    if lengths is None or joined is None:
        return []
    whole, ends = joined.tobytes(), np.cumsum(lengths).tolist()
    return [whole[start:end].decode() for start, end in pairwise([0, *ends])]
