"""The model file: HDF5, written atomically, readable with h5py alone (no pickle, no MPI, no PETSc).

w            float64 (p,)      coefficients: a row's score is <w, x> + bias
attributes   format, version, complete, and `info`: one JSON object (bias, measure, lambda, J, gap, threshold, ...)
"""

from __future__ import annotations

import json
import math
import os
import sys
import tempfile
from dataclasses import dataclass
from pathlib import Path
from typing import Any, TextIO

import h5py
import numpy as np
from numpy.typing import NDArray

from distsms.errors import InputError
from distsms.files import replacing, require_regular, require_space

FORMAT, VERSION = "distsms-model", 1


@dataclass(frozen=True)
class Model:
    """Coefficients w (p,) and everything that is known of them, by name; see the README for the names."""

    w: NDArray[np.float64]
    info: dict[str, Any]

    @property
    def p(self) -> int:
        """The number of columns that the model knows."""
        return len(self.w)

    @property
    def bias(self) -> float:
        """What every score has on top of <w, x>; 0 in models without, and in those from before there was one."""
        return float(self.info.get("bias", 0.0))

    @property
    def threshold(self) -> float:
        """A row is called positive where its score is at least this."""
        return float(self.info["threshold"])

    @property
    def classes(self) -> tuple[Any, Any]:
        """The negative and the positive label: the original ones, unless a class had several (or none), then -1, 1."""
        negative, positive = (np.atleast_1d(self.info["label_map"][sign]).tolist() for sign in ("-1", "+1"))
        if len(negative) != 1 or len(positive) != 1 or None in (*negative, *positive):
            return -1, 1
        both = [int(one) if isinstance(one, float) and one.is_integer() else one for one in (*negative, *positive)]
        return both[0], both[1]


def intercept(bias: float, threshold: float) -> float:
    """What makes <w, x> + intercept > 0 the same as <w, x> + bias >= threshold, for those who decide by the sign."""
    return math.nextafter(bias - threshold, math.inf)


def save(path: str | os.PathLike[str], model: Model) -> None:
    """Write the model, atomically. Raises InputError if that fails."""
    require_space(Path(os.path.realpath(path)).parent, model.w.nbytes)
    with replacing(path) as temporary, h5py.File(temporary, "w", locking=False) as file:
        file["w"] = model.w
        file.attrs["format"], file.attrs["version"] = FORMAT, VERSION
        file.attrs["info"] = json.dumps(model.info)
        file.attrs["complete"] = True


def save_somewhere(path: str | os.PathLike[str], model: Model) -> None:
    """Write the model to `path`, or, so that a long run is not lost, to the directory for temporary files.

    Raises InputError if `path` could not be written, saying where the model is instead.
    """
    try:
        save(path, model)
    except (InputError, OSError) as error:
        rescue = Path(tempfile.mkdtemp(prefix="distsms-")) / Path(path).name
        save(rescue, model)
        raise InputError(f"{error}; the model was written to {rescue} instead") from error


def check_writable(path: str | os.PathLike[str]) -> None:
    """Raise InputError now rather than after hours if no file can be written at `path`."""
    folder = Path(path).absolute().parent
    if not folder.is_dir():
        raise InputError(f"{path}: the folder {folder} does not exist; create it first")
    if not os.access(folder, os.W_OK):
        raise InputError(f"{path}: no permission to write in {folder}")
    require_regular(Path(path))


def check_replaceable(path: str | os.PathLike[str]) -> None:
    """Raise InputError if there is a file at `path` that is not a model: something else would be lost."""
    check_writable(path)
    if Path(path).exists() and os.path.getsize(path) and not is_model(path):
        raise InputError(f"{path}: exists and is not a model; name another file, or remove it first")


def load(path: str | os.PathLike[str]) -> Model:
    """Read a model file. Raises InputError where it is missing, of another kind, or damaged."""
    if Path(path).is_dir():
        raise InputError(f"{path}: is a directory, not a model; were the arguments swapped? MODEL comes first")
    if not Path(path).is_file():
        raise InputError(f"{path}: no such model file")
    try:
        with h5py.File(path, "r", locking=False) as file:
            if file.attrs.get("format") != FORMAT or not file.attrs.get("complete"):
                raise InputError(f"{path}: an HDF5 file, but not a (complete) model of distsms")
            if int(file.attrs["version"]) > VERSION:
                raise InputError(f"{path}: written by a newer distsms (model version {file.attrs['version']})")
            w, info = file["w"][:], json.loads(file.attrs["info"])
    except (OSError, KeyError, ValueError, TypeError) as error:
        raise InputError(f"{path}: cannot be read as a model: {error}") from error
    labels = info.get("label_map") if isinstance(info, dict) else None
    if (
        not isinstance(labels, dict)
        or not {"+1", "-1"} <= set(labels)
        or not isinstance(info.get("threshold"), float)
        or not isinstance(bias := info.get("bias", 0.0), float)
        or not math.isfinite(bias)
        or not isinstance(info.get("zero_based"), bool)
    ):
        raise InputError(f"{path}: damaged model: threshold, bias, label_map or zero_based is missing")
    if w.ndim != 1 or w.dtype != np.float64 or not np.isfinite(w).all() or not isinstance(info, dict):
        raise InputError(f"{path}: damaged model: w must be a vector of finite float64, info a JSON object")
    return Model(w, info)


def is_model(path: str | os.PathLike[str]) -> bool:
    """Whether the file says that it is a model, whole or not."""
    try:
        with h5py.File(path, "r", locking=False) as file:
            return bool(file.attrs.get("format") == FORMAT)
    except OSError:
        return False


def write_scores(path: str, scores: NDArray[np.float64]) -> None:
    """Write scores (n,) as text, one a line with all digits, as an HDF5 file if `path` ends in .h5; "-" is stdout."""
    if path == "-":
        _write_lines(sys.stdout, scores)
        sys.stdout.flush()
        return
    with replacing(path) as temporary:
        if path.endswith((".h5", ".hdf5")):
            with h5py.File(temporary, "w", locking=False) as file:
                file["scores"] = scores
        else:
            with open(temporary, "w", encoding="ascii") as text:
                _write_lines(text, scores)


def _write_lines(stream: TextIO, scores: NDArray[np.float64]) -> None:
    for start in range(0, len(scores), 100_000):
        stream.write("".join(f"{score!r}\n" for score in scores[start : start + 100_000].tolist()))


def versions() -> dict[str, str]:
    """Versions of h5py and of the HDF5 library."""
    return {"python": sys.version.split()[0], "h5py": h5py.version.version, "HDF5": h5py.version.hdf5_version}
