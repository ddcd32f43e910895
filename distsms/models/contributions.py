"""What attributes, pairs of attributes and columns contribute to the scores of a model (docs/theory/features.md).

The *share* of a term f is Cov(f, s) / Var(s), from X'r and X'(r s), r the weights of the rows: in one pass. `Reasons`
are for single rows: a column of a table contributes sum_j w_j (x_ij - m_j) over its features j, m the mean of the
training rows. Bins of a column and the column itself are one term, a cross of two columns is one, and so are all trees.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from itertools import pairwise
from typing import Any

import numpy as np
from numpy.typing import NDArray

from distsms.base.communicator import Communicator
from distsms.base.errors import InputError
from distsms.base.typing import Floats
from distsms.base.wording import option
from distsms.features.attributes import Attribute, table_attributes, used_columns
from distsms.features.bins import Bins, edge_text, purified
from distsms.models.model import MEAN_CONTRIBUTIONS, Model, from_training
from distsms.models.scoring import Rows
from distsms.shards.dataset import DataBlock
from distsms.shards.manifest import Manifest
from distsms.shards.table_schema import HASH, Table

_ROUNDING = 1e-14
"""A variance below this share of the mean square is one of rounding errors."""
UNKNOWN = "unknown"
"""What is said of rows without a code."""
MOST_COLUMNS = 2**20
"""Models of more columns have no table of contributions, which people could not read."""
_SHOWN = 8
"""How many conditions the rule of a leaf shows."""
MOST_TERMS = 2**12
"""A model of more terms has no reasons: each term takes a product with the rows."""
TOGETHER = 16
"""Terms whose contributions are computed at a time."""
TREES = "trees"


class ColumnSums:
    """Sums over rows for each column of a model, as a `scoring.Watch`: `n` rows by weight, the sums `score` of scores
    and `square` of their squares, and for each column `rows` (p,), its sum, and `scores` (p,), that of its products."""

    def __init__(self) -> None:
        self.n = self.score = self.square = 0.0
        self.rows: Any = 0.0
        self.scores: Any = 0.0

    def __call__(self, models: Sequence[Model], rows: Rows, scores: list[Floats], weights: Floats | None) -> None:
        """Add some rows, with their scores by the first model. Does nothing if `check` refuses this model. Local."""
        if find_reason(models[0]):
            return
        a = np.ones(len(scores[0])) if weights is None else weights.astype(np.float64)
        weighted = a * scores[0]
        of_rows, of_scores = rows.transposed_times([a, weighted])
        self.rows += of_rows
        self.scores += of_scores
        self.n += float(a.sum())
        self.score += float(weighted.sum())
        self.square += float(weighted @ scores[0])

    def reduce(self, p: int, comm: Communicator) -> ColumnSums:
        """Bring the sums of all ranks together, and return them. **Collective.**"""
        self.rows, self.scores = (comm.sum(np.zeros(p) + sums) for sums in (self.rows, self.scores))
        self.n, self.score, self.square = comm.sum(np.array([self.n, self.score, self.square])).tolist()
        return self


@dataclass(frozen=True)
class Term:
    """The contributions of an attribute, or of a pair of attributes.

    Attributes
    ----------
    name : str
        The name of the attribute, or of both: "age & job".
    attributes : tuple of int
        Their numbers in `bins.attributes`.
    values : (codes + 1,) or (codes of the first + 1, codes of the second + 1)
        What each code, or pair of codes, adds to the score. The last place is for rows without a code, such as those of
        a category that the training rows did not have.
    rows : like values
        The share of the rows that have these codes.
    deviation : float
        The standard deviation of the contribution over the rows.
    share : float
        The share of the variance of the score; NaN without rows.
    bins : Bins
        The attributes.
    """

    name: str
    attributes: tuple[int, ...]
    values: Floats
    rows: Floats
    deviation: float
    share: float
    bins: Bins

    def codes(self, axis: int = 0) -> list[str]:
        """Return what the codes along an axis say, such as "[30, 35)", "missing" or "clerk"."""
        number = self.attributes[axis]
        return [*(self.bins.code_text(number, code) for code in range(self.bins.sizes[number])), UNKNOWN]

    def edges(self, axis: int = 0) -> Floats:
        """Return the edges between the bins along an axis, as they are in the table; empty for categories."""
        number = self.attributes[axis]
        return self.bins.edges[number].astype(np.float64) + self.bins.attributes[number].centre

    def table(self) -> dict[str, Any]:
        """Return columns of a table with a line for each code or pair of codes, as `pandas.DataFrame` takes them."""
        mask = self.rows > 0
        mask[tuple(slice(-1) for _ in self.attributes)] = True
        places, names = np.nonzero(mask), ["code"] if len(self.attributes) == 1 else ["first", "second"]
        columns: dict[str, Any] = {
            name: np.array(self.codes(axis), object)[places[axis]] for axis, name in enumerate(names)
        }
        if len(names) == 1:
            ends = np.full((2, len(self.values)), np.nan)
            if self.bins.attributes[self.attributes[0]].categories is None:
                edges = self.edges()
                ends[0, : len(edges) + 1] = -np.inf, *edges
                ends[1, : len(edges) + 1] = *edges, np.inf
            columns |= {"low": ends[0][mask], "high": ends[1][mask]}
        return columns | {"contribution": self.values[mask], "rows": self.rows[mask]}


@dataclass(frozen=True)
class Contributions:
    """What the parts of a model on features contribute to its scores.

    Attributes
    ----------
    intercept : float
        What the contributions are added to: the mean score of the rows. Without rows, the bias and the means of all
        tables.
    deviation : float
        The standard deviation of the scores; NaN without rows.
    n : float
        The number of rows, or their weight; 0 without rows.
    attributes, pairs : list of Term
        In the order of the feature map.
    columns : list of str
        The original columns. Those that were made from one column of a table are one.
    forest : (columns,)
        The share of the variance of the score that the splits of the trees on each column have; NaN without rows.
    grown : (columns,)
        The share of what all splits gained when the trees grew.
    kept : (columns,)
        The share of each column that was kept as it is; NaN without rows.
    """

    intercept: float
    deviation: float
    n: float
    attributes: list[Term]
    pairs: list[Term]
    columns: list[str]
    forest: Floats
    grown: Floats
    kept: Floats

    def tables(self) -> dict[str, dict[str, Any]]:
        """Return the tables "attributes", "pairs" and "columns" as columns that `pandas.DataFrame` takes."""
        tables = {
            name: {column: [getattr(term, column) for term in terms] for column in ("name", "deviation", "share")}
            for name, terms in (("attributes", self.attributes), ("pairs", self.pairs))
        }
        columns = {"name": self.columns, "trees": self.forest, "grown": self.grown, "kept": self.kept}
        return tables | {"columns": columns}


def find_reason(model: Model) -> str:
    """Return why the parts of a model have no fixed contributions to its scores, or "". Local."""
    if model.coded and model.features is None:
        return "the rows of the model are codes, which belong to no columns"
    if model.p_original > MOST_COLUMNS:
        return f"the model has {model.p_original:,} columns, more than {MOST_COLUMNS:,}"
    unit = f"the model scales each row to unit length ({option('normalize')} l2), so what a code adds"
    return f"{unit} to the score depends on the other columns" if model.normalization.kind == "l2" else ""


def check(model: Model) -> None:
    """Raise InputError if the parts of a model have no fixed contributions to its scores. Local."""
    if reason := find_reason(model):
        raise InputError(reason)


def of_sums(model: Model, sums: ColumnSums | None) -> Contributions:
    """Return the contributions, given sums over rows that were reduced; None if there are no rows. Local."""
    check(model)
    features, w = model.features, model.w
    if sums is None:
        n, rows, mean, variance, joint = 1.0, np.ones(model.p), np.nan, np.nan, np.full(model.p, np.nan)
    else:
        n, rows, mean = sums.n, sums.rows, sums.score / sums.n
        variance = sums.square / n - mean**2
        variance = 0.0 if variance <= _ROUNDING * sums.square / n else variance
        joint = sums.scores / n - mean * (rows / n)  # the covariance of each column of X with the score

    def share(covariance: Any) -> Any:
        return covariance / variance if variance != 0 else covariance * 0.0

    # The columns of X are those that are kept, then the codes of the bins and crosses, then the leaves of the trees.
    names, group = columns_of(model)
    attributes, pairs, intercept = list[Term](), list[Term](), model.bias
    kept, forest, grown = (np.zeros(model.p_original) for _ in range(3))
    first = model.p_original if features is None or features.keep else 0
    if first:
        kept = share(w[:first] * joint[:first])
    if features is not None and features.bins is not None:
        codes = slice(first, first + features.bins.code_map.p)
        masses = None if sums is None else rows[codes] / n
        attributes, pairs, intercept = _terms(features.bins, w[codes], masses, joint[codes], share, intercept)
        first = codes.stop
    if features is not None and features.forest is not None:
        leaves = slice(first, first + features.forest.code_map.p)
        forest = share(features.forest.explained(w[leaves], rows[leaves], joint[leaves]))
        grown = features.forest.importance
        offsets = features.forest.code_map.offsets
        for start, stop in pairwise(offsets.tolist()):
            intercept += float(np.average(w[leaves][start:stop], weights=rows[leaves][start:stop]))

    def by_column(values: Floats) -> Floats:
        return np.bincount(group, values, len(names)).astype(float)

    return Contributions(
        intercept=float(intercept if sums is None else mean),
        deviation=float(np.sqrt(variance)),
        n=0.0 if sums is None else n,
        attributes=attributes,
        pairs=pairs,
        columns=names,
        forest=by_column(forest),
        grown=by_column(grown),
        kept=by_column(kept),
    )


def _terms(
    bins: Bins, w: Floats, masses: Floats | None, joint: Floats, share: Callable[[Any], Any], intercept: float
) -> tuple[list[Term], list[Term], float]:
    """Return the terms of attributes and of pairs, and the intercept with the means of their tables."""
    mains, crosses = _tables(bins, w, None)
    if masses is None:
        rows = [np.append(np.full(size, 1 / size), 0.0) for size in bins.sizes]
        rows_of_pairs = [np.outer(rows[a], rows[b]) for a, b in bins.pairs]
    else:
        both = _tables(bins, masses, 1.0)
        rows, rows_of_pairs = ([np.where(table > 1e-12, table, 0.0) for table in tables] for tables in both)
    joint_mains, joint_pairs = _tables(bins, joint, 0.0)
    pure = []
    for (a, b), table, rows_of_pair in zip(bins.pairs, crosses, rows_of_pairs, strict=True):
        table, of_a, of_b = purified(table, rows_of_pair)
        mains[a], mains[b] = mains[a] + of_a, mains[b] + of_b
        pure.append(table)
    means = list[float]()

    def term(attributes: tuple[int, ...], values: Floats, rows: Floats, covariances: Floats) -> Term:
        means.append(float((rows * values).sum() / rows.sum()))
        values = values - means[-1]
        return Term(
            name=" & ".join(bins.attributes[number].name for number in attributes),
            attributes=attributes,
            values=values,
            rows=rows,
            deviation=float(np.sqrt((rows * values**2).sum() / rows.sum())),
            share=float(share((values * covariances).sum())),
            bins=bins,
        )

    attributes = [term((a,), mains[a], rows[a], joint_mains[a]) for a in range(len(mains))]
    pairs = [term(pair, pure[k], rows_of_pairs[k], joint_pairs[k]) for k, pair in enumerate(bins.pairs)]
    return attributes, pairs, intercept + sum(means)


def _tables(bins: Bins, vector: Floats, total: float | None) -> tuple[list[Floats], list[Floats]]:
    """Return tables of attributes and pairs in a vector (columns,), each with a place for rows without a code."""
    mains = [
        np.append(table, 0.0 if total is None else total - table.sum())
        for table in np.split(vector[: bins.blocks.p], bins.blocks.offsets[1:-1])
    ]
    crosses = []
    for k, (a, b) in enumerate(bins.pairs):
        start = int(bins.code_map.offsets[k])
        table = np.zeros((bins.sizes[a] + 1, bins.sizes[b] + 1))
        table[:-1, :-1] = vector[start : start + bins.sizes[a] * bins.sizes[b]].reshape(bins.sizes[a], -1)
        if total is not None:
            table[:-1, -1] = mains[a][:-1] - table[:-1].sum(axis=1)
            table[-1] = mains[b] - table.sum(axis=0)
        crosses.append(table)
    return mains, crosses


def columns_of(model: Model) -> tuple[list[str], Any]:
    """Return names of the original columns, of a table or of an attribute, and the place of each. Local."""
    p, names = model.p_original, list[str]()
    group = np.zeros(p, np.int64)
    if model.table is not None:
        for column, start in model.table.placed:
            group[start : start + column.n_features] = len(names)
            names.append(column.name)
    of_columns = 0 if model.table is None else model.table.p
    group[of_columns:] = len(names) + np.arange(p - of_columns)
    names += [model.original_name(j) for j in range(of_columns, p)]
    of_table = set() if model.table is None else set(table_attributes(model.table))
    for attribute in model.features.bins.attributes if model.features and model.features.bins else ():
        if attribute not in of_table:
            group[used_columns([attribute])] = len(names)
            names.append(attribute.name)
    used, group = np.unique(group, return_inverse=True)
    first = np.unique(group, return_index=True)[1].argsort()  # the names in the order of the columns
    return [names[k] for k in used[first]], np.argsort(first)[group]


def values_of(table: Table, flags: NDArray[np.bool_]) -> list[Attribute]:
    """Return the columns of 0 and 1 (`flags`, (p,)) of each column of a table, as categories; of dates, those of each
    part."""
    groups, names = list[Attribute](), table.feature_names
    for attribute in table_attributes(table):
        columns = [j for j in (*attribute.columns, attribute.missing) if j is not None and flags[j]]
        single = [Attribute(names[j], (j,), ("1",), none=True) for j in columns]
        groups += single if attribute.categories is None else [attribute]
    for column, start in table.placed:
        if column.kind == HASH:
            stop = start + column.n_features
            values = tuple(name.removeprefix(f"{column.name} ") for name in names[start:stop])
            groups.append(Attribute(column.name, tuple(range(start, stop)), values, none=True))
    return groups


def leaf_rule(model: Model, column: int) -> str:
    """Return what leads to a leaf, given its column of w: "20 < amount <= 60 and shop=games"; "" for other columns."""
    features = model.features
    if features is None or features.forest is None or column < features.p - features.forest.code_map.p:
        return ""
    tree, leaf = features.forest.code_map.place(column - (features.p - features.forest.code_map.p))
    attributes = [] if model.table is None else table_attributes(model.table)
    binary = {j for a in attributes for j in (a.columns if a.categories else (a.missing,))}
    centres = {a.columns[0]: a.centre for a in attributes if a.categories is None}
    limits = dict[int, tuple[float, float]]()  # of each column: above what its value is, and at most what
    for j, threshold, left in features.forest.path(tree, leaf):  # each split lies within those before it
        low, high = limits.get(j, (-np.inf, np.inf))
        limits[j] = (low, threshold) if left else (threshold, high)
    words = list[str]()
    for j, (low, high) in limits.items():
        name, centre = model.original_name(j), centres.get(j, 0.0)
        if j in binary:
            words.append(f"not {name}" if low == -np.inf else name)
        elif high == np.inf:
            words.append(f"{name} > {edge_text(low, centre)}")
        else:
            above = "" if low == -np.inf else f"{edge_text(low, centre)} < "
            words.append(f"{above}{name} <= {edge_text(high, centre)}")
    words[_SHOWN:] = [f"{len(words) - _SHOWN} more"] if len(words) > _SHOWN else []
    return " and ".join(words) or "all rows"


def terms_of(model: Model) -> tuple[list[str], NDArray[np.int64]]:
    """Return the names of a model's terms, and the term of each of its columns, (p,). Local."""
    features, names, parts = model.features, dict[str, int](), []

    def numbers(of: Sequence[str]) -> NDArray[np.int64]:
        return np.array([names.setdefault(name, len(names)) for name in of], np.int64)

    if features is None or features.keep:
        of_columns, column = columns_of(model)
        parts.append(numbers(of_columns)[column])
    if features is not None and features.bins is not None:
        bins = features.bins
        parts.append(np.repeat(numbers([one.name for one in bins.attributes]), bins.sizes))
        if bins.pairs:
            pairs = [f"{bins.attributes[a].name} & {bins.attributes[b].name}" for a, b in bins.pairs]
            parts.append(np.repeat(numbers(pairs), np.diff(bins.code_map.offsets)))
    if features is not None and features.forest is not None:
        parts.append(np.repeat(numbers([TREES]), features.forest.code_map.p))
    return list(names), np.concatenate(parts)


