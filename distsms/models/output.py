"""Write scores to a file part by part, in the order of the rows, with the names of the rows if they have names, which
are harmless for a terminal and a spreadsheet unless they are to be verbatim. Further columns come after the score.
"""

from __future__ import annotations

import contextlib
import csv
import io
import sys
from collections.abc import Callable, Iterable, Mapping, Sequence
from functools import partial
from importlib.util import find_spec
from itertools import pairwise
from pathlib import Path
from typing import Any, BinaryIO, NamedTuple, TypeAlias

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
    if _SINKS.get(ending) is _parquet and find_spec("pyarrow") is None:
        lacking = "Parquet is written by pyarrow, which is not installed: pip install 'distsms[tables]'"
        raise InputError(f"{path}: {lacking}; or name a file .csv, .tsv, .txt or .h5")


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
    n, ending = 0, "" if path == "-" else _ending(path)
    make, delimiter = _SINKS.get(ending), DELIMITERS.get(ending, "")
    id_name = "ids" if make is _hdf5 else id_name
    spell = str if verbatim else harmless_cell if delimiter else partial(printable, kept="\t\r\n")
    with contextlib.ExitStack() as opened:
        with comm.fail_together():
            check_ending(path, others)
            file = opened.enter_context(atomic_write(path)) if comm.is_root and path != "-" else None
            append: Append = len  # of other ranks, which write nothing
            if comm.is_root:
                append = make(file, opened) if file is not None and make else _text(file or sys.stdout.buffer)
        for k, part in enumerate(parts):
            if make is None:
                names = [id_name, "score", *others][part.ids is None :]
                header = names if not k and delimiter and comm.is_root else None
                whole = _gather_lines(part, further(part.scores), comm, delimiter or "\t", header, spell)
            else:
                whole = _gather_arrays(part, further, id_name, comm)
            n += len(part.scores)
            with comm.fail_together():
                if file is not None:
                    with naming_failures(path, file):
                        append(whole)
                        file.check()
                elif comm.is_root:
                    append(whole)
                    if (failure := failure_of_standard_output()) is not None:
                        raise failure  # to score further rows would be in vain
        with comm.fail_together():
            opened.close()  # completes the file
    return int(comm.sum(np.array([n]))[0])


def _ending(path: str) -> str:
    return Path(path).suffix.lower()


Append: TypeAlias = Callable[[Any], object]
"""Writes the next part of the rows: lines of text, or columns by name, of which lists are texts."""


def _text(stream: BinaryIO | OutputFile) -> Append:
    def append(lines: NDArray[np.uint8]) -> None:
        stream.write(lines.data)
        stream.flush()

    return append


def _hdf5(stream: OutputFile, opened: contextlib.ExitStack) -> Append:
    file = opened.enter_context(hdf5.write_to(stream))

    def append(columns: dict[str, Any]) -> None:
        for column, values in columns.items():
            name, is_text = PLURALS.get(column, column), isinstance(values, list) or values.dtype.kind == "U"
            if name not in file:
                kind, chunk = h5py.string_dtype() if is_text else values.dtype, 2**14 if is_text else 2**16
                file.create_dataset(name, (0,), kind, maxshape=(None,), chunks=(chunk,))
            dataset = file[name]
            dataset.resize(len(dataset) + len(values), axis=0)
            if len(values):
                dataset[len(dataset) - len(values) :] = np.asarray(values, object) if is_text else values

    return append


def _npy(stream: OutputFile, opened: contextlib.ExitStack) -> Append:
    n = 0

    def append(columns: dict[str, Any]) -> None:
        """Write scores; the header has the number of rows and is rewritten, for which NumPy pads it."""
        nonlocal n
        n += len(columns["score"])
        stream.seek(0)
        np.lib.format.write_array_header_1_0(stream, {"descr": "<f8", "fortran_order": False, "shape": (n,)})
        stream.seek(0, io.SEEK_END)
        stream.write(columns["score"].astype("<f8").tobytes())

    return append


def _parquet(stream: OutputFile, opened: contextlib.ExitStack) -> Append:
    import pyarrow as pa
    import pyarrow.parquet as arrow_parquet

    writer: Any = None

    def append(columns: dict[str, Any]) -> None:
        nonlocal writer
        kinds = {name: pa.string() if isinstance(values, list) else None for name, values in columns.items()}
        table = pa.table({name: pa.array(values, kinds[name]) for name, values in columns.items()})
        writer = writer or opened.enter_context(arrow_parquet.ParquetWriter(stream, table.schema))
        writer.write_table(table)

    return append


_SINKS = {".h5": _hdf5, ".hdf5": _hdf5, ".npy": _npy, ".parquet": _parquet, ".pq": _parquet}


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


def _gather_arrays(part: ScoresPart, further: Further, id_name: str, comm: Communicator) -> dict[str, Any]:
    """Return the columns of all ranks, on the root."""
    whole = comm.gather_rows(part.scores)
    ids = {} if part.ids is None else {id_name: _gather_texts(part.ids, comm)}
    texts = {name: _gather_texts(of_rows, comm) for name, of_rows in part.texts.items()}
    return {} if whole is None else ids | {"score": whole, **further(whole)} | texts


def _gather_texts(texts: list[str], comm: Communicator) -> list[str]:
    """Return the texts of all ranks, on the root; elsewhere none."""
    encoded = [text.encode() for text in texts]
    lengths = comm.gather_rows(np.array([len(text) for text in encoded], np.int64))
    joined = comm.gather_rows(np.frombuffer(b"".join(encoded), np.uint8))
    if lengths is None or joined is None:
        return []
    whole, ends = joined.tobytes(), np.cumsum(lengths).tolist()
    return [whole[start:end].decode() for start, end in pairwise([0, *ends])]
