"""Files as other programs write them."""

from __future__ import annotations

import csv
import gzip

import h5py
import numpy as np
from scipy import sparse


def write_csv(path, header, rows, delimiter=","):
    """A header and rows of whatever csv can write; compressed if the name ends in .gz."""
    opened = gzip.open if path.name.endswith(".gz") else open
    with opened(path, "wt", newline="") as file:
        csv.writer(file, delimiter=delimiter).writerows([header, *rows])


def write_anndata(path, X, names, obs, **storage):
    """What the format says. obs : name -> array (n,), of str as categories.  storage : how HDF5 keeps a dense X."""
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
