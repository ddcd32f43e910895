"""What each rank of a training run will hold in memory, known before anything is loaded, and whether it is there."""

from __future__ import annotations

import math
import os
from dataclasses import dataclass
from pathlib import Path
from typing import NamedTuple

from distsms.data.shards import dataset
from distsms.data.shards.manifest import Manifest
from distsms.data.shards.streaming import MemoryBudget, buffer_bytes, entry_bytes
from distsms.errors import InputError
from distsms.losses.base import Cost
from distsms.losses.registry import choose_ordering, loss_class
from distsms.matrix.blocks import thread_count
from distsms.matrix.normalization import BY_COLUMN
from distsms.measures import Measure
from distsms.optim.settings import Settings
from distsms.parallel.vectors import SHARED_FROM, choose_step
from distsms.utils.formatting import format_bytes

INTERPRETER, ROOT_LIBRARIES = 180 * 2**20, 35 * 2**20
"""Python and the libraries on every rank, and what PETSc adds where the solver steps; see docs/theory/costs.md."""
EXPANDING = 8 * 2**20
"""What reading compressed shards adds: their library, and a piece as it is stored and expanded; measured."""
ROW_BYTES = 40
"""For each row besides its entries: label, classes, scores, coefficients and what a loss makes of them."""
_LIMITS = ("memory.max", "memory.limit_in_bytes")
"""What control groups of version 2 and 1 call the memory that they allow."""


