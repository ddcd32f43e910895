"""Twins of the 25 data sets of the paper's table 1: of the same size, density and ratio of classes, not the same data.

`twins.json` has the numbers of the table, and how rows of this kind are drawn. Where the paper's p is in truth a number
of nonzeros (covertype, news20, real-sim, both reuters, zeta), p is the number of columns. The seeds and the difficulty
are fixed: the planted w with its noise ranks about as well as the paper's best model ranks its test rows.
"""

from __future__ import annotations

import json
import math
from dataclasses import dataclass, replace
from functools import cache
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from distsms.base.errors import InputError
from distsms.ingest.synthetic import planted
from distsms.ingest.synthetic.planted import DenseSource, LabelledRows, Recipe, SparseSource
from distsms.ingest.synthetic.write import RowSource
from distsms.matrix.code_maps import Categories
from distsms.shards.coded_columns import CodedColumns
from distsms.shards.sequence_rules import SequenceOptions, encoding

FEWEST_ROWS, DENSEST = 100, 0.25  # of a twin that is scaled down
_FREQUENT = np.array([0, 0, 0, 1, 1, 2, 2, 3, 3, 3], np.uint8)  # A and T are more frequent than C and G
_NEAR = 10.0  # letters count for e times less at so many places more from the middle
_SPECTRA = ((1, 59), (62, 141))  # the regions of the paper's two spectra


@dataclass(frozen=True)
class Twin:
    """A set of table 1, and how rows like its own are drawn."""

    n: int  # rows, those for tests included
    train: int  # the first rows, to train on
    p: int
    density: float  # share of nonzeros, in per cent
    ratio: float  # positive rows for each negative one
    # "text": rows of length 1, with columns whose frequencies fall by a power law; "ones": the same, all values 1;
    # "dense": correlated features; "letters": sequences, with a column for each letter of each place, or with k-mers
    kind: str
    noise: float  # see `Recipe`
    seed: int
    skew: float = 1.0  # of the columns of sparse kinds; see `SparseSource`
    informative: int | None = None  # the columns of sparse kinds, the most frequent ones, that labels depend on
    correlation: float = 0.0  # of dense rows; see `DenseSource`
    scale: float = 1.0  # of dense rows
    letters: int = 0  # of a sequence
    degree: int = 0  # of the k-mers; 0: a column for each letter of each place

    def scaled(self, share: float) -> Twin:
        """Return a twin with this share of the rows and, if sparse, of the columns. Rows have as many entries."""
        if not 0 < share <= 1:
            raise InputError(f"--scale {share:g}: must be above 0, and at most 1, the size of the paper's set")
        n, p, entries = max(FEWEST_ROWS, round(share * self.n)), self.p, self.p * self.density
        if self.kind in ("text", "ones"):
            p = min(p, max(round(share * p), math.ceil(entries / 100 / DENSEST)))
        return replace(self, n=n, train=round(n * self.train / self.n), p=p, density=entries / p)

    def source(self) -> RowSource:
        """Return the source of all rows, those for tests at the end."""
        recipe = Recipe(self.n, self.p, self.ratio / (1 + self.ratio), self.noise, self.seed, "float32")
        if self.kind == "dense":
            return DenseSource(recipe, self.correlation, self.scale)
        if self.kind == "letters":
            return LetterSource(recipe, self.letters, self.degree)
        ones = self.kind == "ones"
        return SparseSource(recipe, self.density / 100, self.skew, ones, not ones, self.informative, spread=True)


@cache
def twins() -> dict[str, Twin]:
    """Return all twins by their names."""
    records = json.loads(Path(__file__).with_name("twins.json").read_text(encoding="utf-8"))
    return {name: Twin(**record) for name, record in records.items()}


def twin(name: str, scale: float = 1.0) -> Twin:
    """Return a twin, scaled down. Raises InputError if there is none of this name."""
    if name not in twins():
        raise InputError(f"there is no twin of {name!r}, but of {', '.join(twins())}")
    return twins()[name].scaled(scale)


class LetterSource:
    """Independent letters of DNA, of which those near the middle decide."""

    def __init__(self, recipe: Recipe, letters: int, degree: int) -> None:
        """Draw the weights of the letters, and compute the threshold from a pilot sample."""
        self.recipe, self.n = recipe, recipe.n
        self.letters, self.row_bytes = letters, letters + 1.0
        if degree:
            options = SequenceOptions(degree=degree, spectra=_SPECTRA)
            sequences = encoding(options, letters, "distsms synth")
            self.coded = CodedColumns((sequences.code_map,), sequences)
        else:
            self.coded = CodedColumns((Categories((4,) * letters),))
        self.p, self.block_rows, self._places = self.coded.p, planted.block_rows(letters), np.arange(letters)
        nearness = np.exp(-abs(self._places - (letters - 1) / 2) / _NEAR)
        self.w = recipe.stream(planted.PLANTED).standard_normal((letters, 4)) * nearness[:, None]
        pilot = range(-(-planted.PILOT_ENTRIES // (letters * self.block_rows)))
        scores = [self._scores(self._codes(recipe.stream(planted.PILOT + k), self.block_rows)) for k in pilot]
        self.threshold, self.sigma = planted.threshold_of(np.concatenate(scores), recipe)

    def block(self, number: int) -> LabelledRows:
        rng = self.recipe.stream(number)
        codes = self._codes(rng, self.recipe.rows_of(number, self.block_rows))
        margins = self._scores(codes) + self.sigma * rng.standard_normal(len(codes))
        return codes, self.recipe.label(number, margins, self.threshold)

    def _codes(self, rng: np.random.Generator, rows: int) -> NDArray[np.uint8]:
        return _FREQUENT[rng.integers(0, len(_FREQUENT), (rows, self.letters), np.uint8)]

    def _scores(self, codes: NDArray[np.uint8]) -> NDArray[np.float64]:
        return self.w[self._places, codes].sum(axis=1)
