"""An evaluation as a user asks for it: models, on labelled rows of files, tables or arrays.

`score_data` is the one place that tells the kinds of rows apart, for evaluations, scores, contributions and reports.
"""

from __future__ import annotations

import math
import os
from collections.abc import Sequence
from dataclasses import dataclass, replace
from itertools import groupby
from typing import Any, NamedTuple

import numpy as np

from distsms.base.communicator import Communicator
from distsms.base.errors import InputError
from distsms.base.scored import Scored
from distsms.base.wording import Message, option, without_credentials
from distsms.ingest.file_names import is_data_set
from distsms.metrics import row_sample
from distsms.models import contributions, evaluation, inputs, model, scoring, shift
from distsms.models.contributions import ColumnSums, Contributions
from distsms.models.evaluation import EvaluatedRows, ModelComparison, ModelEvaluation
from distsms.models.inputs import InputOptions
from distsms.models.model import Model
from distsms.models.scoring import ScoredRows, Watch
from distsms.shards.from_arrays import is_frame
from distsms.shards.manifest import read_manifest
from distsms.workflow.requests import Arrays, EvaluateRequest, Path, PredictRequest


@dataclass(frozen=True)
class Evaluated:
    """Models on the same rows. All ranks have the same, but for rows and scores, of which each rank has its own."""

    data: str  # what the rows are called
    rows: EvaluatedRows  # those that count
    models: list[ModelEvaluation]
    pairs: list[ModelComparison]  # of several models
    level: float  # of the intervals
    warnings: list[str]  # what users must know before they believe the measures
    notes: list[str]  # what readers of files left out, or took for something else

    def to_dict(self) -> dict[str, Any]:
        """Return what `distsms evaluate --json` prints: the measures of one model, or all models and their pairs."""
        each = [evaluated.as_json(self.data, self.level) for evaluated in self.models]
        if not self.pairs:
            return each[0]
        return {"data": self.data, "models": each, "pairs": [pair.as_json() for pair in self.pairs]}

    def frame(self) -> Any:
        """Return the measures that have intervals as a DataFrame of pandas, with a line for each model and measure."""
        import pandas as pd

        lines = [
            {"model": each.path, "measure": name, "value": interval.value, "low": interval.low, "high": interval.high}
            for each in self.models
            for name, interval in each.intervals.items()
        ]
        return pd.DataFrame(lines, columns=["model", "measure", "value", "low", "high"])


class NamedModel(NamedTuple):
    """A model, and what messages call it."""

    name: str
    model: Model


def load_models(models: Sequence[Model | Path], comm: Communicator) -> list[NamedModel]:
    """Read the models that are files. **Collective.** Raises InputError on all ranks if one cannot be read."""
    with comm.fail_together():
        return [
            NamedModel(f"model {number}" if len(models) > 1 else "the model", each)
            if isinstance(each, Model)
            else NamedModel(os.fspath(each), model.load(each))
            for number, each in enumerate(models, 1)
        ]


def name_of(data: Any) -> str:
    """Return what messages call the rows: the path of a file or a data set. Local."""
    return without_credentials(os.fspath(data)) if isinstance(data, str | os.PathLike) else scoring.ROWS_IN_MEMORY


def score_data(
    models: Sequence[Model], data: Any, comm: Communicator, reading: InputOptions, watch: Watch | None = None
) -> ScoredRows:
    """Score this rank's share of a file or a data set, or its rows in memory; `watch` sees them. **Collective.**"""
    table = models[0].table
    if is_frame(data) and reading.labelled and (table is None or (table.label is None and reading.label is None)):
        raise InputError("the model does not know which column has the labels; give them apart: (X, labels)", True)
    if is_frame(data) and not reading.labelled and (table is None or (table.plain and reading.weight is None)):
        data = Arrays(data, None)
    if isinstance(data, Arrays):
        if reading.label or reading.weight or reading.group or reading.missing_group != "own":
            raise InputError("label, weight, group and missing_group are of columns; rows in memory have arrays", True)
        weights, groups = data.weights, data.groups
        return scoring.score_arrays(models, data.X, data.y, comm, reading, watch, weights=weights, groups=groups)
    if is_frame(data):
        return scoring.score_table(models, data, comm, reading, watch)
    return scoring.score(models, data, comm, reading, watch)


