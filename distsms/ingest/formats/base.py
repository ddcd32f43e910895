"""What every reader of files has in common: the options that it is given and the protocol that it implements."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any, Protocol

from distsms.base import text_files
from distsms.base.errors import InputError
from distsms.shards import column_options
from distsms.shards.column_options import ColumnOptions, ColumnReport
from distsms.shards.labels import Label
from distsms.shards.rows import RowBlock
from distsms.shards.sequence_rules import SequenceOptions, Sequences
from distsms.shards.table_schema import THOUSANDS, VERSION, Cells, Table, is_separator


class Meter:
    """Counts what this rank has read or written of what it has to, one task after the other, and shows it.

    show : is called with the name of the task, what is counted ("MiB" or "rows"), how much is done, and of how much.
    """

    def __init__(self, show: Callable[[str, str, float, float], None] = lambda task, unit, done, of: None) -> None:
        self._show, self._task, self._unit = show, "", "rows"
        self._done = self._of = 0.0

    def begin(self, task: str, ranges: Iterable[Any]) -> None:
        """Begin a task that reads these ranges, of text or of rows."""
        ranges = list(ranges)
        in_bytes = any(isinstance(part, text_files.ByteRange) for part in ranges)
        self._task, self._unit, self._done = task, "MiB" if in_bytes else "rows", 0.0
        self._of = float(sum(part.size for part in ranges))
        self.add(0)

    def add(self, amount: float) -> None:
        """Show that so many more bytes or rows have been read."""
        self._done = min(self._done + amount, self._of)  # the size of compressed text is only estimated
        scale = 2.0**-20 if self._unit == "MiB" else 1.0
        if self._of:
            self._show(self._task, self._unit, self._done * scale, self._of * scale)


@dataclass(frozen=True)
class ReadOptions:
    """How files are to be read.

    In tables and AnnData files, the names below are those of columns. In array files, they are those of arrays in the
    same .npz file, or of other files that end in .npy.
    """

    zero_based: bool = False  # whether svmlight text counts columns from 0 rather than from 1
    label: str | None = None  # the column of the labels
    positive: Label | None = None  # the label of the positive class; None: see `distsms.shards.labels.interpret`
    id: str | None = None  # the column of the row ids
    drop: tuple[str, ...] = ()  # columns that are left out
    # The columns that give each row its group and its time (`distsms.shards.row_metadata`). For svmlight text, "qid".
    group: str | None = None
    time: str | None = None
    weight: str | None = None  # the column that gives each row its weight
    keep: tuple[str, ...] = ()  # those columns of groups, times and weights that are features as well
    columns: ColumnOptions = field(default_factory=ColumnOptions)  # how the columns of a table become features
    decimal: str = "."  # the decimal mark of numbers that are written as strings, "." or ","
    # The mark between thousands in such numbers, one of `table_schema.THOUSANDS`; "" if there is none. With "." numbers
    # have decimal commas.
    thousands: str = ""
    separator: str = ""  # the character that separates the fields of CSV; "" if the files show it
    missing: tuple[str, ...] = ()  # further marks of missing values, numbers among them
    not_missing: tuple[str, ...] = ()  # usual marks that are values here, such as "NA"
    # The columns and labels of the training data, by which other files of the same kind are read. None: the reader
    # finds them out.
    table: Table | None = None
    label_map: Mapping[str, Any] | None = None
    sequences: SequenceOptions | None = None  # what the user says about sequences; None if nothing is said
    # How the sequences of the training data became codes, by which other sequences are read.
    encoding: Sequences | None = None
    labelled: bool = True  # whether labels are needed; if not, all labels come back as 0
    # Whether to leave out columns that the training data did not have. With None there is no such option, and such
    # columns are refused.
    ignore_new: bool | None = None
    # Into how many shares text will be cut when its rows are read, 0 if that is not known. The survey of a table cuts
    # it in the same way, so that it need not be parsed twice.
    n_shares: int = 0
    meter: Meter = field(default_factory=Meter, compare=False)  # is told what has been read

    def split_names(self, table_columns: Sequence[str]) -> ReadOptions:
        """Return the same options with lists such as "a,b" split into the known columns of a table.

        Raises InputError if options contradict each other.
        """
        if self.thousands not in ("", *THOUSANDS):
            raise InputError(f"--thousands {self.thousands}: expected one of {', '.join(map(repr, THOUSANDS))}")
        if self.thousands == self.decimal == ",":
            raise InputError("--thousands , and --decimal , contradict each other: choose one")
        if self.separator and not is_separator(self.separator):
            raise InputError(
                f"--separator {self.separator!r:.20}: expected one character of ASCII, such as ';', that is no letter, "
                "digit, quote, sign or point"
            )
        if "" in self.not_missing:
            raise InputError("--not-missing '': an empty field is always a missing value")
        decimal = "," if self.thousands == "." else self.decimal
        drop = column_options.split_names(self.drop, table_columns)
        keep = column_options.split_names(self.keep, table_columns)
        if wrong := sorted(set(keep) - set(self.metadata_columns)):
            raise InputError(f"--keep {wrong[0]}: only the columns of --group, --time and --weight can be kept")
        if wrong := sorted(set(drop) & set(self.metadata_columns)):
            raise InputError(f"--drop {wrong[0]}: the column of --group, --time or --weight is not a feature anyway")
        return replace(self, drop=drop, keep=keep, columns=self.columns.split(table_columns), decimal=decimal)

    @property
    def cells(self) -> Cells:
        """How the cells of tables are read: as those of the training data, or as is asked."""
        if self.table is None:
            missing, not_missing = (tuple(mark.strip() for mark in marks) for marks in (self.missing, self.not_missing))
            return Cells(VERSION, self.decimal, self.thousands, self.separator, missing, not_missing)
        return replace(self.table.cells, separator=self.separator) if self.separator else self.table.cells

    @property
    def metadata_columns(self) -> list[str]:
        """The columns of groups, times and weights, as far as they are asked for."""
        return [name for name in (self.group, self.time, self.weight) if name is not None]

    @property
    def non_features(self) -> set[str | None]:
        """The columns that do not become features."""
        return {self.label, self.id, *self.drop} | (set(self.metadata_columns) - set(self.keep))


class Reader(Protocol):
    """A reader of files of one format. The rows do not depend on the number of shares that the files are cut into."""

    warnings: Counter[str]
    """What the training data did not have, or what is left out, each with the number of rows concerned so far."""

    @property
    def table(self) -> Table | None:
        """The names of the columns and their categories; None where columns have numbers only."""
        ...

    @property
    def sequences(self) -> Sequences | None:
        """How sequences become codes; None where the rows are not sequences."""
        ...

    @property
    def reports(self) -> list[ColumnReport] | None:
        """The report on each column of a table; None if the reader did not have to survey the columns."""
        ...

    @property
    def n_columns(self) -> int | None:
        """The number of features p if it is known before any row is read, else None."""
        ...

    @property
    def label_map(self) -> Mapping[str, Any] | None:
        """Which original labels became +1 and -1; None if the rows come with their labels as written."""
        ...

    @property
    def compressed(self) -> bool:
        """Whether svmlight text of the same rows would be far longer than the files."""
        ...

    @property
    def has_ids(self) -> bool:
        """Whether the rows have ids."""
        ...

    def plan(self, n_shares: int) -> list[list[Any]]:
        """Cut the input into `n_shares` consecutive shares. Local; every rank gets the same result."""
        ...

    def read(self, share: Iterable[Any]) -> Iterator[RowBlock]:
        """Yield the rows of a share in order, in blocks of bounded size. Local. Errors name file and row."""
        ...
