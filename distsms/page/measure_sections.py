"""Write the sections of a report on what was measured: curves, operating points, scores, and probabilities."""

from __future__ import annotations

import math

from scipy import special

from distsms.base.formatting import format_number
from distsms.base.measures import GROUPED, HEAD, SHOWN, Condition, display_name
from distsms.metrics.confidence import Interval
from distsms.metrics.head_intervals import FEWEST_TRUE
from distsms.models import decision_text
from distsms.page import html, plots
from distsms.page.html import Html, element
from distsms.page.plots import Drawing
from distsms.workflow.report import ReportData


def headline(data: ReportData) -> Html:
    """Return the most important numbers as tiles."""
    measured, intervals, info = data.evaluation.measures, data.evaluation.intervals, data.info
    positive, negative = plots.sizes(measured)
    chance = measure(positive / (positive + negative) if measured["n"] else math.nan)
    tiles = []
    for name in (*SHOWN, "average_precision", *(name for name in GROUPED if name in intervals)):
        title, interval = display_name(name), _describe_interval(intervals[name], data.level)
        tiles.append((title[:1].upper() + title[1:], measure(measured[name]), interval))
    tiles[2] = (*tiles[2][:2], f"{tiles[2][2]}; chance: {chance}")
    if not info.get("vacuous"):  # if the optimum itself is useless, a small gap would mislead
        gap, J, bound = (info.get(name) for name in ("gap", "J", "lower_bound"))
        remark = f"J {format_number(J, '.6g')}, lower bound {format_number(bound, '.6g')}"
        tiles.append(("Proved gap to the optimum", format_number(gap, ".3g"), remark))
    return html.tiles(tiles)


def measures(data: ReportData, drawings: list[Drawing]) -> Html:
    """Return the section with the curves and the measures on these rows."""
    measured, intervals = data.evaluation.measures, data.evaluation.intervals
    if measured["n_pos"] and measured["n_neg"]:
        interval = _describe_interval(intervals["rocarea"], data.level)
        marked = {str(point.condition): point.rates for point in data.points if point.marked}
        points = {"threshold": measured, **marked}
        curves = [
            plots.precision_recall(data.curve, measured, points),
            plots.roc(data.curve, measured, points, interval),
            plots.roc_head(data.curve, measured, points),
            plots.gain(data.curve, measured, points),
            plots.lift(data.curve, measured, points),
        ]
        first = plots.beside(drawings, curves, element("div", _head(data)))
    else:
        first = element("p", "Only one class is present: there are no curves, and ROCArea is not defined.")
    return html.section("On these rows", element("p", "Curves are exact at every point that is drawn."), first)


def _head(data: ReportData) -> Html:
    """Return a table of the measures of the head of the ranking with their intervals."""
    measured, intervals = data.evaluation.measures, data.evaluation.intervals
    rows, lacking = [], dict[str, list[str]]()
    for name in (*HEAD, "bedroc"):
        places, interval = 2 if name.startswith("lift") else 4, intervals[name]
        if interval.why:
            lacking.setdefault(interval.why, []).append(display_name(name))
        limits = "none" if interval.why else f"{interval.low:.{places}f} to {interval.high:.{places}f}"
        rows.append([_firm(display_name(name)), measure(measured[name], places), limits])
    reasons = [f"There is no interval for {', '.join(of_why)}: {why}." for why, of_why in lacking.items()]
    about = (
        "TPR is the share of the positive rows that is found if at most this share of the negative rows is called "
        "positive (FPR). The partial AUC is the area under the ROC curve up to this rate, divided by the rate. The "
        "lift is the precision divided by the share of positive rows among all rows; in the top 1 %, which is counted "
        "exactly, with a part of the last row, it is also called the enrichment factor."
    )
    caption = f"Head of the ranking, with intervals of {100 * data.level:g} %"
    texts = [element("p", text, class_="soft") for text in (*reasons, about)]
    return Html(html.table(caption, ["measure", "value", "interval"], rows) + "".join(texts))


