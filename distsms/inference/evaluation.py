"""What models are worth on labelled rows: every measure, intervals, and the differences of any two models."""

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
    """What is to be told of every model; threshold and k None: the model's own."""

    level: float = 0.95  # of the intervals
    replicates: int = 1000  # of the bootstrap
    seed: int = 0
    threshold: float | None = None
    k: int | None = None


@dataclass(frozen=True)
class Rows:
    """This rank's rows that count."""

    path: str
    labels: NDArray[np.int8]  # (n_local,)
    numbers: NDArray[np.int64]  # (n_local,) their global numbers


@dataclass(frozen=True)
class ModelEvaluation:
    """A model on these rows: its scores are this rank's, all else is the same on every rank."""

    path: str
    model: Model
    scores: Floats  # (n_local,)
    found: dict[str, Any]  # measures and counts by the names of `distsms evaluate --json`
    more: list[str]  # those measures that not every model is shown with
    sure: dict[str, Interval]  # of "rocarea" and "prbep"

    def as_json(self, on: str, level: float) -> dict[str, Any]:
        """What `distsms evaluate --json` prints of a model."""
        shown = {name: one.as_json() for name, one in self.sure.items()}
        return {"model": self.path, "data": on, **self.found, "level": level, "intervals": shown}


@dataclass(frozen=True)
class Pair:
    """How much better the first of two models is."""

    first: str
    other: str
    differences: dict[str, Interval]  # of "rocarea" and "prbep"

    def as_json(self) -> dict[str, Any]:
        """What `distsms evaluate --json` prints of a pair."""
        told = {
            name: {**one.as_json(), "verdict": confidence.verdict(one, self.first, self.other)}
            for name, one in self.differences.items()
        }
        return {"first": self.first, "other": self.other, **told}


def judge(
    paths: Sequence[str],
    on: str,
    asked: EvaluationOptions,
    comm: Communicator,
    how: inputs.InputOptions = inputs.AS_TRAINED,
) -> tuple[Rows, list[ModelEvaluation], list[Pair]]:
    """Read models and rows, and measure. Collective.

    The rows are read once for models in a row that want the same columns; memory: see `scoring.score`. Cost: see
    `measures.placements` and `bootstrap.prbep`, each once for a model.
    Raises InputError, also where no row counts, or models disagree on who is positive.
    """
    with comm.together():
        models = [load(path) for path in paths]
    rows, scores = _scored(paths, models, on, comm, how)
    if not any(comm.allgather(len(rows.labels))):
        raise InputError(f"{on}: {inputs.NO_ROWS}", True)
    labels, n_pos = rows.labels, int(comm.sum(np.array([np.count_nonzero(rows.labels > 0)]))[0])
    placed = [ranking.placements(one, labels, comm) for one in scores]
    shares = [ranking.among(one, n_pos, comm) for one in scores]
    drawn = [bootstrap.prbep(one, labels, rows.numbers, asked.replicates, asked.seed, comm) for one in scores]
    judged = []
    for path, model, own, places, share, draws in zip(paths, models, scores, placed, shares, drawn, strict=True):
        area = confidence.of_rocarea(confidence.delong(places, labels, comm), asked.level)
        prbep = confidence.of_prbep(confidence.recall(share, labels, comm), draws, asked.level)
        found = measured(model, own, labels, comm, asked.threshold, asked.k, area.value)
        more = more_measures(model.info, asked.k)
        judged.append(ModelEvaluation(path, model, own, found, more, {"rocarea": area, "prbep": prbep}))
    pairs = []
    for a, b in combinations(range(len(judged)), 2):
        area = confidence.of_rocarea_difference(confidence.delong(placed[a] - placed[b], labels, comm), asked.level)
        less = confidence.recall(shares[a] - shares[b], labels, comm)
        prbep = confidence.of_prbep_difference(less, drawn[a] - drawn[b], asked.level)
        pairs.append(Pair(paths[a], paths[b], {"rocarea": area, "prbep": prbep}))
    return rows, judged, pairs


def _scored(
    paths: Sequence[str],
    models: Sequence[Model],
    on: str,
    comm: Communicator,
    how: inputs.InputOptions,
) -> tuple[Rows, list[Floats]]:
    """The rows that count, and each model's scores of them. Collective."""
    scores: list[Floats] = []
    rows: Rows | None = None
    for _, some in groupby(zip(paths, models, strict=True), lambda one: _wanted(one[1])):
        names, alike = zip(*some, strict=True)
        found = scoring.score(alike, on, comm, how)
        judged = [found.judged(k) for k in range(len(alike))]
        labels = judged[0][1]
        with comm.together():
            if rows is not None and not np.array_equal(labels, rows.labels):
                raise InputError(f"{on}: what {names[0]} calls positive is not what {paths[0]} does")
        rows = rows or Rows(on, labels, found.first_row + np.flatnonzero(found.counted))
        scores += [one for one, _ in judged]
    assert rows is not None
    return rows, scores


def _wanted(model: Model) -> tuple[Any, ...]:
    """How a model wants to see rows."""
    return model.p, model.info["zero_based"], model.info["label_map"], model.table, model.normalization.by_row


def measured(
    model: Model,
    scores: Floats,
    labels: NDArray[np.int8],
    comm: Communicator,
    threshold: float | None = None,
    k: int | None = None,
    rocarea: float | None = None,
) -> dict[str, Any]:
    """Measures and counts of a model, by the names of `distsms evaluate --json`. Collective.

    scores, labels : (n_local,), of rows that count.  threshold, k : None takes the model's.  rocarea : if it is known.
    """
    threshold = model.threshold if threshold is None else threshold
    table = ranking.contingency(scores, labels, threshold, comm)
    n_pos, n_neg = table.tp + table.fn, table.fp + table.tn
    return {
        "n": n_pos + n_neg,
        "n_pos": n_pos,
        "n_neg": n_neg,
        "rocarea": ranking.rocarea(scores, labels, comm) if rocarea is None else rocarea,
        "prbep": ranking.at_k(scores, labels, n_pos, comm).recall,
        "average_precision": ranking.average_precision(scores, labels, comm),
        "threshold": threshold,
        **{name: getattr(table, name) for name in ("tp", "fp", "fn", "tn", "precision", "recall", "f1", "error_rate")},
        **{name: ranking.value(name, scores, labels, threshold, comm) for name in more_measures(model.info, k)},
    }


def more_measures(info: dict[str, Any], k: int | None) -> list[str]:
    """The measures besides those of all models: what the model is for, and the two at k. Local."""
    trained = Measure.parse(info.get("measure", "rocarea"))
    k = k or trained.k
    names = [f"precision@{k}", f"recall@{k}"] if k else []
    return names + [trained.name] * (trained.family == "f-beta" and trained.name != "f1")
