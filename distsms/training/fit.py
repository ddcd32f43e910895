"""Train a model: the one function behind the command line, the library and the estimator.

`fit` plans the memory, loads the rows (or streams them), minimizes the objective to a proved gap, keeps a trace and
checkpoints of the run, and determines the decision threshold. `TrainedModel.to_model` adds where the model comes from.
"""

from __future__ import annotations

import contextlib
import gc
import math
import os
from collections.abc import Callable
from dataclasses import dataclass, replace
from typing import Any

import numpy as np

from distsms.data.shards import dataset
from distsms.data.shards.dataset import DataBlock
from distsms.data.shards.manifest import Manifest
from distsms.errors import EXIT_OK, EXIT_VACUOUS, InputError
from distsms.inference import model
from distsms.inference.model import Model
from distsms.inference.scoring import ScoredRows
from distsms.matrix.augmented import WithBias
from distsms.matrix.normalization import Normalization
from distsms.measures import Measure
from distsms.metrics.differences import JudgedRows
from distsms.metrics.headline import decision_threshold, headline_measures
from distsms.optim.objective import Objective
from distsms.optim.result import Result, State, Status
from distsms.optim.settings import Settings
from distsms.parallel.communicator import Communicator
from distsms.parallel.vector_placement import choose_step, make_vectors
from distsms.parallel.vectors import Vectors
from distsms.training.advice import advise, describe_chance, describe_idleness
from distsms.training.hints import SUSPICIOUS, LeakingColumn, describe_leaks, describe_test, leaking_columns
from distsms.training.objectives import make_losses
from distsms.training.plan import Plan, make_plan
from distsms.training.provenance import Distribution, describe_data_set, describe_rows, model_info, provenance
from distsms.training.quick_check import Checker, QuickCheck, judge, reserve
from distsms.training.recorder import recording
from distsms.training.verdict import why_chance
from distsms.utils.timing import Clock
from distsms.utils.typing import Floats, Labels
from distsms.utils.usage import ReadCounter, maximum_usage, resource_usage

UNFINISHED = (Status.STOPPED, Status.TIME, Status.NONFINITE)
"""If a run ended in one of these ways, its model is not compared with others: time is short, or there is no model."""


@dataclass(frozen=True)
class TrainingTask:
    """The data, the measure and the settings of a training. All ranks have the same, except for rows in memory.

    Parameters
    ----------
    data : Manifest or DataBlock
        A data set, of which each rank loads its share (a manifest), or this rank's rows (a block).
    measure : Measure
        What to optimize.
    settings : Settings
        lambda, the solver, when to stop.
    bias : float, optional
        The value of a constant feature; with None there is no such feature.
    start : Model, optional
        A model whose coefficients the run begins from; it may have fewer columns than the data.
    start_name : str
        What error messages call `start`.
    ordering, step : str
        How the scores of all rows are sorted, and on which ranks the solver's vectors are kept; see `distsms train
        --help`. ``"auto"`` takes what costs less.
    fingerprint : str, optional
        Identifies rows in memory, for checkpoints; a data set has its own.
    """

    data: Manifest | DataBlock
    measure: Measure
    settings: Settings
    bias: float | None = None
    start: Model | None = None
    start_name: str = "start"
    ordering: str = "auto"
    step: str = "auto"
    fingerprint: str | None = None

    @classmethod
    def of_rows(
        cls, features: Any, labels: Labels, measure: str | Measure, settings: Settings, bias: float | None = None
    ) -> TrainingTask:
        """Return the task of training on rows in memory, all of them on this process.

        `features` is what `distsms.matrix.local.as_features` or `distsms.matrix.augmented.RepeatedRows` made of them.
        """
        block = DataBlock(features, labels, None, 0, len(labels), features.shape[1], 0)
        return cls(block, Measure.parse(measure), settings, bias)

    @property
    def manifest(self) -> Manifest | None:
        """The data set; None for rows in memory."""
        return self.data if isinstance(self.data, Manifest) else None

    def identity(self) -> dict[str, Any]:
        """Return what a run must have in common with this one to go on from its checkpoint, ready for JSON."""
        settings = self.settings
        return {
            "data": self.manifest.fingerprint if self.manifest else self.fingerprint,
            "measure": self.measure.name,
            "lambda": settings.lam,
            "bias": self.bias,
            **{name: getattr(settings, name) for name in ("solver", "c_mu", "scaling", "zero_plane")},
        }

    def check(self) -> None:
        """Raise InputError if the bias is neither None nor a finite positive number."""
        if self.bias is not None and not 0 < self.bias < math.inf:
            raise InputError(f"bias is {self.bias}; it must be a positive number, or None")

    def start_vector(self) -> Floats | None:
        """Return the coefficients that the run begins from, (p,) or with a bias (p + 1,); None for 0.

        Raises
        ------
        InputError
            If the model to start from has more columns than the data, or was made for rows normalized otherwise.
        """
        if self.start is None:
            return None
        p, begin, name = self.data.p, self.start, self.start_name
        how = self.manifest.normalization if self.manifest else Normalization()
        if begin.p > p:
            raise InputError(
                f"{name}: has {begin.p} columns, the data {p}; a start wants a model of the same features or fewer"
            )
        if (begin.normalization.kind == "l2") != (how.kind == "l2"):
            raise InputError(f"{name}: is for rows normalized as {begin.normalization.kind}, the data are {how.kind}")
        w = how.unfold(np.pad(begin.w, (0, p - begin.p)))
        return np.append(w, begin.bias / self.bias) if self.bias else w


