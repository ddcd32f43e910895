"""A trained model with the findings of its run: warnings, measures, what the run took."""

from __future__ import annotations

import os
from dataclasses import dataclass, field, replace
from typing import Any

import numpy as np

from distsms.base.errors import EXIT_OK, EXIT_REQUEUE, EXIT_VACUOUS
from distsms.base.timing import Clock
from distsms.base.typing import Floats, Hashes, Labels
from distsms.base.usage import ReadCounter, maximum_usage, resource_usage
from distsms.base.wording import Message, marked, option
from distsms.metrics.differences import JudgedRows
from distsms.metrics.row_sample import describe_share, share_of_training_rows
from distsms.models import model
from distsms.models.model import Model
from distsms.models.scoring import ScoredRows
from distsms.optim.result import Result
from distsms.parallel.communicator import Communicator
from distsms.parallel.vectors import Vectors
from distsms.shards.dataset import DataBlock
from distsms.training.advice import (
    advise,
    describe_chance,
    describe_constant,
    describe_idleness,
    describe_no_bias,
    describe_unseen,
)
from distsms.training.hints import LeakingColumn, OnFolds, describe_doubt, describe_leaks, describe_test
from distsms.training.provenance import Distribution, model_info, provenance
from distsms.training.quick_check import QuickCheck, judge
from distsms.training.rows import Survived
from distsms.training.task import RunOptions, TrainingTask
from distsms.training.verdict import ALL_TIED, AreaOnTest, area_on_test

FEW_REACH = 0.02
"""If a smaller share of the positive held-out rows reaches the threshold for a condition, there is a warning."""
FACTOR = 1.2
"""A mean probability that differs from the share of positive rows by more than this factor gets a warning."""


