"""Measure models by the scores of labelled rows: all measures, their intervals, and the differences of any two."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass, replace
from itertools import combinations
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from distsms.base.choices import check_fields
from distsms.base.errors import InputError
from distsms.base.measures import GROUPED, HEAD, Condition, HeadMeasure, Measure
from distsms.base.scored import Scored
from distsms.base.typing import Floats
from distsms.base.wording import option
from distsms.metrics import (
    bootstrap,
    confidence,
    head_intervals,
    influence,
    operating_points,
    ranking,
    row_sample,
    row_weights,
)
from distsms.metrics.calibration import losses
from distsms.metrics.confidence import LEVEL, Interval
from distsms.metrics.operating_points import Contingency
from distsms.metrics.sampled import Sampled, sampled
from distsms.metrics.tied_scores import TiedScores, tied_scores
from distsms.metrics.within_groups import group_areas
from distsms.models.model import Model


@dataclass(frozen=True)
class EvaluationOptions:
    """What is computed for every model. If `threshold` or `k` is None, the value stored with the model is taken."""

    intervals: bool = True  # whether measures of the ranking get intervals; rates at thresholds always have them
    level: float = LEVEL  # confidence level of the intervals
    replicates: int = 1000  # number of bootstrap samples
    seed: int = 0
    threshold: float | None = None
    k: int | None = None
    at: tuple[Condition, ...] = ()  # conditions for which thresholds are found
    within_groups: str | None = None  # what groups count in GAUC; None: as in training, if the rows have groups

    def __post_init__(self) -> None:
        check_fields(self, {"k": 1, "replicates": 0, "seed": 0}, replicates="bootstrap")
        if not 0 < self.level < 1:
            raise InputError(f"{option('level')}: a confidence level is between 0 and 1, and {self.level} is not")
        if self.threshold is not None and math.isnan(self.threshold):
            raise InputError(f"{option('threshold')}: NaN is no threshold")


class EvaluatedRows(NamedTuple):
    """Which rows of this rank count."""

    row_numbers: NDArray[np.int64]  # (n_local,), global
    fingerprint: str | None = None  # of the data set, if they are one


@dataclass(frozen=True)
class ModelEvaluation:
    """A model on these rows. The scores are those of this rank's rows; all else is the same on every rank."""

    path: str  # the file of the model, or what it is called
    model: Model
    scored: Scored
    measures: dict[str, Any]  # measures, counts and share of training rows, as `distsms evaluate --json` names them
    extra_measures: list[str]  # the names of those measures that not every model has
    intervals: dict[str, Interval]  # of all measures but those at the threshold, by their names in `measures`

    def as_json(self, on: str, level: float) -> dict[str, Any]:
        """Return what `distsms evaluate --json` prints of a model."""
        intervals = {name: interval.as_json() for name, interval in self.intervals.items()}
        return {"model": self.path, "data": on, **self.measures, "level": level, "intervals": intervals}

    @property
    def of(self) -> str:
        """What the intervals are about."""
        return confidence.TRAINED if self.measures["training_rows"] else confidence.MODEL


@dataclass(frozen=True)
class ModelComparison:
    """How much better the first of two models is than the other."""

    first: str
    other: str
    differences: dict[str, Interval]  # of the measures that both models have intervals of, but for those at K

    def verdict(self, name: str) -> str:
        """Return whether one of the models is better by a measure, in words."""
        return confidence.verdict(self.differences[name], self.first, self.other)

    def as_json(self) -> dict[str, Any]:
        """Return what `distsms evaluate --json` prints of a pair of models."""
        each = {name: {**less.as_json(), "verdict": self.verdict(name)} for name, less in self.differences.items()}
        return {"first": self.first, "other": self.other, **each}


def evaluate(
    models: Sequence[tuple[str, Model, Scored]], rows: EvaluatedRows, options: EvaluationOptions
) -> tuple[list[ModelEvaluation], list[ModelComparison]]:
    """Measure models, called by names, by the same rows; compare each pair. **Collective.**"""
    counts, scored = [f"precision@{options.k}"] if options.k else [], models[0][2]
    for name in counts + [str(each) for each in options.at if each.quantity == "top" and not each.share]:
        row_weights.require_equal(scored.weights, name, scored.comm)
    evaluator = _Evaluator([model for _, model, _ in models], scored, rows, options)
    details = [evaluator.evaluate(*each) for each in models]
    comparisons = [evaluator.compare(first, other) for first, other in combinations(details, 2)]
    return [of_model.evaluation for of_model in details], comparisons


