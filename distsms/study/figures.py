"""The figures of a comparison (JMLR, figures 2 to 32), as PNG and SVG; the only module that imports matplotlib.

What it takes to draw and write any figure is here, too: `blank`, `save`, `as_svg`.

Colours are Okabe and Ito's, which colour-blind readers tell apart; each method has a colour and a marker of its own,
the same in every figure. Text stays text in the SVG.
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

from distsms.measures import SHOWN
from distsms.report.mpl import STYLE, save
from distsms.study.grid import CompletedRun
from distsms.study.tables import ROUNDING, best_run, problems

LOOKS = {  # method -> colour, marker
    "lmvm": ("#0072B2", "o"),
    "lmvm, c_mu 10": ("#56B4E9", "s"),
    "lmvm, c_mu 100": ("#E69F00", "D"),
    "lmvm, c_mu 1000": ("#000000", "^"),
    "agm": ("#009E73", "v"),
    "agm, c_mu 10": ("#F0E442", "P"),
    "bmrm": ("#D55E00", "<"),
    "bmrm-linesearch": ("#CC79A7", ">"),
}
OTHER_MARKERS = "hpd8H"  # of other widths and variants, which have their solver's colour
LEGEND_INCHES = 1.65  # the widest entry of a legend
PROVED_GAP, UNKNOWN = "proved gap", "uncertainty of the least J"
PROVED, UNPROVED = "end: proved", "end: limit or standstill"
END_MARKERS = {PROVED: "*", UNPROVED: "X"}
EARLY = 0.15  # share of a run's test points, w near 0 as a rule, for which the axis is not stretched
PAPERS_C_MU = 10.0  # AGM against LMVM, section 5.5.3


class Reference(NamedTuple):
    """The least J known of a problem, and how far above the minimum it may be."""

    J: float
    uncertainty: float

    @classmethod
    def of(cls, runs: Sequence[CompletedRun]) -> Reference:
        """From all runs of a problem, of which one at least has a finite J."""
        best = best_run(runs)
        assert best is not None  # a run without a finite J has no trace
        J = best.result["J"]
        bound = max(one.result["lower_bound"] or 0.0 for one in runs)  # J is not negative
        return cls(J, max(J - bound, ROUNDING * J) or ROUNDING)


class Quantity(NamedTuple):
    """What a row of panels shows: its axis label, where MEASURE becomes the measure, and what draws the runs of a
    problem into axes, given its reference and how each method's lines look."""

    label: str
    draw: Callable[[Any, Sequence[CompletedRun], Reference, dict[str, dict[str, Any]]], None]


def draw(runs: Sequence[CompletedRun], title: str, folder: Path) -> list[Path]:
    """All figures of the runs that there is something to show for; returns the files. Local."""
    written = []
    for measure in dict.fromkeys(one.cell.measure for one in runs):
        these = [one for one in runs if one.cell.measure == measure and one.trace]
        main = [one for one in these if one.cell.c_mu == _main_c_mu(these, one.cell.solver)]
        lmvm = [one for one in these if one.cell.solver == "lmvm"]
        fixed = {PAPERS_C_MU} & {one.cell.c_mu for one in these}
        agm = [one for one in these if one.cell.solver in ("lmvm", "agm") and one.cell.c_mu in (None, *fixed)]
        both = [EXCESS, TESTED] if any(one.test for one in these) else [EXCESS]
        wanted = [("objective", main, [OBJECTIVE]), ("suboptimality", main, [EXCESS]), ("test", main, both[1:])]
        if len({one.cell.c_mu for one in lmvm}) > 1:
            wanted.append(("c_mu", lmvm, both))
        if {one.cell.solver for one in agm} == {"lmvm", "agm"}:
            wanted.append(("agm", agm, both))
        for name, group, drawn in wanted:
            if group and drawn:
                figure = panels(group, drawn, f"{title}: {SHOWN[measure]}", problems(these))
                written += save(figure, folder, f"{name}_{measure}")
    return written


