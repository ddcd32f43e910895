"""ROCArea and pauc@beta without sorting: rows are counted into cells, and each cell then stands for its rows.

With q = s_i - 1 of the positive rows and b = s_j of the negative ones, t_ij = b - q. After one sum over ranks, every
rank knows the weight and the mean of each class in each cell, and solves the small problem of these by the paper's
Algorithm 4. A second pass over the scores looks up the coefficients. Since beta_ij = clip((mean b - mean q) / nu, 0, 1)
depends on the two cells alone, and both passes put a row into the same cell, the plane is exactly valid.

R is enclosed: from different cells, the sign of t is known. In a cell of size h, with the means alpha of q and beta of
b from its lower edge in units of h, the mean hinge is from max(0, beta - alpha) h to beta (1 - alpha) h. The R that is
returned is the upper end. If it is uncertain by more than `SHARE` of the gap to prove, the worst cells are divided; if
this does not help, the rows are sorted after all (`exact_class`), as they are where the smaller class is small and well
apart: there, sorting looks at few rows of the larger one.

Offsets in cells are whole numbers of small units, so that sums are the same to the bit on any number of ranks. Cost for
c cells: two passes over the scores, a sum of 32 c bytes over ranks, O(c) time, and `OF_ALL` bytes of memory for each.
"""

from __future__ import annotations

import math
from functools import cache, partial
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from distsms.base.communicator import Communicator
from distsms.base.typing import Floats, Labels
from distsms.losses import binned_kernels as kernel
from distsms.losses.base import DIVIDED, EXACT, FROM_CELLS, ROW_BYTES_IN_PLACE, SORTED, WIDE, Cost, LossValue
from distsms.losses.pairwise_kernels import TINY
from distsms.losses.rocarea import EVERYWHERE, RocAreaExchange, RocAreaRisk, all_finite, sums_in_order

EPS = float(np.finfo(float).eps)
PER_WIDTH = 4
"""At least so many cells for each width nu of the smoothing, within these limits:"""
FEWEST, MOST = 2**12, 2**16
OF_CELL = 16  # as many rows as this for each cell, or down to half as many; but at least FEWEST / 4 cells
OF_ALL = 800.0  # bytes for each of so many cells, which may be divided into three times as many
SHORTEST = 1e-290  # of a range
FINEST = 30  # an offset has at most so many bits
SHARE = 1e-3
"""A width of more than this share of the gap to prove is too large."""
LEAST = 1e-13  # no width is too large if it is smaller than this share of R + 1, which is what rounding may change
DIVISIONS = 3  # so often the worst cells are divided
UNDIVIDED = np.empty((2, 0), np.int64)  # in place of a table of how cells are divided
ROUNDINGS = 2**20
"""At most so many additions of numbers of cells follow one another on the way to R, d and c."""
LARGE, RARE = 2**18, 32
"""Loading the kernels that sort may pay if each rank has so many rows, and so many for each of the smaller class."""
SAMPLE, APART = 2**12, 0.25
"""So many rows of each rank show whether at most this share of the rows is in pairs with t > 0."""
SORTABLE = 2**30  # with more rows, what rounding may do to a sum over rows is no longer small beside a gap to prove
OF_ENTRY, OF_LOADING, SMALL_PART = 0.5, 2.5e7, 0.1
"""The steps of a product with X for each nonzero, those of loading the kernels that sort, and its part of a run."""


class Grid(NamedTuple):
    """Equal cells from low to high, and one more on each side; see `distsms.losses.binned_kernels`."""

    low: float
    high: float
    scale: float  # units for each 1 of the scores
    bits: int  # a cell has 2^bits units
    top: float  # the units at which the last cell, above the range, begins
    coarse: int  # the number of equal cells, with those on both sides
    unit: float  # the length of a unit
    above: tuple[bool, bool]  # whether there are negative and positive rows above the range
    fine: NDArray[np.int64] = UNDIVIDED  # (2, coarse): how these cells are divided, see `kernel`

    @classmethod
    def over(cls, low: float, high: float, cells: int, bits: int, high_b: float, high_q: float) -> Grid:
        """Divide a range into so many cells. If it is so short that floats would not tell them apart, it is longer."""
        high = max(high, low + max(4 * EPS * abs(low), SHORTEST))
        units = cells * 2.0**bits
        above, top, unit = (high_b > high, high_q > high), units + 2.0**bits, (high - low) / units
        return cls(low, high, units / (high - low), bits, top, cells + 2, unit, above)

    @property
    def cells(self) -> int:
        """The number of cells after the division."""
        return self.coarse if self.fine is UNDIVIDED else int(self.fine[0, -1]) + 1

    def edge(self, cell: int) -> float:
        """Return the place of the upper edge of a cell, from `low` on."""
        length = self.high - self.low
        if self.fine is UNDIVIDED:
            return min(cell * 2.0**self.bits * self.unit, length)
        k = int(np.searchsorted(self.fine[0], cell, "right")) - 1
        units = (k - 1.0) * 2.0**self.bits + (cell + 1 - self.fine[0, k]) * 2.0 ** self.fine[1, k]
        return float(min(units * self.unit, length))


