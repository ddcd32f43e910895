"""The figures of a comparison (JMLR, figures 2 to 32), as PNG and SVG; the only module that imports matplotlib.

Colours are Okabe and Ito's, which colour-blind readers tell apart; each method has a marker of its own, too. Text stays
text in the SVG.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from itertools import cycle
from pathlib import Path
from typing import Any, NamedTuple

import matplotlib
import numpy as np
from matplotlib.figure import Figure
from matplotlib.ticker import LogLocator, NullFormatter, StrMethodFormatter

from distsms.cells import Cell, Finished
from distsms.solvers import SOLVERS
from distsms.tables import best_run, problems

PALETTE = ("#0072B2", "#D55E00", "#009E73", "#CC79A7", "#56B4E9", "#E69F00", "#000000")
MARKERS = "osD^vPX*<>"
STYLE: Any = {"svg.fonttype": "none", "svg.hashsalt": "distsms", "font.size": 9, "axes.grid": True, "grid.alpha": 0.3}
NAMES = {"rocarea": "ROCArea", "prbep": "PRBEP"}
LEGEND_INCHES = 1.65  # the widest entry of a legend
PROVED_GAP = "proved gap"
PAPERS_C_MU = 10.0  # AGM against LMVM, section 5.5.3


class Quantity(NamedTuple):
    """What a row of panels shows: its axis label, where MEASURE becomes the measure, and what draws a run into axes,
    given the least J known and how the run's lines look."""

    label: str
    draw: Callable[[Any, Finished, float, dict[str, Any]], None]


def draw(runs: Sequence[Finished], title: str, folder: Path) -> list[Path]:
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
                figure = panels(group, drawn, f"{title}: {NAMES[measure]}", problems(these))
                written += save(figure, folder, f"{name}_{measure}")
    return written


def panels(
    runs: Sequence[Finished],
    drawn: Sequence[Quantity],
    title: str,
    known: dict[tuple[str, float], list[Finished]],
) -> Figure:
    """A column for each lambda, a row for each quantity; the least J is that of all `known` runs of the problem."""
    groups, looks = problems(runs), _looks([one.cell for one in runs])
    with matplotlib.rc_context(STYLE):
        figure = Figure(figsize=(1.2 + 3.1 * len(groups), 1.4 + 2.5 * len(drawn)), layout="constrained")
        grid = figure.subplots(len(drawn), len(groups), squeeze=False, sharex="col")
        for column, (problem, group) in zip(grid.T, groups.items(), strict=True):
            best = best_run(known[problem])
            assert best is not None  # a run without a finite J has no trace
            column[0].set_title(f"lambda = {problem[1]:g}")
            column[-1].set_xlabel("seconds of training")
            for axes, one in zip(column, drawn, strict=True):
                axes.set_xscale("log")
                for run in group:
                    one.draw(axes, run, best.result["J"], looks[run.cell.method])
            _plain_numbers(column[-1])
        for axes, one in zip(grid[:, 0], drawn, strict=True):
            axes.set_ylabel(one.label.replace("MEASURE", NAMES[runs[0].cell.measure]))
        handles = {
            label: line for axes in grid.flat for line, label in zip(*axes.get_legend_handles_labels(), strict=True)
        }
        labels = sorted(handles, key=lambda label: label == PROVED_GAP)
        lines = [handles[label] for label in labels]
        beside = int(figure.get_figwidth() / LEGEND_INCHES)
        figure.legend(lines, labels, loc="outside lower center", ncols=min(beside, len(labels)))
        figure.suptitle(title, parse_math=False)
    return figure


def _objective(axes: Any, run: Finished, least: float, look: dict[str, Any]) -> None:
    axes.plot(_seconds(run.trace), run.trace["best_J"], label=run.cell.method, **look)
    highest = max(run.result["J_at_zero"], *(line.get_ydata()[-1] for line in axes.lines))
    margin = 0.05 * (highest - least) or 1e-6
    axes.set_ylim(least - margin, highest + margin)


def _excess(axes: Any, run: Finished, least: float, look: dict[str, Any]) -> None:
    dashed = {**look, "linestyle": "--", "marker": "", "alpha": 0.7, "linewidth": 1.0}
    for values, its_look in (
        (run.trace["best_J"] - least, {**look, "label": run.cell.method}),
        (run.trace["gap"], dashed),
    ):
        shown = values > 0  # a logarithmic axis has no place for others, and matplotlib none for a line without points
        if shown.any():
            axes.plot(_seconds(run.trace)[shown], values[shown], **its_look)
    axes.plot([], [], color="grey", linestyle="--", linewidth=1.0, label=PROVED_GAP)
    axes.set_yscale("log")


def _tested(axes: Any, run: Finished, least: float, look: dict[str, Any]) -> None:
    if run.test:
        shown = run.test["evaluation"] > 1  # at w = 0 all scores tie; drawing that would squeeze the rest
        axes.plot(_seconds(run.test)[shown], 100 * run.test[run.cell.measure][shown], label=run.cell.method, **look)


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
        for axes, (measure, methods) in zip(grid, points.items(), strict=True):
            for k, ((method, pairs), look) in enumerate(zip(methods.items(), _all_looks(), strict=False)):
                hollow = {"markevery": 1, "drawstyle": "default", "markersize": 4 + 2 * k, "markerfacecolor": "none"}
                axes.plot(*np.array(pairs).T, label=method, **{**look, **hollow})  # equal points are nested marks
            epsilons = np.unique([epsilon for pairs in methods.values() for epsilon, _ in pairs])
            bound = [theory[measure](epsilon) for epsilon in epsilons]
            axes.plot(epsilons, bound, "k:", label="paper's bound for cutting planes")
            axes.set(xscale="log", yscale="log", xlabel="epsilon", title=NAMES[measure])
            axes.invert_xaxis()
        grid[0].set_ylabel("evaluations to a proved gap of epsilon")
        figure.legend(*grid[0].get_legend_handles_labels(), loc="outside lower center", ncols=2)
    return figure


def save(figure: Figure, folder: Path, name: str) -> list[Path]:
    """Write NAME.png and NAME.svg."""
    folder.mkdir(parents=True, exist_ok=True)
    paths = [folder / f"{name}.png", folder / f"{name}.svg"]
    with matplotlib.rc_context(STYLE):
        figure.savefig(paths[0], dpi=150)
        figure.savefig(paths[1], metadata={"Date": None})
    return paths


def _main_c_mu(runs: Sequence[Finished], solver: str) -> float | None:
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


def _looks(cells: Sequence[Cell]) -> dict[str, dict[str, Any]]:
    """How the lines of each method look; adaptive and exact ones take the first colours, so that these stay theirs."""
    order = {one.method: (one.c_mu is not None, one.c_mu or 0.0, list(SOLVERS).index(one.solver)) for one in cells}
    return dict(zip(sorted(order, key=lambda method: order[method]), _all_looks(), strict=False))


def _all_looks() -> Iterator[dict[str, Any]]:
    for colour, marker in zip(cycle(PALETTE), cycle(MARKERS), strict=False):
        yield {
            "color": colour,
            "marker": marker,
            "markevery": 0.12,
            "markersize": 4,
            "linewidth": 1.4,
            "drawstyle": "steps-post",
        }
