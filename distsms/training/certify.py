"""The certificate of a run: the coefficients of the mixture of planes that proves its bound.

The loss is evaluated once more at the points with a share of the mixture, about half of an evaluation for each, and
three more passes over the rows give the bound that the rounded coefficients prove.
"""

from __future__ import annotations

import math
import os
import time
from typing import Any

import numpy as np

from distsms.base._version import __version__
from distsms.base.errors import InputError
from distsms.base.typing import Floats
from distsms.losses.base import Loss
from distsms.losses.dual_bound import CERTIFIED, Further, dual_bound
from distsms.losses.registry import make_loss
from distsms.losses.rocarea import EVERYWHERE
from distsms.matrix.augmented import split_bias
from distsms.matrix.base import ColumnStatistics
from distsms.matrix.normalization import Normalization
from distsms.optim.penalty import penalty
from distsms.optim.planes import OPENING
from distsms.optim.result import Result
from distsms.parallel.vectors import Vectors
from distsms.training import certificate
from distsms.training.rows import TrainingRows
from distsms.training.task import TrainingTask


def check(task: TrainingTask, loss: Loss) -> None:
    """Raise InputError on all ranks if the measure has no certificate, or none on so many rows."""
    if task.measure.family.name not in CERTIFIED:
        raise InputError(
            f"{task.measure} has no certificate: distsms.losses.dual_bound does not say what coefficients prove",
            everywhere=True,
        )
    if task.measure.family.name == "pauc" and loss.n_pos > EVERYWHERE:
        raise InputError(
            f"{task.measure} has no certificate with {loss.n_pos} positive rows: that needs the share to which each "
            f"negative row counts, which is computed by sorting the positive ones on every rank, at most {EVERYWHERE}",
            everywhere=True,
        )


def certify(
    path: str | os.PathLike[str], result: Result, task: TrainingTask, rows: TrainingRows, vectors: Vectors
) -> dict[str, Any]:
    """Write a run's certificate, and return what a model says of it. **Collective.** `OF_ROW` bytes a local row."""
    begun, measure = time.perf_counter(), task.measure
    comm, block = rows.comm, rows.block
    loss: Any = rows.loss
    if measure.family.name == "pauc":
        loss = make_loss(measure, "exchange", block.labels, block.weights, comm)
    # 1) The coefficients.
    mixture = result.mixture or []
    points = comm.bcast([(point.share, point.nu) for point in mixture])
    c, alpha = np.zeros(len(block.labels)), np.zeros(len(block.labels) if measure.family.name == "pauc" else 0)
    of_labelings = list[tuple[float, float, float]]()
    for number, (share, nu) in enumerate(points):
        if nu == OPENING:
            assert result.opening is not None
            c += share * result.opening
            continue
        w = vectors.replicate(1, [mixture[number].w] if vectors.runs_solver else None)[0]
        scores = rows.features.margins(w)
        coefficients = loss.evaluate(scores, nu).coefficients
        c += share * coefficients
        if len(alpha):
            alpha += share * loss.alphas(scores, nu)
        if measure.family.name == "f-beta":
            counts = np.array([np.count_nonzero(coefficients < 0), np.count_nonzero(coefficients > 0)])
            missed, called = comm.sum(counts).tolist()
            of_labelings.append((share, missed, called))
    arrays = {"c": c.astype(np.float32)} | (
        {"alpha": alpha.astype(np.float32)} if measure.family.name == "pauc" else {}
    )
    labelings = np.array(of_labelings).reshape(-1, 3) if measure.family.name == "f-beta" else None
    # 2) What they prove after they were rounded.
    rounded = {name: array.astype(float) for name, array in arrays.items()}
    proved = dual_bound(loss, rounded["c"], Further(rounded.get("alpha"), labelings))
    r = comm.sum(rows.features.transposed_times(proved.c))
    columns = rows.features.columns()
    columns = ColumnStatistics(comm.maximum(columns.largest), comm.sum(columns.counts), columns.squares)
    bound = certificate.lower_bound(proved, r, columns, penalty(task.settings.lam, task.settings.l1))
    # 3) The file.
    info = _info(result, task, rows) | {"bound": bound, "points": len(points)}
    certificate.write(path, info, arrays, labelings, comm)
    seconds = time.perf_counter() - begun
    return {"file": os.path.abspath(path), "bound": bound, "points": len(points), "seconds": seconds}


def _info(result: Result, task: TrainingTask, rows: TrainingRows) -> dict[str, Any]:
    """Return what a certificate says of the problem, the model and the rows. **Collective.**"""
    comm, block = rows.comm, rows.block
    settings, manifest = task.settings, task.manifest
    normalization = Normalization() if manifest is None else manifest.normalization
    w, bias = split_bias(result.w, task.bias)
    h: Floats = normalization.unfold(certificate.column_numbers(len(w)))
    scores = rows.features.margins(np.append(h, 0.0) if task.bias else h)
    return {
        "distsms": __version__,
        "measure": task.measure.name,
        "lambda": settings.lam,
        "l1": settings.l1,
        "constant": task.bias or 0.0,
        "normalize": normalization.kind,
        "weights": block.weights is not None,
        "n": sum(comm.allgather(len(block.labels))),
        "p": len(w),
        "dtype": "float64" if manifest is None else manifest.dtype,
        "J": result.J if math.isfinite(result.J) else None,
        "lower_bound": result.lower_bound if math.isfinite(result.lower_bound) else None,
        "rows": certificate.sketch(scores, block.labels, block.weights, block.first_row, comm),
        "model": certificate.fingerprint(normalization.fold(w), bias),
        "data": task.fingerprint if manifest is None else manifest.fingerprint,
    }
