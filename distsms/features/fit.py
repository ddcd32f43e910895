"""Make a feature map for a data set: find the attributes, divide numbers into bins, choose crosses, grow trees."""

from __future__ import annotations

import math
import os
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from functools import partial
from itertools import combinations
from typing import TypeAlias

import numpy as np

from distsms.base.choices import check_fields
from distsms.base.communicator import Communicator
from distsms.base.errors import InputError
from distsms.base.formatting import format_bytes
from distsms.base.memory import resident
from distsms.base.wording import Message, option
from distsms.features import attributes as attribute
from distsms.features import growing, screen
from distsms.features.attributes import Attribute, Survey
from distsms.features.bins import Bins
from distsms.features.feature_map import FeatureMap
from distsms.features.forest import Forest
from distsms.features.growing import LEAST_ROWS, UNWATCHED, FeaturesObserver
from distsms.features.quantiles import BYTES, VALUE_BYTES, edges_of
from distsms.features.rows import PART_ENTRIES, Columns, RowParts, Rows
from distsms.features.screen import Pair
from distsms.shards.manifest import Manifest
from distsms.shards.table_schema import HASH, format_names

_ENTRY_BYTES = 40
"""Bytes for each entry of a part of the rows, as it is read and looked through."""
_LEAST = 2**24
"""With less memory than this beside what is taken already, no features are made."""
MOST_BINS = 2**14
MOST_ATTRIBUTES = 2**14
"""More attributes are refused: a row would take a byte or two for each, though most of its columns may be 0."""
MOST_CROSSES = 2**15
MANY_COLUMNS, VECTORS = 2**22, 36 * 8
"""Columns from which users are warned, and the bytes that the vectors of a training take at least for each."""
Path: TypeAlias = str | os.PathLike[str]


@dataclass(frozen=True)
class FeatureOptions:
    """Which features are made."""

    bins: int | None = 32  # the most bins of a number; None makes neither bins nor categories
    crosses: str | None = None  # "all", "top:K", or pairs such as "age:job,age:hours"
    keep: bool = False  # whether the original columns are features, too
    attributes: Path | None = None  # a file that says which columns belong together; see `attributes.read_attributes`
    trees: int | None = None  # the number of extremely randomized trees whose leaves are features
    min_leaf: int = growing.MIN_LEAF  # the least number of rows in a leaf, among those on which the trees grow
    tree_rows: int = growing.LIMIT  # the most rows on which the trees grow; if there are more, a sample of them
    seed: int = 0  # another seed grows other trees, on another sample

    def __post_init__(self) -> None:
        check_fields(self, {"tree_rows": LEAST_ROWS})

    @property
    def text(self) -> str:
        """The options as `path --features` takes them, such as bins=16,crosses=top:4: bins, and those set otherwise."""
        words = list[str]()
        for name, value in vars(self).items():
            if value not in (None, False) and (name == "bins" or value != getattr(FeatureOptions, name)):
                text = os.fspath(value) if name == "attributes" else value
                words.append("keep" if name == "keep" else f"{name.replace('_', '-')}={text}")
        return ",".join(words)


@dataclass
class Fitting:
    """A feature map that is being made from this rank's rows of a data set, which are read again for each purpose."""

    manifest: Manifest
    comm: Communicator
    options: FeatureOptions
    parts: RowParts
    observer: FeaturesObserver
    room: float = math.inf  # bytes of memory that each rank has left

    @property
    def n_local(self) -> int:
        """The number of rows of this rank."""
        return self.parts.last - self.parts.first

    def watched(self, task: str) -> Iterator[Rows]:
        """Yield the parts of the rows, and report on the task. Local."""
        done = 0
        self.observer.progress(task, "rows", 0, self.n_local)
        for part in self.parts:
            yield part
            done += len(part.labels)
            self.observer.progress(task, "rows", done, self.n_local)

    def say(self, kind: str, text: str) -> None:
        """Tell users a note, on the root."""
        if self.comm.is_root:
            self.observer.noted(kind, text)


