"""Prediction and evaluation with a trained model, over all ranks; see `distsms.python.api`."""

from __future__ import annotations

import os
import warnings
from collections.abc import Sequence
from dataclasses import replace
from typing import Any, TypeAlias

import numpy as np
import scipy
from numpy.typing import ArrayLike, NDArray

from distsms.base.errors import InputError, ModelWarning, speaking_python
from distsms.base.measures import Condition
from distsms.base.wording import in_python
from distsms.ingest import frames
from distsms.ingest.formats.registry import print_warnings
from distsms.matrix.blocks import LocalRows
from distsms.matrix.side_by_side import SideBySide
from distsms.metrics.row_sample import describe_share
from distsms.models import evaluation, inputs, scoring
from distsms.models.model import Model, load
from distsms.parallel.arguments import require_same_arguments
from distsms.parallel.communicator import Communicator
from distsms.parallel.mpi import as_communicator
from distsms.shards import in_memory
from distsms.shards.frame_columns import is_frame, names_of, ordered
from distsms.shards.rows import concatenate
from distsms.shards.sequence_rules import encode
from distsms.shards.table_schema import format_names

Path: TypeAlias = str | os.PathLike[str]
Data: TypeAlias = Path | tuple[Any, ArrayLike]
"""A path, or this rank's (X, y)."""


def predict(
    model: Model | Path,
    data: Any,
    comm: Any = None,
    *,
    ignore_new_features: bool = False,
    zero_based: bool | None = None,
) -> NDArray[np.float64]:
    """Score the rows of this rank.

    Parameters
    ----------
    model : Model or path
        The model.
    data : path, DataFrame, or X
        A data set, a file, a pattern such as ``"day-*.csv"`` or a folder of tables, of whose rows each rank gets a
        contiguous share in the order of the ranks; or the rows of this rank, as a DataFrame with the columns of the
        training data, or sparse or array-like of shape (n_local, p); for a model of sequences also a list of strings,
        such as ``["ACGT", ...]``.
    comm : mpi4py communicator, optional
        The ranks that take part; None is this process alone.
    ignore_new_features : bool
        Leave out columns of a path or DataFrame that the model lacks, instead of refusing them.
    zero_based : bool, optional
        Whether svmlight text counts columns from 0; None: as the training data did.

    Returns
    -------
    ndarray of shape (n_local,)
        The scores <w, x> + bias, float64. A row is called positive where its score is at least `model.threshold`.

    Raises
    ------
    InputError
        On all ranks, if the rows do not fit the model or a score is not finite.

    Notes
    -----
    Collective. One pass over the rows.
    """
    comm = as_communicator(comm)
    model = loaded(model, comm, data=data, ignore_new_features=ignore_new_features, zero_based=zero_based)
    options = inputs.InputOptions(ignore_new_features, labelled=False, zero_based=zero_based)
    return scored(model, data, comm, options).scores[0]


def evaluate(
    model: Model | Path,
    data: Data,
    comm: Any = None,
    *,
    threshold: float | None = None,
    k: int | None = None,
    at: str | Sequence[str] = (),
    ignore_new_features: bool = False,
    zero_based: bool | None = None,
    weight: str | ArrayLike | None = None,
) -> dict[str, Any]:
    """Measure a model on the labelled rows of all ranks, exactly.

    Parameters
    ----------
    model : Model or path
        The model.
    data : path, DataFrame, or (X, y)
        A path as for `predict`, or the rows of this rank as for `train`. X may be a list of strings as for `predict`.
    comm : mpi4py communicator, optional
        The ranks that take part; None is this process alone.
    threshold : float, optional
        Call a row positive if its score is at least this; None takes the threshold of the model.
    k : int, optional
        Also give precision@k and recall@k; None takes the k that the model was trained for, if any.
    at : str or sequence of str
        Find thresholds for conditions such as "precision>=0.9", "recall>=0.95", "fpr<=0.001", "top=100" or "top=1%".
    ignore_new_features : bool
        Leave out columns of a path or DataFrame that the model lacks, instead of refusing them.
    zero_based : bool, optional
        Whether svmlight text counts columns from 0; None: as the training data did.
    weight : str or array-like, optional
        The weight of each row: the name of a column for tables, and an array of shape (n_local,) for ``(X, y)``, on
        every rank or on none. Data sets have their own. Then tp, fp, fn and tn are sums of weights.

    Returns
    -------
    dict
        The measures, the same on every rank, by the keys that `distsms evaluate --json` has for them: rocarea, prbep,
        average_precision, threshold, tp, fp, fn, tn, precision, recall, fpr, f1, error_rate, n, n_pos, n_neg and
        others; `intervals_at_threshold` has the intervals of precision, recall and fpr, and `training_rows` the share
        of the rows that are training rows of the model, estimated by a sample that the model has of them.
        What is not defined is NaN.

    Raises
    ------
    InputError
        On all ranks, if the rows do not fit the model, a score is not finite, or no row counts.

    Warns
    -----
    ModelWarning
        On the root, if some of the rows are training rows of the model.

    Notes
    -----
    Collective. No rank gathers the scores of all rows.
    """
    comm = as_communicator(comm)
    column, weights = (weight, None) if isinstance(weight, str) else (None, weight)
    model = loaded(
        model,
        comm,
        data=data,
        ignore_new_features=ignore_new_features,
        threshold=threshold,
        k=k,
        at=at,
        weight=column,
        zero_based=zero_based,
    )
    if is_frame(data) and (model.table is None or model.table.label is None):
        raise InputError("the model does not know which column has the labels; give them apart: (X, labels)", True)
    options = inputs.InputOptions(ignore_new_features, labelled=True, zero_based=zero_based, weight=column)
    conditions = [Condition.parse(text) for text in ([at] if isinstance(at, str) else at)]
    scores, labels, counted_weights = _scored(model, data, comm, options, weights).counted_scores()
    if not any(comm.allgather(len(labels))):
        raise InputError(f"the rows given: {inputs.NO_ROWS}: there are none, or all have weight 0", True)
    measures = evaluation.compute_measures(
        model, scores, labels, comm, threshold, k, conditions, weights=counted_weights
    )
    if comm.is_root and (warning := describe_share(measures["training_rows"])):
        warnings.warn(in_python(warning), ModelWarning, stacklevel=2)
    return measures


