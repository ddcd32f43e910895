"""Draw the figures of a comparison (JMLR, figures 2 to 32) and of lower bounds, as PNG and SVG.

The colours are those of Okabe and Ito, which colour-blind readers can tell apart. Each method has a colour and a marker
of its own, the same in every figure.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from itertools import cycle
from pathlib import Path
from typing import Any, NamedTuple

import matplotlib
import numpy as np
from matplotlib.figure import Figure
from matplotlib.ticker import LogLocator, NullFormatter, StrMethodFormatter

from distsms.base.measures import SHOWN
from distsms.page.mpl import STYLE, save
from scripts.compare.grid import CompletedRun
from scripts.compare.tables import ROUNDING, best_run, problems

STYLES = {  # the colour and the marker of each method
    "lmvm": ("#0072B2", "o"),
    "lmvm, c_mu 10": ("#56B4E9", "s"),
    "lmvm, c_mu 100": ("#E69F00", "D"),
    "lmvm, c_mu 1000": ("#000000", "^"),
    "lbfgs": ("#999999", "1"),
    "agm": ("#009E73", "v"),
    "agm, c_mu 10": ("#F0E442", "P"),
    "bmrm": ("#D55E00", "<"),
    "bmrm-linesearch": ("#CC79A7", ">"),
}
OTHER_MARKERS = "hpd8H"  # for other values of c_mu, in the colour of their solver
LEGEND_INCHES = 1.65  # the width of the widest entry of a legend
PROVED_GAP, UNKNOWN = "proved gap", "uncertainty of the least J"
PROVED, UNPROVED = "end: proved", "end: limit or standstill"
END_MARKERS = {PROVED: "*", UNPROVED: "X"}
EARLY = 0.15  # this share of a run's test points may be below the axis: those with the lowest values, which come early
PAPERS_C_MU = 10.0  # the c_mu with which section 5.5.3 of the paper compares AGM with LMVM


class Reference(NamedTuple):
    """The least J known of a problem, and its uncertainty: a bound on its distance from the minimum of J."""

    J: float
    uncertainty: float

    @classmethod
    def of(cls, runs: Sequence[CompletedRun]) -> Reference:
        """Compute it from all runs of a problem, at least one of which must have a finite J."""
        best = best_run(runs)
        assert best is not None  # only runs with a trace are drawn, and these have a finite J
        J = best.result["J"]
        bound = max(run.result["lower_bound"] or 0.0 for run in runs)  # J is not negative
        return cls(J, max(J - bound, ROUNDING * J) or ROUNDING)


class Quantity(NamedTuple):
    """The quantity that a row of panels shows."""

    label: str  # of the y-axis; MEASURE stands for the name of the measure
    # Draws the runs of a problem into axes, given its reference and the style of each method's lines.
    draw: Callable[[Any, Sequence[CompletedRun], Reference, dict[str, dict[str, Any]]], None]


def draw(runs: Sequence[CompletedRun], title: str, folder: Path) -> list[Path]:
    """Draw all figures for which there are runs, and return the files that were written. Local.

    Parameters
    ----------
    runs : sequence of CompletedRun
        The runs of a comparison.
    title : str
        The title of the figures, to which the measure is added.
    folder : Path
        The folder for the files; it is created if necessary.
    """
    written = []
    for measure in dict.fromkeys(run.spec.measure for run in runs):
        own = [run for run in runs if run.spec.measure == measure and run.trace]
        main = [run for run in own if run.spec.c_mu == _main_c_mu(own, run.spec.solver)]
        lmvm = [run for run in own if run.spec.solver == "lmvm"]
        fixed = {PAPERS_C_MU} & {run.spec.c_mu for run in own}
        agm = [run for run in own if run.spec.solver in ("lmvm", "agm") and run.spec.c_mu in (None, *fixed)]
        both = [EXCESS, TESTED] if any(run.test for run in own) else [EXCESS]
        wanted = [("objective", main, [OBJECTIVE]), ("suboptimality", main, [EXCESS]), ("test", main, both[1:])]
        if len({run.spec.c_mu for run in lmvm}) > 1:
            wanted.append(("c_mu", lmvm, both))
        if {run.spec.solver for run in agm} == {"lmvm", "agm"}:
            wanted.append(("agm", agm, both))
        for name, group, quantities in wanted:
            if group and quantities:
                figure = panels(group, quantities, f"{title}: {SHOWN[measure]}", problems(own))
                written += save(figure, folder, f"{name}_{measure}")
    return written


def panels(
    runs: Sequence[CompletedRun],
    quantities: Sequence[Quantity],
    title: str,
    known: dict[tuple[str, float], list[CompletedRun]],
) -> Figure:
    """Draw a grid of panels, with a column for each lambda and a row for each quantity.

    Parameters
    ----------
    runs : sequence of CompletedRun
        The runs to draw, of one measure.
    quantities : sequence of Quantity
        The rows.
    title : str
        The title of the figure.
    known : dict
        All runs of each problem, also those that are not drawn; see `tables.problems`. From them the least J known is
        computed.
    """
    groups, styles = problems(runs), _styles(run.spec.method for run in runs)
    with matplotlib.rc_context(STYLE):
        figure = Figure(figsize=(1.2 + 3.1 * len(groups), 1.4 + 2.5 * len(quantities)), layout="constrained")
        grid = figure.subplots(len(quantities), len(groups), squeeze=False, sharex="col")
        for column, (problem, group) in zip(grid.T, groups.items(), strict=True):
            column[0].set_title(f"lambda = {problem[1]:g}")
            column[-1].set_xlabel("seconds of training")
            for axes, quantity in zip(column, quantities, strict=True):
                axes.set_xscale("log")
                quantity.draw(axes, group, Reference.of(known[problem]), styles)
            _plain_numbers(column[-1])
        for axes, quantity in zip(grid[:, 0], quantities, strict=True):
            axes.set_ylabel(quantity.label.replace("MEASURE", SHOWN[runs[0].spec.measure]))
        handles = {
            label: line for axes in grid.flat for line, label in zip(*axes.get_legend_handles_labels(), strict=True)
        }
        labels = sorted(handles, key=lambda label: label in (PROVED_GAP, UNKNOWN, PROVED, UNPROVED))
        lines = [handles[label] for label in labels]
        columns = int(figure.get_figwidth() / LEGEND_INCHES)
        figure.legend(lines, labels, loc="outside lower center", ncols=min(columns, len(labels)), frameon=False)
        figure.suptitle(title, parse_math=False)
    return figure


def _objective(
    axes: Any, runs: Sequence[CompletedRun], reference: Reference, styles: dict[str, dict[str, Any]]
) -> None:
    for run in runs:
        _curve(axes, run, _seconds(run.trace), run.trace["best_J"], styles)
    highest = max(max(run.result["J_at_zero"], run.trace["best_J"][-1]) for run in runs)
    margin = 0.05 * (highest - reference.J) or 1e-6
    axes.set_ylim(reference.J - margin, highest + margin)


def _excess(axes: Any, runs: Sequence[CompletedRun], reference: Reference, styles: dict[str, dict[str, Any]]) -> None:
    """Draw the best J minus the least J known.

    Since the axis is logarithmic, values below a tenth of the uncertainty of the least J are drawn at this tenth.
    """
    floor = reference.uncertainty / 10
    axes.set_yscale("log")
    axes.axhspan(floor / 2, reference.uncertainty, color="0.9", zorder=0, label=UNKNOWN)
    for run in runs:
        seconds, gap = _seconds(run.trace), run.trace["gap"]
        _curve(axes, run, seconds, np.maximum(run.trace["best_J"] - reference.J, floor), styles)
        dashed = {"linestyle": "--", "marker": "", "alpha": 0.7, "linewidth": 1.0}
        axes.plot(seconds, np.where(gap > 0, gap, np.nan), **{**styles[run.spec.method], **dashed})
    axes.plot([], [], color="grey", linestyle="--", linewidth=1.0, label=PROVED_GAP)
    axes.set_ylim(bottom=floor / 2)


def _tested(axes: Any, runs: Sequence[CompletedRun], reference: Reference, styles: dict[str, dict[str, Any]]) -> None:
    lowest = []
    for run in (run for run in runs if run.test):
        values = 100 * run.test[run.spec.measure]
        # The first evaluation is left out, since all scores tie at w = 0, and so is NaN, the measure if all test rows
        # are of one class.
        shown = (run.test["evaluation"] > 1) & np.isfinite(values)
        if shown.any():
            values = values[shown]
            _curve(axes, run, _seconds(run.test)[shown], values, styles)
            lowest.append(min(np.quantile(values, EARLY), values[-1]))
    if lowest:
        highest = max(line.get_ydata().max() for line in axes.lines if len(line.get_ydata()))
        margin = 0.05 * (highest - min(lowest)) or 1e-2
        axes.set_ylim(min(lowest) - margin, highest + margin)


def _curve(axes: Any, run: CompletedRun, x: np.ndarray, y: np.ndarray, styles: dict[str, dict[str, Any]]) -> None:
    """Draw the line of a run, with a marker at its end that shows how it ended."""
    style, ending = styles[run.spec.method], PROVED if run.result["status"] == "proved" else UNPROVED
    axes.plot(x, y, label=run.spec.method, **style)
    mark: Any = {"marker": END_MARKERS[ending], "markersize": 10, "linestyle": ""}
    axes.plot(x[-1:], y[-1:], color=style["color"], markeredgecolor="black", zorder=3, **mark)
    axes.plot([], [], color="grey", markeredgecolor="black", label=ending, **mark)


OBJECTIVE = Quantity("best J so far", _objective)
EXCESS = Quantity("best J - least J known", _excess)
TESTED = Quantity("test MEASURE [%]", _tested)


def lower_bounds(points: dict[str, dict[str, list[tuple[float, float]]]], theory: dict[str, Callable]) -> Figure:
    """Draw the evaluations until a gap of epsilon is proved, on the data of JMLR, sections 2.2 and 2.3.

    Parameters
    ----------
    points : dict
        For each measure and method, a list of pairs (epsilon, evaluations).
    theory : dict
        For each measure, the paper's lower bound on the steps of cutting-plane methods, as a function of epsilon.
    """
    with matplotlib.rc_context(STYLE):
        figure = Figure(figsize=(1.2 + 3.6 * len(points), 4.6), layout="constrained")
        grid = figure.subplots(1, len(points), squeeze=False, sharey=True)[0]
        styles = _styles(method for methods in points.values() for method in methods)
        for axes, (measure, methods) in zip(grid, points.items(), strict=True):
            for k, (method, pairs) in enumerate(methods.items()):
                # The markers are hollow and of different sizes, so that all markers at the same place are visible.
                hollow = {"markevery": 1, "drawstyle": "default", "markersize": 4 + 2 * k, "markerfacecolor": "none"}
                axes.plot(*np.array(pairs).T, label=method, **{**styles[method], **hollow})
            epsilons = np.unique([epsilon for pairs in methods.values() for epsilon, _ in pairs])
            bound = [theory[measure](epsilon) for epsilon in epsilons]
            axes.plot(epsilons, bound, "k:", label="paper's bound for cutting planes")
            axes.set(xscale="log", yscale="log", xlabel="epsilon", title=SHOWN[measure])
            axes.invert_xaxis()
        grid[0].set_ylabel("evaluations to a proved gap of epsilon")
        figure.legend(*grid[0].get_legend_handles_labels(), loc="outside lower center", ncols=2, frameon=False)
    return figure


def _main_c_mu(runs: Sequence[CompletedRun], solver: str) -> float | None:
    """Return the c_mu that stands for a solver: None (adaptive) if there is such a run, or else the smallest one."""
    c_mus = {run.spec.c_mu for run in runs if run.spec.solver == solver}
    return None if None in c_mus else min(c_mu for c_mu in c_mus if c_mu is not None)


def _seconds(columns: dict[str, np.ndarray]) -> np.ndarray:
    """Return the seconds for a logarithmic axis, where values below 1e-4 are replaced by 1e-4."""
    return np.maximum(columns["seconds"], 1e-4)


def _plain_numbers(axes: Any) -> None:
    """Label a logarithmic x-axis with plain numbers: powers of ten, and 2 and 5 times these if the axis is short."""
    low, high = axes.get_xlim()
    subs = (1.0, 2.0, 5.0) if high < 50 * low else (1.0,)
    axes.xaxis.set_major_locator(LogLocator(subs=subs))
    axes.xaxis.set_major_formatter(StrMethodFormatter("{x:g}"))
    axes.xaxis.set_minor_formatter(NullFormatter())


def _styles(methods: Iterable[str]) -> dict[str, dict[str, Any]]:
    """Return the style of each method's lines, which does not depend on what else is drawn."""
    others, styles = cycle(OTHER_MARKERS), {}
    for method in sorted(set(methods)):
        colour, marker = STYLES.get(method) or (STYLES[method.partition(",")[0]][0], next(others))
        styles[method] = {
            "color": colour,
            "marker": marker,
            "markevery": 0.12,
            "markersize": 4,
            "linewidth": 1.4,
            "drawstyle": "steps-post",
        }
    return styles
