"""Write the sections of a report on what the model has learned: what its features contribute, letters and k-mers of
sequences, and the largest weights, those of numbers and of columns of 0 and 1 apart, since they cannot be compared.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence

import numpy as np
from numpy.typing import NDArray

from distsms.base.typing import Floats
from distsms.features.attributes import Attribute
from distsms.models.contributions import Contributions, Term, leaf_rule, values_of
from distsms.models.kmers import best_kmers, letter_importance
from distsms.models.model import Model
from distsms.page import html, mpl, plots, shape_plots
from distsms.page.html import Html, element
from distsms.page.plots import BLUE, GREEN, PURPLE, VERMILION, Drawing
from distsms.workflow.report import ReportData

SHAPES, PAIRS, COLUMNS = 12, 6, 20
"""How many attributes, pairs and columns are drawn: those of the largest importance."""
LISTED = 40
"""How many of them a table lists."""
CODES, CELLS = 64, 12
"""The most lines of the table of an attribute, and of a pair."""
NEAR = 20
"""How many positions the logo shows on each side of the most important one."""
COLORS = (GREEN, BLUE, VERMILION, PURPLE)  # of A, C, G and T
LARGEST, SHOWN = 20, 8
"""How many of the largest weights, or columns of a table, are listed; and how many values of each of these columns."""
STEPS = {"standard": "by one standard deviation", "maxabs": "from 0 to its largest absolute value"}
"""The step of a column by which its normalized weight says what the score gains."""


def features(contributions: Contributions | str | None, drawings: list[Drawing]) -> str:
    """Return the sections on attributes, pairs and columns; "" without features. Appends the figures."""
    if contributions is None:
        return ""
    if isinstance(contributions, str):
        return html.section("What the features contribute", element("p", contributions))
    return Html("".join(section(contributions, drawings) for section in (_attributes, _pairs, _columns)))


def _attributes(contributions: Contributions, drawings: list[Drawing]) -> str:
    if not contributions.attributes:
        return ""
    meaning = (
        "An attribute contributes what it adds to the score of a row, less its mean over these rows. Its importance is "
        "the standard deviation of its contributions."
    )
    if contributions.pairs:
        meaning += " What the crosses say of a single attribute is included here, and not in the pairs below."
    if contributions.columns and (np.any(contributions.forest) or np.any(contributions.kept)):
        meaning += " What trees and original columns add is not included."
    reading = (
        "Grey bars show the share of the rows; thin lines and pale bars have no rows. Rows without a value, and of a "
        "category that training did not have (unknown), have marks of their own."
    )
    parts = _terms("attribute", contributions.attributes, SHAPES, shape_plots.shape, drawings)
    texts = element("p", meaning), element("p", reading, class_="soft")
    return html.section("What each attribute contributes", *texts, *parts)


def _pairs(contributions: Contributions, drawings: list[Drawing]) -> str:
    if not contributions.pairs:
        return ""
    meaning = (
        "A heat map shows what two attributes add to the score together, beyond what both add by themselves. Blue "
        "raises the score, and orange lowers it. Hatched cells have no rows."
    )
    parts = _terms("pair", contributions.pairs, PAIRS, shape_plots.heat_map, drawings)
    return html.section("What pairs of attributes contribute", element("p", meaning), *parts)


def _terms(
    kind: str, terms: Sequence[Term], most: int, draw: Callable[[Term, int], Drawing], drawings: list[Drawing]
) -> tuple[Html, Html]:
    """Return drawings of the strongest terms, each with its numbers in a table to open, and an overview of all."""
    strongest, figures = sorted(terms, key=lambda term: -term.deviation), list[Html]()
    for k, term in enumerate(strongest[:most], 1):
        drawings.append(draw(term, k))
        figures.append(element("div", drawings[-1].to_html(), html.details("The numbers", _numbers(term))))
    return html.side_by_side(*figures), _overview(kind, strongest, most)


def _columns(contributions: Contributions, drawings: list[Drawing]) -> str:
    shares, grown = contributions.forest + contributions.kept, bool(np.any(contributions.grown))
    shown = [("trees", contributions.forest)] * grown
    shown += [("original" if grown else "share", contributions.kept)] * bool(np.any(contributions.kept))
    if not shown:
        return ""
    shown += [("when the trees grew", contributions.grown)] * grown
    used = [j for j in np.argsort(-shares, kind="stable").tolist() if shares[j] or contributions.grown[j]]
    names = [contributions.columns[j] for j in used]
    drawing = shape_plots.importance(names[:COLUMNS], shares[used[:COLUMNS]])
    header = ["column", *(heading for heading, _ in shown)]
    listed = zip(names[:LISTED], used, strict=False)
    rows = [[name, *(_percent(values[j]) for _, values in shown)] for name, j in listed]
    terms = float(sum(term.share for term in (*contributions.attributes, *contributions.pairs)))
    rest = f" Attributes and pairs have the other {_percent(terms)}." if contributions.attributes else ""
    meaning = (
        "The share of a column is the covariance of what it adds to the score with the score, divided by the variance "
        f"of the score; a column that works against the others has a share below 0.{rest}"
    )
    if grown:
        meaning += (
            " Each split on the way to a leaf changes the mean value of the leaves that are still possible, and this"
            " step counts for the column of the split; the last column is what the splits gained when the trees grew."
        )
    left_out = f", the {LISTED} largest of {len(used)}" if len(used) > LISTED else ""
    numbers = html.details("The numbers", html.table(f"Shares of the variance of the score{left_out}", header, rows))
    figure = plots.beside(drawings, [drawing])
    return html.section("What each column contributes", element("p", meaning), figure, numbers)


def _numbers(term: Term) -> Html:
    """Return the table of an attribute, or of the cells of a pair that matter most."""
    columns, caption = term.table(), term.name
    values, shares = columns["contribution"], columns["rows"]
    if len(term.attributes) == 1:
        texts, shown = columns["code"], np.sort(np.argsort(-shares, kind="stable")[:CODES])
        if len(texts) > CODES:
            caption += f", the {CODES} with the most rows of {len(texts)}"
    else:
        texts, there = columns["first"] + " & " + columns["second"], np.flatnonzero(shares > 0)
        strength = np.abs(values[there]) * np.sqrt(shares[there])
        shown = there[np.argsort(-strength, kind="stable")[:CELLS]]
        caption += f": the {len(shown)} cells that matter most (contribution times the root of their rows)"
    rows = [[texts[k], f"{values[k]:+.4g}", _percent(shares[k])] for k in shown]
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


def words(model: Model, drawings: list[Drawing]) -> str:
    """Return the section of a report on a model of sequences; "" for other models. Appends its figures."""
    sequences = model.coded.sequences
    if sequences is None or not sequences.code_map.degree:
        return ""
    importance, degree = letter_importance(model.w, sequences.code_map), sequences.code_map.degree
    letters, first = sequences.code_map.letters, sequences.window[0]
    figures = [_positions(importance, first), _logo(importance, letters, first)]
    drawings += figures
    rows = [[f"{kmer.position}", kmer.letters, f"{kmer.score:+.4g}"] for kmer in best_kmers(model.w, sequences)]
    meaning = (
        "The importance of a letter at a position is what it adds to the mean score of random sequences; spectra are "
        f"left out. The score of a word of {degree} letters is what it adds with all shorter words in it."
    )
    caption = f"At each position the word of {degree} letters with the highest score; the {len(rows)} best of these"
    table = html.table(caption, ["begins at", "word", "score"], rows)
    return html.section("Letters and k-mers", element("p", meaning), *map(Drawing.to_html, figures), table)


def _positions(importance: Floats, first: int) -> Drawing:
    """Draw the largest and the smallest importance of a letter at each position, from the first one on."""
    last = first + len(importance) - 1
    figure, (axes,) = mpl.blank((8.4, 2.6))
    positions = np.arange(first, last + 1)
    axes.bar(positions, importance.max(axis=1), width=1.0, color=BLUE, label="best letter")
    axes.bar(positions, importance.min(axis=1), width=1.0, color=VERMILION, label="worst letter")
    axes.set(xlabel="position in the sequence", ylabel="importance", xlim=(first - 1, last + 1))
    axes.legend()
    top = first + int(importance.max(axis=1).argmax())
    caption = "Importance at each position of the letter that raises the score most, and of that which lowers it most"
    description = f"Bars over the positions {first} to {last}; the highest is at position {top}."
    return Drawing(figure, "positions", caption, description)


def _logo(importance: Floats, letters: str, first: int) -> Drawing:
    """Draw the letters around the most important position, as high as their importance."""
    top = int(importance.max(axis=1).argmax())
    begin, end = max(0, top - NEAR), min(len(importance), top + NEAR + 1)
    positions = np.arange(begin, end) + first
    figure, (axes,) = mpl.blank((8.4, 2.6))
    mpl.draw_logo(axes, positions, importance[begin:end], letters, COLORS if len(letters) == 4 else ("black",))
    axes.set(xlabel="position in the sequence", ylabel="importance")
    consensus = "".join(letters[k] for k in importance[begin:end].argmax(axis=1))
    description = f"From position {positions[0]} to {positions[-1]} the best letters are {consensus}."
    return Drawing(figure, "logo", f"Letters around position {top + first}, as high as their importance", description)


def weights(data: ReportData) -> Html:
    """Return the section on the largest weights, with a table for each kind of columns."""
    model = data.evaluation.model
    if model.coded.sequences:
        meaning = (
            "A column is named by the position at which a word begins (12:GT), or by the region in which it is counted "
            "(1-60:GT). A word adds its weight, times a factor that is smaller for longer words, as do those in it."
        )
        return html.section("Largest weights", element("p", meaning), *_largest(data, np.arange(model.p)))
    n_kept = model.p - model.coded.p  # the columns of codes come after all others
    flags = _flags(model)[:n_kept]
    parts = list[Html]()
    if not flags.all():
        step = STEPS.get(model.normalization.kind, "by one unit; sizes compare only between columns of like units")
        meaning = f"The weight of a column is what a row's score gains when the column grows {step}."
        parts += [element("p", meaning), *_largest(data, np.flatnonzero(~flags))]
    parts += _values(model, flags)
    if model.coded:
        meaning = "Bins, categories, crosses and leaves are columns of 0 and 1: a row gets the weights of all it has."
        parts += [element("p", meaning), *_largest(data, np.arange(n_kept, model.p))]
    return html.section("Largest weights", *parts)


def _flags(model: Model) -> NDArray[np.bool_]:
    """Return which columns are 0 or 1, or counts of hashed words, as far as the model knows, (p,)."""
    flags = np.zeros(model.p, bool)
    if model.table is not None and model.p > model.coded.p:
        of_table = slice(0, model.table.p)
        flags[of_table] = ~model.table.measured()
        if model.scale is not None:  # training leaves columns of 0 and 1 as they are
            flags[of_table] |= model.scale[of_table] == 1
    return flags


def _largest(data: ReportData, columns: NDArray[np.intp]) -> list[Html]:
    """Return a table of the largest weights of some columns; nothing if all are 0."""
    model, names = data.evaluation.model, data.feature_names
    w = model.normalization.unfold(model.w)  # those of the normalized columns
    largest, rows = columns[np.argsort(-np.abs(w[columns]), kind="stable")[:LARGEST]], []
    largest = largest[w[largest] != 0]
    for column in largest.tolist():
        value, share = float(w[column]), abs(w[column] / w[largest[0]])
        kind = "bar" if value > 0 else "bar minus"
        bar = element("span", class_=kind, style=f"width: {8 * share:.2f}em", aria_hidden="true")
        name = names[column] if names else model.original_name(column)
        rule = leaf_rule(model, column)
        rows.append([f"{name}: {rule}" if rule else name, f"{value:+.4g}", bar])
    counted = "" if names else f", columns counted from {0 if data.info['zero_based'] else 1}"
    caption = f"The {len(rows)} largest of {np.count_nonzero(w[columns]):,} weights that are not 0{counted}"
    return [html.table(caption, ["column", "weight", ""], rows)] if rows else []


def _values(model: Model, flags: NDArray[np.bool_]) -> list[Html]:
    """Return what is said of columns of 0 and 1, those of one column of the table together; nothing without any."""
    if model.table is None or not flags.any():
        return []
    groups = sorted(values_of(model.table, flags), key=lambda values: -_span(values, model.w))
    rows = [[each.name, f"{_span(each, model.w):.4g}", _weights_of(each, model.w)] for each in groups[:LARGEST]]
    meaning = (
        "The values of a column without numbers, and missing values, are columns of 0 and 1, whose weights do not"
        " compare with those of numbers. The largest difference is by how much two rows can differ here."
    )
    caption = f"The {len(rows)} largest of {len(groups):,} columns with values" if len(rows) < len(groups) else "Values"
    return [element("p", meaning), html.table(caption, ["column", "largest difference", "weights"], rows, text=True)]


def _span(values: Attribute, w: Floats) -> float:
    """Return by how much the scores of two rows that differ in nothing else can differ."""
    of_values = w[list(values.columns)]
    return float(np.ptp(np.append(of_values, 0.0) if values.none else of_values))


def _weights_of(values: Attribute, w: Floats) -> str:
    """Return the values with their weights, from the largest on; of many, those at both ends."""
    of_values, names, half = w[list(values.columns)], values.categories or (), SHOWN // 2
    order = np.argsort(-of_values, kind="stable").tolist()
    texts = [f"{names[k]} {of_values[k]:+.3g}" for k in order]
    if len(texts) > SHOWN:
        texts[half:-half] = [f"({len(texts) - SHOWN:,} more)"]
    return ", ".join(texts)
