"""The certificate of a training: an HDF5 file from which anyone who has the rows derives a lower bound on min J.

c           float32 (n,)      a coefficient for each row, in the order of the data set; see `distsms.losses.dual_bound`
alpha       float32 (n,)      of pauc alone: the share to which each negative row counts
labelings   float64 (k, 3)    of F-beta alone: the weight, the missed and the false positives of each labeling
attributes  format, version, `info`: a JSON object (measure, lambda, l1, constant, n, p, bounds, fingerprints), and
            `complete`: the SHA-256 of info, c, alpha and labelings, one after the other

docs/theory/certificate.md says what follows from them. The fingerprints only tell other files and rows in time.
"""

from __future__ import annotations

import contextlib
import hashlib
import json
import math
import os
import time
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from distsms.base import hdf5
from distsms.base._version import __version__
from distsms.base.communicator import Communicator
from distsms.base.errors import InputError
from distsms.base.files import atomic_write, check_writable, require_space
from distsms.base.schema import Fields, find_fault, is_number, is_text
from distsms.base.typing import Floats, Labels
from distsms.losses.base import Loss
from distsms.losses.dual_bound import ADDITIONS, CERTIFIED, EPS, Proved, dual_bound
from distsms.losses.registry import make_loss
from distsms.losses.rocarea import EVERYWHERE
from distsms.matrix.augmented import split_bias
from distsms.matrix.normalization import Normalization
from distsms.optim.penalty import ElasticNet, soft_threshold
from distsms.optim.planes import OPENING
from distsms.optim.result import Result
from distsms.parallel.vectors import Vectors
from distsms.training.rows import TrainingRows
from distsms.training.task import TrainingTask

FORMAT, VERSION = "distsms-certificate", 1
BLOCK = 2**22
"""So many rows are gathered on the root at a time."""
GOLDEN = (math.sqrt(5.0) - 1.0) / 2.0
INFO: Fields = dict.fromkeys(("lambda", "n", "p", "rows"), is_number) | dict.fromkeys(("measure", "model"), is_text)


@dataclass(frozen=True)
class Certificate:
    """A certificate that was read, but for its arrays of rows."""

    path: str
    info: dict[str, Any]
    labelings: Floats | None

    def read(self, name: str, first: int, last: int) -> Floats | None:
        """Return these rows of an array; None if there is none of this name. Local."""
        with hdf5.open_file(self.path, "a certificate") as file:
            return hdf5.dataset(file, name, packed=False)[first:last].astype(float) if name in file else None


def column_numbers(p: int) -> Floats:
    """Return the coefficients h (p,) of `sketch`: the fractional parts of j sqrt(2), with j from 1 on."""
    return (np.arange(1.0, p + 1.0) * math.sqrt(2.0)) % 1.0


def sketch(scores: Floats, labels: Labels, weights: Floats | None, first_row: int, comm: Communicator) -> float:
    """Return sum_i g_i (<h, x_i> + a_i y_i / mean a), from the <h, x_i>; other rows, or another order, have another.

    g_i is the fractional part of i (sqrt(5) - 1) / 2, with i from 0 on; `first_row` is this rank's. **Collective.**
    """
    g = (np.arange(first_row, first_row + len(labels), dtype=float) * GOLDEN) % 1.0
    a = np.ones(len(labels)) if weights is None else weights
    n, total = comm.sum(np.array([len(a), np.sum(a)])).tolist()
    return float(comm.sum(np.array([g @ (scores + a * labels * (n / total))]))[0])


def fingerprint(w: Floats, bias: float) -> str:
    """Return the SHA-256 of the coefficients and the bias of a model, float64 in little-endian order."""
    return hashlib.sha256(np.append(w, bias).astype("<f8").tobytes()).hexdigest()


def lower_bound(proved: Proved, r: Floats, largest: Floats, counts: Floats, regularizer: ElasticNet) -> float:
    """Return the bound on min J of the plane <r, v> + d with r = X'c of all rows, less what rounding may have added:
    r_j is a sum of at most `counts` terms up to `largest`, whose |c_i| add up to `size`; d and c add `ADDITIONS`.
    """
    e = proved.size * EPS * (counts + ADDITIONS) * largest
    excess = np.abs(soft_threshold(r, regularizer.l1))
    square = float(np.sum(excess * excess)) * (1 + EPS * (len(r) + 8)) + float(np.sum((2 * excess + e) * e))
    return proved.d - 2 * EPS * ADDITIONS * (1 + abs(proved.d)) - regularizer.conjugate(square)