class TrainingObserver:
    """Receives what `fit` reports during a run. Override its methods, which are called on every rank."""

    def planned(self, plan: Plan, notes: list[str]) -> None:
        """Called before a data set is loaded. On the root, `notes` are lines on the checkpoint that the run resumes."""

    def loaded(self, block: DataBlock, vectors: Vectors) -> None:
        """Called when the rows are loaded and the places of the solver's vectors are chosen. May be collective."""

    def evaluated(self, state: State, w: Floats) -> None:
        """Called after each evaluation, on ranks that run the solver; w is the rank's slice of the best w so far."""


@dataclass(frozen=True)
class RunOptions:
    """Options of a run that do not change its result: memory, files, when to stop, and what to measure at the end.

    Parameters
    ----------
    memory : float, optional
        The most bytes that each rank may take; rows of a data set that do not fit are read again on each pass.
    checkpoint : path, optional
        A folder for the state of the run, written every `Settings.checkpoint_every` seconds and at the end.
    resume : bool
        Whether to go on from the newest checkpoint in that folder, if there is one.
    trace : path, optional
        A file that gets one JSON line for each evaluation.
    stop_wanted : callable
        Asked on every rank at each evaluation; True on any rank ends the run with what it has.
    measure_rows : bool
        Whether to compute the measures on the training rows, which sorts the scores.
    check : bool
        Whether to compare a model for another measure with a ROCArea model (`distsms.training.quick_check`).
    hold_out : bool
        Whether that comparison holds out training rows. If not, the caller compares the models on test rows.
    """

    memory: float | None = None
    checkpoint: str | os.PathLike[str] | None = None
    resume: bool = False
    trace: str | os.PathLike[str] | None = None
    stop_wanted: Callable[[], bool] = lambda: False
    measure_rows: bool = True
    check: bool = False
    hold_out: bool = True


