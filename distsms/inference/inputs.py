"""The rows that a model is to score: a data set of shards, or a file that is read directly."""

from __future__ import annotations

import os
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import scipy
from numpy.typing import NDArray

from distsms.data import labels
from distsms.data.file_names import expand, is_data_set
from distsms.data.formats import table_schema
from distsms.data.formats.base import Reader, ReadOptions
from distsms.data.formats.registry import format_of, has_sequences, open_reader
from distsms.data.formats.rows import RowBlock
from distsms.data.formats.table_schema import Table
from distsms.data.shards import dataset
from distsms.errors import InputError
from distsms.inference.model import Model, from_training, is_model
from distsms.matrix.arrays import as_features, subtract
from distsms.matrix.blocks import LocalRows
from distsms.matrix.coded import CodedRows, code_rows
from distsms.matrix.side_by_side import SideBySide
from distsms.parallel.communicator import Communicator

NO_ROWS = "there is no row to evaluate a model on"


@dataclass(frozen=True)
class InputOptions:
    """How rows are read for a model."""

    ignore_new: bool = False  # whether to leave out columns that the model does not have, rather than refuse them
    labelled: bool = True  # whether labels are wanted. If not, the labels of files may be anything and come back as 0.
    # whether svmlight text counts columns from 0. With None it counts as the training data of the model did.
    zero_based: bool | None = None
    label: str | None = None  # the names of these columns in tables, if they differ from those in the training data
    id: str | None = None
    quiet: bool = False  # whether to print no warnings about what readers left out
    weight: str | None = None  # the column of weights in tables and array files, if the rows have weights
    # the column of groups in tables, array files and svmlight text ("qid"), if the groups of the rows are wanted
    group: str | None = None
    groups: bool = False  # whether the groups of the rows of a data set are wanted, if it has groups
    called: str = ""  # what warnings call the file; "" stands for its path


AS_TRAINED = InputOptions()


def untrained_model(manifest: dataset.Manifest) -> Model:
    """Return a model of zeros with a data set's columns, labels and normalization, for reading its test rows. Local."""
    about = {"label_map": manifest.label_map, "zero_based": manifest.zero_based}
    return from_training(np.zeros(manifest.p), about, manifest)


def check(path: str | os.PathLike[str], model: Model, options: InputOptions = AS_TRAINED) -> None:
    """Raise InputError if labelled rows do not fit a model. Only the first rows of a file are read. Local."""
    if is_data_set(path):
        check_data_set(dataset.read_manifest(path), model, options)
    else:
        reader = reader_for(model, path, Communicator(), options)
        if (
            reader.table is None
            and reader.sequences is None
            and (reader.n_columns or 0) > model.p_original
            and not options.ignore_new
        ):
            raise _too_wide(path, reader.n_columns or 0, model, options)
        if not any(len(rows.labels) for rows in reader.read(reader.plan(1)[0])):
            raise InputError(f"{path}: {NO_ROWS}")


def check_distinct(output: str | os.PathLike[str], *used: str | os.PathLike[str] | None) -> None:
    """Raise InputError if `output` is one of the files or folders in `used`, or lies in such a folder. Local."""
    target = Path(os.path.realpath(output))  # Path.resolve fails for symbolic links that form a loop
    for name in used:
        if name is not None and (
            target == (path := Path(os.path.realpath(name))) or (path.is_dir() and path in target.parents)
        ):
            raise InputError(f"{output}: would overwrite {name}, which is in use; name another file")


def reader_for(model: Model, path: str | os.PathLike[str], comm: Communicator, options: InputOptions) -> Reader:
    """Return a reader that reads a file with the columns and labels of the model's training data. **Collective.**"""
    info = model.info
    with comm.fail_together():
        names = expand([os.fspath(path)])
        path = names[0]
        text = format_of(path) == "text"
        if has_sequences(path) and not model.coded.sequences:
            raise InputError(f"{path}: has sequences, but the model was not trained on sequences")
        if model.coded and model.coded.sequences is None and model.features is None:
            raise InputError(
                f"{path}: the model was trained on codes that were written from Python; give it a data set with such "
                "codes (write_data)"
            )
        if model.coded.sequences and not text and not has_sequences(path):
            raise InputError(
                f"{path}: the model takes {model.coded.describe()}: FASTA, or text with lines LABEL SEQUENCE"
            )
        if text and Path(path).is_file() and is_model(path):
            raise InputError(
                f"{path}: is a model, but rows are expected here; to compare models, give the rows with --test DATA"
            )
        if format_of(path) == "table" and model.table is None:
            raise InputError(
                f"{path}: is a table, but the columns of the model's training data had no names; convert the table to "
                "svmlight text or an array, with the same features in the same order"
            )
    reading = ReadOptions(
        zero_based=info["zero_based"] if options.zero_based is None else options.zero_based,
        label=options.label,
        id=options.id,
        weight=options.weight,
        group=options.group,
        table=model.table,
        encoding=model.coded.sequences,
        label_map=info["label_map"],
        labelled=options.labelled,
        ignore_new=options.ignore_new,
    )
    return open_reader(names, reading, comm)


def id_name(model: Model, path: str | os.PathLike[str], options: InputOptions) -> str:
    """Return the name of the column with the rows' ids; "id" if it has none. Local."""
    table = dataset.read_manifest(path).table if is_data_set(path) else model.table
    return options.id or (table and table.id) or "id"


