"""From rows in memory to a model, whoever asks for it: settings by measure, the run, the threshold, what is on record.

Everything here is collective where it takes a `comm`, and the same on every rank where not said otherwise.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from datetime import UTC, datetime
from typing import Any, NamedTuple

import numpy as np

from distsms.errors import InputError
from distsms.inference.model import Model
from distsms.losses import registry
from distsms.matrix.augmented import WithBias
from distsms.matrix.base import Features
from distsms.matrix.normalization import Normalization
from distsms.metrics import ranking
from distsms.optim.objective import Objective
from distsms.optim.result import Result
from distsms.optim.settings import Settings, describe
from distsms.optim.train import Watcher, train
from distsms.parallel.communicator import Communicator
from distsms.parallel.vectors import choose_step, make_vectors
from distsms.utils.typing import Floats, Labels


class Fitted(NamedTuple):
    """What training found; `scores` are this rank's, (n_local,)."""

    w: Floats  # (p,), without the constant feature's
    bias: float
    threshold: float
    result: Result
    layout: tuple[str, str, int]  # ordering, step, number of ranks
    scores: Floats


def choose_solver(
    asked: str | None, measure: str, comm: Communicator, usual: str = "lmvm", lmvm_only: str = ""
) -> tuple[str, str]:
    """The solver's name, and why it is another than the usual one, in words. Collective; nothing is read for it.

    asked : None takes the usual one, lbfgs where that is lmvm and some rank cannot load petsc4py, and bmrm for a
    measure that is not smoothed.
    lmvm_only : what else is asked for that needs lmvm where the usual one is taken, in words.
    Raises InputError, on all ranks, where lmvm is asked for, or needed, and cannot run.
    """
    with comm.fail_together():
        smooth = registry.loss_class(measure, "gather").smooth
    if not (asked or smooth):
        return "bmrm", "this measure has no smoothed risk"
    name = asked or usual
    if name != "lmvm":
        return name, ""
    from distsms.optim.solvers import tao

    # All ranks are asked, since all may have to step; loading is left to one, which will need it in any case.
    reasons = comm.allgather(tao.lacking(load=comm.is_root))
    why = next((f"{one}{f' [rank {rank}]' * (comm.size > 1)}" for rank, one in enumerate(reasons) if one), "")
    if not why:
        return name, ""
    if needs := "lmvm" if asked else lmvm_only:
        remedy = "install it, or leave that out: lbfgs is taken then, with the same objective and proof"
        raise InputError(f"{needs} needs PETSc's Python package: {why}; {remedy}", everywhere=True)
    return "lbfgs", f"in lmvm's place, since {why}; the objective and the proof are the same"


def settings_for(
    measure: str,
    solver: str,
    epsilon: float | None = None,
    relative: float | None = None,
    ordering: str = "gather",
    **more: Any,
) -> Settings:
    """The settings for a measure and a solver that `choose_solver` named. Local.

    epsilon : the gap to prove; 1e-3 where neither it nor `relative` is given.
    Raises InputError where settings contradict each other or the measure.
    """
    epsilon = 1e-3 if epsilon is None and relative is None else epsilon
    settings = Settings(solver=solver, epsilon=epsilon, relative=relative, **more)
    settings.check_measure(measure, registry.loss_class(measure, ordering).smooth)
    return settings


