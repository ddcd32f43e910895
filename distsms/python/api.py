"""The functions of the package: training, evaluation and prediction over all ranks of a communicator.

`comm` is an mpi4py communicator of some or all ranks. With None, a function runs in this process alone and does not
start MPI (but PETSc, which the solver `lmvm` needs, starts it). Every function with a `comm` is collective: all ranks
of `comm` call it with the same arguments except for their rows, and get the same answer except for scores.

`data` is a path, whose rows the ranks share, or a pair (X, y) in memory with the rows of this rank: X is a SciPy sparse
matrix, array-like or a DataFrame of numbers of shape (n_local, p), and y of shape (n_local,) has labels such as +1 and
-1, 0 and 1, True and False, or "yes" and "no" (`shards.labels.KNOWN_PAIRS`). The model stores the labels. A rank
may have no rows.

Wrong input, and settings or files that cannot be used, raise `distsms.InputError` on all ranks. What users must know of
a model, or of the rows that it is measured on, is in `warnings` of the result, and given as `ModelWarning` on the root;
`ColumnWarning` says that columns of a table were left out or look odd. The logger ``distsms`` gets the main steps of a
training, at the level INFO, on the root.

If one rank alone raises another exception, the others wait for it forever. So start programs with
`mpirun -n 4 python -m mpi4py driver.py`, which then ends the whole job. What trains computes with as many threads as
OMP_NUM_THREADS says, or with one, and so does BLAS meanwhile.

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

import logging
import os
from collections.abc import Mapping, Sequence
from typing import Any

from numpy.typing import ArrayLike

from distsms.base.communicator import Communicator
from distsms.base.errors import InputError, speaking_python
from distsms.base.formatting import did_you_mean
from distsms.base.measures import Measure, display_name
from distsms.base.wording import in_python
from distsms.models import model
from distsms.models.model import Model
from distsms.python import calls
from distsms.python.judging import Data, contributions, evaluate, predict, reasons, report, verify
from distsms.shards import from_arrays
from distsms.shards.from_arrays import is_frame
from distsms.training.task import TrainingTask
from distsms.workflow import train as workflow
from distsms.workflow.requests import Arrays, Split, TrainRequest

__all__ = ["contributions", "evaluate", "load_model", "predict", "reasons", "report", "save_model", "train", "verify"]

load_model, save_model = model.load, model.save


def train(
    data: Data,
    comm: Any = None,
    *,
    measure: str | Measure = "rocarea",
    lam: float | str | None = None,
    label: str | None = None,
    weight: str | ArrayLike | None = None,
    group: str | ArrayLike | None = None,
    split: Sequence[float] | None = None,
    at: str | None = None,
    calibrate: str | None = None,
    memory: float | str | None = None,
    **settings: Any,
) -> Model:
    """Train a linear model over the rows of all ranks, to a proved gap. **Collective.**

    It does what the command ``distsms train`` does with the options of the same names, and gives the same model of the
    same training rows. Of a table, the command holds out a fifth unless it is told otherwise, as ``split=(0.8, 0.2)``
    does here.

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
        The weight of the regularizer ``lam/2 ||w||^2``. ``"auto"`` chooses it by a quick cross-validation on a sample
        of the rows; so does None for tables and data sets made of them. Else None is 1e-4, and with `resume` the lambda
        of the checkpoint.
    label : str, optional
        The column of labels, for tables.
    weight, group : str or array-like, optional
        The weight (at least 0) and the group of each row, such as its query or user: the name of a column for tables,
        and an array of shape (n_local,) for ``(X, y)``, on every rank or on none. A row of weight 3 counts as three
        rows. F-beta and the measures at K count rows, and refuse different weights.
    split : pair of float, optional
        The shares of training and test rows of a table, such as ``(0.8, 0.2)``: `info["test"]` has the measures on the
        test rows. None: all rows train.
    at : str, optional
        A condition for the threshold, such as ``"precision>=0.9"``, ``"recall>=0.95"``, ``"fpr<=0.001"`` or
        ``"top=1%"``. Models of five folds are trained after the training, and ``info["threshold"]`` is the threshold
        that their held-out rows support; ``info["decision"]`` says how well.
    calibrate : {"sigmoid", "isotonic"}, optional
        Fit a curve from scores to probabilities on the same held-out rows, for `Model.probabilities`.
    memory : float or str, optional
        The most memory that each rank may take, in bytes or as ``"4GiB"``. Rows of a data set that do not fit are read
        from the disk on each pass, with the same results. With None all rows are held, or the data set is refused.
    **settings
        Everything else, by name.

    Other Parameters
    ----------------
    l1 : float
        The weight of ``||w||_1``. With a positive number many coefficients are exactly 0.
    bias : float
        The value of a constant feature, whose weight is regularized like any other; 0 for none. The default is 1 for
        the logistic measures, and none for others.
    within_groups : {"pairs", "each"}
        Compare only rows of the same group, for the measure ``"rocarea"``: each group counts as much as it has pairs,
        or all groups alike. The measure is then called ``"gauc@pairs"`` or ``"gauc@each"``.
    start : Model or path
        A model to begin from; it may have fewer columns than the data.
    watch : callable
        Called after each evaluation, outside of the run's time, with a `distsms.optim.result.State` and the best w so
        far: on the root or, if vectors are spread, on every rank with its slice of w.
    stop_wanted : callable
        Asked on every rank at each evaluation; True on any rank ends the run with what it has, and in the search, where
        there is no model yet, with a `DistsmsError`.
    checkpoint, checkpoint_every, resume : path, float, bool
        A folder for the state of the run, the seconds between two states (300; the last one is always written), and
        whether to continue from the newest one, if there is one, on any number of ranks. Data, measure, lambda and
        method must then be the same. The shards of a table are taken from `shards`.
    trace, certificate : path
        Files that get a line of JSON for each evaluation, and what others need to check the lower bound; see `verify`.
    split_by : {"rows", "groups", "doubles", "time"}
        What the split keeps together; by default groups with ``group``, time with ``time`` alone, else rows.
    seed : int
        The seed of the split, 0 by default.
    shards, overwrite : path, bool
        A folder for the data sets that are made from a table, by default a temporary one, and whether to replace those
        that are there. Ranks on several hosts, and `checkpoint`, need one.
    search : float or str
        For tables, the seconds of the search (or a time such as ``"10m"``) among features of the columns (bins,
        crosses, leaves of trees) and between the measure and logistic regression, which are compared on folds. 0 leaves
        it out. By default ten times what a training on the columns takes, and at least 30; none with fewer than 1,000
        rows or 50 of a class, or where a setting is for a model of the columns. ``info["search"]`` says what was tried.
    check : bool
        False: do not compare models for other measures with a quick ROCArea model, on the test rows or on a part of a
        sample of the rows, in at most a tenth of the run's time or two seconds.
    ordering : {"auto", "gather", "exchange", "bins"}
        How the scores of all rows are sorted: all on the root, or where the rows are. "bins", for ROCArea and pauc,
        counts them in place of sorting, and J is the upper end of a small interval.
    device : {"cpu", "cuda"}
        What computes with the rows: the processor, or the graphics processor of each rank, for rocarea, pauc, prbep and
        the logistic measures. It needs ``numba-cuda``.
    step : {"auto", "root", "spread"}
        Where the solver's vectors are kept: whole on the root, or a slice of each on every rank.
    solver, epsilon, relative, max_evaluations, time_limit, ...
        The fields of `distsms.optim.settings.Settings`. The default solver is ``lmvm``; ``lbfgs`` if petsc4py cannot be
        imported; ``bmrm`` for F-beta and the measures at K.
    positive, id, drop, time, keep, normalize, decimal, thousands, separator, missing, not_missing, no_header,
    names, missing_group
        For tables, the options of ``distsms shard`` with these names; and the fields of
        `distsms.shards.column_options.ColumnOptions` and, for files of sequences, of
        `distsms.shards.sequence_rules.SequenceOptions`.

    Returns
    -------
    Model
        The same on every rank. Its `info` says how the run ended (status, J, lower_bound, gap), with which settings,
        and where it was run (versions, host, command). A gap that was not proved is not an error, and neither is a
        model that ranks no better than chance (``vacuous``); ``warnings`` says what to use instead.

    Examples
    --------
    >>> import numpy as np, distsms
    >>> X, y = np.array([[1.0], [0.0], [2.0]]), [1, -1, 1]
    >>> distsms.train((X, y), measure="prbep", lam=0.1, solver="bmrm").info["status"]
    'proved'
    """
    ranks = calls.ranks_of(comm, locals() | settings)
    arrays = not (is_frame(data) or isinstance(data, str | os.PathLike))
    calls.require_columns(weight, group, arrays)
    watch, stop_wanted = settings.pop("watch", None), settings.pop("stop_wanted", None)
    with speaking_python(), ranks.fail_together():
        if "plain" in settings:
            raise InputError("there is no option 'plain': search=0 trains on the columns, without a search")
        others = settings.keys() - NAMES
        if arrays and others:
            raise InputError(f"there is no option {min(others)!r} for these rows{did_you_mean(min(others), NAMES)}")
        columns = {"label": label} if arrays else {"label": label, "weight": weight, "group": group}
        reading = calls.conversion_options({name: settings.pop(name) for name in others} | columns, NAMES)
        X, y = from_arrays.pair(data) if arrays else (None, None)
        request = TrainRequest.of_options(
            settings,
            data=Arrays(X, y, weight, group) if arrays else data,
            measure=Measure.parse(measure).within(settings.pop("within_groups", None)),
            split=Split(calls.shares(split), settings.pop("split_by", None), settings.pop("seed", 0)),
            reading={name: value for name, value in reading.items() if value is not None},
            lam=lam,
            at=at,
            calibrate=calibrate,
            memory=memory,
        )
    with speaking_python(), calls.blas_like_kernels():
        observer = calls.watching(Progress(ranks), "evaluated", watch)
        trained = workflow.train(request, ranks, observer, stop_wanted or (lambda: False))
    odd, reports = list[str](), trained.sets and trained.sets.training.columns
    if reports:
        trained.model.info["columns"], odd = calls.describe_columns(reports)
    calls.warn(ranks, [*observer.warnings, *trained.warnings], odd)
    return trained.model


OF_RUN = {"settings", "distribution", "output", "test", "ignore_new", "folds", "features_of"}
OF_RUN |= {"data", "measure", "memory", "at", "calibrate", "split", "reading", "points"}
"""Options of `TrainRequest` that `train` leaves as they are, or makes of its arguments and of several settings."""
OF_PARTS = {"within_groups", "split_by", "seed", "watch", "stop_wanted"}
"""Settings of `train` that are parts of a field, or of none."""
NAMES = TrainRequest.option_names() - OF_RUN | OF_PARTS
"""The settings of `train`: all other fields of `TrainRequest`, and those of the solver, one of which is lambda."""


class Progress(workflow.TrainObserver):
    """Logs the main steps of a training on the root, and keeps the warnings on files."""

    def __init__(self, comm: Communicator) -> None:
        self.warnings = list[str]()
        self._log = logging.getLogger("distsms").info if comm.is_root else lambda message, *values: None

    def noted(self, kind: str, text: str) -> None:
        if kind != "warning":  # the root gives them as `ModelWarning`
            self._log("%s%s %s", kind, "" if kind in ("lambda", "solver") else ":", in_python(text))

    def ready(self, task: TrainingTask) -> None:
        data, settings = task.data, task.settings
        self._log("training for %s on %d rows and %d columns by %s", task.measure, data.n, data.p, settings.solver)

    def cautioned(self, warning: str) -> None:
        self.warnings.append(warning)

    def trained(self, trained: workflow.Trained) -> None:
        result = trained.run.result
        sentence = result.status.sentence
        self._log("%s; gap %.3g, %d evaluations, %.2f s", sentence, result.gap, result.evaluations, result.seconds)
        self._log("training rows: %s", _measures(trained.run.scores.measures))

    def tested(self, trained: workflow.Trained) -> None:
        self._log("test rows: %s", _measures(trained.test or {}))


def _measures(values: Mapping[str, float]) -> str:
    return ", ".join(f"{display_name(name)} {value:.4f}" for name, value in values.items())
