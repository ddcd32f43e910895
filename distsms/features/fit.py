"""Make a feature map for a data set: find the attributes, divide numbers into bins, choose crosses."""

from __future__ import annotations

import math
import os
from collections.abc import Callable, Iterator, Sequence
from dataclasses import replace
from itertools import combinations
from typing import Any, NamedTuple, Protocol

import numpy as np
from scipy import sparse

from distsms.base.errors import InputError
from distsms.base.formatting import format_bytes
from distsms.base.typing import Floats, Labels
from distsms.base.wording import Message, option
from distsms.features import attributes as attribute
from distsms.features import growing_rows, screen
from distsms.features.attributes import Attribute, Survey
from distsms.features.bins import Bins
from distsms.features.columns import Columns
from distsms.features.feature_map import FeatureMap
from distsms.features.forest import Forest
from distsms.features.growing import MIN_LEAF, check_growing, grow
from distsms.features.growing_cost import LEAST_ROWS, check_memory
from distsms.features.growing_rows import LIMIT
from distsms.features.memory_limit import bytes_for_columns, require
from distsms.features.quantiles import Numbers, edges_of
from distsms.features.rows import RowPart, RowParts
from distsms.parallel.communicator import Communicator
from distsms.shards.manifest import Manifest

MOST_BINS = 2**14
MOST_ATTRIBUTES = 2**14
"""More attributes are refused: a row would take a byte or two for each, though most of its columns may be 0."""
MOST_CROSSES = 2**15
MANY_COLUMNS, VECTORS = 2**22, 36 * 8
"""Columns from which users are warned, and the bytes that the vectors of a training take at least for each."""


class FeatureOptions(NamedTuple):
    """Which features are made."""

    bins: int | None = 32  # the most bins of a number; None makes neither bins nor categories
    crosses: str | None = None  # "all", "top:K", or pairs such as "age:job,age:hours"
    keep: bool = False  # whether the original columns are features, too
    # a file that says which columns belong together; see `attributes.read_attributes`
    attributes: str | os.PathLike[str] | None = None
    trees: int | None = None  # the number of extremely randomized trees whose leaves are features
    min_leaf: int = MIN_LEAF  # the least number of rows in a leaf, among those on which the trees grow
    tree_rows: int = LIMIT  # the most rows on which the trees grow; if there are more, a sample of them
    seed: int = 0  # another seed grows other trees, on another sample

    @property
    def text(self) -> str:
        """The options as `path --features` takes them, such as bins=16,crosses=top:4: bins, and those set otherwise."""
        given = {name: value for name, value in self._asdict().items() if value not in (None, False)}
        words = [
            "keep"
            if name == "keep"
            else f"{name.replace('_', '-')}={os.fspath(value) if name == 'attributes' else value}"
            for name, value in given.items()
            if name == "bins" or value != self._field_defaults[name]
        ]
        return ",".join(words)


Progress = Callable[[str, str, float, float], None]


class Parts(Protocol):
    """The rows first..last - 1 of this rank, part by part, as often as needed."""

    @property
    def first(self) -> int:
        """The first row."""

    @property
    def last(self) -> int:
        """The row behind the last one."""

    def __iter__(self) -> Iterator[RowPart]:
        """Read the rows."""


class Reading:
    """This rank's rows of a data set, read again for each purpose, with progress."""

    def __init__(self, manifest: Manifest, parts: Parts, progress: Progress) -> None:
        self.manifest, self.parts, self._progress = manifest, parts, progress
        self.n_local = self.parts.last - self.parts.first

    def watched(self, task: str) -> Iterator[RowPart]:
        """Yield the parts of the rows. Local."""
        done = 0
        self._progress(task, "rows", 0, self.n_local)
        for part in self.parts:
            yield part
            done += len(part.labels)
            self._progress(task, "rows", done, self.n_local)


