"""How files become rows, whatever their format: one face for text, tables and arrays.

The format follows from the end of the file's name: .csv and .tsv (also .gz, .bz2, .xz, .zst), .parquet and .pq, .npy,
.npz, .h5ad; all others are svmlight text.
"""

from __future__ import annotations

import os
import sys
from collections import Counter
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Protocol

from distsms.data import labels
from distsms.data.formats import svmlight, text_files
from distsms.data.formats.rows import Rows
from distsms.data.formats.table_schema import Table
from distsms.data.labels import Label
from distsms.errors import InputError
from distsms.parallel.communicator import Communicator


@dataclass(frozen=True)
class ReadOptions:
    """How files are to be read. Names are of columns; of arrays, of a member of the file or another file (.npy).

    table, label_map : of the training data, which other rows of the same kind are read by; None finds them out.
    """

    zero_based: bool = False
    label: str | None = None
    positive: Label | None = None
    id: str | None = None
    drop: tuple[str, ...] = ()
    group: str | None = None  # of which group a row is, see `beside`; of svmlight text "qid"
    time: str | None = None  # the same of its time
    keep: tuple[str, ...] = ()  # columns of groups and times that are features, too
    table: Table | None = None
    label_map: Mapping[str, Any] | None = None
    labelled: bool = True  # whether labels are wanted; they come back as 0 if not
    ignore_new: bool | None = None  # leave out columns that the training data had not; None: no choice, refuse them

    @property
    def beside(self) -> list[str]:
        """The columns of groups and times, as far as they are asked for."""
        return [name for name in (self.group, self.time) if name is not None]

    @property
    def no_features(self) -> set[str | None]:
        """The columns that are something else than features."""
        return {self.label, self.id, *self.drop} | (set(self.beside) - set(self.keep))


class Reader(Protocol):
    """Files of one format. The rows do not depend on how many shares they are cut into."""

    notes: Counter[str]
    """What was met so far that training had not, or that is left out, and how often."""

    @property
    def table(self) -> Table | None:
        """Names of columns and categories; None where columns have numbers only."""
        ...

    @property
    def n_columns(self) -> int | None:
        """p, where it is known before the rows are."""
        ...

    @property
    def label_map(self) -> Mapping[str, Any] | None:
        """What the labels +1 and -1 of the rows were; None where the rows have their labels as written."""
        ...

    @property
    def compressed(self) -> bool:
        """Whether svmlight text of the same rows would be far longer."""
        ...

    @property
    def named(self) -> bool:
        """Whether the rows have ids."""
        ...

    def plan(self, n_shares: int) -> list[list[Any]]:
        """Cut the input into shares; in their order they are the input. Local, the same on every rank."""
        ...

    def read(self, share: Iterable[Any]) -> Iterator[Rows]:
        """The rows of a share, in order, by blocks of bounded size. Local. InputError names file and row."""
        ...


class TextReader:
    """Svmlight text."""

    table = None
    n_columns = None
    compressed = named = False

    def __init__(self, paths: Sequence[str], reading: ReadOptions) -> None:
        self.paths, self.reading, self.notes = paths, reading, Counter[str]()
        self.label_map = reading.label_map

    def plan(self, n_shares: int) -> list[list[text_files.ByteRange]]:
        """As `textfiles.plan`."""
        return text_files.plan(self.paths, n_shares)

    def read(self, share: Iterable[text_files.ByteRange]) -> Iterator[Rows]:
        """As `svmlight.read`; with a label map, labels are +1 and -1."""
        asked = self.reading.group is not None, self.reading.time is not None
        for rows in svmlight.read(share, self.reading.zero_based, None, self.notes, *asked):
            if not self.reading.labelled:
                yield rows._replace(labels=rows.labels * 0)
            elif self.label_map is None:
                yield rows
            else:
                signs = labels.signs(rows.labels, self.label_map, ", ".join(self.paths))
                yield rows._replace(labels=signs.astype(float))


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
    with comm.fail_together():
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
