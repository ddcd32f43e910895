"""Which parts of streamed rows stay in memory: no more than fit, and in every prefix about the same share."""

from __future__ import annotations

from itertools import accumulate, pairwise

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from distsms.matrix.blocks import Part
from distsms.shards.local_rows import KeptParts, evenly

pytestmark = pytest.mark.serial


def parts_of(sizes):
    """Return parts of 10 rows each with so many entries."""
    ends = accumulate(sizes, initial=0)
    return [Part(10 * k, 10 * k + 10, start, stop) for k, (start, stop) in enumerate(pairwise(ends))]


@given(st.lists(st.integers(0, 9), max_size=30), st.integers(0, 200))
def test_spread_evenly(sizes, most):
    parts, total = parts_of(sizes), sum(sizes)
    kept = evenly(parts, most)
    assert [part for part in parts if part in kept] == kept and sum(part.stop - part.start for part in kept) <= most
    if most >= total:
        assert kept == parts
        return
    for part in parts:
        used = sum(other.stop - other.start for other in kept if other.first <= part.first)
        assert 0 <= part.stop * most / total - used + 1e-9 <= max(sizes)


def test_entries_are_found_where_they_were_stored():
    parts, given_entries = parts_of([3, 0, 4, 2]), np.arange(9.0)
    kept = KeptParts(parts[1:3] + parts[3:], (np.empty(6), None))
    for part in parts:
        some = given_entries[part.start : part.stop], None
        assert kept.store(part, some) == (part is not parts[0])
    np.testing.assert_array_equal(kept.rows(45), np.arange(45) // 10 % 4 > 0)
    rows = np.array([35, 10, 29])
    entries = [parts[3].start, parts[1].start, parts[2].start + 3]
    np.testing.assert_array_equal(kept.arrays[0][entries[::2] + kept.shifts(rows)[::2]], given_entries[entries[::2]])
    assert kept.stored[20][1] is None and kept.shifts(rows[:0]).shape == (0,)
