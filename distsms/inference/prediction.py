"""Prediction and evaluation with a trained model, over all ranks; see `distsms.api`."""

from __future__ import annotations

import os
from collections.abc import Sequence
from dataclasses import replace
from typing import Any, TypeAlias

import numpy as np
from numpy.typing import ArrayLike, NDArray

from distsms.data import frames, in_memory
from distsms.errors import InputError
from distsms.inference import evaluation, inputs, scoring
from distsms.inference.model import Model, load
from distsms.measures import Condition
from distsms.parallel.arguments import require_same_arguments
from distsms.parallel.communicator import Communicator
from distsms.parallel.mpi import as_communicator

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
        A data set or a file, of whose rows each rank gets a contiguous share in the order of the ranks; or the rows of
        this rank, as a DataFrame with the columns of the training data, or sparse or array-like of shape (n_local, p);
        for a model of sequences also a list of strings, such as ``["ACGT", ...]``.
    comm : mpi4py communicator, optional
        The ranks that take part; None is this process alone.
    ignore_new_features : bool
        Leave out columns of a path that the model lacks, instead of refusing them.
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
    judge = loaded(model, comm, data=data, ignore_new_features=ignore_new_features, zero_based=zero_based)
    how = inputs.InputOptions(ignore_new_features, False, zero_based)
    return scored(judge, data, comm, how).scores[0]


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
        A data set or a file, or the rows of this rank as for `train`. X may be a list of strings as for `predict`.
    comm : mpi4py communicator, optional
        The ranks that take part; None is this process alone.
    threshold : float, optional
        Call a row positive if its score is at least this; None takes the threshold of the model.
    k : int, optional
        Also give precision@k and recall@k; None takes the k that the model was trained for, if any.
    at : str or sequence of str
        Find thresholds for conditions such as "precision>=0.9", "recall>=0.95", "fpr<=0.001", "top=100" or "top=1%".
    ignore_new_features : bool
        Leave out columns of a path that the model lacks, instead of refusing them.
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
        others; `intervals_at_threshold` has the intervals of precision, recall and fpr.
        What is not defined is NaN.

    Raises
    ------
    InputError
        On all ranks, if the rows do not fit the model, a score is not finite, or no row counts.

    Notes
    -----
    Collective. No rank gathers the scores of all rows.
    """
    comm = as_communicator(comm)
    column, weights = (weight, None) if isinstance(weight, str) else (None, weight)
    options = {"threshold": threshold, "k": k, "at": at, "weight": column, "zero_based": zero_based}
    judge = loaded(model, comm, data=data, ignore_new_features=ignore_new_features, **options)
    how = inputs.InputOptions(ignore_new_features, True, zero_based, weight=column)
    conditions = [Condition.parse(text) for text in ([at] if isinstance(at, str) else at)]
    scores, labels, own = _scored(judge, data, comm, how, weights).counted_scores()
    if not any(comm.allgather(len(labels))):
        raise InputError(f"the rows given: {inputs.NO_ROWS}: there are none, or all have weight 0", True)
    return evaluation.compute_measures(judge, scores, labels, comm, threshold, k, conditions, weights=own)


def loaded(given: Model | Path, comm: Communicator, **arguments: Any) -> Model:
    """Return a model, read if a file is given. **Collective.**

    Raises InputError on all ranks unless they have the same model and were given the same `arguments`.
    """
    require_same_arguments(comm, model=given, **arguments)
    if isinstance(given, Model):
        return given
    with comm.fail_together():
        return load(given)


def scored(
    judge: Model,
    data: Any,
    comm: Communicator,
    how: inputs.InputOptions,
    weights: ArrayLike | None = None,
    watch: scoring.Watch | None = None,
) -> scoring.ScoredRows:
    """Return the scores of rows given as for `predict`; `watch` sees the rows. **Collective.**"""
    rows = data if isinstance(data, str | os.PathLike) or _is_table(data, judge) else (data, None)
    return _scored(judge, rows, comm, how, weights, watch)


def _scored(
    judge: Model,
    data: Path | tuple[Any, Any],
    comm: Communicator,
    how: inputs.InputOptions,
    weights: ArrayLike | None = None,
    watch: scoring.Watch | None = None,
) -> scoring.ScoredRows:
    table = isinstance(data, str | os.PathLike) or _is_table(data, judge)
    if (weights if table else how.weight) is not None:
        raise InputError("weight is the name of a column for tables and files, and an array for rows in memory", True)
    if isinstance(data, str | os.PathLike):
        return scoring.score([judge], data, comm, how, watch)
    if _is_table(data, judge):
        how, python = replace(how, called="the table"), frames.speaking_python
        with comm.fail_together(), frames.frame_file(data) as path, frames.renaming({path: how.called}), python():
            found = scoring.score_as_weighted([judge], path, Communicator(), how, watch)
        return scoring.in_range(scoring.checked(found, "the rows given", comm), comm)
    with comm.fail_together():
        X = inputs.in_columns(data[0], judge)
    rows = in_memory.block(X, data[1], comm, judge.p, judge.info["label_map"], weights)
    rows.features.normalize(judge.normalization.by_row)
    scores = scoring.score_rows([judge], rows.features, rows.weights, watch)
    found = scoring.ScoredRows(scores, rows.labels, rows.weights)
    return scoring.checked(found, "the rows given", comm)


def _is_table(data: Any, judge: Model) -> bool:
    """Return whether data are a table in memory with the columns of the model's training data. Local."""
    return judge.table is not None and frames.is_frame(data)
