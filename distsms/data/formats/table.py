"""Tables to rows: a first pass of all ranks finds out what the columns hold, then every row becomes features.

A CSV column holds numbers if every value is one (a decimal, as in svmlight text). Otherwise its values, as they are
written, are categories. `distsms.data.formats.table_schema` says which features follow.
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
from distsms.data.formats.rows import RowBlock, index_dtype
from distsms.data.formats.table_schema import MAX_CATEGORIES, Column, Table, check_columns, format_names
from distsms.data.labels import Label
from distsms.data.row_metadata import RowMetadata
from distsms.errors import InputError
from distsms.parallel.communicator import Communicator

MAX_NUMBERS = 1000
"""A column with more different numbers than this is one of numbers: a value that is not a number is a mistake."""


class TableReader:
    """Reader of CSV and Parquet files; see `distsms.data.formats.base.Reader`."""

    def __init__(self, paths: Sequence[str], options: ReadOptions, comm: Communicator) -> None:
        """Check the names of the columns. **Collective.**

        Without the table of the training data, all ranks read all files once to find it out.
        """
        self.options, self.warnings = options, Counter[str]()
        with comm.fail_together():
            self.files: Any = arrow.open_files(paths)
            given = self._check_names(options.table)
        self.compressed = self.files.compressed
        self.label_map = options.label_map
        self.table = given or self._survey(comm)
        self.n_columns, self.has_ids = self.table.p, self.table.id is not None

    def plan(self, n_shares: int) -> list[list[Any]]:
        """Cut the input into shares."""
        return self.files.plan(n_shares)

    def read(self, share: Iterable[Any]) -> Iterator[RowBlock]:
        """Yield the rows of a share, in order, by batches. Errors name file, row and column."""
        table = self.table
        used = [table.label if self.options.labelled else None, table.id]
        names = [column.name for column in table.columns] + [name for name in used if name is not None]
        for batch in self.files.batches(share, names, self.options.metadata_columns):
            indptr, indices, data = self._features(batch)
            ids = None if table.id is None else self._ids(batch, table.id)
            yield RowBlock(self._signs(batch), indptr, indices, data, table.p, ids, self._metadata(batch))

    def _check_names(self, table: Table | None) -> Table | None:
        """Return the table to read by, if it is known. Raises InputError for files with other columns. Local."""
        options, files = self.options, self.files
        if table is None:
            special = [options.label, options.id, *options.metadata_columns]
            for name in (*special, *options.drop):
                if name is not None and name not in files.names:
                    raise InputError(f"{files.paths[0]}: has no column {name!r}; it has {format_names(files.names)}")
            if options.label is None:
                raise InputError(
                    f"{files.paths[0]}: which column is the label? --label COLUMN; columns: {format_names(files.names)}"
                )
            wanted = [name for name in files.names if name not in options.non_features]
            if "" in wanted:
                raise InputError(
                    f"{files.paths[0]}: column {files.names.index('') + 1} has no name; if it only counts the rows, "
                    "leave it out with --drop ''"
                )
            required, optional = [*wanted, *(name for name in special if name)], [*options.drop]
        else:
            wanted = [column.name for column in table.columns]
            label, id_ = options.label or table.label, options.id or table.id
            if options.id is None and id_ is not None and any(id_ not in files.headers[path] for path in files.paths):
                id_ = None
            required = [*wanted, *([label] if options.labelled and label else []), *([id_] if id_ else [])]
            required += options.metadata_columns
            optional = [*table.dropped, *(name for name in (table.label, table.id, label) if name)]
            table = replace(table, label=label, id=id_)
        first = files.paths[0] if table is None else None
        for path in files.paths:
            check_columns(required, files.headers[path], optional, path, options.ignore_new, first)
        return table

    def _survey(self, comm: Communicator) -> Table:
        """Find out what the columns hold and what the labels mean. Collective; one pass over the files."""
        options, files = self.options, self.files
        names = [name for name in files.names if name not in options.non_features]
        assert options.label is not None
        found = {name: ColumnSurvey() for name in [*names, options.label]}
        with comm.fail_together():
            for batch in files.batches(files.plan(comm.size)[comm.rank], list(found)):
                for name, survey in found.items():
                    survey.add(batch.columns[name], batch.position)
        by_rank = comm.allgather(found)
        with comm.fail_together():
            whole = {name: merge_surveys([surveys[name] for surveys in by_rank]) for name in found}
            values = whole[options.label].labels(options.label, files)
            try:
                meaning = labels.interpret(values, options.positive)
                if len(values) == 1:
                    raise InputError(f"has only the value {labels.format_labels(values)}; two classes are needed")
            except InputError as error:
                raise InputError(f"{files.paths[0]}: column {options.label!r}: {error}") from error
            self.label_map = meaning.as_map()
            columns = tuple(whole[name].column(name, files) for name in names)
            if not columns:
                raise InputError(f"{files.paths[0]}: has no columns but those of labels and ids; no feature is left")
        dropped = (name for name in (*options.drop, *options.metadata_columns) if name not in names)
        return Table(columns, options.label, options.id, tuple(dict.fromkeys(dropped)))

    def _features(self, batch: arrow.Batch) -> tuple[NDArray[np.int64], NDArray[Any], NDArray[np.float64]]:
        """Return the CSR arrays of a batch. A row has at most one feature of each column; zeros are left out."""
        shape = (batch.n, len(self.table.columns))
        feature: NDArray[Any] = np.zeros(shape, index_dtype(self.table.p))
        value = np.zeros(shape)
        for k, (column, start) in enumerate(zip(self.table.columns, self.table.feature_starts, strict=False)):
            found = batch.columns[column.name]
            missing = arrow.is_missing(found)
            if column.categories is None:
                feature[:, k], value[:, k] = start, self._numbers(found, column.name, batch)
            else:
                category = self._categories(found, missing, column)
                feature[:, k], value[:, k] = start + np.maximum(category, 0), category >= 0
            if missing.any():
                feature[missing, k] = start + column.n_features - column.missing
                value[missing, k] = column.missing
                if not column.missing:
                    self.warnings[
                        f"column {column.name!r}: missing values, of which the training data had none; they count as 0"
                    ] += missing.sum()
        stored = value != 0
        indptr = np.concatenate(([0], np.cumsum(stored.sum(axis=1))))
        return indptr, feature[stored], value[stored]

    def _numbers(self, found: Any, name: str, batch: arrow.Batch) -> NDArray[np.float64]:
        """Return the numbers (n,), 0 where they are missing."""
        if arrow.is_text(found) and (wrong := arrow.is_not_number(found)).any():
            self._fail(batch, wrong.argmax(), name, found, "expected a number, as in the training data")
        values = arrow.as_float(found)
        if (wrong := np.isinf(values)).any():
            self._fail(batch, wrong.argmax(), name, found, "the value is not finite; expected a decimal number")
        return np.nan_to_num(values, nan=0.0)

    def _categories(self, found: Any, missing: NDArray[np.bool_], column: Column) -> NDArray[np.int64]:
        """Return the number of each row's category, (n,); -1 for an unknown category."""
        assert column.categories is not None
        if not arrow.is_text(found):
            raise InputError(
                f"{self.files.paths[0]}: column {column.name!r} holds numbers, but categories in the training data"
            )
        category: NDArray[np.int64] = arrow.codes(found, column.categories)
        unknown = (category < 0) & ~missing
        if unknown.any():
            self.warnings[
                f"column {column.name!r}: categories that the training data did not have; they count as 0"
            ] += int(unknown.sum())
        return category

    def _signs(self, batch: arrow.Batch) -> NDArray[np.float64]:
        name = self.table.label
        if not self.options.labelled or name is None:
            return np.zeros(batch.n)
        found = batch.columns[name]
        if (missing := arrow.is_missing(found)).any():
            self._fail(batch, missing.argmax(), name, found, "the label is missing")
        assert self.label_map is not None
        different, which = arrow.dictionary_encode(found)
        known = [*labels.original_labels(self.label_map, "+1"), *labels.original_labels(self.label_map, "-1")]
        if any(isinstance(label, str) for label in known):
            values = np.array(arrow.as_text(different).to_pylist(), dtype=str)
        elif arrow.is_text(found) and (wrong := arrow.is_not_number(found)).any():
            self._fail(batch, wrong.argmax(), name, found, "expected a number, like the labels of the training data")
        else:
            values = arrow.as_float(different)
        return labels.to_signs(values, self.label_map, f"{batch.position.path}: column {name!r}").astype(float)[which]

    def _ids(self, batch: arrow.Batch, name: str) -> list[str]:
        found = batch.columns[name]
        if (missing := arrow.is_missing(found)).any():
            self._fail(batch, missing.argmax(), name, found, "the row id is missing")
        return arrow.as_text(found).to_pylist()

    def _metadata(self, batch: arrow.Batch) -> RowMetadata:
        options = self.options
        return row_metadata.read(options.group, options.time, batch.metadata.__getitem__, partial(self._refuse, batch))

    def _fail(self, batch: arrow.Batch, row: int, name: str, found: Any, problem: str) -> NoReturn:
        self._refuse(batch, name, int(row), f"found {found[int(row)].as_py()!r:.40}: {problem}")

    def _refuse(self, batch: arrow.Batch, name: str, row: int, problem: str) -> NoReturn:
        raise InputError(f"{self.files.where(batch.position, row)}: column {name!r}: {problem}")


