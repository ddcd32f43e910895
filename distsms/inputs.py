"""The rows that a model is to score: a data set of shards, or a file read directly, the same to the caller."""

from __future__ import annotations

import os
import sys
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray
from scipy import sparse

from distsms import columns, labels, shards, textfiles
from distsms.comm import Communicator
from distsms.errors import InputError
from distsms.features import Sparse
from distsms.model import Model, is_model
from distsms.normalization import Normalization
from distsms.reading import Reader, Reading, format_of, open_reader, tell
from distsms.rows import Rows, concatenate

PART_BYTES = 2**24
"""Text, or labels and entries of shards, that a rank scores at a time where the scores are written as they come."""

NO_ROWS = "not a single row that counts, and so nothing to measure"


@dataclass(frozen=True)
class How:
    """How rows are read for a model.

    ignore_new : leave out columns that the model has not, rather than refuse them.
    labelled : whether labels are wanted; if not, those of files may be anything and come back as 0.
    zero_based : whether text counts columns from 0; None means as the text did that the model was trained on.
    label, id : columns of tables, if not those of the training data.
    """

    ignore_new: bool = False
    labelled: bool = True
    zero_based: bool | None = None
    label: str | None = None
    id: str | None = None


AS_TRAINED = How()


def like(manifest: shards.Manifest) -> Model:
    """A model that knows nothing yet, of a data set's columns and labels, for its test rows. Local."""
    about = {"label_map": manifest.label_map, "zero_based": manifest.zero_based}
    return Model(np.zeros(manifest.p), about, manifest.table)


def check(path: str | os.PathLike[str], model: Model, how: How = AS_TRAINED) -> None:
    """Raise InputError for what is wrong with labelled rows for a model, as far as the first of them show. Local."""
    if Path(path).is_dir():
        _check_set(shards.read_manifest(path), model, how)
    else:
        reader = _reader(model, path, Communicator(), how)
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


def rows_for(
    model: Model,
    path: str | os.PathLike[str],
    comm: Communicator,
    how: How = AS_TRAINED,
    normalization: Normalization | None = None,
) -> shards.Block:
    """This rank's rows of a data set or a file, with the model's columns. Collective.

    normalization : of the rows; None means what the model wants, whose w takes raw columns.
    Raises InputError where the rows use columns that the model does not have, naming file and column, or where their
    labels contradict the model's.
    """
    normalization = normalization or model.normalization.by_row
    if Path(path).is_dir():
        with comm.together():
            manifest = shards.read_manifest(path)
            _check_set(manifest, model, how)
        return shards.load(manifest, comm, model.p, how.ignore_new, normalization)
    reader = _reader(model, path, comm, how)
    with comm.together():
        rows = concatenate(reader.read(reader.plan(comm.size)[comm.rank]))
        X = _matrix(rows, model, path, how, normalization)
    tell(path, reader.notes, comm)
    counts = comm.allgather(len(rows.labels))
    signs = rows.labels.astype(np.int8)
    return shards.Block(Sparse.of(X), signs, None, sum(counts[: comm.rank]), sum(counts), model.p, 0)


