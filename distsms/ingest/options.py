"""How files are read and data sets are written, and who is told of the progress."""

from __future__ import annotations

import os
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, fields, replace
from pathlib import Path
from typing import Any, NamedTuple

from distsms.base import text_files
from distsms.base.choices import check_fields, require_choice
from distsms.base.errors import InputError
from distsms.base.wording import option
from distsms.shards import column_options
from distsms.shards.column_options import ColumnOptions, ColumnReport
from distsms.shards.labels import Label
from distsms.shards.row_metadata import MetadataColumns
from distsms.shards.sequence_rules import SequenceOptions, Sequences
from distsms.shards.splits import Splitter
from distsms.shards.table_schema import THOUSANDS, USUAL, VERSION, Cells, Table, is_separator


class ConversionObserver:
    """Receives what reading files reports. Override its methods, which are called on the root unless they say else."""

    def opening(self, files: Sequence[str]) -> None:
        """Called before files are read. May raise InputError."""

    def converting(self, task: str, unit: str, done: float, of: float) -> None:
        """Called on every rank: what is done, in which unit ("MiB" or "rows"), how much of it, and of how much."""

    def surveyed(self, reports: Sequence[ColumnReport]) -> None:
        """Called before the rows of a table are written, with the reports on its columns."""

    def told(self, text: str) -> None:
        """Called with a line for users."""

    def cautioned(self, warning: str) -> None:
        """Called with a warning on the files that were read."""


class Meter:
    """Counts what this rank has read or written of what it has to, one task after the other, and tells an observer."""

    def __init__(self, observer: ConversionObserver = ConversionObserver()) -> None:  # noqa: B008 - without state
        self._observer, self._task, self._unit = observer, "", "rows"
        self._done = self._of = 0.0

    def begin(self, task: str, ranges: Sequence[Any]) -> None:
        """Begin a task that reads these ranges, of text or of rows."""
        in_bytes = any(isinstance(part, text_files.ByteRange) for part in ranges)
        self._task, self._unit, self._done = task, "MiB" if in_bytes else "rows", 0.0
        self._of = float(sum(part.size for part in ranges))
        self.add(0)

    def add(self, amount: float) -> None:
        self._done = min(self._done + amount, self._of)  # the size of compressed text is only estimated
        scale = 2.0**-20 if self._unit == "MiB" else 1.0
        if self._of:
            self._observer.converting(self._task, self._unit, self._done * scale, self._of * scale)


class Workspace(NamedTuple):
    """What reading a table may take besides the rows."""

    folder: Path | None = None  # where the survey may keep what it has parsed and has no room for in memory
    rows_stay: bool = False  # whether the rows are to stay in memory
    memory: float | None = None  # the bytes that each rank may take; None: as many as are available
    called: str = ""  # what warnings call the files; "" stands for their names


