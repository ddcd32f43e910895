"""The functions of the package: training, evaluation and prediction over all ranks of a communicator.

`comm` is an mpi4py communicator of some or all ranks. With None, a function runs in this process alone and does not
start MPI (but PETSc, which the solver `lmvm` needs, starts it). Every function with a `comm` is collective: all ranks
of `comm` call it with the same arguments except for their rows, and get the same answer except for scores.

`data` is a path, whose rows the ranks share, or a pair (X, y) in memory with the rows of this rank: X is a SciPy sparse
matrix, array-like or a DataFrame of numbers of shape (n_local, p), and y of shape (n_local,) has labels such as +1 and
-1, 0 and 1, True and False, or "yes" and "no" (`distsms.data.labels.KNOWN_PAIRS`). The model stores the labels. A rank
may have no rows.

Wrong input raises `distsms.errors.InputError` on all ranks. If one rank alone raises another exception, the other ranks
wait for it forever. So start programs with `mpirun -n 4 python -m mpi4py driver.py`, which then ends the whole job. Set
OMP_NUM_THREADS=1 before NumPy is loaded: a BLAS with one thread for each core slows down the small quadratic programs
of the proof.

>>> import numpy as np, distsms
>>> rng = np.random.default_rng(0)
>>> y = np.where(rng.random(500) < 0.2, 1, -1)
>>> X = rng.normal(size=(500, 3)) + np.outer(y > 0, [2, 1, 0])
>>> model = distsms.train((X, y), measure="rocarea", lam=1e-2, solver="lbfgs")
>>> model.info["status"], model.info["gap"] <= 1e-3
('proved', True)
>>> found = distsms.evaluate(model, (X, y))
>>> found["n"], found["rocarea"] > 0.9
(500, True)
>>> scores = distsms.predict(model, X)
>>> found["tp"] == int(np.sum((scores >= model.threshold) & (y > 0)))
True
"""

from __future__ import annotations

import os
import warnings
from collections.abc import Callable, Sequence
from dataclasses import fields, replace
from typing import Any

import numpy as np
from numpy.typing import ArrayLike, NDArray

from distsms.data import frame_columns, frames, in_memory
from distsms.data.file_names import are_files
from distsms.data.frame_columns import is_frame, table_of
from distsms.data.shards import dataset
from distsms.errors import ColumnWarning, InputError, ModelWarning
from distsms.inference import model, scoring
from distsms.inference.contributions import contributions
from distsms.inference.inputs import InputOptions
from distsms.inference.model import Model
from distsms.inference.prediction import Data, Path, evaluate, predict
from distsms.measures import Measure
from distsms.metrics.headline import headline_measures
from distsms.optim.course import Watcher
from distsms.optim.result import State
from distsms.optim.settings import Settings
from distsms.parallel.arguments import require_same_arguments
from distsms.parallel.communicator import Communicator
from distsms.parallel.mpi import as_communicator
from distsms.selection import rocarea_check
from distsms.selection.decisions import Decisions
from distsms.training.fit import TrainingObserver, fit
from distsms.training.solver_choice import choose_solver, settings_for
from distsms.training.task import RunOptions, TrainingTask
from distsms.training.trained_model import TrainedModel

__all__ = ["contributions", "evaluate", "load_model", "predict", "save_model", "train"]

load_model, save_model = model.load, model.save