def fit(
    manifest: Manifest,
    comm: Communicator,
    options: FeatureOptions,
    progress: Progress = lambda task, unit, done, of: None,
    say: Callable[[str], None] = lambda text: None,
    parts: Parts | None = None,
    room: float = math.inf,
) -> FeatureMap:
    """Return a feature map that is made from the rows of a data set. **Collective.**

    Parameters
    ----------
    manifest : Manifest
        The data set, without coded columns.
    comm : Communicator
        The ranks that read the rows.
    options : FeatureOptions
        Which features to make.
    progress : callable
        Is called with what is being done, what is counted, how much of it this rank has done, and how much it has.
    say : callable
        Is called on the root with lines for users.
    parts : Parts, optional
        The rows of this rank; by default its share of the data set.
    room : float
        The bytes that each rank has left; see `memory_limit.room`.

    Returns
    -------
    FeatureMap
        The same on every rank, and on any number of ranks. Rows of weight 0 have no influence on it.

    Raises
    ------
    InputError
        On every rank, if the options or the file of attributes do not fit the data, rows cannot be read, or the memory
        does not suffice.
    """
    if options.bins is not None and not 2 <= options.bins <= MOST_BINS:
        raise InputError(f"a number is divided into 2 to {MOST_BINS} bins, not {options.bins}", everywhere=True)
    if options.trees is not None:
        with comm.fail_together():
            check_growing(options.trees, options.min_leaf, options.seed)
            if options.tree_rows < LEAST_ROWS:
                raise InputError(
                    f"trees need a sample of {LEAST_ROWS} rows or more to grow on, not {options.tree_rows}"
                )
    reading = Reading(manifest, parts or RowParts.of_rank(manifest, comm), progress)
    say = say if comm.is_root else lambda text: None
    bins = None if options.bins is None else _fit_bins(reading, comm, options, options.bins, say, room)
    forest = None if options.trees is None else _grow(reading, comm, options, options.trees, progress, say, room)
    with comm.fail_together():
        try:
            made = FeatureMap(manifest.p, bins, forest, options.keep, options.text)
        except ValueError as error:
            raise InputError(f"{manifest.directory}: {error}") from error
    if made.p >= MANY_COLUMNS:
        fewer = [f"a larger {option('min_leaf')}"] * bool(forest) + [
            f"{option('crosses', 'top:K')} or smaller {option('bins')}"
        ] * bool(bins)
        text = (
            f"  warning   {made.p} columns: training needs about {format_bytes(VECTORS * made.p)} for vectors with a "
            f"number for each of them. There are fewer with {', or with '.join(fewer)}"
        )
        say(Message(text))
    return made


def _grow(
    reading: Reading,
    comm: Communicator,
    options: FeatureOptions,
    n_trees: int,
    progress: Progress,
    say: Callable[[str], None],
    room: float,
) -> Forest:
    """Return the trees. Collective."""
    manifest = reading.manifest
    shares = growing_rows.shares(manifest.n_pos, manifest.n_neg, options.tree_rows)
    n = round(manifest.n_pos * shares.positive + manifest.n_neg * shares.negative)
    entries = manifest.nnz * n / manifest.n if manifest.layout == "csr" else n * manifest.p
    check_memory(n, manifest.p, entries, comm, room, options.min_leaf)
    if n < manifest.n:
        say(
            Message(f"  note      trees grow on a sample of about {n} of the {manifest.n} rows ({option('tree_rows')})")
        )

    def parts() -> Iterator[tuple[int, Any, Labels, Floats | None]]:
        empty = np.empty((0, manifest.p), manifest.dtype)
        nothing = sparse.csr_matrix(empty) if manifest.layout == "csr" else empty
        yield 0, nothing, np.empty(0, np.int8), np.empty(0) if manifest.weights else None
        for part in reading.watched("reading rows for trees"):
            yield part.first, part.X, part.labels, part.weights

    with comm.fail_together():
        rows = growing_rows.sample(parts(), shares, options.seed)
    own = len(range(comm.rank, n_trees, comm.size))

    def watch(done: int) -> None:
        progress("growing trees", "trees", done, own)

    return grow(rows, comm, n_trees, options.min_leaf, options.seed, watch, say, room)


