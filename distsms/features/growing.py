"""Grow a forest: extremely randomized trees by scikit-learn, over all ranks (docs/theory/features.md). The ranks share
the trees, and have all rows that these grow on, or a sample of them, so the forest is the same on any number of ranks.
At each node all columns are tried; what that takes is found out before hours are lost.
"""

from __future__ import annotations

import math
import time
from collections.abc import Iterable, Iterator
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import numpy as np
from numpy.typing import NDArray
from scipy import sparse

from distsms.base.communicator import Communicator
from distsms.base.errors import InputError
from distsms.base.formatting import format_bytes, format_duration
from distsms.base.memory import available
from distsms.base.wording import Message, option
from distsms.features.forest import MOST_LEAVES, MOST_TREES, Forest
from distsms.features.forest_kernels import preorder
from distsms.features.rows import Rows, as_single, no_rows, stacked
from distsms.matrix.arrays import without_duplicates
from distsms.matrix.blocks import thread_count
from distsms.shards.manifest import Manifest
from distsms.shards.row_metadata import some
from distsms.shards.splits import Shares, in_sample

LIMIT = 10**6
"""The most rows on which a forest grows, unless the user says another number."""


def sample_shares(n_positive: int, n_negative: int, limit: int = LIMIT) -> Shares:
    """Return the share of each class for a sample of `limit` rows, less six standard deviations, as a hash draws."""
    positive = min(n_positive, max(limit // 2, limit - n_negative))
    return Shares(_share(positive, n_positive), _share(min(n_negative, limit - positive), n_negative))


def _share(size: int, n: int) -> float:
    return 1.0 if size >= n else max(size - 6 * size**0.5, 0.0) / n


def sample(manifest: Manifest, parts: Iterable[Rows], of_classes: Shares, seed: int = 0) -> Rows:
    """Return this rank's rows of a sample, in float32. Local."""
    return stacked([rows._replace(X=singles(rows.X)) for _, rows in drawn(manifest, parts, of_classes, seed)])


def drawn(
    manifest: Manifest, parts: Iterable[Rows], of_classes: Shares, seed: int = 0
) -> Iterator[tuple[NDArray[np.int64], Rows]]:
    """Yield no rows, since a rank may have none, and then the numbers of the rows of each part that are in a sample,
    and these rows; none has weight 0. Local."""
    yield np.empty(0, np.int64), no_rows(manifest, manifest.p)
    for part in parts:
        numbers = part.first + np.arange(len(part.labels))
        taken = in_sample(numbers, part.labels, of_classes, seed)
        if part.weights is not None:
            taken &= part.weights != 0
        yield numbers[taken], part.take(taken)


def singles(X: Any) -> Any:
    """Return rows (n, p) with finite values rounded to float32, as trees compare them. Local."""
    values = X.data if sparse.issparse(X) else X
    if not np.isfinite(values).all():
        raise InputError("trees cannot grow on values that are missing (NaN) or infinite; fill them in, and mark them")
    if not sparse.issparse(X):
        return X if X.dtype == np.float32 else as_single(X)
    X = without_duplicates(X)
    return X if X.dtype == np.float32 else sparse.csr_matrix((as_single(X.data), X.indices, X.indptr), X.shape)


def whole(rows: Rows, comm: Communicator) -> Rows:
    """Return the rows of all ranks on each of them, CSC if less than a twelfth is not 0, else dense. **Collective.**"""
    X, counts = rows.X, comm.allgather(len(rows.labels))
    entries = comm.allgather(X.nnz if sparse.issparse(X) else int(np.count_nonzero(X)))
    shape = sum(counts), X.shape[1]
    labels = comm.allgather_rows(rows.labels, counts)
    weights = None if rows.weights is None else comm.allgather_rows(rows.weights, counts)
    if sum(entries) >= shape[0] * shape[1] / 12:
        dense = X.toarray() if sparse.issparse(X) else np.ascontiguousarray(X)
        table = comm.allgather_rows(dense.ravel(), [count * shape[1] for count in counts])
        return Rows(table.reshape(shape), labels, weights)
    X = sparse.csr_matrix(X)
    values = comm.allgather_rows(X.data, entries)
    columns = comm.allgather_rows(X.indices.astype(np.int32, copy=False), entries)
    lengths = comm.allgather_rows(np.diff(X.indptr).astype(np.int64), counts)
    by_row = sparse.csr_matrix((values, columns, np.concatenate([[0], np.cumsum(lengths)])), shape)
    return Rows(by_row.tocsc(), labels, weights)


class FeaturesObserver:
    """Receives what making features reports. Override its methods."""

    def progress(self, task: str, unit: str, done: float, of: float) -> None:
        """Called on every rank: what is done, what is counted, how much this rank has done, and how much it has."""

    def noted(self, kind: str, text: str) -> None:
        """Called on the root with what users should know: a "note", a "warning", or a "cross" that was chosen."""


UNWATCHED = FeaturesObserver()
SLOW, HOPELESS = 600.0, 86_400.0
"""Seconds of growing from which users are warned, and from which it is refused."""
LEAST_ROWS = 100
"""A smaller sample for trees may lack a class."""
_QUICK, _TRIAL = 2**24, 2**20
"""Values of the rows from which the time is estimated, and values of those on which a small tree grows for that."""
_ROW_BYTES, _NODE_BYTES = 40, 150
"""Bytes for each row, and for each node, while a tree grows."""
_FEWEST = 64
"""The least number of rows of that small tree."""


def bytes_of_rows(n: int, p: int, entries: float) -> int:
    """Return the bytes of n rows with so many entries in p columns while trees grow on them; see `whole`. Local."""
    return int(16 * entries if entries < n * p / 6 else 4 * n * p)


def bytes_of_tree(n: int, min_leaf: int) -> int:
    """Return the most bytes that growing a tree on n rows takes beside them, on all threads of a rank. Local."""
    return thread_count() * (_ROW_BYTES + _NODE_BYTES * 2 // min_leaf) * n


def check_memory(n: int, p: int, entries: float, comm: Communicator, room: float = math.inf, min_leaf: int = 1) -> None:
    """Raise InputError if the n rows on which trees grow, all on each rank, do not fit into memory. **Collective.**"""
    here, needed = len(comm.node_ranks()), bytes_of_rows(n, p, entries)
    with comm.fail_together():
        there = available()
        if (here + 1) * needed > there:  # while they are exchanged, the ranks have their own rows besides
            fitting = 0.8 * n * there / ((here + 1) * needed)
            advice = f"take fewer rows ({option('tree_rows', _rounded(fitting))}), or fewer ranks"
            each = f"{format_bytes(needed)} on each of {here} rank(s) of this node with {format_bytes(there)}"
            raise InputError(f"{n} rows of {p} columns take {each}: {advice}")
        to_grow = 2 * needed + bytes_of_tree(n, min_leaf)
        if to_grow > room:
            fewer = 0.8 * n * room / to_grow
            advice = f", or take fewer rows ({option('tree_rows', _rounded(fewer))})" if fewer >= LEAST_ROWS else ""
            lacking = f"takes {format_bytes(to_grow)}, and {option('memory')} leaves {format_bytes(room)} for it"
            raise InputError(f"to grow a tree on {n} rows of {p} columns {lacking}: allow more memory{advice}")


def check_time(rows: Rows, n_trees: int, min_leaf: int, comm: Communicator, observer: FeaturesObserver) -> None:
    """Tell users how long growing on these rows takes if that is long; refuse more than a day. **Collective.**"""
    n, p = rows.X.shape
    if n * p < _QUICK:
        return
    seconds = comm.of_root(lambda: seconds_of_tree(rows, min_leaf)) * -(-n_trees // (comm.size * thread_count()))
    if seconds < SLOW:
        return
    text = (
        f"growing {n_trees} trees on {n} rows takes about {format_duration(seconds)}, since all {p} columns are tried "
        f"at each node. Fewer rows ({option('tree_rows', _rounded(n / 10))}), fewer trees, or more ranks (now "
        f"{comm.size}) take less time; a linear model of very many columns is often as good without {option('trees')}"
    )
    if seconds > HOPELESS:
        raise InputError(text, everywhere=True)
    if comm.is_root:
        observer.noted("note", Message(text))


def seconds_of_tree(rows: Rows, min_leaf: int) -> float:
    """Estimate the seconds that a tree takes to grow, from a tree on some of the rows. Local."""
    from sklearn.tree import ExtraTreeClassifier

    n, p = rows.X.shape
    few = min(n, max(_FEWEST, _TRIAL // p))
    classes = [np.flatnonzero(rows.labels == sign) for sign in (1, -1)]
    counts = [min(len(rows_of), max(round(few * len(rows_of) / n), few // 8)) for rows_of in classes]
    places = [np.linspace(0, len(rows_of) - 1, count) for rows_of, count in zip(classes, counts, strict=True)]
    at = np.sort(np.concatenate([rows_of[k.astype(int)] for rows_of, k in zip(classes, places, strict=True)]))
    X, weights = rows.X[at], some(rows.weights, at)
    tree = ExtraTreeClassifier(max_features=None, min_samples_leaf=min_leaf, random_state=0)
    begun = time.perf_counter()
    tree.fit(X, rows.labels[at] > 0, weights)
    return (time.perf_counter() - begun) * n * math.log2(n) / (len(at) * math.log2(len(at)))


def _rounded(x: float) -> int:
    """Return a positive number rounded down to one digit."""
    power = 10 ** math.floor(math.log10(max(x, 1.0)))
    return int(max(x, 1.0) // power * power)


N_TREES, MIN_LEAF = 100, 3
_EXCHANGE_BYTES = 48
"""Bytes for each node while the ranks exchange their trees, and find leaves."""
_NODES = np.dtype([("column", np.int32), ("threshold", np.float32), ("gain", np.float64)])
"""The nodes of a tree in preorder, see `Forest`, and the share of each split in what all splits of the tree gained."""


def grow(
    rows: Rows,
    comm: Communicator,
    n_trees: int = N_TREES,
    min_leaf: int = MIN_LEAF,
    seed: int = 0,
    observer: FeaturesObserver = UNWATCHED,
    room: float = math.inf,
) -> Forest:
    """Grow extremely randomized trees, which try all columns at each node, on the `sample` of all ranks' rows; see
    `check_growing`. **Collective.** The forest is the same on every rank. A tree keeps the 65,535 leaves whose nodes
    have most rows. `room` is the memory that this rank has left. Takes the rows' memory twice."""
    all_rows = whole(rows, comm)
    del rows  # on a single rank, `all_rows` has its values
    for sign, name in ((1, "positive"), (-1, "negative")):
        if not (all_rows.labels == sign).any():
            raise InputError(f"trees cannot grow: of {len(all_rows.labels)} rows, none is {name}", True)
    entries = all_rows.X.nnz if sparse.issparse(all_rows.X) else all_rows.X.size
    check_time(all_rows, n_trees, min_leaf, comm, observer)
    numbers = range(comm.rank, n_trees, comm.size)
    observer.progress("growing trees", "trees", 0, len(numbers))
    with comm.fail_together():
        n, p = all_rows.X.shape
        left = room - bytes_of_rows(n, p, entries) - bytes_of_tree(n, min_leaf)
        most = left / (comm.size * _EXCHANGE_BYTES)
        trees = _grown(all_rows, numbers, min_leaf, seed, observer, most)
    return _gather(trees, n_trees, p, comm)


def check_growing(n_trees: int, min_leaf: int = MIN_LEAF, seed: int = 0) -> None:
    """Raise InputError if no trees can grow for these numbers, or scikit-learn is missing. Local."""
    if not 1 <= n_trees <= MOST_TREES or min_leaf < 1 or not 0 <= seed <= 2**62:
        possible = f"1 to {MOST_TREES} trees, 1 or more rows in a leaf, and a seed from 0 to 2^62"
        raise InputError(f"a forest has {possible}, not {n_trees} trees, {min_leaf} rows and seed {seed}")
    try:
        import sklearn.tree  # noqa: F401
    except ImportError as absent:
        raise InputError(f"scikit-learn grows the trees: pip install 'distsms[sklearn]' ({absent})") from absent


def _grown(
    rows: Rows, numbers: range, min_leaf: int, seed: int, observer: FeaturesObserver, most: float
) -> list[NDArray[Any]]:
    """Grow the trees of these numbers, which may have at most so many nodes. Local; on several threads."""
    from sklearn.tree import ExtraTreeClassifier

    def one_tree(number: int) -> NDArray[Any]:
        state = int(np.random.SeedSequence((seed, number)).generate_state(1)[0])
        tree = ExtraTreeClassifier(max_features=None, min_samples_leaf=min_leaf, random_state=state)
        return _tree(tree.fit(rows.X, rows.labels > 0, rows.weights).tree_)

    trees, nodes = list[NDArray[Any]](), 0
    with ThreadPoolExecutor(thread_count()) as pool:
        for tree in pool.map(one_tree, numbers):  # which grows no further trees if the loop ends early
            trees.append(tree)
            nodes += len(tree)
            if nodes > most:
                problem = f"the first {len(trees)} of {len(numbers)} trees have {nodes} nodes, and there is memory for"
                remedy = f"allow more, grow fewer {option('trees')}, or raise {option('min_leaf')}"
                raise InputError(f"{problem} {most:.0f} ({option('memory')}): {remedy}")
            observer.progress("growing trees", "trees", len(trees), len(numbers))
    return trees


def _tree(grown: Any) -> NDArray[Any]:
    left, right, n = grown.children_left, grown.children_right, grown.n_node_samples
    inner = left >= 0
    if inner.sum() >= MOST_LEAVES:  # as many leaves as inner nodes, and one more
        smallest = np.sort(n[inner])[-MOST_LEAVES]
        inner &= n > smallest
    nodes = np.flatnonzero(inner)
    mass = grown.weighted_n_node_samples * grown.impurity
    gain = np.zeros(len(left))
    gain[nodes] = np.maximum(mass[nodes] - mass[left[nodes]] - mass[right[nodes]], 0.0)
    order = preorder(left, right, inner)
    split = inner[order]
    exact = np.where(split, grown.threshold[order], 0.0)
    threshold = exact.astype(np.float32)
    # The values are float32. So at most the threshold is the same as at most the next float32 below it.
    threshold = np.where(threshold > exact, np.nextafter(threshold, np.float32(-np.inf)), threshold)
    tree = np.empty(len(order), _NODES)
    tree["column"], tree["threshold"] = np.where(split, grown.feature[order], -1), threshold
    tree["gain"] = gain[order] / (gain.sum() or 1.0)
    return tree


def _gather(trees: list[NDArray[Any]], n_trees: int, p: int, comm: Communicator) -> Forest:
    """Return the forest of all ranks' trees, in the order of their numbers. **Collective.**"""
    sizes = np.zeros(n_trees, np.int64)
    sizes[comm.rank :: comm.size] = [len(tree) for tree in trees]
    comm.sum(sizes)
    n_bytes = [_NODES.itemsize * int(sizes[rank :: comm.size].sum()) for rank in range(comm.size)]
    local = np.concatenate([np.empty(0, _NODES), *trees])
    nodes = comm.allgather_rows(local.view(np.uint8), n_bytes).view(_NODES)
    # The nodes of all trees come in the order of the ranks, and are put in that of the trees.
    numbers = np.concatenate([np.arange(rank, n_trees, comm.size) for rank in range(comm.size)])
    of_trees = np.split(nodes, np.cumsum(sizes[numbers])[:-1])
    nodes = np.concatenate([of_trees[k] for k in np.argsort(numbers)])
    inner = nodes["column"] >= 0
    importance = np.bincount(nodes["column"][inner], nodes["gain"][inner], p)
    total = importance.sum()
    starts = np.cumsum([0, *sizes])
    return Forest(nodes["column"], nodes["threshold"], starts, importance / total if total else importance)
