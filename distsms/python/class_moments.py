"""The moments of both classes as a file that rows may be added to, and models for any lambda without the rows."""

from __future__ import annotations

import json
import math
import os
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import ArrayLike
from scipy.optimize import brentq
from scipy.special import ndtr

from distsms.base import hdf5, memory
from distsms.base.errors import InputError
from distsms.base.files import atomic_write
from distsms.base.measures import SMALLEST_LAMBDA
from distsms.base.schema import is_text
from distsms.matrix.moments import Moments
from distsms.models.model import Model
from distsms.parallel.mpi import as_communicator
from distsms.shards import from_arrays
from distsms.shards.labels import format_labels, original_labels
from distsms.shards.row_metadata import LARGEST
from distsms.training.normal_auc_closed import Solution, moments_of, solve

FORMAT, VERSION = "distsms-class-moments", 1
ARRAYS = ("count", "mass", "mean", "scatter")
EPSILON = 1e-3  # the largest gap of a model that is called proved, as in `distsms train`


class ClassMoments:
    """Number, mean and covariance of the rows of each class: all that training for `normal-auc` needs of the rows.

    Rows can be added at any time, and the moments of different rows can be merged. The result is that of all rows at
    once, up to rounding. It takes 16 p^2 bytes.

    Parameters
    ----------
    p : int
        The number of columns.

    Raises
    ------
    InputError
        If p is not positive, or so large that the moments do not fit into memory.

    Attributes
    ----------
    moments : Moments
        Those of the positive and of the negative rows.
    label_map : mapping or None
        The labels of both classes, as the first rows had them.
    names : list of str or None
        The names of the columns, if the first rows were a DataFrame.

    Examples
    --------
    >>> import numpy as np
    >>> from distsms import ClassMoments
    >>> rng = np.random.default_rng(0)
    >>> y = rng.random(1000) < 0.2
    >>> X = rng.normal(size=(1000, 3)) + np.outer(y, [2, 1, 0])
    >>> today = ClassMoments(3).update(X[:600], y[:600])
    >>> tomorrow = today.update(X[600:], y[600:])
    >>> tomorrow.n, round(tomorrow.solve(1e-3).rocarea, 2), tomorrow.solve(1e-3).gap < 1e-6
    (1000, 0.94, True)

    References
    ----------
    Ghanbari, Optimization Algorithms for Machine Learning Problems (2019), section 4.4.
    """

    def __init__(self, p: int) -> None:
        if not isinstance(p, int | np.integer) or p < 1:
            raise InputError(f"p is {p}; the number of columns is a whole number of at least 1")
        if (need := 16 * int(p) ** 2) > memory.available():
            raise InputError(
                f"the moments of {p:,} columns take {need / 2**30:,.1f} GiB, more than this machine has available. "
                "Give fewer columns, or keep the rows and train by distsms.train(measure='normal-auc'), which iterates"
            )
        self.moments = Moments.empty(2, p)
        self.label_map: Mapping[str, Any] | None = None
        self.names: list[str] | None = None

    @property
    def p(self) -> int:
        """The number of columns."""
        return self.moments.mean.shape[1]

    @property
    def n(self) -> int:
        """The number of rows so far, without those of weight 0."""
        return int(self.moments.count.sum())

    def update(self, X: Any, y: ArrayLike, weights: ArrayLike | None = None, comm: Any = None) -> ClassMoments:
        """Add rows, and return this object. **Collective.**

        Parameters
        ----------
        X : array-like, DataFrame or SciPy sparse matrix of shape (n_local, p)
            The rows of this rank; it may have none. The columns of a DataFrame are found by their names.
        y : array-like of shape (n_local,)
            Their labels. Those of the first rows must have both classes, over all ranks. Later rows have the same two
            labels, and may all be of one class.
        weights : array-like of shape (n_local,), optional
            The weights of the rows, at least 0; on every rank or on none.
        comm : mpi4py communicator, optional
            The ranks that share the new rows, which all had the same moments before; None is this process alone.

        Raises
        ------
        InputError
            On all ranks, if X, y or weights cannot be used, the first rows are all of one class, or later rows have
            other labels. Nothing is added then.
        """
        comm = as_communicator(comm)
        with comm.fail_together():
            if self.n and self.names is None and from_arrays.names_of(X) is not None:
                raise InputError("X has names of columns, and the rows so far had none; give arrays, or tables always")
        X, names = from_arrays.numbers(X, comm, self.names)
        rows = from_arrays.block(X, y, comm, self.p, self.label_map, weights)
        with comm.fail_together():
            self._check_labels(rows.label_map or {})
            if rows.weights is not None and not np.array_equal(rows.weights, np.asarray(weights, float)):
                ends = f"above {LARGEST:.1g} or below {1 / LARGEST:.1g}"
                raise InputError(f"the largest weight is {ends}; multiply all by a number")
        moments = moments_of(rows, comm)
        if not all(np.isfinite(part).all() for part in vars(moments).values()):
            raise InputError("X has entries that are not finite, or so large that their squares overflow", True)
        self.label_map, self.names = rows.label_map, names
        self.moments.add(moments)
        return self

    def _check_labels(self, label_map: Mapping[str, Any]) -> None:
        """Raise InputError unless the labels of new rows are those of the first rows, which had both classes."""
        labels = [label for sign in ("-1", "+1") for label in original_labels(self.label_map or label_map, sign)]
        if self.label_map is None and len(labels) < 2:
            of_one = f"only the label {format_labels(labels)}" if labels else "no labels"
            raise InputError(f"y: the first rows have {of_one}, and decide the labels; begin with rows of both classes")
        if self.label_map is not None and label_map != self.label_map:
            raise InputError(f"y: found other labels than those of the first rows, which are {format_labels(labels)}")

    def merge(self, other: ClassMoments) -> ClassMoments:
        """Add the rows of other moments, of the same columns and labels, and return this object. Local."""
        if other.p != self.p:
            raise InputError(f"moments of {other.p} columns cannot be merged with moments of {self.p} columns")
        if None not in (self.label_map, other.label_map) and self.label_map != other.label_map:
            raise InputError(f"moments of the labels {other.label_map} cannot be merged with those of {self.label_map}")
        if self.n and other.n and self.names != other.names:
            raise InputError("the columns of the moments have other names, or another order; make both of the same")
        self.names = self.names or other.names
        self.label_map = self.label_map or other.label_map
        self.moments.add(other.moments)
        return self

    def solve(self, lam: float) -> Solution:
        """Return w, J, its proved gap, and ROCArea by normal theory for one lambda. Local; p^3 / 3 operations."""
        if not SMALLEST_LAMBDA <= lam < math.inf:
            raise InputError(f"lambda is {lam}; it must be a finite number of at least {SMALLEST_LAMBDA:g}")
        if not np.all(self.moments.mass > 0):
            n_pos, n_neg = self.moments.count.tolist()
            raise InputError(f"rows of both classes are needed, and there are {n_pos} positive and {n_neg} negative")
        return solve(self.moments, lam)

    def model(self, lam: float) -> Model:
        """Return the model for one lambda, for `distsms.predict`, `evaluate` and `save_model`. Local.

        Its threshold calls as many rows positive as there are, if the scores of each class have a normal distribution.
        Its status is "proved" if the gap is at most 1e-3, else "rounding". Raises InputError if lambda is too small, a
        class has no rows yet, or rounding errors leave no proof at all.
        """
        solution, (mean_pos, mean_neg) = self.solve(lam), self.moments.mean
        if not math.isfinite(solution.gap):
            remedy = "subtract its mean from each column, and scale columns of very large or very small values"
            raise InputError(f"lambda {lam}: rounding errors hide the minimum; {remedy}")
        w = solution.w
        means, masses = np.array([w @ mean_pos, w @ mean_neg]), self.moments.mass
        squares = np.array([w @ scatter @ w for scatter in self.moments.scatter])
        deviations = np.sqrt(np.maximum(squares / masses, 0.0))

        def surplus(threshold: float) -> float:
            """Return by how much more weight than that of the positive rows is called positive."""
            return float(np.sum(masses * ndtr((means - threshold) / deviations)) - masses[0])

        low, high = min(means) - 9 * max(deviations), max(means) + 9 * max(deviations)
        threshold = float(np.mean(means))
        if min(deviations) > 0 and surplus(low) > 0 > surplus(high):
            threshold = float(brentq(surplus, low, high, disp=False))
        info = {
            "measure": "normal-auc",
            "lambda": float(lam),
            "status": "proved" if solution.gap <= EPSILON else "rounding",
            **{name: getattr(solution, name) for name in ("J", "R", "lower_bound", "gap")},
            "bias": 0.0,
            "threshold": threshold,
            "label_map": dict(self.label_map or {}),
            "zero_based": True,
            "warnings": [],
        }
        return Model(w, info, from_arrays.table_of(self.names))

    def save(self, path: str | os.PathLike[str]) -> None:
        """Write a file, completely or not at all; an older one is replaced. One process."""
        with atomic_write(path) as output, hdf5.write_to(output) as file:
            contents: dict[str, Any] = {name: getattr(self.moments, name) for name in ARRAYS}
            if self.names is not None:
                contents["names"] = np.frombuffer(json.dumps(self.names).encode(), np.uint8)
            for name, array in contents.items():
                file[name] = array
            contents["label_map"] = json.dumps(self.label_map)
            file.attrs.update(format=FORMAT, version=VERSION, label_map=contents["label_map"])
            file.attrs["sha256"] = hdf5.checksum(contents)

    @classmethod
    def load(cls, path: str | os.PathLike[str]) -> ClassMoments:
        """Read a file that `save` wrote; InputError if there is none, or it has no moments. One process."""
        if not Path(path).is_file():
            raise InputError(f"{path}: there is no such file of moments")
        hdf5.check_heaps(path)
        with hdf5.open_file(path, "moments of classes") as file:
            if hdf5.attribute(file, "format", text=True) != FORMAT:
                raise InputError(f"{path}: is an HDF5 file, but has no moments of classes")
            if (version := int(hdf5.attribute(file, "version"))) > VERSION:
                raise InputError(f"{path}: was written by a newer distsms (version {version}); update distsms")
            arrays = {name: np.asarray(hdf5.dataset(file, name)[()]) for name in ARRAYS}
            text = hdf5.attribute(file, "label_map", text=True)
            contents = {**arrays, "label_map": text}
            if "names" in file:
                contents["names"] = hdf5.dataset(file, "names")[()]
            hdf5.require_checksum(hdf5.attribute(file, "sha256"), contents, path)
            label_map = json.loads(text)
            names = json.loads(contents["names"].tobytes()) if "names" in contents else None
        moments = Moments(**arrays)
        if not _fit_together(moments, label_map, names):
            raise InputError(f"{path}: damaged: its moments are not those of rows of two classes")
        loaded = cls(moments.mean.shape[1])
        loaded.moments, loaded.label_map, loaded.names = moments, label_map, names
        return loaded


