"""Draw the figures of a report: scores, curves, reliability, convergence, path and baseline, for page and files."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np

from distsms.base.measures import HEAD, HeadMeasure, display_name
from distsms.metrics.curves import Curve, Histogram
from distsms.page import html, mpl
from distsms.page.html import Html

if TYPE_CHECKING:
    from distsms.metrics.confidence import Interval
    from distsms.workflow.choice import Choice, Mean, Point

BLUE, VERMILION = "#0072B2", "#D55E00"  # the palette of Okabe and Ito
GREEN, PURPLE = "#009E73", "#CC79A7"
SQUARE, WIDE = (4.2, 4.4), (4.2, 3.6)  # inches
FROM_0_TO_1 = (-0.02, 1.02)  # with room for marks at the ends
POINT = {"linestyle": "", "markersize": 9, "markeredgecolor": "black", "markeredgewidth": 0.6, "zorder": 3}

MARKERS = "^v<>PX"
RARE = 0.05
"""If fewer rows than this share are positive, most probabilities are near 0, and the axes show the ends enlarged."""


class Drawing(NamedTuple):
    """A figure and the texts that go with it."""

    figure: Any  # of matplotlib
    name: str  # of its files, without their ending; unique in a report
    caption: str  # what it shows, for newcomers
    description: str  # what it shows, for readers who cannot see it

    def save(self, folder: Path) -> list[Path]:
        """Write NAME.png and NAME.svg into a folder, and return their paths."""
        return mpl.save(self.figure, folder, self.name)

    def to_html(self) -> Html:
        """Return the figure of a page."""
        return html.figure(mpl.as_svg(self.figure), self.name, self.caption, self.description)


Points = Mapping[str, Mapping[str, Any]]
"""Operating points by name, that of the model first, with the rows that each calls positive (`tp`, `fp`)."""


def scores(histogram: Histogram, threshold: float) -> Drawing:
    """Draw histograms of the scores of both classes, each with an area of 1, and the model's threshold."""
    figure, (axes,) = mpl.blank(WIDE)
    edges, width = histogram.edges, histogram.edges[1] - histogram.edges[0]
    for name, counts, colour in (("negative", histogram.negative, BLUE), ("positive", histogram.positive, VERMILION)):
        density = counts / (counts.sum() or 1) / width
        axes.stairs(density, edges, fill=True, color=colour, alpha=0.25)
        axes.stairs(density, edges, color=colour, linewidth=1.4, label=f"{name} rows")
    inside = edges[0] <= threshold <= edges[-1]
    if inside:
        axes.axvline(threshold, color=GREEN, linestyle="--", label="threshold")
    axes.set(xlabel="score", ylabel="share of the class per unit of score")
    axes.set_ylim(bottom=0)
    legend(figure, 2)
    positive, negative = (
        f"{100 * np.sum(counts[edges[1:] <= threshold]) / (counts.sum() or 1):.0f} %"
        for counts in (histogram.positive, histogram.negative)
    )
    description = (
        f"Histograms of the scores of both classes, from {edges[0]:.4g} to {edges[-1]:.4g}; about {positive} of the "
        f"positive and {negative} of the negative rows are below the threshold {threshold:.4g}"
        f"{'' if inside else ', which lies outside'}."
    )
    caption = "Scores by class; the outermost bars also count the scores beyond them"
    return Drawing(figure, "scores", caption, description)


def convergence(trace: dict[str, np.ndarray], against: str) -> Drawing:
    """Draw the best J and its lower bound in the upper axes, and their gap in the lower ones."""
    figure, (above, below) = mpl.blank((4.2, 4.8), 2)
    x = trace["seconds" if against == "seconds" else "evaluation"]
    J, gap = trace["best_J"], trace["gap"]
    bound = J - gap
    style = {"drawstyle": "steps-post", "linewidth": 1.4, **({"marker": "o", "markersize": 3} if len(x) < 60 else {})}
    above.plot(x, J, color=BLUE, label="best J", **style)
    above.plot(x, bound, color=VERMILION, label="lower bound", **style)
    below.plot(x, np.where(gap > 0, gap, np.nan), color=GREEN, label="gap", **style)
    below.set_yscale("log")
    if against == "evaluations":
        below.xaxis.get_major_locator().set_params(integer=True)
    above.set_ylabel("objective J")
    below.set(xlabel="seconds of training" if against == "seconds" else "evaluations of J", ylabel="proved gap")
    legend(figure, 3)
    end = f"best J is {J[-1]:.6g}, its lower bound {bound[-1]:.6g}, the gap {gap[-1]:.3g}"
    after = f"after {len(x)} evaluations and {trace['seconds'][-1]:.3g} seconds"
    description = f"Course of the training by {against}: {after} the {end}."
    return Drawing(figure, f"convergence_{against}", f"Convergence by {against}", description)


