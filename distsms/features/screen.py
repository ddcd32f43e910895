"""Which crosses of two attributes are worth their columns: the score test of docs/theory/features.md, on a sample of
the rows that is the same on any number of ranks. Its logistic model with a term for each code is fitted by Newton
steps, one attribute after the other. The sums g and h of a cell are over its rows, times their weights.
"""

from __future__ import annotations

from collections.abc import Iterable
from itertools import combinations
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from distsms.base.communicator import Communicator
from distsms.base.typing import Floats
from distsms.features.bins import Bins
from distsms.features.growing import drawn, sample_shares
from distsms.features.rows import Rows
from distsms.shards.manifest import Manifest

ROWS = 200_000
_ROUNDS = 10
_CELLS = 2**22
"""Cells that are added up over the ranks at a time."""


class Pair(NamedTuple):
    """Two attributes a < b, and the gain of their cross."""

    a: int
    b: int
    gain: float


def strongest(bins: Bins, parts: Iterable[Rows], manifest: Manifest, k: int, comm: Communicator) -> list[Pair]:
    """Return the k pairs of attributes with the largest gains, the largest first. **Collective.**"""
    with comm.fail_together():
        codes, y, weights = _sample(bins, parts, manifest)
    places = np.empty((len(bins.sizes), len(y)), np.int64)
    for place, of_attribute, size in zip(places, codes.T, bins.sizes, strict=True):
        # A missing code has a place of its own, which is not looked at.
        place[:] = np.where(of_attribute < size, of_attribute, size)
    share = _fitted(places, bins.sizes, y, weights, comm)
    g, h = weights * (y - share), weights * share * (1 - share)
    scored, batch, cells = list[Pair](), list[tuple[int, int]](), 0
    for a, b in combinations(range(len(bins.sizes)), 2):
        batch.append((a, b))
        cells += bins.sizes[a] * bins.sizes[b]
        if a == len(bins.sizes) - 2 or cells > _CELLS:
            scored += _gains(batch, places, bins.sizes, g, h, comm)
            batch, cells = [], 0
    return sorted(scored, key=lambda pair: (-pair.gain, pair.a, pair.b))[:k]


def row_bytes(attributes: int) -> int:
    """Return about how many bytes a sampled row takes: a code and a place for each attribute, and a few numbers."""
    return 10 * attributes + 40


def _sample(bins: Bins, parts: Iterable[Rows], manifest: Manifest) -> tuple[NDArray[Any], Floats, Floats]:
    of_classes = sample_shares(manifest.n_pos, manifest.n_neg, ROWS)
    codes, labels, weights = list[NDArray[Any]](), list[Floats](), list[Floats]()
    for _, rows in drawn(manifest, parts, of_classes):
        codes.append(bins.codes(rows.X))
        labels.append(1.0 * (rows.labels > 0))
        weights.append(np.ones(len(rows.labels)) if rows.weights is None else rows.weights)
    return np.concatenate(codes), np.concatenate(labels), np.concatenate(weights)


def _fitted(
    places: NDArray[np.int64], sizes: tuple[int, ...], y: Floats, weights: Floats, comm: Communicator
) -> Floats:
    """Return the probability of each row by the model of single attributes, (n,). Collective."""
    scores = np.zeros(len(y))
    for _ in range(_ROUNDS):
        for place, size in zip(places, sizes, strict=True):
            share = 1 / (1 + np.exp(-scores))
            # bincount of nothing has integers, which MPI would take for the bytes of floating-point numbers
            of_rows = weights * (y - share), weights * share * (1 - share)
            g, h = comm.sum(np.array([np.bincount(place, values, size + 1) for values in of_rows], float))
            step = np.clip(g / (h + 1), -2, 2)
            step[size] = 0
            scores += step[place]
    return 1 / (1 + np.exp(-scores))


def _gains(
    pairs: list[tuple[int, int]],
    places: NDArray[np.int64],
    sizes: tuple[int, ...],
    g: Floats,
    h: Floats,
    comm: Communicator,
) -> list[Pair]:
    """Return what each pair gains. Collective."""
    tables = []
    for a, b in pairs:
        cells, cell = (sizes[a] + 1) * (sizes[b] + 1), places[a] * (sizes[b] + 1) + places[b]
        both = (np.bincount(cell, values, cells).reshape(sizes[a] + 1, -1)[:-1, :-1] for values in (g, h))
        tables.append(np.stack(list(both)))
    total = comm.sum(np.concatenate([table.ravel() for table in tables]).astype(float))  # see `_fitted`
    scored = []
    for (a, b), of_pair in zip(pairs, np.split(total, np.cumsum([table.size for table in tables])[:-1]), strict=True):
        of_g, of_h = of_pair.reshape(2, -1)
        scored.append(Pair(a, b, float(np.sum((of_g**2 - of_h) / (of_h + 1)))))
    return scored