def operating_points(data: ReportData, drawings: list[Drawing]) -> Html | str:
    """Return the section with the model's threshold and a table of others, or "" if a class is missing."""
    measured = data.evaluation.measures
    n_pos, n_neg = plots.sizes(measured)
    if not (n_pos and n_neg):
        return ""
    header = ["threshold", "score", "called positive", "precision", "recall", "false positive rate", "lift"]
    decision = (data.info.get("decision") or {}).get("condition")
    of_folds = f": {Condition.parse(decision).in_words}" if decision else ""
    named = [(f"the model's own{of_folds}", measured | {"intervals": measured["intervals_at_threshold"]})]
    named += [(f"{point.condition.in_words} (chosen)", point.rates) for point in data.points if point.marked]
    named += [(point.condition.in_words, point.rates) for point in data.points if not point.marked]
    rows = []
    for text, at_point in named:
        name, called = _firm(text), at_point["tp"] + at_point["fp"]
        if not called:
            rows.append([name, "no score fulfils it", *[""] * 5])
            continue
        rates = [_firm(decision_text.rate(at_point["intervals"][rate])) for rate in ("precision", "recall", "fpr")]
        of_rows = f"{called:{',' if isinstance(called, int) else ',.6g'}} ({100 * called / (n_pos + n_neg):.3g} %)"
        lift = f"{at_point['precision'] * (n_pos + n_neg) / n_pos:.3g}"
        rows.append([name, f"{at_point['threshold']:.6g}", of_rows, *rates, lift])
    about = (
        "A row is called positive if its score is at least the threshold. The precision is the share of these rows "
        "that is positive, the recall the share of the positive rows that is found, and the false positive rate the "
        "share of the negative rows that is called positive. Intervals are of the rates at this threshold"
        f"{'' if measured['training_rows'] else ' on new rows'}. All thresholds but the model's own were found on the"
        " rows of this report; `distsms train --at` finds one that held-out folds of the training rows support."
    )
    few = f"Precision and recall have no interval where fewer than {FEWEST_TRUE} positive rows reach the threshold."
    promise = [element("p", _firm(text))] if (text := decision_text.promise(data.info, measured)) else []
    caption = f"Operating points, with intervals of {100 * data.level:g} %"
    parts = [element("p", about), *promise, html.table(caption, header, rows), element("p", few, class_="soft")]
    return html.section("Where to put the threshold", *parts)


def scores(data: ReportData, drawings: list[Drawing]) -> Html:
    """Return the section with the scores by class, and what the model's threshold makes of them."""
    measured = data.evaluation.measures
    labels = {"precision": "precision", "recall": "recall", "f1": "F1", "error_rate": "error rate"}
    labels |= {name: name for name in data.evaluation.extra_measures}
    rows = [[label, measure(measured[name])] for name, label in labels.items()]
    noun, form = ("Weights", ",.9g") if "weights" in measured else ("Rows", ",")
    cell = {name: format(measured[name], form) for name in ("tp", "fn", "fp", "tn")}
    counts = [["positive rows", cell["tp"], cell["fn"]], ["negative rows", cell["fp"], cell["tn"]]]
    at_threshold = [
        html.table(f"At the threshold {measured['threshold']:.6g}", ["measure", "value"], rows),
        html.table(f"{noun} at this threshold", ["", "called positive", "called negative"], counts),
    ]
    histogram = plots.scores(data.histogram, measured["threshold"])
    return html.section("Scores", plots.beside(drawings, [histogram], element("div", *at_threshold)))


def probabilities(data: ReportData, drawings: list[Drawing]) -> Html | str:
    """Return the section on the probabilities of a calibrated model, with its reliability diagram, or ""."""
    calibration, on_these = data.info.get("calibration"), data.probabilities
    if not calibration:
        return ""
    measured, bins = data.evaluation.measures, {"held-out folds": calibration["bins"]}
    if on_these and on_these.bins:
        bins = {"these rows": on_these.bins, **bins}
    share = (measured["tp"] + measured["fn"]) / sum(measured[name] for name in ("tp", "fp", "fn", "tn"))
    rows = []
    for key, name in (("brier", "Brier score"), ("log_loss", "log loss")):
        for when, losses in (("before", on_these and on_these.before), ("after", on_these and on_these.after)):
            on_rows = measure(losses[key]) if losses else "-"
            rows.append([f"{name}, {when} calibration", measure(calibration[key][when]), on_rows])
        constant = {"brier": share * (1 - share), "log_loss": float(special.entr([share, 1 - share]).sum())}[key]
        on_rows = measure(constant) if on_these else "-"
        rows.append([f"{name}, the same for every row", measure(calibration[key].get("constant")), on_rows])
    about = (
        f"The method {calibration['method']}, fitted to the scores of {calibration['folds']} held-out folds of the "
        "training rows, makes probabilities of scores. The Brier score is the mean squared difference between "
        "probability and label, 1 or 0; the log loss is the mean of minus the logarithm of the probability of the true "
        f"label. Both are smaller where probabilities are better. Before calibration, it is {calibration['before']}. "
        "The last line of each is that of the share of positive rows for every row."
    )
    table = html.table("How good the probabilities are", ["", "held-out folds", "these rows"], rows)
    figures = plots.beside(drawings, [plots.reliability(bins, share)], element("div", table))
    return html.section("Probabilities", element("p", about), figures)


def _describe_interval(interval: Interval, level: float) -> str:
    limits = f"{interval.low:.4f} to {interval.high:.4f} ({100 * level:g} %)"
    return f"no interval: {interval.why}" if interval.why else limits


def _firm(text: str) -> str:
    """Return the text such that no line ends before a per cent sign."""
    return text.replace(" %", "\u00a0%")


def measure(value: float | None, places: int = 4) -> str:
    """Return the value of a measure as text."""
    return "not defined" if value is None or math.isnan(value) else f"{value:.{places}f}"
