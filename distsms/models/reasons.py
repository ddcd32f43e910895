"""Reasons for single scores: the columns that move the score of a row most, up or down from that of the mean row.

The contribution of a column of a table is sum_j w_j (x_ij - m_j) over its features j, where m is the mean of the
training rows: 0 for a row like the mean, and all contributions add up to the score less the mean score. Bins of a
column and the column itself are one term; a cross of two columns is one of its own, and all trees together are one.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
from numpy.typing import NDArray

from distsms.base.communicator import Communicator
from distsms.base.errors import InputError
from distsms.base.typing import Floats
from distsms.matrix.code_maps import Crosses
from distsms.models import contributions
from distsms.models.model import MEAN_CONTRIBUTIONS, Model
from distsms.models.scoring import Rows
from distsms.shards.dataset import DataBlock

MOST_TERMS = 2**12
"""A model of more terms has no reasons: each term takes a product with the rows."""
TOGETHER = 16
"""Terms whose contributions are computed at a time."""
TREES = "trees"


def terms_of(model: Model) -> tuple[list[str], NDArray[np.int64]]:
    """Return the names of a model's terms, and the term of each of its columns, (p,). Local."""
    features, names, parts = model.features, dict[str, int](), []

    def numbers(of: Sequence[str]) -> NDArray[np.int64]:
        return np.array([names.setdefault(name, len(names)) for name in of], np.int64)

    if features is None or features.keep:
        of_columns, column = contributions.columns_of(model)
        parts.append(numbers(of_columns)[column])
    if features is not None and features.bins is not None:
        bins = features.bins
        blocks = bins.code_map.blocks if isinstance(bins.code_map, Crosses) else bins.code_map
        parts.append(np.repeat(numbers([one.name for one in bins.attributes]), np.diff(blocks.offsets)))
        if bins.pairs:
            pairs = [f"{bins.attributes[a].name} & {bins.attributes[b].name}" for a, b in bins.pairs]
            parts.append(np.repeat(numbers(pairs), np.diff(bins.code_map.offsets)))
    if features is not None and features.forest is not None:
        parts.append(np.repeat(numbers([TREES]), features.forest.code_map.p))
    return list(names), np.concatenate(parts)


def mean_contributions(model: Model, w: Floats, block: DataBlock, comm: Communicator) -> list[float] | None:
    """Return the mean of <w, x> over the training rows, term by term, in one pass; None for models without reasons.
    w (p,) are the coefficients for the rows as they are in the block. **Collective.**"""
    if model.table is None or contributions.find_reason(model):
        return None
    names, term = terms_of(model)
    if len(names) > MOST_TERMS:
        return None
    a = np.ones(len(block.labels)) if block.weights is None else block.weights.astype(np.float64)
    sums, mass = comm.sum(block.features.transposed_times(a)), comm.sum(np.array([a.sum()]))
    return [float(mean) for mean in np.bincount(term, w * sums / mass, len(names))]


class Reasons:
    """The terms with the largest contributions to the score of each row, as a `scoring.Watch`. Raises InputError if the
    model has none."""

    def __init__(self, model: Model, count: int) -> None:
        contributions.check(model)
        self._names, self._term = terms_of(model)
        if len(self._names) > MOST_TERMS:
            raise InputError(
                f"the model has {len(self._names):,} terms; reasons are computed of at most {MOST_TERMS:,}"
            )
        self._means = np.array(model.info.get(MEAN_CONTRIBUTIONS) or [])
        if len(self._means) != len(self._names):
            raise InputError(
                "the model does not say what its columns contribute on average, so reasons for single rows cannot be"
                " given; train it on a table, with this version of distsms"
            )
        self.count = min(count, len(self._names))
        self._texts = list[NDArray[Any]]()

    def __call__(self, models: Sequence[Model], rows: Rows, scores: list[Floats], weights: Floats | None) -> None:
        """Add the reasons of some rows. Local."""
        n, w = len(scores[0]), models[0].w
        values, terms = np.zeros((0, n)), np.zeros((0, n), np.int64)
        for first in range(0, len(self._names), TOGETHER):
            # 1) What the next terms contribute to each row.
            here = np.arange(first, min(first + TOGETHER, len(self._names)))
            added = rows.margins(np.where(self._term == here[:, None], w, 0.0)) - self._means[here, None]
            # 2) The largest of these and of those before, in order.
            values = np.concatenate([values, added])
            terms = np.concatenate([terms, np.broadcast_to(here[:, None], added.shape)])
            largest = np.argsort(-np.abs(values), axis=0, kind="stable")[: self.count]
            values = np.take_along_axis(values, largest, axis=0)
            terms = np.take_along_axis(terms, largest, axis=0)
        texts = [f"{self._names[k]} {value:+.3g}" for k, value in zip(terms.T.flat, values.T.flat, strict=True)]
        self._texts.append(np.array(texts, object).reshape(n, self.count))

    def take(self) -> NDArray[Any]:
        """Return the reasons of all rows since the last call, (n_local, count) of str, the largest first."""
        texts, self._texts = self._texts, []
        return np.concatenate([np.empty((0, self.count), object), *texts])
