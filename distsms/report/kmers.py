"""Show what a model of sequences looks for: which letters at which positions, and which k-mers, raise the score.

The weights of a weighted degree model are hard to read one by one, since every k-mer contains shorter ones that have
weights of their own, and overlaps others. Two sums are easy to read (compare Sonnenburg et al., POIMs, 2008):

- The *importance of a letter* at a position is the mean score of random sequences that have the letter there, minus
  that of random sequences. All letters of a random sequence are equally likely and independent.
- The *score of a k-mer* at a position is the sum of the terms of all shorter k-mers that lie in it, and its own,
  minus the mean of this sum over all k-mers of this length.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, NamedTuple

import numpy as np

from distsms.base.typing import Floats
from distsms.matrix.code_maps import Strings
from distsms.report import html, mpl
from distsms.report.html import Html, element
from distsms.report.plots import BLUE, GREEN, PURPLE, VERMILION, Drawing
from distsms.report.selection_sections import drawing_to_html

if TYPE_CHECKING:
    from distsms.shards.sequence_rules import Sequences

SHOWN = 12
"""How many k-mers are listed."""
NEAR = 20
"""How many positions the logo shows on each side of the most important one."""
COLORS = (GREEN, BLUE, VERMILION, PURPLE)  # of A, C, G and T


def letter_importance(w: Floats, code_map: Strings) -> Floats:
    """Return how much each letter at each position raises the mean score of random sequences, (L, letters). Local.

    Spectra have no positions and are left out. O(K p) for the degree K.
    """
    size = len(code_map.letters)
    found = np.zeros((code_map.length, size))
    for i, start in enumerate(code_map.starts[:-1].tolist()):
        for k, value in enumerate(code_map.degree_values[: code_map.length - i], 1):
            block, start = w[start : start + size**k], start + size**k
            for m in range(k):
                found[i + m] += value * block.reshape(size**m, size, -1).mean(axis=(0, 2))
    return found - found.mean(axis=1, keepdims=True)


def kmer_scores(w: Floats, code_map: Strings) -> Floats:
    """Return the scores of all k-mers of length K, the degree, at all their positions, (L - K + 1, letters^K). Local.

    Time and memory are in proportion to p. A k-mer's sum is that of its first k - 1 letters, plus that of its last k -
    1 letters, minus that of the letters in the middle, which are in both, plus the k-mer's own term.
    """
    size, values = len(code_map.letters), code_map.degree_values
    starts, middle, sums = code_map.starts[:-1], np.zeros((code_map.length + 1, 1)), np.empty((0, 0))
    for k, value in enumerate(values, 1):
        n, offset = code_map.length - k + 1, sum(size**m for m in range(1, k))
        own = np.stack([w[start + offset : start + offset + size**k] for start in starts[:n].tolist()]) * value
        if k > 1:
            inner = middle[1 : n + 1, None, :, None]
            own = own.reshape(n, size, -1, size)
            own += sums[:n].reshape(n, size, -1, 1) + sums[1 : n + 1].reshape(n, 1, -1, size) - inner
            middle, sums = sums, own.reshape(n, -1)
        else:
            sums = own
    return sums - sums.mean(axis=1, keepdims=True)


class Kmer(NamedTuple):
    """A k-mer at a position of the whole sequence, counted from 1, and its score."""

    position: int
    letters: str
    score: float


def best_kmers(w: Floats, sequences: Sequences, count: int = SHOWN) -> list[Kmer]:
    """Return the k-mers of length K with the highest scores: the best of each position, and the best of these."""
    code_map = sequences.code_map
    scores = kmer_scores(w, code_map)
    best = scores.argmax(axis=1)
    highest = scores[np.arange(len(best)), best]
    shorter = code_map.block_size(code_map.degree - 1)  # the columns of shorter k-mers come first at each position
    found = []
    for i in np.argsort(-highest, kind="stable")[:count].tolist():
        position, letters = sequences.column_name(int(code_map.starts[i]) + shorter + int(best[i])).split(":")
        found.append(Kmer(int(position), letters, float(highest[i])))
    return found


def section(w: Floats, sequences: Sequences | None, drawings: list[Drawing]) -> Html | str:
    """Return the section of a report on a model of sequences; "" for other models. Appends its figures."""
    if sequences is None or not sequences.code_map.degree:
        return ""
    importance = letter_importance(w, sequences.code_map)
    figures = [_overview(importance, sequences), _logo(importance, sequences)]
    drawings += figures
    rows = [[f"{kmer.position}", kmer.letters, f"{kmer.score:+.4g}"] for kmer in best_kmers(w, sequences)]
    degree = sequences.code_map.degree
    return html.section(
        "Letters and k-mers",
        element(
            "p",
            "The importance of a letter at a position is what it adds to the mean score of random sequences. Where all "
            "training sequences have the same letter, no letter has any. Spectra have no positions and are left out. "
            f"The score of a word of {degree} letters is what it adds together with all shorter words in it.",
        ),
        *map(drawing_to_html, figures),
        html.table(
            f"At each position the word of {degree} letters with the highest score; the {len(rows)} best of these",
            ["begins at", "word", "score"],
            rows,
        ),
    )


def _overview(importance: Floats, sequences: Sequences) -> Drawing:
    """Draw the largest and the smallest importance of a letter at each position."""
    first, last = sequences.window
    figure, (axes,) = mpl.blank((8.4, 2.6))
    positions = np.arange(first, last + 1)
    axes.bar(positions, importance.max(axis=1), width=1.0, color=BLUE, label="best letter")
    axes.bar(positions, importance.min(axis=1), width=1.0, color=VERMILION, label="worst letter")
    axes.set(xlabel="position in the sequence", ylabel="importance", xlim=(first - 1, last + 1))
    axes.legend()
    top = first + int(importance.max(axis=1).argmax())
    return Drawing(
        figure,
        "positions",
        "Importance at each position of the letter that raises the score most, and of that which lowers it most",
        f"Bars over the positions {first} to {last}; the highest is at position {top}.",
    )


def _logo(importance: Floats, sequences: Sequences) -> Drawing:
    """Draw the letters around the most important position, as high as their importance."""
    top = int(importance.max(axis=1).argmax())
    begin, end = max(0, top - NEAR), min(len(importance), top + NEAR + 1)
    positions = np.arange(begin, end) + sequences.window[0]
    figure, (axes,) = mpl.blank((8.4, 2.6))
    letters = sequences.code_map.letters
    mpl.draw_logo(axes, positions, importance[begin:end], letters, COLORS if len(letters) == 4 else ("black",))
    axes.set(xlabel="position in the sequence", ylabel="importance")
    consensus = "".join(letters[k] for k in importance[begin:end].argmax(axis=1))
    return Drawing(
        figure,
        "logo",
        f"Letters around position {top + sequences.window[0]}, as high as their importance",
        f"From position {positions[0]} to {positions[-1]} the best letters are {consensus}.",
    )
