"""The functions of the package: training, evaluation and prediction over all ranks of a communicator.

`comm` is an mpi4py communicator of some or all ranks. None is this process alone and starts no MPI (though PETSc,
which the solver `lmvm` needs, does). Every function with a `comm` is collective: all its ranks call it with the same
arguments except for their rows, and get the same answer except for scores.

`data` is a path, whose rows the ranks share, or a pair (X, y) in memory: the rows of this rank, with X a SciPy sparse
matrix or array-like of shape (n_local, p), and y of shape (n_local,) with labels +1 and -1. A rank may have no rows.

Wrong input raises `distsms.errors.InputError` on all ranks alike. Anything else that one rank raises leaves the others
waiting; start drivers by `mpirun -n 4 python -m mpi4py driver.py`, which ends the whole job then. Set OMP_NUM_THREADS=1
before NumPy is loaded: a BLAS with one thread for each core slows down the small programs of the proof.

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
from collections.abc import Callable
from typing import Any, TypeAlias

import numpy as np
from numpy.typing import ArrayLike, NDArray

from distsms.data.shards import dataset
from distsms.errors import InputError
from distsms.inference import evaluation, inputs, model, scoring
from distsms.inference.model import Model
from distsms.matrix.local import as_features
from distsms.optim.train import Watcher
from distsms.parallel.communicator import Communicator
from distsms.parallel.mpi import as_communicator
from distsms.training import fit

Path: TypeAlias = str | os.PathLike[str]
Data: TypeAlias = Path | tuple[Any, ArrayLike]
"""A path, or this rank's (X, y)."""

load_model, save_model = model.load, model.save


def train(
    data: Data,
    comm: Any = None,
    *,
    measure: str = "rocarea",
    lam: float = 1e-4,
    bias: float | None = None,
    start: Model | Path | None = None,
    ordering: str = "auto",
    watch: Watcher = lambda state, w: None,
    stop_wanted: Callable[[], bool] = lambda: False,
    **settings: Any,
) -> Model:
    """Train a model to a proved gap on the rows of all ranks.

    Parameters
    ----------
    data : path, or (X, y)
        A data set (no text file), or the rows of this rank: X sparse or array-like of shape (n_local, p), y of shape
        (n_local,) with labels +1 and -1.
    comm : mpi4py communicator, optional
        The ranks that take part; None is this process alone.
    measure : str
        What to optimize: "rocarea", "prbep", "error-rate", "f1" (or "f0.5", ...), "precision@K" or "recall@K".
    lam : float
        Weight lambda of the regularizer lambda/2 ||w||^2.
    bias : float, optional
        Value of a constant feature, whose weight is regularized like any other.
    start : Model or path, optional
        A model to start from.
    ordering : {"auto", "gather", "exchange"}
        How the scores of all rows are ordered.
    watch : callable
        Called after each evaluation with a `State` (the numbers of a line of the trace) and the best w so far: on the
        root, or, from 2^20 columns on, on every rank with its slice of w.
    stop_wanted : callable
        Called on every rank at each evaluation. If it returns True on any rank, the run ends in order.
    **settings
        Fields of `Settings`, such as solver, epsilon, relative, max_evaluations or time_limit. Without a solver it is
        lmvm, or lbfgs where petsc4py cannot be imported, or bmrm for F-beta and the measures at K.

    Returns
    -------
    Model
        The model, the same on every rank. `info` says how the run ended: status, J, lower_bound, gap. A gap that was
        not proved is no error.

    Raises
    ------
    InputError
        On all ranks, if data or settings cannot be used.

    Notes
    -----
    Collective. An evaluation of J takes two passes over the rows of each rank.

    Examples
    --------
    >>> import numpy as np, distsms
    >>> X, y = np.array([[1.0], [0.0], [2.0]]), [1, -1, 1]
    >>> distsms.train((X, y), measure="prbep", lam=0.1, solver="bmrm").info["status"]
    'proved'
    """
    comm = as_communicator(comm)
    options = "solver_options" if settings.get("solver_options") else ""
    solver, _ = fit.choose_solver(settings.pop("solver", None), measure, comm, lmvm_only=options)
    with comm.fail_together():
        chosen = fit.settings_for(measure, solver, lam=lam, **settings)
    rows, origin, manifest = _training_rows(data, comm)
    with comm.fail_together():
        begin = model.load(start) if isinstance(start, str | os.PathLike) else start
        w = None if begin is None else _start(begin, rows.p, bias, manifest)
    found = fit.fit(
        rows.features, rows.labels, rows.weights, measure, chosen, comm, bias, w, ordering, watch, stop_wanted
    )
    on_training = fit.measured(measure, *rows.counted_scores(found.scores), found.threshold, comm)
    told = found.result, found.layout, found.bias, found.threshold, on_training
    return model.from_training(found.w, fit.info(measure, chosen, *told, origin, _versions()), manifest)


def predict(
    model: Model | Path,
    data: Any,
    comm: Any = None,
    *,
    ignore_new_features: bool = False,
    zero_based: bool | None = None,
) -> NDArray[np.float64]:
    """Score the rows of this rank.

    Parameters
    ----------
    model : Model or path
        The model.
    data : path, or X
        A data set or a file, of whose rows each rank gets a contiguous share in the order of the ranks; or the rows of
        this rank, sparse or array-like of shape (n_local, p).
    comm : mpi4py communicator, optional
        The ranks that take part; None is this process alone.
    ignore_new_features : bool
        Leave out columns of a path that the model lacks, instead of refusing them.
    zero_based : bool, optional
        Whether svmlight text counts columns from 0; None: as the training data did.

    Returns
    -------
    ndarray of shape (n_local,)
        The scores <w, x> + bias, float64. A row is called positive where its score is at least `model.threshold`.

    Raises
    ------
    InputError
        On all ranks, if the rows do not fit the model or a score is not finite.

    Notes
    -----
    Collective. One pass over the rows.
    """
    comm = as_communicator(comm)
    judge, how = _model(model, comm), inputs.InputOptions(ignore_new_features, False, zero_based)
    rows = data if isinstance(data, str | os.PathLike) else (data, None)
    return _scored(judge, rows, comm, how).scores[0]


