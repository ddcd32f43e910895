"""The library face: training, evaluation and scores over all ranks of a communicator, for drivers of one's own.

`comm` is an mpi4py communicator; None is this process alone, and starts no MPI (PETSc, which `lmvm` needs, does).
Every function with a `comm` is collective: all its ranks call it with the same arguments but for rows, and get the same
answer but for scores. `data` is the path of a data set or svmlight file, which the ranks share out, or (X, y) in
memory: this rank's rows, X SciPy sparse or array-like (n_local, p), y (n_local,) of +1 and -1; n_local may be 0.

What is wrong with the input is an `distsms.errors.InputError`, raised on all ranks alike. Anything else that a rank
raises leaves the others waiting: a driver ends the job then, as `MPI.COMM_WORLD.Abort` or `python -m mpi4py` does.
Set OMP_NUM_THREADS=1 before numpy is loaded, or a BLAS with a thread for each core slows the small programs down.

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
from distsms.matrix.local import rows_of
from distsms.optim.train import Watcher
from distsms.parallel.communicator import Communicator, communicator
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
    """Minimize J over all ranks' rows and return the model, the same on every rank. Collective; see the module.

    data : a data set (no text file), or this rank's (X, y).
    measure, lam, bias, ordering : as `distsms train` has them.  start : a model to begin from.
    watch : called after each evaluation with a `result.State` and the best w so far, on the root; from 2^20 columns
    on, on every rank, with its slice of w.
    stop_wanted : asked on every rank at each evaluation; one True anywhere ends the run with what it has.
    settings : the others of `settings.Settings`: solver, epsilon, relative, max_evaluations, time_limit, ... Without a
    solver it is lmvm, lbfgs where petsc4py cannot be imported, and bmrm for F-beta and the measures at K.
    `info` of the model says how the run ended: status, J, lower_bound, gap; and in `settings`, which solver it was. A
    gap that was not proved is no error.
    Raises InputError, on all ranks, for data or settings that cannot be used.

    >>> import numpy as np, distsms
    >>> X, y = np.array([[1.0], [0.0], [2.0]]), [1, -1, 1]
    >>> distsms.train((X, y), measure="prbep", lam=0.1, solver="bmrm").info["status"]
    'proved'
    """
    comm = communicator(comm)
    options = "solver_options" if settings.get("solver_options") else ""
    solver, _ = fit.choose_solver(settings.pop("solver", None), measure, comm, lmvm_only=options)
    with comm.together():
        chosen = fit.settings_for(measure, solver, lam=lam, **settings)
    rows, origin, manifest = _training_rows(data, comm)
    with comm.together():
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
    """The scores <w, x> + bias of this rank's rows, (n_local,). Collective; see the module.

    data : a path, of whose rows a rank gets a contiguous share in rank order, or this rank's X.
    ignore_new_features, zero_based : as `distsms predict` has them, for a path.
    Raises InputError, on all ranks, where rows do not fit the model or a score is not finite.
    """
    comm = communicator(comm)
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
    """The measures of a model on labelled rows, exact over all ranks. Collective; see the module.

    Keys: those of `distsms evaluate --json` but `model` and `data`. What is not defined is NaN.
    threshold : a row is called positive from this score on; None: the model's.
    k : also precision@k and recall@k; None: the k that the model is for.
    Raises InputError, on all ranks, where rows do not fit the model or a score is not finite.
    """
    comm = communicator(comm)
    judge, how = _model(model, comm), inputs.InputOptions(ignore_new_features, True, zero_based)
    return evaluation.compute_measures(judge, *_scored(judge, data, comm, how).counted_scores(), comm, threshold, k)


def _model(given: Model | Path, comm: Communicator) -> Model:
    if isinstance(given, Model):
        return given
    with comm.together():
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
        with comm.together():
            manifest = dataset.read_manifest(data)
        return dataset.load(manifest, comm), fit.origin(manifest, data), manifest
    rows = _in_memory(*data, comm)
    counts = [len(rows.labels), rows.features.nnz, np.sum(rows.labels > 0), np.sum(rows.labels < 0)]
    n, nnz, n_pos, n_neg = map(int, comm.sum(np.array(counts)))
    meaning = {"label_map": {"+1": 1, "-1": -1}, "zero_based": False, "directory": None, "fingerprint": None}
    return rows, meaning | {"n": n, "p": rows.p, "nnz": nnz, "n_pos": n_pos, "n_neg": n_neg}, None


def _in_memory(X: Any, y: ArrayLike | None, comm: Communicator, p: int | None = None) -> dataset.DataBlock:
    """This rank's rows as a block. Collective. Without y, labels are 0; p : the columns that a model has."""
    with comm.together():
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
    features = comm.root_first(lambda: rows_of(X))
    counts = [rows for rows, _ in sizes]
    first, n = sum(counts[: comm.rank]), sum(counts)
    return dataset.DataBlock(features, labels.astype(np.int8), None, first, n, width, 0)


def _versions() -> dict[str, str]:
    from distsms._version import __version__

    return {"distsms": __version__, "numpy": np.__version__, **model.versions()}
