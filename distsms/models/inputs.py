"""The rows that a model is to score: a data set of shards, a file that is read directly, or rows in memory."""

from __future__ import annotations

import glob
import os
from collections.abc import Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np
import scipy
from numpy.typing import NDArray

from distsms.base.communicator import Communicator
from distsms.base.errors import InputError
from distsms.base.wording import option
from distsms.ingest import frames
from distsms.ingest.file_names import files_of, is_data_set
from distsms.ingest.formats.base import Reader
from distsms.ingest.formats.registry import format_of, has_sequences, open_reader, reader_warnings
from distsms.ingest.options import ReadOptions
from distsms.matrix.arrays import as_features, as_numbers, subtract
from distsms.matrix.blocks import LocalRows
from distsms.matrix.coded import CodedRows, code_rows
from distsms.matrix.side_by_side import SideBySide
from distsms.models.model import Model, from_training, is_model
from distsms.shards import dataset, labels, storage, table_schema
from distsms.shards.from_arrays import is_frame, names_of, ordered
from distsms.shards.manifest import Manifest, read_manifest
from distsms.shards.rows import RowBlock, concatenate
from distsms.shards.sequence_rules import encode
from distsms.shards.table_schema import Table, format_names

NO_ROWS = "there is no row to evaluate a model on"


@dataclass(frozen=True)
class InputOptions:
    """How rows are read for a model."""

    ignore_new: bool = False  # leave out columns that the model does not have, rather than refuse them
    labelled: bool = True  # if not, the labels of files may be anything and come back as 0
    zero_based: bool | None = None  # how svmlight text counts columns; None: as the training data did
    label: str | None = None  # the name of this column in tables, if it differs from that in the training data
    id: str | None = None  # the same for this column
    weight: str | None = None  # the column of weights in tables and array files, if the rows have weights
    group: str | None = None  # the column of groups in tables, array files and svmlight text ("qid")
    missing_group: str = "own"  # whether a row of a table without a group there is one of its "own", or to "drop"
    groups: bool = False  # whether to read the groups of the rows of a data set, if it has groups
    called: str = ""  # what warnings call the file; "" stands for its path


AS_TRAINED, UNLABELLED = InputOptions(), InputOptions(labelled=False)


def untrained_model(manifest: Manifest) -> Model:
    """Return a model of zeros with a data set's columns, labels and normalization, for reading its test rows. Local."""
    about = {"label_map": manifest.label_map, "zero_based": manifest.zero_based}
    return from_training(np.zeros(manifest.p), about, manifest)


def check(path: str | os.PathLike[str], model: Model, options: InputOptions = AS_TRAINED) -> None:
    """Raise InputError if labelled rows do not fit a model. Only the first rows of a file are read. Local."""
    if is_data_set(path):
        check_data_set(read_manifest(path), model, options)
    else:
        reader = reader_for(model, files_of(path), Communicator(), options)
        width, is_encoded = reader.n_columns or 0, reader.table is not None or reader.sequences is not None
        if width > model.p_original and not is_encoded and not options.ignore_new:
            raise _too_wide(path, width, model, options)
        if not any(len(rows.labels) for rows in reader.read(reader.plan(1)[0])):
            raise InputError(f"{path}: {NO_ROWS}")


def check_distinct(output: str | os.PathLike[str], *used: str | os.PathLike[str] | None) -> None:
    """Raise InputError if `output` is one of the files, folders or patterns in `used`, or lies in a folder. Local."""
    target = Path(os.path.realpath(output))  # Path.resolve fails for symbolic links that form a loop
    names = [os.fspath(name) for name in used if name is not None]
    for name in (*names, *(file for each in names for file in glob.glob(each))):
        path = Path(os.path.realpath(name))
        if target == path or (path.is_dir() and path in target.parents):
            raise InputError(f"{output}: would overwrite {name}, which is in use; name another file")