def path(curve: Sequence[Mean], points: Sequence[Point], choice: Choice, measure: str) -> Drawing:
    """Draw a measure over lambda: on each held-out fold, their mean and error, and on the training rows."""
    figure, (axes,) = mpl.blank(WIDE)
    name, lams = display_name(measure), [mean.lam for mean in curve]
    on_folds = [(point.lam, point.held_out[measure]) for point in points if point.held_out and point.lam in lams]
    trained = [(point.lam, point.training.get(measure)) for point in points if not point.fold and point.lam in lams]
    axes.plot(*zip(*on_folds, strict=True), color="grey", linestyle="", marker=".", markersize=4, label="each fold")
    axes.plot(*zip(*trained, strict=True), color=VERMILION, linestyle="--", linewidth=1.2, label="training rows")
    errors = [mean.error for mean in curve]
    axes.errorbar(lams, [mean.mean for mean in curve], errors, color=BLUE, capsize=3, label="held out, s.e.")
    axes.plot([choice.chosen.lam], [choice.chosen.mean], color=PURPLE, marker="D", label="chosen", **POINT)
    axes.set(xscale="log", xlabel="lambda", ylabel=name)
    legend(figure, 2)
    best, marked = choice.best, choice.chosen
    description = (
        f"Held-out {name} over lambda: the best mean is {best.mean:.4f} at {best.lam:g}, the chosen lambda is "
        f"{marked.lam:g} with {marked.mean:.4f}, standard error {marked.error:.4f}; within one standard error of the "
        f"best mean are {choice.low.lam:g} to {choice.high.lam:g}."
    )
    return Drawing(figure, "path", f"Held-out {name} over lambda", description)


def methods(name: str, caption: str, label: str, intervals: Mapping[str, Interval], zero_line: bool) -> Drawing:
    """Draw a value with its interval, in per cent, for each method; differences have a line at 0."""
    figure, (axes,) = mpl.blank(WIDE)
    for y, (method, interval) in enumerate(intervals.items()):
        value, style = 100 * interval.value, {"marker": "o", "markersize": 5, "capsize": 3}
        reach = None if interval.why else [[value - 100 * interval.low], [100 * interval.high - value]]
        axes.errorbar([value], [y], xerr=reach, color=PURPLE if method == "distsms" else BLUE, **style)
    if zero_line:
        axes.axvline(0, color="grey", linestyle=":")
    axes.set(xlabel=label, yticks=range(len(intervals)), yticklabels=list(intervals))
    axes.invert_yaxis()
    limits = {k: "" if i.why else f" ({100 * i.low:.2f} to {100 * i.high:.2f})" for k, i in intervals.items()}
    each = (f"{method} {100 * interval.value:.2f}{limits[method]}" for method, interval in intervals.items())
    return Drawing(figure, name, caption, f"{label}: {'; '.join(each)}.")


def roc(curve: Curve, measured: Mapping[str, Any], points: Points, interval: str) -> Drawing:
    """Draw the ROC curve, with the point of the PRBEP, and operating points."""
    figure, (axes,) = mpl.blank(SQUARE)
    axes.plot(curve.fpr, curve.tpr, color=BLUE, label="model")
    axes.plot([0, 1], [0, 1], color="grey", linestyle=":", label="chance")
    n_pos, n_neg = sizes(measured)
    prbep_fpr = n_pos * (1 - measured["prbep"]) / n_neg  # at the PRBEP, as many rows are false positives as are missed
    axes.plot([prbep_fpr], [measured["prbep"]], color=PURPLE, marker="D", label="PRBEP point", **POINT)
    axes.set(xlabel="false positive rate", ylabel="true positive rate (recall)", xlim=FROM_0_TO_1, ylim=FROM_0_TO_1)
    _draw(axes, points, lambda tp, fp: (fp / n_neg, tp / n_pos))
    rates = f"FPR is {measured['fp'] / n_neg:.4f} and the TPR {measured['tp'] / n_pos:.4f}"
    description = f"ROC curve: the area is {measured['rocarea']:.4f}, {interval}. At the model's threshold the {rates}."
    caption = (
        "ROC curve. Each point is a threshold: the share of positives that it finds (up), and of false alarms (right)."
    )
    return Drawing(figure, "roc", caption, description)


