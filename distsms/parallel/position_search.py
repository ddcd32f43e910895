"""Find the same order statistic (`distsms.parallel.order_statistics`) again and again while scores change, near the
last.

A pass surveys a bracket: the weight of the rows below, and the different positions in it. If the place is in it, with
at most `MOST` positions, all ranks receive these and sort them; else the next bracket is where it would be if rows were
spread evenly. After `SURVEYS` passes, `find_position` finds the place. The result does not depend on where it begins.
Cost of a pass: an Allreduce of 8 (P + 4) bytes; once an Allgather of at most 16 `MOST` bytes.
"""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from distsms.base.jit import njit
from distsms.base.typing import Floats
from distsms.parallel.communicator import Communicator
from distsms.parallel.order_statistics import ROWS_WIDE, BucketSearch, find_position
from distsms.parallel.order_statistics_kernels import BLOCK, LEFT_OUT, NEGATIVE

MOST = 1024  # the largest number of different positions in a bracket
EXPECTED = 256  # the number of rows that a narrower bracket would have if they were spread evenly
SURVEYS = 8  # a pass over the rows takes a tenth of what the first round of `find_position` takes
SLOTS_LOG2 = 11  # binary logarithm of the number of slots of the hash table for them
MIX = np.uint64(0x9E3779B97F4A7C15)  # an odd number; its product with a key has its random bits at the top


class PositionSearch:
    """The search of all ranks for one place, which is repeated while scores change; see `BucketSearch`."""

    def __init__(self, kinds: NDArray[np.uint8], target: float, weights: Floats | None, comm: Communicator) -> None:
        self._search, self.comm = BucketSearch(kinds, target, weights), comm
        self._places, one = np.empty((2**SLOTS_LOG2, 2)), np.empty(1)
        self._room = np.empty(BLOCK, np.uint8), one, one.view(np.uint64)
        of_none = None if weights is None else weights[:0]
        _survey(np.zeros(0), kinds[:0], of_none, 0.0, 0.0, 0.0, self._places, self._room)

    def find(self, scores: Floats, shift: float) -> float:
        """Return the place, `shift` added to negative rows; NaN if a score is not finite. **Collective.**"""
        place, radius, rows = self._find_in_brackets(scores, shift)
        if place is None:
            low, high = self._search.bracket
            place, radius = find_position(self._search, scores, shift, self.comm), (high - low) / 2
            rows = self._search.rows_in_bracket
        self._search.keep(place, radius, rows)
        return place

    def _find_in_brackets(self, scores: Floats, shift: float) -> tuple[float | None, float, float]:
        """Return the place, or None if no bracket had few positions, and the numbers for `keep`. **Collective.**"""
        search, lowest, highest = self._search, -np.inf, np.inf
        low, high = search.bracket
        for _ in range(SURVEYS):
            if not low < high:
                break
            *sums, m = _survey(scores, search.kinds, search.weights, shift, low, high, self._places, self._room)
            message = np.zeros(4 + self.comm.size)
            message[:4], message[4 + self.comm.rank] = sums, m
            wrong, below, within, rows, *counts = self.comm.sum(message).tolist()
            if wrong != 0.0:
                return np.nan, 0.0, 0.0
            lacking, radius = search.target - below, (high - low) / 2
            if 0 < lacking <= within and sum(counts) <= MOST:
                places = self.comm.allgather_rows(self._places[:m].ravel(), [2 * int(count) for count in counts])
                # Many rows at few places: the next bracket is narrower by a third only, since places are far apart.
                counted = max(sum(counts), min(rows, 1.5 * ROWS_WIDE))
                # The smallest of these up to which their weights add up to what is lacking.
                positions, weights = places.reshape(-1, 2)[np.argsort(places[::2])].T
                k = int(np.searchsorted(np.cumsum(weights), lacking))
                return float(positions[min(k, len(positions) - 1)]), radius, counted
            if within == 0:
                break
            # The place is not below `lowest`, and not above `highest`.
            if lacking <= 0:
                highest = low
            elif lacking > within:
                lowest = high
            else:
                lowest, highest = low, high
            middle, radius = low + lacking / within * (high - low), radius * EXPECTED / rows
            # Outside the bracket, the farther away the less sure.
            radius = max(radius, 0.5 * max(low - middle, middle - high))
            low, high = max(lowest, middle - radius), min(highest, middle + radius)
        return None, 0.0, 0.0


@njit(fastmath={"reassoc", "nsz"})
def _mark(scores, kinds, weights, shift, low, high, inside):  # type: ignore[no-untyped-def]
    """Mark rows in [low, high]; return their number, the weights below and in it, and 0 if all scores are finite."""
    some = below = within = 0
    wrong = 0.0
    for j in range(len(scores)):
        kind = kinds[j]
        place = scores[j] + (shift if kind == NEGATIVE else 0.0)
        here = 1 if kind != LEFT_OUT else 0
        under = here & (1 if place < low else 0)
        inside[j] = here & (1 if place >= low else 0) & (1 if place <= high else 0)
        some += inside[j]
        below += under if weights is None else under * weights[j]
        within += inside[j] if weights is None else inside[j] * weights[j]
        wrong += 0.0 * scores[j]
    return some, below, within, wrong


@njit()
def _survey(scores, kinds, weights, shift, low, high, places, room):  # type: ignore[no-untyped-def]
    """Collect the different positions in [low, high] and their weights in the first rows of `places` (slots, 2). Return
    0 if all scores are finite, the weight below `low`, weight and number of rows in the bracket, and the number of
    positions (a larger one beyond `MOST`). room: working space, (BLOCK,) uint8, (1,) float64 and the same as uint64.
    """
    inside, one, bits = room
    places[:, 1] = 0.0
    below = wrong = within = 0.0
    m = n_inside = 0
    for start in range(0, len(scores), BLOCK):
        stop = min(len(scores), start + BLOCK)
        of_block = None if weights is None else weights[start:stop]
        some, weight, weight_within, not_finite = _mark(
            scores[start:stop], kinds[start:stop], of_block, shift, low, high, inside
        )
        below += weight
        within += weight_within
        wrong += not_finite
        n_inside += some
        if some == 0 or m > MOST:
            continue
        for j in range(stop - start):
            if inside[j] == 0:
                continue
            a = 1.0 if weights is None else weights[start + j]
            if a == 0.0:  # it is so much smaller than others that it has vanished
                continue
            one[0] = scores[start + j] + (shift if kinds[start + j] == NEGATIVE else 0.0) + 0.0  # not -0.0
            slot = np.int64((bits[0] * MIX) >> np.uint64(64 - SLOTS_LOG2))
            while places[slot, 1] != 0.0 and places[slot, 0] != one[0]:
                slot = (slot + 1) & (len(places) - 1)
            m += places[slot, 1] == 0.0
            places[slot, 0] = one[0]
            places[slot, 1] += a
            if m > MOST:
                break
    count = 0
    for slot in range(len(places)):
        if places[slot, 1] != 0.0:
            places[count, 0], places[count, 1] = places[slot, 0], places[slot, 1]
            count += 1
    return wrong, below, within, n_inside, m
