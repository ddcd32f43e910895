"""Write the sections of a report on one model. Everything here runs on the root.

Each section is a function of a `ReportData`, which returns HTML and appends its figures to a list of drawings. To add a
section, add such a function to `SECTIONS`. A section for which there are no data returns an empty string.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from datetime import UTC, datetime
from typing import Any

import numpy as np

from distsms._version import __version__
from distsms.inference.evaluation import ModelEvaluation
from distsms.measures import GROUPED, HEAD, SHOWN, display_name
from distsms.metrics.confidence import Interval
from distsms.metrics.curves import Curve, Histogram
from distsms.metrics.ranking import TopK
from distsms.optim.result import Status
from distsms.report import html, kmers, plots
from distsms.report.html import Html, element
from distsms.report.plots import Drawing
from distsms.report.selection_sections import (
    BaselineResult,
    PathResult,
    baseline_section,
    drawing_to_html,
    path_section,
)
from distsms.utils.formatting import format_bytes
from distsms.utils.typing import Floats

WEIGHTS = 20
"""How many of the largest weights are shown."""


@dataclass(frozen=True)
class ReportData:
    """Everything that a report shows."""

    evaluation: ModelEvaluation  # of the model, on the rows of the report
    rows: str  # the data set or file of these rows
    level: float  # of the intervals
    curve: Curve
    histogram: Histogram
    trace: dict[str, Floats]  # the columns of the training's trace, or empty
    trace_note: str  # why the trace is empty; "" if it is not
    feature_names: Sequence[str] | None  # (p,), None for columns without names
    heads: Sequence[tuple[int, TopK]] = ()  # each K, and the measures among the K rows with the highest scores
    path: PathResult | None = None
    baseline: BaselineResult | None = None

    @property
    def info(self) -> dict[str, Any]:
        """The information that is stored with the model."""
        return self.evaluation.model.info


def compose(data: ReportData) -> tuple[str, list[Drawing]]:
    """Return the page as a string, and the drawings in it."""
    drawings: list[Drawing] = []
    sections = [section(data, drawings) for section in SECTIONS]
    name = data.evaluation.path
    head = element("header", element("h1", f"Report on {name}"), element("p", _subtitle(data), class_="soft"))
    return html.page(f"{name} - distsms report", head, *sections), drawings


def _subtitle(data: ReportData) -> str:
    measured, now = data.evaluation.measures, datetime.now(UTC).strftime("%Y-%m-%d %H:%M UTC")
    weights = measured.get("weights")
    by_weight = (
        f", by weight {weights['positive']:,.6g} positive and {weights['negative']:,.6g} negative, which say as much "
        f"as {weights['effective_positive']:,.6g} and {weights['effective_negative']:,.6g} rows of equal weight"
        if weights
        else ""
    )
    return (
        f"measured on {data.rows}: {measured['n']:,} rows, {measured['n_pos']:,} positive, {measured['n_neg']:,} "
        f"negative{by_weight}. Made by distsms {__version__}, {now}."
    )


def _headline(data: ReportData, drawings: list[Drawing]) -> Html:
    measured, intervals, info = data.evaluation.measures, data.evaluation.intervals, data.info
    gap = f"J {_number(info.get('J'))}, lower bound {_number(info.get('lower_bound'))}"
    positive, negative = (sum(measured[name] for name in names) for names in (("tp", "fn"), ("fp", "tn")))
    chance = positive / (positive + negative) if measured["n"] else math.nan
    tiles = [
        ("ROCArea", _measure(measured["rocarea"]), _describe_interval(intervals["rocarea"], data.level)),
        ("PRBEP", _measure(measured["prbep"]), _describe_interval(intervals["prbep"], data.level)),
        *(
            (display_name(name), _measure(measured[name]), _describe_interval(intervals[name], data.level))
            for name in GROUPED
            if name in intervals
        ),
        ("Average precision", _measure(measured["average_precision"]), f"chance: {_measure(chance)}"),
    ]
    if not info.get("vacuous"):  # if the optimum itself is useless, a small gap would mislead
        tiles.append(("Proved gap to the optimum", _number(info.get("gap"), ".3g"), gap))
    return html.tiles(tiles)


def _notices(data: ReportData, drawings: list[Drawing]) -> Html:
    return Html("".join(html.notice(warning) for warning in data.info.get("warnings") or []))


def _measures(data: ReportData, drawings: list[Drawing]) -> Html:
    measured = data.evaluation.measures
    labels = {"precision": "precision", "recall": "recall", "f1": "F1", "error_rate": "error rate"}
    labels |= {name: name for name in data.evaluation.extra_measures}
    if measured["n_pos"] and measured["n_neg"]:
        interval = _describe_interval(data.evaluation.intervals["rocarea"], data.level)
        curves = [
            plots.roc(data.curve, measured, interval),
            plots.roc_head(data.curve, measured),
            plots.precision_recall(data.curve, measured),
        ]
        drawings += curves
        first = html.side_by_side(*map(drawing_to_html, curves), element("div", _head(data)))
    else:
        first = element("p", "Only one class is present: there are no curves, and ROCArea is not defined.")
    histogram = plots.scores(data.histogram, measured["threshold"])
    drawings.append(histogram)
    measures = [[label, _measure(measured[name])] for name, label in labels.items()]
    form = ",.9g" if "weights" in measured else ","
    tp, fn, fp, tn = (format(measured[name], form) for name in ("tp", "fn", "fp", "tn"))
    counts = [["positive rows", tp, fn], ["negative rows", fp, tn]]
    at_threshold = [
        html.table(f"At the threshold {measured['threshold']:.6g}", ["measure", "value"], measures),
        html.table(
            f"{'Weights' if 'weights' in measured else 'Rows'} at this threshold",
            ["", "called positive", "called negative"],
            counts,
        ),
    ]
    return html.section(
        "On these rows",
        element("p", _about_intervals(data)),
        first,
        html.side_by_side(drawing_to_html(histogram), element("div", *at_threshold)),
        _highest_scores(data),
    )


def _head(data: ReportData) -> Html:
    """Return a table of the measures of the head of the ranking with their intervals."""
    measured, intervals = data.evaluation.measures, data.evaluation.intervals
    rows = [
        [display_name(name), _measure(measured[name]), _describe_interval(intervals[name], data.level)] for name in HEAD
    ]
    about = (
        "TPR is the share of the positive rows that is found if at most this share of the negative rows is called "
        "positive (FPR). The partial AUC is the area under the ROC curve up to this rate, divided by the rate."
    )
    header = ["measure", "value", "interval"]
    return Html(html.table("Head of the ranking", header, rows) + element("p", about, class_="soft"))


def _highest_scores(data: ReportData) -> str:
    """Return a table of precision, lift and recall among the K highest scores, or "" if there is no K to show."""
    n, n_pos = data.evaluation.measures["n"], data.evaluation.measures["n_pos"]
    if not (data.heads and n_pos):
        return ""
    rows = [
        [
            f"{k:,}",
            f"{100 * k / n:.3g} %",
            _measure(head.precision),
            _number(head.precision * n / n_pos, ".3g"),
            _measure(head.recall),
        ]
        for k, head in data.heads
    ]
    about = (
        "The lift is the precision divided by the share of positive rows among all rows. A lift of 3 means that the K "
        "rows contain three times as many positive rows as K rows drawn at random."
    )
    header = ["K", "share of the rows", "precision at K", "lift", "recall at K"]
    return Html(html.table("Among the K rows of highest score", header, rows) + element("p", about, class_="soft"))


def _about_intervals(data: ReportData) -> str:
    rocarea, prbep = (data.evaluation.intervals[name] for name in ("rocarea", "prbep"))
    return (
        f"Intervals of {100 * data.level:g} % ({rocarea.method} for ROCArea, {prbep.method} for PRBEP) are of "
        f"{rocarea.of}, drawn as these were; they do not include what another training would change. Curves are exact "
        "at every point that is drawn."
    )


def _training(data: ReportData, drawings: list[Drawing]) -> Html:
    info = data.info
    settings, trained_on = info.get("settings") or {}, info.get("data") or {}
    coded = data.evaluation.model.coded
    stored = "codes" if coded.sequences else "nonzeros and codes" if coded else "nonzeros"
    rows = [
        ["measure", _text(info.get("measure"))],
        ["lambda", _number(info.get("lambda"), "g")],
        ["solver", _text(settings.get("solver"))],
        ["ended", _describe_ending(info)],
        ["best J", _number(info.get("J"))],
        ["lower bound", _number(info.get("lower_bound"))],
        ["gap", _number(info.get("gap"), ".3g")],
        ["J at w = 0", _number(info.get("J_at_zero"))],
        ["evaluations", _text(info.get("evaluations"))],
        ["seconds", _number(info.get("seconds"), ".3g")],
        ["ranks", f"{_text(info.get('ranks'))}, ordering {_text(info.get('ordering'))}"],
        ["training data", _text(trained_on.get("directory"))],
        [
            "rows",
            f"{_count(trained_on.get('n'))}: {_count(trained_on.get('n_pos'))} positive, "
            f"{_count(trained_on.get('n_neg'))} negative",
        ],
        [
            "columns",
            f"{_count(trained_on.get('p'))}, {_count(trained_on.get('nnz'))} {stored}",
        ],
        *([["features", data.evaluation.model.coded.describe()]] if data.evaluation.model.coded else []),
        *(
            [f"{SHOWN.get(name, name)} on them", _measure(value)]
            for name, value in (info.get("training") or {}).items()
        ),
        ["written", _text(info.get("written"))],
    ]
    return html.section("What was trained", html.table("The model and its training", [], rows, text=True))


def _convergence(data: ReportData, drawings: list[Drawing]) -> Html:
    if not data.trace:
        return html.section("Convergence", element("p", data.trace_note))
    figures = [plots.convergence(data.trace, against) for against in ("seconds", "evaluations")]
    drawings += figures
    meaning = "No w has a J below the lower bound, so further training can lower J by at most the gap."
    return html.section("Convergence", element("p", meaning), html.side_by_side(*map(drawing_to_html, figures)))


def _path(data: ReportData, drawings: list[Drawing]) -> str:
    return path_section(data.path, drawings)


def _baseline(data: ReportData, drawings: list[Drawing]) -> str:
    return baseline_section(data.baseline, drawings)


def _weights(data: ReportData, drawings: list[Drawing]) -> Html:
    normalization, info, names = data.evaluation.model.normalization, data.info, data.feature_names
    # These are the weights of the normalized columns, whose sizes can be compared.
    w = normalization.unfold(data.evaluation.model.w)
    largest = np.argsort(-np.abs(w), kind="stable")[:WEIGHTS] if len(w) else np.empty(0, int)
    maximum = float(np.abs(w[largest]).max(initial=0.0)) or 1.0
    base = 0 if info["zero_based"] else 1
    rows = []
    for column in largest[w[largest] != 0]:
        value = float(w[column])
        bar = element(
            "span",
            class_="bar" if value > 0 else "bar minus",
            style=f"width: {8 * abs(value) / maximum:.2f}em",
            aria_hidden="true",
        )
        rows.append([names[column] if names else f"column {column + base}", f"{value:+.4g}", bar])
    counted = "" if names else f", columns counted from {base}"
    caption = f"The {len(rows)} largest of {np.count_nonzero(w):,} weights that are not 0{counted}"
    steps = {"standard": "by one standard deviation", "maxabs": "from 0 to its largest absolute value"}
    step = steps.get(normalization.kind, "by one unit; sizes compare only between columns of like units")
    meaning = f"The weight of a column is what a row's score gains when the column grows {step}."
    if sequences := data.evaluation.model.coded.sequences:
        meaning = (
            "A column is named by the position at which a word begins (12:GT), or by the region in which it is counted "
            "(1-60:GT). A word at a position adds its weight, times a factor that is smaller for longer words, to the "
            "score; so do the shorter words in it."
            + (" The table of words above adds them up." if sequences.code_map.degree else "")
        )
    return html.section("Largest weights", element("p", meaning), html.table(caption, ["column", "weight", ""], rows))


def _kmers(data: ReportData, drawings: list[Drawing]) -> str:
    model = data.evaluation.model
    return kmers.section(model.w, model.coded.sequences, drawings)


def _usage(data: ReportData, drawings: list[Drawing]) -> str:
    usage = data.info.get("usage")  # of the busiest rank, or a list of all ranks'
    if not usage:
        return ""
    ranks = usage if isinstance(usage, list) else [usage]
    phases = list(dict.fromkeys(name for rank in ranks for name in rank.get("seconds", {})))
    amounts = [name for name in ("bytes_sent", "bytes_received", "bytes_read", "peak_memory") if name in ranks[0]]
    rows = []
    for k, rank in enumerate(ranks):
        seconds = [_number(rank.get("seconds", {}).get(name), ".3f") for name in phases]
        sizes = [format_bytes(rank[name]) if name in rank else "-" for name in amounts]
        rows.append([f"rank {k}" if len(ranks) > 1 else "most of any rank", *seconds, *sizes])
    header = ["", *(f"{name} [s]" for name in phases), *(name.replace("_", " ") for name in amounts)]
    return html.section("Seconds, memory and bytes", html.table("What the training took", header, rows))


def _provenance(data: ReportData, drawings: list[Drawing]) -> Html:
    info, tables = data.info, []
    for caption, key in (("Settings", "settings"), ("Versions", "versions")):
        rows = [[name, str(value)] for name, value in (info.get(key) or {}).items() if value is not None]
        tables.append(element("div", html.table(caption, [], rows, text=True)))
    fingerprint = _text((info.get("data") or {}).get("fingerprint"))
    return html.section(
        "Settings and versions",
        element("p", f"Fingerprint of the training data: {fingerprint}", class_="soft"),
        html.side_by_side(*tables),
    )


SECTIONS: tuple[Callable[[ReportData, list[Drawing]], str], ...] = (
    _notices,
    _headline,
    _measures,
    _training,
    _convergence,
    _path,
    _baseline,
    _kmers,
    _weights,
    _usage,
    _provenance,
)


def _describe_interval(interval: Interval, level: float) -> str:
    if interval.why:
        return f"no interval: {interval.why}"
    return f"{interval.low:.4f} to {interval.high:.4f} ({100 * level:g} %)"


def _describe_ending(info: Mapping[str, Any]) -> str:
    sentences = {status.name.lower(): status.sentence for status in Status}
    detail = f": {info['detail']}" if info.get("detail") else ""
    return sentences.get(str(info.get("status")), str(info.get("status"))) + detail


def _text(value: Any) -> str:
    return "-" if value is None else str(value)


def _measure(value: float | None) -> str:
    return "not defined" if value is None or math.isnan(value) else f"{value:.4f}"


def _number(value: float | None, form: str = ".6g") -> str:
    return "-" if value is None else format(value, form)


def _count(value: int | None) -> str:
    return "-" if value is None else f"{value:,}"
