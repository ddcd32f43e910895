"""How files become rows, whatever their format: one face for text, tables and arrays.

The format follows from the end of the file's name: .csv and .tsv (also .gz, .bz2, .xz, .zst), .parquet and .pq, .npy,
.npz, .h5ad; all others are svmlight text.
"""

from __future__ import annotations

import os
import sys
from collections import Counter
from collections.abc import Sequence
from pathlib import Path

from distsms.data.formats import svmlight, text_files
from distsms.data.formats.base import Reader, ReadOptions
from distsms.data.formats.svmlight import TextReader
from distsms.errors import InputError
from distsms.parallel.communicator import Communicator


def format_of(path: str | os.PathLike[str]) -> str:
    """The format that a name stands for: "table", "arrays", "anndata" or "text"."""
    name = Path(path).name
    base, ending = os.path.splitext(name)
    if ending in text_files.COMPRESSED:
        ending = os.path.splitext(base)[1]
        return "table" if ending in (".csv", ".tsv") else "text"
    kinds = {"table": (".csv", ".tsv", ".parquet", ".pq"), "arrays": (".npy", ".npz"), "anndata": (".h5ad",)}
    return next((kind for kind, endings in kinds.items() if ending in endings), "text")


def open_reader(paths: Sequence[str | os.PathLike[str]], reading: ReadOptions, comm: Communicator) -> Reader:
    """The reader for files of one format. Collective; raises InputError on every rank. Tables are read once for it."""
    names = [os.fspath(path) for path in paths]
    with comm.together():
        text_files.plan(names, 1)  # they are there, and regular files
        kind, *others = {format_of(path) for path in names}
        endings = {os.path.splitext(path)[1] for path in names}
        if others or (kind != "text" and len(endings - {*text_files.COMPRESSED}) > 1):
            raise InputError(f"{', '.join(names)}: are of several formats; convert them one by one")
        if kind == "table":
            from distsms.data.formats.table import TableReader
        elif kind == "arrays":
            from distsms.data.formats.npy import ArrayReader
        elif kind == "anndata":
            from distsms.data.formats.anndata import AnnDataReader
    if kind == "table":
        return TableReader(names, reading, comm)
    if kind == "arrays":
        return ArrayReader(names, reading, comm)
    if kind == "anndata":
        return AnnDataReader(names, reading, comm)
    if reading.id or reading.drop or reading.label or reading.keep:
        raise InputError(
            f"{names[0]}: svmlight text has no columns with names, for --label, --id, --drop or --keep", True
        )
    if {reading.group, reading.time} - {None, svmlight.QUERY}:
        raise InputError(
            f"{names[0]}: svmlight text has no columns with names; of groups and times it has query ids alone: "
            f"--group {svmlight.QUERY}",
            True,
        )
    return TextReader(names, reading)


def tell(path: str | os.PathLike[str], notes: Counter[str], comm: Communicator) -> None:
    """Warn of what was met on any rank, on the root. Collective."""
    whole = sum(comm.allgather(notes), Counter[str]())
    for what, count in sorted(whole.items()) if comm.is_root else ():
        print(f"warning: {path}: {what}: {count} rows", file=sys.stderr, flush=True)
