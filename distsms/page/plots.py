"""Draw the figures of a report on one model: scores, convergence, path and baseline.

Each figure is drawn once, for both the page and the files of `distsms report --figures`. The curves and the reliability
diagram are in `distsms.report.curve_plots`.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np

from distsms.base.measures import display_name
from distsms.metrics.curves import Histogram
from distsms.page import mpl

if TYPE_CHECKING:
    from distsms.metrics.confidence import Interval
    from distsms.workflow.choice import Choice, Mean, Point

BLUE, VERMILION, GREEN, PURPLE = "#0072B2", "#D55E00", "#009E73", "#CC79A7"  # the palette of Okabe and Ito
SQUARE, WIDE = (4.2, 4.4), (4.2, 3.6)  # inches
POINT = {"linestyle": "", "markersize": 9, "markeredgecolor": "black", "markeredgewidth": 0.6, "zorder": 3}


class Drawing(NamedTuple):
    """A figure and the texts that go with it."""

    figure: Any  # of matplotlib
    name: str  # of its files, without their ending; unique in a report
    caption: str  # what it shows, for newcomers
    description: str  # what it shows, for readers who cannot see it

    def save(self, folder: Path) -> list[Path]:
        """Write NAME.png and NAME.svg into a folder, and return their paths."""
        return mpl.save(self.figure, folder, self.name)


def scores(histogram: Histogram, threshold: float) -> Drawing:
    """Draw histograms of the scores of both classes, each with an area of 1, and the model's threshold."""
    figure, (axes,) = mpl.blank(WIDE)
    edges, width = histogram.edges, histogram.edges[1] - histogram.edges[0]
    for name, counts, colour in (("negative", histogram.negative, BLUE), ("positive", histogram.positive, VERMILION)):
        density = counts / (counts.sum() or 1) / width
        axes.stairs(density, edges, fill=True, color=colour, alpha=0.25)
        axes.stairs(density, edges, color=colour, linewidth=1.4, label=f"{name} rows")
    outside = not edges[0] <= threshold <= edges[-1]
    if not outside:
        axes.axvline(threshold, color=GREEN, linestyle="--", label="threshold")
    axes.set(xlabel="score", ylabel="share of the class per unit of score")
    axes.set_ylim(bottom=0)
    legend(figure, 2)
    below = [
        float(np.sum(counts[edges[1:] <= threshold]) / (counts.sum() or 1))
        for counts in (histogram.positive, histogram.negative)
    ]
    description = (
        f"Histograms of the scores of positive and of negative rows, from {edges[0]:.4g} to {edges[-1]:.4g}; about "
        f"{100 * below[0]:.0f} % of the positive and {100 * below[1]:.0f} % of the negative rows score below the "
        f"threshold {threshold:.4g}{', which lies outside' if outside else ''}."
    )
    caption = "Scores by class; the outermost bars also count the scores beyond them"
    return Drawing(figure, "scores", caption, description)


def convergence(trace: dict[str, np.ndarray], against: str) -> Drawing:
    """Draw the best J and its lower bound in the upper axes and their gap in the lower ones, over a column of the
    trace.
    """
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
    description = (
        f"Course of the training by {against}: after {len(x)} evaluations and {trace['seconds'][-1]:.3g} seconds the "
        f"best J is {J[-1]:.6g}, its lower bound {bound[-1]:.6g}, the gap {gap[-1]:.3g}."
    )
    return Drawing(figure, f"convergence_{against}", f"Convergence by {against}", description)


def path(curve: Sequence[Mean], points: Sequence[Point], choice: Choice, measure: str) -> Drawing:
    """Draw a measure over lambda: on each held-out fold, their mean and standard error, and on the training rows.

    Points whose lambda is not on the curve, which begins at the largest one, are left out; the chosen lambda is marked.
    """
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
    best, chosen = choice.best, choice.chosen
    description = (
        f"Held-out {name} over lambda: the best mean is {best.mean:.4f} at {best.lam:g}, the chosen lambda "
        f"is {chosen.lam:g} with {chosen.mean:.4f}, standard error {chosen.error:.4f}; from "
        f"{choice.low.lam:g} to {choice.high.lam:g} the means are within one standard error of the best mean."
    )
    return Drawing(figure, "path", f"Held-out {name} over lambda", description)


def methods(name: str, caption: str, label: str, intervals: Mapping[str, Interval], zero_line: bool) -> Drawing:
    """Draw a value with its interval, in per cent, for each method.

    `label` is that of the x-axis. With `zero_line` there is a vertical line at 0, which differences are compared with.
    """
    figure, (axes,) = mpl.blank(WIDE)
    for y, (method, interval) in enumerate(intervals.items()):
        value, style = 100 * interval.value, {"marker": "o", "markersize": 5, "capsize": 3}
        reach = None if interval.why else [[value - 100 * interval.low], [100 * interval.high - value]]
        axes.errorbar([value], [y], xerr=reach, color=PURPLE if method == "distsms" else BLUE, **style)
    if zero_line:
        axes.axvline(0, color="grey", linestyle=":")
    axes.set(xlabel=label, yticks=range(len(intervals)), yticklabels=list(intervals))
    axes.invert_yaxis()
    each = (
        f"{method} {100 * interval.value:.2f}"
        + ("" if interval.why else f" ({100 * interval.low:.2f} to {100 * interval.high:.2f})")
        for method, interval in intervals.items()
    )
    return Drawing(figure, name, caption, f"{label}: {'; '.join(each)}.")


def legend(figure: Any, columns: int) -> None:
    """Put the legend of a figure below its axes."""
    figure.legend(loc="outside lower center", ncols=columns, frameon=False)
