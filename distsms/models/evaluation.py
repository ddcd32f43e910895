"""Evaluate models on labelled rows: all measures, confidence intervals, and the difference between any two models."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from itertools import combinations, groupby
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from distsms.base.errors import InputError
from distsms.base.measures import GROUPED, HEAD, Condition, HeadMeasure, Measure
from distsms.base.typing import Floats, Hashes
from distsms.base.wording import option
from distsms.ingest.file_names import is_data_set
from distsms.metrics import (
    bootstrap,
    confidence,
    estimates,
    head_intervals,
    influence,
    operating_points,
    ranking,
    row_sample,
    threshold_rates,
)
from distsms.metrics.calibration import losses
from distsms.metrics.confidence import Interval
from distsms.metrics.contingency import Contingency
from distsms.metrics.row_weights import (
    describe_weights,
    differ,
    effective,
    effective_sizes,
    mass_of_classes,
    masses,
    require_equal,
)
from distsms.metrics.tied_scores import TiedScores, tied_scores
from distsms.metrics.within_groups import GroupAreas, gauc_difference_interval, gauc_interval, group_areas
from distsms.models import inputs, scoring
from distsms.models.model import Model, load
from distsms.parallel.communicator import Communicator
from distsms.shards import dataset


@dataclass(frozen=True)
class EvaluationOptions:
    """What is computed for every model. If `threshold` or `k` is None, the value stored with the model is taken."""

    level: float = 0.95  # confidence level of the intervals
    replicates: int = 1000  # number of bootstrap samples
    seed: int = 0
    threshold: float | None = None
    k: int | None = None
    at: tuple[Condition, ...] = ()  # conditions for which thresholds are found
    within_groups: str | None = None  # what groups count in GAUC; None: as in training, if the rows have groups


@dataclass(frozen=True)
class EvaluatedRows:
    """The rows of this rank that count, which are those whose weight is not 0."""

    path: str
    labels: NDArray[np.int8]  # (n_local,)
    row_numbers: NDArray[np.int64]  # (n_local,), global
    weights: Floats | None = None  # (n_local,); None on every rank if no rank has others than 0 and 1
    groups: Hashes | None = None  # (n_local,); None on every rank if they are not wanted, or not there


@dataclass(frozen=True)
class ModelEvaluation:
    """A model on these rows. The scores are those of this rank's rows; all else is the same on every rank."""

    path: str
    model: Model
    scores: Floats  # (n_local,)
    measures: dict[str, Any]  # measures, counts and share of training rows, as `distsms evaluate --json` names them
    extra_measures: list[str]  # the names of those measures that not every model has
    intervals: dict[str, Interval]  # of all measures but those at the threshold, by their names in `measures`

    def as_json(self, on: str, level: float) -> dict[str, Any]:
        """Return what `distsms evaluate --json` prints of a model."""
        intervals = {name: interval.as_json() for name, interval in self.intervals.items()}
        return {"model": self.path, "data": on, **self.measures, "level": level, "intervals": intervals}


