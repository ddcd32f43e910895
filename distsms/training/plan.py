"""Plan a run before its rows are loaded: choose ordering and step, and check that the node has enough memory."""

from __future__ import annotations

import math
import os
from collections.abc import Callable
from dataclasses import dataclass
from typing import NamedTuple

from distsms.base.errors import InputError
from distsms.base.formatting import format_bytes
from distsms.base.measures import Measure
from distsms.base.memory import available
from distsms.base.wording import marked, option
from distsms.losses.base import ROW_BYTES, Cost
from distsms.losses.registry import choose_ordering, loss_class
from distsms.matrix.blocks import thread_count
from distsms.matrix.normalization import BY_COLUMN
from distsms.optim.curvature import LOSSES as CURVED_LOSSES
from distsms.optim.opening import LOSSES
from distsms.optim.settings import Settings
from distsms.parallel.communicator import Communicator
from distsms.parallel.vector_placement import SHARED_FROM, choose_step
from distsms.shards import dataset
from distsms.shards.manifest import Manifest
from distsms.shards.row_shares import MemoryBudget, buffer_bytes, held_bytes, work_bytes
from distsms.training import remedies
from distsms.training.needs import Needs
from distsms.training.normal_auc_closed import bytes_of_moments

INTERPRETER, ROOT_LIBRARIES = 180 * 2**20, 35 * 2**20
"""Bytes of Python with its libraries on every rank, and of PETSc on ranks with the solver; see docs/theory/costs.md."""
EXPANDING = 8 * 2**20
"""Bytes that reading compressed shards adds: the library, and a piece both compressed and expanded (measured)."""


class Layout(NamedTuple):
    """Where the solver's vectors are kept (step), and how many ranks there are in all (size) and on this node (here).

    See `distsms.parallel.vector_placement`.
    """

    step: str
    size: int
    here: int = 1

    def longest(self, p: int) -> int:
        """Return how many numbers of a vector of length p a rank holds at most."""
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
    moments: int = 0,
    scored: int = 0,
) -> Needs:
    """Return the memory that training on a data set takes. Local.

    `ordering` is what sorting the scores takes; of `losses` on the data set `solves` are solved in one pass;
    `moments` are the bytes of the moments of a closed form, which scores `scored` models in one pass.

    Each rank holds w, unless the ranks of a node share it. It holds the product X'c of the transposed rows with a
    coefficient for each row, with a further copy for every thread but the first. MPI needs at most twice as much to
    sum X'c over the ranks; a description of the columns takes no more than this. A constant feature takes one more
    copy of X'c. Normalization takes the factors of the columns or of the rows, and the product with them.
    """
    kind = manifest.normalization.kind
    of_row = ordering.of_row if losses == 1 else ROW_BYTES
    row = (of_row + 16 * manifest.weights) * losses + 8 * (1 + solves) * (kind == "l2") + manifest.coded.factor_bytes
    row += 8 * scored
    rows = row * manifest.n
    data = held_bytes(manifest, manifest.n, manifest.nnz) + rows
    p = manifest.p + bias
    shared = layout.here > 1 and p >= SHARED_FROM
    each = moments + INTERPRETER + EXPANDING * (manifest.compression != "none") + thread_count() * work_bytes(manifest)
    columns = 8 * p * solves * (2 + (not shared) + thread_count() + bias)
    columns += 8 * p * (1 + solves) * (kind in BY_COLUMN)
    each += columns
    each, root = each + losses * int(ordering.held_by_each), losses * int(ordering.held_by_root)
    steps = ROOT_LIBRARIES + solves * settings.vectors_held(layout.longest(p))
    spread = layout.step == "spread"
    each, root, node = each + steps * spread, root + steps * (not spread), 8 * p * solves * shared
    buffers = buffer_bytes(manifest, thread_count())
    return Needs(data, each, root, node, rows, row, buffers, p, steps - ROOT_LIBRARIES, spread, columns + node)