@dataclass
class TrainedModel:
    """A trained model and the findings of its run. All ranks have the same, except for `clock` and `reading`.

    Attributes
    ----------
    w : ndarray of shape (p,)
        The coefficients, without that of the constant feature.
    bias, threshold : float
        The constant that is added to each score, and the score from which on a row is called positive.
    result : Result
        How the run ended, and what it proved.
    chance : str
        Why the model ranks no better than chance; an empty string if it ranks better. If `RunOptions.measure_rows` is
        false, the only reason that is looked for is that all scores are equal.
    check : QuickCheck or None
        The comparison with a quick ROCArea model. `compare` replaces it if the caller has test rows.
    training : dict or None
        The measures on the training rows, by name.
    data : dict or None
        What is known of the training rows, as `describe_data_set` or `describe_rows` returned it; None without
        `RunOptions.measure_rows`.
    vectors : Vectors
        The places of the solver's vectors, which also say what was sent between ranks.
    clock, reading : Clock, ReadCounter
        This rank's seconds by phase, and its bytes read. A caller may use them for its own phases, too.
    evaluations : int
        The number of evaluations since the run was started or last resumed.
    leaks : list of LeakingColumn
        Columns of a table that rank the training rows almost perfectly by themselves.
    on_test : str
        A warning about the measures on test rows, from `judge_test`.
    """

    task: TrainingTask
    options: RunOptions
    w: Floats
    bias: float
    threshold: float
    result: Result
    distribution: Distribution
    chance: str
    check: QuickCheck | None
    training: dict[str, float] | None
    data: dict[str, Any] | None
    vectors: Vectors
    clock: Clock
    reading: ReadCounter
    evaluations: int
    leaks: list[LeakingColumn]
    on_test: str = ""

    @property
    def vacuous(self) -> bool:
        """Whether the model ranks no better than chance."""
        return bool(self.chance)

    @property
    def exit_code(self) -> int:
        """The exit code of `distsms train`."""
        return self.result.status.exit_code or (EXIT_VACUOUS if self.vacuous else EXIT_OK)

    def warnings(self) -> list[str]:
        """Return the warnings that users must read before they use the model; usually there are none."""
        task, result = self.task, self.result
        advice = advise(self.check, task.measure, self.vacuous)
        if not self.vacuous:
            texts = describe_idleness(result), advice, describe_leaks(self.leaks), self.on_test
            return [text for text in texts if text]
        n_pos = 0 if self.data is None else self.data["n_pos"]
        said = describe_chance(self.chance, task.measure, task.settings, task.bias, result, n_pos)
        return [f"{said} {advice}".rstrip()]

    def findings(self) -> dict[str, Any]:
        """Return the entries of the model file that say whether the model is of use."""
        found = {"exit_code": self.exit_code, "vacuous": self.vacuous, "warnings": self.warnings()}
        return found | ({"rocarea_check": self.check.as_json()} if self.check else {})

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
        (own, labels), (other, _) = scored.counted_scores(0), scored.counted_scores(1)
        numbers = scored.first_row + np.flatnonzero(scored.counted)
        judged = JudgedRows(labels, numbers, (other, own), (self.check.threshold, self.threshold))
        self.check = replace(self.check, contest=judge(name, self.task.measure, judged, comm))

    def judge_test(self, measures: dict[str, float], labels: Labels, chosen: bool, comm: Communicator) -> None:
        """Find out whether the measures on test rows (labels: (n_local,)) need a warning. **Collective.**

        `chosen` says whether lambda was chosen by cross-validation.
        """
        manifest = self.task.manifest
        check_perfect = manifest is not None and manifest.table is not None and not self.leaks
        assert self.training is not None and self.data is not None
        self.on_test = describe_test(self.training, measures, self.data, labels, chosen, check_perfect, comm)

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
        info |= self.findings()
        info |= {"trace": None if trace is None else os.path.abspath(trace), "usage": self.usage_info(usage)}
        return model.from_training(self.w, info, task.manifest)


