"""What every reader of files has in common: the options it is given and the protocol that it implements."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass
from typing import Any, Protocol

from distsms.data.formats.rows import Rows
from distsms.data.formats.table_schema import Table
from distsms.data.labels import Label


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
