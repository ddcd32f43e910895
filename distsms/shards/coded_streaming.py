"""Codes that do not fit in memory: they are read from their shards on each pass, as `streaming` says."""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from distsms.matrix import kernels as kernel
from distsms.matrix.blocks import Entries, Part
from distsms.matrix.code_maps import CodeMap
from distsms.matrix.coded import CodedRows
from distsms.shards import codes
from distsms.shards.reader import OpenShard, ShardRange
from distsms.shards.streaming import Overlap, ShardSegment, Stream


@dataclass
class CodedSegment(ShardSegment):
    """Consecutive local rows in one part of the dataset of a shard; `start` is the place of the first row's first code.

    `distance` is the number of rows of the part; see `codes.StoredPart`.
    """

    distance: int = 0


class CodedStream(Stream):
    """The codes of the local rows, of group `number` of the coded columns. Each part lies in one segment."""

    def __init__(self, number: int, code_map: CodeMap) -> None:
        super().__init__(code_map.p, code_map.dtype.name)
        self._number, self._map, self._cuts = number, code_map, [0]

    def add(self, shard: OpenShard, part: ShardRange, local: slice) -> None:
        stored = shard.stored(f"codes/{self._number}")
        for piece in shard.coded_parts(self._number, part):
            rows, row = piece.last - piece.first, self._cuts[-1]
            self._segments.append(CodedSegment(shard, piece.first, row, 0, piece.at, stored, rows, 0, piece.distance))
            self._cuts.append(row + rows)

    def length_extremes(self) -> tuple[int, int]:
        return self._map.n_codes, -self._map.n_codes

    def features(self, longest: int, differ: bool) -> CodedRows:
        return CodedRows(self._map, self._as_held(0)[0], self._cuts, source=self)

    def _in_buffer(self, part: Part) -> Part:
        return Part(part.first, part.last, 0, part.stop - part.start, part.last - part.first)

    def _overlaps(self, part: Part) -> Iterator[Overlap]:
        """Yield the segment in which a part lies. If it is a piece of a segment, its codes begin at `at`."""
        segment = self._segments[bisect_right(self._segments, part.first, key=lambda segment: segment.row) - 1]
        at = segment.start + part.first - segment.row
        yield Overlap(segment, part.first, part.last, 0, part.stop - part.start, at)

    def _read_overlap(self, overlap: Overlap, out: Entries) -> int:
        segment, (buffer,) = overlap.segment, out
        assert isinstance(segment, CodedSegment) and segment.stored[0] is not None
        first = overlap.first - segment.row + segment.first
        last = first + overlap.last - overlap.first
        table = self._table(overlap, buffer)
        codes.read_part(segment.stored[0], codes.StoredPart(first, last, overlap.at, segment.distance), table)
        if segment.stored[0].checked:
            return 0
        octets = buffer.view(np.uint8)
        words = len(octets) // 4 * 4
        return int(kernel.checksum(octets[:words].view(np.uint32))) + int(octets[words:].sum(dtype=np.uint64))

    def _check(self, overlap: Overlap, entries: Entries) -> None:
        shard_range = overlap.segment.shard_range(overlap.first, overlap.last)
        overlap.segment.shard.check_codes(self._number, shard_range, self._table(overlap, entries[0]))

    def _table(self, overlap: Overlap, buffer: NDArray[Any]) -> NDArray[Any]:
        """Return the codes of an overlap as (codes of a row, rows)."""
        return buffer.reshape(self._map.n_codes, overlap.last - overlap.first)

    def _as_stored(self, count: int) -> Entries:
        return ()

    def _as_held(self, count: int) -> Entries:
        return (np.empty(count, self._map.dtype),)

    def _arrange(self, part: Part, entries: Entries, arrays: Entries) -> None:
        pass
