"""Which reader reads which file: the end of a file's name determines its format, in capital or small letters.

Compressed files end in .gz, .bz2, .xz or .zst. Files of any other name are svmlight text, or sequences if an option
says so.
"""

from __future__ import annotations

import os
from collections import Counter
from collections.abc import Sequence
from functools import partial
from typing import Any

from distsms.base import addresses, text_files
from distsms.base.communicator import Communicator
from distsms.base.errors import InputError
from distsms.base.formatting import format_rows
from distsms.base.wording import Message, marked, option
from distsms.ingest.formats import svmlight
from distsms.ingest.formats.base import Reader
from distsms.ingest.formats.svmlight import SvmlightReader
from distsms.ingest.options import ReadOptions

_TEXT_KINDS = {"table": [".csv", ".tsv"], "fasta": [".fa", ".fasta", ".fna", ".faa"], "strings": [".strings"]}
"""The formats of text that may be compressed, and how their names end."""
_KINDS = _TEXT_KINDS | {"table": [".csv", ".tsv", ".parquet", ".pq"], "arrays": [".npy", ".npz"], "anndata": [".h5ad"]}
_SAME = {".tsv": ".csv", ".pq": ".parquet"}
_TO_CONVERT = "which distsms does not read: convert it to CSV or Parquet"
_FOREIGN = {
    b"PAR1": "is Parquet, whose name must end in .parquet",
    b"\x89HDF\r\n": "is HDF5, which is read only as AnnData, whose name must end in .h5ad",
    b"\x93NUMPY": "is an array of NumPy, whose name must end in .npy",
    b"PK\x03\x04": "is a ZIP archive, as Excel and NumPy write them: convert it to CSV or Parquet, or name it .npz",
    b"\xd0\xcf\x11\xe0": f"is an old Excel file, {_TO_CONVERT}",
    b"ARROW1": f"is an Arrow (Feather) file, {_TO_CONVERT}",
    b"ORC": f"is an ORC file, {_TO_CONVERT}",
    b"7z\xbc\xaf": "is a 7-Zip archive; unpack it",
    b"\x04\x22\x4d\x18": "is compressed by LZ4; unpack it, or compress it by gzip, bzip2, xz or Zstandard",
    b"\x5d\0\0": "is compressed as .lzma; unpack it, or compress it by gzip, bzip2, xz or Zstandard",
    b"\x1f\x9d": "is compressed by compress (.Z); unpack it, or compress it by gzip, bzip2, xz or Zstandard",
}
"""How files begin that would be taken for text, and what is said of them."""


def format_of(path: str | os.PathLike[str]) -> str:
    """Return the format that a file's name stands for: "table", "arrays", "anndata", "fasta", "strings" or "text"."""
    kinds = _TEXT_KINDS if addresses.name_of(path).lower().endswith(text_files.COMPRESSED) else _KINDS
    ending = text_files.ending(os.fspath(path))
    return next((kind for kind, endings in kinds.items() if ending in endings), "text")


def has_sequences(path: str | os.PathLike[str]) -> bool:
    """Return whether a file's name says that it holds sequences of letters."""
    return format_of(path) in ("fasta", "strings")


def open_reader(paths: Sequence[str | os.PathLike[str]], options: ReadOptions, comm: Communicator) -> Reader:
    """Return the reader for files of one format; a table without known columns is surveyed. **Collective.**"""
    names = [os.fspath(path) for path in paths]
    with comm.fail_together():
        text_files.plan(names, 1)  # refuses files that are missing or not regular
        kind, *others = {format_of(path) for path in names}
        endings = {_SAME.get(ending := text_files.ending(path), ending) for path in names}
        if others or (kind in ("table", "arrays") and len(endings) > 1):
            raise InputError(f"{', '.join(names)}: are of several formats; convert each format by itself")
        _refuse_foreign(names, kind)
        if kind != "table" and (given := options.of_tables):
            hint = f"; {svmlight.NAMES}" if kind == "text" else ""
            raise InputError(f"{names[0]}: {given[0]} is for CSV and Parquet{hint}")
        if options.missing_group != "own" and options.group is None:
            raise InputError(f"{option('missing_group', options.missing_group)} needs {option('group', text='COLUMN')}")
        sequences = has_sequences(names[0]) or (kind == "text" and (options.sequences or options.encoding) is not None)
        if (options.sequences or options.encoding) is not None and not sequences:
            why = "the training data were sequences" if options.encoding else "options for sequences were given"
            raise InputError(f"{names[0]}: {why}, and they are read from FASTA or lines LABEL SEQUENCE only")
        reader: Any = None
        if sequences:
            from distsms.ingest.formats.sequences import SequenceReader

            fasta = options.sequences.fasta if options.sequences else None
            if fasta is None and kind == "text":
                with text_files.open_text(names[0]) as stream:
                    text = stream.read(2**16).removeprefix(text_files.BYTE_ORDER_MARK)
                fasta = text.lstrip().startswith((b">", b";"))
            reader = partial(SequenceReader, fasta=kind == "fasta" if fasta is None else fasta)
        elif kind == "table":
            from distsms.ingest.formats.table import TableReader as reader
        elif kind == "arrays":
            from distsms.ingest.formats.npy import ArrayReader as reader
        elif kind == "anndata":
            from distsms.ingest.formats.anndata import AnnDataReader as reader
    if reader is not None:
        return reader(names, options, comm)
    named = [option(name) for name in ("label", "id", "weight") if getattr(options, name)]
    named += [option(name) for name in ("group", "time") if getattr(options, name) not in (None, svmlight.QUERY_ID)]
    if named:
        allowed = f"only {option('group', svmlight.QUERY_ID)} and {option('weight_file')} do not"
        problem = f"is taken for svmlight text, whose columns have no names, which {named[0]} needs"
        raise InputError(f"{names[0]}: {problem}; {allowed}; {svmlight.NAMES}", True)
    return SvmlightReader(names, options)


def _refuse_foreign(names: Sequence[str], kind: str) -> None:
    """Raise InputError for files that would be taken for text, and begin as files of another format do."""
    for name in names:
        if kind in ("arrays", "anndata") and addresses.is_address(name):
            raise InputError(f"{name}: such files are not read from addresses; download it, and give the copy")
        with addresses.opened(name) as stream:
            head = stream.read(8)
        binary = any(byte < 9 or byte > 127 for byte in head)  # names of columns may begin as well with ORC
        if kind in ("arrays", "anndata") or addresses.name_of(name).lower().endswith((".parquet", ".pq")):
            continue
        for magic, problem in _FOREIGN.items() if binary else ():
            if head.startswith(magic):
                raise InputError(f"{name}: {problem}")
        if kind == "text" and text_files.ending(name) in (*_KINDS["arrays"], *_KINDS["anndata"], ".parquet", ".pq"):
            raise InputError(f"{name}: such a file cannot be read while it is compressed; decompress it")


def reader_warnings(path: str | os.PathLike[str], warnings: Counter[str], comm: Communicator) -> list[str]:
    """Return the warnings that the readers of all ranks have collected. **Collective.**"""
    mine = Counter({Message(text): count for text, count in warnings.items()})  # which other ranks can read
    total = sum(comm.allgather(mine), Counter[str]())
    return [Message(f"{path}: {marked(warning)}: {format_rows(count)}") for warning, count in sorted(total.items())]
