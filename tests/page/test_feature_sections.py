"""What a report shows of bins, crosses and leaves: figures and tables that are bounded, escaped and right."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest

pytest.importorskip("matplotlib")

from distsms.features.attributes import Attribute
from distsms.features.bins import Bins
from distsms.features.feature_map import FeatureMap
from distsms.models.model import Model
from distsms.page import html, learned_sections, mpl, sections, shape_plots
from distsms.python.judging import contributions
from tests.models.test_contributions import INFO, made_map, model_of, table
from tests.page.test_sections import EVIL, Reader, report_data

pytestmark = pytest.mark.serial


def page_of(found):
    drawn = []
    text = html.page("features", learned_sections.features(found, drawn))
    page = Reader(text)
    assert len(page.ids) == len(set(page.ids)) and "nan" not in text
    assert all(own.startswith("#") and own[1:] in page.ids for own in page.references)
    return text, [own for own in page.words if own.strip()], drawn


def test_figures_and_numbers_of_a_model_on_everything():
    X, y = table()
    X[:5, 3:7] = 0
    found = contributions(model_of(made_map(X, y, True)), X)
    text, words, drawn = page_of(found)
    names = [drawing.name for drawing in drawn]
    assert [name for name in names if name.startswith(("shape", "pair", "imp"))] == [
        "shape_1", "shape_2", "shape_3", "pair_1", "pair_2", "pair_3", "importance"
    ]  # fmt: skip
    assert {"missing", "unknown", "x", "What each attribute contributes", "What each column contributes"} <= set(words)
    strongest = max(found.attributes, key=lambda term: term.deviation)
    drawing = drawn[names.index("shape_1")]
    assert strongest.name in drawing.caption and f"{strongest.deviation:.3g}" in drawing.caption
    code = strongest.codes()[int(np.where(strongest.rows > 0, strongest.values, -9).argmax())]
    assert f"{strongest.values[strongest.rows > 0].max():.3g} for {code.split(',')[0]}" in drawing.description
    assert text.count("<details>") == 7
    j = int((found.forest + found.kept).argmax())
    row = words.index("when the trees grew")
    assert words[words.index(found.columns[j], row) + 1] == learned_sections._percent(found.forest[j])
    assert "because of &lt;b&gt;" in page_of("because of <b>")[0]


@pytest.mark.usefixtures("undrawn")
def test_a_report_has_the_section_if_there_are_contributions():
    data = report_data([-1, -1, 1, -1, 1, 1])
    assert "because of this" in sections.compose(replace(data, contributions="because of this"))[0]
    assert "contribute" not in sections.compose(data)[0]


def many(n_attributes, n_bins, n_categories, pairs, name="x"):
    """A model with so many attributes, bins and categories, and rows for it."""
    rng = np.random.default_rng(0)
    attributes = [Attribute(f"{name} {k}", (k,)) for k in range(n_attributes)]
    places = range(n_attributes, n_attributes + n_categories)
    attributes.append(Attribute(f"{name}, kind", tuple(places), tuple(f"{name} no. {j}" for j in places)))
    edges = [np.linspace(-2, 2, n_bins - 1).astype(np.float32)] * n_attributes + [np.empty(0, np.float32)]
    X = np.zeros((500, places.stop))
    X[:, :n_attributes] = rng.normal(size=(500, n_attributes))
    X[np.arange(500), n_attributes + (n_categories * rng.random(500) ** 2).astype(int)] = 1
    made = FeatureMap(places.stop, Bins(attributes, edges, pairs))
    return Model(rng.normal(size=made.p), dict(INFO), coded=made.coded, features=made), X


def test_large_maps_make_pages_of_bounded_size(monkeypatch):
    """A few of 46 attributes and 66 pairs are drawn, and bins and categories are joined."""
    monkeypatch.setattr(learned_sections, "SHAPES", 2)
    monkeypatch.setattr(learned_sections, "PAIRS", 2)
    pairs = [(b, a) for a in range(12) for b in range(a)][:65]
    model, X = many(45, 40, 300, [*pairs, (0, 45)])
    text, words, drawn = page_of(contributions(model, X))
    assert [drawing.name for drawing in drawn] == ["shape_1", "shape_2", "pair_1", "pair_2"]
    assert len(text) < 4e5
    assert "The 40 most important of 46; the 2 most important are drawn" in words


def test_joined_bins_have_the_mean_of_their_rows():
    model, X = many(1, 600, 40, [(0, 1)])
    found = contributions(model, X)
    (number, kind), (pair,) = found.attributes, found.pairs
    axis = shape_plots._Axis(number, 0, number.rows, 50)
    values, rows = axis.fold(number.values, number.rows)
    assert len(values) == 50 and axis.left_out == 0
    np.testing.assert_allclose([values @ rows, rows.sum()], [number.values @ number.rows, 1], atol=1e-12)
    codes = model.features.bins.codes(X)[:, 0]
    joined = np.searchsorted([group[0] for group in axis.groups], codes, side="right") - 1
    np.testing.assert_allclose(rows, np.bincount(joined, minlength=50) / 500)
    edges = np.searchsorted(axis.edges, X[:, 0].astype(np.float32), side="right")
    np.testing.assert_array_equal(edges, joined)
    most = shape_plots._Axis(kind, 0, kind.rows, 10)
    assert len(most.names) == 10 and most.left_out == 30
    assert min(kind.rows[[group[0] for group in most.groups]]) >= np.sort(kind.rows)[-10]
    assert "16 categories that contribute less are left out" in shape_plots.shape(kind, 1).caption
    drawing = shape_plots.heat_map(pair, 1)
    assert mpl.as_svg(drawing.figure).count("<path") < 400  # cells of one colour are one shape


@pytest.mark.parametrize(
    "edges",
    [[], [0.0], [-1e-30], [1, 2, 4], [0, 1e-3, 2e-3, 3e-3, 4e-3, 5e-3, 6e-3, 1e6], [-3e38, 0, 3e38], [1e-45, 3e-45]],
)
def test_shapes_of_any_edges_are_drawn(edges):
    bins = Bins([Attribute("$x$\n\x1b_{2}", (0,), missing=1)], [np.array(edges, np.float32)])
    made = FeatureMap(2, bins)
    model = Model(np.arange(made.p) - 1.5, dict(INFO), coded=made.coded, features=made)
    values = np.repeat([*edges, *edges, 0.0], 2)
    found = contributions(model, np.column_stack([values, np.arange(len(values)) % 3 == 0]))
    drawing = shape_plots.shape(found.attributes[0], 1)
    svg = mpl.as_svg(drawing.figure)
    assert "$x$ \\x1b_{2}" in svg and "missing" in svg and "nan" not in svg
    even = edges[:2] == [0, 1e-3] or not edges
    assert ("same width" in svg) == (even and bool(edges))


def test_what_others_wrote_is_escaped():
    model, X = many(2, 5, 3, [(0, 1), (1, 2)], EVIL)
    text, words, _ = page_of(contributions(model, X))
    assert "<script" not in text and any(EVIL in word for word in words)