def fit(
    features: Features,
    labels: Labels,
    weights: Floats | None,
    measure: str,
    settings: Settings,
    comm: Communicator,
    bias: float | None = None,
    start: Floats | None = None,
    ordering: str = "auto",
    watch: Watcher = lambda state, w: None,
    stop_wanted: Callable[[], bool] = lambda: False,
) -> Fitted:
    """Train on this rank's rows. Collective.

    labels, weights : (n_local,), see `Loss`.  bias : value of a constant feature, or None.  start : (p,), with a bias
    (p + 1,).  watch, stop_wanted : see `training.train` and `Objective`.
    Raises InputError, on all ranks, where a class is missing, or settings or bias are not what they can be.
    """
    if bias is not None and not 0 < bias < np.inf:
        raise InputError(f"bias is {bias}; it must be a positive number, or None", everywhere=True)
    counted = np.ones(len(labels), bool) if weights is None else weights != 0
    n_pos, n_neg = map(int, comm.sum(np.array([np.sum(counted & (labels > 0)), np.sum(counted & (labels < 0))])))
    ordering, _ = registry.choose_ordering(ordering, measure, max(n_pos, 1), max(n_neg, 1), comm.size)
    loss = registry.make_loss(measure, ordering, labels, weights, comm)
    rows = WithBias(features, bias) if bias else features
    step, _ = choose_step("auto", rows.shape[1], comm.size, settings.traits.spreadable)
    vectors = make_vectors(step, rows.shape[1], comm)
    result = train(Objective(rows, [loss], comm, stop_wanted, vectors=vectors), settings, start, watch)
    vectors.close()
    scores = rows.margins(result.w)
    threshold = threshold_of(loss.calls_positive, scores[counted], labels[counted], comm)
    w, constant = (result.w[:-1], bias * float(result.w[-1])) if bias else (result.w, 0.0)
    return Fitted(w, constant, threshold, result, (ordering, step, comm.size), scores)


def threshold_of(calls_positive: int | None, scores: Floats, labels: Labels, comm: Communicator) -> float:
    """From which score on a row is called positive, of the rows that count. Collective.

    calls_positive : how many rows are, see `Loss`; None: those above 0.
    """
    return 0.0 if calls_positive is None else ranking.top_k(scores, labels, calls_positive, comm).threshold


def measured(measure: str, scores: Floats, labels: Labels, threshold: float, comm: Communicator) -> dict[str, float]:
    """ROCArea, PRBEP and what was trained for, by name, of the rows that count. Collective."""
    ranked = ranking.ranking(scores, labels, comm)
    both = {"rocarea": ranked.rocarea, "prbep": ranked.prbep}
    return (
        both if measure in both else both | {measure: ranking.measure_value(measure, scores, labels, threshold, comm)}
    )


def start_from(model: Model, p: int, bias: float | None, name: object, how: Normalization = Normalization()) -> Floats:  # noqa: B008
    """The coefficients of a model called `name`, widened to p columns and perhaps a constant feature. Local.

    how : the normalization of the rows that are trained on.

    Raises InputError if the model has more columns.
    """
    if model.p > p:
        raise InputError(
            f"{name}: has {model.p} columns, the data {p}; a start wants a model of the same features or fewer"
        )
    if (model.normalization.kind == "l2") != (how.kind == "l2"):
        raise InputError(f"{name}: is for rows normalized as {model.normalization.kind}, the data are {how.kind}")
    w = how.unfold(np.pad(model.w, (0, p - model.p)))
    return np.append(w, model.bias / bias) if bias else w


def info(
    measure: str,
    settings: Settings,
    result: Result,
    layout: tuple[str, str, int],
    bias: float,
    threshold: float,
    on_training: dict[str, float],
    data: Mapping[str, Any],
    versions: dict[str, str],
) -> dict[str, Any]:
    """Everything that the model file says besides w. Local.

    layout : ordering, step, number of ranks.
    data : label_map, zero_based, directory, fingerprint, n, p, nnz, n_pos, n_neg.
    """
    ordering, step, ranks = layout
    return {
        "measure": measure,
        "lambda": settings.lam,
        **result.numbers(),
        "bias": bias,
        "threshold": threshold,
        "training": on_training,
        "label_map": data["label_map"],
        "zero_based": data["zero_based"],
        "settings": describe(settings),
        "ordering": ordering,
        "step": step,
        "ranks": ranks,
        "data": {name: data[name] for name in ("directory", "fingerprint", "n", "p", "nnz", "n_pos", "n_neg")},
        "versions": versions,
        "written": datetime.now(UTC).isoformat(timespec="seconds"),
    }


def origin(manifest: Any, directory: object) -> dict[str, Any]:
    """What `info` wants to know of a data set. Local."""
    names = ("label_map", "zero_based", "fingerprint", "n", "p", "nnz", "n_pos", "n_neg")
    return {"directory": str(directory)} | {name: getattr(manifest, name) for name in names}