def loaded(model: Model | Path, comm: Communicator, **arguments: Any) -> Model:
    """Return a model, read if a file is given. **Collective.**

    Raises InputError on all ranks unless they have the same model and were given the same `arguments`.
    """
    require_same_arguments(comm, model=model, **arguments)
    if isinstance(model, Model):
        return model
    with comm.fail_together():
        return load(model)


def scored(
    model: Model,
    data: Any,
    comm: Communicator,
    options: inputs.InputOptions,
    weights: ArrayLike | None = None,
    watch: scoring.Watch | None = None,
) -> scoring.ScoredRows:
    """Return the scores of rows given as for `predict`; `watch` sees the rows. **Collective.**"""
    in_rows = model.table is not None and model.table.plain and options.weight is None
    table = _is_table(data, model) and not in_rows
    rows = data if isinstance(data, str | os.PathLike) or table else (data, None)
    return _scored(model, rows, comm, options, weights, watch)


def _scored(
    model: Model,
    data: Path | tuple[Any, Any],
    comm: Communicator,
    options: inputs.InputOptions,
    weights: ArrayLike | None = None,
    watch: scoring.Watch | None = None,
) -> scoring.ScoredRows:
    table = isinstance(data, str | os.PathLike) or _is_table(data, model)
    if (weights if table else options.weight) is not None:
        raise InputError("weight is the name of a column for tables and files, and an array for rows in memory", True)
    if isinstance(data, str | os.PathLike):
        with speaking_python():
            return scoring.score([model], data, comm, options, watch)
    if _is_table(data, model):
        options, python = replace(options, called="the table"), speaking_python
        with comm.fail_together(), frames.frame_file(data) as path, frames.renaming({path: options.called}), python():
            of_table = scoring.score_as_weighted([model], path, Communicator(), options, watch)
        return scoring.in_range(scoring.checked(of_table, "the rows given", comm), comm)
    with comm.fail_together():
        rows_of_rank, labels = in_memory.pair(data)
        X = _rows_in_memory(rows_of_rank, model, options)
    rows = in_memory.block(X, labels, comm, model.p, model.info["label_map"], weights)
    scores = scoring.score_rows([model], rows.features, rows.weights, watch)
    return scoring.checked(scoring.ScoredRows(scores, rows.labels, rows.weights), "the rows given", comm)


def _is_table(data: Any, model: Model) -> bool:
    """Return whether data are a table in memory with the columns of the model's training data. Local."""
    return model.table is not None and is_frame(data)


def _rows_in_memory(X: Any, model: Model, options: inputs.InputOptions) -> LocalRows | SideBySide:
    """Return rows of a program's memory as a model scores them: a table, an array, a matrix, or strings. Local.

    The columns of a table are found by their names. Raises InputError if the rows do not fit the model.
    """
    if model.table is not None and is_frame(X):
        if not model.table.plain:
            return _frame_rows(X, model, options)
        with speaking_python():
            X = ordered(X, model.table, options.ignore_new)
    if (names := names_of(X)) is not None:
        raise InputError(
            f"X has names of columns ({format_names(names)}), and the columns of the model's training data had none; "
            "give the numbers alone, such as X.to_numpy(), in the order of the training data"
        )
    if model.coded.sequences is not None and not scipy.sparse.issparse(X):
        words = np.asarray(X)
        if words.ndim == 1 and (not len(words) or words.dtype.kind in "OU"):
            return inputs.coded_rows(encode(words.tolist(), model.coded.sequences), model)
    X = scipy.sparse.csr_matrix(X) if scipy.sparse.issparse(X) else np.asarray(X)
    if X.dtype.kind != "f":
        try:
            X = X.astype(np.float64)
        except (TypeError, ValueError) as error:
            raise InputError(f"X does not hold numbers: {error}") from error
    if X.ndim != 2 or X.shape[1] != model.p_original:
        raise InputError(
            f"X has the shape {X.shape}, but the model takes rows with {model.p_original} columns; give the columns of "
            "the training data"
        )
    return inputs.as_scored(X, model, "X")


def _frame_rows(frame: Any, model: Model, options: inputs.InputOptions) -> LocalRows | SideBySide:
    """Return the rows of a table in memory; its labels, if it has any, are not looked at."""
    with frames.frame_file(frame) as path, frames.renaming({path: "X"}), speaking_python():
        reader = inputs.reader_for(model, [path], Communicator(), replace(options, labelled=False))
        rows = concatenate(reader.read(reader.plan(1)[0]))
        print_warnings("X", reader.warnings, Communicator())
        return inputs.to_features(rows, model, path, options, reader.table)
