"""Plan a run before its rows are loaded: choose ordering and step, and check that the node has enough memory."""

from __future__ import annotations

import contextlib
import math
import os
from collections.abc import Callable, Iterator
from dataclasses import dataclass, replace
from typing import NamedTuple

from distsms.base.communicator import Communicator
from distsms.base.errors import InputError
from distsms.base.formatting import format_bytes
from distsms.base.measures import Measure
from distsms.base.memory import Memory, available
from distsms.base.wording import Message, marked, option
from distsms.losses.base import ROW_BYTES, Cost
from distsms.losses.dual_bound import OF_ALL, OF_ROW
from distsms.losses.registry import choose_ordering, loss_class
from distsms.matrix.blocks import thread_count
from distsms.matrix.normalization import BY_COLUMN
from distsms.optim.settings import Settings
from distsms.optim.solvers.base import WIDE
from distsms.parallel.vectors import SHARED_FROM, choose_step
from distsms.shards import storage
from distsms.shards.dataset import MemoryBudget, buffer_bytes, held_bytes, work_bytes
from distsms.shards.manifest import Manifest
from distsms.training.normal_auc_closed import bytes_of_moments
from distsms.training.task import AUTO, Distribution, RunOptions, TrainingTask

INTERPRETER, ROOT_LIBRARIES = 180 * 2**20, 35 * 2**20
"""Bytes of Python with its libraries on every rank, and of PETSc on ranks with the solver; see docs/theory/costs.md."""
EXPANDING = 8 * 2**20
"""Bytes that reading compressed shards adds: the library, and a piece both compressed and expanded (measured)."""