def train(
    data: Data,
    comm: Any = None,
    *,
    measure: str | Measure = "rocarea",
    lam: float | str | None = None,
    l1: float = 0.0,
    bias: float | None = None,
    start: Model | Path | None = None,
    ordering: str = "auto",
    step: str = "auto",
    watch: Watcher = lambda state, w: None,
    stop_wanted: Callable[[], bool] = lambda: False,
    memory: float | None = None,
    checkpoint: Path | None = None,
    checkpoint_every: float | None = None,
    resume: bool = False,
    trace: Path | None = None,
    label: str | None = None,
    weight: str | ArrayLike | None = None,
    group: str | ArrayLike | None = None,
    within_groups: str | None = None,
    split: Sequence[float] | None = None,
    split_by: str | None = None,
    seed: int = 0,
    shards: Path | None = None,
    check: bool = True,
    at: str | None = None,
    calibrate: str | None = None,
    **settings: Any,
) -> Model:
    """Train a linear model over the rows of all ranks, to a proved gap. **Collective.**

    Parameters
    ----------
    data : path, DataFrame or (X, y)
        A data set made by ``distsms shard``; a table, which is a DataFrame (of pandas, polars or pyarrow) with this
        rank's rows, or a file, a pattern or a folder of CSV or Parquet; or this rank's rows as arrays. X may be a
        DataFrame of numbers, whose columns `predict` and `evaluate` then find by their names.
    comm : mpi4py communicator, optional
        The ranks that share the rows; None is this process alone.
    measure : str or Measure
        What to optimize: ``"rocarea"``, ``"pauc@0.05"`` (or another false positive rate), ``"prbep"``,
        ``"error-rate"``, ``"logistic"``, ``"logistic-balanced"``, ``"normal-auc"``, ``"f1"`` (or ``"f0.5"``,
        ...), ``"precision@K"`` or ``"recall@K"``.
    lam : float or "auto", optional
        The weight of the regularizer ``lam/2 ||w||^2``. ``"auto"`` chooses it before the training, by a quick
        cross-validation on a sample of the rows; so does None for tables. For other data None is 1e-4.
    l1 : float
        The weight of ``||w||_1``: with a positive number the regularizer is the elastic net ``l1 ||w||_1 + lam/2
        ||w||^2``, and many coefficients are exactly 0.
    bias : float, optional
        The value of a constant feature, whose weight is regularized like any other; 0 means that there is none. The
        default is 1 for the logistic measures, and none for others.
    start : Model or path, optional
        A model to begin from; it may have fewer columns than the data.
    ordering : {"auto", "gather", "exchange", "bins"}
        How the scores of all rows are sorted: all on the root, or where the rows are. "bins", for ROCArea and pauc,
        counts them in place of sorting, and J is the upper end of a small interval.
    step : {"auto", "root", "spread"}
        Where the solver's vectors are kept: whole on the root, or a slice of each on every rank.
    watch : callable
        Called after each evaluation with a `distsms.optim.result.State` and the best w so far. It is called on the
        root; if vectors are spread, it is called on every rank with the rank's slice of w. The time that it takes does
        not count as time of the run.
    stop_wanted : callable
        Asked on every rank at each evaluation; True on any rank ends the run with what it has.
    memory : float, optional
        The most bytes that each rank may take. Rows of a data set that do not fit are read from the disk on each pass,
        with the same results. With None all rows are held in memory, and a run that does not fit is
        refused; only what does not fit of a table's temporary data set is read again.
    checkpoint : path, optional
        A folder for the state of the run, from which it can continue after it was stopped or killed, on any number of
        ranks.
    checkpoint_every : float, optional
        Seconds between two checkpoints, 300 by default. One is always written at the end of the run.
    resume : bool
        Continue from the newest checkpoint in the folder; without one, start from the beginning. Data, measure, lambda
        and method must be the same.
    trace : path, optional
        A file that gets one JSON line for each evaluation. If a run is resumed, its trace is continued.
    label : str, optional
        The column of labels, for tables.
    weight : str or array-like, optional
        The weight of each row, at least 0: the name of a column for tables, and an array of shape (n_local,) for
        ``(X, y)``, on every rank or on none. A row of weight 3 counts as three rows, and one of weight 0 is left out.
        Data sets have the weights with which they were made. F-beta and the measures at K count rows, and refuse
        different weights.
    group : str or array-like, optional
        The group of each row, such as its query or user: the name of a column for tables, and an array of shape
        (n_local,) for ``(X, y)``, on every rank or on none. Data sets have the groups with which they were made.
    within_groups : {"pairs", "each"}, optional
        Compare only rows of the same group, for the measure ``"rocarea"``: each group counts as much as it has pairs,
        or all groups alike. The measure is then called ``"gauc@pairs"`` or ``"gauc@each"``.
    split : sequence of float, optional
        The shares of training and test rows of a table, such as ``(0.8, 0.2)``: `info["test"]` has the measures on the
        test rows. None: all rows train.
    split_by : {"rows", "groups", "doubles", "time"}, optional
        What the split keeps together; by default groups with ``group``, time with ``time`` alone, else rows.
    seed : int
        The seed of the split.
    shards : path, optional
        A folder for the data sets that are made from a table; None means a temporary folder. If the ranks are on
        several hosts, a folder that all hosts see must be given.
    check : bool
        After a training for another measure than ROCArea, compare the model with a quick ROCArea model of a sample of
        the rows, in at most a tenth of the run's time or two seconds.
    at : str, optional
        A condition for the threshold, such as ``"precision>=0.9"``, ``"recall>=0.95"``, ``"fpr<=0.001"`` or
        ``"top=1%"``. Models of five folds are trained after the training, and ``info["threshold"]`` is the threshold
        that their held-out rows support; ``info["decision"]`` says how well.
    calibrate : {"sigmoid", "isotonic"}, optional
        Fit a curve from scores to probabilities on the same held-out rows, for `Model.probabilities`.
    **settings
        For tables, the options of ``distsms shard`` with these names: positive, id, drop, time, keep, normalize,
        decimal, thousands, separator, missing, not_missing; and the fields of
        `distsms.data.formats.column_options.ColumnOptions`: categorical, numeric, dates, hashed, min_count. For files
        of sequences, the fields of
        `distsms.data.formats.sequence_rules.SequenceOptions`: fasta, alphabet, window, degree, spectra,
        spectrum_degree, labels. For all data, other fields of `distsms.optim.settings.Settings`: solver, epsilon,
        relative, max_evaluations, time_limit, ... The default solver is ``lmvm``; ``lbfgs`` if petsc4py cannot be
        imported; ``bmrm`` for F-beta and the measures at K.

    Returns
    -------
    Model
        The same on every rank. Its `info` says how the run ended (status, J, lower_bound, gap), with which settings,
        and where it was run (versions, host, command). A gap that was not proved is not an error, and neither is a
        model that ranks no better than chance (``vacuous``); ``warnings`` says what to use instead.

    Raises
    ------
    InputError
        On all ranks, if data, settings, checkpoint or trace cannot be used.

    Warns
    -----
    ModelWarning
        On the root (`ColumnWarning`, once), if columns of a table were left out or look odd; `info["columns"]` lists
        all columns. If the model ranks no better than chance on its training rows or on rows that it has not seen (test
        rows of a table, folds of ``lam="auto"``), or a quick ROCArea model is clearly better. For tables
        also if a column tells the outcome, or if the model is far better on its training rows than on test rows.

    Examples
    --------
    >>> import numpy as np, distsms
    >>> X, y = np.array([[1.0], [0.0], [2.0]]), [1, -1, 1]
    >>> distsms.train((X, y), measure="prbep", lam=0.1, solver="bmrm").info["status"]
    'proved'
    """
    alike = {name: value for name, value in locals().items() if name not in ("comm", "settings")}
    comm = as_communicator(comm)
    require_same_arguments(comm, **alike, **settings)
    how: dict[str, Any] = {"ordering": ordering, "step": step, "watch": watch, "stop_wanted": stop_wanted}
    how |= {"memory": memory, "checkpoint": checkpoint, "checkpoint_every": checkpoint_every, "resume": resume}
    with comm.fail_together():
        how["decide"] = Decisions.wanted(at, calibrate)
    how |= {"trace": trace, "lam": lam, "start": start, "check": check}
    settings["l1"] = l1
    how["measure"] = measure = Measure.parse(measure).within(within_groups)
    how["bias"] = measure.bias(bias)
    weights, groups = (None if isinstance(given, str) else given for given in (weight, group))
    if is_frame(data) or (isinstance(data, str | os.PathLike) and comm.bcast(are_files([os.fspath(data)]))):
        how["lam"] = "auto" if lam is None and not resume else lam
        if weights is not None or groups is not None:
            raise InputError("weight and group are names of columns for tables; put these into the table", True)
        columns = {"label": label, "weight": weight, "group": group}
        made = _train_table(data, comm, shards, (split, split_by, seed), columns | settings, how)
    elif label is not None or split is not None or shards is not None:
        raise InputError("label, split and shards are for tables: DataFrames, CSV or Parquet", everywhere=True)
    elif any(
        given is not None and (isinstance(given, str) or isinstance(data, str | os.PathLike))
        for given in (weight, group)
    ):
        raise InputError(
            "weight and group are names of columns for tables, and arrays for rows in memory; data sets have the "
            "weights and groups with which distsms shard --weight and --group made them",
            everywhere=True,
        )
    else:
        _, made = _train_rows(data, comm, settings, weights=weights, groups=groups, **how)
    if comm.is_root:
        for warning in made.info["warnings"]:
            warnings.warn(frames.in_python(warning), ModelWarning, stacklevel=2)
    return made


