"""Write the sections of a report on the choice of its model: the path of lambdas, and the comparison of methods."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from distsms.base.measures import display_name
from distsms.metrics.confidence import LEVEL
from distsms.metrics.estimates import METHOD
from distsms.page import html, plots
from distsms.page.html import element
from distsms.page.plots import Drawing
from distsms.workflow import baseline_text, path_text
from distsms.workflow.choice import choose, faults, means, nonzeros
from distsms.workflow.report import BaselineResult, PathResult


def path_section(result: PathResult | None, drawings: list[Drawing]) -> str:
    """Return the section on the path: a figure of the measure over lambda, the choice, and a table of all lambdas.

    Without a path this is an empty string. The figure is appended to `drawings`.
    """
    if result is None:
        return ""
    measure = result.select or result.problem["measure"]
    curve = means(result.points, measure)
    choice = choose(curve, result.rule, faults(result.points), nonzeros(result.points)) if curve else None
    header, rows = path_text.table(result.points, measure, choice)
    warnings = [element("p", f"Warning: {warning}.") for warning in result.warnings]
    parts = [html.table("Each lambda", [name or "remark" for name in header], rows)]
    if choice:
        drawing = plots.path(curve, result.points, choice, measure)
        drawings.append(drawing)
        lines = path_text.describe_choice(measure, choice, curve, result.points).strip().splitlines()
        paragraphs = [element("p", line.strip()) for line in lines]
        note = "The standard error is that of the mean over the folds; it shows how uncertain the choice is."
        paragraphs.append(element("p", note, class_="soft"))
        parts.insert(0, html.side_by_side(drawing.to_html(), element("div", *paragraphs)))
    return html.section(f"Path of lambdas, {_describe_folds(result.problem)}", *warnings, *parts)


def _describe_folds(problem: Mapping[str, Any]) -> str:
    return f"{problem['folds']} folds by {problem.get('folds_by', 'rows')}"


def baseline_section(result: BaselineResult | None, drawings: list[Drawing]) -> str:
    """Return the section on other methods: the measures of each on the folds, and by how much distsms is ahead.

    Without a baseline this is an empty string. The figures are appended to `drawings`.
    """
    if result is None:
        return ""
    measure = result.select
    name, intervals = display_name(measure), {method.method: method.intervals[measure] for method in result.methods}
    differences = {
        method.method: method.differences[measure] for method in result.methods if measure in method.differences
    }
    figures = [plots.methods("methods", f"{name} on held-out folds", f"{name} [%]", intervals, False)]
    if differences:
        label = f"{name} of distsms less the other's, points"
        figures.append(plots.methods("differences", "By how much distsms is ahead", label, differences, True))
    drawings += figures
    header, rows = baseline_text.header(measure), [baseline_text.cells(method, measure) for method in result.methods]
    caption = f"Means over {_describe_folds(result.problem)}; intervals of {100 * LEVEL:g} % are of {METHOD}"
    sentences = (element("p", sentence) for sentence in result.sentences)
    return html.section(
        "Beside other methods",
        *sentences,
        html.side_by_side(*map(Drawing.to_html, figures)),
        html.table(caption, header, rows),
    )