@dataclass(frozen=True)
class Needs(Memory):
    """The memory that a run takes: the rows, which the ranks share, and what is besides them."""

    data: int = 0  # the bytes of all entries and rows, which are divided among the ranks
    rows: int = 0  # the part of `data` that is for rows and not for entries, and the part of a single row
    row: int = 0
    buffers: int = 0  # the bytes that a rank needs to stream entries that it does not hold
    p: int = 0  # the number of columns
    # the bytes of the solver's vectors on a rank that holds some; `each`, or else `root`, includes them
    solver: int = 0
    spread: bool = False  # whether each rank holds some of the solver's vectors, and not only the root
    columns: int = 0  # the bytes of the other vectors with a number for each column, which `each` and `node` include

    def of_rank(self, ranks: int) -> int:
        """Return the bytes that a rank takes if there are `ranks` of them; the root takes `root` more."""
        return self.data // ranks + self.each

    def besides_rows(self, root: bool) -> int:
        """Return what the root, or another rank, holds besides its rows."""
        return self.each + self.node + self.root * root

    def room(self, allowed: float, root: bool) -> MemoryBudget:
        return MemoryBudget(int(allowed) - self.besides_rows(root), self.row)

    def least(self, ranks: int, root: bool) -> int:
        """Return the bytes of a rank that streams all its entries, or holds them if that takes less than buffers."""
        entries = (self.data - self.rows) // ranks
        return self.besides_rows(root) + self.rows // ranks + min(self.buffers, entries)

    def vectors(self, root: bool) -> int:
        """Return the bytes of the vectors with a number for each column on the root, or on another rank."""
        return self.columns + self.solver * (root or self.spread)

    def of_node(self, here: int, ranks: int) -> int:
        """Return the bytes that a run takes on a node with `here` of its ranks, one of which is the root."""
        return here * self.of_rank(ranks) + self.node + self.root

    def ranks_that_fit(self, here: int, there: int) -> tuple[int, int] | None:
        """Return a number of ranks, at most `here` on each node of `there` bytes, and that on each; or None."""
        for on_node in range(here, 0, -1):
            room = there - self.root - self.node - on_node * self.each
            if room > 0:
                return max(on_node, -(-on_node * self.data // room)), on_node
        return None

    def in_words(self, ranks: int, here: int) -> str:
        words = [f"{format_bytes(self.of_rank(ranks))} on each rank"]
        words += [f"{format_bytes(self.node)} more on each node"] if self.node and here > 1 else []
        words += [f"{format_bytes(self.root)} more on the root"] if self.root else []
        return ", ".join(words)


class Layout(NamedTuple):
    """Where the solver's vectors are kept (step), and how many ranks there are in all (size) and on this node."""

    step: str
    size: int
    here: int = 1

    def longest(self, p: int) -> int:
        return p if self.step == "root" else -(-p // self.size)


def needs(
    manifest: Manifest,
    settings: Settings,
    cost: Cost,
    layout: Layout = Layout("root", 1),  # noqa: B008 - immutable
    bias: bool = False,
    losses: int = 1,
    solves: int = 1,
    moments: int = 0,
    scored: int = 0,
) -> Needs:
    """Add up the memory that training on a data set takes, with `cost` of each of `losses`, of which `solves` are
    solved in one pass; `moments` are bytes of a closed form, which scores `scored` models in a pass. Local.
    """
    kind, p, threads = manifest.normalization.kind, manifest.p + bias, thread_count()
    shared, spread = layout.here > 1 and p >= SHARED_FROM, layout.step == "spread"
    row = ((cost.of_row if losses == 1 else ROW_BYTES) + 16 * manifest.weights) * losses
    row += 8 * (1 + solves) * (kind == "l2") + manifest.coded.factor_bytes + 8 * scored + OF_ROW * settings.points
    rows = row * manifest.n
    # Each part that is not divided among the ranks:
    python = Memory(INTERPRETER + EXPANDING * (manifest.compression != "none") + OF_ALL * settings.points)
    products = Memory(moments + threads * work_bytes(manifest))
    copies = solves * (2 + (not shared) + threads + bias) + (1 + solves) * (kind in BY_COLUMN)
    columns = Memory(8 * p * copies, node=8 * p * solves * shared)
    vectors = solves * settings.vectors_held(layout.longest(p))
    solver = Memory(each=ROOT_LIBRARIES + vectors) if spread else Memory(root=ROOT_LIBRARIES + vectors)
    memory = python + products + columns + cost.memory * losses + solver
    return Needs(
        **vars(memory),
        data=held_bytes(manifest, manifest.n, manifest.nnz) + rows,
        rows=rows,
        row=row,
        buffers=buffer_bytes(manifest, threads),
        p=p,
        solver=vectors,
        spread=spread,
        columns=columns.each + columns.node,
    )


def require(
    needed: Needs,
    ranks: int,
    here: list[int],
    there: int,
    allowed: float = math.inf,
    advise: Callable[[], str] = lambda: "",
    in_files: bool = True,
) -> None:
    """Raise InputError unless this node, with `there` bytes, has the memory for its ranks `here`: `LackOfMemory` if it
    has too little, or if `allowed` does not suffice for streaming. `advise` says what helps against vectors. Local.
    """
    # 1) What each rank may take, even if it streams all of its entries.
    holding = [needed.of_rank(ranks) + needed.root * (rank == 0) for rank in here]
    least = [needed.least(ranks, rank == 0) for rank in here]
    enough = math.ceil(max(least) / 2**20)
    if max(least) > allowed:
        root = 0 in here
        python = INTERPRETER + ROOT_LIBRARIES * (root or needed.spread)
        if python >= allowed:
            advice = f"Allow more memory, since Python and its libraries alone take {format_bytes(python)}"
        elif needed.rows // ranks > needed.vectors(root) and needed.besides_rows(root) < allowed:
            advice = "Allow more memory, or start more ranks: then each has fewer rows"
        else:
            advice = marked(advise())
        vectors, rows = needed.vectors(root), max(least) - needed.besides_rows(root)
        raise InputError(
            f"{option('memory')} {format_bytes(allowed)} is too little: {enough} MiB are needed on "
            f"{'the root' if root else 'a rank'}, even if all entries are streamed: {format_bytes(vectors)} for vectors"
            f" with a number for each of the {needed.p} columns, {format_bytes(vectors - needed.columns)} of them for "
            f"the solver; {format_bytes(rows)} for labels, scores and buffers; "
            f"{format_bytes(max(least) - rows - vectors)} for Python, its libraries and what sorts scores. {advice}"
        )
    # 2) What the node has.
    total = sum(min(need, allowed) for need in holding) + needed.node * (max(holding) <= allowed)
    if total <= there:
        return
    share = math.floor(there / len(here) / 2**20)
    share = share // 64 * 64 if share >= 2**10 else share  # a round number, where little is lost by it
    share, python, stream = share * 2**20, INTERPRETER + ROOT_LIBRARIES, ""
    if share >= max(least):
        limit = option("memory", share, text=f"{share // 2**20}MiB")
        stream = f"; or give {limit}: rows that do not fit are then read from the shards on each pass"
    else:
        share = 0
        if max(least) < max(holding):
            limit = option("memory", enough * 2**20, text=f"{enough}MiB")
            stream = f"; if rows are read from the shards on each pass, {limit} is enough"
    fitting = needed.ranks_that_fit(len(here), there)
    if python >= there / len(here):
        share, stream = 0, ""
        libraries = f"Python and its libraries alone take {format_bytes(python)} on a rank with a solver"
        advice = f"{libraries}: start fewer ranks on each node, or allow more memory"
    elif fitting is None:
        advice = (
            "More ranks alone do not help, since vectors take as much with more ranks: "
            f"{format_bytes(needed.vectors(True))} on {'each rank' if needed.spread else 'the root'} for vectors with a"
            f" number for each of the {needed.p} columns. {marked(advise())}"
        )
    else:
        advice = f"It would fit with {fitting[0]} ranks, {fitting[1]} on each node with this memory"
    raise LackOfMemory(
        f"{len(here)} rank(s) on {os.uname().nodename} need {format_bytes(total)}, but only {format_bytes(there)} are "
        f"available ({format_bytes(needed.of_rank(ranks))} a rank, {format_bytes(needed.root)} more on the root). "
        f"{advice}{stream}",
        share=share * in_files,
    )


class LackOfMemory(InputError):
    """A node has too little memory for its rows; `share` is what each rank may take to stream the rest, or 0."""

    def __init__(self, message: str, everywhere: bool = False, share: int = 0) -> None:
        super().__init__(message, everywhere)
        self.share = share


def memory_to_stream(make: Callable[[], Plan], comm: Communicator) -> int | None:
    """Return each rank's bytes if entries have to be streamed; None if all fit, or that is no help. **Collective.**"""
    share: float = math.inf
    try:
        make()
    except InputError as error:
        share = error.share if isinstance(error, LackOfMemory) else 0
    least = min(comm.allgather(share))
    return int(least) if 0 < least < math.inf else None


@dataclass(frozen=True)
class Plan:
    """Decisions on a training that are made before its rows are read. `make_plan` makes a plan."""

    distribution: Distribution
    reasons: tuple[str, str]  # why its ordering and its step were chosen
    needs: Needs  # the memory that the run takes
    available: int  # bytes of memory that this rank's node has
    allowed: float | None  # the most that a rank may take; None if it is not limited
    ranks: int  # the numbers of all ranks, and of those on this rank's node
    node_ranks: int
    device: str = ""  # what computes with the rows, in words, if it is not the processor
    scored: int = 0  # how many models of a closed form are scored in one pass; 0 if there is no closed form

    def room(self, root: bool) -> MemoryBudget | None:
        return None if self.allowed is None else self.needs.room(self.allowed, root)

    @property
    def on_device(self) -> list[str]:
        """A line on the device, if there is one."""
        return [f"device    {self.device}"] if self.device else []

    def describe(self, whole: bool) -> list[str]:
        """Return lines for users: ordering, step and memory, with the reasons if `whole`; and a warning."""
        threads, cores, lines = thread_count(), len(os.sched_getaffinity(0)), list[str]()
        if threads > cores:
            share = f"{threads} threads of a rank share {cores} core{'s' if cores > 1 else ''}"
            remedy = "launchers bind ranks to cores; give them more (mpirun --bind-to none, srun --cpus-per-task)"
            lines.append(f"warning   {share}: {remedy}")
        (ordering, step), there = self.distribution, format_bytes(self.available)
        limit = "" if self.allowed is None else format_bytes(self.allowed)
        if not whole:
            ranks = f"{self.ranks} rank{'s' if self.ranks > 1 else ''}"
            memory = f"{format_bytes(self.needs.of_node(self.node_ranks, self.ranks))} of {there}"
            limit = limit and f"; --memory {limit} on each rank"
            return [*lines, f"plan      {ranks}; ordering {ordering}; step {step}; {memory}{limit}", *self.on_device]
        owner = "each rank" if self.needs.spread else "the root"
        return [
            *lines,
            *self.on_device,
            f"ordering  {ordering}: {self.reasons[0]}",
            f"step      {step}: {self.reasons[1]}",
            f"memory    {self.needs.in_words(self.ranks, self.node_ranks)}, of these"
            f" {format_bytes(self.needs.solver)} of the solver's vectors on {owner}; its node has {there}",
            *([f"          at most {limit} on each rank (--memory); other entries are streamed"] if limit else []),
        ]


def plan_run(task: TrainingTask, options: RunOptions, ranks: int, node_ranks: list[int]) -> Plan:
    """Plan a training on a data set, and the trainings of folds that follow it, for this number of ranks. Local."""
    assert task.manifest is not None
    plan = make_plan(
        task.manifest,
        task.measure,
        task.settings,
        ranks=ranks,
        node_ranks=node_ranks,
        distribution=task.distribution,
        memory=options.memory,
        bias=bool(task.bias),
        losses=max(options.folds, 1),
        solves=folds_at_once(options.folds, task.manifest.p, options.memory),
    )
    if device := options.place.describe():
        plan = replace(plan, device=device, reasons=("what the device computes", plan.reasons[1]))
    return plan


def folds_at_once(folds: int, p: int, memory: float | None) -> int:
    """Return of how many folds the models, of p columns, are trained in the same passes; at least 1. Local."""
    return 1 if memory is not None or p >= WIDE else max(folds, 1)


def make_plan(
    manifest: Manifest,
    measure: str | Measure,
    settings: Settings,
    ranks: int,
    node_ranks: list[int],
    distribution: Distribution = AUTO,
    memory: float | None = None,
    bias: bool = False,
    losses: int = 1,
    solves: int = 1,
    models: int = 1,
) -> Plan:
    """Choose the ordering and the step, and check this node's memory; `losses` and `solves` are those of `needs`,
    `models` is how many models a closed form scores. With `memory`, rows that do not fit are streamed. Local.
    """
    storage.check_codec(manifest.compression, manifest.directory)
    p, n_pos, n_neg = manifest.p + bias, manifest.n_pos, manifest.n_neg
    ordering, why_ordering = choose_ordering(distribution.ordering, measure, n_pos, n_neg, ranks)
    step, why_step = choose_step(distribution.step, p, ranks)

    def cost_on(ranks: int) -> Cost:
        loss, entries = loss_class(measure, ordering), held_bytes(manifest, 0, manifest.nnz)
        cost = loss.cost(n_pos, n_neg, ranks)
        if not loss.family.has_dual or losses > 1 or solves > 1 or manifest.coded:
            return cost
        start = settings.opening_held(manifest.n, p, ranks, entries, loss.family)
        if loss.family.has_curvature:
            start += settings.curvature_held(manifest.n, p, ranks, manifest.nnz)
        memory = cost.memory + start
        return cost._replace(held_by_each=memory.each, held_by_root=memory.root)

    layout, here = Layout(step, ranks, len(node_ranks)), len(node_ranks)
    in_memory = 0 if manifest.in_memory is None else manifest.in_memory.nbytes
    there, allowed = available(held=here * in_memory), memory or math.inf
    moments = bytes_of_moments(measure, manifest.n, manifest.p, manifest.nnz, bool(manifest.coded), losses, settings.l1)
    # A closed form scores all models in a pass, or those of one lambda; there is none if memory does not suffice.
    for scored in sorted({models, min(models, losses)}, reverse=True) if moments else ():
        needed = needs(manifest, settings, cost_on(ranks), layout, bias, losses, solves, moments, scored)
        with contextlib.suppress(InputError):
            require(needed, ranks, node_ranks, there, allowed)
            break
    else:
        scored, needed = 0, needs(manifest, settings, cost_on(ranks), layout, bias, losses, solves)

    def fits(change: Change) -> bool:
        ranks, layout = change.layout.size, change.layout
        with contextlib.suppress(InputError):
            other = needs(manifest, change.settings, cost_on(ranks), layout, bias, losses, solves)
            require(other, ranks, list(range(layout.here)), there, allowed)
            return True
        return False

    def advise() -> str:
        columns_matter = needed.least(ranks, True) - needed.vectors(True) < allowed
        smooth = Measure.parse(measure).family.smooth
        return describe_changes(Change(settings, layout), smooth, columns_matter, fits)

    require(needed, ranks, node_ranks, there, allowed, advise, in_files=not in_memory)
    return Plan(
        Distribution(ordering, step),
        reasons=(why_ordering, why_step),
        needs=needed,
        available=there,
        allowed=memory,
        ranks=ranks,
        node_ranks=here,
        scored=scored,
    )


FEW_PAIRS, FEW_PLANES = 5, 10
MOST_RANKS = 1024
SHOWN = 2
"""How many changes a message names."""


class Change(NamedTuple):
    """A run that a user may ask for so that it fits in memory."""

    settings: Settings
    layout: Layout

    def words(self, now: Change) -> str:
        """Return what differs from the run that was asked for."""
        step, ranks, on_node = self.layout
        where = f", {on_node} on each node" if on_node < ranks else ""
        words = [f"{ranks} ranks{where}, {option('step', step)}"] * (self.layout != now.layout)
        for name in ("solver", "history", "planes"):
            value = getattr(self.settings, name)
            words += [option(name, value)] * (value != getattr(now.settings, name))
        return " ".join(words)


def describe_changes(now: Change, smooth: bool, columns_matter: bool, fits: Callable[[Change], bool]) -> str:
    """Return what makes a run fit whose vectors are too large; agm needs a `smooth` measure. Local."""
    fitting = [next(filter(fits, changes), None) for changes in _changes(now, smooth)]
    words = [change.words(now) for change in fitting if change is not None]
    less = f"a larger {option('min_count')}, fewer bits of {option('hashed')}, a smaller {option('degree')}"
    more = "allow more memory" + f", or have fewer columns (`distsms shard` with {less})" * columns_matter
    if words:
        return Message(f"What makes it fit: {'; or '.join(words[:SHOWN])}. Otherwise {more}")
    others = f"{option('history')}, {option('planes')} or {option('step')}"
    return Message(f"No other solver, {others} and no number of ranks makes it fit: {more}")


def _changes(now: Change, smooth: bool) -> Iterator[list[Change]]:
    """Yield what might make a run fit, by kind; in each list the smallest change comes first."""
    settings, (step, ranks, on_node) = now.settings, now.layout
    first = ranks if step == "root" and ranks > 1 else 2 * ranks
    doubled = [first * 2**k for k in range(MOST_RANKS.bit_length()) if first * 2**k <= MOST_RANKS]
    layouts = [Layout("spread", n, here) for n in doubled for here in [n] * (on_node == ranks) + [min(on_node, n)]]
    solvers = [settings]
    if smooth and settings.solver != "agm":
        solvers.append(replace(settings, solver="agm", solver_options=()))
    for usual in solvers:
        history = min(usual.history or FEW_PAIRS, FEW_PAIRS) if usual.traits.history else usual.history
        sizes = [usual, replace(usual, history=history, planes=min(usual.planes, FEW_PLANES))]
        yield [now._replace(settings=size) for size in sizes if size != settings]
        yield [Change(size, layout) for layout in layouts for size in sizes]