def mean_contributions(w: Floats, block: DataBlock, data: Manifest | None, comm: Communicator) -> list[float] | None:
    """Return the mean of <w, x> over the training rows, term by term, in one pass; None for models without reasons.
    w (p,) are the coefficients for the rows as they are in the block. **Collective.**"""
    about = {"zero_based": data is not None and data.zero_based}  # as the model has it, for the names of its terms
    model = from_training(w, about, data, block.table)
    if model.table is None or find_reason(model):
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
        check(model)
        self._names, self._term = terms_of(model)
        if len(self._names) > MOST_TERMS:
            raise InputError(f"the model has {len(self._names):,} terms; reasons are of at most {MOST_TERMS:,}")
        self._means = np.array(model.info.get(MEAN_CONTRIBUTIONS) or [])
        if len(self._means) != len(self._names):
            needed = "the model does not say what its columns contribute on average (of a path, the chosen one does)"
            raise InputError(f"{needed}; train it on a table, with this version of distsms")
        self.count = min(count, len(self._names))
        self._texts = list[NDArray[Any]]()

    def __call__(self, models: Sequence[Model], rows: Rows, scores: list[Floats], weights: Floats | None) -> None:
        """Add the reasons of some rows. Local."""
        n, w = len(scores[0]), models[0].w
        values, terms = np.zeros((0, n)), np.zeros((0, n), np.int64)
        for first in range(0, len(self._names), TOGETHER):
            here = np.arange(first, min(first + TOGETHER, len(self._names)))
            added = rows.margins(np.where(self._term == here[:, None], w, 0.0)) - self._means[here, None]
            # The largest of these and of those before, in order.
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
