"""Write the sections of a report on a model whose columns are bins, crosses or leaves: what these contribute."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from distsms.models.contributions import Contributions, Term
from distsms.page import html, shape_plots
from distsms.page.html import Html, element
from distsms.page.plots import Drawing

SHAPES, PAIRS, COLUMNS = 12, 6, 20
"""How many attributes, pairs and columns are drawn: those of the largest importance."""
LISTED = 40
"""How many of them a table lists."""
CODES, CELLS = 64, 12
"""The most lines of the table of an attribute, and of a pair."""


def section(contributions: Contributions | str | None, drawings: list[Drawing]) -> str:
    """Return the sections on attributes, pairs and columns; "" without features. Appends the figures."""
    if contributions is None:
        return ""
    if isinstance(contributions, str):
        return html.section("What the features contribute", element("p", contributions))
    parts = [_attributes(contributions, drawings), _pairs(contributions, drawings), _columns(contributions, drawings)]
    return Html("".join(parts))


def _attributes(contributions: Contributions, drawings: list[Drawing]) -> Html | str:
    if not contributions.attributes:
        return ""
    meaning = (
        "The contribution of an attribute is what it adds to the score of a row, above or below its mean over these "
        "rows. Its importance is the standard deviation of its contributions over the rows."
    )
    if contributions.pairs:
        meaning += " What the crosses say of a single attribute is included here, and not in the pairs below."
    if contributions.columns and (np.any(contributions.forest) or np.any(contributions.kept)):
        meaning += " What trees and original columns add is not included."
    reading = (
        "Grey bars show the share of the rows; thin lines and pale bars are bins and categories without rows. Rows "
        "without a value, and rows of a category that training did not have (unknown), have marks of their own."
    )
    strongest = _strongest(contributions.attributes)
    return html.section(
        "What each attribute contributes",
        element("p", meaning),
        element("p", reading, class_="soft"),
        _figures(strongest[:SHAPES], shape_plots.shape, _codes, drawings),
        _overview("attribute", strongest, SHAPES),
    )


def _pairs(contributions: Contributions, drawings: list[Drawing]) -> Html | str:
    if not contributions.pairs:
        return ""
    strongest = _strongest(contributions.pairs)
    return html.section(
        "What pairs of attributes contribute",
        element(
            "p",
            "A heat map shows what two attributes add to the score together, beyond what both add by themselves. So "
            "the mean over the rows of each bin or category is 0. Blue raises the score, and orange lowers it. Hatched "
            "cells have no rows.",
        ),
        _figures(strongest[:PAIRS], shape_plots.heat_map, _cells, drawings),
        _overview("pair", strongest, PAIRS),
    )


def _columns(contributions: Contributions, drawings: list[Drawing]) -> Html | str:
    shares, grown = contributions.forest + contributions.kept, bool(np.any(contributions.grown))
    shown = [("trees", contributions.forest)] * grown
    if np.any(contributions.kept):
        shown.append(("original" if grown else "share", contributions.kept))
    if not shown:
        return ""
    shown += [("when the trees grew", contributions.grown)] * grown
    order = np.argsort(-shares, kind="stable")
    used = [int(j) for j in order if shares[j] or contributions.grown[j]]
    names = [contributions.columns[j] for j in used]
    drawing = shape_plots.importance(names[:COLUMNS], shares[used[:COLUMNS]])
    drawings.append(drawing)
    header = ["column", *(heading for heading, _ in shown)]
    listed = zip(names[:LISTED], used, strict=False)
    rows = [[name, *(_percent(values[j]) for _, values in shown)] for name, j in listed]
    terms = float(sum(term.share for term in (*contributions.attributes, *contributions.pairs)))
    rest = f" Attributes and pairs have the other {_percent(terms)}." if contributions.attributes else ""
    meaning = (
        "The share of a column is the covariance of what it adds to the score with the score, divided by the variance "
        "of the score; a column that works against the others has a share below 0. The columns of 0 and 1 of one "
        f"category count together.{rest}"
    )
    if grown:
        meaning += (
            " A tree adds the value of the leaf that a row reaches. Each split on the way changes the mean value of the"
            " leaves that are still possible, and this step counts for the column of the split. The last column of the"
            " table is the share of what all splits gained when the trees grew."
        )
    left_out = f", the {LISTED} largest of {len(used)}" if len(used) > LISTED else ""
    return html.section(
        "What each column contributes",
        element("p", meaning),
        html.side_by_side(drawing.to_html()),
        html.details("The numbers", html.table(f"Shares of the variance of the score{left_out}", header, rows)),
    )


def _strongest(terms: Sequence[Term]) -> list[Term]:
    return sorted(terms, key=lambda term: -term.deviation)


def _figures(terms, draw, table, drawings):  # type: ignore[no-untyped-def]
    """Return the drawings of terms, each with its numbers in a table that the reader can open."""
    figures = []
    for number, term in enumerate(terms, 1):
        drawing = draw(term, number)
        drawings.append(drawing)
        figures.append(element("div", drawing.to_html(), html.details("The numbers", table(term))))
    return html.side_by_side(*figures)


def _codes(term: Term) -> Html:
    columns = term.table()
    rows = [
        [str(code), f"{value:+.4g}", _percent(share)]
        for code, value, share in zip(columns["code"], columns["contribution"], columns["rows"], strict=True)
    ]
    left_out = ""
    if len(rows) > CODES:
        largest = np.sort(np.argsort(-columns["rows"], kind="stable")[:CODES])
        rows, left_out = [rows[k] for k in largest], f", the {CODES} with the most rows of {len(rows)}"
    return html.table(f"{term.name}{left_out}", ["", "contribution", "rows"], rows)


def _cells(term: Term) -> Html:
    columns = term.table()
    there = np.flatnonzero(columns["rows"] > 0)
    strength = np.abs(columns["contribution"][there]) * np.sqrt(columns["rows"][there])
    largest = there[np.argsort(-strength, kind="stable")[:CELLS]]
    shown = zip(*(columns[name][largest] for name in ("first", "second", "contribution", "rows")), strict=True)
    rows = [[f"{first} & {second}", f"{value:+.4g}", _percent(share)] for first, second, value, share in shown]
    caption = f"{term.name}: the {len(rows)} cells that matter most (contribution times the root of their rows)"
    return html.table(caption, ["", "contribution", "rows"], rows)


def _overview(kind: str, terms: Sequence[Term], drawn: int) -> Html:
    rows = []
    for term in terms[:LISTED]:
        there = np.where(term.rows > 0, term.values, np.nan)
        span = f"{np.nanmin(there):+.3g} to {np.nanmax(there):+.3g}"
        rows.append([term.name, f"{term.deviation:.4g}", span, _percent(term.share)])
    caption = f"Each {kind}" if len(terms) <= LISTED else f"The {LISTED} most important of {len(terms)}"
    if len(terms) > drawn:
        caption += f"; the {drawn} most important are drawn"
    header = [kind, "standard deviation", "contributions", "share of the variance of the score"]
    return html.table(caption, header, rows)


def _percent(share: float) -> str:
    return "-" if np.isnan(share) else f"{100 * round(share, 8):.3g} %"