def to_features(
    rows: RowBlock, model: Model, path: str | os.PathLike[str], options: InputOptions, table: Table | None
) -> LocalRows | SideBySide:
    """Return rows of a reader as the model takes them. Raises InputError if they have more columns.

    table : the encoding by which the reader made them.
    """
    if rows.codes is not None:
        return coded_rows(rows.codes, model)
    p = model.p_original
    if rows.n_columns > p and not options.ignore_new:
        raise _too_wide(path, rows.n_columns, model, options)
    shape = (len(rows.labels), max(rows.n_columns, p))
    X = scipy.sparse.csr_matrix((rows.data, rows.indices, rows.indptr), shape=shape)[:, :p]
    return as_scored(X, model, path, table)


def as_scored(X: Any, model: Model, where: object, table: Table | None = None) -> LocalRows | SideBySide:
    """Return rows as a model scores them: less the offsets of its table, with its features, normalized. Local.

    Rows of every source pass through here, but for rows of data sets that are stored as the model takes them.

    Parameters
    ----------
    X : CSR matrix or array, (n, p_original)
        The rows, with the columns of the training data.
    model : Model
    where : object
        The source, with which errors begin.
    table : Table, optional
        The encoding that made X of a table. None: X has the numbers as they were before any encoding.

    Raises
    ------
    InputError
        If a value is NaN, and the model has a feature map.
    """
    X = subtract(X, missing_offsets(model, table))
    try:
        rows = as_features(X) if model.features is None else model.features.rows(X)
    except InputError as error:
        raise InputError(f"{where}: {error}") from error
    rows.normalize(model.normalization.by_row)
    return rows


def missing_offsets(model: Model, table: Table | None) -> dict[int, float]:
    """Return what is still to be subtracted from columns that a table made, or no table (None), for a model. Local."""
    wanted, done = ({} if known is None else known.offsets for known in (model.table, table))
    left = {column: wanted.get(column, 0.0) - done.get(column, 0.0) for column in {**wanted, **done}}
    return {column: offset for column, offset in left.items() if offset and column < model.p_original}


def coded_rows(codes: NDArray[np.uint8], model: Model) -> CodedRows:
    """Return the rows of codes of sequences, (n, codes of a row). Local."""
    (code_map,) = model.coded.maps
    return CodedRows(code_map, code_rows(codes, code_map), [0, len(codes)])


def _too_wide(path: str | os.PathLike[str], width: int, model: Model, options: InputOptions) -> InputError:
    zero_based = model.info["zero_based"] if options.zero_based is None else options.zero_based
    base = 0 if zero_based or format_of(path) != "text" else 1
    hint = " Or does this text count columns from 1 (--one-based)?" if zero_based else ""
    return InputError(
        f"{path}: uses column {width - 1 + base} (counted from {base}), but the model has {model.p_original} columns. "
        f"Were both made with the same features? --ignore-new-features leaves new ones out.{hint}"
    )


def check_data_set(manifest: dataset.Manifest, model: Model, options: InputOptions) -> None:
    """Raise InputError if the manifest of a data set shows that it does not fit a model. Local."""
    dataset.check_readable(manifest)
    if options.label or options.id or options.weight or options.group:
        raise InputError(
            f"{manifest.directory}: is a data set, whose labels, ids, weights and groups were chosen when it was made; "
            "leave out --label, --id, --weight and --group"
        )
    _check_coded(manifest, model)
    if manifest.coded and missing_offsets(model, manifest.table):
        raise InputError(
            f"{manifest.directory}: its features were made from numbers from which other means were subtracted than "
            "for the model; give the rows as they were before distsms features"
        )
    if options.labelled:
        _check_labels(manifest.label_map, model, manifest.directory)
    if manifest.table is not None and model.table is not None:
        table_schema.check_same_features(model.table, manifest.table, manifest.directory, options.ignore_new)
    if not options.ignore_new:
        dataset.check_columns(manifest, model.p if manifest.coded else model.p_original)


def _check_coded(manifest: dataset.Manifest, model: Model) -> None:
    """Raise InputError if the coded columns of a data set are not those of a model."""
    theirs, ours = manifest.coded, model.coded
    if theirs == ours or (model.features is not None and not theirs):
        return
    if theirs.maps == ours.maps and not (theirs.sequences and ours.sequences) and theirs.features == ours.features:
        return
    if theirs.features and ours.features:
        raise InputError(
            f"{manifest.directory}: its features were made by other rules than those of the model; make them with "
            "distsms features --like TRAINING_DATA, or give the rows as they were before distsms features"
        )
    found, known = (coded.describe() if coded else "rows without codes" for coded in (theirs, ours))
    hint = "; convert the sequences with --like and the training data" if ours.sequences else ""
    raise InputError(f"{manifest.directory}: has {found}, but the model was trained on {known}{hint}")


def _check_labels(label_map: dict[str, Any], model: Model, path: str | os.PathLike[str]) -> None:
    """Raise InputError if a label that is positive in a data set was negative in training, or the reverse."""
    ours = model.info["label_map"]
    swapped = [
        label
        for a, b in (("+1", "-1"), ("-1", "+1"))
        for label in labels.original_labels(label_map, a)
        if label in labels.original_labels(ours, b)
    ]
    if swapped:
        raise InputError(
            f"{path}: the label {swapped[0]} has the other sign in the model's training data (positive there: "
            f"{ours['+1']}). Convert again with the same --positive"
        )
