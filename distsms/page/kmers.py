"""Draw what a model of sequences looks for; see `distsms.models.kmers`."""

from __future__ import annotations

import numpy as np

from distsms.base.typing import Floats
from distsms.models.kmers import best_kmers, letter_importance
from distsms.models.model import Model
from distsms.page import html, mpl
from distsms.page.html import Html, element
from distsms.page.plots import BLUE, GREEN, PURPLE, VERMILION, Drawing

NEAR = 20
"""How many positions the logo shows on each side of the most important one."""
COLORS = (GREEN, BLUE, VERMILION, PURPLE)  # of A, C, G and T


def section(model: Model, drawings: list[Drawing]) -> Html | str:
    """Return the section of a report on a model of sequences; "" for other models. Appends its figures."""
    w, sequences = model.w, model.coded.sequences
    if sequences is None or not sequences.code_map.degree:
        return ""
    importance = letter_importance(w, sequences.code_map)
    letters, first = sequences.code_map.letters, sequences.window[0]
    figures = [_overview(importance, first), _logo(importance, letters, first)]
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
        *map(Drawing.to_html, figures),
        html.table(
            f"At each position the word of {degree} letters with the highest score; the {len(rows)} best of these",
            ["begins at", "word", "score"],
            rows,
        ),
    )


def _overview(importance: Floats, first: int) -> Drawing:
    """Draw the largest and the smallest importance of a letter at each position, from the first one on."""
    last = first + len(importance) - 1
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


def _logo(importance: Floats, letters: str, first: int) -> Drawing:
    """Draw the letters around the most important position, as high as their importance."""
    top = int(importance.max(axis=1).argmax())
    begin, end = max(0, top - NEAR), min(len(importance), top + NEAR + 1)
    positions = np.arange(begin, end) + first
    figure, (axes,) = mpl.blank((8.4, 2.6))
    mpl.draw_logo(axes, positions, importance[begin:end], letters, COLORS if len(letters) == 4 else ("black",))
    axes.set(xlabel="position in the sequence", ylabel="importance")
    consensus = "".join(letters[k] for k in importance[begin:end].argmax(axis=1))
    return Drawing(
        figure,
        "logo",
        f"Letters around position {top + first}, as high as their importance",
        f"From position {positions[0]} to {positions[-1]} the best letters are {consensus}.",
    )
