"""What a run needs to go on from where it was: numbers, tables and vectors, by name."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any, NamedTuple, TypeVar

from distsms.utils.typing import Floats

T = TypeVar("T")


class Snapshot(NamedTuple):
    """The state of a run, or of a part of it, on a rank that steps. Views of what the run goes on with: not to be kept.

    numbers : ready for JSON.  tables : arrays (k,) or (k, k); numbers and tables are the same on all ranks that step.
    vectors : rows, each this rank's slice of a vector of length p.
    """

    numbers: Mapping[str, Any] = {}
    tables: Mapping[str, Floats] = {}
    vectors: Mapping[str, Sequence[Floats]] = {}

    def under(self, name: str) -> Snapshot:
        """The same as the part called `name` of something larger."""
        return self._renamed(lambda key: f"{name}.{key}")

    def part(self, name: str) -> Snapshot:
        """The part called `name`."""
        start = f"{name}."
        return self._renamed(lambda key: key.removeprefix(start) if key.startswith(start) else None)

    def joined(self, other: Snapshot) -> Snapshot:
        """Both, which have no names in common."""
        return Snapshot(
            {**self.numbers, **other.numbers}, {**self.tables, **other.tables}, {**self.vectors, **other.vectors}
        )

    def _renamed(self, rename: Callable[[str], str | None]) -> Snapshot:
        def renamed(things: Mapping[str, T]) -> dict[str, T]:
            return {name: one for key, one in things.items() if (name := rename(key)) is not None}

        return Snapshot(renamed(self.numbers), renamed(self.tables), renamed(self.vectors))
