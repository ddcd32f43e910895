"""Features as a user asks for them: a data set whose rows are bins, crosses and leaves of the rows of another one."""

from __future__ import annotations

import math
import os
import shlex
import time
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, NamedTuple

from distsms.base.communicator import Communicator
from distsms.base.errors import InputError
from distsms.base.memory import ReadCounter
from distsms.base.timing import Clock
from distsms.base.wording import Message, option
from distsms.features import arrays, feature_map
from distsms.features.build import build
from distsms.features.feature_map import FeatureMap
from distsms.features.fit import room
from distsms.features.growing import UNWATCHED, FeaturesObserver
from distsms.shards.manifest import Manifest, read_manifest
from distsms.workflow.provenance import usage_of_ranks
from distsms.workflow.requests import FeaturesRequest


class Note(NamedTuple):
    """What users should know of the features that are made."""

    kind: str  # "note", "warning", or "cross" for a cross that was chosen
    text: str


@dataclass(frozen=True)
class Features:
    """The features that were made; the same on every rank.

    Attributes
    ----------
    manifest : Manifest
        The new data set: `directory`, `n` rows, `p` columns and more.
    feature_map : FeatureMap
        How the columns of a row become features.
    notes : sequence of Note
        What users should know of them (`text`), and whether this is a ``"note"``, a ``"warning"``, or a ``"cross"``
        that was chosen (`kind`).
    labels_note : str
        Which features know the labels of the rows, so that models must be judged on other rows; "" if none does.
    seconds : float
        How long it took.
    usage : list of dict
        The seconds, bytes and memory of each rank.
    """

    manifest: Manifest
    feature_map: FeatureMap
    notes: Sequence[Note]
    labels_note: str
    seconds: float
    usage: Sequence[dict[str, Any]]

    @property
    def warnings(self) -> list[str]:
        """Those of the notes that are warnings."""
        return [note.text for note in self.notes if note.kind == "warning"]

    def to_dict(self) -> dict[str, Any]:
        """Return what was made, ready for JSON: directory, rows, columns, features, attributes, notes and seconds."""
        bins = self.feature_map.bins
        return {
            "directory": os.fspath(self.manifest.directory),
            "rows": self.manifest.n,
            "columns": self.manifest.p,
            "hash": self.feature_map.hash,
            "features": self.feature_map.describe(),
            "options": self.feature_map.options,
            "attributes": self._attributes(),
            "crosses": [] if bins is None else [[bins.attributes[k].name for k in pair] for pair in bins.pairs],
            "notes": [note._asdict() for note in self.notes],
            "labels_note": self.labels_note,
            "seconds": self.seconds,
        }

    def to_frame(self) -> Any:
        """Return a `pandas.DataFrame` with a row for each attribute and for each tree.

        Its columns are the ``name``, the ``kind`` (bins, categories or leaves), and how many of these there are
        (``count``).
        """
        import pandas as pd

        forest = self.feature_map.forest
        leaves = [] if forest is None else forest.sizes
        trees = [{"name": f"tree {k}", "kind": "leaves", "count": n} for k, n in enumerate(leaves)]
        return pd.DataFrame([*self._attributes(), *trees], columns=["name", "kind", "count"])

    def _attributes(self) -> list[dict[str, Any]]:
        bins = self.feature_map.bins
        if bins is None:
            return []
        return [
            {"name": each.name, "kind": "bins" if each.categories is None else "categories", "count": size}
            for each, size in zip(bins.attributes, bins.sizes, strict=True)
        ]


def make_features(request: FeaturesRequest, comm: Communicator, observer: FeaturesObserver = UNWATCHED) -> Features:
    """Make a data set with features from another one. **Collective.**"""
    start, watched = time.perf_counter(), _Watched(observer)
    with comm.fail_together():
        if request.like is not None and request.options:
            names = ", ".join(map(str, request.options))
            raise InputError(f"{option('like')} takes all rules from the other data set; leave out {names}")
        options = arrays.options(request.options)
        manifest = read_manifest(request.data)
    left, reading = math.inf, ReadCounter()
    if request.memory is not None:
        left = room(manifest, comm, request.memory, options.trees)
    with reading:
        written = build(
            request.data,
            request.output,
            comm,
            options,
            like=request.like,
            n_shards=request.shards,
            compression=request.compression,
            overwrite=request.overwrite,
            observer=watched,
            room=left,
        )
    watched.end_task()
    usage = usage_of_ranks(watched.clock, comm, reading.bytes, 0)
    with comm.fail_together():
        features = feature_map.load(written)
    assert features is not None
    by_labels = "" if request.like is not None else features.chosen_by_labels
    labels_note = by_labels and Message(
        f"{by_labels} know the labels of these rows: judge models on other rows ({option('test')}), or give `distsms "
        f"path` the data {os.fspath(request.data)}, with {option('features', shlex.quote(features.options))}"
    )
    return Features(
        manifest=written,
        feature_map=features,
        notes=comm.bcast(watched.notes),
        labels_note=labels_note,
        seconds=time.perf_counter() - start,
        usage=usage,
    )


class _Watched(FeaturesObserver):
    """Measures the seconds of each task of which it tells an observer, and keeps the notes."""

    def __init__(self, observer: FeaturesObserver) -> None:
        self._observer, self._task, self.notes = observer, "", list[Note]()
        self.clock, self._since = Clock(), time.perf_counter()

    def progress(self, task: str, unit: str, done: float, of: float) -> None:
        """Tell how much of a task is done."""
        self._task = self._task or task
        self.end_task()
        self._task = task
        self._observer.progress(task, unit, done, of)

    def noted(self, kind: str, text: str) -> None:
        self.notes.append(Note(kind, text))
        self._observer.noted(kind, text)

    def end_task(self) -> None:
        """Count the seconds since the last report for its task."""
        if self._task:
            now = time.perf_counter()
            self.clock.seconds[self._task] += now - self._since
            self._since = now