def fit(
    task: TrainingTask,
    comm: Communicator,
    options: RunOptions = RunOptions(),
    observer: TrainingObserver = TrainingObserver(),  # noqa: B008 - without state
) -> TrainedModel:
    """Train a linear model to a proved gap. **Collective.**

    Parameters
    ----------
    task : TrainingTask
        What is trained.
    comm : Communicator
        The ranks that share the rows.
    options : RunOptions
        How the run is conducted and kept.
    observer : TrainingObserver
        Learns of the plan, of the loaded rows and of each evaluation.

    Raises
    ------
    InputError
        On all ranks, if the data cannot be read, a class is missing, the memory does not suffice, or settings, bias,
        start, checkpoint or trace cannot be used. All checks that need no rows are made before the rows are read.

    Notes
    -----
    `distsms.training.plan` says which memory a run takes besides the rows. Besides the solver's evaluations, a run
    makes one pass over the rows for their scores, and with `measure_rows` sorts these over all ranks.
    """
    clock, reading, manifest, settings = Clock(comm.bytes_moved), ReadCounter(), task.manifest, task.settings
    node_ranks, ordering, step, plan = comm.node_ranks(), task.ordering, task.step, None
    with comm.fail_together():
        task.check()
        start = task.start_vector()
        if manifest is not None:
            asked = ordering, step, options.memory, bool(task.bias)
            plan = make_plan(manifest, task.measure, settings, comm.size, node_ranks, *asked)
            ordering, step = plan.ordering, plan.step
        elif options.memory is not None:
            raise InputError(
                "a memory limit is only for data sets, whose rows can be streamed; these rows are in memory already"
            )
    checked = options.check and task.measure.family != "rocarea"
    keep = options.trace, options.checkpoint, options.resume, task.identity()
    with recording(comm, settings, *keep) as recorder, contextlib.ExitStack() as stack:
        if plan is not None:
            observer.planned(plan, recorder.notes)
        reserved = None
        if checked and plan is not None and options.memory is not None:
            reserved = reserve(options.memory, plan.needs.least(comm.size, root=True))
            checked = reserved is not None
        block = (
            task.data
            if isinstance(task.data, DataBlock)
            else _load(task.data, comm, plan, reserved or 0.0, clock, reading)
        )
        ordering, (loss,) = make_losses(block, task.measure, ordering, comm)
        features = WithBias(block.features, task.bias) if task.bias else block.features
        step, _ = choose_step(step, features.shape[1], comm.size, settings.traits.spreadable)
        with clock.phase("measure"):
            vectors = make_vectors(step, features.shape[1], comm)
        stack.callback(vectors.close)
        observer.loaded(block, vectors)
        objective = Objective(features, [loss], comm, options.stop_wanted, clock, vectors)
        with reading if plan is not None and block.features.source else contextlib.nullcontext():
            result = recorder.minimize(objective, start, observer.evaluated)
    calls_positive, evaluations = loss.calls_positive, objective.evaluations
    del objective, loss  # free their arrays before the measures need memory
    if options.measure_rows:
        gc.collect()  # a run and its solver refer to each other, so only the collector frees them
    with clock.phase("threshold"):
        scores, labels = block.counted_scores(features.margins(result.w))
        threshold, training, data = decision_threshold(calls_positive, scores, labels, comm), None, None
        if options.measure_rows:
            training = headline_measures(task.measure, scores, labels, threshold, comm)
            if manifest is not None:
                data = describe_data_set(manifest, manifest.directory)
            else:
                data = describe_rows(block, task.fingerprint, comm)
        leaks = []
        if data and training and manifest is not None and manifest.table and training["rocarea"] > SUSPICIOUS:
            leaks = leaking_columns(block, manifest.table, result.w[: block.p], data["n_pos"], comm)
        chance = why_chance(scores, labels, training["rocarea"] if training else math.nan, comm)
    del scores, labels
    check = None
    if checked and result.status not in UNFINISHED:
        with clock.phase("check"):
            ended = result.seconds, result.evaluations, result.w
            what = block, task.measure, settings, task.bias, *ended, comm
            check = Checker(*what, memory=reserved, stop_wanted=options.stop_wanted).run(options.hold_out)
    w, bias = (result.w[:-1], task.bias * float(result.w[-1])) if task.bias else (result.w, 0.0)
    made = Distribution(ordering, step, comm.size)
    found = task, options, w, bias, threshold, result, made, chance, check, training, data
    return TrainedModel(*found, vectors, clock, reading, evaluations, leaks)


def _load(
    data: Manifest, comm: Communicator, plan: Plan | None, reserved: float, clock: Clock, reading: ReadCounter
) -> DataBlock:
    """Load this rank's rows within the memory of the plan, less `reserved` bytes for later use. Collective."""
    assert plan is not None
    room = plan.room(comm.is_root)
    with clock.phase("load"), reading:
        return dataset.load(data, comm, budget=room and room._replace(bytes=room.bytes - int(reserved)))