def roc_head(curve: Curve, measured: Mapping[str, Any], points: Points) -> Drawing:
    """Draw the ROC curve over a logarithmic false positive rate, from half a negative row on."""
    figure, (axes,) = mpl.blank(SQUARE)
    n_pos, n_neg = sizes(measured)
    least = 0.5 / measured["n_neg"]
    axes.plot(np.maximum(curve.fpr, least), curve.tpr, color=BLUE, drawstyle="steps-post", label="model")
    chance = np.geomspace(least, 1, 100)
    axes.plot(chance, chance, color="grey", linestyle=":", label="chance")
    of_head = [HeadMeasure.parse(name) for name in HEAD]
    rates = {each.level: measured[each.name] for each in of_head if each and each.family == "tpr@fpr"}
    axes.plot(list(rates), list(rates.values()), color=PURPLE, marker="s", label="FPR 0.1, 1 and 5 %", **POINT)
    axes.set(xscale="log", xlabel="false positive rate", xlim=(least * 0.9, 1.1))
    axes.set(ylabel="true positive rate (recall)", ylim=FROM_0_TO_1)
    mpl.show_percent(axes.xaxis)
    _draw(axes, points, lambda tp, fp: (max(fp / n_neg, least), tp / n_pos))
    each = ", ".join(f"{value:.4f} at {100 * rate:g} %" for rate, value in rates.items())
    description = f"Head of the ROC curve over a logarithmic false positive rate: the true positive rate is {each}."
    caption = "The same ROC curve, with its head enlarged: each step to the left allows a tenth of the false alarms."
    return Drawing(figure, "roc_head", caption, description)


def precision_recall(curve: Curve, measured: Mapping[str, Any], points: Points) -> Drawing:
    """Draw the precision-recall curve, with the operating points and where both are equal (PRBEP)."""
    figure, (axes,) = mpl.blank(SQUARE)
    n_pos, n_neg = sizes(measured)
    share = n_pos / (n_pos + n_neg)
    recalls, precisions = curve.precision_recall()
    axes.plot(recalls, precisions, color=BLUE, label="model")
    axes.axhline(share, color="grey", linestyle=":", label="chance")
    axes.plot([measured["prbep"]], [measured["prbep"]], color=PURPLE, marker="D", label="PRBEP point", **POINT)
    axes.set(xlabel="recall", ylabel="precision", xlim=FROM_0_TO_1, ylim=FROM_0_TO_1)
    _draw(axes, points, lambda tp, fp: (tp / n_pos, tp / (tp + fp)))
    precision = f"{measured['precision']:.4f}" if measured["tp"] + measured["fp"] else "not defined"
    description = (
        f"Precision-recall curve: precision equals recall at {measured['prbep']:.4f}; at the model's threshold "
        f"precision is {precision} and recall {measured['recall']:.4f}. Chance gives a precision of {share:.4f}."
    )
    caption = (
        "Precision and recall. To find more of the positive rows (right), usually more other rows are called positive."
    )
    return Drawing(figure, "precision_recall", caption, description)


def gain(curve: Curve, measured: Mapping[str, Any], points: Points) -> Drawing:
    """Draw the gain chart: the recall over the share of the rows that are called positive."""
    figure, (axes,) = mpl.blank(SQUARE)
    n_pos, n_neg = sizes(measured)
    n = n_pos + n_neg
    called = (curve.tp + curve.fp) / n
    axes.plot(called, curve.tpr, color=BLUE, label="model")
    axes.plot([0, n_pos / n, 1], [0, 1, 1], color="grey", linestyle="--", label="perfect order")
    axes.plot([0, 1], [0, 1], color="grey", linestyle=":", label="random order")
    axes.set(xlabel="share of the rows, from the highest score", ylabel="share of the positive rows among them")
    axes.set(xlim=FROM_0_TO_1, ylim=FROM_0_TO_1)
    _draw(axes, points, lambda tp, fp: ((tp + fp) / n, tp / n_pos))
    tenth = float(np.interp(0.1, called, curve.tpr))
    description = f"Gain chart: the tenth of the rows with the highest scores has {tenth:.4f} of the positive rows."
    caption = (
        "Gain chart. This share of the rows with the highest scores (right) has this share of the positive rows (up)."
    )
    return Drawing(figure, "gain", caption, description)


