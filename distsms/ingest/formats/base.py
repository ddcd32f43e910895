"""The protocol that every reader of files implements."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Iterator, Mapping
from typing import Any, Protocol

from distsms.shards.column_options import ColumnReport
from distsms.shards.rows import RowBlock
from distsms.shards.sequence_rules import Sequences
from distsms.shards.table_schema import Table


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
