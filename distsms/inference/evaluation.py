"""Evaluate models on labelled rows: all measures, confidence intervals, and the difference between any two models."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from itertools import combinations, groupby
from typing import Any

import numpy as np
from numpy.typing import NDArray

from distsms.errors import InputError
from distsms.inference import inputs, scoring
from distsms.inference.model import Model, load
from distsms.measures import Measure
from distsms.metrics import bootstrap, confidence, ranking
from distsms.metrics.confidence import Interval
from distsms.parallel.communicator import Communicator
from distsms.utils.typing import Floats


@dataclass(frozen=True)
class EvaluationOptions:
    """What is computed for every model. If `threshold` or `k` is None, the value stored with the model is taken."""

    level: float = 0.95  # confidence level of the intervals
    replicates: int = 1000  # number of bootstrap samples
    seed: int = 0
    threshold: float | None = None
    k: int | None = None


@dataclass(frozen=True)
class EvaluatedRows:
    """The rows of this rank that count, which are those whose weight is not 0."""

    path: str
    labels: NDArray[np.int8]  # (n_local,)
    row_numbers: NDArray[np.int64]  # (n_local,), global


@dataclass(frozen=True)
class ModelEvaluation:
    """A model on these rows. The scores are those of this rank's rows; all else is the same on every rank."""

    path: str
    model: Model
    scores: Floats  # (n_local,)
    measures: dict[str, Any]  # measures and counts, by the names of `distsms evaluate --json`
    extra_measures: list[str]  # the names of those measures that not every model has
    intervals: dict[str, Interval]  # confidence intervals of "rocarea" and "prbep", and of the measures at K

    def as_json(self, on: str, level: float) -> dict[str, Any]:
        """Return what `distsms evaluate --json` prints of a model."""
        intervals = {name: interval.as_json() for name, interval in self.intervals.items()}
        return {"model": self.path, "data": on, **self.measures, "level": level, "intervals": intervals}


@dataclass(frozen=True)
class ModelComparison:
    """How much better the first of two models is than the other."""

    first: str
    other: str
    differences: dict[str, Interval]  # of "rocarea" and "prbep"

    def as_json(self) -> dict[str, Any]:
        """Return what `distsms evaluate --json` prints of a pair of models."""
        differences = {
            name: {**interval.as_json(), "verdict": confidence.verdict(interval, self.first, self.other)}
            for name, interval in self.differences.items()
        }
        return {"first": self.first, "other": self.other, **differences}


def evaluate(
    paths: Sequence[str],
    on: str,
    options: EvaluationOptions,
    comm: Communicator,
    input_options: inputs.InputOptions = inputs.AS_TRAINED,
) -> tuple[EvaluatedRows, list[ModelEvaluation], list[ModelComparison]]:
    """Read models and labelled rows, and measure the models on them. **Collective.**

    Parameters
    ----------
    paths : sequence of str
        The model files.
    on : str
        The rows: a data set or a file.
    options : EvaluationOptions
        What is computed.
    comm : Communicator
        The ranks that share the rows.
    input_options : InputOptions
        How the rows are read.

    Returns
    -------
    rows : EvaluatedRows
        This rank's rows that count.
    evaluations : list of ModelEvaluation
        In the order of `paths`.
    comparisons : list of ModelComparison
        One comparison for each pair of models.

    Raises
    ------
    InputError
        On every rank, if a model or the rows cannot be read, if all rows have weight 0, or if the models do not agree
        on which label is positive.

    Notes
    -----
    The rows are read once for consecutive models that need the same columns. `scoring.score` says how much memory this
    takes. The cost is that of `ranking.placements` and `bootstrap.prbep_replicates`, each called once for each model.
    """
    with comm.fail_together():
        models = [load(path) for path in paths]
    rows, scores = _scored(paths, models, on, comm, input_options)
    if not any(comm.allgather(len(rows.labels))):
        raise InputError(f"{on}: {inputs.NO_ROWS}", True)
    labels, n_pos = rows.labels, int(comm.sum(np.array([np.count_nonzero(rows.labels > 0)]))[0])
    placed = [ranking.placements(of_model, labels, comm) for of_model in scores]
    shares = [ranking.top_k_shares(of_model, n_pos, comm) for of_model in scores]
    drawn = [
        bootstrap.prbep_replicates(of_model, labels, rows.row_numbers, options.replicates, options.seed, comm)
        for of_model in scores
    ]
    judged = []
    for path, model, own, places, share, draws in zip(paths, models, scores, placed, shares, drawn, strict=True):
        area = confidence.rocarea_interval(confidence.rocarea_estimate(places, labels, comm), options.level)
        prbep = confidence.prbep_interval(confidence.prbep_estimate(share, labels, comm), draws, options.level)
        found = compute_measures(model, own, labels, comm, options.threshold, options.k, area.value)
        more = extra_measures(model.info, options.k)
        intervals = {"rocarea": area, "prbep": prbep}
        if (k := options.k or Measure.parse(model.info.get("measure", "rocarea")).k) and k <= found["n"]:
            intervals |= _intervals_at(k, own, rows, options, comm)
        judged.append(ModelEvaluation(path, model, own, found, more, intervals))
    pairs = []
    for a, b in combinations(range(len(judged)), 2):
        area = confidence.rocarea_difference_interval(
            confidence.rocarea_estimate(placed[a] - placed[b], labels, comm), options.level
        )
        less = confidence.prbep_estimate(shares[a] - shares[b], labels, comm)
        prbep = confidence.prbep_difference_interval(less, drawn[a] - drawn[b], options.level)
        pairs.append(ModelComparison(paths[a], paths[b], {"rocarea": area, "prbep": prbep}))
    return rows, judged, pairs