def _fit_bins(
    reading: Reading, comm: Communicator, options: FeatureOptions, n_bins: int, say: Callable[[str], None], room: float
) -> Bins:
    """Return the part of bins, categories and crosses. Collective."""
    found = _attributes(reading, comm, options, say)
    with comm.fail_together():
        attribute.unique_names(found)
        if not 1 <= len(found) <= MOST_ATTRIBUTES:
            raise InputError(
                f"{reading.manifest.directory}: has {len(found)} attributes, and bins are made for 1 to "
                f"{MOST_ATTRIBUTES}: choose some with {option('attributes', text='FILE')}, or use {option('trees')}, "
                "which takes any number of columns"
            )
        given = None if options.crosses is None else _given_pairs(options.crosses, [own.name for own in found])
    numbers = [own for own in found if own.categories is None]
    wanted = [Numbers(own.columns[0], own.missing) for own in numbers]

    def passes() -> Iterator[tuple[Any, Any]]:
        for part in reading.watched("dividing numbers into bins"):
            X, _, weights = part.counted()
            yield X, weights

    n_bytes = bytes_for_columns(reading.n_local if numbers else 0, comm, room)
    edges = dict(zip(numbers, edges_of(passes, wanted, n_bins, reading.n_local, comm, n_bytes), strict=True))
    of_each = [edges.get(own, np.empty(0, np.float32)) for own in found]
    bins, screened = Bins(found, of_each), isinstance(given, int)
    if isinstance(given, int):
        n = min(reading.n_local, screen.ROWS)
        require(screen.row_bytes(len(found)) * n, "the rows by which pairs are screened", comm, room)
        chosen = screen.strongest(bins, reading.watched("screening pairs"), reading.manifest, given, comm)
        for pair in chosen[:10]:
            say(f"  cross     {found[pair.a].name} x {found[pair.b].name}: gain {pair.gain:.5g}")
        if len(chosen) > 10:
            say(f"  cross     and {len(chosen) - 10} more")
        if useless := sum(pair.gain <= 0 for pair in chosen):
            say(f"  note      the gain of {useless} of these pairs is not above 0: these rows show no interaction")
        given = [(pair.a, pair.b) for pair in chosen]
    with comm.fail_together():
        try:
            return Bins(found, of_each, sorted(given or []), screened)
        except ValueError as error:
            raise InputError(f"{option('crosses', options.crosses)}: {error}") from error


def count_attributes(manifest: Manifest, comm: Communicator) -> int:
    """Return how many attributes a data set has. **Collective.**

    Without a table, all rows are read once.
    """
    reading = Reading(manifest, RowParts.of_rank(manifest, comm), lambda task, unit, done, of: None)
    return len(_attributes(reading, comm, FeatureOptions(), lambda text: None))


def _attributes(
    reading: Reading, comm: Communicator, options: FeatureOptions, say: Callable[[str], None]
) -> list[Attribute]:
    """Return the attributes. Collective."""
    manifest, table = reading.manifest, reading.manifest.table
    if options.attributes is not None:
        with comm.fail_together():
            of_table = [] if table is None else attribute.table_attributes(table)[0]
            given = attribute.read_attributes(options.attributes, lambda text: _number(manifest, text), of_table)
        return _checked(given, reading, options.attributes, comm)
    if table is not None:
        found, left_out = attribute.table_attributes(table)
        if left_out:
            say(f"  note      hashed columns get no bins: {', '.join(left_out)}")
        return found
    survey = Survey(manifest.p)
    with comm.fail_together():
        for part in reading.watched("finding attributes"):
            survey.add(part.counted()[0])
    survey.reduce(comm)
    return attribute.found_attributes(survey, lambda j: _name(manifest, j))