def _train_rows(
    data: Data,
    comm: Communicator,
    settings: dict[str, Any],
    *,
    lam: float | str | None,
    weights: ArrayLike | None = None,
    groups: ArrayLike | None = None,
    temporary: bool = False,
    **how: Any,
) -> tuple[TrainedModel, Model]:
    """Train on a data set or on rows in memory; `lam` and `how` are arguments of `train`. **Collective.**

    temporary : whether the shards of the data set may be removed as they are read.
    """
    measure, start, checkpoint, resume = (how[name] for name in ("measure", "start", "checkpoint", "resume"))
    every, stop_wanted = how["checkpoint_every"], how["stop_wanted"]
    options = "solver_options" if settings.get("solver_options") else ""
    solver, _ = choose_solver(settings.pop("solver", None), measure, comm, lmvm_only=options, l1=settings.get("l1", 0))
    with comm.fail_together():
        if checkpoint is None and (resume or every is not None):
            raise InputError("resume and checkpoint_every need checkpoint, the folder where the checkpoints are")
        every = 300.0 if every is None and checkpoint is not None else every
        lam_now = 1e-4 if lam in (None, "auto") else lam
        chosen = settings_for(measure, solver, lam=lam_now, checkpoint_every=every, **settings)
        begin = model.load(start) if isinstance(start, str | os.PathLike) else start
    rows: dataset.DataBlock | dataset.Manifest
    fingerprint = None
    if isinstance(data, str | os.PathLike):
        with comm.fail_together():
            rows = dataset.read_manifest(data)
    else:
        with comm.fail_together():
            X, y = in_memory.pair(data)
        X, names = frame_columns.numbers(X, comm)
        rows = replace(in_memory.block(X, y, comm, weights=weights, groups=groups), table=table_of(names))
        if checkpoint is not None:
            fingerprint = in_memory.fingerprint(X, rows.labels, rows.first_row, comm, rows.weights, rows.groups)
    name = "start" if start is None or isinstance(start, Model) else os.fspath(start)
    layout = how["ordering"], how["step"]
    automatic = None
    if lam == "auto":
        from distsms.selection.auto_lambda import choose_lambda

        automatic = choose_lambda(rows, measure, comm, chosen, how["bias"], *layout, stop_wanted=stop_wanted)
        chosen = replace(chosen, lam=automatic.lam)
    task = TrainingTask(rows, Measure.parse(measure), chosen, how["bias"], begin, name, *layout, fingerprint)
    check = rocarea_check.check if how["check"] else None
    conduct = RunOptions(
        how["memory"],
        checkpoint,
        resume,
        how["trace"],
        stop_wanted,
        check=check,
        decide=how["decide"],
        temporary=temporary,
    )
    trained = fit(task, comm, conduct, _Watching(how["watch"]))
    if automatic:
        trained.unseen, trained.automatic, trained.on_folds = automatic.chance, True, automatic.on_folds
    made = trained.to_model(comm)
    if automatic is not None:
        made.info["auto_lambda"] = automatic.as_json()
    return trained, made