def check_replaceable(path: str | os.PathLike[str]) -> None:
    """Raise InputError if `path` is a file that is no certificate, since a new one would destroy it."""
    check_writable(path)
    if Path(path).exists() and os.path.getsize(path):
        try:
            load(path)
        except InputError as error:
            why = "exists and is not a certificate; name another file, or remove it first"
            raise InputError(f"{path}: {why}") from error


def write(
    path: str | os.PathLike[str],
    info: Mapping[str, Any],
    arrays: Mapping[str, NDArray[np.float32]],
    labelings: Floats | None,
    comm: Communicator,
) -> None:
    """Write a certificate from the local parts (n_local,) of its arrays, completely or not at all. **Collective.**"""
    n, text, file = int(info["n"]), json.dumps(info), None
    digest = hashlib.sha256(text.encode())
    with contextlib.ExitStack() as opened:
        with comm.fail_together():
            if comm.is_root:
                require_space(Path(os.path.realpath(path)).parent, 4 * n * len(arrays))
                file = opened.enter_context(hdf5.write_to(opened.enter_context(atomic_write(path))))
        for name, local in arrays.items():
            rows, at = None if file is None else file.create_dataset(name, (n,), "<f4"), 0
            for block in _in_order(local, comm):
                if rows is not None and block is not None:
                    rows[at : at + len(block)], at = block, at + len(block)
                    digest.update(block.tobytes())
        with comm.fail_together():
            if file is not None:
                if labelings is not None:
                    file.create_dataset("labelings", data=labelings, dtype="<f8")
                    digest.update(labelings.astype("<f8").tobytes())
                complete = np.bytes_(digest.hexdigest())
                file.attrs.update(format=FORMAT, version=VERSION, info=text, complete=complete)
            opened.close()


def _in_order(local: NDArray[Any], comm: Communicator) -> Iterator[NDArray[Any] | None]:
    """Yield the rows of all ranks in their order, block by block, on the root; None elsewhere. **Collective.**"""
    for rank, count in enumerate(comm.allgather(len(local))):
        for start in range(0, count, BLOCK):
            yield comm.gather_rows(local[start : start + BLOCK] if rank == comm.rank else local[:0])


def load(path: str | os.PathLike[str], checked: bool = False) -> Certificate:
    """Read a certificate; its arrays are read only if they are to be `checked` against the checksum. Raises InputError
    if it is missing, no certificate, damaged, or of a newer version. Local."""
    if not Path(path).is_file():
        raise InputError(f"{path}: there is no such certificate")
    hdf5.check_heaps(path, "is not a certificate, or is damaged")
    with hdf5.open_file(path, "a certificate") as file:
        if hdf5.attribute(file, "format", text=True) != FORMAT:
            raise InputError(f"{path}: is an HDF5 file, but not a certificate of distsms")
        if (version := int(hdf5.attribute(file, "version"))) > VERSION:
            raise InputError(f"{path}: was written by a newer distsms (certificate version {version}); update distsms")
        text = str(hdf5.attribute(file, "info", text=True))
        info, names = json.loads(text), [name for name in ("c", "alpha", "labelings") if name in file]
        arrays = {name: hdf5.dataset(file, name, packed=False) for name in names}
        fault = find_fault(info, INFO)
        fits = not fault and all(
            array.shape[1:] == (3,) if name == "labelings" else array.shape == (info["n"],)
            for name, array in arrays.items()
        )
        if not fits or "c" not in arrays:
            raise InputError(f"{path}: damaged certificate: {fault or 'it has not one coefficient for each row'}")
        digest = hashlib.sha256(text.encode())
        for array in arrays.values() if checked else ():
            for start in range(0, len(array), BLOCK):
                digest.update(array[start : start + BLOCK].tobytes())
        if checked and hdf5.attribute(file, "complete") != digest.hexdigest().encode():
            raise InputError(f"{path}: damaged: its content is not what was written (SHA-256 differs); copy it again")
        labelings = np.asarray(arrays["labelings"][()], float).reshape(-1, 3) if "labelings" in names else None
    return Certificate(os.fspath(path), info, labelings)


