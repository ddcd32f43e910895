"""`DeviceFeatures`: the rows of a rank on its device, and the products with them. Rows that do not fit pass through two
buffers in each product, from pages of the host's memory that are locked; copying overlaps with computing.

The host keeps the rows, too. What is asked for once in a run (statistics of columns, bounds on rounding) it computes.

X'c is rounded to units. With |c_i| at most m and their sum at most S, and 2^(e-1) < max_i |x_ij| <= 2^e, a unit of
column j is 2^(e - s), where 2^s m < 2^(3 bits - 1), which the limbs hold (dense columns have none), and 2^s S <= 2^60:

- bits = 16 where m <= 2^-7, so s >= 53; else 19, so s >= 54 for m <= 2. And 2^60 / S >= 2^59 for S <= 2.
- A term is wrong by half a unit, so r_j by N_j 2^(e - s - 1) <= N_j eps/2 max_i |x_ij| for N_j entries, eps = 2^-52.
- Beyond that, each product is rounded three times at most and the result twice: 8 eps max_i |x_ij| in all.

The bound of the processor, (N_j + 8) eps max_i |x_ij| (docs/theory/rounding.md), holds as it is: there it is needed for
sums in float64, and whole numbers are added without an error. X w is summed in float64, in the order of the columns.
"""

from __future__ import annotations

import contextlib
import math
from abc import ABC, abstractmethod
from collections.abc import Iterator, Sequence
from itertools import accumulate, pairwise
from typing import Any, NamedTuple

import numpy as np
from numba import cuda
from numpy.typing import NDArray

from distsms.base.errors import InputError
from distsms.base.formatting import format_bytes
from distsms.base.typing import Floats
from distsms.base.wording import option
from distsms.device import product_kernels as kernel
from distsms.device import runtime
from distsms.device.runtime import SIMULATED, TILE, DeviceVector, blocks_for, launch, tiles_of
from distsms.matrix.augmented import with_bias
from distsms.matrix.base import ColumnStatistics, Features, RowEntries
from distsms.matrix.blocks import LocalRows
from distsms.matrix.code_maps import Categories
from distsms.matrix.coded import CodedRows
from distsms.matrix.local import DenseRows, SparseRows
from distsms.matrix.side_by_side import SideBySide

BLOCK = 2**12 if SIMULATED else 2**30
"""Bytes of a block of rows, which is copied and computed at a time."""
ROW_BYTES = 17
"""Bytes on the device for each row besides its entries: scores or coefficients, class, and weight."""
SAMPLE = 2**20
"""From so many codes or entries it is found which columns are frequent."""


class Scale(NamedTuple):
    """How coefficients become whole numbers: see the module's docstring."""

    limbs: int  # s of sums that are kept in limbs
    whole: int  # s of sums that are kept in 64 bits from the beginning
    bits: int  # of a limb

    @classmethod
    def of(cls, most: float, total: float) -> Scale:
        """Return the scale for max |c_i| and sum |c_i|."""
        bits = 16 if most <= 2.0**-7 else 19
        whole = min(60 - int(_exponents(total)), 300)
        return cls(min(3 * bits - 2 - int(_exponents(most)), whole), whole, bits)

    @property
    def together(self) -> int:
        """The number of tiles after which limbs are emptied."""
        return 2 ** (32 - self.bits) // TILE


