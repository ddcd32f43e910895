"""The function `distsms.path`: models at several lambdas, and the one that cross-validation chooses."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any

from distsms.base.errors import InputError, speaking_python
from distsms.base.measures import Measure
from distsms.features.arrays import options
from distsms.python.calls import blas_like_kernels, numbers, ranks_of, warn, watching
from distsms.workflow.candidates import Candidate, named, parse
from distsms.workflow.choice import Point
from distsms.workflow.path_result import PathResult
from distsms.workflow.path_run import PathObserver, run_path
from distsms.workflow.requests import Path, PathRequest


def path(
    data: Path,
    comm: Any = None,
    *,
    output: Path | None = None,
    measure: str | Measure = "rocarea",
    lambdas: float | Sequence[float] | None = None,
    l1: float | Sequence[float] = 0.0,
    features: str | Mapping[str, Any] | Sequence[str | Mapping[str, Any]] = "raw",
    folds: int = 5,
    folds_by: str | None = None,
    select: str | None = None,
    rule: str = "best",
    watch: PathObserver | Callable[[Point], None] | None = None,
    **settings: Any,
) -> PathResult:
    """Train models for several lambdas, and choose one by cross-validation. **Collective.**

    It does what the command ``distsms path`` does with the options of the same names, and gives the same model.

    Parameters
    ----------
    data : path
        A data set made by ``distsms shard``.
    comm : mpi4py communicator, optional
        The ranks that share the rows; None is this process alone.
    output : path, optional
        The folder for all points and models. A call with the same folder makes only those points that are missing. None
        means a temporary folder; ranks on several hosts need one that all of them see.
    measure : str or Measure
        What to optimize: ``"rocarea"``, ``"prbep"``, ``"pauc@0.05"``, ``"gauc@pairs"``, ``"logistic"``, ... With
        several BETA, ``"pauc@0.01,0.05"``, there is a path for each of them and one for ROCArea.
    lambdas : float or sequence of float, optional
        The weights of ``lam/2 ||w||^2`` to try. None means 1, 0.1, ..., 1e-5, and others beyond an end where the best
        one is.
    l1 : float or sequence of float
        The weight of ``||w||_1``. With several there is a path for each.
    features : str, dict, or list of these
        What is made from the columns, for each fold without its rows: ``"raw"`` (the columns themselves), ``"bins"``,
        ``"crosses"``, ``"leaves"``, or options such as ``"bins=16,crosses=top:20"`` or ``{"bins": 16}``. With several
        there is a path for each.
    folds : int
        The number of folds; 0 trains models of all rows alone.
    folds_by : {"rows", "groups", "doubles", "time"}, optional
        What the folds keep together; by default groups, if the data set has them, else rows.
    select : str, optional
        The measure of held-out rows that chooses, such as ``"tpr@fpr=0.01"``; by default the one that is optimized,
        and ``"rocarea"`` for the logistic measures and ``"normal-auc"``.
    rule : {"best", "one-se"}
        Whether to take the lambda of the best mean, or the simplest model within one standard error of it.
    watch : callable or PathObserver, optional
        Called with each `Point` that is finished, on the rank that trained it (the root, unless the ranks share the
        folds of small data). A `distsms.workflow.path_run.PathObserver` is told of everything.
    **settings
        extend, bias, seed, ordering, step, at_once, memory (bytes, or ``"4GiB"``), time_limit (seconds), check, at and
        calibrate: as for the command; ``stop_wanted``, a function that is asked on every rank at each evaluation, and
        ends the run with True; ``within_groups``, as for `distsms.train`; and fields of
        `distsms.optim.settings.Settings`: solver, epsilon, relative, max_evaluations, ...

    Returns
    -------
    PathResult
        The same on every rank: the model, the choice of its lambda, all points, and what is odd about them.

    Examples
    --------
    >>> import numpy as np, distsms, tempfile
    >>> from distsms.shards.from_arrays import write_data
    >>> rng = np.random.default_rng(0)
    >>> y = np.where(rng.random(300) < 0.3, 1, -1)
    >>> with tempfile.TemporaryDirectory() as folder:
    ...     data = write_data(f"{folder}/data", rng.normal(size=(300, 3)) + np.outer(y > 0, [2, 1, 0]), y)
    ...     result = distsms.path(f"{folder}/data", lambdas=[1e-1, 1e-2], folds=3, solver="lbfgs")
    >>> result.choice.chosen.lam in (1e-1, 1e-2), result.model.info["status"], len(result.points)
    (True, 'proved', 8)
    """
    ranks = ranks_of(comm, locals() | settings)
    listed: Any = features if isinstance(features, list | tuple) else [features]
    stop_wanted, within_groups = settings.pop("stop_wanted", None), settings.pop("within_groups", None)
    with speaking_python(), ranks.fail_together():
        if "lam" in settings:
            raise InputError("a path takes several lambdas: give lambdas in place of lam")
        if within_groups is not None or not isinstance(measure, str):  # a text may name several
            measure = Measure.parse(measure).within(within_groups).name
        request = PathRequest.of_options(
            settings,
            data=data,
            output=output,
            measure=measure,
            lambdas=None if lambdas is None else numbers(lambdas, "lambdas"),
            l1=numbers(l1, "l1"),
            features=[
                parse(each) if isinstance(each, str) else Candidate(options(named(each)).text, named(each))
                for each in listed
            ],
            folds=folds,
            folds_by=folds_by,
            select=select,
            rule=rule,
        )
    observer = watch if isinstance(watch, PathObserver) else PathObserver()
    if callable(watch):
        watching(observer, "kept", lambda point, done, of: watch(point))
    with speaking_python(), blas_like_kernels():
        result = run_path(request, ranks, observer, stop_wanted or (lambda: False))
    warn(ranks, result.warnings)
    return result
