"""Snapshots: the state from which a run can be continued, as named numbers, tables and vectors."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from typing import Any, NamedTuple, TypeVar

from distsms.base.typing import Floats

T = TypeVar("T")


class Snapshot(NamedTuple):
    """The state of a run, or of a part of it, on a rank that runs the solver.

    The arrays are views of arrays that the run changes when it continues, so they must be written or copied at once.

    Parameters
    ----------
    numbers : mapping
        Values that can be written as JSON; the same on all ranks that run the solver.
    tables : mapping
        Arrays (k,) or (k, k), with k for example the number of planes; the same on all ranks that run the solver.
    vectors : mapping
        Rows, each of which is this rank's slice of a vector of length p. They can perhaps be read only once.
    """

    numbers: Mapping[str, Any] = {}
    tables: Mapping[str, Floats] = {}
    vectors: Mapping[str, Iterable[Floats]] = {}

    def under(self, name: str) -> Snapshot:
        """Return the snapshot with `name.` before each key, so that it can be joined to others."""
        return self._renamed(lambda key: f"{name}.{key}")

    def part(self, name: str) -> Snapshot:
        """Return the part whose keys begin with `name.`, without that prefix."""
        start = f"{name}."
        return self._renamed(lambda key: key.removeprefix(start) if key.startswith(start) else None)

    def joined(self, other: Snapshot) -> Snapshot:
        """Return the union of two snapshots that have no keys in common."""
        return Snapshot(
            {**self.numbers, **other.numbers}, {**self.tables, **other.tables}, {**self.vectors, **other.vectors}
        )

    def _renamed(self, rename: Callable[[str], str | None]) -> Snapshot:
        def renamed(values: Mapping[str, T]) -> dict[str, T]:
            return {name: value for key, value in values.items() if (name := rename(key)) is not None}

        return Snapshot(renamed(self.numbers), renamed(self.tables), renamed(self.vectors))
