"""What `CodedRows` computes for a part of its rows, with first = 0, for each kind of code map. Everything is local."""

from __future__ import annotations

from typing import Any

import numpy as np
from numpy.typing import NDArray

from distsms.base.typing import Floats
from distsms.matrix import coded_kernels as kernel
from distsms.matrix import kmer_kernels
from distsms.matrix.base import ColumnStatistics
from distsms.matrix.blocks import Part
from distsms.matrix.code_maps import Categories, CodeMap, Codes, Crosses, Products, Spectrum, Strings, betas
from distsms.matrix.kmer_kernels import Kmers
from distsms.matrix.normalization import inverse


class CategoryProducts(Products):
    def __init__(self, code_map: Categories) -> None:
        self._offsets, self._factors = code_map.offsets, code_map.factors
        self.roundings = code_map.entries + 1

    def dot(self, part: Part, codes: Codes, scales: Floats, w: Floats, absolute: bool, out: Floats) -> None:
        kernel.dot_categories(codes, part, self._offsets, self._factors, absolute, w, out)

    def add(self, part: Part, codes: Codes, scales: Floats, c: Floats, out: Floats) -> None:
        kernel.add_categories(codes, part, self._offsets, self._factors, c, out)

    def describe(self, part: Part, codes: Codes, scales: Floats, factors: Floats, statistics: ColumnStatistics) -> None:
        largest, counts, squares = statistics
        kernel.add_categories(codes, part, self._offsets, self._factors**2, factors**2, squares)
        kernel.add_categories(codes, part, self._offsets, np.ones(len(self._factors)), np.ones(len(factors)), counts)
        most = factors.max(initial=0.0)
        for b, value in enumerate(np.abs(self._factors)):
            kernel.raise_largest(counts, self._offsets[b], self._offsets[b + 1], value * most, largest)

    def length(self, part: Part, codes: Codes, scales: Floats, out: Floats) -> None:
        most = np.abs(self._factors).max()  # no square overflows
        kernel.squares_of_categories(codes, part, self._offsets, self._factors / most, out)
        np.sqrt(out, out=out)
        out *= most


class CrossProducts(Products):
    """The products of `Crosses`: those of the blocks, and those of the crosses, which have their own kernels."""

    def __init__(self, code_map: Crosses) -> None:
        blocks = code_map.blocks
        self._blocks, self._p, self.roundings = CategoryProducts(blocks), blocks.p, code_map.entries + 1
        sizes = np.array(code_map.sizes, np.int64)
        self._pairs = kernel.Pairs(np.array(code_map.pairs, np.int64), sizes, code_map.offsets)

    def dot(self, part: Part, codes: Codes, scales: Floats, w: Floats, absolute: bool, out: Floats) -> None:
        self._blocks.dot(part, codes, scales, w[: self._p], absolute, out)
        kernel.dot_crosses(codes, part, self._pairs, absolute, w, out)

    def add(self, part: Part, codes: Codes, scales: Floats, c: Floats, out: Floats) -> None:
        self._blocks.add(part, codes, scales, c, out[: self._p])
        kernel.add_crosses(codes, part, self._pairs, c, out)

    def describe(self, part: Part, codes: Codes, scales: Floats, factors: Floats, statistics: ColumnStatistics) -> None:
        largest, counts, squares = statistics
        of_blocks = ColumnStatistics._make(array[: self._p] for array in statistics)
        self._blocks.describe(part, codes, scales, factors, of_blocks)
        kernel.add_crosses(codes, part, self._pairs, factors**2, squares)
        kernel.add_crosses(codes, part, self._pairs, np.ones(len(factors)), counts)
        kernel.raise_largest(counts, self._p, len(counts), factors.max(initial=0.0), largest)

    def length(self, part: Part, codes: Codes, scales: Floats, out: Floats) -> None:
        kernel.lengths_of_crosses(codes, part, self._pairs, out)