@dataclass(frozen=True)
class ModelComparison:
    """How much better the first of two models is than the other."""

    first: str
    other: str
    differences: dict[str, Interval]  # of the measures that both models have intervals of, but for those at K

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
    watch: scoring.Watch | None = None,
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
    watch : callable, optional
        Sees the rows while they are read.

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
    takes. The cost is that of `ranking.placements`, `tied_scores`, `bootstrap.prbep_replicates`,
    `head_intervals.head_replicates` and `influence.row_influences`, each called once for each model.
    """
    with comm.fail_together():
        models = [load(path) for path in paths]
        fingerprint = dataset.read_manifest(on).fingerprint if is_data_set(on) else None
    grouped = _grouped_measures([model.info for model in models], options.within_groups)
    rows, scores = _scored(paths, models, on, comm, replace(input_options, groups=bool(grouped)), watch)
    if options.within_groups and rows.groups is None:
        raise InputError(
            f"{on}: {option('within_groups')} needs the groups of the rows; give {option('group', text='COLUMN')} for "
            f"a file, and make data sets with distsms shard {option('group', text='COLUMN')}",
            True,
        )
    if not any(comm.allgather(len(rows.labels))):
        raise InputError(f"{on}: {inputs.NO_ROWS}", True)
    _refuse_counts(options.k, options.at, rows.weights, comm)
    head = _head_measures([model.info for model in models], options.at, int(masses([rows.labels != 0], None, comm)[0]))
    evaluator = _Evaluator(rows, options, comm, head, [] if rows.groups is None else grouped, fingerprint)
    details = []
    for path, model, of_model in zip(paths, models, scores, strict=True):
        details.append(evaluator.evaluate(path, model, of_model))
        if len(models) == 1:
            details[-1].influences.clear()  # there is nothing to compare it with
    comparisons = [evaluator.compare(first, other) for first, other in combinations(details, 2)]
    return rows, [of_model.evaluation for of_model in details], comparisons


class _Details(NamedTuple):
    """The evaluation of a model, with what its differences from other models are computed from."""

    evaluation: ModelEvaluation
    placements: NDArray[np.int64]
    shares: Floats
    prbep_replicates: Floats
    areas: GroupAreas | None  # if rows have groups
    head: dict[str, float]  # the measures of the head of the ranking
    head_replicates: dict[str, Floats]
    influences: dict[str, influence.Influences]


class _Evaluator:
    """Evaluates models on the same rows. Creating it is **collective**, and so are its methods."""

    def __init__(
        self,
        rows: EvaluatedRows,
        options: EvaluationOptions,
        comm: Communicator,
        head: list[HeadMeasure],
        grouped: list[Measure],
        fingerprint: str | None,
    ) -> None:
        self._rows, self._options, self._comm = rows, options, comm
        self._head, self._grouped, self._fingerprint = head, grouped, fingerprint
        self._n_pos = mass_of_classes(rows.labels, rows.weights, comm)[0]
        self._scaled = effective(rows.weights, comm)
        self._size_pos, self._size_neg = effective_sizes(rows.labels, rows.weights, comm)

    def evaluate(self, path: str, model: Model, scores: Floats) -> _Details:
        """Compute all measures of a model from its scores (n_local,), and their intervals."""
        rows, options, comm = self._rows, self._options, self._comm
        labels, weights, level = rows.labels, rows.weights, options.level
        # 1) What is computed from the order of the rows, once for all measures.
        placements = ranking.placements(scores, labels, comm, weights)
        shares = ranking.top_k_shares(scores, self._n_pos, comm, weights)
        prbep_replicates = bootstrap.prbep_replicates(
            scores, labels, rows.row_numbers, options.replicates, options.seed, comm, weights
        )
        areas = None if rows.groups is None else group_areas(scores, labels, rows.groups, comm, weights)
        tied = tied_scores(scores, labels, self._scaled, comm)
        head, head_replicates = operating_points.head_values(self._head, tied, comm), dict[str, Floats]()
        # By itself, each measure that not every model shows: the replicates depend on what is computed with them.
        alone = [[measure] for measure in self._head if measure.name not in HEAD]
        for measures in [[measure for measure in self._head if measure.name in HEAD], *alone]:
            head_replicates |= head_intervals.head_replicates(
                measures, tied, scores, labels, rows.row_numbers, options.replicates, options.seed, comm, self._scaled
            )
        influences = influence.row_influences(tied, scores, labels, comm)
        # 2) The measures.
        area = confidence.rocarea_interval(estimates.rocarea_estimate(placements, labels, comm, weights), level)
        fingerprint = (model.info.get("data") or {}).get("fingerprint")
        same = self._fingerprint is not None and self._fingerprint == fingerprint
        values = compute_measures(
            model,
            scores,
            labels,
            comm,
            threshold=options.threshold,
            k=options.k,
            at=options.at,
            computed=Computed(tied, area.value, head, 1.0 if same else None),
            level=level,
            weights=weights,
        )
        extra = [name for name in extra_measures(model.info, options.k) if name in values]
        # 3) Their intervals.
        prbep = estimates.prbep_estimate(shares, labels, comm, weights)
        intervals = {"rocarea": area, "prbep": confidence.prbep_interval(prbep, prbep_replicates, level)}
        for name, of_rows in influences.items():
            spread = influence.influence_estimate(of_rows, labels, self._scaled, comm)
            intervals[name] = influence.influence_interval(spread, level)
        for measure in self._grouped:
            assert areas is not None and measure.within_groups
            gauc = areas.estimate(measure.within_groups, comm)
            intervals[measure.name] = gauc_interval(gauc, level)
            values |= {measure.name: gauc.value, "groups": int(comm.sum(np.array([len(areas.areas)]))[0])}
        for of_head in self._head:
            estimate = head_intervals.head_estimate(of_head, head[of_head.name], self._size_pos, self._size_neg)
            intervals[of_head.name] = head_intervals.head_interval(
                of_head, estimate, head_replicates[of_head.name], level
            )
        k = options.k or Measure.parse(model.info.get("measure", "rocarea")).k
        counts = [k] if k and f"precision@{k}" in values else []
        counts += [int(each.level) for each in options.at if each.quantity == "top" and not each.share]
        for count in dict.fromkeys(counts):
            if count <= values["n"]:
                intervals |= self._intervals_at(count, scores)
        if values["training_rows"]:
            intervals = {name: replace(interval, of=estimates.TRAINED) for name, interval in intervals.items()}
        evaluation = ModelEvaluation(path, model, scores, values, extra, intervals)
        return _Details(evaluation, placements, shares, prbep_replicates, areas, head, head_replicates, influences)

    def _intervals_at(self, k: int, scores: Floats) -> dict[str, Interval]:
        """Return the confidence intervals of precision@k and recall@k, by name."""
        rows, options, comm = self._rows, self._options, self._comm
        share = ranking.top_k_shares(scores, k, comm)
        of_both = estimates.top_k_estimates(share, rows.labels, k, comm)
        replicates = bootstrap.top_k_replicates(
            scores, rows.labels, rows.row_numbers, k, options.replicates, options.seed, comm
        )
        names = f"precision@{k}", f"recall@{k}"
        return {
            name: confidence.prbep_interval(estimate, of_measure, options.level)
            for name, estimate, of_measure in zip(names, of_both, replicates, strict=True)
        }

    def compare(self, first: _Details, other: _Details) -> ModelComparison:
        """Return by how much the first model is better."""
        comm, level = self._comm, self._options.level
        labels, weights = self._rows.labels, self._rows.weights
        area = estimates.rocarea_estimate(first.placements - other.placements, labels, comm, weights)
        prbep = estimates.prbep_estimate(first.shares - other.shares, labels, comm, weights)
        replicates = first.prbep_replicates - other.prbep_replicates
        differences = {
            "rocarea": confidence.rocarea_difference_interval(area, level),
            "prbep": confidence.prbep_difference_interval(prbep, replicates, level),
        }
        for name, of_rows in first.influences.items():
            spread = influence.influence_estimate(of_rows.less(other.influences[name]), labels, self._scaled, comm)
            differences[name] = influence.influence_difference_interval(spread, level)
        for measure in self._grouped:
            assert first.areas is not None and other.areas is not None and measure.within_groups
            areas = first.areas._replace(areas=first.areas.areas - other.areas.areas)
            gauc = areas.estimate(measure.within_groups, comm)
            differences[measure.name] = gauc_difference_interval(gauc, level)
        for of_head in self._head:
            name = of_head.name
            estimate = head_intervals.difference_estimate(
                first.head[name] - other.head[name], self._size_pos, self._size_neg
            )
            replicates = first.head_replicates[name] - other.head_replicates[name]
            differences[name] = confidence.prbep_difference_interval(estimate, replicates, level)
        for evaluation in (other.evaluation, first.evaluation):
            if part := evaluation.measures["training_rows"]:
                why = f"{row_sample.describe_part(part).lower()} were training rows of {evaluation.path}"
                differences = {
                    name: replace(interval, why=why, of=estimates.TRAINED) for name, interval in differences.items()
                }
        return ModelComparison(first.evaluation.path, other.evaluation.path, differences)


def _scored(
    paths: Sequence[str],
    models: Sequence[Model],
    on: str,
    comm: Communicator,
    input_options: inputs.InputOptions,
    watch: scoring.Watch | None,
) -> tuple[EvaluatedRows, list[Floats]]:
    """Return the rows that count, and the scores that each model gives them. Collective."""
    scores, columns = list[Floats](), list[Any]()
    rows: EvaluatedRows | None = None
    for _, consecutive in groupby(zip(paths, models, strict=True), lambda pair: _reading(pair[1])):
        names, alike = zip(*consecutive, strict=True)
        columns.append((alike[0].table, alike[0].p_original, alike[0].coded.sequences))
        quiet = input_options.quiet or columns[-1] in columns[:-1]  # the warnings would be the same
        scored = scoring.score(alike, on, comm, replace(input_options, quiet=quiet), watch)
        counted = [scored.counted_scores(k) for k in range(len(alike))]
        _, labels, weights = counted[0]
        with comm.fail_together():
            if rows is not None and not np.array_equal(labels, rows.labels):
                raise InputError(
                    f"{on}: {names[0]} and {paths[0]} do not agree on which label is positive; evaluate them one by one"
                )
        numbers = scored.first_row + np.flatnonzero(scored.counted)
        rows = rows or EvaluatedRows(on, labels, numbers, weights, scored.counted_groups)
        scores += [of_model for of_model, _, _ in counted]
    assert rows is not None
    return rows, scores


def _reading(model: Model) -> tuple[Any, ...]:
    """Return what models must have in common to share one reading of the rows."""
    info = model.info
    return model.p, info["zero_based"], info["label_map"], model.table, model.normalization.by_row, model.coded


def _grouped_measures(infos: Sequence[dict[str, Any]], within: str | None) -> list[Measure]:
    """Return the measures within groups: GAUC that counts groups as `within` says, or else those trained for."""
    if within:
        return [Measure.parse("rocarea").within(within)]
    named = [str(info.get("measure")) for info in infos]
    return [Measure.parse(name) for name in GROUPED if name in named]


def _head_measures(infos: Sequence[dict[str, Any]], at: Sequence[Condition], n: float) -> list[HeadMeasure]:
    """Return the measures of the head: those shown of every model, those trained for, and those of conditions."""
    names = [*HEAD, *(str(info.get("measure")) for info in infos)]
    named = [measure for name in names if (measure := HeadMeasure.parse(name))]
    of_conditions = [measure for condition in at for measure in condition.measures(n)]
    return list({measure.name: measure for measure in [*named, *of_conditions]}.values())


class Computed(NamedTuple):
    """What has been computed already from the scores of a model."""

    tied: TiedScores
    rocarea: float
    head: dict[str, float]  # the measures of the head of the ranking, by name
    training_rows: float | None = None  # the share of the rows that are training rows


def compute_measures(
    model: Model,
    scores: Floats,
    labels: NDArray[np.int8],
    comm: Communicator,
    threshold: float | None = None,
    k: int | None = None,
    at: Sequence[Condition] = (),
    computed: Computed | None = None,
    level: float = confidence.LEVEL,
    weights: Floats | None = None,
) -> dict[str, Any]:
    """Return the measures and counts of a model, by the names of `distsms evaluate --json`. **Collective.**

    Parameters
    ----------
    scores, labels, weights : (n_local,) array
        Of local rows that count. With weights, tp, fp, fn and tn are sums of weights; measures at a k that only the
        model names are left out if the weights differ, since they count rows.
    threshold, k : optional
        By default those of the model.
    at : sequence of Condition, optional
        Conditions for which thresholds are found.
    computed : Computed, optional
        What has been computed of these scores already.
    level : float, optional
        The level of the intervals of the rates at these thresholds, and at the threshold of the model.

    Raises
    ------
    InputError
        On all ranks, if k or a condition counts rows, and the weights differ.
    """
    _refuse_counts(k, at, weights, comm)
    threshold = model.threshold if threshold is None else threshold
    rates = threshold_rates.rates_at(threshold, level, scores, labels, comm, weights)
    table = Contingency(**{name: rates[name] for name in ("tp", "fp", "fn", "tn")})
    n_pos, n_neg = map(int, masses((labels > 0, labels < 0), None, comm))
    extra = extra_measures(model.info, k)
    if k is None and differ(weights, comm):
        extra = [name for name in extra if "@" not in name or name.startswith("pauc@")]
    tied = tied_scores(scores, labels, effective(weights, comm), comm) if computed is None else computed.tied
    head = _head_measures([model.info], at, n_pos + n_neg)
    points = threshold_rates.rates_of_conditions(at, tied, level, scores, labels, comm, weights)
    training_rows = None if computed is None else computed.training_rows
    if training_rows is None:
        training_rows = row_sample.share_of_training_rows(model.info.get("row_sample"), scores, labels, comm)
    if training_rows:
        for of_rates in (rates, *points.values()):
            of_rates["intervals"] = {
                name: interval | {"of": estimates.TRAINED} for name, interval in of_rates["intervals"].items()
            }
    return {
        "n": n_pos + n_neg,
        "n_pos": n_pos,
        "n_neg": n_neg,
        **({} if weights is None else {"weights": describe_weights(labels, weights, comm)}),
        "rocarea": ranking.rocarea(scores, labels, comm, weights) if computed is None else computed.rocarea,
        "prbep": ranking.prbep(scores, labels, comm, weights),
        "average_precision": ranking.mean_precision(tied, comm),
        "threshold": threshold,
        **{name: value for name, value in rates.items() if name not in ("threshold", "intervals")},
        "f1": table.f1,
        "error_rate": table.error_rate,
        "intervals_at_threshold": rates["intervals"],
        **{name: ranking.measure_value(name, scores, labels, threshold, comm, weights) for name in extra},
        **(losses(model.probabilities(scores), labels, comm, weights) if model.curve else {}),
        **(computed.head if computed else operating_points.head_values(head, tied, comm)),
        "bedroc": operating_points.bedroc(tied, comm),
        **({"at": points} if at else {}),
        "training_rows": training_rows,
    }


def _refuse_counts(k: int | None, at: Sequence[Condition], weights: Floats | None, comm: Communicator) -> None:
    """Raise InputError if something is asked for that counts rows, and the rows have different weights. Collective."""
    counts = [f"precision@{k}"] if k else []
    for name in counts + [str(each) for each in at if each.quantity == "top" and not each.share]:
        require_equal(weights, name, comm)


def extra_measures(info: dict[str, Any], k: int | None) -> list[str]:
    """Return the names of measures that not every model has: the F-beta it was trained for, and those at k. Local."""
    trained = Measure.parse(info.get("measure", "rocarea"))
    k = k or trained.k
    names = [f"precision@{k}", f"recall@{k}"] if k else []
    return names + [trained.name] * (trained.beta is not None and trained.name != "f1")
