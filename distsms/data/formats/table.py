"""Tables to rows: what the columns hold is found in a first pass of all ranks, then every row becomes features.

In CSV, a column is one of numbers if every value is one (a decimal, as in svmlight text); else its values, as they are
written, are categories. `distsms.data.formats.table_schema` says what features follow.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, field, replace
from functools import partial
from typing import Any, NoReturn

import numpy as np
from numpy.typing import NDArray

from distsms.data import labels, row_metadata
from distsms.data.formats import arrow
from distsms.data.formats.base import ReadOptions
from distsms.data.formats.rows import Rows, index_dtype
from distsms.data.formats.table_schema import MOST_CATEGORIES, Column, Table, match, shown
from distsms.data.labels import Label
from distsms.data.row_metadata import Beside
from distsms.errors import InputError
from distsms.parallel.communicator import Communicator

FEW = 1000
"""Different numbers, beyond which a column is one of numbers, and a word in it a mistake."""


class TableReader:
    """The rows of CSV and Parquet files."""

    def __init__(self, paths: Sequence[str], reading: ReadOptions, comm: Communicator) -> None:
        """Collective: without the table of training, all ranks read all files once to find it."""
        self.reading, self.notes = reading, Counter[str]()
        with comm.together():
            self.files: Any = arrow.open_files(paths)
            given = self._check_names(reading.table)
        self.compressed = self.files.compressed
        self.label_map = reading.label_map
        self.table = given or self._survey(comm)
        self.n_columns, self.named = self.table.p, self.table.id is not None

    def plan(self, n_shares: int) -> list[list[Any]]:
        """Cut the input into shares, for `read`."""
        return self.files.plan(n_shares)

    def read(self, share: Iterable[Any]) -> Iterator[Rows]:
        """The rows of a share, in order, by batches. InputError names file, row and column."""
        table = self.table
        used = [table.label if self.reading.labelled else None, table.id]
        names = [column.name for column in table.columns] + [name for name in used if name is not None]
        for batch in self.files.batches(share, names, self.reading.beside):
            indptr, indices, data = self._features(batch)
            ids = None if table.id is None else self._ids(batch, table.id)
            yield Rows(self._signs(batch), indptr, indices, data, table.p, ids, self._beside(batch))

    def _check_names(self, table: Table | None) -> Table | None:
        """The table to read by, if it is given; refuses files of other columns. Local."""
        reading, files = self.reading, self.files
        if table is None:
            special = [reading.label, reading.id, *reading.beside]
            for name in [one for one in (*special, *reading.drop) if one is not None]:
                if name not in files.names:
                    raise InputError(f"{files.paths[0]}: has no column {name!r}; it has {shown(files.names)}")
            if reading.label is None:
                raise InputError(
                    f"{files.paths[0]}: which column is the label? --label COLUMN; columns: {shown(files.names)}"
                )
            wanted = [name for name in files.names if name not in reading.no_features]
            if "" in wanted:
                raise InputError(
                    f"{files.paths[0]}: column {files.names.index('') + 1} has no name; if it is a mere index, leave "
                    "it out with --drop ''"
                )
            required, optional = [*wanted, *(name for name in special if name)], [*reading.drop]
        else:
            wanted = [column.name for column in table.columns]
            label, id_ = reading.label or table.label, reading.id or table.id
            if reading.id is None and id_ is not None and any(id_ not in files.headers[path] for path in files.paths):
                id_ = None
            required = [*wanted, *([label] if reading.labelled and label else []), *([id_] if id_ else [])]
            required += reading.beside
            optional = [*table.dropped, *(name for name in (table.label, table.id, label) if name)]
            table = replace(table, label=label, id=id_)
        first = files.paths[0] if table is None else None
        for path in files.paths:
            match(required, files.headers[path], optional, path, reading.ignore_new, first)
        return table

    def _survey(self, comm: Communicator) -> Table:
        """What the columns hold, and the labels. Collective; one pass over the files."""
        reading, files = self.reading, self.files
        names = [name for name in files.names if name not in reading.no_features]
        assert reading.label is not None
        found = {name: ColumnSurvey() for name in [*names, reading.label]}
        with comm.together():
            for batch in files.batches(files.plan(comm.size)[comm.rank], list(found)):
                for name, one in found.items():
                    one.add(batch.columns[name], batch.place)
        parts = comm.allgather(found)
        with comm.together():
            whole = {name: merged([part[name] for part in parts]) for name in found}
            values = whole[reading.label].labels(reading.label, files)
            try:
                meaning = labels.interpret(values, reading.positive)
                if len(values) == 1:
                    raise InputError(f"has one value only, {labels.in_words(values)}; two classes are needed")
            except InputError as error:
                raise InputError(f"{files.paths[0]}: column {reading.label!r}: {error}") from error
            self.label_map = meaning.as_map()
            columns = tuple(whole[name].column(name, files) for name in names)
            if not columns:
                raise InputError(f"{files.paths[0]}: has no column besides label and ids")
        dropped = (name for name in (*reading.drop, *reading.beside) if name not in names)
        return Table(columns, reading.label, reading.id, tuple(dict.fromkeys(dropped)))

    def _features(self, batch: arrow.Batch) -> tuple[NDArray[np.int64], NDArray[Any], NDArray[np.float64]]:
        """A row has at most one feature of each column: (n, columns) of them, of which the zeros are left out."""
        shape = (batch.n, len(self.table.columns))
        feature: NDArray[Any] = np.zeros(shape, index_dtype(self.table.p))
        value = np.zeros(shape)
        for k, (column, start) in enumerate(zip(self.table.columns, self.table.starts, strict=False)):
            found = batch.columns[column.name]
            missing = arrow.missing(found)
            if column.categories is None:
                feature[:, k], value[:, k] = start, self._numbers(found, column.name, batch)
            else:
                place = self._categories(found, missing, column)
                feature[:, k], value[:, k] = start + np.maximum(place, 0), place >= 0
            if missing.any():
                feature[missing, k] = start + column.width - column.missing
                value[missing, k] = column.missing
                if not column.missing:
                    self.notes[
                        f"column {column.name!r}: missing values, of which training had none; they count as 0"
                    ] += missing.sum()
        stored = value != 0
        indptr = np.concatenate(([0], np.cumsum(stored.sum(axis=1))))
        return indptr, feature[stored], value[stored]

    def _numbers(self, found: Any, name: str, batch: arrow.Batch) -> NDArray[np.float64]:
        """(n,), 0 where missing."""
        if arrow.is_text(found) and (wrong := arrow.is_word(found)).any():
            self._fail(batch, wrong.argmax(), name, found, "expected a number, as in the training data")
        values = arrow.as_float(found)
        if (wrong := np.isinf(values)).any():
            self._fail(batch, wrong.argmax(), name, found, "the value is not finite; expected a decimal number")
        return np.nan_to_num(values, nan=0.0)

    def _categories(self, found: Any, missing: NDArray[np.bool_], column: Column) -> NDArray[np.int64]:
        """(n,) the category of each row, -1 for none that is known."""
        assert column.categories is not None
        if not arrow.is_text(found):
            raise InputError(
                f"{self.files.paths[0]}: column {column.name!r} holds numbers, in the training data it held categories"
            )
        place: NDArray[np.int64] = arrow.codes(found, column.categories)
        unknown = (place < 0) & ~missing
        if unknown.any():
            self.notes[f"column {column.name!r}: categories that training had not; they count as 0"] += int(
                unknown.sum()
            )
        return place

    def _signs(self, batch: arrow.Batch) -> NDArray[np.float64]:
        name = self.table.label
        if not self.reading.labelled or name is None:
            return np.zeros(batch.n)
        found = batch.columns[name]
        if (missing := arrow.missing(found)).any():
            self._fail(batch, missing.argmax(), name, found, "the label is missing")
        assert self.label_map is not None
        different, which = arrow.encoded(found)
        if any(isinstance(one, str) for sign in ("+1", "-1") for one in labels.known(self.label_map, sign)):
            values = np.array(arrow.as_text(different).to_pylist(), dtype=str)
        elif arrow.is_text(found) and (wrong := arrow.is_word(found)).any():
            self._fail(batch, wrong.argmax(), name, found, "expected a number, as the labels of the training data")
        else:
            values = arrow.as_float(different)
        return labels.signs(values, self.label_map, f"{batch.place.path}: column {name!r}").astype(float)[which]

    def _ids(self, batch: arrow.Batch, name: str) -> list[str]:
        found = batch.columns[name]
        if (missing := arrow.missing(found)).any():
            self._fail(batch, missing.argmax(), name, found, "the row id is missing")
        return arrow.as_text(found).to_pylist()

    def _beside(self, batch: arrow.Batch) -> Beside:
        reading = self.reading
        return row_metadata.read(reading.group, reading.time, batch.beside.__getitem__, partial(self._refuse, batch))

    def _fail(self, batch: arrow.Batch, row: int, name: str, found: Any, problem: str) -> NoReturn:
        self._refuse(batch, name, int(row), f"found {found[int(row)].as_py()!r:.40}: {problem}")

    def _refuse(self, batch: arrow.Batch, name: str, row: int, problem: str) -> NoReturn:
        raise InputError(f"{self.files.where(batch.place, row)}: column {name!r}: {problem}")


@dataclass
class ColumnSurvey:
    """What a column holds, so far. numbers, words : different values, None where there are too many."""

    typed: bool = False  # its type says that it holds numbers
    missing: bool = False
    numbers: set[Any] | None = field(default_factory=set)
    words: set[str] | None = field(default_factory=set)
    first: tuple[arrow.Place, int] | None = None  # the first word

    def add(self, column: Any, place: arrow.Place) -> None:
        """Note a batch."""
        self.missing |= bool(arrow.missing(column).any())
        if not arrow.is_text(column):
            self.typed = True
            if self.numbers is not None:
                self.numbers = _joined(self.numbers, arrow.different(column), FEW)
            return
        words = arrow.is_word(column)
        if self.numbers is not None:
            self.numbers = _joined(self.numbers, arrow.different(column, ~words), FEW)
        if words.any():
            self.first = self.first or (place, int(words.argmax()))
            self.words = _joined(self.words, arrow.different(column, words), MOST_CATEGORIES)

    def column(self, name: str, files: Any) -> Column:
        """What it is a column of. Raises InputError where it can be neither numbers nor categories."""
        if self.typed or self.words == set():
            return Column(name, None, self.missing)
        where = f"{files.where(*self.first)}: column {name!r}" if self.first else name
        if self.numbers is None:
            raise InputError(
                f"{where}: is no number, where the column has more than {FEW} different ones; mend it, or leave the "
                "column out with --drop"
            )
        if self.words is None or len(self.words | self.numbers) > MOST_CATEGORIES:
            raise InputError(
                f"{where}: the column has more than {MOST_CATEGORIES} different values; leave it out with --drop (or "
                "name it with --id)"
            )
        return Column(name, tuple(sorted(self.words | self.numbers)), self.missing)

    def labels(self, name: str, files: Any) -> list[Label]:
        """The different labels: numbers, if all are. Raises InputError where there are too many."""
        if self.numbers is None or self.words is None or len(self.words | self.numbers) > labels.MOST:
            raise InputError(
                f"{files.paths[0]}: column {name!r} has more than {labels.MOST} different values: is it the label?"
            )
        found = self.words | self.numbers if self.words else {float(one) for one in self.numbers}
        return sorted(found)


def merged(parts: Sequence[ColumnSurvey]) -> ColumnSurvey:
    """What a column holds in all ranks' rows."""
    whole = ColumnSurvey()
    for part in parts:
        whole.typed |= part.typed
        whole.missing |= part.missing
        whole.numbers = None if part.numbers is None else _joined(whole.numbers, part.numbers, FEW)
        whole.words = None if part.words is None else _joined(whole.words, part.words, MOST_CATEGORIES)
        whole.first = whole.first or part.first
    return whole


def _joined(ours: set[Any] | None, more: set[Any] | None, most: int) -> set[Any] | None:
    """The union, or None where that is too many."""
    if ours is None or more is None or len(ours | more) > most:
        return None
    return ours | more
