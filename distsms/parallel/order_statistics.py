"""Find the k-th largest score over all ranks, and places of weighted rows, with a few small Allreduces.

Each row has a position: its score, plus a shift if it is negative. The place that is searched for is the smallest
position at which the weight of all rows up to it reaches a target. A pass surveys a bracket, at first near the last
place, or where a sample says: the weight of the rows below, and the different positions in it. If the place is in it,
with at most `MOST` positions, all ranks receive these and sort them; else the next bracket is where it would be if rows
were spread evenly. After `SURVEYS` passes, the bits of all positions are counted, until few rows are left.

Cost of a pass on P ranks: an Allreduce of 8 (P + 4) bytes; of one that counts bits 16 KiB, and at most seven are
needed; once an Allgather of at most 16 `MOST` bytes, and of 16 `SAMPLE` in the first two searches.
"""

from __future__ import annotations

import math
import struct
import sys
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from distsms.base.communicator import Communicator
from distsms.base.errors import InputError
from distsms.base.jit import njit
from distsms.base.typing import Floats

BLOCK = 512  # number of rows that are processed together
LEFT_OUT, POSITIVE, NEGATIVE = 0, 1, 2  # kinds of rows
MOST = 1024  # the largest number of different positions in a bracket
SLOTS_LOG2 = 11  # binary logarithm of the number of slots of the hash table for them
MIX = np.uint64(0x9E3779B97F4A7C15)  # an odd number; its product with a key has its random bits at the top
SIGN = np.uint64(2**63)
FEW = 2**17  # up to so many rows of all ranks are sorted by each of them
SURVEYS = 8
EXPECTED = 256  # the number of positions that the next bracket would have if they were spread evenly
SAMPLE, SPREAD = 2**11, 1.5  # the ranks' sample, of m rows, shows the place to within SPREAD sqrt(m) of its rows
MOVES_WIDE = 1.0  # the first bracket extends to both sides of the last place by this many times its last change,
ROWS_WIDE = 128  # and by so much that it contains about this many rows
BITS = 10  # the bits that are counted in a pass


class Survey(NamedTuple):
    """What the rows of all ranks are in a bracket."""

    finite: bool  # whether all scores are
    below: float  # the weight below the bracket, and in it
    within: float
    rows: float  # the number of rows in it
    positions: list[float]  # of each rank, the number of its different positions in it