class _Details(NamedTuple):
    """The evaluation of a model, with what its differences from other models are computed from."""

    evaluation: ModelEvaluation
    sampled: dict[str, Sampled]  # all measures that have intervals, but for those at K


class _Evaluator:
    """Evaluates models on the same rows. Creating it is **collective**, and so are its methods."""

    def __init__(
        self, models: Sequence[Model], scored: Scored, rows: EvaluatedRows, options: EvaluationOptions
    ) -> None:
        infos = [model.info for model in models]
        self._fingerprint, self._options, self._comm = rows.fingerprint, options, scored.comm
        self._draws = bootstrap.Draws(rows.row_numbers, options.replicates, options.seed)
        self._counts = [int(count) for count in row_weights.masses(scored.classes, None, scored.comm)]
        # The measures of the head: those shown of every model, those trained for, and those of conditions.
        names = [*HEAD, *(str(info.get("measure")) for info in infos)]
        head = [measure for name in names if (measure := HeadMeasure.parse(name))]
        head += [measure for condition in options.at for measure in condition.measures(sum(self._counts))]
        self._head = list({measure.name: measure for measure in head}.values())
        self._grouped = [] if scored.groups is None else grouped_measures(infos, options.within_groups)
        self._sizes = row_weights.effective_sizes(scored)

    def evaluate(self, path: str, model: Model, scored: Scored) -> _Details:
        """Compute all measures of a model, and their intervals."""
        options, comm, scaled = self._options, self._comm, row_weights.effective(scored)
        # 1) What is computed from the order of the rows, once for all measures.
        measured = {"rocarea": sampled("rocarea", scored, self._draws)}
        tied = tied_scores(scaled)
        head = {measure.name: operating_points.head_value(measure, tied, comm) for measure in self._head}
        # 2) The measures.
        values = self._measures(model, scored, tied, measured["rocarea"].estimate().value, head)
        grouped = dict[str, Sampled]()
        if self._grouped:
            areas = group_areas(scored)
            grouped = {measure.name: Sampled(measure.name, areas, scored) for measure in self._grouped}
            values |= {name: each.estimate().value for name, each in grouped.items()}
            values["groups"] = int(comm.sum(np.array([len(areas.areas)]))[0])
        extra = [name for name in extra_measures(model.info, options.k) if name in values]
        evaluation = ModelEvaluation(path, model, scored, values, extra, {})
        if not options.intervals:
            return _Details(evaluation, {})
        # 3) The intervals. Replicates of the head depend on what is computed with them: so each measure that not every
        # model shows is computed by itself.
        replicates = dict[str, Floats]()
        alone = [[measure] for measure in self._head if measure.name not in HEAD]
        for together in [[measure for measure in self._head if measure.name in HEAD], *alone]:
            replicates |= head_intervals.head_replicates(together, tied, scaled, self._draws)
        measured["prbep"] = sampled("prbep", scored, self._draws)
        for name, of_rows in influence.row_influences(tied, scored).items():
            measured[name] = Sampled(name, of_rows, scaled)
        measured |= grouped
        for each in self._head:
            drawn = replicates[each.name]
            measured[each.name] = Sampled(each.name, head[each.name], scored, drawn, each, self._sizes)
        intervals = {name: each.interval(options.level) for name, each in measured.items()} | self._at_k(evaluation)
        if values["training_rows"]:
            intervals = {name: replace(interval, of=confidence.TRAINED) for name, interval in intervals.items()}
        evaluation.intervals.update(intervals)
        return _Details(evaluation, measured)

    def _measures(
        self, model: Model, scored: Scored, tied: TiedScores, rocarea: float, head: dict[str, float]
    ) -> dict[str, Any]:
        """Return the measures and counts of a model, by the names of `distsms evaluate --json`."""
        options, weights, comm = self._options, scored.weights, self._comm
        threshold = model.threshold if options.threshold is None else options.threshold
        rates = head_intervals.rates_at(threshold, options.level, scored)
        table = Contingency(**{name: rates[name] for name in ("tp", "fp", "fn", "tn")})
        n_pos, n_neg = self._counts
        extra = extra_measures(model.info, options.k)
        if options.k is None and row_weights.differ(weights, comm):
            extra = [name for name in extra if "@" not in name or name.startswith("pauc@")]
        at = {str(each): operating_points.operating_point(each, tied, comm).threshold for each in options.at}
        points = {text: head_intervals.rates_at(score, options.level, scored) for text, score in at.items()}
        training_rows = 1.0
        if self._fingerprint is None or self._fingerprint != (model.info.get("data") or {}).get("fingerprint"):
            training_rows = row_sample.share_of_training_rows(model.info.get("row_sample"), scored)
        if training_rows:
            for of_rates in (rates, *points.values()):
                for interval in of_rates["intervals"].values():
                    interval["of"] = confidence.TRAINED
        return {
            "n": n_pos + n_neg,
            "n_pos": n_pos,
            "n_neg": n_neg,
            **({} if weights is None else {"weights": row_weights.describe_weights(scored)}),
            "rocarea": rocarea,
            "prbep": ranking.prbep(scored),
            "average_precision": ranking.mean_precision(tied, comm),
            "threshold": threshold,
            **{name: value for name, value in rates.items() if name not in ("threshold", "intervals")},
            "f1": table.f(1.0),
            "error_rate": table.error_rate,
            "intervals_at_threshold": rates["intervals"],
            **{name: ranking.measure_value(name, scored, threshold) for name in extra},
            **(losses(replace(scored, scores=model.probabilities(scored.scores))) if model.curve else {}),
            **head,
            "bedroc": operating_points.bedroc(tied, comm),
            **({"at": points} if options.at else {}),
            "training_rows": training_rows,
        }

    def _at_k(self, evaluation: ModelEvaluation) -> dict[str, Interval]:
        """Return the confidence intervals of precision and recall at each K, by name."""
        intervals, alike = dict[str, Interval](), replace(evaluation.scored, weights=None)
        k = self._options.k or Measure.parse(evaluation.model.info.get("measure", "rocarea")).k
        counts = [k] if k and f"precision@{k}" in evaluation.measures else []
        counts += [int(each.level) for each in self._options.at if each.quantity == "top" and not each.share]
        for k in dict.fromkeys(count for count in counts if count <= evaluation.measures["n"]):
            of_both = confidence.top_k_estimates(ranking.top_k_shares(alike, k), k, alike)
            replicates = bootstrap.top_k_replicates(alike, self._draws, k)
            for name, estimate, drawn in zip(("precision", "recall"), of_both, replicates, strict=True):
                intervals[f"{name}@{k}"] = confidence.prbep_interval(estimate, drawn, self._options.level)
        return intervals

    def compare(self, first: _Details, other: _Details) -> ModelComparison:
        """Return by how much the first model is better."""
        level = self._options.level
        differences = {name: each.less(other.sampled[name]).interval(level) for name, each in first.sampled.items()}
        for evaluation in (other.evaluation, first.evaluation):
            if part := evaluation.measures["training_rows"]:
                why = f"{row_sample.describe_part(part).lower()} were training rows of {evaluation.path}"
                differences = {
                    name: replace(interval, why=why, of=confidence.TRAINED) for name, interval in differences.items()
                }
        return ModelComparison(first.evaluation.path, other.evaluation.path, differences)


def grouped_measures(infos: Sequence[dict[str, Any]], within: str | None) -> list[Measure]:
    """Return the measures within groups: GAUC that counts groups as `within` says, or else those trained for."""
    if within:
        return [Measure.parse("rocarea").within(within)]
    named = [str(info.get("measure")) for info in infos]
    return [Measure.parse(name) for name in GROUPED if name in named]


def extra_measures(info: dict[str, Any], k: int | None) -> list[str]:
    """Return the names of measures that not every model has: the F-beta it was trained for, and those at k. Local."""
    trained = Measure.parse(info.get("measure", "rocarea"))
    k = k or trained.k
    names = [f"precision@{k}", f"recall@{k}"] if k else []
    return names + [trained.name] * (trained.beta is not None and trained.name != "f1")