def _intervals_at(
    k: int, scores: Floats, rows: EvaluatedRows, options: EvaluationOptions, comm: Communicator
) -> dict[str, Interval]:
    """Return the confidence intervals of precision@k and recall@k, by name. Collective."""
    share = ranking.top_k_shares(scores, k, comm)
    estimates = confidence.top_k_estimates(share, rows.labels, k, comm)
    draws = bootstrap.top_k_replicates(scores, rows.labels, rows.row_numbers, k, options.replicates, options.seed, comm)
    names = f"precision@{k}", f"recall@{k}"
    return {
        name: confidence.prbep_interval(estimate, drawn, options.level)
        for name, estimate, drawn in zip(names, estimates, draws, strict=True)
    }


def _scored(
    paths: Sequence[str],
    models: Sequence[Model],
    on: str,
    comm: Communicator,
    input_options: inputs.InputOptions,
) -> tuple[EvaluatedRows, list[Floats]]:
    """Return the rows that count, and the scores that each model gives them. Collective."""
    scores: list[Floats] = []
    rows: EvaluatedRows | None = None
    for _, consecutive in groupby(zip(paths, models, strict=True), lambda pair: _wanted(pair[1])):
        names, alike = zip(*consecutive, strict=True)
        found = scoring.score(alike, on, comm, input_options)
        judged = [found.counted_scores(k) for k in range(len(alike))]
        labels = judged[0][1]
        with comm.fail_together():
            if rows is not None and not np.array_equal(labels, rows.labels):
                raise InputError(
                    f"{on}: {names[0]} and {paths[0]} do not agree on which label is positive; evaluate them one by one"
                )
        rows = rows or EvaluatedRows(on, labels, found.first_row + np.flatnonzero(found.counted))
        scores += [of_model for of_model, _ in judged]
    assert rows is not None
    return rows, scores


def _wanted(model: Model) -> tuple[Any, ...]:
    """Return what models must have in common to share one reading of the rows."""
    info = model.info
    return model.p, info["zero_based"], info["label_map"], model.table, model.normalization.by_row, model.coded


def compute_measures(
    model: Model,
    scores: Floats,
    labels: NDArray[np.int8],
    comm: Communicator,
    threshold: float | None = None,
    k: int | None = None,
    rocarea: float | None = None,
) -> dict[str, Any]:
    """Return the measures and counts of a model, by the names of `distsms evaluate --json`. **Collective.**

    Parameters
    ----------
    model : Model
        The model.
    scores, labels : (n_local,) array
        Scores and labels of local rows that count.
    comm : Communicator
        The ranks that share the rows.
    threshold, k : optional
        By default the model's own.
    rocarea : float, optional
        The ROCArea of these scores, if it has been computed already.
    """
    threshold = model.threshold if threshold is None else threshold
    table = ranking.contingency(scores, labels, threshold, comm)
    n_pos, n_neg = table.tp + table.fn, table.fp + table.tn
    return {
        "n": n_pos + n_neg,
        "n_pos": n_pos,
        "n_neg": n_neg,
        "rocarea": ranking.rocarea(scores, labels, comm) if rocarea is None else rocarea,
        "prbep": ranking.top_k(scores, labels, n_pos, comm).recall,
        "average_precision": ranking.average_precision(scores, labels, comm),
        "threshold": threshold,
        **{name: getattr(table, name) for name in ("tp", "fp", "fn", "tn", "precision", "recall", "f1", "error_rate")},
        **{
            name: ranking.measure_value(name, scores, labels, threshold, comm) for name in extra_measures(model.info, k)
        },
    }


def extra_measures(info: dict[str, Any], k: int | None) -> list[str]:
    """Return the names of measures that not every model has: the F-beta it was trained for, and those at k. Local."""
    trained = Measure.parse(info.get("measure", "rocarea"))
    k = k or trained.k
    names = [f"precision@{k}", f"recall@{k}"] if k else []
    return names + [trained.name] * (trained.family == "f-beta" and trained.name != "f1")
