"""`distsms.baseline`: does direct optimization pay on a data set?"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

from distsms.base.errors import speaking_python
from distsms.base.measures import Measure, check_chooser
from distsms.python.calls import blas_like_kernels, conversion_options, numbers, ranks_of, warn, watching
from distsms.workflow import tables
from distsms.workflow.baseline import Baseline, BaselineObserver, FitProgress, compare_methods
from distsms.workflow.requests import BaselineRequest, Path

NAMES = BaselineRequest.option_names()
"""The settings of `baseline` that are not about reading tables."""


def baseline(
    data: Any,
    output: Path,
    comm: Any = None,
    *,
    label: str | None = None,
    measure: str | Measure = "rocarea",
    select: str | None = None,
    lambdas: Sequence[float] | None = None,
    folds: int = 5,
    methods: Sequence[str] | None = None,
    thorough: bool = False,
    watch: Callable[[FitProgress], None] | None = None,
    stop_wanted: Callable[[], bool] | None = None,
    **settings: Any,
) -> Baseline:
    """Compare distsms with other methods on the same folds. **Collective.**

    It does what the command ``distsms baseline`` does with the options of the same names, and gives the same results.

    Parameters
    ----------
    data : path or DataFrame
        A data set made by ``distsms shard``; or a table as `train` takes it: a DataFrame with this rank's rows, or a
        file, a pattern or a folder of CSV or Parquet.
    output : path
        The folder for the fits and for ``baseline.json``. The same call again keeps the fits that are there, and makes
        the others; so it continues a baseline that was stopped or killed, or adds lambdas and methods.
    comm : mpi4py communicator, optional
        The ranks, which share rows or fits; None is this process alone.
    label : str, optional
        The column of labels, for tables.
    measure : str or Measure
        What distsms trains for: ``"rocarea"``, ``"prbep"``, or ``"pauc@0.05"`` (or another false positive rate).
    select : str, optional
        Another measure of the ranking that chooses the settings of all methods, such as ``"average-precision"`` or
        ``"tpr@fpr=0.01"``.
    lambdas : sequence of float, optional
        The lambdas of the linear methods; by default those of the path, or else 1, 0.1, ..., 1e-5 and more where the
        best one is at an end.
    folds : int
        The number of folds.
    methods : sequence of str, optional
        The methods, such as ``"distsms"``, ``"logistic"``, ``"svm"`` or ``"trees"``. By default the linear ones on the
        columns and one library of trees, as far as they suit the data and the memory and are installed;
        `Baseline.left_out` says which are not tried.
    thorough : bool
        True: fit all lambdas to the end on all folds, and try all methods and 20 settings of trees. False: try lambdas
        quickly, and fit the two that are best on the other folds; `Baseline.effort` says what was left out.
    watch : callable, optional
        Called before each fit, or before all fits of a method that are made together, with a
        `distsms.workflow.baseline.FitProgress`; on every rank.
    stop_wanted : callable, optional
        Asked on every rank before each fit and at each evaluation; True on any rank ends the run. The result then has
        `stopped` set, and finished fits are kept.
    **settings
        Everything else, by name.

    Other Parameters
    ----------------
    path : path
        A folder of ``distsms path``, from which measure, lambdas, folds, seed and target are taken.
    memory : float or str
        The most memory that each rank may take, in bytes or as ``"4GiB"``. Rows that do not fit are read from the disk
        on each pass.
    within_groups, folds_by, seed, trees, features, tree_fits, ordering, step, time_limit, epsilon, relative
        As the options of the command; False for ``trees`` or ``features`` leaves such methods out.
    solver, history, max_evaluations, ...
        Other fields of `distsms.optim.settings.Settings`.
    positive, id, drop, group, time, weight, ..., shards
        For tables: the options of ``distsms shard`` on reading, and a folder to keep the data set in.

    Returns
    -------
    Baseline
        The same on every rank: the methods with their intervals, and the conclusions in words. `to_dict` has what
        ``baseline.json`` has, and `to_frame` a row for each method.

    Examples
    --------
    >>> import tempfile, numpy as np, distsms
    >>> from distsms.shards.from_arrays import write_data
    >>> rng = np.random.default_rng(0)
    >>> X = rng.normal(size=(300, 3))
    >>> y = np.where(X[:, 0] + rng.normal(size=300) > 1, 1, -1)
    >>> with tempfile.TemporaryDirectory() as folder:
    ...     data = write_data(f"{folder}/data", X, y).directory
    ...     options = {"methods": ["distsms", "logistic"], "lambdas": [1e-1, 1e-2], "solver": "lbfgs"}
    ...     result = distsms.baseline(data, f"{folder}/out", folds=3, **options)
    >>> [method.method for method in result.methods]
    ['distsms', 'logistic', 'best other linear']
    >>> result.methods[0].intervals["rocarea"].value > 0.7
    True
    >>> result.to_frame().columns[:4].tolist()
    ['method', 'rocarea', 'rocarea_low', 'rocarea_high']
    """
    ranks = ranks_of(comm, locals() | settings)
    within_groups = settings.pop("within_groups", None)
    with speaking_python(), blas_like_kernels():
        table = tables.are_tables(data, ranks)
        with ranks.fail_together():
            of_table = {name: settings.pop(name) for name in settings.keys() - NAMES if table}
            reading = conversion_options(of_table | {"label": label} if label or table else {}, NAMES, "baseline")
            request = BaselineRequest.of_options(
                settings,
                data=data,
                reading=reading,
                output=output,
                measure=Measure.parse(measure).within(within_groups).name,
                select=None if select is None else check_chooser(select),
                lambdas=None if lambdas is None else numbers(lambdas, "lambdas"),
                folds=folds,
                methods=methods,
                thorough=thorough,
            )
        observer = watching(BaselineObserver(), "fitting", watch)
        result = compare_methods(request, ranks, observer, stop_wanted or (lambda: False))
    warn(ranks, result.warnings)
    return result