def scored(
    model: Model, path: str | os.PathLike[str], comm: Communicator, how: How
) -> Iterator[tuple[NDArray[np.float64], list[str] | None]]:
    """Scores, and names of the rows if they have some: of a part of the rows on each rank, in rank order, in turns.

    Collective at every step, until the rows end on all ranks; memory: one part. Raises InputError as `rows_for` does.
    """
    if Path(path).is_dir():
        yield from _scored_set(model, path, comm, how)
        return
    reader, row = _reader(model, path, comm, how), 0
    n_bytes = os.path.getsize(path) * (textfiles.EXPANSION if reader.compressed else 1)
    parts = reader.plan(max(1, n_bytes // PART_BYTES))
    for first in range(0, len(parts), comm.size):
        found, names = [np.empty(0)], list[str]()
        with comm.together():
            for rows in reader.read(parts[first + comm.rank] if first + comm.rank < len(parts) else []):
                X = _matrix(rows, model, path, how, model.normalization.by_row)
                found.append(Sparse.of(X).margins(model.w) + model.bias)
                names += rows.ids or []
        values = np.concatenate(found)
        counts = comm.allgather(len(values))
        with comm.together():
            _require_finite(values, row + sum(counts[: comm.rank]), path)
        yield values, names if reader.named else None
        row += sum(counts)
    tell(path, reader.notes, comm)
    if not row and comm.is_root:
        print(f"warning: {path}: has no rows, and so there are no scores", file=sys.stderr, flush=True)


def _scored_set(
    model: Model, path: str | os.PathLike[str], comm: Communicator, how: How
) -> Iterator[tuple[NDArray[np.float64], list[str] | None]]:
    with comm.together():
        manifest = shards.read_manifest(path)
        _check_set(manifest, model, how)
    n_parts = max(1, (9 * manifest.n + 12 * manifest.nnz) // PART_BYTES)
    for first in range(0, n_parts, comm.size):
        part = min(first + comm.rank, n_parts), n_parts
        block = shards.load(manifest, comm, model.p, how.ignore_new, model.normalization.by_row, part)
        with comm.together():
            names = shards.read_ids(manifest, block.first_row, block.first_row + len(block.labels))
        yield scores(model, block, path, comm), names


def scores(model: Model, rows: shards.Block, path: str | os.PathLike[str], comm: Communicator) -> NDArray[np.float64]:
    """The scores <w, x> + bias of this rank's rows, (n_local,). Collective. Raises InputError if one is not finite."""
    with comm.together():
        found = rows.features.margins(model.w) + model.bias
        _require_finite(found, rows.first_row, path)
        return found


def _require_finite(found: NDArray[np.float64], first_row: int, path: str | os.PathLike[str]) -> None:
    bad = np.flatnonzero(~np.isfinite(found))
    if len(bad):
        raise InputError(
            f"{path}: row {first_row + bad[0]} (counted from 0) has the score {found[bad[0]]}: its values are too "
            "large for this model"
        )


def _reader(model: Model, path: str | os.PathLike[str], comm: Communicator, how: How) -> Reader:
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
    reading = Reading(
        zero_based=info["zero_based"] if how.zero_based is None else how.zero_based,
        label=how.label,
        id=how.id,
        table=model.table,
        label_map=info["label_map"],
        labelled=how.labelled,
        ignore_new=how.ignore_new,
    )
    return open_reader([path], reading, comm)


def _matrix(
    rows: Rows, model: Model, path: str | os.PathLike[str], how: How, normalization: Normalization
) -> sparse.csr_matrix:
    """Rows with the model's columns, normalized. Raises InputError where they have more of them."""
    if rows.n_columns > model.p and not how.ignore_new:
        raise _too_wide(path, rows.n_columns, model, how)
    shape = (len(rows.labels), max(rows.n_columns, model.p))
    X = sparse.csr_matrix((rows.data, rows.indices, rows.indptr), shape=shape)[:, : model.p]
    normalization.apply(X.indptr, X.indices, X.data)
    return X


def _too_wide(path: str | os.PathLike[str], width: int, model: Model, how: How) -> InputError:
    zero_based = model.info["zero_based"] if how.zero_based is None else how.zero_based
    base = 0 if zero_based or format_of(path) != "text" else 1
    other = " Or does this text count columns from 1 (--one-based)?" if zero_based else ""
    return InputError(
        f"{path}: uses column {width - 1 + base} (counted from {base}), but the model has {model.p} columns. Were both "
        f"made with the same features? --ignore-new-features leaves new ones out.{other}"
    )


def _check_set(manifest: shards.Manifest, model: Model, how: How) -> None:
    """What can be wrong with a data set for a model, as its manifest says."""
    if how.label or how.id:
        raise InputError(f"{manifest.directory}: is a data set, whose labels and ids were chosen when it was made")
    if how.labelled:
        _check_labels(manifest.label_map, model, manifest.directory)
    if manifest.table is not None and model.table is not None:
        columns.check_same(model.table, manifest.table, manifest.directory, how.ignore_new)
    if not how.ignore_new:
        shards.check_columns(manifest, model.p)


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