class Block(NamedTuple):
    """Some rows of a group, on the device or, where they are yet to be copied, on the host."""

    tiles: Any  # see `distsms.device.product_kernels`
    arrays: tuple[Any, ...]  # with the entries
    stream: Any = 0  # where kernels that use them are started

    def start(self, kernel: Any, *arguments: Any, scale: Scale | None = None, across: int = 1) -> None:
        """Start a kernel on these rows, with `across` blocks for some tiles: for one, or as many as limbs hold."""
        together = 1 if scale is None else scale.together
        blocks = blocks_for(-(-self.tiles.shape[0] // together) * TILE), across
        launch(kernel, blocks, self.tiles, *self.arrays, *arguments, stream=self.stream, wide=scale is not None)


class Group(ABC):
    """A group of columns of one kind, in blocks, of which the first are on the device."""

    in_limbs = True
    """Whether sums are kept in limbs, which limit the scale, or in 64 bits from the beginning."""

    def __init__(self, rows: LocalRows, largest: Floats) -> None:
        self.rows, self._streams = rows, [cuda.stream(), cuda.stream()]
        self.p, self._of_columns = rows.shape[1], rows.column_factors
        self._factors = cuda.to_device(np.ascontiguousarray(rows.row_factors, np.float64))
        self._w = cuda.to_device(np.zeros(self.p + 1))  # the last is for codes that are missing
        self._totals, self._sums = cuda.device_array(self.p, np.int64), cuda.device_array(self.p, np.float64)
        self._resident, self._streamed = list[Block](), list[Block]()
        self._buffers: list[list[Any]] = []
        self._kept: tuple[int | None, Any] = None, None  # see `_units`
        self._exponents = _exponents(largest)

    @abstractmethod
    def pieces(self) -> Iterator[Block]:
        """Yield the tiles of each block, and the host's arrays with its entries."""

    @abstractmethod
    def dot(self, block: Block, out: Any) -> None:
        """Add the scores of a block's rows to `out`."""

    @abstractmethod
    def add(self, block: Block, c: Any, scale: Scale) -> None:
        """Add the terms of a block's rows to the sums."""

    def least_room(self) -> int:
        """Return the bytes that the group needs at least: those of all its blocks, or of two buffers."""
        sizes = [sum(array.nbytes for array in block.arrays) for block in self.pieces()]
        return min(sum(sizes), 2 * max(sizes, default=0))

    def place(self, room: float, pinned: contextlib.ExitStack) -> float:
        """Copy blocks to the device as long as they fit into `room` bytes; return what is left of it."""
        pieces = list(self.pieces())
        bytes_of = [sum(array.nbytes for array in arrays) for _, arrays, _ in pieces]
        buffers = 2 * max(bytes_of, default=0) if sum(bytes_of) > room else 0
        _require(room, buffers, self.rows.shape)
        left = room - buffers
        for (tiles, arrays, _), size in zip(pieces, bytes_of, strict=True):
            on_device = cuda.to_device(tiles)
            if size <= left and not self._streamed:
                left -= size
                self._resident.append(Block(on_device, tuple(map(cuda.to_device, arrays))))
            else:
                self._streamed.append(Block(on_device, arrays))
        if self._streamed:
            of_blocks = list(zip(*(block.arrays for block in self._streamed), strict=True))
            longest = [(max(1, *map(len, arrays)), arrays[0].dtype) for arrays in of_blocks]
            self._buffers = [[cuda.device_array(length, dtype) for length, dtype in longest] for _ in self._streams]
            for number, array in enumerate(self.rows.arrays):
                if array is not None:  # its end, since the first blocks are on the device
                    last = sum(len(block.arrays[number]) for block in self._streamed)
                    pinned.enter_context(cuda.pinned(array.reshape(-1)[array.size - last :]))
        return left

    @property
    def bytes_per_pass(self) -> int:  # to the device
        return sum(array.nbytes for block in self._streamed for array in block.arrays)

    def margins(self, w: Floats, out: Any) -> None:
        """Add X w of these columns to `out` (n_local,) on the device."""
        w = w * self.rows.column_factors if len(self.rows.column_factors) else w
        self._w[: self.p].copy_to_device(np.ascontiguousarray(w))
        for block in self._passing():
            self.dot(block, out)

    def transposed_times(self, c: Any, scale: Scale, out: Floats) -> None:
        """Write X'c of these columns to `out` (p,) on the host, for c on the device."""
        launch(runtime.fill, blocks_for(self.p), self._totals, 0)
        for block in self._passing():
            self.add(block, c, scale)
        launch(runtime.quotients, blocks_for(self.p), self._totals, self._units(scale), self._sums)
        self._sums.copy_to_host(out)
        if len(self._of_columns):
            out *= self._of_columns

    def _passing(self) -> Iterator[Block]:
        yield from self._resident
        for number, (tiles, arrays, _) in enumerate(self._streamed):
            # A stream copies a block only after it has computed with the one before in the same buffer.
            stream, views = self._streams[number % 2], []
            for array, buffer in zip(arrays, self._buffers[number % 2], strict=True):
                views.append(buffer[: len(array)])
                if len(array):
                    views[-1].copy_to_device(array, stream=stream)
            yield Block(tiles, tuple(views), stream)
        if self._streamed:
            cuda.synchronize()

    def _units(self, scale: Scale) -> Any:
        """Return the units of the columns in 1, which change rarely."""
        digits = scale.limbs if self.in_limbs else scale.whole
        if self._kept[0] != digits:
            self._kept = digits, cuda.to_device(np.ldexp(1.0, digits - self._exponents))
        return self._kept[1]


class DenseGroup(Group):
    rows: DenseRows
    in_limbs = False

    def pieces(self) -> Iterator[Block]:
        (array,) = self.rows.arrays
        for first, last in _steps(len(array), array[:1].nbytes):
            tiles = _tiles(first, last)
            tiles[:, 2] = (tiles[:, 0] - first) * self.p
            yield Block(tiles, (array[first:last].ravel(),))

    def dot(self, block: Block, out: Any) -> None:
        block.start(kernel.dot_dense, self._w[: self.p], self._factors, out)

    def add(self, block: Block, c: Any, scale: Scale) -> None:
        across = -(-self.p // runtime.THREADS)
        block.start(kernel.add_dense, c, self._factors, self._units(scale), self._totals, across=across)


class SparseGroup(Group):
    rows: SparseRows

    def __init__(self, rows: SparseRows, largest: Floats) -> None:
        super().__init__(rows, largest)
        entries = rows.row_entries()
        assert entries is not None
        self._entries, columns = entries, rows.arrays[0]
        lengths = entries.ends - entries.begins
        self._begins, self._lengths = cuda.to_device(entries.begins), cuda.to_device(lengths.astype(np.uint32))
        hot = _most_frequent(columns[:: 1 + len(columns) // SAMPLE], self.p)
        slots = np.full(self.p, -1, np.int16)
        slots[hot] = np.arange(len(hot))
        self._slots, self._hot = cuda.to_device(slots), cuda.to_device(hot[None])

    def pieces(self) -> Iterator[Block]:
        entries, columns, values = self._entries, self.rows.arrays[0], self.rows.arrays[1]
        n, row_bytes = self.rows.shape[0], sum(array.nbytes for array in self.rows.arrays if array is not None)
        for first, last in _steps(n, row_bytes // max(1, n)):
            # Rows may be stored in another order, but inside of 256 rows: those of a block lie together.
            start, stop = int(entries.begins[first:last].min()), int(entries.ends[first:last].max())
            tiles = _tiles(first, last)
            tiles[:, 2] = start
            yield Block(tiles, (columns[start:stop], np.empty(0) if values is None else values[start:stop]))

    def dot(self, block: Block, out: Any) -> None:
        block.start(kernel.dot_sparse, self._begins, self._lengths, self._w, self._factors, out)

    def add(self, block: Block, c: Any, scale: Scale) -> None:
        begins, lengths, slots, hot = self._begins, self._lengths, self._slots, self._hot
        factors, units, totals = self._factors, self._units(scale), self._totals
        block.start(kernel.add_sparse, begins, lengths, slots, hot, c, factors, units, scale.bits, totals, scale=scale)


class CodedGroup(Group):
    rows: CodedRows

    def __init__(self, rows: CodedRows, largest: Floats) -> None:
        super().__init__(rows, np.full(rows.shape[1], float(np.max(rows.row_factors, initial=0.0)) or 1.0))
        code_map = rows.code_map
        assert isinstance(code_map, Categories)
        self._exponent = int(self._exponents[0])
        self._offsets, self._values = cuda.to_device(code_map.offsets), cuda.to_device(code_map.factors)
        slots, hot = np.full(self.p, -1, np.int16), np.zeros((code_map.n_codes, kernel.HOT), np.uint32)
        for b, (start, size) in enumerate(zip(code_map.offsets, code_map.sizes, strict=False)):
            frequent = _most_frequent(self._sample(b), size) if size > kernel.HOT else np.arange(size)
            slots[start + frequent], hot[b, : len(frequent)] = np.arange(len(frequent)), frequent
        self._slots, self._hot = cuda.to_device(slots), cuda.to_device(hot)
        if np.any(code_map.factors != 1):
            of_codes = np.repeat(code_map.factors, code_map.sizes)
            self._of_columns = of_codes * self._of_columns if len(self._of_columns) else of_codes

    def _sample(self, b: int) -> NDArray[Any]:
        n_codes, (codes,) = self.rows.code_map.n_codes, self.rows.arrays
        of_block = [codes[i * n_codes + b * (j - i) :][: j - i] for i, j in pairwise(self.rows.cuts)]
        step = 1 + self.rows.shape[0] // SAMPLE
        return np.concatenate([np.empty(0, codes.dtype), *(some[::step] for some in of_block)])

    def pieces(self) -> Iterator[Block]:
        n_codes, (codes,) = self.rows.code_map.n_codes, self.rows.arrays
        most, begun = max(1, BLOCK // (n_codes * codes.itemsize)), list[tuple[int, int]]()
        for cut in pairwise(self.rows.cuts):
            if begun and cut[1] - begun[0][0] > most:
                yield self._piece(begun)
                begun = []
            begun.append(cut)
        if begun:
            yield self._piece(begun)

    def _piece(self, cuts: list[tuple[int, int]]) -> Block:
        n_codes, (codes,) = self.rows.code_map.n_codes, self.rows.arrays
        first, last = cuts[0][0], cuts[-1][1]
        of_cuts = [np.empty((0, 4), np.int64)]
        for start, stop in cuts:
            tiles = _tiles(start, stop)
            tiles[:, 2] = (start - first) * n_codes + tiles[:, 0] - start
            tiles[:, 3] = stop - start
            of_cuts.append(tiles)
        return Block(np.concatenate(of_cuts), (codes[first * n_codes : last * n_codes],))

    def dot(self, block: Block, out: Any) -> None:
        block.start(kernel.dot_codes, self._offsets, self._values, self._w, self._factors, out)

    def add(self, block: Block, c: Any, scale: Scale) -> None:
        offsets, slots, hot = self._offsets, self._slots, self._hot
        factors, totals = self._factors, self._totals
        unit, bits, across = math.ldexp(1.0, scale.limbs - self._exponent), scale.bits, len(offsets) - 1
        block.start(kernel.add_codes, offsets, slots, hot, c, factors, unit, bits, totals, scale=scale, across=across)


class DeviceFeatures:
    """The rows of a rank on its device, in `room` bytes; those of the host have to stay. May raise InputError."""

    bytes_per_pass = 0  # of files

    def __init__(self, rows: LocalRows | SideBySide, bias: float | None = None, room: float | None = None) -> None:
        groups = rows.groups if isinstance(rows, SideBySide) else [rows]
        for group in groups:
            _check(group)
        self._host: Features = with_bias(rows, bias)
        self.largest_terms, self.most_terms = self._host.largest_terms, self._host.most_terms
        self._bias, self.shape, self.nnz = bias or 0.0, self._host.shape, rows.nnz
        ends = [0, *accumulate(group.shape[1] for group in groups)]
        self._columns = [slice(start, stop) for start, stop in pairwise(ends)]
        self._statistics = self._host.columns()
        self._pinned = contextlib.ExitStack()
        self.close = self._pinned.close  # unlocks the pages of the host's memory
        room, besides = runtime.free_bytes() if room is None else room, _besides(groups, self.shape)
        _require(room, besides, self.shape)
        left = room - besides
        self._groups = list[Group]()
        for group, columns in zip(groups, self._columns, strict=True):
            of_columns = self._statistics.largest[columns].copy()
            if len(group.column_factors):
                of_columns /= np.abs(group.column_factors)
            kind = next(kind for rows_of, kind in KINDS.items() if isinstance(group, rows_of))
            self._groups.append(kind(group, of_columns))
        least = [one.least_room() for one in self._groups]
        for number, placed in enumerate(self._groups):
            of_later = sum(least[number + 1 :])  # so that these can be streamed
            left = placed.place(left - of_later, self._pinned) + of_later
        self._parts = cuda.device_array((tiles_of(self.shape[0]), 3), np.float64)

    @property
    def streamed(self) -> int:
        """The bytes that each product copies to the device: 0 if all rows are on it."""
        return sum(group.bytes_per_pass for group in self._groups)

    def score_buffer(self, k: int) -> list[DeviceVector]:
        return [DeviceVector.empty(self.shape[0]) for _ in range(k)]

    def margins(self, W: Floats, out: Any = None) -> Any:
        """Compute X w, on the device if `out` is a list of vectors there, else as an array of the host."""
        listed = [W] if W.ndim == 1 else list(W)
        vectors = self.score_buffer(len(listed)) if out is None or isinstance(out, np.ndarray) else out
        for w, scores in zip(listed, vectors, strict=True):
            scores[:] = self._bias * float(w[-1]) if self._bias else 0.0
            for group, columns in zip(self._groups, self._columns, strict=True):
                group.margins(w[columns], scores.array)
        if vectors is out:
            return out
        scores = np.array([np.asarray(vector) for vector in vectors]).reshape(*W.shape[:-1], -1)
        if out is None:
            return scores
        out[:] = scores
        return out

    def transposed_times(self, C: Any, out: Floats | None = None) -> Floats:
        """Compute X'c for vectors on the device or arrays of the host; the result is the host's."""
        single = isinstance(C, DeviceVector) or (isinstance(C, np.ndarray) and C.ndim == 1)
        listed: Sequence[Any] = [C] if single else C
        out = np.empty((*(() if single else (len(listed),)), self.shape[1])) if out is None else out
        for c, total in zip(listed, [out] if single else out, strict=True):
            vector = c if isinstance(c, DeviceVector) else DeviceVector.of(c)
            vector.start(runtime.sizes, self._parts)
            most, absolute, plain = runtime.folded(self._parts, 1).tolist()
            if not math.isfinite(absolute):
                total[:] = math.nan
                continue
            scale = Scale.of(max(most, 0.0), absolute)
            for group, columns in zip(self._groups, self._columns, strict=True):
                group.transposed_times(vector.array, scale, total[columns])
            if self._bias:
                total[-1] = self._bias * plain
        return out

    def columns(self, weights: Floats | None = None) -> ColumnStatistics:
        if weights is not None:
            return self._host.columns(weights)
        return ColumnStatistics._make(array.copy() for array in self._statistics)

    def rows_in_memory(self) -> NDArray[np.bool_]:
        return np.zeros(self.shape[0], bool)  # nothing visits single rows on the processor while a device computes

    def row_entries(self, rows: NDArray[Any] | None = None) -> RowEntries | None:
        return None


KINDS: dict[type[LocalRows], Any] = {DenseRows: DenseGroup, SparseRows: SparseGroup, CodedRows: CodedGroup}


def _check(rows: LocalRows) -> None:
    """Raise InputError unless the rows are of a kind that is computed on a device, and in the host's memory."""
    if isinstance(rows, CodedRows) and not isinstance(rows.code_map, Categories):
        raise InputError(
            f"{option('device', 'cuda')} computes with numbers, sparse columns and categories, but not with k-mers of "
            f"sequences or crosses of features. Leave out {option('device')}: the processor has them"
        )
    if rows.source is not None:
        raise InputError(
            f"{option('device', 'cuda')} wants all rows in the memory of the host, from which those that do not fit on "
            f"the device pass through it. Leave out {option('memory')}, or start more ranks, each with a device"
        )


def _besides(groups: Sequence[LocalRows], shape: tuple[int, int]) -> float:
    """Return the bytes on the device besides entries: numbers for each row, and some for each column."""
    sparse = sum(isinstance(group, SparseRows) for group in groups)
    of_row = ROW_BYTES + 12 * sparse + 8 * sum(len(group.row_factors) > 0 for group in groups)
    return float(of_row * shape[0] + 56 * shape[1] + 2**20 * (not SIMULATED))


def _require(room: float, needed: float, shape: tuple[int, int]) -> None:
    """Raise InputError unless so many bytes fit into the `room` that is left on the device."""
    if needed > room:
        raise InputError(
            f"{option('device', 'cuda')}: the rank's {shape[0]} rows of {shape[1]} columns need {format_bytes(needed)} "
            f"more on its device, which has {format_bytes(max(room, 0.0))} left. Start more ranks, each with a device "
            f"of its own, end other programs that use the device, or leave out {option('device')}"
        )


def _steps(n: int, row_bytes: int) -> Iterator[tuple[int, int]]:
    """Yield ranges of rows that take about `BLOCK` bytes, of whole tiles and of a multiple of 256 rows."""
    whole = max(TILE, 256)
    step = max(whole, BLOCK // max(1, row_bytes) // whole * whole)
    for first in range(0, n, step):
        yield first, min(first + step, n)


def _tiles(first: int, last: int) -> NDArray[np.int64]:
    """Return tiles of the rows first..last - 1, whose entries begin at 0."""
    starts = np.arange(first, last, TILE)
    tiles = np.zeros((len(starts), 4), np.int64)
    tiles[:, 0], tiles[:, 1] = starts, np.minimum(starts + TILE, last) - starts
    return tiles


def _most_frequent(some: NDArray[Any], size: int) -> NDArray[np.uint32]:
    """Return the `HOT` numbers below `size` that are most frequent in a sample."""
    counts = np.bincount(some[some < size].astype(np.int64), minlength=size)
    if size <= kernel.HOT:
        return np.arange(size, dtype=np.uint32)
    return np.argpartition(-counts, kernel.HOT)[: kernel.HOT].astype(np.uint32)


def _exponents(values: Any) -> Any:
    """Return the smallest e with value <= 2^e of each value, at least -700; 0 for 0."""
    mantissas, exponents = np.frexp(values)
    return np.where(np.greater(values, 0), np.maximum(exponents - (mantissas == 0.5), -700), 0)
