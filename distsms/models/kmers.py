"""Say what a model of sequences looks for: the *importance of a letter* at a position is the mean score of random
sequences that have it there, minus that of all; the *score of a k-mer* the sum of the terms of all k-mers in it, minus
its mean over all k-mers of this length (compare Sonnenburg et al., POIMs, 2008).
"""

from __future__ import annotations

from typing import NamedTuple

import numpy as np

from distsms.base.typing import Floats
from distsms.matrix.code_maps import Strings
from distsms.shards.sequence_rules import Sequences

SHOWN = 12
"""How many k-mers are listed."""


def letter_importance(w: Floats, code_map: Strings) -> Floats:
    """Return how much each letter at each position raises the mean score, (L, letters), in O(K p). Local."""
    size = len(code_map.letters)
    importance = np.zeros((code_map.length, size))
    for i, start in enumerate(code_map.starts[:-1].tolist()):
        for k, value in enumerate(code_map.degree_values[: code_map.length - i], 1):
            block, start = w[start : start + size**k], start + size**k
            for m in range(k):
                importance[i + m] += value * block.reshape(size**m, size, -1).mean(axis=(0, 2))
    return importance - importance.mean(axis=1, keepdims=True)


def kmer_scores(w: Floats, code_map: Strings) -> Floats:
    """Return the scores of all k-mers of length K, the degree, (L - K + 1, letters^K), from shorter ones. Local."""
    size, values = len(code_map.letters), code_map.degree_values
    starts, middle, sums = code_map.starts[:-1], np.zeros((code_map.length + 1, 1)), np.empty((0, 0))
    for k, value in enumerate(values, 1):
        n, offset = code_map.length - k + 1, sum(size**m for m in range(1, k))
        sums_here = np.stack([w[start + offset : start + offset + size**k] for start in starts[:n].tolist()]) * value
        if k > 1:
            inner = middle[1 : n + 1, None, :, None]
            sums_here = sums_here.reshape(n, size, -1, size)
            sums_here += sums[:n].reshape(n, size, -1, 1) + sums[1 : n + 1].reshape(n, 1, -1, size) - inner
            middle, sums = sums, sums_here.reshape(n, -1)
        else:
            sums = sums_here
    return sums - sums.mean(axis=1, keepdims=True)


class Kmer(NamedTuple):
    """A k-mer at a position of the whole sequence, counted from 1, and its score."""

    position: int
    letters: str
    score: float


def best_kmers(w: Floats, sequences: Sequences, count: int = SHOWN) -> list[Kmer]:
    """Return the k-mers of length K with the highest scores: the best of each position, and the best of these."""
    code_map = sequences.code_map
    scores = kmer_scores(w, code_map)
    best = scores.argmax(axis=1)
    highest = scores[np.arange(len(best)), best]
    shorter = code_map.block_size(code_map.degree - 1)  # the columns of shorter k-mers come first at each position
    kmers = []
    for i in np.argsort(-highest, kind="stable")[:count].tolist():
        position, letters = sequences.column_name(int(code_map.starts[i]) + shorter + int(best[i])).split(":")
        kmers.append(Kmer(int(position), letters, float(highest[i])))
    return kmers
