"""Features that are made for each fold from the rows on which its models are trained, and from no others: trees and
`top:K` choose by labels. So each fold has a data set of its own on the disk, and `all` is that of all rows; one fold at
a time is in memory, and a killed run goes on.
"""

from __future__ import annotations

import json
import math
import shutil
import time
from dataclasses import replace
from functools import cached_property
from pathlib import Path
from typing import Any

import numpy as np

from distsms.base.communicator import Communicator
from distsms.base.errors import InputError
from distsms.base.files import atomic_write, read_whole
from distsms.base.typing import Labels
from distsms.features import feature_map
from distsms.features.build import build
from distsms.features.fit import FeatureOptions, fit, room
from distsms.features.growing import FeaturesObserver
from distsms.features.rows import RowParts
from distsms.shards.dataset import MemoryBudget, open_shards
from distsms.shards.manifest import Manifest, file_sha256, read_manifest
from distsms.workflow.folds import Folds, fold_name, make_folds, read_fold_keys
from distsms.workflow.path import PathRows, Problem, load_rows

FOLDER = "features"


class FoldsObserver(FeaturesObserver):
    """Receives what a path or a baseline reports. Each rank calls the methods, unless they say otherwise."""

    def chose_solver(self, solver: str, why: str) -> None:
        """Called with the solver, and why it is not the usual one; "" if it is."""

    def made_features(self, text: str) -> None:
        """Called on the root with a line on the features of a fold."""


class FoldFeatures:
    """The data sets with features of all rows and of each fold, in `folder`, of this problem alone. **Collective.**"""

    budget: MemoryBudget | None = None  # for the rows in memory

    def __init__(
        self,
        manifest: Manifest,
        options: FeatureOptions,
        folder: Path,
        problem: Problem,
        comm: Communicator,
        observer: FoldsObserver = FoldsObserver(),  # noqa: B008 - without state
        memory: float | None = None,
    ) -> None:
        self._data, self._comm = manifest, comm
        self._options, self._problem, self._folder = options, problem, folder
        self._observer = observer
        self._manifests = dict[int, Manifest]()
        self._room = room(manifest, comm, math.inf if memory is None else memory, options.trees)
        about = {"data": manifest.fingerprint, "folds": problem.folds, "by": problem.folds_by, "seed": problem.seed}
        with comm.fail_together():
            if comm.is_root:
                about |= record_of(options)
                if _read(folder / "features.json") != about:
                    self.remove()
                    folder.mkdir(parents=True)
                    _write(folder / "features.json", about)

    def manifest(self, fold: int) -> Manifest:
        """Return the data set of a fold, 0 being all rows, and make it if it is not there whole. **Collective.**"""
        comm, observer, directory = self._comm, self._observer, self._folder / fold_name(fold)
        if fold not in self._manifests and comm.of_root(lambda: self._is_kept(fold, directory)):
            with comm.fail_together():
                self._manifests[fold] = read_manifest(directory)
        if fold in self._manifests:
            return self._manifests[fold]
        begun, fitted = time.perf_counter(), self._fit(fold)
        self._manifests[fold] = manifest = build(
            self._data.directory, directory, comm, overwrite=True, observer=observer, fitted=fitted, room=self._room
        )
        seconds = time.perf_counter() - begun
        with comm.fail_together():
            if comm.is_root:
                _write(self._about(fold), {"seconds": seconds, "fingerprint": manifest.fingerprint})
                rows = f"without the rows of fold {fold}" if fold else "on all rows"
                observer.made_features(f"features  {rows}: {fitted.describe()}, {seconds:.1f} s")
        return manifest

    def _is_kept(self, fold: int, directory: Path) -> bool:
        """Return whether the data set of a fold is there as it was made, and not damaged or exchanged. On the root."""
        about = _read(self._about(fold))
        try:
            manifest = read_manifest(directory)
            feature_map.load(manifest, keep=False)
        except InputError:
            return False
        return isinstance(about, dict) and about.get("fingerprint") == manifest.fingerprint

    def _fit(self, fold: int) -> Any:
        """Return the map of a fold. **Collective.**"""
        if not fold:
            return fit(self._data, self._comm, self._options, self._observer, room=self._room)
        labels, folds = self._folds
        counted = folds.training(fold)
        n_pos, n = self._comm.sum(np.array([(labels[counted] > 0).sum(), counted.sum()])).tolist()
        parts = RowParts.of_rank(self._data, self._comm, counted)
        training = replace(self._data, n_pos=n_pos, n_neg=n - n_pos, weights=True)  # as all parts have them
        return fit(training, self._comm, self._options, self._observer, parts=parts, room=self._room)

    @cached_property
    def _folds(self) -> tuple[Labels, Folds]:
        """The labels and the folds of the rows that this rank reads to make a map. Collective."""
        parts, problem = RowParts.of_rank(self._data, self._comm), self._problem
        labels, counted = np.empty(parts.last - parts.first, np.int8), np.ones(parts.last - parts.first, bool)
        with self._comm.fail_together():
            for shard, piece in open_shards(self._data, parts.first, parts.last):
                labels[piece.after(parts.first)] = shard.read_labels(piece)
                if (weights := shard.read_weights(piece)) is not None:
                    counted[piece.after(parts.first)] = weights != 0
            keys = read_fold_keys(self._data, problem.folds_by, parts.first, parts.last)
        return labels, make_folds(problem.folds_by, keys, labels, counted, problem.folds, problem.seed, self._comm)

    def rows(self, fold: int) -> PathRows:
        """Return the rows with the features of a fold. **Collective.**"""
        return load_rows(self.manifest(fold), self._problem, self._comm, self.budget, made_from=self._data)

    def seconds(self, fold: int) -> float:
        """Return how long it took to make the data set of a fold. On the root, when it has been made."""
        return float((_read(self._about(fold)) or {"seconds": 0})["seconds"])

    def remove(self, but_all: bool = False) -> None:
        """Remove what this object wrote; with `but_all` only that of the folds. On the root, when no rank uses it."""
        for path in self._folder.glob("fold*") if but_all else [self._folder]:
            if path.is_dir():
                shutil.rmtree(path, ignore_errors=True)
            else:
                path.unlink(missing_ok=True)

    def _about(self, fold: int) -> Path:
        return self._folder / f"{fold_name(fold)}.json"


def record_of(options: FeatureOptions) -> dict[str, Any]:
    """Return the options, ready for JSON; of a file of attributes, what it holds counts, not its name. Local."""
    fields = {name: value for name, value in vars(options).items() if value is not None}
    if options.attributes is not None:
        try:
            fields["attributes"] = file_sha256(Path(options.attributes))
        except OSError as error:
            raise InputError(f"{options.attributes}: cannot be read: {error.strerror}") from error
    return fields


def _read(path: Path) -> Any:
    """Return what a JSON file holds, or None if there is none, or it is damaged."""
    try:
        return json.loads(read_whole(path))
    except (OSError, ValueError, InputError):
        return None


def _write(path: Path, value: Any) -> None:
    with atomic_write(path) as file:
        file.write(json.dumps(value).encode())