@dataclass(frozen=True)
class ReadOptions:
    """How files are read. Names are those of columns, or of arrays in the same .npz file or in other .npy files."""

    zero_based: bool = False  # whether svmlight text counts columns from 0 rather than from 1
    label: str | None = None  # the column of the labels
    positive: Label | None = None  # the label of the positive class; None: see `distsms.shards.labels.interpret`
    id: str | None = None  # the column of the row ids
    drop: tuple[str, ...] = ()  # columns that are left out
    group: str | None = None  # the columns of groups and times (`distsms.shards.row_metadata`); of svmlight text, "qid"
    time: str | None = None
    weight: str | None = None  # the column that gives each row its weight
    missing_group: str = "own"  # whether a row of a table without a group is one of its "own", or to "drop"
    keep: tuple[str, ...] = ()  # those columns of groups, times and weights that are features as well
    columns: ColumnOptions = field(default_factory=ColumnOptions)  # how the columns of a table become features
    decimal: str = "."  # the decimal mark of numbers that are written as strings, "." or ","
    thousands: str = ""  # the mark between thousands, one of `table_schema.THOUSANDS`; with ".", decimals follow commas
    separator: str = ""  # the character that separates the fields of CSV; "" if the files show it
    no_header: bool = False  # whether CSV has rows from the first line on, and no names of columns
    names: tuple[str, ...] = ()  # the names of the columns of such CSV; () numbers them
    missing: tuple[str, ...] = ()  # further marks of missing values, numbers among them
    not_missing: tuple[str, ...] = ()  # usual marks that are values here, such as "NA"
    # The columns, labels and codes of the training data, by which other files are read; None: the reader finds them out
    table: Table | None = None
    label_map: Mapping[str, Any] | None = None
    encoding: Sequences | None = None
    sequences: SequenceOptions | None = None  # what the user says about sequences; None if nothing is said
    labelled: bool = True  # whether labels are needed; if not, all labels come back as 0
    # Whether to leave out columns that the training data did not have, or (None) there is no option for that.
    ignore_new: bool | None = None
    n_shares: int = 0  # into how many shares text will be cut, so that a survey cuts it alike; 0: that is not known
    workspace: Workspace = field(default=Workspace(), compare=False)
    meter: Meter = field(default_factory=Meter, compare=False)  # is told what has been read

    def split_names(self, table_columns: Sequence[str]) -> ReadOptions:
        """Return the same options with lists such as "a,b" split into the columns of a table; check them."""
        if self.thousands not in ("", *THOUSANDS):
            raise InputError(f"{option('thousands', self.thousands)}: give one of {', '.join(map(repr, THOUSANDS))}")
        require_choice("missing_group", self.missing_group, ("own", "drop"))
        if self.thousands == self.decimal == ",":
            raise InputError(f"{option('thousands', ',')} and {option('decimal', ',')} contradict each other")
        if self.separator and not is_separator(self.separator):
            shown = option("separator", text=repr(self.separator)[:20])
            raise InputError(f"{shown}: expected one character, such as ';': no letter, digit, quote, sign or point")
        if "" in self.not_missing:
            raise InputError(f"{option('not_missing', [''])}: an empty field is always a missing value")
        decimal = "," if self.thousands == "." else self.decimal
        drop = column_options.split_names(self.drop, table_columns)
        keep = column_options.split_names(self.keep, table_columns)
        if wrong := sorted(set(keep) - set(self.metadata_columns)):
            raise InputError(f"{option('keep', [wrong[0]])}: is for columns of groups, times and weights")
        if wrong := sorted(set(drop) & set(self.metadata_columns)):
            columns = f"{option('group')}, {option('time')} or {option('weight')}"
            raise InputError(f"{option('drop', [wrong[0]])}: the column of {columns} is not a feature anyway")
        return replace(self, drop=drop, keep=keep, columns=self.columns.split(table_columns), decimal=decimal)

    @property
    def of_tables(self) -> list[str]:
        """The options that were given, and that tables alone take."""
        given = [option(name, list(value)) for name in ("drop", "keep") if (value := getattr(self, name))]
        given += [option("missing_group", self.missing_group)] * (self.missing_group != "own")
        of_columns = self.columns != ColumnOptions() or (self.table is None and self.cells != USUAL)
        return given + ["an option for columns"] * of_columns

    @property
    def cells(self) -> Cells:
        """How the cells of tables are read: as those of the training data, or as is asked."""
        if self.table is None:
            missing, not_missing = (tuple(mark.strip() for mark in marks) for marks in (self.missing, self.not_missing))
            names = column_options.split_names(self.names, ()) if self.no_header or self.names else None
            return Cells(VERSION, self.decimal, self.thousands, self.separator, missing, not_missing, names)
        return replace(self.table.cells, separator=self.separator) if self.separator else self.table.cells

    @property
    def row_columns(self) -> MetadataColumns:
        """The columns of groups, times and weights."""
        return MetadataColumns(self.group, self.time, self.weight)

    @property
    def metadata_columns(self) -> list[str]:
        """The names of those of these columns that there are."""
        return [name for name in self.row_columns if name is not None]

    @property
    def non_features(self) -> set[str | None]:
        """The columns that do not become features."""
        return {self.label, self.id, *self.drop} | (set(self.metadata_columns) - set(self.keep))


@dataclass(frozen=True)
class WriteOptions:
    """How a data set is written."""

    n_shards: int | None = None  # None: one for every 128 MiB of text; there are more if one takes much memory
    n_features: int | None = None  # the number of columns, if it is more than the input uses
    dtype: str = "float64"  # "float32" or "float64"
    compression: str = "none"  # the compression of the shards, one of `manifest.COMPRESSIONS`
    normalize: str | None = None  # of `normalization.KINDS`; None: "standard" for CSV and Parquet, else "none"
    # If given, each part becomes a data set in a folder inside the directory, normalized by the factors of the first.
    split: Splitter | None = None
    weight_file: str | os.PathLike[str] | None = None  # with the weight of each row on a line of its own
    durable: bool = True  # whether the shards must survive a failure of the machine, as temporary ones need not
    # Whether the entries of temporary shards (of a split: of its first part) stay in memory, unless some rank has
    # too little of it, or many more entries than others.
    in_memory: bool = False

    def __post_init__(self) -> None:
        check_fields(self, {"n_shards": 1, "n_features": 1})

    def folders(self, directory: Path) -> list[Path]:
        """Return the directories of the data sets that are made."""
        return [directory] if self.split is None else [directory / name for name in self.split.names]


def sort_options(options: Mapping[str, Any]) -> tuple[ReadOptions, WriteOptions]:
    """Return options, by their names, as those for reading and those for writing. Raises TypeError for any other."""
    writing = {field.name for field in fields(WriteOptions)}
    read_options = {name: value for name, value in options.items() if name not in writing}
    return ReadOptions(**read_options), WriteOptions(**{name: options[name] for name in writing & options.keys()})
