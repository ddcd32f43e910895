"""Rows in shards, and a communicator that simulates one of several ranks."""

from __future__ import annotations

import json

import numpy as np
from scipy import sparse

from distsms.base.communicator import Communicator
from distsms.shards.dataset import load


class RankOf(Communicator):
    """Simulates one of several ranks in one process; this works since `load` communicates nothing but errors."""

    def __init__(self, rank, size):
        super().__init__()
        self.rank, self.size = rank, size


ALONE = Communicator()


def draw(n=40, p=12, seed=0, density=0.3, ones=False, heavy=()):
    """Return X (n, p) in CSR and labels (n,); the rows in `heavy` have no zeros."""
    rng = np.random.default_rng(seed)
    array = np.ones((n, p)) if ones else rng.normal(size=(n, p))
    keep = rng.random((n, p)) < density
    keep[list(heavy)] = True
    return sparse.csr_matrix(array * keep), np.where(rng.random(n) < 0.4, 1, -1)


def as_array(features):
    """Return the local rows as a NumPy array, computed by `margins`."""
    return features.margins(np.eye(features.shape[1])).T


def load_all(directory, size, **options):
    return [load(directory, RankOf(rank, size), **options) for rank in range(size)]


def rewrite(directory, change):
    """Change the manifest by a function that gets its JSON object, and leave out its checksum."""
    path = directory / "manifest.json"
    record = json.loads(path.read_text())
    record.pop("checksum", None)
    change(record)
    path.write_text(json.dumps(record))


def forget_checksums(directory):
    """Make a data set one of an older program, which wrote no checksums: faults of the rows are found as such."""
    rewrite(directory, lambda record: [shard.pop("digests", None) for shard in record["shards"]])


def entry_count(record):
    return sum(shard["nnz"] for shard in record["shards"])
