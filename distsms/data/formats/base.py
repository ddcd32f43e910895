"""What every reader of files has in common: the options that it is given and the protocol that it implements."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, field
from typing import Any, Protocol

from distsms.data.formats.column_options import ColumnOptions, ColumnReport
from distsms.data.formats.rows import RowBlock
from distsms.data.formats.table_schema import Table
from distsms.data.labels import Label


@dataclass(frozen=True)
class ReadOptions:
    """How files are to be read.

    In tables and AnnData files, the names below are those of columns. In array files, they are those of arrays in the
    same .npz file, or of other files that end in .npy.

    Parameters
    ----------
    zero_based : bool
        Whether svmlight text counts columns from 0 rather than from 1.
    label, id : str or None
        The column of the labels, and that of the row ids.
    positive : float, str or None
        The label of the positive class. If it is None, `distsms.data.labels.interpret` decides which one it is.
    drop : tuple of str
        Columns that are left out.
    group, time : str or None
        The columns that give each row its group and its time (`distsms.data.row_metadata`). For svmlight text, "qid".
    keep : tuple of str
        Those columns of groups and times that are features as well.
    columns : ColumnOptions
        How the columns of a table become features.
    decimal : str
        The decimal mark in CSV, "." or ",".
    table, label_map : Table, mapping or None
        The columns and labels of the training data, by which other files of the same kind are read. None: the reader
        finds them out.
    labelled : bool
        Whether labels are wanted. If not, all labels come back as 0.
    ignore_new : bool or None
        Whether to leave out columns that the training data did not have. With None there is no such option, and such
        columns are refused.
    """

    zero_based: bool = False
    label: str | None = None
    positive: Label | None = None
    id: str | None = None
    drop: tuple[str, ...] = ()
    group: str | None = None
    time: str | None = None
    keep: tuple[str, ...] = ()
    columns: ColumnOptions = field(default_factory=ColumnOptions)
    decimal: str = "."
    table: Table | None = None
    label_map: Mapping[str, Any] | None = None
    labelled: bool = True
    ignore_new: bool | None = None

    @property
    def metadata_columns(self) -> list[str]:
        """The columns of groups and times, as far as they are asked for."""
        return [name for name in (self.group, self.time) if name is not None]

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
