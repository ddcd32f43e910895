"""Evaluate models on labelled rows: all measures, confidence intervals, and the difference between any two models."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from itertools import combinations, groupby
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from distsms.data.file_names import is_data_set
from distsms.data.shards import dataset
from distsms.errors import InputError
from distsms.inference import inputs, scoring
from distsms.inference.model import Model, load
from distsms.measures import GROUPED, HEAD, Condition, HeadMeasure, Measure
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
from distsms.metrics.within_groups import gauc_difference_interval, gauc_interval, group_areas
from distsms.parallel.communicator import Communicator
from distsms.utils.typing import Floats, Hashes


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
            f"{on}: --within-groups needs the groups of the rows; give --group COLUMN for a file, and make data sets "
            "with distsms shard --group COLUMN",
            True,
        )
    grouped = [] if rows.groups is None else grouped
    if not any(comm.allgather(len(rows.labels))):
        raise InputError(f"{on}: {inputs.NO_ROWS}", True)
    labels, weights = rows.labels, rows.weights
    _refuse_counts(options.k, options.at, weights, comm)
    of_pos, scaled = mass_of_classes(labels, weights, comm)[0], effective(weights, comm)
    sizes = effective_sizes(labels, weights, comm)
    placed = [ranking.placements(of_model, labels, comm, weights) for of_model in scores]
    shares = [ranking.top_k_shares(of_model, of_pos, comm, weights) for of_model in scores]
    drawing = labels, rows.row_numbers, options.replicates, options.seed, comm
    drawn = [bootstrap.prbep_replicates(of_model, *drawing, weights) for of_model in scores]
    n = int(masses([labels != 0], None, comm)[0])
    of_head = _head_measures([model.info for model in models], options.at, n)
    heads, head_draws = [], list[dict[str, Floats]]()
    by_row, judged = [], []
    within = [
        None if rows.groups is None else group_areas(of_model, labels, rows.groups, comm, weights)
        for of_model in scores
    ]
    of_models = zip(paths, models, scores, placed, shares, drawn, within, strict=True)
    for path, model, own, places, share, draws, areas in of_models:
        area = confidence.rocarea_interval(estimates.rocarea_estimate(places, labels, comm, weights), options.level)
        of_share = estimates.prbep_estimate(share, labels, comm, weights)
        prbep = confidence.prbep_interval(of_share, draws, options.level)
        tied = tied_scores(own, labels, scaled, comm)
        heads.append(operating_points.head_values(of_head, tied, comm))
        # By itself, each measure that not every model shows: the replicates depend on what is computed with them.
        alone = [[measure] for measure in of_head if measure.name not in HEAD]
        head_draws.append({})
        for measures in [[measure for measure in of_head if measure.name in HEAD], *alone]:
            head_draws[-1] |= head_intervals.head_replicates(measures, tied, own, *drawing, scaled)
        by_row.append(influence.row_influences(tied, own, labels, comm))
        same = fingerprint is not None and fingerprint == (model.info.get("data") or {}).get("fingerprint")
        known = Known(tied, area.value, heads[-1], 1.0 if same else None)
        found = compute_measures(
            model, own, labels, comm, options.threshold, options.k, options.at, known, options.level, weights
        )
        more = [name for name in extra_measures(model.info, options.k) if name in found]
        intervals = {"rocarea": area, "prbep": prbep}
        for name, of_rows in by_row[-1].items():
            spread = influence.influence_estimate(of_rows, labels, scaled, comm)
            intervals[name] = influence.influence_interval(spread, options.level)
        if len(models) == 1:
            by_row.clear()  # there is nothing to compare it with
        for each_of in grouped:
            assert areas is not None and each_of.within_groups
            of_groups = areas.estimate(each_of.within_groups, comm)
            intervals[each_of.name] = gauc_interval(of_groups, options.level)
            found |= {each_of.name: of_groups.value, "groups": int(comm.sum(np.array([len(areas.areas)]))[0])}
        intervals |= {
            each.name: head_intervals.head_interval(
                each,
                head_intervals.head_estimate(each, heads[-1][each.name], *sizes),
                head_draws[-1][each.name],
                options.level,
            )
            for each in of_head
        }
        k = options.k or Measure.parse(model.info.get("measure", "rocarea")).k
        counts = [k] if k and f"precision@{k}" in found else []
        counts += [int(each.level) for each in options.at if each.quantity == "top" and not each.share]
        for count in dict.fromkeys(counts):
            if count <= found["n"]:
                intervals |= _intervals_at(count, own, rows, options, comm)
        if found["training_rows"]:
            intervals = {name: replace(interval, of=estimates.TRAINED) for name, interval in intervals.items()}
        judged.append(ModelEvaluation(path, model, own, found, more, intervals))
    pairs = []
    for a, b in combinations(range(len(judged)), 2):
        area = confidence.rocarea_difference_interval(
            estimates.rocarea_estimate(placed[a] - placed[b], labels, comm, weights), options.level
        )
        less = estimates.prbep_estimate(shares[a] - shares[b], labels, comm, weights)
        prbep = confidence.prbep_difference_interval(less, drawn[a] - drawn[b], options.level)
        differences = {"rocarea": area, "prbep": prbep}
        for name, of_rows in by_row[a].items():
            spread = influence.influence_estimate(of_rows.less(by_row[b][name]), labels, scaled, comm)
            differences[name] = influence.influence_difference_interval(spread, options.level)
        for each_of in grouped:
            first, other = within[a], within[b]
            assert first is not None and other is not None and each_of.within_groups
            less = first._replace(areas=first.areas - other.areas).estimate(each_of.within_groups, comm)
            differences[each_of.name] = gauc_difference_interval(less, options.level)
        for each in of_head:
            less = head_intervals.difference_estimate(heads[a][each.name] - heads[b][each.name], *sizes)
            replicates = head_draws[a][each.name] - head_draws[b][each.name]
            differences[each.name] = confidence.prbep_difference_interval(less, replicates, options.level)
        for judge in (judged[b], judged[a]):
            if part := judge.measures["training_rows"]:
                why = f"{row_sample.describe_part(part).lower()} were training rows of {judge.path}"
                differences = {
                    name: replace(interval, why=why, of=estimates.TRAINED) for name, interval in differences.items()
                }
        pairs.append(ModelComparison(paths[a], paths[b], differences))
    return rows, judged, pairs


def _intervals_at(
    k: int, scores: Floats, rows: EvaluatedRows, options: EvaluationOptions, comm: Communicator
) -> dict[str, Interval]:
    """Return the confidence intervals of precision@k and recall@k, by name. Collective."""
    share = ranking.top_k_shares(scores, k, comm)
    of_both = estimates.top_k_estimates(share, rows.labels, k, comm)
    draws = bootstrap.top_k_replicates(scores, rows.labels, rows.row_numbers, k, options.replicates, options.seed, comm)
    names = f"precision@{k}", f"recall@{k}"
    return {
        name: confidence.prbep_interval(estimate, drawn, options.level)
        for name, estimate, drawn in zip(names, of_both, draws, strict=True)
    }


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
    for _, consecutive in groupby(zip(paths, models, strict=True), lambda pair: _wanted(pair[1])):
        names, alike = zip(*consecutive, strict=True)
        columns.append((alike[0].table, alike[0].p_original, alike[0].coded.sequences))
        quiet = input_options.quiet or columns[-1] in columns[:-1]  # the warnings would be the same
        found = scoring.score(alike, on, comm, replace(input_options, quiet=quiet), watch)
        judged = [found.counted_scores(k) for k in range(len(alike))]
        _, labels, weights = judged[0]
        with comm.fail_together():
            if rows is not None and not np.array_equal(labels, rows.labels):
                raise InputError(
                    f"{on}: {names[0]} and {paths[0]} do not agree on which label is positive; evaluate them one by one"
                )
        numbers = found.first_row + np.flatnonzero(found.counted)
        rows = rows or EvaluatedRows(on, labels, numbers, weights, found.counted_groups)
        scores += [of_model for of_model, _, _ in judged]
    assert rows is not None
    return rows, scores


def _wanted(model: Model) -> tuple[Any, ...]:
    """Return what models must have in common to share one reading of the rows."""
    info = model.info
    return model.p, info["zero_based"], info["label_map"], model.table, model.normalization.by_row, model.coded


def _grouped_measures(infos: Sequence[dict[str, Any]], asked: str | None) -> list[Measure]:
    """Return the measures within groups: that which is asked for, or else those trained for."""
    if asked:
        return [Measure.parse("rocarea").within(asked)]
    named = [str(info.get("measure")) for info in infos]
    return [Measure.parse(name) for name in GROUPED if name in named]


def _head_measures(infos: Sequence[dict[str, Any]], at: Sequence[Condition], n: float) -> list[HeadMeasure]:
    """Return the measures of the head: those shown of every model, those trained for, and those of conditions."""
    names = [*HEAD, *(str(info.get("measure")) for info in infos)]
    named = [measure for name in names if (measure := HeadMeasure.parse(name))]
    of_conditions = [measure for condition in at for measure in condition.measures(n)]
    return list({measure.name: measure for measure in [*named, *of_conditions]}.values())


class Known(NamedTuple):
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
    known: Known | None = None,
    level: float = confidence.LEVEL,
    weights: Floats | None = None,
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
    at : sequence of Condition, optional
        Conditions for which thresholds are found.
    known : Known, optional
        What has been computed of these scores already.
    level : float, optional
        The level of the intervals of the rates at these thresholds, and at the threshold of the model.
    weights : (n_local,) array, optional
        The weights of these rows. Then tp, fp, fn and tn are sums of weights; measures at a k that only the model names
        are left out if the weights differ, since they count rows.

    Raises
    ------
    InputError
        On all ranks, if k or a condition counts rows, and the weights differ.
    """
    _refuse_counts(k, at, weights, comm)
    threshold = model.threshold if threshold is None else threshold
    rates = threshold_rates.rates_at(threshold, level, scores, labels, comm, weights)
    table = Contingency(*(rates[name] for name in ("tp", "fp", "fn", "tn")))
    n_pos, n_neg = map(int, masses((labels > 0, labels < 0), None, comm))
    extra = extra_measures(model.info, k)
    if k is None and differ(weights, comm):
        extra = [name for name in extra if "@" not in name or name.startswith("pauc@")]
    tied = tied_scores(scores, labels, effective(weights, comm), comm) if known is None else known.tied
    own = _head_measures([model.info], at, n_pos + n_neg)
    points = threshold_rates.rates_of_conditions(at, tied, level, scores, labels, comm, weights)
    training_rows = None if known is None else known.training_rows
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
        "rocarea": ranking.rocarea(scores, labels, comm, weights) if known is None else known.rocarea,
        "prbep": ranking.prbep(scores, labels, comm, weights),
        "average_precision": ranking.mean_precision(tied, comm),
        "threshold": threshold,
        **{name: value for name, value in rates.items() if name not in ("threshold", "intervals")},
        "f1": table.f1,
        "error_rate": table.error_rate,
        "intervals_at_threshold": rates["intervals"],
        **{name: ranking.measure_value(name, scores, labels, threshold, comm, weights) for name in extra},
        **(losses(model.probabilities(scores), labels, comm, weights) if model.curve else {}),
        **(known.head if known else operating_points.head_values(own, tied, comm)),
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
    return names + [trained.name] * (trained.family == "f-beta" and trained.name != "f1")
