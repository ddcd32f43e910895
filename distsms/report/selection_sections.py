"""Write the sections of a report on the choice of its model: the path of lambdas, and the comparison of methods."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, NamedTuple

from distsms.base.errors import InputError
from distsms.base.measures import SHOWN, display_name
from distsms.metrics.confidence import LEVEL
from distsms.metrics.estimates import METHOD
from distsms.report import html, plots
from distsms.report.html import Html, element
from distsms.report.mpl import as_svg
from distsms.report.plots import Drawing
from distsms.workflow import baseline_text, path_store, path_text
from distsms.workflow.baseline_fits import BaselineStore
from distsms.workflow.choice import Point, choose, faults, means, nonzeros
from distsms.workflow.method_results import MethodResult


class PathResult(NamedTuple):
    """The result of a finished `distsms path`."""

    problem: Mapping[str, Any]  # data, measure and folds, as path.json has them
    points: Sequence[Point]
    rule: str  # the one of `path.RULES` that chose lambda
    warnings: Sequence[str] = ()
    select: str | None = None  # the measure that chose lambda; None: the one that was trained for


class BaselineResult(NamedTuple):
    """The result of a finished `distsms baseline`."""

    problem: Mapping[str, Any]  # data, measure and folds, as baseline.json has them
    methods: Sequence[MethodResult]
    sentences: Sequence[str]  # the conclusions
    select: str  # the measure that chose the settings


def read_path(folder: Path, fingerprint: str | None) -> PathResult:
    """Read the result of a finished path from the folder of `distsms path`.

    Raises InputError if there is no finished path, or one of other data than those with the model's fingerprint.
    """
    store = path_store.PathStore(folder)
    content = store.read("problem", "points")
    _require_same_data(folder, content["problem"], fingerprint)
    warnings = content["warnings"] if isinstance(content.get("warnings"), list) else []
    return PathResult(
        content["problem"],
        store.points(),
        str(content.get("rule", "best")),
        [str(warning) for warning in warnings],
        content.get("select"),
    )


def read_baseline(folder: Path, fingerprint: str | None) -> BaselineResult:
    """Read the result of a finished baseline from its folder; parameters and errors are those of `read_path`."""
    store = BaselineStore(folder)
    content = store.read("problem", "methods", "sentences")
    _require_same_data(folder, content["problem"], fingerprint)
    methods = [MethodResult.from_json(method, store.identity) for method in content["methods"]]
    select = content.get("select", content["problem"]["measure"])
    if not all(select in method.intervals for method in methods):  # a baseline of an earlier version
        select = content["problem"]["measure"]
    return BaselineResult(content["problem"], methods, [str(sentence) for sentence in content["sentences"]], select)


def _require_same_data(folder: Path, problem: Mapping[str, Any], fingerprint: str | None) -> None:
    data = problem.get("data") or {}
    if problem.get("measure") not in SHOWN or data.get("fingerprint") != fingerprint:
        raise InputError(
            f"{folder}: was made on other data than the model, {data.get('path')}. Name a folder that was made on the "
            "model's training data"
        )


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
        parts.insert(0, html.side_by_side(drawing_to_html(drawing), element("div", *paragraphs)))
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
        html.side_by_side(*map(drawing_to_html, figures)),
        html.table(caption, header, rows),
    )


def drawing_to_html(drawing: Drawing) -> Html:
    """Return a drawing as a figure of the page."""
    return html.figure(as_svg(drawing.figure), drawing.name, drawing.caption, drawing.description)