def fit(
    manifest: Manifest,
    comm: Communicator,
    options: FeatureOptions,
    observer: FeaturesObserver = UNWATCHED,
    parts: RowParts | None = None,
    room: float = math.inf,
) -> FeatureMap:
    """Return a feature map of the rows of a data set without codes, the same on any number of ranks. **Collective.**
    `parts` are the rows of this rank, by default its share; those of weight 0 have no influence. `room` is
    the memory that each rank has left."""
    if options.bins is not None and not 2 <= options.bins <= MOST_BINS:
        raise InputError(f"a number is divided into 2 to {MOST_BINS} bins, not {options.bins}", everywhere=True)
    if options.trees is not None:
        with comm.fail_together():
            growing.check_growing(options.trees, options.min_leaf, options.seed)
    fitting = Fitting(manifest, comm, options, parts or RowParts.of_rank(manifest, comm), observer, room)
    bins = None if options.bins is None else _fit_bins(fitting, options.bins)
    forest = None if options.trees is None else _grow(fitting, options.trees)
    with comm.fail_together():
        try:
            features = FeatureMap(manifest.p, bins, forest, options.keep, options.text)
        except ValueError as error:
            raise InputError(f"{manifest.directory}: {error}") from error
    if features.p >= MANY_COLUMNS:
        fewer = [f"a larger {option('min_leaf')}"] * bool(forest)
        fewer += [f"{option('crosses', 'top:K')} or smaller {option('bins')}"] * bool(bins)
        text = f"{features.p} columns: training needs about {format_bytes(VECTORS * features.p)} for its vectors. There"
        fitting.say("warning", Message(f"{text} are fewer with {', or with '.join(fewer)}"))
    return features


def _grow(fitting: Fitting, n_trees: int) -> Forest:
    """Return trees of the rows. Collective."""
    manifest, comm, options = fitting.manifest, fitting.comm, fitting.options
    shares = growing.sample_shares(manifest.n_pos, manifest.n_neg, options.tree_rows)
    n = round(manifest.n_pos * shares.positive + manifest.n_neg * shares.negative)
    entries = manifest.nnz * n / manifest.n if manifest.layout == "csr" else n * manifest.p
    growing.check_memory(n, manifest.p, entries, comm, fitting.room, options.min_leaf)
    if n < manifest.n:
        text = f"trees grow on a sample of about {n} of the {manifest.n} rows ({option('tree_rows')})"
        fitting.say("note", Message(text))
    with comm.fail_together():
        rows = growing.sample(manifest, fitting.watched("reading rows for trees"), shares, options.seed)
    return growing.grow(rows, comm, n_trees, options.min_leaf, options.seed, fitting.observer, fitting.room)


def _fit_bins(fitting: Fitting, n_bins: int) -> Bins:
    """Return the bins of the rows, and their crosses. Collective."""
    comm, crosses = fitting.comm, fitting.options.crosses
    # 1) The attributes.
    attributes = _attributes(fitting)
    with comm.fail_together():
        attribute.unique_names(attributes)
        if not 1 <= len(attributes) <= MOST_ATTRIBUTES:
            problem = f"has {len(attributes)} attributes, and bins are for 1 to {MOST_ATTRIBUTES}"
            remedy = f"choose some with {option('attributes', text='FILE')}, or use {option('trees')}"
            raise InputError(f"{fitting.manifest.directory}: {problem}: {remedy}")
        names = [each.name for each in attributes]
        pairs = [] if crosses is None else _pairs(crosses, names)
    # 2) The bins of numbers.
    numbers = [each for each in attributes if each.categories is None]
    of_column = VALUE_BYTES * fitting.n_local if numbers else 0
    require(of_column, "the values of one column, while they are divided,", comm, fitting.room)
    n_bytes = int(min(BYTES, fitting.room))
    passes = partial(fitting.watched, "dividing numbers into bins")
    of_numbers = dict(zip(numbers, edges_of(passes, numbers, n_bins, fitting.n_local, comm, n_bytes), strict=True))
    edges = [of_numbers.get(each, np.empty(0, np.float32)) for each in attributes]
    # 3) The crosses. If the user gave their number, the strongest ones.
    screened = isinstance(pairs, int)
    if isinstance(pairs, int):
        n = min(fitting.n_local, screen.ROWS)
        require(screen.row_bytes(len(attributes)) * n, "the rows by which pairs are screened", comm, fitting.room)
        bins = Bins(attributes, edges)
        strongest = screen.strongest(bins, fitting.watched("screening pairs"), fitting.manifest, pairs, comm)
        _describe_pairs(strongest, names, fitting)
        pairs = [(pair.a, pair.b) for pair in strongest]
    with comm.fail_together():
        try:
            return Bins(attributes, edges, sorted(pairs), screened)
        except ValueError as error:
            raise InputError(f"{option('crosses', crosses)}: {error}") from error