def reader_for(model: Model, files: Sequence[str], comm: Communicator, options: InputOptions) -> Reader:
    """Return a reader that reads files with the columns and labels of the model's training data. **Collective.**"""
    info = model.info
    with comm.fail_together():
        if why := _why_not_read(files[0], model):
            raise InputError(f"{files[0]}: {why}")
    same = ("label", "id", "weight", "group", "missing_group", "labelled", "ignore_new")
    reading = ReadOptions(
        zero_based=info["zero_based"] if options.zero_based is None else options.zero_based,
        table=model.table,
        encoding=model.coded.sequences,
        label_map=info["label_map"],
        **{name: getattr(options, name) for name in same},
    )
    return open_reader(files, reading, comm)


def _why_not_read(path: str, model: Model) -> str:
    """Return why a file cannot have rows for a model, as far as its name and its first bytes say; or ""."""
    kind, coded = format_of(path), model.coded
    if has_sequences(path) and not coded.sequences:
        return "has sequences, but the model was not trained on sequences"
    if coded and coded.sequences is None and model.features is None:
        return "the model was trained on codes that were written from Python; give it a data set with such codes"
    if coded.sequences and kind != "text" and not has_sequences(path):
        return f"the model takes {coded.describe()}: FASTA, or text with lines LABEL SEQUENCE"
    if kind == "text" and Path(path).is_file() and is_model(path):
        return f"is a model, but rows are expected here; several models take rows with {option('test', text='DATA')}"
    if kind == "table" and model.table is None:
        no_names = "is a table, but the columns of the model's training data had no names"
        return f"{no_names}; convert it to svmlight text or an array, with the same features in the same order"
    return ""


def id_name(model: Model, path: str | os.PathLike[str], options: InputOptions) -> str:
    """Return the name of the column with the rows' ids; "id" if it has none. Local."""
    table = read_manifest(path).table if is_data_set(path) else model.table
    return options.id or (table and table.id) or "id"


def to_features(
    rows: RowBlock, model: Model, path: str | os.PathLike[str], options: InputOptions, table: Table | None
) -> LocalRows | SideBySide:
    """Return rows of a reader as the model takes them. Raises InputError if they have more columns."""
    if rows.codes is not None:
        return coded_rows(rows.codes, model)
    p = model.p_original
    if rows.n_columns > p and not options.ignore_new:
        raise _too_wide(path, rows.n_columns, model, options)
    shape = (len(rows.labels), max(rows.n_columns, p))
    X = scipy.sparse.csr_matrix((rows.data, rows.indices, rows.indptr), shape=shape)[:, :p]
    return as_scored(X, model, path, table)


def as_scored(X: Any, model: Model, where: object, table: Table | None = None) -> LocalRows | SideBySide:
    """Return rows as a model scores them: less the offsets of its table, with its features, normalized. `where` is for
    errors; without the encoding `table`, X has numbers. Local."""
    X = subtract(as_numbers(X), missing_offsets(model, table))
    try:
        rows = as_features(X) if model.features is None else model.features.rows(X)
    except InputError as error:
        raise InputError(f"{where}: {error}") from error
    rows.normalize(model.normalization.by_row)
    return rows


def rows_in_memory(X: Any, model: Model, options: InputOptions, notes: list[str]) -> LocalRows | SideBySide:
    """Return rows of a program's memory as a model scores them; `notes` gets what a table's reader left out."""
    if model.table is not None and is_frame(X):
        if not model.table.plain:
            return _table_rows(X, model, options, notes)
        X = ordered(X, model.table, options.ignore_new)
    if (names := names_of(X)) is not None:
        named = f"X has names of columns ({format_names(names)}), and the model's training data had none"
        raise InputError(f"{named}; give the numbers alone, such as X.to_numpy(), in the same order")
    if model.coded.sequences is not None and not scipy.sparse.issparse(X):
        words = np.asarray(X)
        if words.ndim == 1 and (not len(words) or words.dtype.kind in "OU"):
            return coded_rows(encode(words.tolist(), model.coded.sequences), model)
    X = as_numbers(X)
    X = X if X.dtype.kind == "f" else X.astype(np.float64)
    if X.ndim != 2 or X.shape[1] != model.p_original:
        raise InputError(f"X has the shape {X.shape}, but the model takes rows with {model.p_original} columns")
    return as_scored(X, model, "X")