def _checked(
    given: Sequence[Attribute], reading: Reading, path: str | os.PathLike[str], comm: Communicator
) -> list[Attribute]:
    """Return attributes of the user; those of which some row sets no category get a code for that. Collective."""
    with comm.fail_together():
        lacking = np.zeros(len(given), np.int64)
        for part in reading.watched("checking attributes"):
            X, columns = part.counted()[0], None
            columns = Columns(X)
            for k, own in enumerate(given):
                if own.categories is None:
                    continue
                counts = np.zeros(columns.n, np.int64)
                for j, name in zip(own.columns, own.categories, strict=True):
                    values = columns.values(j)
                    if ((values != 0) & (values != 1)).any():
                        raise InputError(
                            f"{path}: {own.name!r}: column {name!r} has other values than 0 and 1; a list of columns "
                            "is for the categories of one variable"
                        )
                    counts += values == 1
                if (counts > 1).any():
                    raise InputError(
                        f"{path}: {own.name!r}: a row sets {counts.max()} of its columns; the columns of one variable "
                        "must exclude each other"
                    )
                lacking[k] += np.count_nonzero(counts == 0)
    comm.sum(lacking)
    return [
        replace(own, none=bool(rows and own.categories is not None))
        for own, rows in zip(given, lacking.tolist(), strict=True)
    ]


def _name(manifest: Manifest, j: int) -> str:
    """Return the name of a column of data that are no table, or the number that it has in the source."""
    names = _names(manifest)
    return names[j] if names else f"column {j if manifest.zero_based else j + 1}"


def _names(manifest: Manifest) -> Sequence[str]:
    """Return the names of the columns of a table, or of rows in memory (`arrays.ArrayRows`); empty without names."""
    return getattr(manifest, "names", ()) if manifest.table is None else manifest.table.feature_names


def _number(manifest: Manifest, text: str) -> int:
    """Return the number of a column, from 0, given its name, or its number in the source. Raises InputError."""
    names = _names(manifest)
    if text in names:
        return names.index(text)
    digits, base = text.removeprefix("column "), 0 if manifest.zero_based else 1
    if not names and digits.isdecimal() and base <= int(digits) < manifest.p + base:
        return int(digits) - base
    what = (
        f"columns are numbers from {base} to {manifest.p - 1 + base}"
        if not names
        else (f"the features of the table have names such as {names[0]!r}; `distsms shard` lists its columns")
    )
    raise InputError(f"there is no column {text!r}: {what}")


def _given_pairs(text: str, names: Sequence[str]) -> list[tuple[int, int]] | int:
    """Return the pairs that `--crosses` names, or for "top:K" how many are to be chosen. Raises InputError."""
    every = len(names) * (len(names) - 1) // 2
    kind, _, number = text.partition(":")
    if kind == "top" and number.isdecimal() and int(number) >= 1:
        return min(int(number), every)
    if kind == "top" and kind not in names:
        raise InputError(f"crosses {text!r}: top:K needs a whole number K of 1 or more, such as top:100")
    if text == "all":
        if every > MOST_CROSSES:
            raise InputError(
                f"{option('crosses', 'all')}: {len(names)} attributes have {every} pairs, more than {MOST_CROSSES}; "
                f"take the strongest with {option('crosses', 'top:K')}"
            )
        return list(combinations(range(len(names)), 2))
    place, found = {name: k for k, name in enumerate(names)}, set[tuple[int, int]]()
    for part in text.split(","):
        words = part.split(":")
        splits = [(":".join(words[:k]), ":".join(words[k:])) for k in range(1, len(words))]
        fitting = [(place[a], place[b]) for a, b in splits if a in place and b in place and a != b]
        if not fitting:
            shown = ", ".join(map(repr, names[:20])) + (", ..." if len(names) > 20 else "")
            raise InputError(
                f"{option('crosses')}: {part!r} is not a pair A:B of two different attributes; there are {shown}. "
                "`all` takes every pair, and `top:10` the 10 strongest"
            )
        found.add((min(fitting[0]), max(fitting[0])))
    return sorted(found)
