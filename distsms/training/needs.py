"""What a run needs of the memory of its ranks and nodes."""

from __future__ import annotations

from dataclasses import dataclass

from distsms.base.formatting import format_bytes


@dataclass(frozen=True)
class Needs:
    """Bytes of memory that a run takes."""

    data: int  # the bytes of all entries and rows, which are divided among the ranks
    each: int  # the bytes on every rank; what the root takes in addition; and what the ranks of a node share
    root: int
    node: int = 0
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

    def least(self, ranks: int, root: bool) -> int:
        """Return the bytes that a rank needs at least.

        It then streams all its entries, or holds them if they take less than the buffers for streaming.
        """
        entries = (self.data - self.rows) // ranks
        return self.besides_rows(root) + self.rows // ranks + min(self.buffers, entries)

    def vectors(self, root: bool) -> int:
        """Return the bytes of the vectors with a number for each column on the root, or on another rank."""
        return self.columns + self.solver * (root or self.spread)

    def describe_least(self, ranks: int, root: bool) -> str:
        """Return in words what takes the bytes of `least`."""
        vectors, whole = self.vectors(root), self.least(ranks, root)
        rows = whole - self.besides_rows(root)
        solver = f", {format_bytes(vectors - self.columns)} of them for the solver" if vectors > self.columns else ""
        return (
            f"{format_bytes(vectors)} for vectors with a number for each of the {self.p} columns{solver}; "
            f"{format_bytes(rows)} for labels, scores and buffers; {format_bytes(whole - rows - vectors)} for Python,"
            " its libraries and what sorts scores"
        )

    def of_node(self, here: int, ranks: int) -> int:
        """Return the bytes that a run takes on a node with `here` of its ranks, one of which is the root."""
        return here * self.of_rank(ranks) + self.node + self.root

    def ranks_that_fit(self, here: int, there: int) -> tuple[int, int] | None:
        """Return a number of ranks with which the run fits on nodes of `there` bytes, and the number on each node.

        There are at most `here` ranks on each node. The result is None if the run fits with no number of ranks.
        """
        for on_node in range(here, 0, -1):
            room = there - self.root - self.node - on_node * self.each
            if room > 0:
                return max(on_node, -(-on_node * self.data // room)), on_node
        return None

    def in_words(self, ranks: int, here: int) -> str:
        """Return a text on the needs, for `ranks` ranks of which `here` are on a node."""
        words = [f"{format_bytes(self.of_rank(ranks))} on each rank"]
        words += [f"{format_bytes(self.node)} more on each node"] if self.node and here > 1 else []
        words += [f"{format_bytes(self.root)} more on the root"] if self.root else []
        return ", ".join(words)
