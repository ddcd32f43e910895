"""A trained model with the findings of its run: warnings, measures, what the run took."""

from __future__ import annotations

import os
from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING, Any

import numpy as np

from distsms.base.communicator import Communicator
from distsms.base.errors import EXIT_OK, EXIT_REQUEUE, EXIT_VACUOUS
from distsms.base.wording import Message, marked, option
from distsms.metrics.row_sample import describe_share, share_of_training_rows
from distsms.metrics.summary import summary_measures
from distsms.models import model
from distsms.models.model import Model
from distsms.models.scoring import ScoredRows
from distsms.optim.result import Result
from distsms.shards.dataset import DataBlock
from distsms.training.fit import Fit
from distsms.training.task import TrainingTask
from distsms.workflow import verdict
from distsms.workflow.provenance import maximum_usage, model_info, provenance, usage_of_ranks
from distsms.workflow.verdict import AreaOnTest

if TYPE_CHECKING:
    from distsms.workflow.auto_lambda import LambdaChoice
    from distsms.workflow.rocarea_check import QuickCheck

FEW_REACH = 0.02
"""If a smaller share of the positive held-out rows reaches the threshold for a condition, there is a warning."""
FACTOR = 1.2
"""A mean probability that differs from the share of positive rows by more than this factor gets a warning."""


@dataclass(frozen=True)
class TrainingScores:
    """What the scores of the training rows say of a model."""

    threshold: float  # the score from which on a row is called positive, unless held-out rows say otherwise
    measures: dict[str, float]  # by name
    data: dict[str, Any]  # what is known of the rows, from `describe_data_set` or `describe_rows`
    chance: str  # why the model ranks no better than chance; an empty string if it ranks better
    spread: tuple[float, float]  # the mean and the standard deviation of the scores
    sample: dict[str, Any] | None  # from `distsms.metrics.row_sample.sample_rows`
    means: dict[str, dict[str, float]] | None = None  # `calibration.means_of_logistic`, if scores are probabilities
    leaks: Mapping[str, float] = field(default_factory=dict)  # from `leaking_columns`
    mean_contributions: list[float] | None = None  # of the columns of a table, see `distsms.models.contributions`