class OfClass(NamedTuple):
    """The cells with rows of one class, in increasing order: their numbers, weights, and mean places from `low` on."""

    cell: NDArray[np.int64]
    weight: Floats
    mean: Floats


class Cells(NamedTuple):
    """The rows of all ranks, counted by cell."""

    neg: OfClass  # the cells with rows of each class
    pos: OfClass
    widths: Floats  # (cells,): the distance between the ends of the sum of the hinges of a cell's pairs
    grid: Grid
    below: float  # the sums of low - q and of b - high over the rows beyond the range
    above: float


class OfCells(NamedTuple):
    """The solution of the small problem. All but neg and pos is to be divided by m = A+ K."""

    R: float  # the sums over pairs of the hinge (its lower end), of the Huber hinge, and of beta
    R_mu: float
    beta: float
    neg: Floats  # (k,): c of a row of weight 1 in each cell of a class
    pos: Floats
    widths: Floats  # (cells,): by how much each cell makes the upper end larger


def is_sortable(n_pos: int, n_neg: int, n: int) -> bool:
    return min(n_pos, n_neg) <= EVERYWHERE and n <= SORTABLE


class RocAreaBins(RocAreaRisk):
    """The ROCArea risk without sorting; see the module's docstring."""

    exact_class: Any = RocAreaExchange
    may_be_apart = True
    """Whether rows are sorted where sorting passes over most of them; see `_are_apart`."""

    def __init__(self, labels: Labels, weights: Floats | None, comm: Communicator, *parameters: Any) -> None:
        super().__init__(labels, weights, comm, *parameters)
        self._kinds = labels if self._kept is None else labels * self._kept
        self._few: NDArray[np.int64] | None = None
        self._exact = cache(partial(self.exact_class, labels, weights, comm, *parameters))
        row_bits = max(math.ceil(math.log2(self.n)), 1)
        room = kernel.SUM_BITS - min(row_bits, kernel.COUNT_BITS), 62 - row_bits
        self._bits = min(FINEST, *room) if self.weights is None else FINEST
        self._most = min(max(2**row_bits // OF_CELL, FEWEST // 4), MOST)
        self._number = np.int64 if self.weights is None else np.float64
        smaller = min(self.n_pos, self.n_neg)
        if self.may_be_apart and self._sortable and self.n / comm.size >= max(LARGE, RARE * smaller):
            self._few = np.flatnonzero(self.positive if self.n_pos == smaller else self.negative)
        # Compile the kernels, or load them, before the first evaluation.
        none, grid = np.zeros(0), Grid.over(0.0, 1.0, 1, 1, 1.0, 1.0)
        kernel.extremes(none, self._kinds[:0])
        self._count_rows(none, grid, np.zeros((2, 6), self._number))
        self._look_up(none, grid, np.zeros(2))

    @property
    def _sortable(self) -> bool:
        return is_sortable(self.n_pos, self.n_neg, self.n)

    @property
    def additions(self) -> float:
        return self.n if self._sortable else self.coefficient_additions

    @property
    def coefficient_additions(self) -> float:
        return min(self.n, ROUNDINGS if self.weights is None else ROUNDINGS + kernel.BLOCK)

    @classmethod
    def cost(cls, n_pos: int, n_neg: int, size: int) -> Cost:
        # The cost with a usual number of cells, and the memory of the most, perhaps with sorting.
        n_local, most = (n_pos + n_neg) / size, max(FEWEST, min(MOST, (n_pos + n_neg) / OF_CELL))
        cells = min(most, MOST / 4)
        moved, steps = 0.0 if size == 1 else 64.0 * cells, 1.5e5 + 3.0 * n_local + 15.0 * cells
        held = OF_ALL * most
        if is_sortable(n_pos, n_neg, n_pos + n_neg):
            held += cls.exact_class.cost(n_pos, n_neg, size).held_by_each
        return Cost(moved, steps, held_by_each=held, of_row=ROW_BYTES_IN_PLACE)

    def exact_is_cheap(self, entries: float, evaluations: float) -> bool:
        exact = sum(self.exact_class.cost(self.n_pos, self.n_neg, self.comm.size)[:2])
        usual = sum(self.cost(self.n_pos, self.n_neg, self.comm.size)[:2])
        product = OF_ENTRY * entries
        part = SMALL_PART * evaluations * (2 * product + usual)
        return self._sortable and OF_LOADING + product + exact <= part

    def exact_risk(self, scores: Floats) -> float:
        return self._sorted(np.array(scores, np.float64), 0.0, EXACT).R

    def evaluate(self, scores: Floats, nu: float) -> LossValue:
        return self.evaluate_in_place(np.array(scores, np.float64), nu)

    def evaluate_in_place(self, scores: Floats, nu: float) -> LossValue:
        if self._are_apart(scores):
            return self._sorted(scores, nu)
        # 1) The range of the cells.
        extremes = self.comm.maximum(self._ends(scores)) * [-1.0, 1.0, -1.0, 1.0] - [1.0, 1.0, 0.0, 0.0]
        low_q, high_q, low_b, high_b = extremes.tolist()
        if not math.isfinite(high_q + high_b - low_q - low_b):
            return LossValue.undefined(scores)
        if high_b < low_q:  # all t < 0
            self.ways[FROM_CELLS] += 1
            scores[:] = 0.0
            return LossValue(0.0, 0.0, 0.0, scores)
        low, high = max(low_q, low_b - nu), self._upper_end(high_b, high_q + nu)
        if high < low:  # all t > nu
            low, high = high_q, low_b
        grid = Grid.over(low, high, self._cells(high - low, nu), self._bits, high_b, high_q)
        m = self.A_pos * self.K
        # Places are rounded down to whole units; beyond the range, and in q = s - 1, scores are rounded to floats.
        rounding = grid.unit + 2 * EPS * max(abs(low), abs(high), 1.0)
        # 2) The small problem, with the worst cells divided while R is uncertain.
        for division in range(DIVISIONS + 1):
            cells = self._count(scores, grid)
            solved = self._solve(cells, nu)
            R, width = solved.R / m, float(np.sum(solved.widths)) / m + 2 * rounding
            enough = max(SHARE * self.target(R), LEAST * (R + 1))
            if width <= enough or division == DIVISIONS or not math.isfinite(R):
                break
            finer = self._divide(grid, solved.widths, enough * m / 2)
            if finer is None:
                break
            grid = grid._replace(fine=finer)
        way = FROM_CELLS if grid.fine is UNDIVIDED else DIVIDED
        if width > enough or not math.isfinite(R):
            if self._sortable:
                return self._sorted(scores, nu)
            way = WIDE
        self.ways[way] += 1
        # 3) The coefficients.
        table = np.zeros(2 * len(cells.widths))
        table[2 * cells.neg.cell], table[2 * cells.pos.cell + 1] = solved.neg, solved.pos
        self._look_up(scores, grid, table)
        R += width - rounding
        return LossValue(R, solved.R_mu / m if nu > 0 else R, solved.beta / m, scores, width)

    def _sorted(self, scores: Floats, nu: float, way: str = SORTED) -> LossValue:
        """Evaluate the loss by sorting the rows, perhaps in place of the scores. **Collective.**"""
        self.ways[way] += 1
        value: LossValue = self._exact().evaluate_in_place(scores, nu)
        return value

    def _are_apart(self, scores: Floats) -> bool:
        """Return whether the classes are so far apart, by a sample, that sorting is the fastest. **Collective.**"""
        if self._few is None:
            return False
        sign = 1.0 if self.n_pos <= self.n_neg else -1.0
        lowest = -self.comm.maximum(np.max(-sign * scores[self._few], initial=-np.inf, keepdims=True))
        sample = sign * scores[:: max(len(scores) // SAMPLE, 1)]
        paired, rows = self.comm.sum(np.array([np.count_nonzero(sample > lowest - 1.0), len(sample)], float))
        return bool(paired <= APART * rows)

    def _upper_end(self, high_b: float, high_q_nu: float) -> float:
        """Return where the cells end, from the largest b and the largest q + nu."""
        return min(high_b, high_q_nu)

    def _solve(self, cells: Cells, nu: float) -> OfCells:
        """Solve the small problem. Local; the result is the same on every rank."""
        neg, pos = cells.neg, cells.pos
        sums = sums_in_order(pos.mean, neg.mean, nu, pos.weight, neg.weight)
        beyond = self.A_neg * cells.below + self.A_pos * cells.above
        beta = float(np.sum(pos.weight * sums.gamma_pos))
        return OfCells(
            R=sums.hinge + beyond,
            R_mu=sums.huber + beyond,
            beta=beta,
            neg=sums.gamma_neg / self.A_neg / self.A_pos,
            pos=-sums.gamma_pos / self.A_pos / self.A_neg,
            widths=cells.widths,
        )

    def _ends(self, scores: Floats) -> Floats:
        """Return -least and largest score of each class, infinite if a score is not finite, (4,). Local."""
        ends = np.full(4, np.inf)
        if all_finite(scores):
            ends[:] = kernel.extremes(scores, self._kinds)
            ends[::2] *= -1.0
        return ends

    def _cells(self, length: float, nu: float) -> int:
        """Return the number of cells, a power of two: those of one cell make R uncertain by its length squared."""
        most, size = self._most, 2 * math.sqrt(SHARE * self.target(0.0))
        size = min(size, nu / PER_WIDTH) if nu > 0 else size
        cells = most if size * most <= length else max(length / size, FEWEST)
        return min(2 ** math.ceil(math.log2(cells)), most)

    def _count(self, scores: Floats, grid: Grid) -> Cells:
        """Count the rows of all ranks. Collective: 32 bytes for each cell are summed."""
        cells = grid.cells
        totals, beyond = np.zeros((2, 2 * cells), self._number), np.zeros(2)
        beyond[:] = self._count_rows(scores, grid, totals)
        counts, sums = self.comm.sum(totals.ravel()).reshape(2, -1)
        below, above = self.comm.sum(beyond).tolist()
        (weight, mean), number, widths = np.empty((2, 2, cells)), np.empty((2, cells), np.int64), np.empty(cells)
        length = grid.high - grid.low
        # A row beyond the range is on its side of a row at the end of the range, which at nu = 0 matters to beta.
        ends = np.array([[-TINY, np.nextafter(length, np.inf) if beyond_it else length] for beyond_it in grid.above])
        lengths = kernel.summarize(counts, sums, grid.bits, grid.unit, ends, grid.fine, weight, mean, number, widths)
        neg, pos = (OfClass(number[row, :end], weight[row, :end], mean[row, :end]) for row, end in enumerate(lengths))
        return Cells(neg, pos, widths, grid, below, above)

    def _count_rows(self, scores: Floats, grid: Grid, totals: NDArray[Any]) -> tuple[float, float]:
        """Add numbers, or weights, and sums of offsets to totals (2, 2 cells); return the sums beyond. Local."""
        where = grid.low, grid.high, grid.scale, grid.bits, grid.top, grid.fine
        kinds, weights = self._kinds[: len(scores)], self.weights
        if weights is None:
            return kernel.count(scores, kinds, *where, np.zeros_like(totals[0]), *totals)
        below = above = 0.0
        for start in range(0, max(len(scores), 1), kernel.BLOCK):  # so that rounding errors do not grow with the rows
            rows, of_block = slice(start, start + kernel.BLOCK), np.zeros_like(totals)
            more = kernel.weigh(scores[rows], kinds[rows], weights[rows], *where, *of_block)
            totals += of_block
            below, above = below + more[0], above + more[1]
        return below, above

    def _look_up(self, scores: Floats, grid: Grid, table: Floats) -> None:
        """Write the coefficients of the local rows in place of their scores. Local."""
        low, scale, kinds = grid.low, grid.scale, self._kinds[: len(scores)]
        kernel.look_up(scores, kinds, self.weights, low, scale, grid.bits, grid.top, grid.fine, table, scores)

    def _divide(self, grid: Grid, widths: Floats, enough: float) -> NDArray[np.int64] | None:
        """Return the `fine` of a grid whose worst cells are divided; None if that is of no use. Local."""
        shift, of_coarse = np.full(grid.coarse, grid.bits), widths
        if grid.fine is not UNDIVIDED:
            shift, of_coarse = grid.fine[1], np.add.reduceat(widths, grid.fine[0])
        order = np.argsort(-of_coarse, kind="stable")
        rest = np.cumsum(of_coarse[order][::-1])[::-1]
        worst = order[: np.count_nonzero(rest > enough)]
        worst = worst[of_coarse[worst] > 0]
        if not (0 < len(worst) <= self._most // 2):
            return None
        finer = shift.copy()
        finer[worst] = np.minimum(finer[worst] - 1, max(grid.bits - int(math.log2(self._most / len(worst))), 0))
        if finer.min() < 0 or np.array_equal(finer, shift):
            return None
        count = 2 ** (grid.bits - finer)
        return np.array([np.cumsum(count) - count, finer])
