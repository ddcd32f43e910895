"""The figures of a report on one model: curves, scores, convergence. Each is drawn once, for the page and for files."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np

from distsms.measures import SHOWN
from distsms.metrics.curves import Curve, Histogram
from distsms.report import mpl

if TYPE_CHECKING:
    from distsms.metrics.confidence import Interval
    from distsms.selection.path import Choice, Mean, Point

BLUE, VERMILION, GREEN, PURPLE = "#0072B2", "#D55E00", "#009E73", "#CC79A7"  # Okabe and Ito's
SQUARE, WIDE = (4.2, 4.4), (4.2, 3.6)  # inches
POINT = {"linestyle": "", "markersize": 9, "markeredgecolor": "black", "markeredgewidth": 0.6, "zorder": 3}


class Drawing(NamedTuple):
    """A figure, what its file is called, what it shows in one line, and what it says to who does not see it."""

    figure: Any
    name: str
    caption: str
    words: str

    def save(self, folder: Path) -> list[Path]:
        """Write NAME.png and NAME.svg."""
        return mpl.save(self.figure, folder, self.name)


def roc(curve: Curve, found: dict[str, Any], interval: str) -> Drawing:
    """The ROC curve with the model's threshold and the PRBEP point."""
    figure, (axes,) = mpl.blank(SQUARE)
    axes.plot(curve.fpr, curve.tpr, color=BLUE, label="model")
    axes.plot([0, 1], [0, 1], color="grey", linestyle=":", label="chance")
    n_pos, n_neg = found["n_pos"], found["n_neg"]
    wrong = n_pos * (1 - found["prbep"]) / n_neg
    axes.plot([wrong], [found["prbep"]], color=PURPLE, marker="D", label="PRBEP point", **POINT)
    axes.plot([found["fp"] / n_neg], [found["tp"] / n_pos], color=GREEN, marker="o", label="threshold", **POINT)
    axes.set(xlabel="false positive rate", ylabel="true positive rate (recall)", xlim=(-0.02, 1.02), ylim=(-0.02, 1.02))
    _legend(figure, 2)
    words = (
        f"ROC curve: the area below it is {found['rocarea']:.4f}, {interval}. At the model's threshold the false "
        f"positive rate is {found['fp'] / n_neg:.4f} and the true positive rate {found['tp'] / n_pos:.4f}."
    )
    return Drawing(figure, "roc", "ROC curve", words)


def precision_recall(curve: Curve, found: dict[str, Any]) -> Drawing:
    """The precision-recall curve with the model's threshold and the PRBEP point, where precision equals recall."""
    figure, (axes,) = mpl.blank(SQUARE)
    share = found["n_pos"] / found["n"]
    axes.plot(curve.tpr[1:], curve.precision[1:], color=BLUE, label="model")
    axes.axhline(share, color="grey", linestyle=":", label="chance")
    axes.plot([found["prbep"]], [found["prbep"]], color=PURPLE, marker="D", label="PRBEP point", **POINT)
    axes.plot([found["recall"]], [found["precision"]], color=GREEN, marker="o", label="threshold", **POINT)
    axes.set(xlabel="recall", ylabel="precision", xlim=(-0.02, 1.02), ylim=(-0.02, 1.02))
    _legend(figure, 2)
    words = (
        f"Precision-recall curve: precision equals recall at {found['prbep']:.4f}; at the model's threshold precision "
        f"is {found['precision']:.4f} and recall {found['recall']:.4f}. Chance gives a precision of {share:.4f}."
    )
    return Drawing(figure, "precision_recall", "Precision and recall", words)


def scores(histogram: Histogram, threshold: float) -> Drawing:
    """Histograms of the scores by class, each with an area of 1."""
    figure, (axes,) = mpl.blank(WIDE)
    edges, width = histogram.edges, histogram.edges[1] - histogram.edges[0]
    for name, counts, colour in (("negative", histogram.negative, BLUE), ("positive", histogram.positive, VERMILION)):
        density = counts / max(int(counts.sum()), 1) / width
        axes.stairs(density, edges, fill=True, color=colour, alpha=0.25)
        axes.stairs(density, edges, color=colour, linewidth=1.4, label=f"{name} rows")
    beyond = not edges[0] <= threshold <= edges[-1]
    if not beyond:
        axes.axvline(threshold, color=GREEN, linestyle="--", label="threshold")
    axes.set(xlabel="score", ylabel="share of the class per unit of score")
    axes.set_ylim(bottom=0)
    _legend(figure, 2)
    below = [
        float(np.sum(one[edges[1:] <= threshold]) / max(int(one.sum()), 1))
        for one in (histogram.positive, histogram.negative)
    ]
    words = (
        f"Histograms of the scores of positive and of negative rows, from {edges[0]:.4g} to {edges[-1]:.4g}; about "
        f"{100 * below[0]:.0f} % of the positive and {100 * below[1]:.0f} % of the negative rows score below the "
        f"threshold {threshold:.4g}{', which lies outside' if beyond else ''}."
    )
    caption = "Scores by class; the outermost bars hold all that lies beyond"
    return Drawing(figure, "scores", caption, words)


