"""The compiled loops of `distsms.parallel.order_statistics`, which explains positions, brackets and bits."""

from __future__ import annotations

import numpy as np

from distsms.base.jit import njit

BLOCK = 512  # number of rows that are processed together
LEFT_OUT, POSITIVE, NEGATIVE = 0, 1, 2  # kinds of rows
MOST = 1024  # the largest number of different positions in a bracket
SLOTS_LOG2 = 11  # binary logarithm of the number of slots of the hash table for them
MIX = np.uint64(0x9E3779B97F4A7C15)  # an odd number; its product with a key has its random bits at the top
SIGN = np.uint64(2**63)


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
def survey(scores, kinds, weights, shift, low, high, places, room):  # type: ignore[no-untyped-def]
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
    `width` others, if the bits before are `prefix`. Return 0 if all scores are finite. See `survey` for `room`.
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
        if kind != LEFT_OUT and a != 0.0 and key >> np.uint64(bits) == prefix:  # see `survey` for 0.0
            table[key & lowest, 0] += a
            table[key & lowest, 1] += 1.0
    return wrong
