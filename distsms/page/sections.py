"""Write a report on one model, on the root, as a model card: functions of a `ReportData`, listed in `CHAPTERS`, that
return HTML ("" without data), and append their figures to a list.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from datetime import datetime, timezone
from typing import Any

from distsms.base._version import __version__
from distsms.base.formatting import format_bytes, format_number, format_rows
from distsms.base.measures import SHOWN, display_name
from distsms.metrics import row_sample
from distsms.metrics.confidence import LEVEL
from distsms.metrics.estimates import METHOD
from distsms.page import card, feature_sections, html, kmers, measure_sections, plots, weights
from distsms.page.html import Html, element
from distsms.page.plots import Drawing
from distsms.workflow import baseline_text, path_result
from distsms.workflow.report import ReportData


def compose(data: ReportData) -> tuple[str, list[Drawing]]:
    """Return the page as a string, and the drawings in it."""
    drawings: list[Drawing] = []
    chapters = [
        html.chapter(heading, *(section(data, drawings) for section in sections))
        for heading, sections in CHAPTERS.items()
    ]
    name = data.evaluation.path
    head = element("header", element("h1", f"Report on {name}"), element("p", _subtitle(data), class_="soft"))
    first = [head, _notices(data), measure_sections.headline(data), html.contents(list(CHAPTERS))]
    return html.page(f"{name} - distsms report", *first, *chapters), drawings


def _subtitle(data: ReportData) -> str:
    measured, now = data.evaluation.measures, datetime.now(timezone.utc).strftime("%Y-%m-%d %H:%M UTC")
    weights = measured.get("weights")
    by_weight = (
        f", by weight {weights['positive']:,.6g} positive and {weights['negative']:,.6g} negative, which say as much "
        f"as {weights['effective_positive']:,.6g} and {weights['effective_negative']:,.6g} rows of equal weight"
        if weights
        else ""
    )
    return (
        f"measured on {data.rows}: {format_rows(measured['n'], ',')}, {measured['n_pos']:,} positive, "
        f"{measured['n_neg']:,} negative{by_weight}. Made by distsms {__version__}, {now}."
    )


def _notices(data: ReportData) -> Html:
    of_rows = row_sample.describe_share(data.evaluation.measures["training_rows"])
    return Html("".join(map(html.notice, [*filter(None, [of_rows]), *(data.info.get("warnings") or [])])))


def _training(data: ReportData, drawings: list[Drawing]) -> Html:
    info = data.info
    settings = info.get("settings") or {}
    rows = [
        ["model", "a linear score of each row, <w, x>" + f" + {data.evaluation.model.bias:g}" * bool(info.get("bias"))],
        ["label", card.labels(data)],
        ["measure", format_number(info.get("measure"))],
        ["lambda", format_number(info.get("lambda"), "g")],
        *([["search", info["search"]["reason"]]] if info.get("search") else []),
        *([["l1", f"{info['l1']:g}; {info['nonzeros']} coefficients are not 0"]] if info.get("l1") else []),
        ["solver", format_number(settings.get("solver"))],
        ["ended", data.ending],
        ["best J", format_number(info.get("J"), ".6g")],
        ["lower bound", format_number(info.get("lower_bound"), ".6g")],
        ["gap", format_number(info.get("gap"), ".3g")],
        ["J at w = 0", format_number(info.get("J_at_zero"), ".6g")],
        ["evaluations", format_number(info.get("evaluations"))],
        ["seconds", format_number(info.get("seconds"), ".3g")],
        ["ranks", f"{format_number(info.get('ranks'))}, ordering {format_number(info.get('ordering'))}"],
        *(
            [f"{SHOWN.get(name, name)} on the training rows", measure_sections.measure(value)]
            for name, value in (info.get("training") or {}).items()
        ),
        ["written", f"{format_number(info.get('written'))} on {format_number(info.get('host'))}"],
        ["command", format_number(info.get("command"))],
    ]
    table = html.table("The model and its training", [], rows, text=True)
    return html.section("What was trained", table, card.owner(data, "Model details"))


def _proof(data: ReportData, drawings: list[Drawing]) -> Html:
    """Return what was proved of the model, and how others can check it."""
    info, certified = data.info, data.info.get("certificate")
    if info.get("lower_bound") is None:
        return Html("")
    J = f"lambda/2 ||w||²{' + l1 ||w||₁' * bool(info.get('l1'))} + R(w)"
    sentences = (
        f"The training minimizes J(w) = {J} on its rows, where R is the convex risk of {info.get('measure')}. No"
        f" linear model has a J below {format_number(info.get('lower_bound'), '.6g')}, so the J of this one,"
        f" {format_number(info.get('J'), '.6g')}, is at most {format_number(info.get('gap'), '.3g')} above the"
        " smallest."
    )
    check = "Without a certificate this rests on the program's word; distsms train --certificate FILE writes one."
    if certified is not None:
        check = (
            f"The certificate {certified['file']} proves it without the program: a number for each training row, from"
            f" which the bound {format_number(certified['bound'], '.6g')} follows by arithmetic. distsms verify derives"
            " it, and so does scripts/verify_certificate.py, which needs NumPy and h5py alone."
        )
    return html.section("What was proved", element("p", sentences), element("p", check))


def _convergence(data: ReportData, drawings: list[Drawing]) -> Html:
    if not data.trace:
        return html.section("Convergence", element("p", data.trace_note))
    figures = [plots.convergence(data.trace, against) for against in ("seconds", "evaluations")]
    drawings += figures
    meaning = "No w has a J below the lower bound, so further training can lower J by at most the gap."
    return html.section("Convergence", element("p", meaning), html.side_by_side(*map(Drawing.to_html, figures)))


def _path(data: ReportData, drawings: list[Drawing]) -> str:
    """Return the section on the path: a figure, the choice, and a table of all lambdas; "" without a path."""
    if (result := data.path) is None:
        return ""
    measure, choice = result.select, result.choice
    header, rows = path_result.points_table(result.points, measure, choice)
    warnings = [element("p", f"Warning: {warning}.") for warning in result.data_warnings]
    parts = [html.table("Each lambda", [name or "remark" for name in header], rows)]
    if choice:
        drawing = plots.path(result.means, result.points, choice, measure)
        drawings.append(drawing)
        text = path_result.describe_choice(measure, choice, result.means, result.points, result.rule)
        paragraphs = [element("p", line.strip()) for line in text.strip().splitlines()]
        note = "The standard error is that of the mean over the folds; it shows how uncertain the choice is."
        paragraphs.append(element("p", note, class_="soft"))
        parts.insert(0, html.side_by_side(drawing.to_html(), element("div", *paragraphs)))
    return html.section(f"Path of lambdas, {_describe_folds(result.problem)}", *warnings, *parts)


def _describe_folds(problem: Mapping[str, Any]) -> str:
    return f"{problem['folds']} folds by {problem.get('folds_by', 'rows')}"


def _baseline(data: ReportData, drawings: list[Drawing]) -> str:
    """Return the section on other methods, and by how much distsms is ahead; "" without a baseline."""
    if (result := data.baseline) is None:
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


def _usage(data: ReportData, drawings: list[Drawing]) -> str:
    usage = data.info.get("usage")  # of the busiest rank, or a list of all ranks'
    if not usage:
        return ""
    ranks = usage if isinstance(usage, list) else [usage]
    phases = list(dict.fromkeys(name for rank in ranks for name in rank.get("seconds", {})))
    amounts = [name for name in ("bytes_sent", "bytes_received", "bytes_read", "peak_memory") if name in ranks[0]]
    rows = []
    for k, rank in enumerate(ranks):
        seconds = [format_number(rank.get("seconds", {}).get(name), ".3f") for name in phases]
        sizes = [format_bytes(rank[name]) if name in rank else "-" for name in amounts]
        rows.append([f"rank {k}" if len(ranks) > 1 else "most of any rank", *seconds, *sizes])
    header = ["", *(f"{name} [s]" for name in phases), *(name.replace("_", " ") for name in amounts)]
    return html.section("Seconds, memory and bytes", html.table("What the training took", header, rows))


def _provenance(data: ReportData, drawings: list[Drawing]) -> Html:
    tables = []
    for caption, key in (("Settings", "settings"), ("Versions", "versions")):
        rows = [[name, str(value)] for name, value in (data.info.get(key) or {}).items() if value is not None]
        tables.append(element("div", html.table(caption, [], rows, text=True)))
    return html.details("Settings and versions", html.side_by_side(*tables))


Section = Callable[[ReportData, list[Drawing]], str]
CHAPTERS: dict[str, tuple[Section, ...]] = {
    "Model details": (_training, _proof, _convergence, _usage, _provenance),
    "Intended use": (card.intended_use,),
    "Factors": (card.factors,),
    "Metrics": (card.metrics,),
    "Evaluation data": (card.evaluation_data,),
    "Training data": (card.training_data,),
    "Quantitative analyses": (
        measure_sections.measures,
        measure_sections.operating_points,
        measure_sections.probabilities,
        measure_sections.scores,
        _path,
        _baseline,
        lambda data, drawings: kmers.section(data.evaluation.model, drawings),
        lambda data, drawings: feature_sections.section(data.contributions, drawings),
        lambda data, drawings: weights.section(data),
    ),
    "Ethical considerations": (lambda data, drawings: card.owner(data, "Ethical considerations"),),
    "Caveats and recommendations": (card.caveats,),
}
"""The headings of a model card, and the sections of each."""