def panels(
    runs: Sequence[CompletedRun],
    drawn: Sequence[Quantity],
    title: str,
    known: dict[tuple[str, float], list[CompletedRun]],
) -> Figure:
    """A column for each lambda, a row for each quantity; the least J is that of all `known` runs of the problem."""
    groups, looks = problems(runs), _looks(one.cell.method for one in runs)
    with matplotlib.rc_context(STYLE):
        figure = Figure(figsize=(1.2 + 3.1 * len(groups), 1.4 + 2.5 * len(drawn)), layout="constrained")
        grid = figure.subplots(len(drawn), len(groups), squeeze=False, sharex="col")
        for column, (problem, group) in zip(grid.T, groups.items(), strict=True):
            column[0].set_title(f"lambda = {problem[1]:g}")
            column[-1].set_xlabel("seconds of training")
            for axes, one in zip(column, drawn, strict=True):
                axes.set_xscale("log")
                one.draw(axes, group, Reference.of(known[problem]), looks)
            _plain_numbers(column[-1])
        for axes, one in zip(grid[:, 0], drawn, strict=True):
            axes.set_ylabel(one.label.replace("MEASURE", SHOWN[runs[0].cell.measure]))
        handles = {
            label: line for axes in grid.flat for line, label in zip(*axes.get_legend_handles_labels(), strict=True)
        }
        labels = sorted(handles, key=lambda label: label in (PROVED_GAP, UNKNOWN, PROVED, UNPROVED))
        lines = [handles[label] for label in labels]
        beside = int(figure.get_figwidth() / LEGEND_INCHES)
        figure.legend(lines, labels, loc="outside lower center", ncols=min(beside, len(labels)))
        figure.suptitle(title, parse_math=False)
    return figure


def _objective(axes: Any, runs: Sequence[CompletedRun], reference: Reference, looks: dict[str, dict[str, Any]]) -> None:
    for run in runs:
        _curve(axes, run, _seconds(run.trace), run.trace["best_J"], looks)
    highest = max(max(run.result["J_at_zero"], run.trace["best_J"][-1]) for run in runs)
    margin = 0.05 * (highest - reference.J) or 1e-6
    axes.set_ylim(reference.J - margin, highest + margin)


def _excess(axes: Any, runs: Sequence[CompletedRun], reference: Reference, looks: dict[str, dict[str, Any]]) -> None:
    """What lies below a tenth of the uncertainty is drawn there, that no run leaves the logarithmic axis."""
    floor = reference.uncertainty / 10
    axes.set_yscale("log")
    axes.axhspan(floor / 2, reference.uncertainty, color="0.9", zorder=0, label=UNKNOWN)
    for run in runs:
        seconds, gap = _seconds(run.trace), run.trace["gap"]
        _curve(axes, run, seconds, np.maximum(run.trace["best_J"] - reference.J, floor), looks)
        dashed = {"linestyle": "--", "marker": "", "alpha": 0.7, "linewidth": 1.0}
        axes.plot(seconds, np.where(gap > 0, gap, np.nan), **{**looks[run.cell.method], **dashed})
    axes.plot([], [], color="grey", linestyle="--", linewidth=1.0, label=PROVED_GAP)
    axes.set_ylim(bottom=floor / 2)


def _tested(axes: Any, runs: Sequence[CompletedRun], reference: Reference, looks: dict[str, dict[str, Any]]) -> None:
    lowest = []
    for run in (one for one in runs if one.test):
        values = 100 * run.test[run.cell.measure]
        shown = (run.test["evaluation"] > 1) & np.isfinite(values)  # at w = 0 all scores tie; one class: no measure
        if shown.any():
            values = values[shown]
            _curve(axes, run, _seconds(run.test)[shown], values, looks)
            lowest.append(min(np.quantile(values, EARLY), values[-1]))
    if lowest:
        highest = max(line.get_ydata().max() for line in axes.lines if len(line.get_ydata()))
        margin = 0.05 * (highest - min(lowest)) or 1e-2
        axes.set_ylim(min(lowest) - margin, highest + margin)


