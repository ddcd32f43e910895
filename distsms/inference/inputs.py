"""The rows that a model is to score: a data set of shards, or a file read directly, the same to the caller."""

from __future__ import annotations

import os
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
from scipy import sparse

from distsms.data import labels
from distsms.data.formats import table_schema
from distsms.data.formats.base import Reader, ReadOptions
from distsms.data.formats.registry import format_of, open_reader
from distsms.data.formats.rows import Rows
from distsms.data.shards import dataset
from distsms.errors import InputError
from distsms.inference.model import Model, is_model, trained
from distsms.parallel.communicator import Communicator

NO_ROWS = "not a single row that counts, and so nothing to measure"


@dataclass(frozen=True)
class InputOptions:
    """How rows are read for a model.

    ignore_new : leave out columns that the model has not, rather than refuse them.
    labelled : whether labels are wanted; if not, those of files may be anything and come back as 0.
    zero_based : whether text counts columns from 0; None means as the text did that the model was trained on.
    label, id : columns of tables, if not those of the training data.
    quiet : nothing is told of what readers left out.
    """

    ignore_new: bool = False
    labelled: bool = True
    zero_based: bool | None = None
    label: str | None = None
    id: str | None = None
    quiet: bool = False


AS_TRAINED = InputOptions()


def like(manifest: dataset.Manifest) -> Model:
    """A model that knows nothing yet, of a data set's columns, labels and normalization, for its test rows. Local."""
    about = {"label_map": manifest.label_map, "zero_based": manifest.zero_based}
    return trained(np.zeros(manifest.p), about, manifest)


def check(path: str | os.PathLike[str], model: Model, how: InputOptions = AS_TRAINED) -> None:
    """Raise InputError for what is wrong with labelled rows for a model, as far as the first of them show. Local."""
    if Path(path).is_dir():
        check_set(dataset.read_manifest(path), model, how)
    else:
        reader = reader_for(model, path, Communicator(), how)
        if reader.table is None and (reader.n_columns or 0) > model.p and not how.ignore_new:
            raise _too_wide(path, reader.n_columns or 0, model, how)
        if not any(len(rows.labels) for rows in reader.read(reader.plan(1)[0])):
            raise InputError(f"{path}: {NO_ROWS}")


def check_distinct(output: str | os.PathLike[str], *used: str | os.PathLike[str] | None) -> None:
    """Raise InputError if writing `output` would replace, or fall into, something that is in use. Local."""
    target = Path(os.path.realpath(output))  # Path.resolve fails at links that lead in a circle
    for one in used:
        if one is not None and (
            target == (path := Path(os.path.realpath(one))) or (path.is_dir() and path in target.parents)
        ):
            raise InputError(f"{output}: would overwrite {one}, which is in use; name another file")


def reader_for(model: Model, path: str | os.PathLike[str], comm: Communicator, how: InputOptions) -> Reader:
    """The file's reader, by the columns and labels of the model's training data. Collective."""
    info, text = model.info, format_of(path) == "text"
    with comm.together():
        if text and Path(path).is_file() and is_model(path):
            raise InputError(
                f"{path}: is a model, where rows are wanted; to compare models, name the rows by --on DATA"
            )
        if format_of(path) == "table" and model.table is None:
            raise InputError(
                f"{path}: is a table, and the model's training data had no columns with names; convert the table with "
                "the same features in the same order, as svmlight text or an array"
            )
    reading = ReadOptions(
        zero_based=info["zero_based"] if how.zero_based is None else how.zero_based,
        label=how.label,
        id=how.id,
        table=model.table,
        label_map=info["label_map"],
        labelled=how.labelled,
        ignore_new=how.ignore_new,
    )
    return open_reader([path], reading, comm)


def matrix(rows: Rows, model: Model, path: str | os.PathLike[str], how: InputOptions) -> sparse.csr_matrix:
    """Rows with the model's columns. Raises InputError where they have more of them."""
    if rows.n_columns > model.p and not how.ignore_new:
        raise _too_wide(path, rows.n_columns, model, how)
    shape = (len(rows.labels), max(rows.n_columns, model.p))
    return sparse.csr_matrix((rows.data, rows.indices, rows.indptr), shape=shape)[:, : model.p]


def _too_wide(path: str | os.PathLike[str], width: int, model: Model, how: InputOptions) -> InputError:
    zero_based = model.info["zero_based"] if how.zero_based is None else how.zero_based
    base = 0 if zero_based or format_of(path) != "text" else 1
    other = " Or does this text count columns from 1 (--one-based)?" if zero_based else ""
    return InputError(
        f"{path}: uses column {width - 1 + base} (counted from {base}), but the model has {model.p} columns. Were both "
        f"made with the same features? --ignore-new-features leaves new ones out.{other}"
    )


def check_set(manifest: dataset.Manifest, model: Model, how: InputOptions) -> None:
    """What can be wrong with a data set for a model, as its manifest says."""
    dataset.check_readable(manifest)
    if how.label or how.id:
        raise InputError(f"{manifest.directory}: is a data set, whose labels and ids were chosen when it was made")
    if how.labelled:
        _check_labels(manifest.label_map, model, manifest.directory)
    if manifest.table is not None and model.table is not None:
        table_schema.check_same(model.table, manifest.table, manifest.directory, how.ignore_new)
    if not how.ignore_new:
        dataset.check_columns(manifest, model.p)


def _check_labels(label_map: dict[str, Any], model: Model, path: str | os.PathLike[str]) -> None:
    """Raise InputError if what is positive in a data set was negative in the model's training data, or the reverse."""
    ours = model.info["label_map"]
    swapped = [
        one
        for a, b in (("+1", "-1"), ("-1", "+1"))
        for one in labels.known(label_map, a)
        if one in labels.known(ours, b)
    ]
    if swapped:
        raise InputError(
            f"{path}: the label {swapped[0]} has the other sign in the model's training data (positive there: "
            f"{ours['+1']}). Convert again with the same --positive"
        )