@dataclass
class TrainedModel:
    """A trained model and the findings of its run. All ranks have the same, except for what the fit says of each."""

    fit: Fit
    scores: TrainingScores
    check: QuickCheck | None = None  # the comparison with a quick ROCArea model, which `compare` makes on test rows
    decided: dict[str, Any] | None = None  # `distsms.workflow.decisions.findings`
    lambda_choice: LambdaChoice | None = None  # how lambda was chosen, if it was chosen by cross-validation
    on_test: str = ""  # a warning about the measures on test rows, from `judge_test`
    unseen: str = ""  # why the model ranks no better than chance on rows that it has not seen; "" if nothing shows it

    def __post_init__(self) -> None:
        if self.lambda_choice and not self.unseen:
            self.unseen = self.lambda_choice.chance

    @property
    def task(self) -> TrainingTask:
        """What was trained."""
        return self.fit.rows.task

    @property
    def result(self) -> Result:
        """How the run ended, and what it proved."""
        return self.fit.result

    @property
    def threshold(self) -> float:
        """The score from which on a row is called positive."""
        threshold: float = (self.decided or {}).get("threshold", self.scores.threshold)
        return threshold

    @property
    def vacuous(self) -> bool:
        """Whether the model ranks no better than chance."""
        return bool(self.scores.chance or self.unseen)

    @property
    def exit_code(self) -> int:
        """The exit code of `distsms train`."""
        if self.undecided and not self.result.status.exit_code:
            return EXIT_REQUEUE
        return self.result.status.exit_code or (EXIT_VACUOUS if self.vacuous else EXIT_OK)

    @property
    def undecided(self) -> bool:
        """Whether a threshold or probabilities were asked for, and the run ended before the folds were trained."""
        return self.fit.rows.options.folds > 0 and self.decided is None

    def warnings(self) -> list[str]:
        """Return the warnings that users must read before they use the model; usually there are none."""
        task, result, advice, leaks = self.task, self.result, self._advice(), verdict.describe_leaks(self.scores.leaks)
        if not self.vacuous:
            texts = [verdict.describe_idleness(result), advice, leaks, self.on_test]
            texts += [verdict.describe_constant(task.measure, task.settings.l1, task.bias, self.fit.bias)]
            texts += [self._about_decision(), self._about_probabilities()]
            return [text for text in texts if text]
        automatic, chance = self.lambda_choice is not None, self.scores.chance
        if self.unseen and chance != verdict.ALL_TIED and (automatic or not chance):
            text = verdict.describe_unseen(self.unseen, self.scores.measures, automatic)
        else:
            data, leaks = self.scores.data, ""
            of_classes = data.get("weights") or {"positive": data["n_pos"], "negative": data["n_neg"]}
            weights, no_lambda_helps = (of_classes["positive"], of_classes["negative"]), automatic and bool(self.unseen)
            text = verdict.describe_chance(chance, task, result, data["n_pos"], weights, no_lambda_helps)
        return [Message(f"{marked(text)} {marked(advice)}".rstrip()), *([leaks] if leaks else [])]

    def _advice(self) -> str:
        """Return whether a quick ROCArea model is clearly better, or what else may help; or ""."""
        task = self.task
        by_l1 = task.measure.family.smooth_by_itself and task.settings.l1 > 0 and not np.any(self.fit.w)
        if by_l1 or (self.check is None and not self.vacuous):
            return ""
        from distsms.workflow.rocarea_check import advise  # which loads what folds need

        return advise(self.check, task.measure, self.vacuous, verdict.describe_no_bias(task.measure, task.bias))

    def _about_decision(self) -> str:
        """Return a warning if the model lacks the threshold or the probabilities that were asked for; or ""."""
        if self.undecided:
            return "The run ended before the models of the folds were trained, so it has no threshold or probabilities."
        decision = (self.decided or {}).get("decision") or {}
        if why := decision.get("why"):
            return f"The model has no threshold for labels: {why}."
        if not decision or decision["quantity"] == "top" or decision["tpr"] >= FEW_REACH:
            return ""
        few = f"Only {100 * decision['tpr']:.2g} % of the positive held-out rows reach the threshold"
        return f"{few} for {decision['condition']}. A weaker condition calls more rows positive."

    def _about_probabilities(self) -> str:
        """Return a warning if the probabilities of training rows are wrong by `FACTOR` on average, or ""."""
        searched = self.lambda_choice.searched if self.lambda_choice else ""
        nobody_asked = searched not in ("", self.task.measure.name)
        if self.scores.means is None or "calibration" in (self.decided or {}) or nobody_asked:
            return ""
        mean, share = (self.scores.means["by_weight"][name] for name in ("mean", "share"))
        if max(mean, share) <= FACTOR * min(mean, share):
            return ""
        of = "of their weight is that of positive rows" if "weights" in self.scores.data else "are positive"
        # A lambda would end the search, and curves are fitted on folds, for which it makes no leaves.
        smaller, leaves = ("", ", with which the search tries no leaves") if searched else ("a smaller lambda, or ", "")
        return Message(
            f"The probabilities are too {'high' if mean > share else 'low'}: their mean over the training rows is "
            f"{100 * mean:.3g} %, and {100 * share:.3g} % {of}. Lambda also holds back the constant feature: take "
            f"{smaller}{option('bias', 10.0 * (self.task.bias or 1.0))}, or {option('calibrate', 'sigmoid')}{leaves}."
        )

    def findings(self) -> dict[str, Any]:
        """Return the entries of the model file that say whether the model is useful."""
        info = {"exit_code": self.exit_code, "vacuous": self.vacuous, "warnings": self.warnings()}
        info |= {"mean_probability": self.scores.means} if self.scores.means else {}
        return info | ({"rocarea_check": self.check.as_json()} if self.check else {}) | (self.decided or {})

    def rocarea_model(self, trained: Model) -> Model | None:
        """Return the quick ROCArea model with the columns and labels of `trained`, the model of this run; or None."""
        if self.check is None or self.check.why:
            return None
        info = {name: trained.info[name] for name in ("label_map", "zero_based")} | {"threshold": self.check.threshold}
        return model.from_training(self.check.w, info, self.task.manifest)

    def compare(self, scored: ScoredRows, name: str, comm: Communicator) -> None:
        """Compare this model, the first in `scored`, with the ROCArea model on test rows. **Collective.**"""
        from distsms.metrics.differences import JudgedRows
        from distsms.workflow.rocarea_check import judge

        assert self.check is not None
        ours, theirs = (scored.counted_scores(of_model, comm) for of_model in scored.scores[:2])
        numbers = scored.first_row + np.flatnonzero(scored.counted)
        judged = JudgedRows((theirs, ours), numbers, (self.check.threshold, self.threshold))
        self.check = replace(self.check, contest=judge(name, self.task.measure, judged))

    def judge_test(
        self, scored: ScoredRows, comm: Communicator, same_rows: bool
    ) -> tuple[dict[str, float], AreaOnTest]:
        """Find out whether this model, the first in `scored`, ranks test rows better than chance, and overfits; return
        the measures and their ROCArea with its interval. **Collective.**"""
        rows, on_training = scored.counted_scores(scored.scores[0], comm), self.scores
        measures = summary_measures(self.task.measure, rows, self.threshold)
        area = verdict.area_on_test(rows, self.task.measure)
        share = 1.0 if same_rows else share_of_training_rows(on_training.sample, rows)
        on_folds = self.lambda_choice.on_folds if self.lambda_choice else None
        if share:
            self.on_test, area = describe_share(share), area._replace(training_rows=share)
        elif not self.unseen and (doubt := verdict.describe_doubt(area, on_folds)):
            self.on_test = doubt
        else:
            # test rows say more than folds of the training rows
            if area.enough and on_training.chance != verdict.ALL_TIED:
                self.unseen = area.why_chance()
            manifest, chosen = self.task.manifest, self.lambda_choice is not None
            perfect = manifest is not None and manifest.table is not None and not on_training.leaks
            of_training, data = on_training.measures, on_training.data
            self.on_test = verdict.describe_test(of_training, area, data, perfect, on_folds, chosen)
        return measures, area

    def usage(self, comm: Communicator) -> list[dict[str, Any]]:
        """Return every rank's seconds, bytes and memory so far, in rank order. **Collective.**"""
        rows = self.fit.rows
        return usage_of_ranks(rows.clock, comm, rows.reading.bytes, self.fit.evaluations)

    def usage_info(self, usage: list[dict[str, Any]]) -> dict[str, Any]:
        """Return the entries of the model file on what the run took."""
        return maximum_usage(usage) | {"outward": self.fit.vectors.outward, "inward": self.fit.vectors.inward}

    def to_model(self, comm: Communicator) -> Model:
        """Return the model with all information that its file gets. Every rank gets the same. **Collective.**"""
        task, fit, scores, trace = self.task, self.fit, self.scores, self.fit.rows.options.trace
        usage = self.usage_info(self.usage(comm))
        info = model_info(
            task.measure,
            task.settings,
            self.result,
            fit.distribution,
            comm.size,
            fit.bias,
            self.threshold,
            scores.measures,
            scores.data,
            comm.of_root(provenance),
        )
        further = {
            "row_sample": scores.sample,
            model.MEAN_CONTRIBUTIONS: scores.mean_contributions,
            "trace": None if trace is None else os.path.abspath(trace),
            "usage": usage,
            "constant": task.bias,
            "device": fit.rows.options.place.describe(),
            "certificate": fit.certified,
            "survived": comm.bcast([survived._asdict() for survived in fit.rows.survived]),
            "auto_lambda": self.lambda_choice and self.lambda_choice.as_json(),
        }
        info |= self.findings() | {name: value for name, value in further.items() if value or name == "trace"}
        table = task.data.table if isinstance(task.data, DataBlock) else None
        return model.from_training(fit.w, info, task.manifest, table)
