"""The rows that a model is to score: a data set of shards, or a text file read directly, the same to the caller."""

from __future__ import annotations

import os
from pathlib import Path

import numpy as np
from scipy import sparse

from distsms import shards, svmlight
from distsms.comm import Communicator
from distsms.errors import InputError
from distsms.features import Sparse
from distsms.model import Model


def rows_for(
    model: Model,
    path: str | os.PathLike[str],
    comm: Communicator,
    ignore_new_features: bool = False,
    labelled: bool = True,
) -> shards.Block:
    """This rank's rows of a data set or svmlight file, with the model's columns. Collective.

    Text is read as the model's training data were: columns counted from the same number, the same positive label.
    labelled : whether the text's labels are wanted; if not, they may be anything and come back as 0.
    Raises InputError where the rows use columns that the model does not have, naming file and column.
    """
    if Path(path).is_dir():
        return shards.load(path, comm, model.p, ignore_new_features)
    with comm.together():
        share = svmlight.plan([path], comm.size)[comm.rank]
        rows = svmlight.concatenate(svmlight.read(share, model.info["zero_based"]))
        if rows.n_columns > model.p and not ignore_new_features:
            base = 0 if model.info["zero_based"] else 1
            raise InputError(
                f"{path}: uses column {rows.n_columns - 1 + base} (counted from {base}), but the model has {model.p} "
                "columns. Were both made with the same features? --ignore-new-features leaves new ones out"
            )
        labels = _signs(rows.labels, model, path) if labelled else np.zeros(len(rows.labels), np.int8)
    width = max(rows.n_columns, model.p)
    X = sparse.csr_matrix((rows.data, rows.indices, rows.indptr), shape=(len(labels), width))[:, : model.p]
    counts = comm.allgather(len(labels))
    features = Sparse(X.data, X.indices, X.indptr, model.p)
    return shards.Block(features, labels, None, sum(counts[: comm.rank]), sum(counts), model.p, 0)


def _signs(labels: np.ndarray, model: Model, path: str | os.PathLike[str]) -> np.ndarray:
    meaning = model.info["label_map"]
    positive, negative = labels == meaning["+1"], labels == meaning["-1"]
    unknown = labels[~(positive | negative)]
    if len(unknown):
        raise InputError(
            f"{path}: has the label {unknown[0]:g}; the model knows {meaning['+1']} (positive) and {meaning['-1']}"
        )
    return np.where(positive, 1, -1).astype(np.int8)
