"""The parts of streamed rows that stay in memory.

They are spread evenly over the rows. So they are a sample of all rows, also where a file is in order of time.
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
from numpy.typing import NDArray

from distsms.matrix.blocks import Entries, Part


def evenly(parts: Sequence[Part], max_entries: int) -> list[Part]:
    """Return some of the parts, spread evenly, which have together at most so many entries (or rows, if dense)."""
    sizes = [part.stop - part.start for part in parts]
    share = min(1.0, max_entries / max(sum(sizes), 1))
    passed, used, kept = 0, 0, []
    for part, size in zip(parts, sizes, strict=True):
        passed += size
        if used + size <= share * passed:
            kept.append(part)
            used += size
    return kept


class KeptParts:
    """Parts in memory, in the order of their rows, one behind the other in arrays that have room for them.

    `stored` has the entries of each part that has been stored, by the part's first row.
    """

    def __init__(self, parts: list[Part], arrays: Entries) -> None:
        self.arrays = arrays
        self.stored: dict[int, Entries] = {}
        self._parts = parts
        begins = np.cumsum([0, *(part.stop - part.start for part in parts)])[:-1]
        self._begins = {part.first: int(begin) for part, begin in zip(parts, begins, strict=True)}

    def store(self, part: Part, entries: Entries) -> bool:
        """Copy the entries of a part, if it is to stay. Return whether it is."""
        if part.first not in self._begins:
            return False
        begin = self._begins[part.first]
        place = slice(begin, begin + part.stop - part.start)
        self.stored[part.first] = tuple(None if array is None else array[place] for array in self.arrays)
        for array, values in zip(self.stored[part.first], entries, strict=True):
            if array is not None:
                array[:] = values
        return True

    def rows(self, n_local: int) -> NDArray[np.bool_]:
        """Return which of the local rows are in these parts, (n_local,)."""
        kept = np.zeros(n_local, bool)
        for part in self._parts:
            kept[part.first : part.last] = True
        return kept

    def shifts(self, rows: NDArray[np.intp]) -> NDArray[np.int64]:
        """Return, for rows of these parts, how much farther they are in `arrays` than in arrays of all parts, (k,)."""
        firsts = np.array([part.first for part in self._parts], np.int64)
        moved = np.array([self._begins[part.first] - part.start for part in self._parts], np.int64)
        return moved[np.searchsorted(firsts, rows, side="right") - 1]