def _table_rows(frame: Any, model: Model, options: InputOptions, notes: list[str]) -> LocalRows | SideBySide:
    """Return the rows of a table in memory; its labels, if it has any, are not looked at. Local."""
    with frames.frame_file(frame, "X") as path:
        reader = reader_for(model, [path], Communicator(), replace(options, labelled=False))
        rows = concatenate(reader.read(reader.plan(1)[0]))
        notes += reader_warnings("X", reader.warnings, Communicator())
        return to_features(rows, model, path, options, reader.table)


def missing_offsets(model: Model, table: Table | None) -> dict[int, float]:
    """Return what is still to be subtracted from columns that a table made, or no table (None), for a model. Local."""
    of_model, subtracted = ({} if source is None else source.offsets for source in (model.table, table))
    columns = {**of_model, **subtracted}
    missing = {column: of_model.get(column, 0.0) - subtracted.get(column, 0.0) for column in columns}
    return {column: offset for column, offset in missing.items() if offset and column < model.p_original}


def coded_rows(codes: NDArray[np.uint8], model: Model) -> CodedRows:
    """Return the rows of codes of sequences, (n, codes of a row). Local."""
    (code_map,) = model.coded.maps
    return CodedRows(code_map, code_rows(codes, code_map), [0, len(codes)])


def _too_wide(path: str | os.PathLike[str], width: int, model: Model, options: InputOptions) -> InputError:
    zero_based = model.info["zero_based"] if options.zero_based is None else options.zero_based
    base = 0 if zero_based or format_of(path) != "text" else 1
    hint = f" Or does this text count columns from 1 ({option('one_based')})?" if zero_based else ""
    return InputError(
        f"{path}: uses column {width - 1 + base} (counted from {base}), but the model has {model.p_original} columns. "
        f"Were both made with the same features? {option('ignore_new_features')} leaves new ones out.{hint}"
    )


def check_data_set(manifest: Manifest, model: Model, options: InputOptions) -> None:
    """Raise InputError if the manifest of a data set shows that it does not fit a model. Local."""
    storage.check_codec(manifest.compression, manifest.directory)
    if why := _why_other_rows(manifest, model, options):
        raise InputError(f"{manifest.directory}: {why}")
    if manifest.table is not None and model.table is not None:
        table_schema.check_same_features(model.table, manifest.table, manifest.directory, options.ignore_new)
    if not options.ignore_new:
        dataset.check_width(manifest, model.p if manifest.coded else model.p_original)


def _why_other_rows(manifest: Manifest, model: Model, options: InputOptions) -> str:
    """Return why the codes and labels of a data set, or how it is to be read, do not fit a model; or ""."""
    if options.label or options.id or options.weight or options.group or options.missing_group != "own":
        columns = f"{option('label')}, {option('id')}, {option('weight')}, {option('group')}"
        return f"{columns} and {option('missing_group')} are of files, and were chosen when this data set was made"
    theirs, ours = manifest.coded, model.coded
    same_codes = theirs.maps == ours.maps and theirs.features == ours.features
    if theirs == ours or (same_codes and not (theirs.sequences and ours.sequences)):
        if theirs and missing_offsets(model, manifest.table):
            return "its features are of other means than those of the model; give the rows before distsms features"
    elif theirs.features and ours.features:
        like = option("like", text="TRAINING_DATA")
        return f"its features were made by other rules than those of the model; use distsms features {like}"
    elif theirs or model.features is None:
        of_data, of_model = (coded.describe() if coded else "rows without codes" for coded in (theirs, ours))
        hint = f"; convert the sequences with {option('like')} and the training data" if ours.sequences else ""
        return f"has {of_data}, but the model was trained on {of_model}{hint}"
    of_training = model.info["label_map"]
    positive, negative = (labels.original_labels(of_training, sign) for sign in ("+1", "-1"))
    swapped = [label for label in labels.original_labels(manifest.label_map, "+1") if label in negative]
    swapped += [label for label in labels.original_labels(manifest.label_map, "-1") if label in positive]
    if options.labelled and swapped:
        positive_there = f"in the model's training data (positive there: {of_training['+1']})"
        return f"the label {swapped[0]} has the other sign {positive_there}. Convert with the same {option('positive')}"
    return ""