class KmerProducts(Products):
    """The products of `Strings`. The numbers of each row are the factors of the spectra, 0 for a row without k-mers."""

    def __init__(self, code_map: Strings) -> None:
        size, self.n_scales = len(code_map.letters), len(code_map.spectra)
        self._parts = []
        if code_map.degree:
            whole, values = Spectrum(1, code_map.length, code_map.degree), code_map.degree_values
            self._parts.append(_kmer_part(whole, size, code_map.starts[:-1], values, code_map.shares[0]))
        self._plain = len(self._parts)
        for spectrum, start, share in zip(code_map.spectra, code_map.spectrum_starts, code_map.shares[1:], strict=True):
            starts = np.full(spectrum.last - spectrum.first + 1, start)
            self._parts.append(_kmer_part(spectrum, size, starts, np.sqrt(betas(spectrum.degree)), share))
        # Terms are multiplied by a value, summed over prefixes and positions, multiplied by a factor, added.
        self.roundings = sum((kmers.last - kmers.first) * kmers.degree + 3 for kmers in self._parts)

    def _each(self, scales: Floats) -> list[tuple[Kmers, Floats]]:
        """Return the parts with the factor of each row, an empty array for the weighted degree."""
        return list(zip(self._parts, [np.empty(0)] * self._plain + list(scales), strict=True))

    def scale(self, part: Part, codes: Codes, out: Floats) -> None:
        for kmers, sizes in zip(self._parts[self._plain :], out, strict=True):
            nothing = np.empty(0)
            kmer_kernels.squares_of_spectra(codes, part, kmers, nothing, _counts(kmers), nothing, sizes)
            sizes[:] = np.where(sizes > 0, kmers.share * inverse(sizes), 0.0)

    def dot(self, part: Part, codes: Codes, scales: Floats, w: Floats, absolute: bool, out: Floats) -> None:
        out[:] = 0
        for kmers, factors in self._each(scales):
            kmer_kernels.dot_kmers(codes, part, kmers, factors, absolute, w, out)

    def add(self, part: Part, codes: Codes, scales: Floats, c: Floats, out: Floats) -> None:
        for kmers, factors in self._each(scales):
            kmer_kernels.add_kmers(codes, part, kmers, factors, c, out)

    def describe(self, part: Part, codes: Codes, scales: Floats, factors: Floats, statistics: ColumnStatistics) -> None:
        # In a spectrum, k-mers that a row has several times are counted as often: as many terms have to be added.
        largest, counts, squares = statistics
        most, ones, nothing = factors.max(initial=0.0), np.ones(len(factors)), np.empty(0)
        for which, (kmers, squares_of_k) in enumerate(self._each(scales)):
            starts, values = kmers.starts, kmers.values
            kmer_kernels.add_kmers(codes, part, kmers._replace(values=np.ones(len(values))), nothing, ones, counts)
            if which >= self._plain:
                columns = slice(starts[0], starts[0] + len(_counts(kmers)))
                of_rows, of_columns = squares_of_k * factors, squares[columns]
                kmer_kernels.squares_of_spectra(codes, part, kmers, of_rows, _counts(kmers), of_columns, np.empty(0))
                # Its row is as long.
                kernel.raise_largest(counts, columns.start, columns.stop, kmers.share * most, largest)
                continue
            kmer_kernels.add_kmers(codes, part, kmers._replace(values=values**2), nothing, factors**2, squares)
            for i, start in enumerate(starts.tolist()):
                for k in range(min(kmers.degree, kmers.last - i)):
                    stop = start + kmers.size ** (k + 1)
                    kernel.raise_largest(counts, start, stop, values[k] * most, largest)
                    start = stop

    def length(self, part: Part, codes: Codes, scales: Floats, out: Floats) -> None:
        out[:] = 0
        for kmers in self._parts[: self._plain]:
            totals = np.append(0.0, np.cumsum(kmers.values**2))
            kmer_kernels.squares_of_positions(codes, part, kmers, totals, out)
        for kmers, factors in zip(self._parts[self._plain :], scales, strict=True):
            out += kmers.share**2 * (factors > 0)
        np.sqrt(out, out=out)


def _kmer_part(spectrum: Spectrum, size: int, starts: NDArray[np.int64], values: Floats, share: float) -> Kmers:
    first, last, degree = spectrum.first - 1, spectrum.last, spectrum.degree
    numbers, strip = np.empty(0, np.uint16 if size**degree <= 2**16 else np.uint32), max(kernel.STRIP, 4 * size**degree)
    return Kmers(first, last, degree, size, starts, values, share, numbers, strip)


def _counts(kmers: Kmers) -> NDArray[Any]:
    """Return a count of 0 for each k-mer of a region, of the smallest type that holds its length."""
    n_kmers = sum(kmers.size**k for k in range(1, kmers.degree + 1))
    return np.zeros(n_kmers, np.uint16 if kmers.last - kmers.first < 2**16 else np.uint32)


def products_of(code_map: CodeMap) -> Products:
    if isinstance(code_map, Categories):
        return CategoryProducts(code_map)
    if isinstance(code_map, Crosses):
        return CrossProducts(code_map)
    assert isinstance(code_map, Strings)
    return KmerProducts(code_map)