class PositionSearch:
    """The search of all ranks for one place, which is repeated while scores change: for a `target` above 0 and at most
    the sum of the weights, whose mean is about 1. `kinds` is LEFT_OUT, POSITIVE or NEGATIVE for each row.
    """

    def __init__(self, kinds: NDArray[np.uint8], target: float, weights: Floats | None, comm: Communicator) -> None:
        self._kinds, self._weights, self.comm = kinds, weights, comm
        self._target = float(target)
        self._positions, one = np.empty((2**SLOTS_LOG2, 2)), np.empty(1)
        self._room = np.empty(BLOCK, np.uint8), one, one.view(np.uint64)
        self._last: float | None = None  # the last place
        self._radius = 0.0  # the next search begins this far to both sides of it
        of_none = None if weights is None else weights[:0]
        # Compile the loop now, or load it.
        survey_rows(np.zeros(0), kinds[:0], of_none, 0.0, 0.0, 0.0, self._positions, self._room)

    def find(self, scores: Floats, shift: float) -> float:
        """Return the place, `shift` added to negative rows; NaN if a score is not finite. **Collective.**"""
        if self._last is None or not self._radius:  # in the first two searches
            low, high = self._sampled(scores, shift)
        else:
            low, high = self._last - self._radius, self._last + self._radius
        lowest, highest = -math.inf, math.inf
        for _ in range(SURVEYS):
            if not low <= high:
                break
            survey = self._survey(scores, shift, low, high)
            lacking, radius, positions = self._target - survey.below, (high - low) / 2, sum(survey.positions)
            if not survey.finite:
                return math.nan
            if 0 < lacking <= survey.within and positions <= MOST:
                return self._place(survey, radius)
            # The place is not below `lowest`, and not above `highest`.
            if lacking <= 0:
                highest = low
            elif lacking > survey.within:
                lowest = high
            else:
                lowest, highest = low, high
            middle = low + (lacking / survey.within if survey.within else float(lacking > 0)) * (high - low)
            # Outside the bracket, the farther away the less sure. Positions count: there may be many rows at few.
            factor = EXPECTED / (max(positions, 1) if positions <= MOST else survey.rows)
            radius = max(radius * factor, 0.5 * max(low - middle, middle - high))
            low, high = max(lowest, middle - radius), min(highest, middle + radius)
            if not low <= high:  # it is where hardly a row was expected
                low, high = lowest, highest
        if (ends := self._by_bits(scores, shift)) is None:
            return math.nan
        low, high = ends
        return self._place(self._survey(scores, shift, low, high), (high - low) / 2)

    def _sampled(self, scores: Floats, shift: float) -> tuple[float, float]:
        """Return a bracket that probably contains the place, by a sample of the rows. **Collective.**"""
        step = max(1, -(-len(scores) * self.comm.size // SAMPLE))
        kinds = self._kinds[::step]
        rows = np.full((len(kinds), 2), float(step))
        rows[:, 0] = scores[::step] + shift * (kinds == NEGATIVE)
        if self._weights is not None:
            rows[:, 1] *= self._weights[::step]
        rows = rows[kinds != LEFT_OUT]
        counts = self.comm.allgather(2 * len(rows))
        places, weight = self.comm.allgather_rows(rows.ravel(), counts).reshape(-1, 2).T
        if not len(places):
            return math.inf, -math.inf
        order, spread = np.argsort(places), 1 + int(SPREAD * math.sqrt(len(places)))
        at = int(np.searchsorted(np.cumsum(weight[order]), self._target))
        low, high = order[max(at - spread, 0)], order[min(at + spread, len(order) - 1)]
        return float(places[low]), float(places[high])

    def _survey(self, scores: Floats, shift: float, low: float, high: float) -> Survey:
        """Survey the bracket [low, high]; this rank's positions are then in `_positions`. **Collective.**"""
        of_rank = survey_rows(scores, self._kinds, self._weights, shift, low, high, self._positions, self._room)
        message = np.zeros(4 + self.comm.size)
        message[:4], message[4 + self.comm.rank] = of_rank[:4], of_rank[4]
        total = self.comm.sum(message).tolist()
        return Survey(total[0] == 0.0, total[1], total[2], total[3], positions=total[4:])

    def _place(self, survey: Survey, radius: float) -> float:
        """Return the place, which is in the bracket that was surveyed last, and remember it. **Collective.**"""
        m = int(survey.positions[self.comm.rank])
        counts = [2 * int(count) for count in survey.positions]
        places = self.comm.allgather_rows(self._positions[:m].ravel(), counts).reshape(-1, 2)
        # The smallest of these up to which their weights add up to what is lacking, but for rounding.
        positions, weights = places[np.argsort(places[:, 0])].T
        k = int(np.searchsorted(np.cumsum(weights), self._target - survey.below))
        place = float(positions[min(k, len(positions) - 1)])
        # Many rows at few places: the next bracket is narrower by a third only, since places are far apart.
        rows = max(sum(survey.positions), min(survey.rows, 1.5 * ROWS_WIDE))
        if self._last is not None:
            seen = radius * min(1.0, ROWS_WIDE / max(rows, 1.0))
            self._radius = max(MOVES_WIDE * abs(place - self._last), seen, 2 * math.ulp(place))
        self._last = place
        return place

    def _by_bits(self, scores: Floats, shift: float) -> tuple[float, float] | None:
        """Return a bracket with the place and few positions; None if a score is not finite. **Collective.**"""
        # As whole numbers, bits are in the order of positions if the first is turned, or all of those below 0.
        prefix, width, below = 0, 64, 0.0
        table = np.empty((2**BITS + 1, 2))
        while width:
            # 1) Count the rows that begin with the prefix by their next bits.
            bits = min(BITS, width)
            width -= bits
            table[:] = 0.0
            table[-1] = count_bits(
                scores, self._kinds, self._weights, shift, np.uint64(prefix), width, bits, table, self._room
            )
            weight, rows = self.comm.sum(table.ravel()).reshape(table.shape).T
            if weight[-1] != 0.0:
                return None
            # 2) Those are the bits of the place with which the weight reaches the target, but for rounding.
            some = np.flatnonzero(rows[:-1])
            reach = below + np.cumsum(weight[some])
            k = min(int(np.searchsorted(reach, self._target)), len(some) - 1)
            prefix, below = prefix << bits | int(some[k]), float(reach[k] - weight[some[k]])
            if rows[some[k]] < MOST:
                break
        return _position(prefix << width), _position((prefix + 1 << width) - 1)


def _position(key: int) -> float:
    """Return the position with these bits, see `_by_bits`; the largest number in place of infinite ones."""
    position: float = struct.unpack("d", struct.pack("Q", key ^ (2**63 if key >> 63 else 2**64 - 1)))[0]
    return position if math.isfinite(position) else math.copysign(sys.float_info.max, (key >> 63) - 0.5)


def select(scores: Floats, k: int, comm: Communicator) -> float:
    """Return the k-th largest of all scores, or NaN; InputError if there are fewer. **Collective**; O(n_local)."""
    n = int(comm.sum(np.array([len(scores)]))[0])
    if not 1 <= k <= n:
        raise InputError(f"k = {k} is not possible with {n} scores: choose k from 1 to {n}", everywhere=True)
    scores = np.ascontiguousarray(scores, np.float64)
    if n <= FEW:
        ordered = np.sort(comm.allgather_rows(scores, comm.allgather(len(scores))))
        return float(ordered[n - k]) if np.isfinite(ordered).all() else math.nan
    return PositionSearch(np.full(len(scores), POSITIVE, np.uint8), n - k + 1, None, comm).find(scores, 0.0)


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
def survey_rows(scores, kinds, weights, shift, low, high, places, room):  # type: ignore[no-untyped-def]
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


@njit()
def count_bits(scores, kinds, weights, shift, prefix, width, bits, table, room):  # type: ignore[no-untyped-def]
    """Add weights and numbers of rows to table (2^bits + 1, 2), by those bits of their positions that are followed by
    `width` others, if the bits before are `prefix`. Return 0 if all scores are finite. See `survey_rows` for `room`.
    """
    _, one, as_bits = room
    lowest = np.uint64((1 << bits) - 1)
    wrong = 0.0
    for j in range(len(scores)):
        kind = kinds[j]
        wrong += 0.0 * scores[j]
        one[0] = scores[j] + (shift if kind == NEGATIVE else 0.0) + 0.0  # not -0.0
        key = ~as_bits[0] if as_bits[0] >= SIGN else as_bits[0] | SIGN
        key >>= np.uint64(width)
        a = 1.0 if weights is None else weights[j]
        if kind != LEFT_OUT and a != 0.0 and key >> np.uint64(bits) == prefix:  # see `survey_rows` for 0.0
            table[key & lowest, 0] += a
            table[key & lowest, 1] += 1.0
    return wrong
