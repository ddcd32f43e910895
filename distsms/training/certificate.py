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
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from distsms.base import hdf5
from distsms.base.communicator import Communicator
from distsms.base.errors import InputError
from distsms.base.files import atomic_write, check_writable, require_space
from distsms.base.schema import Fields, find_fault, is_number, is_text
from distsms.base.typing import Floats, Labels
from distsms.losses.dual_bound import ADDITIONS, EPS, Proved
from distsms.matrix.base import ColumnStatistics
from distsms.optim.penalty import ElasticNet, SquaredNorm, soft_threshold

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


def lower_bound(proved: Proved, r: Floats, columns: ColumnStatistics, regularizer: SquaredNorm) -> float:
    """Return the bound on min J of the plane <r, v> + d with r = X'c of all rows, less what rounding may have added.

    r_j is a sum of at most `counts` terms, whose |c_i| add up to at most `size`; what is wrong in d and c adds
    `ADDITIONS`.
    """
    e = proved.size * EPS * (columns.counts + ADDITIONS) * columns.largest
    excess = np.abs(soft_threshold(r, regularizer.l1)) if isinstance(regularizer, ElasticNet) else np.abs(r)
    square = float(np.sum(excess * excess)) * (1 + EPS * (len(r) + 8)) + float(np.sum((2 * excess + e) * e))
    return proved.d - 2 * EPS * ADDITIONS * (1 + abs(proved.d)) - regularizer.conjugate(square)


def check_replaceable(path: str | os.PathLike[str]) -> None:
    """Raise InputError if `path` is a file that is no certificate, since a new one would destroy it."""
    check_writable(path)
    if Path(path).exists() and os.path.getsize(path):
        try:
            load(path)
        except InputError as error:
            raise InputError(
                f"{path}: exists and is not a certificate; name another file, or remove it first"
            ) from error


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
            raise InputError(
                f"{path}: is damaged: its content is not what was written (SHA-256 differs); copy it again"
            )
        labelings = np.asarray(arrays["labelings"][()], float).reshape(-1, 3) if "labelings" in names else None
    return Certificate(os.fspath(path), info, labelings)