@dataclass
class ColumnSurvey:
    """What a column holds in the rows that were seen so far.

    `numbers` and `strings` are the different values, or None if there are too many.
    """

    typed: bool = False  # whether the column's type says that it holds numbers
    missing: bool = False
    numbers: set[Any] | None = field(default_factory=set)
    strings: set[str] | None = field(default_factory=set)
    first: tuple[arrow.BatchPosition, int] | None = None  # the batch and the row in it of the first string

    def add(self, column: Any, position: arrow.BatchPosition) -> None:
        """Take a batch of the column into account."""
        self.missing |= bool(arrow.is_missing(column).any())
        if not arrow.is_text(column):
            self.typed = True
            if self.numbers is not None:
                self.numbers = _union(self.numbers, arrow.unique_values(column), MAX_NUMBERS)
            return
        is_string = arrow.is_not_number(column)
        if self.numbers is not None:
            self.numbers = _union(self.numbers, arrow.unique_values(column, ~is_string), MAX_NUMBERS)
        if is_string.any():
            self.first = self.first or (position, int(is_string.argmax()))
            self.strings = _union(self.strings, arrow.unique_values(column, is_string), MAX_CATEGORIES)

    def column(self, name: str, files: Any) -> Column:
        """Return the column that this is. Raises InputError if it can hold neither numbers nor categories."""
        if self.typed or self.strings == set():
            return Column(name, None, self.missing)
        where = f"{files.where(*self.first)}: column {name!r}" if self.first else name
        if self.numbers is None:
            raise InputError(
                f"{where}: is no number, where the column has more than {MAX_NUMBERS} different ones; mend it, or "
                "leave the column out with --drop"
            )
        if self.strings is None or len(self.strings | self.numbers) > MAX_CATEGORIES:
            raise InputError(
                f"{where}: the column has more than {MAX_CATEGORIES} different values; leave it out with --drop (or "
                "name it with --id)"
            )
        return Column(name, tuple(sorted(self.strings | self.numbers)), self.missing)

    def labels(self, name: str, files: Any) -> list[Label]:
        """Return the different labels: as numbers, if all are. Raises InputError if there are too many."""
        if self.numbers is None or self.strings is None or len(self.strings | self.numbers) > labels.MAX_LABELS:
            raise InputError(
                f"{files.paths[0]}: column {name!r} has more than {labels.MAX_LABELS} different values: is it the "
                "label?"
            )
        found = self.strings | self.numbers if self.strings else {float(number) for number in self.numbers}
        return sorted(found)


def merge_surveys(parts: Sequence[ColumnSurvey]) -> ColumnSurvey:
    """Return what a column holds in the rows of all ranks, from the survey of each."""
    whole = ColumnSurvey()
    for part in parts:
        whole.typed |= part.typed
        whole.missing |= part.missing
        whole.numbers = None if part.numbers is None else _union(whole.numbers, part.numbers, MAX_NUMBERS)
        whole.strings = None if part.strings is None else _union(whole.strings, part.strings, MAX_CATEGORIES)
        whole.first = whole.first or part.first
    return whole


def _union(ours: set[Any] | None, more: set[Any] | None, most: int) -> set[Any] | None:
    """Return the union, or None if it has more than `most` elements."""
    if ours is None or more is None or len(ours | more) > most:
        return None
    return ours | more