def _curve(axes: Any, run: CompletedRun, x: np.ndarray, y: np.ndarray, looks: dict[str, dict[str, Any]]) -> None:
    """A run's line, with a mark at its end that says how it ended."""
    look, ending = looks[run.cell.method], PROVED if run.result["status"] == "proved" else UNPROVED
    axes.plot(x, y, label=run.cell.method, **look)
    mark: Any = {"marker": END_MARKERS[ending], "markersize": 10, "linestyle": ""}
    axes.plot(x[-1:], y[-1:], color=look["color"], markeredgecolor="black", zorder=3, **mark)
    axes.plot([], [], color="grey", markeredgecolor="black", label=ending, **mark)


OBJECTIVE = Quantity("best J so far", _objective)
EXCESS = Quantity("best J - least J known", _excess)
TESTED = Quantity("test MEASURE [%]", _tested)


def lower_bounds(points: dict[str, dict[str, list[tuple[float, float]]]], theory: dict[str, Callable]) -> Figure:
    """Evaluations until a gap of epsilon is proved on the data of JMLR 2.2 and 2.3.

    points : measure -> method -> (epsilon, evaluations).  theory : measure -> the paper's bound, a function of epsilon.
    """
    with matplotlib.rc_context(STYLE):
        figure = Figure(figsize=(1.2 + 3.6 * len(points), 4.6), layout="constrained")
        grid = figure.subplots(1, len(points), squeeze=False, sharey=True)[0]
        looks = _looks(method for methods in points.values() for method in methods)
        for axes, (measure, methods) in zip(grid, points.items(), strict=True):
            for k, (method, pairs) in enumerate(methods.items()):
                hollow = {"markevery": 1, "drawstyle": "default", "markersize": 4 + 2 * k, "markerfacecolor": "none"}
                axes.plot(
                    *np.array(pairs).T, label=method, **{**looks[method], **hollow}
                )  # equal points are nested marks
            epsilons = np.unique([epsilon for pairs in methods.values() for epsilon, _ in pairs])
            bound = [theory[measure](epsilon) for epsilon in epsilons]
            axes.plot(epsilons, bound, "k:", label="paper's bound for cutting planes")
            axes.set(xscale="log", yscale="log", xlabel="epsilon", title=SHOWN[measure])
            axes.invert_xaxis()
        grid[0].set_ylabel("evaluations to a proved gap of epsilon")
        figure.legend(*grid[0].get_legend_handles_labels(), loc="outside lower center", ncols=2)
    return figure


def _main_c_mu(runs: Sequence[CompletedRun], solver: str) -> float | None:
    """Of a solver's smoothings the adaptive one, or else the narrowest."""
    there = {one.cell.c_mu for one in runs if one.cell.solver == solver}
    return None if None in there else min(one for one in there if one is not None)


def _seconds(columns: dict[str, np.ndarray]) -> np.ndarray:
    """Seconds that a logarithmic axis can show."""
    return np.maximum(columns["seconds"], 1e-4)


def _plain_numbers(axes: Any) -> None:
    """Label a logarithmic x-axis in plain numbers: decades or, where these are few, 1, 2, 5, ...; none overlap."""
    low, high = axes.get_xlim()
    subs = (1.0, 2.0, 5.0) if high < 50 * low else (1.0,)
    axes.xaxis.set_major_locator(LogLocator(subs=subs))
    axes.xaxis.set_major_formatter(StrMethodFormatter("{x:g}"))
    axes.xaxis.set_minor_formatter(NullFormatter())


def _looks(methods: Iterable[str]) -> dict[str, dict[str, Any]]:
    """How the lines of each method look, whatever else is drawn; see LOOKS and OTHER_MARKERS."""
    others, looks = cycle(OTHER_MARKERS), {}
    for method in sorted(set(methods)):
        colour, marker = LOOKS.get(method) or (LOOKS[method.partition(",")[0]][0], next(others))
        looks[method] = {
            "color": colour,
            "marker": marker,
            "markevery": 0.12,
            "markersize": 4,
            "linewidth": 1.4,
            "drawstyle": "steps-post",
        }
    return looks
