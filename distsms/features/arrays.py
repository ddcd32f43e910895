"""Feature maps of rows that a program has in memory, in this process alone."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import fields
from typing import Any, cast

import numpy as np
from scipy import sparse

from distsms.base.communicator import Communicator
from distsms.base.errors import InputError
from distsms.base.typing import Floats, Labels
from distsms.base.wording import format_value
from distsms.features.feature_map import FeatureMap
from distsms.features.fit import FeatureOptions, fit
from distsms.features.rows import RowParts, Rows
from distsms.matrix.arrays import as_numbers
from distsms.shards.manifest import Manifest

OF_TREES = ("min_leaf", "tree_rows", "seed")


class ArrayRows(RowParts):
    """Rows X (n, p), CSR or an array, with labels, weights (n,) and names, as making a feature map sees a manifest."""

    directory, zero_based, first = "X", True, 0
    table: Any = None

    def __init__(self, X: Any, labels: Labels, weights: Floats | None = None, names: Sequence[str] = ()) -> None:
        self.X, self.labels, self.row_weights = as_numbers(X), labels, weights
        self.names = names
        self.n, self.p = X.shape
        self.last, self.weights, self.dtype = self.n, weights is not None, str(X.dtype)
        self.nnz, self.layout = (int(X.nnz), "csr") if sparse.issparse(X) else (int(X.size), "dense")
        self.n_pos = int(np.sum(labels > 0))
        self.n_neg = self.n - self.n_pos

    def __iter__(self) -> Iterator[Rows]:
        yield Rows(self.X, self.labels, self.row_weights)


def options(features: Mapping[str, Any]) -> FeatureOptions:
    """Return options by their names, as on the command line or in Python; bins are made unless only trees are named."""
    options = {str(name).replace("-", "_"): value for name, value in features.items()}
    if len(options) < len(features):
        raise InputError(f"features={format_value(features)}: an option is there twice")
    names = [field.name for field in fields(FeatureOptions)]
    if unknown := set(options) - set(names):
        raise InputError(f"features have no option {min(unknown)!r}; there are {', '.join(names)}")
    if options.get("trees") is None and (of_trees := [name for name in OF_TREES if name in options]):
        raise InputError(f"features: {of_trees[0]} is about trees; say how many, such as trees=100")
    binned = options.get("trees") is None or any(
        options.get(name) is not None for name in ("bins", "crosses", "attributes")
    )
    return FeatureOptions(**{"bins": FeatureOptions().bins if binned else None, **options})


def fit_arrays(
    X: Any, labels: Labels, options: FeatureOptions, weights: Floats | None = None, names: Sequence[str] | None = None
) -> FeatureMap:
    """Return a feature map of rows X (n, p), CSR or an array, with labels (n,) of +1 or -1. Local. Bins without crosses
    do not look at the labels. Columns have numbers if two have the same of `names`."""
    unique = [] if names is None or len(set(names)) < len(names) else list(names)
    rows = ArrayRows(X, labels, weights, unique)
    return fit(cast(Manifest, rows), Communicator(), options, parts=rows)