@dataclass
class TrainedModel:
    """A trained model and the findings of its run. All ranks have the same, except for `clock` and `reading`."""

    task: TrainingTask
    options: RunOptions
    w: Floats  # the coefficients, without that of the constant feature
    bias: float  # the constant that is added to each score, and the score from which on a row is called positive
    threshold: float
    result: Result  # how the run ended, and what it proved
    distribution: Distribution
    # why the model ranks no better than chance; an empty string if it ranks better. If `RunOptions.measure_rows` is
    # false, the only reason that is looked for is that all scores are equal.
    chance: str
    # the comparison with a quick ROCArea model. `compare` replaces it if the caller has test rows.
    check: QuickCheck | None
    training: dict[str, float] | None  # the measures on the training rows, by name
    # what is known of the training rows, as `describe_data_set` or `describe_rows` returned it; None without
    # `RunOptions.measure_rows`
    data: dict[str, Any] | None
    vectors: Vectors  # the places of the solver's vectors, which also say what was sent between ranks
    clock: Clock  # this rank's seconds by phase, and its bytes read. A caller may use them for its own phases, too.
    reading: ReadCounter
    evaluations: int  # the number of evaluations since the run was started or last resumed
    leaks: list[LeakingColumn]  # columns of a table that rank the training rows almost perfectly by themselves
    # what `RunOptions.decide` returned. `threshold` is then the one that it found, if it found one.
    decided: dict[str, Any] | None = None
    # for measures whose scores are probabilities: `calibration.means_by_class` of the training rows, `by_rows` and
    # `by_weight`
    means: dict[str, dict[str, float]] | None = None
    survived: list[Survived] = field(default_factory=list)  # what happened when ranks died and the others went on
    on_test: str = ""  # a warning about the measures on test rows, from `judge_test`
    # why the model ranks no better than chance on rows that it has not seen, as folds or test rows showed; "" if
    # nothing shows it
    unseen: str = ""
    automatic: bool = False  # whether lambda was chosen by cross-validation
    on_folds: OnFolds | None = None  # a measure on held-out folds of the training rows, if lambda was chosen by them
    # what `distsms.metrics.row_sample.sample_rows` returned; None without `RunOptions.measure_rows`
    row_sample: dict[str, Any] | None = None

    @property
    def vacuous(self) -> bool:
        """Whether the model ranks no better than chance."""
        return bool(self.chance or self.unseen)

    @property
    def exit_code(self) -> int:
        """The exit code of `distsms train`."""
        if self.undecided and not self.result.status.exit_code:
            return EXIT_REQUEUE
        return self.result.status.exit_code or (EXIT_VACUOUS if self.vacuous else EXIT_OK)

    @property
    def undecided(self) -> bool:
        """Whether a threshold or probabilities were asked for, and the run ended before the folds were trained."""
        return self.options.decide is not None and self.decided is None

    def warnings(self) -> list[str]:
        """Return the warnings that users must read before they use the model; usually there are none."""
        task, result = self.task, self.result
        by_l1 = task.measure.smooth_by_itself and task.settings.l1 > 0 and not np.any(self.w)
        advice = (
            "" if by_l1 else advise(self.check, task.measure, self.vacuous, describe_no_bias(task.measure, task.bias))
        )
        if not self.vacuous:
            texts = [describe_idleness(result), advice, describe_leaks(self.leaks), self.on_test]
            texts += [describe_constant(task.measure, task.settings.l1, task.bias, self.bias)]
            texts += [self._on_decision, self._on_probabilities]
            return [text for text in texts if text]
        if self.unseen and self.chance != ALL_TIED and (self.automatic or not self.chance):
            said = describe_unseen(self.unseen, self.training, self.automatic)
            return [Message(f"{marked(said)} {marked(advice)}".rstrip()), *filter(None, [describe_leaks(self.leaks)])]
        n_pos, masses = 0, None
        if self.data is not None:
            n_pos, weights = self.data["n_pos"], self.data.get("weights")
            masses = (weights["positive"], weights["negative"]) if weights else (n_pos, self.data["n_neg"])
        said = describe_chance(
            self.chance,
            task.measure,
            task.settings,
            task.bias,
            result,
            n_pos,
            weights=masses,
            no_lambda_helps=self.automatic and bool(self.unseen),
        )
        return [Message(f"{marked(said)} {marked(advice)}".rstrip())]

    @property
    def _on_decision(self) -> str:
        """A warning if the model lacks the threshold or the probabilities that were asked for; "" if it has them."""
        if self.undecided:
            return (
                "The run ended before the models of the folds were trained, so it found neither threshold nor"
                " probabilities on held-out rows."
            )
        decision = (self.decided or {}).get("decision") or {}
        if why := decision.get("why"):
            return f"The model has no threshold for labels: {why}."
        if not decision or decision["quantity"] == "top" or decision["tpr"] >= FEW_REACH:
            return ""
        return (
            f"Only {100 * decision['tpr']:.2g} % of the positive held-out rows reach the threshold for"
            f" {decision['condition']}: hardly any row will be called positive. A weaker condition calls more."
        )

    @property
    def _on_probabilities(self) -> str:
        """A warning if the probabilities of the training rows are too high or too low by `FACTOR` on average, or ""."""
        if self.means is None or "calibration" in (self.decided or {}):
            return ""
        mean, share = (self.means["by_weight"][name] for name in ("mean", "share"))
        if max(mean, share) <= FACTOR * min(mean, share):
            return ""
        of = "of their weight is that of positive rows" if self.data and "weights" in self.data else "are positive"
        return Message(
            f"The probabilities are too {'high' if mean > share else 'low'}: their mean over the training rows is "
            f"{100 * mean:.3g} %, and {100 * share:.3g} % {of}. The reason is lambda, which also holds back the weight "
            f"of the constant feature. Take a smaller lambda, or {option('bias', 10 * (self.task.bias or 1.0))}, or "
            f"fit probabilities on held-out rows by {option('calibrate', 'sigmoid')}."
        )

    def findings(self) -> dict[str, Any]:
        """Return the entries of the model file that say whether the model is useful."""
        found = {"exit_code": self.exit_code, "vacuous": self.vacuous, "warnings": self.warnings()}
        found |= {"mean_probability": self.means} if self.means else {}
        return found | ({"rocarea_check": self.check.as_json()} if self.check else {}) | (self.decided or {})

    def rocarea_model(self, own: Model) -> Model | None:
        """Return the quick ROCArea model with the columns and labels of `own`, the model of this run; or None."""
        if self.check is None or self.check.why:
            return None
        info = {name: own.info[name] for name in ("label_map", "zero_based")} | {"threshold": self.check.threshold}
        return model.from_training(self.check.w, info, self.task.manifest)

    def compare(self, scored: ScoredRows, name: str, comm: Communicator) -> None:
        """Compare this model with the ROCArea model on test rows. **Collective.**

        `scored` has the scores of this model first, and then those of the ROCArea model.
        """
        assert self.check is not None
        (own, labels, weights), (other, _, _) = scored.counted_scores(0), scored.counted_scores(1)
        numbers = scored.first_row + np.flatnonzero(scored.counted)
        judged = JudgedRows(labels, numbers, (other, own), (self.check.threshold, self.threshold), weights)
        self.check = replace(self.check, contest=judge(name, self.task.measure, judged, comm))

    def judge_test(
        self,
        scores: Floats,
        labels: Labels,
        comm: Communicator,
        weights: Floats | None = None,
        groups: Hashes | None = None,
        same_rows: bool = False,
    ) -> AreaOnTest:
        """Find out whether this model ranks test rows better than chance, and whether it overfits. **Collective.**

        `scores`, `labels`, `weights` and `groups` are those of the test rows on this rank, (n_local,). `same_rows` says
        whether they are known to be the training rows.
        """
        manifest = self.task.manifest
        check_perfect = manifest is not None and manifest.table is not None and not self.leaks
        assert self.training is not None and self.data is not None
        area = area_on_test(scores, labels, comm, weights, self.task.measure, groups)
        share = 1.0 if same_rows else share_of_training_rows(self.row_sample, scores, labels, comm)
        if share:
            self.on_test = describe_share(share)
            return area._replace(training_rows=share)
        if not self.unseen and (doubt := describe_doubt(area, self.on_folds)):
            self.on_test = doubt
            return area
        if area.enough and self.chance != ALL_TIED:  # then the test rows say more than the folds of the training rows
            self.unseen = area.why_chance()
        self.on_test = describe_test(self.training, area, self.data, check_perfect, self.on_folds, self.automatic)
        return area

    def usage(self, comm: Communicator) -> list[dict[str, Any]]:
        """Return every rank's seconds, bytes and memory so far, in rank order. **Collective.**"""
        return comm.allgather(resource_usage(self.clock, comm.bytes_moved(), self.reading.bytes, self.evaluations))

    def usage_info(self, usage: list[dict[str, Any]]) -> dict[str, Any]:
        """Return the entries of the model file on what the run took."""
        return maximum_usage(usage) | {"outward": self.vectors.outward, "inward": self.vectors.inward}

    def to_model(self, comm: Communicator) -> Model:
        """Return the model with all information that its file gets. Every rank gets the same. **Collective.**"""
        task, trace, usage = self.task, self.options.trace, self.usage(comm)
        assert self.data is not None
        info = model_info(
            task.measure,
            task.settings,
            self.result,
            self.distribution,
            self.bias,
            self.threshold,
            self.training,
            self.data,
            comm.bcast(provenance() if comm.is_root else None),
        )
        info |= self.findings() | ({"row_sample": self.row_sample} if self.row_sample else {})
        info |= {"trace": None if trace is None else os.path.abspath(trace), "usage": self.usage_info(usage)}
        if survived := comm.bcast([survived.as_json() for survived in self.survived]):
            info["survived"] = survived
        table = task.data.table if isinstance(task.data, DataBlock) else None
        return model.from_training(self.w, info, task.manifest, table)
