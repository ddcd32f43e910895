"""The plan of a run before its rows are loaded: ordering, step, and the memory of each rank, if the node has it."""

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
from distsms.parallel.vector_placement import SHARED_FROM, choose_step
from distsms.utils.formatting import format_bytes

INTERPRETER, ROOT_LIBRARIES = 180 * 2**20, 35 * 2**20
"""Python with its libraries on every rank, and PETSc on ranks that run the solver; see docs/theory/costs.md."""
EXPANDING = 8 * 2**20
"""What reading compressed shards adds: their library, and a piece both as stored and expanded; measured."""
ROW_BYTES = 40
"""For each row besides its entries: label, classes, scores, coefficients, and the buffers of a loss."""
_LIMITS = ("memory.max", "memory.limit_in_bytes")
"""The files in which control groups of version 2 and 1 have their limit of memory."""


@dataclass(frozen=True)
class Needs:
    """Bytes of memory that a run takes.

    Parameters
    ----------
    data : int
        Shared out among the ranks: entries and rows.
    each, root, node : int
        On every rank; more on the root; and shared by the ranks of a node, once for each node.
    rows, row : int
        The part of `data` that is not entries; and that of one row.
    buffers : int
        What a rank takes to stream entries that it does not hold.
    """

    data: int
    each: int
    root: int
    node: int = 0
    rows: int = 0
    row: int = 0
    buffers: int = 0

    def of_rank(self, ranks: int) -> int:
        """Return the bytes of a rank among so many; the root takes `root` more."""
        return self.data // ranks + self.each

    def besides_rows(self, root: bool) -> int:
        """Return what the root, or another rank, holds besides its rows."""
        return self.each + self.node + self.root * root

    def least(self, ranks: int, root: bool) -> int:
        """Return what a rank takes at least: if it streams all its entries, unless they are less than the buffers."""
        entries = (self.data - self.rows) // ranks
        return self.besides_rows(root) + self.rows // ranks + min(self.buffers, entries)

    def of_node(self, here: int, ranks: int) -> int:
        """Return the bytes of a node with the root, and with `here` of all ranks."""
        return here * self.of_rank(ranks) + self.node + self.root

    def ranks_that_fit(self, here: int, there: int) -> tuple[int, int] | None:
        """Return how many ranks would fit, and how many on each node of `there` bytes (at most `here`); or None."""
        for on_node in range(here, 0, -1):
            room = there - self.root - self.node - on_node * self.each
            if room > 0:
                return max(on_node, -(-on_node * self.data // room)), on_node
        return None

    def in_words(self, ranks: int, here: int) -> str:
        """Describe the needs for people, with `here` of so many ranks on a node."""
        words = [f"{format_bytes(self.of_rank(ranks))} on each rank"]
        words += [f"{format_bytes(self.node)} more on each node"] if self.node and here > 1 else []
        words += [f"{format_bytes(self.root)} more on the root"] if self.root else []
        return ", ".join(words)


class Layout(NamedTuple):
    """Where the solver's vectors live, with how many ranks in all and on this node.

    See `distsms.parallel.vector_placement`.
    """

    step: str
    size: int
    here: int = 1

    def longest(self, p: int) -> int:
        """Return the most numbers of a vector of length p that a rank holds."""
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
    """Return the memory that training on a data set takes. Local.

    Parameters
    ----------
    manifest : Manifest
        Of the data set.
    settings : Settings
        Of the run.
    ordering : Cost
        What the ordering of the margins takes.
    layout : Layout
        Where the solver's vectors live.
    bias : bool
        Whether there is a constant feature.
    losses, solves : int
        How many losses there are on the data set, and how many of them are solved in one pass.

    Notes
    -----
    Each rank holds w, once for a node whose ranks share it; X'c, once more for every thread but the first; and what
    MPI takes to sum X'c, at most twice that. The description of columns takes no more than that. A constant feature
    takes a copy of X'c. Normalization takes the factors of the columns or of the rows, and the product with them.
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
    """Check that this node has the memory for its ranks. Local.

    Parameters
    ----------
    needed : Needs
        Of the run.
    ranks : int
        The number of all ranks.
    here : list of int
        The ranks on this node.
    there : int
        Bytes that the node has.
    allowed : float
        The most bytes that a rank may take.

    Raises
    ------
    InputError
        If the node has too little, or if `allowed` is too little even for streaming; the message says what would do.
    """
    own = [needed.of_rank(ranks) + needed.root * (rank == 0) for rank in here]
    least = [needed.least(ranks, rank == 0) for rank in here]
    if max(least) > allowed:
        raise InputError(
            f"--memory {format_bytes(allowed)} is too little: {math.ceil(max(least) / 2**20)}MiB are needed on "
            f"{'the root' if 0 in here else 'a rank'} for vectors, labels, scores and buffers, all entries being "
            "streamed; more ranks need less each of what belongs to rows"
        )
    wanted = sum(min(need, allowed) for need in own) + needed.node * (max(own) <= allowed)
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
    """Return what the root, or another rank, has left for its rows, of what it may take in all. Local."""
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

    def describe(self, whole: bool) -> list[str]:
        """Return lines for people: a warning if threads share cores, and ordering, step and memory.

        These are in one line; if `whole`, each has its own, with the reasons.
        """
        threads, cores = thread_count(), len(os.sched_getaffinity(0))
        lines = []
        if threads > cores:
            lines.append(
                f"warning   {threads} threads of a rank share {cores} core{'s' if cores > 1 else ''}: launchers bind"
                " ranks to cores; give them more (mpirun --bind-to none, srun --cpus-per-task)"
            )
        ranks = f"{self.ranks} rank{'s' if self.ranks > 1 else ''}"
        memory, there = format_bytes(self.needs.of_node(self.node_ranks, self.ranks)), format_bytes(self.available)
        if not whole:
            limit = "" if self.allowed is None else f"; --memory {format_bytes(self.allowed)} on each rank"
            return [
                *lines,
                f"plan      {ranks}; ordering {self.ordering}; step {self.step}; {memory} of {there}{limit}",
            ]
        owner = "each rank" if self.step == "spread" else "the root"
        lines += [
            f"ordering  {self.ordering}: {self.reasons[0]}",
            f"step      {self.step}: {self.reasons[1]}",
            f"memory    {self.needs.in_words(self.ranks, self.node_ranks)}, of these"
            f" {format_bytes(self.vector_bytes)} of the solver's vectors on {owner}; its node has {there}",
        ]
        if self.allowed is not None:
            lines.append(
                f"          at most {format_bytes(self.allowed)} on each rank, by --memory: entries beyond are streamed"
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
    """Return the bytes that this machine can give to processes, or that our control groups allow, if less. Local.

    Parameters
    ----------
    root : Path
        The root of the file system that has /proc and /sys.
    """
    fields = (line.split() for line in _lines(root / "proc/meminfo"))
    found = [1024 * int(field[1]) for field in fields if field[0] == "MemAvailable:"]
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
    """Return the lines of a small file; none if it cannot be read."""
    try:
        return path.read_text().splitlines()
    except OSError:
        return []