def _train_table(
    data: Any,
    comm: Communicator,
    shards: Path | None,
    split: tuple[Sequence[float] | None, str | None, int],
    settings: dict[str, Any],
    conduct: dict[str, Any],
) -> Model:
    """Train on a table, and measure the model on the test rows if there are some. **Collective.**

    `settings` has the options for the table, too; `conduct` has the other arguments of `train`.
    """
    own = {field.name for field in fields(Settings)} | {"relative", "solver"}
    with comm.fail_together():
        reading = frames.conversion_options({name: settings.pop(name) for name in list(settings) if name not in own})
        if conduct["checkpoint"] is not None and shards is None:
            raise InputError("a run with a checkpoint needs its shards again when it is resumed; give shards=FOLDER")
    with frames.as_data_sets(data, comm, shards, *split, reading, conduct["memory"] is None) as sets:
        trained, found = _train_rows(sets[0].directory, comm, settings, temporary=shards is None, **conduct)
        found.info["data"]["directory"] = None if shards is None else os.fspath(sets[0].directory)
        found.info["columns"], odd = frames.describe_columns(sets[0].columns or ())
        if odd and comm.is_root:
            warnings.warn(odd, ColumnWarning, stacklevel=3)
        if len(sets) == 2:
            reading_groups = InputOptions(groups=trained.task.measure.within_groups is not None)
            test = scoring.score([found], sets[1].directory, comm, reading_groups)
            (scores, labels, weights), groups = test.counted_scores(), test.counted_groups
            measures = headline_measures(trained.task.measure, scores, labels, found.threshold, comm, weights, groups)
            area = trained.judge_test(scores, labels, comm, weights, groups)
            found.info.update(trained.findings(), test=measures, test_rows=area.as_json())
    return found


class _Watching(TrainingObserver):
    """Calls a function after each evaluation."""

    def __init__(self, watch: Watcher) -> None:
        self._watch = watch

    def evaluated(self, state: State, w: NDArray[np.float64]) -> None:
        self._watch(state, w)
