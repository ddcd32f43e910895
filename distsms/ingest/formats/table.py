"""Read tables. In a first pass all ranks find out what the columns hold; then every row is turned into features.

`column_survey` counts what is there, `column_kinds` decides what each column is, `table_schema` is the encoding that
follows, and `encoding` computes the features. They are the same for CSV, Parquet, and tables in memory.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import replace
from functools import partial
from typing import Any, NoReturn

import numpy as np
from numpy.typing import NDArray

from distsms.base import addresses
from distsms.base.communicator import Communicator
from distsms.base.errors import InputError
from distsms.base.memory import available
from distsms.base.wording import marked, option
from distsms.ingest.formats import arrow, columns, csv_files, dates
from distsms.ingest.formats.arrow import Batch, Selection
from distsms.ingest.formats.base import Reader
from distsms.ingest.formats.column_kinds import Decision, spelled
from distsms.ingest.formats.column_survey import TableSurvey, TextSurvey
from distsms.ingest.formats.encoding import encode
from distsms.ingest.options import ReadOptions
from distsms.shards import labels, row_metadata
from distsms.shards.labels import Label
from distsms.shards.row_metadata import EARLIEST, LATEST, MetadataColumns, RowMetadata
from distsms.shards.rows import RowBlock, of_rank
from distsms.shards.table_schema import MAX_BITS, NUMBER, Table, check_columns, format_names

KEPT_BYTES, KEPT_SHARE, KEPT_WITH_ROWS = 2**30, 8, 2
"""What the survey has parsed is kept for the reading of the rows: at most these bytes in the memory of each rank, and
one part in KEPT_SHARE of what is available, for all ranks of a node together; the rest in a file. If the rows will stay
in memory, it may be one part in KEPT_WITH_ROWS, since what is kept gives way to them.
"""
MOST_NUMBERS = 10
"""A column with more different numbers is hardly one of labels, unless the user names the positive ones."""
MOST_REFUSED = 5
"""A message describes at most this many columns that are refused."""


class TableReader(Reader):
    """Reader of CSV and Parquet files; see `distsms.ingest.formats.base.Reader`."""

    table: Table

    def __init__(self, paths: Sequence[str], options: ReadOptions, comm: Communicator) -> None:
        """Check the names of the columns; without the training table, read all files to find it out. **Collective.**"""
        super().__init__(paths, options)
        with comm.fail_together():
            names, label = [options.label, options.id, *options.metadata_columns], None
            if options.table is not None:
                names, label = [column.name for column in options.table.columns], options.table.label
            cells, alone = options.split_names(()).cells, comm.size == 1
            self.files: Any
            if addresses.name_of(paths[0]).lower().endswith((".parquet", ".pq")):
                self.files = arrow.ParquetFiles(paths, cells)
            else:
                known_names = {name for name in names if name}
                self.files = csv_files.CsvFiles(paths, cells, known_names, options.workspace.folder, alone, label)
            if cells.names is not None and options.table is None and self.files.compressed:
                raise InputError(f"{paths[0]}: {option('no_header')} and {option('names')} are for CSV")
            table = self._check_names(options.table)
        if table is not None:
            self.files.read_as({column.name: column.writing for column in table.columns if column.writing})
        self.compressed = self.files.compressed
        if not alone and not self.compressed and (table is not None or self.files.text.several_lines):
            self.files.find_rows(comm)
        self.table = table or self._survey(comm)
        self.warnings.clear()  # they are counted again where the rows are read
        self.n_columns, self.has_ids, self.kept_bytes = self.table.p, self.table.id is not None, self.files.kept_bytes

    def plan(self, n_shares: int) -> list[list[Any]]:
        return self.files.plan(n_shares)

    def read(self, share: Iterable[Any]) -> Iterator[RowBlock]:
        table = self.table
        label = table.label if self.options.labelled else None
        as_strings = [name for name in (label, table.id, *self.options.metadata_columns) if name is not None]
        names = list(dict.fromkeys([*(column.name for column in table.columns), *as_strings]))
        numeric = {column.name for column in table.columns if column.kind == NUMBER}.difference(as_strings)
        for batch in self._batches(share, Selection(names, numeric.__contains__)):
            X = encode(table, batch.columns, partial(self._fail, batch), self.warnings)
            ids = None if table.id is None else self._ids(batch, table.id)
            indptr = X.indptr.astype(np.int64)
            yield RowBlock(self._signs(batch), indptr, X.indices, X.data, table.p, ids, self._metadata(batch))
            self.options.meter.add(batch.size)

    def _batches(self, share: Iterable[Any], selection: Selection) -> Iterator[Batch]:
        """Yield the rows of a share as the files do, without those that are left out since they have no group."""
        group = self.options.group if self.options.missing_group == "drop" else None
        if group is not None and group not in selection.names:
            selection = selection._replace(names=[*selection.names, group])
        for batch in self.files.batches(share, selection):
            if group is not None and "" in (groups := batch.strings(group)):
                rows = np.array([row for row, text in enumerate(groups) if text], np.intp)
                self.warnings[f"column {group!r}: rows without a group are left out"] += batch.n - len(rows)
                if not len(rows):
                    continue
                batch = batch.take(rows)
            yield batch

    def _check_names(self, table: Table | None) -> Table | None:
        """Return the table to read by, if it is known. Raises InputError for files with other columns. Local."""
        files, path = self.files, self.files.paths[0]
        self.options = options = self.options.split_names(files.names)
        indices = {name for path in files.paths for name in files.headers[path] if arrow.INDEX.fullmatch(name)}
        special = [name for name in (options.label, options.id, *options.metadata_columns) if name is not None]
        choice = f"{option('label', text='COLUMN')}; columns: {format_names(files.names)}"
        if table is None:
            # 1) Leave out what tells rows nothing, unless it is named, and check the names of the options.
            named = {*special, *options.columns.named, *options.drop}
            declared = files.declared.intersection(files.names) - options.non_features.union(options.columns.named)
            column_options = replace(options.columns, categorical=(*options.columns.categorical, *declared))
            indices -= named
            drop = (*options.drop, *sorted(files.constant - named), *sorted(indices.intersection(files.names)))
            self.options = options = replace(options, columns=column_options, drop=drop)
            hint = files.header_hint
            for name in (*special, *options.drop):
                if name not in files.names:
                    raise InputError(f"{path}: has no column {name!r}; it has {format_names(files.names)}{hint}")
            if options.label is None:
                raise InputError(f"{path}: which column is the label? {choice}{hint}")
            left_out = options.non_features
            feature_columns = [name for name in files.names if name not in left_out]
            if "" in feature_columns and files.names[0]:
                problem = f"has no name; name it in the first line, or leave it out with {option('drop', [''])}"
                raise InputError(f"{path}: column {files.names.index('') + 1} {problem}")
            required, optional = [*feature_columns, *special], [*options.drop, *indices]
        else:
            # 2) Take the columns of the training table; ids may be absent.
            label, id_ = options.label or table.label, options.id or table.id
            if options.labelled and label is None:
                raise InputError(f"{path}: which column is the label? The training data had none. {choice}")
            if options.id is None and any(id_ not in files.headers[path] for path in files.paths):
                id_ = None
            names = [*(column.name for column in table.columns), label if options.labelled else None, id_]
            required = [name for name in (*names, *options.metadata_columns) if name is not None]
            optional = [*table.dropped, *filter(None, (table.label, table.id, label)), *indices, *files.from_folders]
            table = replace(table, label=label, id=id_)
        for path in files.paths:
            first = files.paths[0] if table is None else None
            check_columns(required, files.headers[path], optional, path, options.ignore_new, first)
        return table

    def _survey(self, comm: Communicator) -> Table:
        """Find out what the columns hold and what the labels mean. Collective; one pass over the files."""
        options, files = self.options, self.files
        left_out = options.non_features
        names = [name for name in files.names if name not in left_out]
        with comm.fail_together():
            self._check_options(names)
        as_text = [name for name in options.columns.as_text if name in names]
        try:
            survey = self._surveyed(names, comm, as_text, options.label)
        except InputError:
            # Ranks that began to read inside of a field may have met anything.
            if self.compressed or not any(comm.allgather(files.text.several_lines and not files.text.knows_rows)):
                raise
            files.find_rows(comm)
            survey = self._surveyed(names, comm, as_text, options.label)
        if uncounted := survey.uncounted():  # only these columns are read again
            files.forget_cleaned(uncounted)
            survey.recount(self._surveyed(uncounted, comm, uncounted))
        amounts = {name: text.amounts.writing() for name, text in survey.texts.items() if name not in as_text}
        if writings := {name: writing for name, writing in amounts.items() if writing is not None}:
            files.read_as(writings)  # and so are those of numbers with units
        of_amounts = self._surveyed([*writings], comm) if writings else survey
        with comm.fail_together():
            self.label_map = self._meaning(survey.label)
            decisions = self._decided(names, survey, of_amounts)
            self.reports = [decision.report for decision in decisions]
            encoded = tuple(decision.column for decision in decisions if decision.column is not None)
            if not encoded:
                out = "".join(f"; {report.name}: {marked(report.notes[-1])}" for report in self.reports)
                raise InputError(f"{files.paths[0]}: has only labels and ids; no feature is left{out}")
        kept = set(names)
        dropped = [name for name in (*options.drop, *options.metadata_columns) if name not in kept]
        dropped += [decision.name for decision in decisions if decision.column is None]
        return Table(encoded, options.label, options.id, tuple(dict.fromkeys(dropped)), files.cells)

    def _decided(self, names: Sequence[str], survey: TableSurvey, of_amounts: TableSurvey) -> list[Decision]:
        """Return what becomes of each column, by the survey, or that of the columns of numbers with units and marks."""
        decisions, refused = [], []
        for name in names:
            of_column, example = survey, ""
            if name in self.files.writings:
                of_column, example = of_amounts, survey.texts[name].example
            keep = name in self.options.keep
            try:
                decisions.append(Decision(name, of_column, self.options.columns, self.files, keep, example))
            except InputError as error:
                refused.append(marked(error.message))
        if refused:
            more = f". {len(refused) - MOST_REFUSED} more columns are refused" if len(refused) > MOST_REFUSED else ""
            raise InputError(". ".join(refused[:MOST_REFUSED]) + more)
        return decisions

    def _surveyed(
        self, names: list[str], comm: Communicator, as_text: Sequence[str] = (), label: str | None = None
    ) -> TableSurvey:
        """Return the survey of some columns, and the label, over all ranks. Collective; one pass."""
        options, neighbours = self.options, len(comm.node_ranks())
        survey = TableSurvey(names, options.cells, as_text, options.columns.dates, label)
        with comm.fail_together():
            # Text is cut as for the reading of the rows, so that the same batches come; see `CsvFiles.batches`.
            n_shares = comm.size if self.compressed else max(comm.size, options.n_shares)
            shares = [part for part in self.plan(n_shares) if part]
            share = [part for k in of_rank(len(shares), comm) for part in shares[k]]
            keep_bytes = min(KEPT_BYTES, available() / (KEPT_SHARE * neighbours))
            if options.workspace.rows_stay:
                keep_bytes = available() / (KEPT_WITH_ROWS * neighbours)
            if (allowed := options.workspace.memory) is not None:
                keep_bytes = min(keep_bytes, allowed / KEPT_SHARE)
            if not (self.compressed or n_shares == options.n_shares):
                keep_bytes = 0  # since rows are read by other shares, which may end within a block that was kept
            options.meter.begin("looking at the columns", share)
            as_strings = {*options.metadata_columns}
            to_keep = [] if self.compressed or label is None else [options.id, *options.metadata_columns]
            others = [name for name in (label, options.weight, *to_keep) if name is not None]
            columns_to_read = list(dict.fromkeys([*names, *others]))

            def as_numbers(name: str) -> bool:
                return name in survey.place and name not in as_strings and name not in survey.texts

            for batch in self._batches(share, Selection(columns_to_read, as_numbers, keep_bytes)):
                only_weights, fail = MetadataColumns(None, None, options.weight), partial(self._refuse, batch)
                survey.add(batch, row_metadata.read(only_weights, batch.strings, fail).weights)
                options.meter.add(batch.size)
            survey.finish()
        survey, *of_other_ranks = comm.allgather(survey)
        for other in of_other_ranks:
            survey.merge(other)
        return survey

    def _check_options(self, names: Sequence[str]) -> None:
        column_options = self.options.columns
        where, feature_columns = self.files.paths[0], set(names)
        kinds = f"{option('categorical')}, {option('numeric')}, {option('dates')} or {option('hashed')}"
        for name, times in Counter(column_options.named).items():
            if name not in feature_columns and not (name == self.options.time and name in column_options.dates):
                problem = "is not a feature" if name in self.files.names else "is not there"
                raise InputError(f"{where}: column {name!r} of {kinds} {problem}; columns: {format_names(names)}")
            if times > 1:
                raise InputError(f"{where}: column {name!r} is named twice by {kinds}; choose one")
        for name, form in column_options.dates.items():
            if form is not None and "%" not in form:
                shown = [option("dates", {name: each}, text=f"{name}:{each}") for each in (form, "%d.%m.%Y")]
                raise InputError(f"{shown[0]}: a form is written as in {shown[1]}", everywhere=True)
        for name, bits in column_options.hashed.items():
            if not 1 <= bits <= MAX_BITS:
                raise InputError(f"{option('hashed', {name: bits})}: the number of bits is from 1 to {MAX_BITS}", True)

    def _meaning(self, survey: TextSurvey) -> dict[str, Any]:
        """Return the label map, from the survey of the labels. Raises InputError if their meaning is unclear."""
        path, name = self.files.paths[0], self.options.label
        if (place := survey.first_missing) is not None:
            labelled = survey.rows_with_numbers + survey.rows_with_strings
            of_all = f"{survey.missing:,} of {survey.missing + labelled:,} rows in all"
            problem = f"the label is missing here, and in {of_all}. Training needs labels"
            remedy = f"remove these rows from the file, for example with pandas: frame.dropna(subset=[{name!r}])"
            where = self.files.where(place.position, place.row)
            raise InputError(f"{where}: column {name!r}: {problem}: {remedy}")
        example = f"frame['large'] = frame[{name!r}] > LIMIT in pandas"
        two = f"A label tells two classes apart: name another column, or make one, such as {example}"
        question = f"values: is it the label? {two}"
        if (values := survey.categories) is None or survey.sample.sizes[0] > labels.MAX_LABELS:
            raise InputError(f"{path}: column {name!r} has more than {labels.MAX_LABELS} {question}")
        if len(values) > MOST_NUMBERS and not survey.strings and self.options.positive is None:
            question = f"different numbers: is it the label? {two}, or name the positive ones by {option('positive')}"
            raise InputError(f"{path}: column {name!r} has {len(values)} {question}")
        if not values:
            group = self.options.group
            which = f" with a group in the column {group!r}" if self.options.missing_group == "drop" else ""
            raise InputError(f"{path}: there is no row{which} below the names of the columns")
        rows = spelled(values, not survey.strings)
        counts: Counter[Label] = Counter(rows) if survey.strings else Counter({float(k): v for k, v in rows.items()})
        try:
            label_map = labels.interpret(counts, self.options.positive)
            if len(counts) == 1:
                raise InputError(f"has only the value {labels.format_labels(counts)}; two classes are needed")
        except InputError as error:
            raise InputError(f"{path}: column {name!r}: {marked(error.message)}") from error
        return label_map

    def _signs(self, batch: Batch) -> NDArray[np.float64]:
        name = self.table.label
        if not self.options.labelled or name is None:
            return np.zeros(batch.n)
        column = batch.columns[name]
        if (missing := columns.is_missing(column)).any():
            self._refuse(batch, name, int(missing.argmax()), "the label is missing; remove the rows without a label")
        assert self.label_map is not None
        different, codes = columns.dictionary_encode(column)
        model_labels = [*labels.original_labels(self.label_map, "+1"), *labels.original_labels(self.label_map, "-1")]
        if any(isinstance(label, str | bool) for label in model_labels):
            values = np.array(columns.as_codes(different).to_pylist(), dtype=str)
        elif (wrong := columns.is_not_number(column)).any():
            positive, negative = labels.class_names(self.label_map).values()
            expected = f"expected a label of the training data: {positive} (positive) or {negative}"
            self._fail(batch, name, int(wrong.argmax()), expected)
        else:
            values = columns.as_float(different)
        return labels.to_signs(values, self.label_map, f"{batch.position.path}: column {name!r}").astype(float)[codes]

    def _ids(self, batch: Batch, name: str) -> list[str]:
        column = batch.columns[name]
        if (missing := columns.is_missing(column)).any():
            problem = f"the row id is missing ({option('not_missing', text='MARK')} takes one for an id)"
            self._fail(batch, name, int(missing.argmax()), problem)
        return columns.as_text(column).to_pylist()

    def _metadata(self, batch: Batch) -> RowMetadata:
        options, fail = self.options, partial(self._refuse, batch)
        strings = {name: batch.strings(name) for name in options.metadata_columns}
        if options.group is not None and (n_alone := strings[options.group].count("")):
            leave_out = option("missing_group", "drop")
            problem = f"rows without a group; each is a group of its own ({leave_out} leaves them out)"
            self.warnings[f"column {options.group!r}: {problem}"] += n_alone
        if options.time is None or (form := self._time_form(options.time)) is None:
            return row_metadata.read(options.row_columns, strings.__getitem__, fail, alone=True)
        texts = strings[options.time]
        times, valid = dates.as_microseconds(columns.as_strings_column(texts), form)
        if not valid.all():
            row = int(valid.argmin())
            advice = dates.describe_other_order(options.time, texts[row], form)
            fail(options.time, row, f"found {texts[row]!r:.40}: expected a time, written as {form}{advice}")
        others = row_metadata.read(options.row_columns._replace(time=None), strings.__getitem__, fail, alone=True)
        return others._replace(times=np.clip(times / 1e6, EARLIEST, LATEST), kinds=frozenset({row_metadata.DATES}))

    def _time_form(self, name: str) -> str | None:
        """Return how the times are written; None for numbers, ISO 8601, and dates that are not strings."""
        forms = {column.name: column.format for column in self.table.columns}
        form = self.options.columns.dates.get(name) or forms.get(name)
        return form if form and self.files.is_text(name) else None

    def _fail(self, batch: Batch, name: str, row: int, problem: str) -> NoReturn:
        value = batch.columns[name][row].as_py()
        if value is None:  # what was written there may tell more
            value = self.files.written(batch.position, row, name)
        self._refuse(batch, name, row, f"found {value!r:.40}: {problem}")

    def _refuse(self, batch: Batch, name: str, row: int, problem: str) -> NoReturn:
        if problem.endswith(row_metadata.NO_TIME) and (strings := batch.strings(name))[row]:
            forms = dates.describe_forms(name, strings)
            problem += f"; dates that are written in another way need their form, as in {forms}"
        raise InputError(f"{self.files.where(batch.position, row)}: column {name!r}: {problem}")