def _describe_pairs(pairs: Sequence[Pair], names: Sequence[str], fitting: Fitting) -> None:
    for pair in pairs[:10]:
        fitting.say("cross", f"{names[pair.a]} x {names[pair.b]}: gain {pair.gain:.5g}")
    if len(pairs) > 10:
        fitting.say("cross", f"and {len(pairs) - 10} more")
    if useless := sum(pair.gain <= 0 for pair in pairs):
        fitting.say("note", f"the gain of {useless} of these pairs is not above 0: these rows show no interaction")


def count_attributes(manifest: Manifest, comm: Communicator) -> int:
    """Return how many attributes a data set has; without a table, all rows are read once. **Collective.**"""
    return len(_attributes(Fitting(manifest, comm, FeatureOptions(), RowParts.of_rank(manifest, comm), UNWATCHED)))


def _attributes(fitting: Fitting) -> list[Attribute]:
    """Return the attributes of the rows. Collective."""
    manifest, table = fitting.manifest, fitting.manifest.table
    options, comm = fitting.options, fitting.comm
    if options.attributes is not None:
        with comm.fail_together():
            of_table = [] if table is None else attribute.table_attributes(table)
            named = attribute.read_attributes(options.attributes, lambda text: _number(manifest, text), of_table)
        return _checked(named, fitting, options.attributes)
    if table is not None:
        if hashed := [column.name for column in table.columns if column.kind == HASH]:
            fitting.say("note", f"hashed columns get no bins: {', '.join(hashed)}")
        return attribute.table_attributes(table)
    survey = Survey(manifest.p)
    with comm.fail_together():
        for part in fitting.watched("finding attributes"):
            survey.add(part.counted().X)
    survey.reduce(comm)
    names, first = _names(manifest), 0 if manifest.zero_based else 1
    return attribute.attributes_of(survey, lambda j: names[j] if names else f"column {j + first}")


def _checked(attributes: Sequence[Attribute], fitting: Fitting, path: Path) -> list[Attribute]:
    """Return attributes of the user; those of which some row sets no category get a code for that. Collective."""
    with fitting.comm.fail_together():
        lacking = np.zeros(len(attributes), np.int64)  # in how many rows no category is set; 0 for numbers
        for part in fitting.watched("checking attributes"):
            columns = Columns(part.counted().X)
            for k, each in enumerate(attributes):
                if each.categories is None:
                    continue
                counts = np.zeros(columns.n, np.int64)
                for j, name in zip(each.columns, each.categories, strict=True):
                    values = columns.values(j)
                    if ((values != 0) & (values != 1)).any():
                        raise InputError(f"{path}: {each.name!r}: column {name!r} has other values than 0 and 1")
                    counts += values == 1
                if (counts > 1).any():
                    raise InputError(f"{path}: {each.name!r}: a row sets {counts.max()} of its columns, not one")
                lacking[k] += np.count_nonzero(counts == 0)
    fitting.comm.sum(lacking)
    return [replace(each, none=rows > 0) for each, rows in zip(attributes, lacking.tolist(), strict=True)]