def convergence(trace: dict[str, np.ndarray], against: str) -> Drawing:
    """Best J and its lower bound above, their gap below, against "seconds" or "evaluations"."""
    figure, (above, below) = mpl.blank((4.2, 4.8), 2)
    x = trace["seconds" if against == "seconds" else "evaluation"]
    J, gap = trace["best_J"], trace["gap"]
    bound = J - gap
    look = {"drawstyle": "steps-post", "linewidth": 1.4, **({"marker": "o", "markersize": 3} if len(x) < 60 else {})}
    above.plot(x, J, color=BLUE, label="best J", **look)
    above.plot(x, bound, color=VERMILION, label="lower bound", **look)
    below.plot(x, np.where(gap > 0, gap, np.nan), color=GREEN, label="gap", **look)
    below.set_yscale("log")
    if against == "evaluations":
        below.xaxis.get_major_locator().set_params(integer=True)
    above.set_ylabel("objective J")
    below.set(xlabel="seconds of training" if against == "seconds" else "evaluations of J", ylabel="proved gap")
    _legend(figure, 3)
    words = (
        f"Course of the training by {against}: after {len(x)} evaluations and {trace['seconds'][-1]:.3g} seconds the "
        f"best J is {J[-1]:.6g}, its lower bound {bound[-1]:.6g}, the gap {gap[-1]:.3g}."
    )
    return Drawing(figure, f"convergence_{against}", f"Convergence by {against}", words)


def path(curve: Sequence[Mean], points: Sequence[Point], found: Choice, measure: str) -> Drawing:
    """The held-out measure over lambda: mean, standard error and each fold; the training rows' measure; the choice."""
    figure, (axes,) = mpl.blank(WIDE)
    name, lams = SHOWN[measure], [one.lam for one in curve]
    for_folds = [(one.lam, one.held_out[measure]) for one in points if one.held_out and one.lam in lams]
    trained = [(one.lam, one.training[measure]) for one in points if not one.lane and one.lam in lams]
    axes.plot(*zip(*for_folds, strict=True), color="grey", linestyle="", marker=".", markersize=4, label="each fold")
    axes.plot(*zip(*trained, strict=True), color=VERMILION, linestyle="--", linewidth=1.2, label="training rows")
    errors = [one.error for one in curve]
    axes.errorbar(lams, [one.mean for one in curve], errors, color=BLUE, capsize=3, label="held out, s.e.")
    axes.plot([found.chosen.lam], [found.chosen.mean], color=PURPLE, marker="D", label="chosen", **POINT)
    axes.set(xscale="log", xlabel="lambda", ylabel=name)
    _legend(figure, 2)
    words = (
        f"Held-out {name} over lambda: the best mean is {found.best.mean:.4f} at {found.best.lam:g}, the chosen lambda "
        f"is {found.chosen.lam:g} with {found.chosen.mean:.4f}, standard error {found.chosen.error:.4f}; from "
        f"{found.low.lam:g} to {found.high.lam:g} means are within one standard error of the best."
    )
    return Drawing(figure, "path", f"Held-out {name} over lambda", words)


def methods(name: str, caption: str, label: str, found: Mapping[str, Interval], zero: bool) -> Drawing:
    """A value with its interval, in per cent, for each method; with `zero` a line there."""
    figure, (axes,) = mpl.blank(WIDE)
    for at, (method, one) in enumerate(found.items()):
        colour, value = (PURPLE if method == "distsms" else BLUE), 100 * one.value
        reach = [[value - 100 * one.low], [100 * one.high - value]]
        axes.errorbar([value], [at], xerr=None if one.why else reach, color=colour, marker="o", markersize=5, capsize=3)
    if zero:
        axes.axvline(0, color="grey", linestyle=":")
    axes.set(xlabel=label, yticks=range(len(found)), yticklabels=list(found))
    axes.invert_yaxis()
    each = (
        f"{method} {100 * one.value:.2f}" + ("" if one.why else f" ({100 * one.low:.2f} to {100 * one.high:.2f})")
        for method, one in found.items()
    )
    return Drawing(figure, name, caption, f"{label}: {'; '.join(each)}.")


def _legend(figure: Any, columns: int) -> None:
    figure.legend(loc="outside lower center", ncols=columns, frameon=False)
