"""What a report says of how a model was chosen: the path that it is on, and what else was tried on the same folds."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, NamedTuple

from distsms.errors import InputError
from distsms.measures import SHOWN
from distsms.metrics.confidence import LEVEL, METHOD
from distsms.report import html, plots
from distsms.report.html import Html, element
from distsms.report.mpl import as_svg
from distsms.report.plots import Drawing
from distsms.selection import baseline, baseline_text, path, path_store, path_text
from distsms.selection.path import Point


class OnPath(NamedTuple):
    """A path: what it is of, its points, and the rule that chose."""

    problem: Mapping[str, Any]
    points: Sequence[Point]
    rule: str
    warnings: Sequence[str] = ()


class Beside(NamedTuple):
    """A baseline: what it is of, each method's place, and what was said of them."""

    problem: Mapping[str, Any]
    found: Sequence[baseline.MethodResult]
    sentences: Sequence[str]


def read_path(folder: Path, fingerprint: str | None) -> OnPath:
    """The finished path in a folder. Raises InputError if there is none, or one on other data than the model's."""
    there = path_store.PathStore(folder)
    told = there.read("problem", "points")
    _check(folder, told["problem"], fingerprint)
    warnings = told["warnings"] if isinstance(told.get("warnings"), list) else []
    return OnPath(told["problem"], there.points(), str(told.get("rule", "best")), list(map(str, warnings)))


def read_baseline(folder: Path, fingerprint: str | None) -> Beside:
    """The finished baseline in a folder. Raises InputError as `read_path` does."""
    there = baseline.BaselineStore(folder)
    told = there.read("problem", "methods", "sentences")
    _check(folder, told["problem"], fingerprint)
    found = [baseline.read_standing(one, there.identity) for one in told["methods"]]
    return Beside(told["problem"], found, [str(one) for one in told["sentences"]])


def _check(folder: Path, problem: Mapping[str, Any], fingerprint: str | None) -> None:
    data = problem.get("data") or {}
    if problem.get("measure") not in SHOWN or data.get("fingerprint") != fingerprint:
        raise InputError(
            f"{folder}: is of other data than the model, {data.get('path')}; name the folder that is of its"
        )


def path_section(found: OnPath | None, drawn: list[Drawing]) -> str:
    """The measure over lambda, and each lambda in a table."""
    if found is None:
        return ""
    measure = found.problem["measure"]
    curve = path.means(found.points, measure)
    chosen = path.choose(curve, found.rule, path.faults(found.points)) if curve else None
    header, rows = path_text.table(found.points, measure, chosen)
    warned = [element("p", f"Warning: {one}.") for one in found.warnings]
    parts = [html.table("Each lambda", [one or "remark" for one in header], rows)]
    if chosen:
        one = plots.path(curve, found.points, chosen, measure)
        drawn.append(one)
        lines = path_text.choice(measure, chosen, curve, found.points).strip().splitlines()
        told = [element("p", line.strip()) for line in lines]
        words = "The standard error is that of the mean over folds; it says how rough the choice is."
        parts = [html.beside(figure_of(one), element("div", *told, element("p", words, class_="soft"))), *parts]
    return html.section(f"Path of lambdas, {_folds(found.problem)}", *warned, *parts)


def _folds(problem: Mapping[str, Any]) -> str:
    return f"{problem['folds']} folds by {problem.get('folds_by', 'rows')}"


def baseline_section(found: Beside | None, drawn: list[Drawing]) -> str:
    """Each method's measures on the folds, and by how much ours is ahead."""
    if found is None:
        return ""
    measure = found.problem["measure"]
    name, less = SHOWN[measure], {one.method: one.less[measure] for one in found.found if measure in one.less}
    own = {one.method: one.sure[measure] for one in found.found}
    these = [plots.methods("methods", f"{name} on held-out folds", f"{name} [%]", own, False)]
    if less:
        label = f"{name} of distsms less the other's, points"
        these.append(plots.methods("differences", "By how much distsms is ahead", label, less, True))
    drawn += these
    header, rows = baseline_text.header(measure), [baseline_text.cells(one, measure) for one in found.found]
    caption = f"Means over {_folds(found.problem)}, intervals of {100 * LEVEL:g} %: of {METHOD}"
    told = (element("p", one) for one in found.sentences)
    return html.section(
        "Beside other methods", *told, html.beside(*map(figure_of, these)), html.table(caption, header, rows)
    )


def figure_of(one: Drawing) -> Html:
    """A drawing in the page."""
    return html.figure(as_svg(one.figure), one.name, one.caption, one.words)