def check(task: TrainingTask, loss: Loss) -> None:
    """Raise InputError on all ranks if the measure has no certificate, or none on so many rows."""
    name = task.measure.family.name
    if name not in CERTIFIED:
        why = ": distsms.losses.dual_bound does not say what coefficients prove"
    elif name == "pauc" and loss.n_pos > EVERYWHERE:
        why = f" with {loss.n_pos} positive rows: each rank has to sort all of them, at most {EVERYWHERE}"
    else:
        return
    raise InputError(f"{task.measure} has no certificate{why}", everywhere=True)


def certify(
    path: str | os.PathLike[str], result: Result, task: TrainingTask, rows: TrainingRows, vectors: Vectors
) -> dict[str, Any]:
    """Write a run's certificate, the coefficients of the mixture of planes that proves its bound, and return what a
    model says of it: an evaluation without its gradient for each point of the mixture, and three passes more over the
    rows for what the rounded coefficients prove. **Collective.** `OF_ROW` bytes a local row.
    """
    begun, measure, comm, block = time.perf_counter(), task.measure, rows.comm, rows.block
    loss: Any = rows.loss
    sums = {"c": np.zeros(len(block.labels))}
    if measure.family.name == "pauc":
        loss = make_loss(measure, "exchange", block.labels, block.weights, comm)
        sums["alpha"] = np.zeros(len(block.labels))
    # 1) The coefficients.
    mixture, of_labelings = result.mixture or [], list[tuple[float, float, float]]()
    points = comm.bcast([(point.share, point.nu) for point in mixture])
    for number, (share, nu) in enumerate(points):
        if nu == OPENING:
            assert result.opening is not None
            sums["c"] += share * result.opening
            continue
        w = vectors.replicate(1, [mixture[number].w] if vectors.runs_solver else None)[0]
        scores = rows.features.margins(w)
        coefficients = loss.evaluate(scores, nu).coefficients
        sums["c"] += share * coefficients
        if "alpha" in sums:
            sums["alpha"] += share * loss.alphas(scores, nu)
        if measure.family.name == "f-beta":
            counts = np.array([np.count_nonzero(coefficients < 0), np.count_nonzero(coefficients > 0)])
            missed, called = comm.sum(counts).tolist()
            of_labelings.append((share, missed, called))
    arrays = {name: array.astype(np.float32) for name, array in sums.items()}
    labelings = np.array(of_labelings).reshape(-1, 3) if measure.family.name == "f-beta" else None
    # 2) What they prove after they were rounded.
    rounded = {name: array.astype(float) for name, array in arrays.items()}
    proved = dual_bound(loss, rounded["c"], rounded.get("alpha"), labelings)
    r = comm.sum(rows.features.transposed_times(proved.c))
    largest, counts, _ = rows.features.columns()
    omega = ElasticNet(task.settings.lam, task.settings.l1)
    bound = lower_bound(proved, r, comm.maximum(largest), comm.sum(counts), omega)
    # 3) The file.
    info = _info(result, task, rows) | {"bound": bound, "points": len(points)}
    write(path, info, arrays, labelings, comm)
    seconds = time.perf_counter() - begun
    return {"file": os.path.abspath(path), "bound": bound, "points": len(points), "seconds": seconds}


def _info(result: Result, task: TrainingTask, rows: TrainingRows) -> dict[str, Any]:
    """Return what a certificate says of the problem, the model and the rows. **Collective.**"""
    comm, block = rows.comm, rows.block
    settings, manifest = task.settings, task.manifest
    normalization = Normalization() if manifest is None else manifest.normalization
    w, bias = split_bias(result.w, task.bias)
    h: Floats = normalization.unfold(column_numbers(len(w)))
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
        "rows": sketch(scores, block.labels, block.weights, block.first_row, comm),
        "model": fingerprint(normalization.fold(w), bias),
        "data": task.fingerprint if manifest is None else manifest.fingerprint,
    }
