"""The feature map: how the columns of a row, before any normalization, become codes, and which columns these stand for.

It has `Bins`, a `Forest`, or both, after the original columns if it keeps them. A data set with such codes has its map
in `features.h5`, and a model in the group `features`; manifest and model say its hash, by which a changed map shows.
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Mapping
from dataclasses import dataclass, field
from functools import cached_property, lru_cache
from pathlib import Path
from typing import Any

import numpy as np
import scipy
from numpy.typing import NDArray

from distsms.base import hdf5
from distsms.base.errors import InputError
from distsms.features.bins import Bins
from distsms.features.forest import Forest
from distsms.features.rows import widened
from distsms.matrix.arrays import as_features, as_numbers
from distsms.matrix.blocks import LocalRows
from distsms.matrix.coded import CodedRows, code_rows, to_csr
from distsms.matrix.side_by_side import SideBySide
from distsms.shards.coded_columns import CodedColumns, FeatureReference
from distsms.shards.manifest import Manifest

VERSION = 1
SHOWN = 40
"""How many lines people get to see of a long list."""


@dataclass(frozen=True)
class FeatureMap:
    """How the columns of a row become codes; ValueError if there is no part, or trees grew on other columns."""

    columns: int  # the number of columns of the rows that it is made for
    bins: Bins | None = None  # the codes of attributes
    forest: Forest | None = None  # the trees whose leaves are codes
    keep: bool = False  # whether the original columns are features, too
    # the options by which it was made, as `path --features` takes them, if they are known. The hash leaves them out.
    options: str = field(default="OPTIONS", compare=False)

    def __post_init__(self) -> None:
        if not self.parts:
            raise ValueError("a feature map needs bins or trees")
        if self.forest is not None and self.forest.columns != self.columns:
            raise ValueError(f"the trees of the feature map did not grow on its {self.columns} columns")

    @property
    def _named(self) -> dict[str, Bins | Forest]:
        parts = {"bins": self.bins, "forest": self.forest}
        return {name: part for name, part in parts.items() if part is not None}

    @property
    def parts(self) -> list[Bins | Forest]:
        """The parts, in the order of their columns."""
        return list(self._named.values())

    @property
    def coded(self) -> CodedColumns:
        return CodedColumns(tuple(part.code_map for part in self.parts), features=self.reference)

    @property
    def reference(self) -> FeatureReference:
        """What a manifest or a model says of the map."""
        return FeatureReference(self.hash, self.columns)

    @property
    def p(self) -> int:
        """The number of columns of the features, those that are kept included."""
        return self.columns * self.keep + sum(part.code_map.p for part in self.parts)

    @property
    def chosen_by_labels(self) -> str:
        """The parts that were made with the labels of rows, in words; "" if there are none."""
        screened = self.bins is not None and self.bins.screened
        return " and ".join(["the crosses"] * screened + ["the trees"] * (self.forest is not None))

    def codes(self, X: Any) -> list[NDArray[Any]]:
        """Return the codes of rows X (n, up to p) before normalization, without NaN: (n, codes) for each part."""
        values = X.data if hasattr(X, "indptr") else X
        if np.isnan(values).any():
            raise InputError("a value is NaN; a feature map needs numbers, as its training data had")
        X = widened(X, self.columns)
        return [part.codes(X) for part in self.parts]

    def rows(self, X: Any) -> LocalRows | SideBySide:
        """Return rows, given as for `codes`, with all features, before normalization. Local."""
        groups: list[LocalRows] = [as_features(widened(X, self.columns))] if self.keep else []
        for part, codes in zip(self.parts, self.codes(X), strict=True):
            groups.append(CodedRows(part.code_map, code_rows(codes, part.code_map), [0, len(codes)]))
        return groups[0] if len(groups) == 1 else SideBySide(groups)

    def to_csr(self, X: Any) -> scipy.sparse.csr_matrix:
        """Return the columns that the codes of rows stand for, given as for `codes`, as a matrix of float64."""
        blocks = zip(self.parts, self.codes(as_numbers(X)), strict=True)
        return scipy.sparse.hstack([to_csr(part.code_map, codes) for part, codes in blocks], "csr")

    def column_name(self, j: int) -> str:
        """Return the name of coded column j, counted from 0 behind those that are kept."""
        for part in self.parts:
            if j < part.code_map.p:
                return part.column_name(j)
            j -= part.code_map.p
        raise IndexError(j)

    def describe(self) -> str:
        return " and ".join(["the original columns"] * self.keep + [part.describe() for part in self.parts])

    def listing(self) -> list[str]:
        """Return a line for each attribute, at most `SHOWN`, for people."""
        lines = self.bins.listing() if self.bins else []
        return lines if len(lines) <= SHOWN else [*lines[: SHOWN - 1], f"and {len(lines) - SHOWN + 1} more"]

    def record(self) -> dict[str, Any]:
        """Return everything but the arrays, ready for JSON."""
        fields: dict[str, Any] = {"version": VERSION, "columns": self.columns, "keep": self.keep}
        return fields | {name: part.record() for name, part in self._named.items()}

    def arrays(self) -> dict[str, NDArray[Any]]:
        """Return the arrays of the parts, by names such as "bins/edges"."""
        return {
            f"{name}/{array_name}": np.ascontiguousarray(array)
            for name, part in self._named.items()
            for array_name, array in part.arrays().items()
        }

    @cached_property
    def hash(self) -> str:
        return _digest(self.record(), self.arrays())


def _digest(record: Mapping[str, Any], arrays: Mapping[str, NDArray[Any]]) -> str:
    digest = hashlib.sha256(json.dumps(record, sort_keys=True).encode())
    for name, array in sorted(arrays.items()):
        digest.update(f"{name} {array.dtype.str} {array.shape}".encode())
        digest.update(array.tobytes())
    return digest.hexdigest()


def write(feature_map: FeatureMap, group: Any) -> None:
    record = feature_map.record() | {"options": feature_map.options}
    group["record"] = np.frombuffer(json.dumps(record).encode(), np.uint8)
    for name, array in feature_map.arrays().items():
        group[name] = array


def read(file: Any, prefix: str, reference: FeatureReference, where: object) -> FeatureMap:
    """Read the map that `reference` names from an open HDF5 file; `prefix` is "" or a group/, `where` for errors."""
    arrays, size = dict[str, dict[str, NDArray[Any]]](), 0
    try:
        record = json.loads(hdf5.dataset(file, f"{prefix}record", packed=False)[()].tobytes())
        if record["version"] > VERSION:
            raise InputError(f"the feature map has version {record['version']}; update distsms")
        for part in record.keys() & {"bins", "forest"}:
            arrays[part] = {}
            for name in hdf5.member(file, prefix + part):
                array = hdf5.dataset(file, f"{prefix}{part}/{name}")
                size += array.nbytes  # several names may stand for one array
                if size > hdf5.most_bytes(file) or array.dtype.kind not in "iuf":
                    raise InputError("the arrays of the feature map are not numbers, or too large")
                arrays[part][name] = array[()]
        options = record.pop("options", "OPTIONS")
        # What has this hash was written so, and fits together.
        by_name = {f"{part}/{name}": array for part, group in arrays.items() for name, array in group.items()}
        if FeatureReference(_digest(record, by_name), record["columns"]) != reference:
            raise InputError("its feature map is not the one that it was written with; copy or make it again")
        bins = Bins.of(record["bins"], **arrays["bins"]) if "bins" in arrays else None
        forest = Forest(**arrays["forest"]) if "forest" in arrays else None
        return FeatureMap(record["columns"], bins, forest, record["keep"], options)
    except InputError as error:
        raise InputError(f"{where}: {error}") from error
    except (TypeError, LookupError, ValueError, AttributeError, OverflowError, RecursionError) as error:
        raise InputError(f"{where}: the feature map is damaged: {error!r:.200}") from error


def load(manifest: Manifest, keep: bool = True) -> FeatureMap | None:
    """Return the feature map of a data set, or None if it has none; `keep` it in memory for the next call. Local."""
    reference = manifest.coded.features
    if reference is None:
        return None
    path = manifest.features_path
    if path.is_symlink() or not path.is_file():
        raise InputError(f"{path}: the file of the feature map is missing; copy the data set again, or make it again")
    about, read_map = path.stat(), _load if keep else _load.__wrapped__
    feature_map = read_map(path, reference, about.st_mtime_ns, about.st_size)
    if feature_map.coded != manifest.coded or feature_map.p != manifest.p:
        raise InputError(f"{manifest.path}: its codes are not those of its feature map; make the data set again")
    return feature_map


@lru_cache(2)
def _load(path: Path, reference: FeatureReference, *about: int) -> FeatureMap:
    with hdf5.open_file(path, "a feature map") as file:
        return read(file, "", reference, path)