def lift(curve: Curve, measured: Mapping[str, Any], points: Points) -> Drawing:
    """Draw the lift over the share of the rows that are called positive, on a logarithmic axis."""
    figure, (axes,) = mpl.blank(SQUARE)
    n_pos, n_neg = sizes(measured)
    n = n_pos + n_neg
    called = (curve.tp + curve.fp) / n
    first = called[called > 0].min()  # the model's threshold, which is on the curve, may be above all scores
    shares = np.union1d(called[called > 0], np.geomspace(first, 1, 300))
    axes.plot(shares, np.interp(shares, called, curve.tpr) / shares, color=BLUE, label="model")
    axes.plot(shares, 1 / np.maximum(shares, n_pos / n), color="grey", linestyle="--", label="perfect order")
    axes.axhline(1, color="grey", linestyle=":", label="random order")
    axes.set(xscale="log", xlabel="share of the rows, from the highest score", ylabel="lift")
    mpl.show_percent(axes.xaxis)
    _draw(axes, points, lambda tp, fp: ((tp + fp) / n, tp / n_pos / ((tp + fp) / n)))
    axes.set_ylim(bottom=0)
    hundredth = float(np.interp(0.01, called, curve.tpr)) / 0.01
    description = f"Lift over the share of rows: in the highest 1 % of the rows the lift is {hundredth:.3g}."
    caption = "Lift. This share of the rows (right) has so many times as many positives as rows picked at random (up)."
    return Drawing(figure, "lift", caption, description)


def reliability(bins: Mapping[str, Sequence[Mapping[str, float]]], share: float) -> Drawing:
    """Draw the reliability diagram: the share of positive rows over the mean probability, in bins."""
    figure, (axes,) = mpl.blank(SQUARE)
    smallest = min((each["predicted"] for part in bins.values() for each in part if each["predicted"] > 0), default=1)
    least = max(min(smallest, 0.01) / 3, 1e-6) if share < RARE else 0.0
    styles = ({"color": BLUE, "marker": "o"}, {"color": VERMILION, "marker": "s", "markerfacecolor": "none"})
    each = []
    for (name, of_rows), style in zip(bins.items(), styles, strict=False):
        points = {key: np.array([one[key] for one in of_rows]) for key in ("predicted", "observed", "low", "high")}
        shown = {key: np.clip(values, least, 1 - least) for key, values in points.items()}
        y = shown["observed"]
        reach = [np.maximum(y - shown["low"], 0), np.maximum(shown["high"] - y, 0)]
        axes.errorbar(shown["predicted"], y, reach, markersize=5, capsize=3, linewidth=1.2, label=name, **style)
        pairs = ", ".join(f"{p:.3g}: {y:.3g}" for p, y in zip(points["predicted"], points["observed"], strict=True))
        each.append(f"{name}: {pairs}")
    label = {"xlabel": "predicted probability (mean of the bin)", "ylabel": "share of positive rows in the bin"}
    if share < RARE:
        ends = least, 1 - least
        axes.set(xscale="logit", yscale="logit", xlim=(least / 1.2, 1 - least / 1.2), **label)
        axes.set_ylim(axes.get_xlim())
        mpl.show_percent(axes.xaxis)
        mpl.show_percent(axes.yaxis)
    else:
        ends = 0.0, 1.0
        axes.set(xlim=FROM_0_TO_1, ylim=FROM_0_TO_1, **label)
    axes.plot(ends, ends, color="grey", linestyle=":", label="perfect", zorder=1)
    legend(figure, 2)
    caption = (
        "Reliability. Of the rows of some probability (right), this share is positive (up), with the 95 % interval."
    )
    description = f"Reliability diagram, predicted probability and share of positives of each bin: {'; '.join(each)}."
    return Drawing(figure, "reliability", caption, description)


def _draw(axes: Any, points: Points, place: Callable[[float, float], tuple[float, float]]) -> None:
    """Draw the operating points that call any row positive, and the legend; `place` returns x and y of a point."""
    for (name, rates), marker in zip(points.items(), "o" + len(points) * MARKERS, strict=False):
        if rates["tp"] + rates["fp"]:
            x, y = place(rates["tp"], rates["fp"])
            axes.plot([x], [y], color=GREEN if marker == "o" else VERMILION, marker=marker, label=name, **POINT)
    legend(axes.figure, 2)


def beside(drawings: list[Drawing], figures: Sequence[Drawing], *parts: Html) -> Html:
    """Add figures to the drawings of a page, and return them side by side, with further parts behind them."""
    drawings += figures
    return html.side_by_side(*map(Drawing.to_html, figures), *parts)


def sizes(measured: Mapping[str, Any]) -> tuple[float, float]:
    """Return the numbers of positive and of negative rows, or the sums of their weights."""
    return measured["tp"] + measured["fn"], measured["fp"] + measured["tn"]


def legend(figure: Any, columns: int) -> None:
    """Put the legend of a figure below its axes."""
    figure.legend(loc="outside lower center", ncols=columns, frameon=False)
