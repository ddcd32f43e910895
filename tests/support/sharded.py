"""Rows in shards, and one rank of several played alone."""

from __future__ import annotations

import json

import numpy as np
from scipy import sparse

from distsms.data.shards.dataset import load
from distsms.parallel.communicator import Communicator


class RankOf(Communicator):
    """One of several ranks, played alone: `load` sends nothing but its errors."""

    def __init__(self, rank, size):
        super().__init__()
        self.rank, self.size = rank, size


ALONE = Communicator()


def draw(n=40, p=12, seed=0, density=0.3, ones=False, heavy=()):
    """CSR (n, p) and labels (n,); `heavy` rows are full."""
    rng = np.random.default_rng(seed)
    array = np.ones((n, p)) if ones else rng.normal(size=(n, p))
    keep = rng.random((n, p)) < density
    keep[list(heavy)] = True
    return sparse.csr_matrix(array * keep), np.where(rng.random(n) < 0.4, 1, -1)


def as_array(features):
    """The local rows of a Block as numpy array, through the interface."""
    return features.margins(np.eye(features.shape[1])).T


def load_all(directory, size, **options):
    return [load(directory, RankOf(rank, size), **options) for rank in range(size)]


def rewrite(directory, change):
    """Apply `change` to the manifest's record."""
    path = directory / "manifest.json"
    record = json.loads(path.read_text())
    change(record)
    path.write_text(json.dumps(record))


def entry_count(record):
    return sum(shard["nnz"] for shard in record["shards"])