@dataclass(frozen=True)
class Needs:
    """Bytes that a run takes. `data` is dealt out to the ranks, `each` is every rank's, `root` the root's besides.

    node : what the ranks of a node share, once for each.  rows : of `data`, what is not entries, `row` of each row.
    buffers : what a rank takes to stream entries that it does not hold.
    """

    data: int
    each: int
    root: int
    node: int = 0
    rows: int = 0
    row: int = 0
    buffers: int = 0

    def of_rank(self, ranks: int) -> int:
        """A rank's need where there are so many; the root has `root` besides."""
        return self.data // ranks + self.each

    def besides_rows(self, root: bool) -> int:
        """What a rank holds besides its rows, the root or another one."""
        return self.each + self.node + self.root * root

    def least(self, ranks: int, root: bool) -> int:
        """What a rank takes that streams all its entries, if they are more than the buffers."""
        entries = (self.data - self.rows) // ranks
        return self.besides_rows(root) + self.rows // ranks + min(self.buffers, entries)

    def of_node(self, here: int, ranks: int) -> int:
        """What a node with the root and so many ranks of all needs."""
        return here * self.of_rank(ranks) + self.node + self.root

    def ranks_that_fit(self, here: int, there: int) -> tuple[int, int] | None:
        """How many ranks, and how many of them on a node of `there` bytes, at most `here`; None if even one cannot."""
        for on_node in range(here, 0, -1):
            room = there - self.root - self.node - on_node * self.each
            if room > 0:
                return max(on_node, -(-on_node * self.data // room)), on_node
        return None

    def in_words(self, ranks: int, here: int) -> str:
        """The same for people, where `here` of so many ranks are on a node."""
        words = [f"{format_bytes(self.of_rank(ranks))} on each rank"]
        words += [f"{format_bytes(self.node)} more on each node"] if self.node and here > 1 else []
        words += [f"{format_bytes(self.root)} more on the root"] if self.root else []
        return ", ".join(words)


class Layout(NamedTuple):
    """Where the solver's vectors live: see `distsms.parallel.vectors`; here : ranks of a node."""

    step: str
    size: int
    here: int = 1

    def longest(self, p: int) -> int:
        """The numbers of a vector of length p that a rank holds at most."""
        return p if self.step == "root" else -(-p // self.size)


ALONE = Layout("root", 1)


def needs(
    manifest: Manifest,
    settings: Settings,
    ordering: Cost,
    layout: Layout = ALONE,
    bias: bool = False,
    losses: int = 1,
    solves: int = 1,
) -> Needs:
    """What training on a data set takes, with what an ordering takes and perhaps a constant feature. Local.

    losses, solves : how many of one data set there are, and how many of these are solved in one pass.

    Each rank holds w, once for a node where its ranks share it, and X'c, once more for every thread but the first;
    and what MPI takes to sum X'c, twice that at most. Columns are described in no more than that. A constant feature
    takes a copy of X'c. Normalization takes the factors, of the columns or of the rows, and what it multiplies by them.
    """
    kind = manifest.normalization.kind
    row = ROW_BYTES * losses + 8 * (1 + solves) * (kind == "l2")
    rows = row * manifest.n
    data = entry_bytes(manifest)[0] * manifest.nnz + rows
    p = manifest.p + bias
    shared = layout.here > 1 and p >= SHARED_FROM
    each = INTERPRETER + EXPANDING * (manifest.compression != "none")
    each += 8 * p * solves * (2 + (not shared) + thread_count() + bias)
    each += 8 * p * (1 + solves) * (kind in BY_COLUMN)
    each, root = each + losses * int(ordering.held_by_each), losses * int(ordering.held_by_root)
    steps = ROOT_LIBRARIES + solves * settings.vectors_held(layout.longest(p))
    if layout.step == "spread":
        each += steps
    else:
        root += steps
    return Needs(data, each, root, 8 * p * solves * shared, rows, row, buffer_bytes(manifest, thread_count()))


def require(needed: Needs, ranks: int, here: list[int], there: int, allowed: float = math.inf) -> None:
    """InputError if the ranks of this node, numbered `here`, need more than the `there` bytes that it has. Local.

    allowed : what a rank may take, `--memory`; InputError if that is too little to stream in.
    """
    own = [needed.of_rank(ranks) + needed.root * (rank == 0) for rank in here]
    least = [needed.least(ranks, rank == 0) for rank in here]
    if max(least) > allowed:
        raise InputError(
            f"--memory {format_bytes(allowed)} is too little: {math.ceil(max(least) / 2**20)}MiB are needed on "
            f"{'the root' if 0 in here else 'a rank'} for vectors, labels, scores and buffers, all entries being "
            "streamed; more ranks need less each of what belongs to rows"
        )
    wanted = sum(min(one, allowed) for one in own) + needed.node * (max(own) <= allowed)
    if wanted <= there:
        return
    text = (
        f"{len(here)} rank(s) on {os.uname().nodename} need {format_bytes(wanted)}, and {format_bytes(there)} are "
        f"there ({format_bytes(needed.of_rank(ranks))} a rank, {format_bytes(needed.root)} more on the root). "
    )
    share = math.floor(there / len(here) / 2**26) * 2**26
    stream = f"; or --memory {share // 2**20}MiB, by which what does not fit is read from the shards on each pass"
    stream = stream if share >= max(least) else ""
    fitting = needed.ranks_that_fit(len(here), there)
    if fitting is None:
        raise InputError(
            text + "More ranks cannot help, since what one holds of the vectors does not shrink: lower --history, "
            "--planes or --vector-memory, spread them (--step spread), leave out columns, or take a larger node"
            + stream
        )
    raise InputError(text + f"{fitting[0]} ranks, {fitting[1]} on each node of this memory, would fit" + stream)


def room(needed: Needs, allowed: float, root: bool) -> MemoryBudget:
    """What is left to a rank, the root or another one, for its rows, of what it may take in all. Local."""
    return MemoryBudget(int(allowed) - needed.besides_rows(root), needed.row)


@dataclass(frozen=True)
class Plan:
    """How a data set is trained on, decided before its rows are read; made by `make_plan`.

    Attributes
    ----------
    ordering, step : str
        How the margins are brought into order, and where the solver's vectors live.
    reasons : tuple of str
        Why these two were chosen.
    needs : Needs
        The memory that the run takes.
    vector_bytes : int
        The part of it that the solver's vectors take, on each rank that holds some.
    available : int
        Bytes of memory that this rank's node has.
    allowed : float or None
        The most that a rank may take; None if it is not limited.
    ranks, node_ranks : int
        The numbers of all ranks, and of those on this rank's node.
    """

    ordering: str
    step: str
    reasons: tuple[str, str]
    needs: Needs
    vector_bytes: int
    available: int
    allowed: float | None
    ranks: int
    node_ranks: int

    def room(self, root: bool) -> MemoryBudget | None:
        """Return what is left for rows on the root or on another rank; None if memory is not limited."""
        return None if self.allowed is None else room(self.needs, self.allowed, root)

    def describe(self) -> list[str]:
        """Return lines for people: ordering, step, memory, and a warning if threads share cores."""
        owner = "each rank" if self.step == "spread" else "the root"
        lines = [
            f"ordering  {self.ordering}: {self.reasons[0]}",
            f"step      {self.step}: {self.reasons[1]}",
            f"memory    {self.needs.in_words(self.ranks, self.node_ranks)}, of these"
            f" {format_bytes(self.vector_bytes)} of the solver's vectors on {owner};"
            f" its node has {format_bytes(self.available)}",
        ]
        if self.allowed is not None:
            lines.append(
                f"          at most {format_bytes(self.allowed)} on each rank, by --memory: entries beyond are streamed"
            )
        threads, cores = thread_count(), len(os.sched_getaffinity(0))
        if threads > cores:
            lines.append(
                f"warning   {threads} threads of a rank share {cores} core{'s' if cores > 1 else ''}: launchers bind"
                " ranks\n          to cores; give them more (mpirun --bind-to none, srun --cpus-per-task)"
            )
        return lines


def make_plan(
    manifest: Manifest,
    measure: str | Measure,
    settings: Settings,
    ranks: int,
    node_ranks: list[int],
    ordering: str = "auto",
    step: str = "auto",
    memory: float | None = None,
    bias: bool = False,
    losses: int = 1,
    solves: int = 1,
) -> Plan:
    """Choose the ordering and the step, and check that the memory of this rank's node suffices. Local.

    Parameters
    ----------
    manifest : Manifest
        Of the data set.
    ranks : int
        The number of ranks.
    node_ranks : list of int
        The ranks that share this rank's node, see `Communicator.node_ranks`.
    ordering, step : str
        What the user asked for, or ``"auto"``.
    memory : float, optional
        The most bytes that each rank may take; what does not fit is streamed. None: all rows are held.
    bias : bool
        Whether there is a constant feature.
    losses, solves : int
        See `needs`.

    Raises
    ------
    InputError
        If the node has too little memory, or the shards cannot be read for want of a library.
    """
    dataset.check_readable(manifest)
    p, n_pos, n_neg = manifest.p + bias, manifest.n_pos, manifest.n_neg
    ordering, why_ordering = choose_ordering(ordering, measure, n_pos, n_neg, ranks)
    step, why_step = choose_step(step, p, ranks, settings.traits.spreadable)
    cost = loss_class(measure, ordering).cost(n_pos, n_neg, ranks)
    layout = Layout(step, ranks, len(node_ranks))
    needed, there = needs(manifest, settings, cost, layout, bias, losses, solves), available()
    require(needed, ranks, node_ranks, there, memory or math.inf)
    vector_bytes = solves * settings.vectors_held(layout.longest(p))
    reasons = why_ordering, why_step
    return Plan(ordering, step, reasons, needed, vector_bytes, there, memory, ranks, len(node_ranks))


def available(root: Path = Path("/")) -> int:
    """Bytes that this machine can give to processes, or that a control group of ours may take, if that is less. Local.

    root : of the file system that has /proc and /sys.
    """
    fields = (line.split() for line in _lines(root / "proc/meminfo"))
    found = [1024 * int(one[1]) for one in fields if one[0] == "MemAvailable:"]
    found = found or [os.sysconf("SC_PHYS_PAGES") * os.sysconf("SC_PAGE_SIZE")]
    for line in _lines(root / "proc/self/cgroup"):
        _, controller, group = line.split(":", 2)
        at = root / "sys/fs/cgroup" / controller
        inner = at / group.lstrip("/")
        for place in (inner, *inner.parents):
            if place.is_relative_to(at):
                limits = [text for name in _LIMITS for text in _lines(place / name)]
                found += [int(text) for text in limits if text.isdecimal()]  # "max" is none
    return min(found)


def _lines(path: Path) -> list[str]:
    """The lines of a small file; none if it cannot be read."""
    try:
        return path.read_text().splitlines()
    except OSError:
        return []