def _fit_together(moments: Moments, label_map: Any, names: Any) -> bool:
    """Whether rows of two classes with these labels and names of columns can have such moments."""
    count, mass, scatter = moments.count, moments.mass, moments.scatter
    p = moments.mean.shape[-1] if moments.mean.ndim == 2 else 0
    if not p or scatter.shape != (2, p, p):
        return False
    for array, usual in zip(vars(moments).values(), vars(Moments.empty(2, p)).values(), strict=True):
        if array.shape != usual.shape or array.dtype != usual.dtype or not np.isfinite(array).all():
            return False
    labelled = (label_map is None and not count.any()) or _are_labels(label_map)
    named = names is None or (isinstance(names, list) and len(names) == p == len({*filter(is_text, names)}))
    counted = count.min() >= 0 and count.max() < 2**53 and mass.min() >= 0 and np.array_equal(count > 0, mass > 0)
    symmetric = np.array_equal(scatter, scatter.transpose(0, 2, 1))
    least = np.diagonal(scatter, axis1=1, axis2=2).min()
    return bool(labelled and named and counted and symmetric and least >= -1e-9 * np.abs(scatter).max())


def _are_labels(label_map: Any) -> bool:
    """Whether it has a label, or several, of each class."""
    if not isinstance(label_map, dict) or set(label_map) != {"+1", "-1"}:
        return False
    labels = [label for sign in label_map for label in np.atleast_1d(np.array(label_map[sign], object)).tolist()]
    return all(isinstance(label, str | bool | int | float) for label in labels)