def require(
    needed: Needs,
    ranks: int,
    here: list[int],
    there: int,
    allowed: float = math.inf,
    advise: Callable[[], str] = lambda: (
        f"Lower {option('history')}, {option('planes')} or {option('vector_memory')}, or use {option('step', 'spread')}"
    ),
    in_files: bool = True,
) -> None:
    """Raise InputError unless this node, which has `there` bytes, has the memory for its ranks `here`. Local.

    It is `LackOfMemory` if the node has too little; `allowed` bytes of a rank may also be too little even for
    streaming. `advise` returns a sentence on what helps if vectors take too much. Without `in_files`, the rows are in
    memory alone, and cannot be streamed.
    """
    own = [needed.of_rank(ranks) + needed.root * (rank == 0) for rank in here]
    least = [needed.least(ranks, rank == 0) for rank in here]
    if max(least) > allowed:
        root = 0 in here
        python = INTERPRETER + ROOT_LIBRARIES * (root or needed.spread)
        by_rows = needed.rows // ranks > needed.vectors(root) and needed.besides_rows(root) < allowed
        raise InputError(
            f"{option('memory', text=format_bytes(allowed))} is too little: {math.ceil(max(least) / 2**20)} MiB are "
            f"needed on {'the root' if root else 'a rank'}, even if all entries are streamed: "
            f"{needed.describe_least(ranks, root)}. "
            + (
                f"Allow more memory, since Python and its libraries alone take {format_bytes(python)}"
                if python >= allowed
                else "Allow more memory, or start more ranks: then each has fewer rows"
                if by_rows
                else marked(advise())
            )
        )
    wanted = sum(min(need, allowed) for need in own) + needed.node * (max(own) <= allowed)
    if wanted <= there:
        return
    text = (
        f"{len(here)} rank(s) on {os.uname().nodename} need {format_bytes(wanted)}, but only {format_bytes(there)} are "
        f"available ({format_bytes(needed.of_rank(ranks))} a rank, {format_bytes(needed.root)} more on the root). "
    )
    share = math.floor(there / len(here) / 2**20)
    share = (share // 64 * 64 if share >= 2**10 else share) * 2**20  # a round number, where little is lost by it
    limit = option("memory", share, text=f"{share // 2**20}MiB")
    stream = f"; or give {limit}: rows that do not fit are then read from the shards on each pass"
    if share < max(least):
        mib = math.ceil(max(least) / 2**20)
        limit = option("memory", mib * 2**20, text=f"{mib}MiB")
        enough = f"; if rows are read from the shards on each pass, {limit} is enough"
        share, stream = 0, enough if max(least) < max(own) else ""
    share *= in_files
    python = INTERPRETER + ROOT_LIBRARIES
    if python >= there / len(here):
        raise LackOfMemory(
            f"{text}Python and its libraries alone take {format_bytes(python)} on a rank with a solver: start fewer "
            "ranks on each node, or allow more memory"
        )
    fitting = needed.ranks_that_fit(len(here), there)
    if fitting is None:
        raise LackOfMemory(
            f"{text}More ranks alone do not help, since vectors take as much with more ranks: "
            f"{format_bytes(needed.vectors(True))} on {'each rank' if needed.spread else 'the root'} for vectors with a"
            f" number for each of the {needed.p} columns. {marked(advise())}{stream}",
            share=share,
        )
    raise LackOfMemory(
        text + f"It would fit with {fitting[0]} ranks, {fitting[1]} on each node with this memory" + stream,
        share=share,
    )


class LackOfMemory(InputError):
    """A node has too little memory to hold the rows of its ranks.

    Parameters
    ----------
    message, everywhere
        Those of `DistsmsError`.
    share : int
        The bytes that each rank may take if entries that do not fit are streamed; 0 if that is not enough.
    """

    def __init__(self, message: str, everywhere: bool = False, share: int = 0) -> None:
        super().__init__(message, everywhere)
        self.share = share


def memory_to_stream(make: Callable[[], Plan], comm: Communicator) -> int | None:
    """Return the bytes that each rank may take if some entries have to be streamed. **Collective**, one number.

    `make` makes this rank's plan, with which all rows are held. Returns None if the memory of all nodes suffices,
    and where streaming does not help: making the plan again raises then.
    """
    share: float = math.inf
    try:
        make()
    except LackOfMemory as lack:
        share = lack.share
    except InputError:
        share = 0
    least = min(comm.allgather(share))
    return int(least) if 0 < least < math.inf else None


def room(needed: Needs, allowed: float, root: bool) -> MemoryBudget:
    """Return the memory that the root, or another rank, has left for its rows if it may take `allowed` bytes. Local."""
    return MemoryBudget(int(allowed) - needed.besides_rows(root), needed.row)


@dataclass(frozen=True)
class Plan:
    """Decisions on a training that are made before its rows are read. `make_plan` makes a plan."""

    ordering: str  # how the scores of all rows are sorted, and where the solver's vectors are kept
    step: str
    reasons: tuple[str, str]  # why these two were chosen
    needs: Needs  # the memory that the run takes
    vector_bytes: int  # the bytes that the solver's vectors take, on each rank that holds some. `needs` includes them.
    available: int  # bytes of memory that this rank's node has
    allowed: float | None  # the most that a rank may take; None if it is not limited
    ranks: int  # the numbers of all ranks, and of those on this rank's node
    node_ranks: int
    scored: int = 0  # how many models of a closed form are scored in one pass; 0 if there is no closed form

    def room(self, root: bool) -> MemoryBudget | None:
        """Return what is left for rows on the root or on another rank; None if memory is not limited."""
        return None if self.allowed is None else room(self.needs, self.allowed, root)

    def describe(self, whole: bool) -> list[str]:
        """Return lines for users: a warning if threads share cores, and then ordering, step and memory.

        Ordering, step and memory are in one line. If `whole`, each has a line of its own, with the reasons.
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
                f"          at most {format_bytes(self.allowed)} on each rank (--memory); other entries are streamed"
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
    models: int = 1,
) -> Plan:
    """Choose the ordering and the step, and check that the memory of this rank's node suffices. Local.

    Parameters
    ----------
    manifest : Manifest
        The manifest of the data set.
    ranks : int
        The number of ranks.
    node_ranks : list of int
        The ranks that share this rank's node, see `Communicator.node_ranks`.
    ordering, step : str
        What the user asked for, or ``"auto"``.
    memory : float, optional
        The most bytes that each rank may take; rows that do not fit are streamed. With None all rows are held.
    bias : bool
        Whether there is a constant feature.
    losses, solves : int
        See `needs`.
    models : int
        The number of models, for all losses and lambdas.

    Raises
    ------
    InputError
        If the node has too little memory, or a library that is needed to read the shards is missing.
    """
    dataset.check_readable(manifest)
    p, n_pos, n_neg = manifest.p + bias, manifest.n_pos, manifest.n_neg
    ordering, why_ordering = choose_ordering(ordering, measure, n_pos, n_neg, ranks)
    step, why_step = choose_step(step, p, ranks)

    def cost_on(ranks: int) -> Cost:
        loss, entries = loss_class(measure, ordering), held_bytes(manifest, 0, manifest.nnz)
        cost = loss.cost(n_pos, n_neg, ranks)
        if loss.name not in LOSSES or losses > 1 or solves > 1 or manifest.coded:
            return cost
        each, root = settings.opening_held(manifest.n, p, ranks, entries, loss.smooth_by_itself)
        if loss.name in CURVED_LOSSES:
            each += settings.curvature_held(manifest.n, p, ranks, manifest.nnz)
        return cost._replace(held_by_each=cost.held_by_each + each, held_by_root=cost.held_by_root + root)

    cost, layout = cost_on(ranks), Layout(step, ranks, len(node_ranks))
    in_memory = 0 if manifest.in_memory is None else manifest.in_memory.nbytes
    there, allowed = available(held=len(node_ranks) * in_memory), memory or math.inf
    moments = bytes_of_moments(measure, manifest.n, manifest.p, manifest.nnz, bool(manifest.coded), losses, settings.l1)
    for scored in sorted({models, min(models, losses)}, reverse=True) if moments else ():
        needed = needs(manifest, settings, cost, layout, bias, losses, solves, moments, scored)
        if needed.least(ranks, True) <= allowed and needed.of_node(len(node_ranks), ranks) <= max(there, allowed):
            break
    else:
        scored, needed = 0, needs(manifest, settings, cost, layout, bias, losses, solves)

    def fits(settings: Settings, step: str, ranks: int, here: int) -> bool:
        other = needs(manifest, settings, cost_on(ranks), Layout(step, ranks, here), bias, losses, solves)
        enough = min(other.of_rank(ranks) + other.root, allowed) + (here - 1) * min(other.of_rank(ranks), allowed)
        return other.least(ranks, True) <= allowed and enough + other.node <= there

    smooth = Measure.parse(measure).smooth
    columns_matter = needed.least(ranks, True) - needed.vectors(True) < allowed
    require(
        needed,
        ranks,
        node_ranks,
        there,
        allowed,
        lambda: remedies.describe(settings, step, ranks, len(node_ranks), smooth, columns_matter, fits),
        in_files=not in_memory,
    )
    return Plan(
        ordering,
        step,
        reasons=(why_ordering, why_step),
        needs=needed,
        vector_bytes=solves * settings.vectors_held(layout.longest(p)),
        available=there,
        allowed=memory,
        ranks=ranks,
        node_ranks=len(node_ranks),
        scored=scored,
    )