def evaluate(request: EvaluateRequest, comm: Communicator, watch: Watch | None = None) -> Evaluated:
    """Measure models on the labelled rows of all ranks, which `watch` sees, and compare each pair. **Collective.**"""
    data, options = request.data, request.measures
    models, name = load_models(request.models, comm), name_of(request.data)
    grouped = evaluation.grouped_measures([each.model.info for each in models], options.within_groups)
    rows, scored, notes = _score_in_runs(models, data, comm, replace(request.reading, groups=bool(grouped)), watch)
    if options.within_groups and scored[0].groups is None:
        group = option("group", text="COLUMN")
        needs = f"{option('within_groups')} needs the groups of the rows"
        raise InputError(f"{name}: {needs}; give {group} for a file, and make data sets by distsms shard {group}", True)
    if not any(comm.allgather(len(rows.row_numbers))):
        raise InputError(f"{name}: {inputs.NO_ROWS}", True)
    named = [(each.name, each.model, of_model) for each, of_model in zip(models, scored, strict=True)]
    evaluations, pairs = evaluation.evaluate(named, rows, options)
    return Evaluated(name, rows, evaluations, pairs, options.level, _warnings(evaluations), notes)


def _score_in_runs(
    models: Sequence[NamedModel], data: Any, comm: Communicator, reading: InputOptions, watch: Watch | None
) -> tuple[EvaluatedRows, list[Scored], list[str]]:
    """Return the rows that count, with the scores by each model, and what readers left out. **Collective.**"""
    name, of_models, notes = name_of(data), list[Scored](), list[str]()
    with comm.fail_together():
        of_set = isinstance(data, str | os.PathLike) and is_data_set(data)
        fingerprint = read_manifest(data).fingerprint if of_set else None
    for _, run in groupby(models, lambda each: _columns_of(each.model)):
        alike = list(run)
        scored = score_data([each.model for each in alike], data, comm, reading, watch)
        notes += scored.notes
        counted = [scored.counted_scores(scores, comm) for scores in scored.scores]
        with comm.fail_together():
            if of_models and not np.array_equal(counted[0].labels, of_models[0].labels):
                differ = f"{alike[0].name} and {models[0].name} do not agree on which label is positive"
                raise InputError(f"{name}: {differ}; evaluate them one by one")
        numbers = scored.first_row + np.flatnonzero(scored.counted)
        of_models += [replace((of_models or counted)[0], scores=each.scores) for each in counted]
    return EvaluatedRows(numbers, fingerprint), of_models, list(dict.fromkeys(notes))


def _columns_of(each: Model) -> tuple[Any, ...]:
    """Return what models must have in common to share one reading of the rows."""
    info = each.info
    return each.p, info["zero_based"], info["label_map"], each.table, each.normalization.by_row, each.coded


def _warnings(evaluations: Sequence[ModelEvaluation]) -> list[str]:
    """Return what is odd about the rows, and about a model on them."""
    names = [each.path for each in evaluations] if len(evaluations) > 1 else ["the model"]
    shares = [each.measures["training_rows"] for each in evaluations]
    of_training, of_rows = list(map(row_sample.describe_share, shares, names)), _warnings_of_rows(evaluations[0])
    return [*filter(None, of_rows + of_training if len(names) > 1 else of_training + of_rows)]


def _warnings_of_rows(evaluated: ModelEvaluation) -> list[str]:
    """Return warnings on measures that are not defined on these rows, and on a share of positives unlike training's."""
    measures, info, lines = evaluated.measures, evaluated.model.info, []
    if not (measures["n_pos"] and measures["n_neg"]):
        lines.append("only one class is present: ROCArea and other measures that need both are not defined (nan)")
    if any(math.isnan(measures[name]) for name in evaluated.extra_measures if "@" in name):
        lines.append(f"there are only {measures['n']} rows, fewer than K: measures at K are not defined (nan)")
    weighted = (info.get("data") or {}).get("weights")
    if weighted and "weights" not in measures:
        column = weighted.get("column")
        trained = f"the model was trained with weights{f' from the column {column}' if column else ''}"
        give = f"Give {option('weight', text=column or 'COLUMN')} for a file; a data set needs it in distsms shard"
        lines.append(Message(f"{trained}, and these rows have none, so all figures count rows. {give}"))
    share = measures["n_pos"] / (measures["n_pos"] + measures["n_neg"])
    return [*lines, shift.describe(info, 0, measures["n"], share)]


def contributions_of(request: PredictRequest, comm: Communicator) -> Contributions:
    """Return what the features of a model contribute to the scores of rows; without rows, to any. **Collective.**"""
    (named,) = load_models([request.model], comm)
    with comm.fail_together():
        contributions.check(named.model)
    if request.data is None:
        return contributions.of_sums(named.model, None)
    sums = ColumnSums()
    score_data([named.model], request.data, comm, request.reading, sums)
    if not sums.reduce(named.model.p, comm).n:
        raise InputError("there is no row that counts, so nothing can be said of contributions to scores", True)
    return contributions.of_sums(named.model, sums)