def evaluate(
    model: Model | Path,
    data: Data,
    comm: Any = None,
    *,
    threshold: float | None = None,
    k: int | None = None,
    ignore_new_features: bool = False,
    zero_based: bool | None = None,
) -> dict[str, Any]:
    """Measure a model on the labelled rows of all ranks, exactly.

    Parameters
    ----------
    model : Model or path
        The model.
    data : path, or (X, y)
        A data set or a file, or the rows of this rank as for `train`.
    comm : mpi4py communicator, optional
        The ranks that take part; None is this process alone.
    threshold : float, optional
        Call a row positive if its score is at least this; None takes the threshold of the model.
    k : int, optional
        Also give precision@k and recall@k; None takes the k that the model was trained for, if any.
    ignore_new_features : bool
        Leave out columns of a path that the model lacks, instead of refusing them.
    zero_based : bool, optional
        Whether svmlight text counts columns from 0; None: as the training data did.

    Returns
    -------
    dict
        The measures, the same on every rank, by the keys that `distsms evaluate --json` has for them: rocarea, prbep,
        average_precision, threshold, tp, fp, fn, tn, precision, recall, f1, error_rate, n, n_pos, n_neg and others.
        What is not defined is NaN.

    Raises
    ------
    InputError
        On all ranks, if the rows do not fit the model or a score is not finite.

    Notes
    -----
    Collective. No rank gathers the scores of all rows.
    """
    comm = as_communicator(comm)
    judge, how = _model(model, comm), inputs.InputOptions(ignore_new_features, True, zero_based)
    return evaluation.compute_measures(judge, *_scored(judge, data, comm, how).counted_scores(), comm, threshold, k)


def _model(given: Model | Path, comm: Communicator) -> Model:
    if isinstance(given, Model):
        return given
    with comm.fail_together():
        return model.load(given)


def _scored(
    judge: Model, data: Path | tuple[Any, Any], comm: Communicator, how: inputs.InputOptions
) -> scoring.ScoredRows:
    if isinstance(data, str | os.PathLike):
        return scoring.score([judge], data, comm, how)
    rows = _in_memory(*data, comm, judge.p)
    rows.features.normalize(judge.normalization.by_row)
    found = scoring.ScoredRows(scoring.score_rows([judge], rows.features), rows.labels, rows.counted)
    return scoring.checked(found, "the rows given", comm)


def _start(begin: Model, p: int, bias: float | None, manifest: dataset.Manifest | None) -> NDArray[np.float64]:
    return fit.start_from(begin, p, bias, "start", *([manifest.normalization] if manifest else []))


def _training_rows(data: Data, comm: Communicator) -> tuple[dataset.DataBlock, dict[str, Any], dataset.Manifest | None]:
    """This rank's rows, what is known of all of them, and their data set. Collective."""
    if isinstance(data, str | os.PathLike):
        with comm.fail_together():
            manifest = dataset.read_manifest(data)
        return dataset.load(manifest, comm), fit.origin(manifest, data), manifest
    rows = _in_memory(*data, comm)
    counts = [len(rows.labels), rows.features.nnz, np.sum(rows.labels > 0), np.sum(rows.labels < 0)]
    n, nnz, n_pos, n_neg = map(int, comm.sum(np.array(counts)))
    meaning = {"label_map": {"+1": 1, "-1": -1}, "zero_based": False, "directory": None, "fingerprint": None}
    return rows, meaning | {"n": n, "p": rows.p, "nnz": nnz, "n_pos": n_pos, "n_neg": n_neg}, None


def _in_memory(X: Any, y: ArrayLike | None, comm: Communicator, p: int | None = None) -> dataset.DataBlock:
    """This rank's rows as a block. Collective. Without y, labels are 0; p : the columns that a model has."""
    with comm.fail_together():
        if np.ndim(X) != 2:
            raise InputError(f"X has {np.ndim(X)} dimensions; rows and columns are wanted")
        n_local, width = X.shape if hasattr(X, "shape") else np.shape(X)
        labels = np.zeros(n_local) if y is None else np.asarray(y)
        if labels.shape != (n_local,) or (y is not None and not np.isin(labels, (-1, 1)).all()):
            raise InputError(f"y has shape {labels.shape}; {n_local} labels, +1 or -1, are wanted")
        if p is not None and width != p:
            raise InputError(f"X has {width} columns, the model {p}")
    sizes = comm.allgather((n_local, width))
    if len({one[1] for one in sizes}) > 1:
        raise InputError(f"X has {min(one[1] for one in sizes)} to {max(one[1] for one in sizes)} columns", True)
    features = comm.root_first(lambda: as_features(X))
    counts = [rows for rows, _ in sizes]
    first, n = sum(counts[: comm.rank]), sum(counts)
    return dataset.DataBlock(features, labels.astype(np.int8), None, first, n, width, 0)


def _versions() -> dict[str, str]:
    from distsms._version import __version__

    return {"distsms": __version__, "numpy": np.__version__, **model.versions()}
