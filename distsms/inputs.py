"""The rows that a model is to score: a data set of shards, or a text file read directly, the same to the caller."""

from __future__ import annotations

import os
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray
from scipy import sparse

from distsms import shards, svmlight
from distsms.comm import Communicator
from distsms.errors import InputError
from distsms.features import Sparse
from distsms.model import Model, is_model


def check(path: str | os.PathLike[str], p: int, ignore_new_features: bool) -> None:
    """Raise InputError for what is wrong with rows for a model of p columns, as far as seen without reading. Local."""
    if not Path(path).is_dir():
        svmlight.plan([path], 1)
    elif not ignore_new_features:
        shards.check_columns(shards.read_manifest(path), p)


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
    ignore_new_features: bool = False,
    labelled: bool = True,
    zero_based: bool | None = None,
) -> shards.Block:
    """This rank's rows of a data set or svmlight file, with the model's columns. Collective.

    zero_based : whether the text counts columns from 0; None means as the text did that the model was trained on.
    labelled : whether labels are wanted; if not, those of text may be anything and come back as 0.
    Raises InputError where the rows use columns that the model does not have, naming file and column, or where their
    labels contradict the model's.
    """
    if Path(path).is_dir():
        with comm.together():
            manifest = shards.read_manifest(path)
            if labelled:
                _check_labels(manifest.label_map, model, path)
        return shards.load(manifest, comm, model.p, ignore_new_features)
    base = 0 if (model.info["zero_based"] if zero_based is None else zero_based) else 1
    with comm.together():
        if is_model(path):
            raise InputError(
                f"{path}: is a model, where rows are wanted; to compare models, name the rows by --on DATA"
            )
        share = svmlight.plan([path], comm.size)[comm.rank]
        rows = svmlight.concatenate(svmlight.read(share, base == 0))
        if rows.n_columns > model.p and not ignore_new_features:
            other = " Or does this text count columns from 1 (--one-based)?" if base == 0 else ""
            raise InputError(
                f"{path}: uses column {rows.n_columns - 1 + base} (counted from {base}), but the model has {model.p} "
                f"columns. Were both made with the same features? --ignore-new-features leaves new ones out.{other}"
            )
        labels = _signs(rows.labels, model, path) if labelled else np.zeros(len(rows.labels), np.int8)
    width = max(rows.n_columns, model.p)
    X = sparse.csr_matrix((rows.data, rows.indices, rows.indptr), shape=(len(labels), width))[:, : model.p]
    counts = comm.allgather(len(labels))
    return shards.Block(Sparse.of(X), labels, None, sum(counts[: comm.rank]), sum(counts), model.p, 0)


def scores(model: Model, rows: shards.Block, path: str | os.PathLike[str], comm: Communicator) -> NDArray[np.float64]:
    """The scores <w, x> + bias of this rank's rows, (n_local,). Collective. Raises InputError if one is not finite."""
    with comm.together():
        found = rows.features.margins(model.w) + model.bias
        bad = np.flatnonzero(~np.isfinite(found))
        if len(bad):
            raise InputError(
                f"{path}: row {rows.first_row + bad[0]} (counted from 0) has the score {found[bad[0]]}: its values are "
                "too large for this model"
            )
        return found


def _check_labels(label_map: dict[str, Any], model: Model, path: str | os.PathLike[str]) -> None:
    """Raise InputError if what is positive in a data set was negative in the model's training data, or the reverse."""
    ours = model.info["label_map"]
    swapped = [one for a, b in (("+1", "-1"), ("-1", "+1")) for one in _labels(label_map, a) if one in _labels(ours, b)]
    if swapped:
        raise InputError(
            f"{path}: the label {swapped[0]} has the other sign in the model's training data (positive there: "
            f"{ours['+1']}). Convert again with the same --positive"
        )


def _labels(label_map: dict[str, Any], sign: str) -> list[Any]:
    """The original labels of a class, "+1" or "-1": one, several, or none."""
    found = label_map.get(sign)
    return [] if found is None else np.atleast_1d(found).tolist()


def _signs(labels: np.ndarray, model: Model, path: str | os.PathLike[str]) -> np.ndarray:
    meaning = model.info["label_map"]
    positive, negative = (np.isin(labels, _labels(meaning, sign)) for sign in ("+1", "-1"))
    unknown = labels[~(positive | negative)]
    if len(unknown):
        raise InputError(
            f"{path}: has the label {unknown[0]:g}; the model knows {meaning['+1']} (positive) and {meaning['-1']}"
        )
    return np.where(positive, 1, -1).astype(np.int8)
