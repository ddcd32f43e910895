"""Write test files of every format, and read the content of a data set."""

from __future__ import annotations

import csv
import gzip

import h5py
import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
from scipy import sparse

from distsms.base.communicator import Communicator
from distsms.base.text_files import TextPosition
from distsms.ingest.formats.svmlight import SvmlightReader
from distsms.ingest.options import ReadOptions
from distsms.shards.dataset import read_manifest

ALONE = Communicator()
FORMATS = ["svm", "csv", "tsv.gz", "parquet", "npz", "sparse.npz", "npy", "h5ad", "sparse.h5ad"]


def numbers(n=60, p=7, seed=0):
    """Return rows with zeros, tiny and huge values, and labels 3 and 7."""
    rng = np.random.default_rng(seed)
    X = rng.normal(size=(n, p)) * 10.0 ** rng.integers(-8, 9, (n, p)) * (rng.random((n, p)) < 0.6)
    X[0, -1] = 1 / 3
    return X, np.where(rng.random(n) < 0.4, 7, 3)


def read(share, zero_based=False, block_bytes=SvmlightReader.block_bytes):
    """Return an iterator of the rows of svmlight text, in blocks."""
    reader = SvmlightReader([], ReadOptions(zero_based=zero_based))
    reader.block_bytes = block_bytes
    return reader.read(share)


def parse(text, zero_based=False, origin=TextPosition()):  # noqa: B008 - without state
    """Return the rows of lines of svmlight text."""
    return SvmlightReader([], ReadOptions(zero_based=zero_based)).parse(text, origin)


def write_csv(path, header, rows, delimiter=","):
    """Write a header and rows as CSV, compressed if the name ends in .gz."""
    opened = gzip.open if path.name.endswith(".gz") else open
    with opened(path, "wt", newline="") as file:
        csv.writer(file, delimiter=delimiter).writerows([header, *rows])


def write_anndata(path, X, names, obs, **storage):
    """Write an AnnData file.

    obs : name -> array (n,); strings are written as categories. storage : options of HDF5 for a dense X.
    """
    with h5py.File(path, "w") as file:
        if sparse.issparse(X):
            group = file.create_group("X")
            group.attrs["encoding-type"], group.attrs["shape"] = "csr_matrix", X.shape
            for part in ("data", "indices", "indptr"):
                group[part] = getattr(X, part)
        else:
            file.create_dataset("X", data=X, **storage)
        var, rows = file.create_group("var"), file.create_group("obs")
        var.attrs["_index"] = "gene"
        var["gene"] = np.array(names, dtype=h5py.string_dtype())
        for name, values in obs.items():
            if values.dtype.kind != "U":
                rows[name] = values
                continue
            column = rows.create_group(name)
            categories = sorted(set(values) - {""})
            column["categories"] = np.array(categories, dtype=h5py.string_dtype())
            column["codes"] = np.array([categories.index(one) if one else -1 for one in values], np.int8)


def write(path, X, y, names=None):
    """Write the rows in the format of the file's name, and return the options to read it.

    names : names of the columns (c0, c1, ...).
    """
    names = names or [f"c{k}" for k in range(X.shape[1])]
    kind = path.name.split(".", 1)[1]
    if kind == "svm":
        lines = (
            " ".join([str(label), *(f"{k + 1}:{float(v)!r}" for k, v in enumerate(row))])
            for row, label in zip(X, y, strict=True)
        )
        path.write_text("\n".join(lines) + "\n")
        return {}
    if kind in ("csv", "tsv.gz"):
        rows = [[*map(repr, map(float, row)), label] for row, label in zip(X, y, strict=True)]
        write_csv(path, [*names, "y"], rows, "," if kind == "csv" else "\t")
        return {"label": "y"}
    if kind == "parquet":
        pq.write_table(pa.table({**dict(zip(names, X.T, strict=True)), "y": y}), path, row_group_size=7)
        return {"label": "y"}
    if kind == "npz":
        np.savez_compressed(path, X=X, y=y)
        return {}
    if kind in ("sparse.npz", "npy"):
        np.save(path.parent / "labels.npy", y)
        sparse.save_npz(path, sparse.csr_matrix(X)) if kind == "sparse.npz" else np.save(path, X)
        return {"label": str(path.parent / "labels.npy")}
    write_anndata(path, sparse.csr_matrix(X) if kind == "sparse.h5ad" else X, names, {"y": y})
    return {"label": "y"}


def content(directory):
    """Return all rows of a data set as they are in its files: dense X, and y."""
    manifest = read_manifest(directory)
    rows, labels = [], []
    for shard in manifest.shards:
        with h5py.File(directory / shard.file) as file:
            shape = tuple(file["X"].attrs["shape"])
            data = file["X/data"][:] if shard.values else np.ones(shard.nnz)
            rows.append(sparse.csr_matrix((data, file["X/indices"][:], file["X/indptr"][:]), shape).toarray())
            labels.append(file["y"][:])
    return np.concatenate(rows), np.concatenate(labels)


def on_root(comm, action):
    """Call `action` on the root, and return its result on all ranks. Collective."""
    found = action() if comm.is_root else None
    return comm.bcast(found)


def mixed(n=200, seed=1):
    rng = np.random.default_rng(seed)
    words = np.array(["ann", "bob", "eve", "é", ""])
    return [
        [f"{rng.normal():.4g}" if rng.random() < 0.9 else "", words[rng.integers(5)], f"{k % 7}", "yn"[k % 3 > 0]]
        for k in range(n)
    ]


HEADER = ["x", "w", "k", "y"]


def normalized(X, kind):
    """Normalize rows with NumPy, as an oracle."""
    if kind == "l2":
        lengths = np.linalg.norm(X, axis=1, keepdims=True)
        return X / np.where(lengths > 0, lengths, 1)
    sizes = {"standard": X.std(axis=0), "maxabs": np.abs(X).max(axis=0), "none": np.ones(X.shape[1])}[kind]
    return X / np.where(sizes > 0, sizes, 1)