def _names(manifest: Manifest) -> Sequence[str]:
    """Return the names of the columns; none for data that are no table, and whose columns have numbers."""
    return getattr(manifest, "names", ()) if manifest.table is None else manifest.table.feature_names


def _number(manifest: Manifest, text: str) -> int:
    """Return the number of the column that a user names. Raises InputError if there is none."""
    names = _names(manifest)
    if text in names:
        return names.index(text)
    digits, base = text.removeprefix("column "), 0 if manifest.zero_based else 1
    if not names and digits.isdecimal() and base <= int(digits) < manifest.p + base:
        return int(digits) - base
    there = f"columns are numbers from {base} to {manifest.p - 1 + base}"
    if names:
        there = f"the features of the table have names such as {names[0]!r}; `distsms shard` lists its columns"
    raise InputError(f"there is no column {text!r}: {there}")


def _pairs(text: str, names: Sequence[str]) -> list[tuple[int, int]] | int:
    """Return the pairs that `--crosses` names, or for "top:K" how many are to be chosen. Raises InputError."""
    every = len(names) * (len(names) - 1) // 2
    kind, _, number = text.partition(":")
    if kind == "top" and number.isdecimal() and int(number) >= 1:
        return min(int(number), every)
    if kind == "top" and kind not in names:
        raise InputError(f"crosses {text!r}: top:K needs a whole number K of 1 or more, such as top:100")
    if text == "all":
        if every > MOST_CROSSES:
            many = f"{len(names)} attributes have {every} pairs, more than {MOST_CROSSES}"
            best = option("crosses", "top:K")
            raise InputError(f"{option('crosses', 'all')}: {many}; take the strongest with {best}")
        return list(combinations(range(len(names)), 2))
    place, pairs = {name: k for k, name in enumerate(names)}, set[tuple[int, int]]()
    for part in text.split(","):
        words = part.split(":")
        splits = [(":".join(words[:k]), ":".join(words[k:])) for k in range(1, len(words))]
        fitting = [(place[a], place[b]) for a, b in splits if a in place and b in place and a != b]
        if not fitting:
            there = f"there are {format_names(names)}. `all` takes every pair, and `top:10` the 10 strongest"
            raise InputError(f"{option('crosses')}: {part!r} is not a pair A:B of two different attributes; {there}")
        pairs.add((min(fitting[0]), max(fitting[0])))
    return sorted(pairs)


def room(manifest: Manifest, comm: Communicator, memory: float, n_trees: int | None = None) -> float:
    """Return the bytes of `memory` that each rank has left, less buffers for reading rows. **Collective.**"""
    if n_trees:
        with comm.fail_together():
            growing.check_growing(n_trees)  # loads scikit-learn, which takes memory, too
    entries = manifest.nnz if manifest.layout == "csr" else manifest.n * manifest.p
    reading = _ENTRY_BYTES * min(PART_ENTRIES, -(-entries // comm.size))
    left = min(comm.allgather(memory - resident() - reading))
    if left < _LEAST:
        taken = f"Python, its libraries, and buffers for rows take {format_bytes(memory - left + _LEAST)}"
        raise InputError(f"{option('memory')} {format_bytes(memory)} is too little: {taken}", everywhere=True)
    return left


def require(n_bytes: int, purpose: str, comm: Communicator, room: float) -> None:
    """Raise InputError if something takes more bytes than a rank has left. **Collective.**"""
    most = max(comm.allgather(n_bytes))
    if most > room:
        lacking = f"take {format_bytes(most)}, and {option('memory')} leaves {format_bytes(room)}"
        raise InputError(f"{purpose} {lacking}: allow more memory, or start more ranks", everywhere=True)
