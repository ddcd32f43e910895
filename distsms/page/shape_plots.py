"""Draw what a model on features has learned: shape functions of attributes, heat maps of pairs, importance of columns.
Blue raises the score and vermilion lowers it.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np

from distsms.base.typing import Floats
from distsms.models.contributions import Term
from distsms.page import mpl
from distsms.page.plots import BLUE, VERMILION, Drawing

MOST_STEPS = 256
"""Neighbouring bins are joined in drawings of attributes with more."""
MOST_CELLS = 32
"""Neighbouring bins are joined in heat maps with more along an axis, and rare categories are left out."""
MOST_CATEGORIES, TICKS = 24, 5
LEVELS = 8
"""Different strengths of a colour."""
GREY = "#808080"
_NAME, _LONG_NAME = 20, 32
_SHAPE, _TITLE = (4.2, 3.4), 11
_UNEVEN = 0.2
"""If the middle half of the bins takes less than this share of the range, all bins are drawn equally wide."""


class _Axis:
    """The codes of an attribute along an axis of a drawing, joined or left out where there are too many."""

    def __init__(self, term: Term, axis: int, rows: Floats, most: int, importance: Floats | None = None) -> None:
        names, edges = term.codes(axis), term.edges(axis)
        self.numbers = term.bins.attributes[term.attributes[axis]].categories is None
        n_bins = len(edges) + 1 if self.numbers else 0
        last = len(rows) - 1  # stands for rows without a code
        categories = np.arange(n_bins, last)
        if not self.numbers and len(categories) > most:
            categories = np.sort(np.argsort(-(rows if importance is None else importance)[:-1], kind="stable")[:most])
        bins = np.array_split(np.arange(n_bins), min(n_bins, most)) if n_bins else []
        self.groups = [*bins, *([code] for code in categories), *([[last]] if rows[last] > 0 else [])]
        self.names = [names[group[0]] for group in self.groups]
        self.edges = np.array([edges[group[0] - 1] for group in bins[1:]])
        self.left_out = last - n_bins - len(categories)

    def fold(self, values: Floats, rows: Floats) -> tuple[Floats, Floats]:
        """Return the mean value at each place along the first axis, weighted by rows, and the rows there."""
        of_rows = np.array([rows[group].sum(axis=0) for group in self.groups])
        weights = (np.where(here > 0, rows[group], 1.0) for group, here in zip(self.groups, of_rows, strict=True))
        means = [np.average(values[group], 0, of_group) for group, of_group in zip(self.groups, weights, strict=True)]
        return np.array(means), of_rows

    def ticks(self) -> list[tuple[float, str]]:
        """Return places, where place k reaches from k to k + 1, and texts for about `TICKS` marks on the axis."""
        n = len(self.edges) + 1 if self.numbers else 0
        marked = np.unique(np.linspace(1, n - 1, min(n - 1, TICKS)).round().astype(int)) if n > 1 else []
        others = range(n, len(self.names))
        step = -(-len(others) // (3 * TICKS)) if len(others) else 1
        shown = [(k + 0.5, mpl.literal(self.names[k], _NAME)) for k in others[::step]]
        room = len(self.names) / 15 if shown else 0.0  # between the last edge and what stands behind the bins
        edges = [(float(k), float(f"{self.edges[k - 1]:.4g}")) for k in marked if n + 0.5 - k >= room]
        return [(place, f"{edge:g}") for place, edge in edges] + shown


def shape(term: Term, number: int) -> Drawing:
    """Draw the contributions of an attribute, and below them how many rows there are: the drawing of this number."""
    most = MOST_STEPS if len(term.edges()) else MOST_CATEGORIES
    axis = _Axis(term, 0, term.rows, most, term.rows * term.values**2)
    values, rows = axis.fold(term.values, term.rows)
    figure = (_of_numbers if axis.numbers else _of_categories)(axis, values, rows)
    figure.suptitle(mpl.literal(term.name, _LONG_NAME), fontsize=_TITLE)
    low, high = (f"{values[k]:.3g} for {axis.names[k]}" for k in (int(values.argmin()), int(values.argmax())))
    left_out = f"; {axis.left_out} categories that contribute less are left out" if axis.left_out else ""
    caption = f"{term.name}, standard deviation {term.deviation:.3g}{left_out}"
    spread = f"their standard deviation over the rows is {term.deviation:.3g}"
    description = f"Contributions of {term.name} to the score: the lowest is {low}, the highest {high}; {spread}."
    return Drawing(figure, f"shape_{number}", caption, description)


def _of_numbers(axis: _Axis, values: Floats, rows: Floats) -> Any:
    figure, (above, below) = mpl.blank(_SHAPE, rows=2, height_ratios=(3, 1))
    n, edges = len(axis.edges) + 1, axis.edges
    half = edges[-1 - n // 4] - edges[n // 4] if n > 4 else np.inf
    even = n > 4 and half < _UNEVEN * (edges[-1] - edges[0])
    if even or n == 1:
        ends = np.arange(n + 1.0)
        ticks = [(place, text) for place, text in axis.ticks() if place < n]
    else:
        margin = 0.06 * (edges[-1] - edges[0]) or 0.5 * abs(edges[0]) or 0.5
        ends = np.concatenate([[edges[0] - margin], edges, [edges[-1] + margin]])
        places = mpl.round_numbers(edges[0], edges[-1])
        ticks = [(place, f"{place:.6g}") for place in places if ends[0] <= place <= ends[-1]]
    seen = np.where(rows[:n] > 0, values[:n], np.nan)
    above.stairs(values[:n], ends, baseline=None, color=BLUE, linewidth=1, alpha=0.4)
    above.stairs(seen, ends, baseline=None, color=BLUE, linewidth=1.8)
    below.stairs(rows[:n], ends, fill=True, color=GREY, alpha=0.6)
    step = (ends[-1] - ends[0]) * 0.11
    for k in range(n, len(values)):
        place = ends[-1] + (1 + 1.6 * (k - n)) * step
        above.plot([place], [values[k]], color=VERMILION, marker="D", markersize=6)
        below.bar([place], [rows[k]], width=0.5 * step, color=GREY, alpha=0.6)
        ticks.append((place, axis.names[k]))
    above.axhline(0, color=GREY, linewidth=0.8)
    above.set_ylabel("contribution")
    below.set(ylabel="rows", xticks=[place for place, _ in ticks], xlabel="bins, all of the same width" if even else "")
    below.set_xticklabels([text for _, text in ticks])
    mpl.show_shares(below.yaxis)
    return figure


def _of_categories(axis: _Axis, values: Floats, rows: Floats) -> Any:
    n = len(values)
    inches = _SHAPE[0], max(_SHAPE[1], 1.1 + 0.19 * n)
    figure, (left, right) = mpl.blank(inches, columns=2, width_ratios=(3, 1))
    places = np.arange(n)
    for there, alpha in ((rows > 0, 1.0), (rows <= 0, 0.35)):
        colours = [BLUE if value > 0 else VERMILION for value in values[there]]
        left.barh(places[there], values[there], height=0.7, color=colours, alpha=alpha)
    right.barh(places, rows, height=0.7, color=GREY, alpha=0.6)
    left.axvline(0, color=GREY, linewidth=0.8)
    left.set(xlabel="contribution", yticks=places, ylim=(max(n, 5) - 0.5, -0.5))
    left.set_yticklabels([mpl.literal(name, _NAME) for name in axis.names])
    right.set(xlabel="rows", yticks=places, ylim=(max(n, 5) - 0.5, -0.5), yticklabels=[])
    mpl.show_shares(right.xaxis)
    return figure


def heat_map(term: Term, number: int) -> Drawing:
    """Draw the contributions of a pair of attributes: the drawing of this number."""
    first, second = (_Axis(term, k, term.rows.sum(axis=1 - k), MOST_CELLS) for k in (0, 1))
    values, rows = first.fold(term.values, term.rows)
    values, rows = (table.T for table in second.fold(values.T, rows.T))
    limit = float(np.abs(values[rows > 0]).max(initial=0.0))
    figure, (axes, legend) = mpl.blank((4.4, 4.0), columns=2, width_ratios=(14, 1))
    axes.grid(False)
    levels = np.ceil(np.abs(values) / (limit or 1.0) * LEVELS)
    for colour, sign in ((BLUE, 1), (VERMILION, -1)):
        for level in range(1, LEVELS + 1):
            here = (rows > 0) & (np.sign(values) == sign) & (levels == level)
            mpl.add_cells(axes, np.argwhere(here), facecolor=colour, alpha=level / LEVELS)
            mpl.add_cells(legend, [[0, level - 1 if sign > 0 else -level]], facecolor=colour, alpha=level / LEVELS)
    mpl.add_cells(axes, np.argwhere(rows == 0), facecolor="none", edgecolor=GREY, hatch="////")
    for k, (codes, axis) in enumerate(((first, axes.xaxis), (second, axes.yaxis))):
        ticks = codes.ticks()
        texts = [text for _, text in ticks]
        upright = k == 0 and sum(map(len, texts)) > 40
        turned = {"rotation": 60, "ha": "right", "rotation_mode": "anchor"} if upright else {}
        axis.set_ticks([place for place, _ in ticks], texts, **turned)
        axis.set_label_text(mpl.literal(term.bins.attributes[term.attributes[k]].name, _LONG_NAME))
    axes.set(xlim=(0, len(first.names)), ylim=(0, len(second.names)))
    legend.grid(False)
    legend.set(xlim=(0, 1), ylim=(-LEVELS, LEVELS), xticks=[], yticks=[-LEVELS, 0, LEVELS])
    legend.set_yticklabels([f"{place:+.2g}" if place else "0" for place in (-limit, 0.0, limit)])
    legend.yaxis.tick_right()
    u, v = np.unravel_index(int(np.where(rows > 0, np.abs(values), -1).argmax()), values.shape)
    caption = f"{term.name}, standard deviation {term.deviation:.3g}"
    cell = f"{first.names[u]} and {second.names[v]} with {values[u, v]:+.3g}"
    description = f"Heat map of what {caption}, add to the score together: the strongest cell is {cell}."
    return Drawing(figure, f"pair_{number}", caption, description)


def importance(names: Sequence[str], shares: Floats) -> Drawing:
    """Draw how much of the variance of the score comes from each column, the largest share first."""
    figure, (axes,) = mpl.blank((5.2, 0.9 + 0.22 * len(names)))
    axes.barh(np.arange(len(names)), shares, height=0.7, color=[BLUE if share > 0 else VERMILION for share in shares])
    axes.set(yticks=range(len(names)), ylim=(len(names) - 0.5, -0.5), xlabel="share of the variance of the score")
    axes.set_yticklabels([mpl.literal(name, _LONG_NAME) for name in names])
    mpl.show_shares(axes.xaxis, 6)
    each = "; ".join(f"{name} {100 * share:.3g} %" for name, share in zip(names[:12], shares, strict=False))
    caption = "How much of the variance of the score comes from each column"
    return Drawing(figure, "importance", caption, f"Bars of the columns' shares of the variance of the score: {each}.")
