"""The picture with which each page of results begins, drawn from the records of a published file.

`PICTURES` has a function for each file that has one. They are drawn narrow, so that they can be read on a telephone.
"""

from __future__ import annotations

import re
import statistics
from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Any

from distsms.base.measures import display_name
from distsms.page import mpl
from scripts.records import Record

BLUE, VERMILION, GREEN, PURPLE, GREY = "#0072B2", "#D55E00", "#009E73", "#CC79A7", "#808080"
COLOURS = (BLUE, VERMILION, GREEN, PURPLE, GREY)
MARKERS = "oD^sv"
WIDTH, LINE, MARGIN = 4.6, 0.2, 0.9
"""In inches: the width of a picture, the height of a line in it, and that of axis and legend."""
Points = Mapping[str, Sequence[tuple[float, int]]]
"""By the name of a series: the value and the line of each of its points."""


def _lines(names: Sequence[str], label: str) -> tuple[Any, Any]:
    """Return a figure and its axes with a line for each name, the first at the top."""
    figure, (axes,) = mpl.blank((WIDTH, LINE * len(names) + MARGIN))
    axes.set_axisbelow(True)
    axes.set(yticks=range(len(names)), yticklabels=names, ylim=(len(names) - 0.5, -0.5))
    figure.supxlabel(label, fontsize="medium")  # of the figure, since it is longer than many axes
    return figure, axes


def _finish(figure: Any, columns: int) -> str:
    """Return a figure as SVG, with a legend of so many columns above it, none for 0."""
    if columns:
        figure.legend(loc="outside upper center", ncols=columns, frameon=False)
    return mpl.as_svg(figure)


def _dots(names: Sequence[str], series: Points, label: str, at: float | None = None, log: bool = True) -> str:
    """Draw a dot for each point, and a vertical line `at` the value that means a tie."""
    figure, axes = _lines(names, label)
    if log:
        axes.set_xscale("log")
        axes.xaxis.set_major_formatter(lambda value, _: f"{value:g}")
        axes.xaxis.set_minor_formatter(lambda value, _: "")
    if at is not None:
        axes.axvline(at, color=GREY)
    for colour, marker, (name, points) in zip(COLOURS, MARKERS, series.items(), strict=False):
        values, lines = zip(*points, strict=True)
        axes.plot(values, lines, color=colour, marker=marker, linestyle="", markersize=5, alpha=0.8, label=name)
    return _finish(figure, 2 if len(series) > 1 else 0)


def _intervals(rows: Iterable[tuple[str, float, float, float]], label: str) -> str:
    """Draw values with intervals, from (name, value, low, high), and a line at 0; colours tell what excludes 0."""
    rows = list(rows)
    figure, axes = _lines([name for name, *_ in rows], label)
    axes.axvline(0, color=GREY)
    axes.set_xscale("symlog", linthresh=1.0)  # where one interval is far off, the others are still told apart
    axes.xaxis.set_major_formatter(lambda value, _: f"{value:g}")
    for line, (_, value, low, high) in enumerate(rows):
        colour = GREY if low <= 0 <= high else BLUE if low > 0 else VERMILION
        axes.errorbar([value], [line], xerr=[[value - low], [high - value]], color=colour, marker="o", markersize=4)
    return _finish(figure, 0)


def _shares(names: Sequence[str], parts: Mapping[str, Sequence[float]], label: str) -> str:
    """Draw a bar for each name, divided into parts in per cent of their sum."""
    figure, axes = _lines(names, label)
    sums = [sum(counts) for counts in zip(*parts.values(), strict=True)]
    left = [0.0] * len(names)
    for colour, (part, counts) in zip(COLOURS, parts.items(), strict=False):
        widths = [100 * count / (whole or 1) for count, whole in zip(counts, sums, strict=True)]
        axes.barh(range(len(names)), widths, left=left, color=colour, label=part)
        left = [start + width for start, width in zip(left, widths, strict=True)]
    axes.set_xlim(0, 100)
    axes.grid(axis="y", visible=False)
    return _finish(figure, 2)


def _curves(x: Sequence[float], curves: Mapping[str, Sequence[float]], labels: tuple[str, str]) -> str:
    """Draw curves over x, both on a logarithmic axis if x doubles from place to place."""
    figure, (axes,) = mpl.blank((WIDTH, 3.2))
    for colour, marker, (name, values) in zip(COLOURS, MARKERS, curves.items(), strict=False):
        axes.plot(x, values, color=colour, marker=marker, markersize=4, label=name)
    axes.set(xscale="log", xlabel=labels[0], ylabel=labels[1], xticks=x, xticklabels=[f"{value:g}" for value in x])
    axes.xaxis.set_minor_formatter(lambda value, _: "")
    return _finish(figure, 2)


def _problem(row: Record) -> str:
    return f"{row['set']}, {display_name(row['measure'])}, {row['lambda']:g}"


def time_ratios(rows: Sequence[Record]) -> str:
    """How many times as long as LIBLINEAR and scikit-learn a proof takes, on each set."""
    measured = [row for row in rows if "median" not in row["what"] and "worst" not in row["what"]]
    sets, points = list(dict.fromkeys(row["data"] for row in measured)), dict[str, list[tuple[float, int]]]()
    for row in measured:
        points.setdefault(f"to {row['what'].rpartition('time ratio to ')[2]}", []).append(
            (row["value"], sets.index(row["data"]))
        )
    return _dots(sets, points, "time of a proof / time of the other program", at=1)


def from_text(rows: Sequence[Record]) -> str:
    """The median time from a text to a model, as a multiple of what distsms takes."""
    groups = dict[tuple[float, str], list[Record]]()
    for row in rows:
        groups.setdefault((row["gigabytes"], row["program"]), []).append(row)
    median = {key: statistics.median(row["seconds"] for row in group) for key, group in groups.items()}
    names = [f"{program}, {size:g} GB: {group[0]['auc']:.3f}" for (size, program), group in groups.items()]
    values = [seconds / median[size, "distsms"] for (size, _), seconds in median.items()]
    figure, axes = _lines(names, "time / time of distsms")
    axes.barh(range(len(names)), values, color=[BLUE if "distsms" in name else VERMILION for name in names])
    axes.axvline(1, color=GREY)
    axes.grid(axis="y", visible=False)
    return _finish(figure, 0)


def speedups(rows: Sequence[Record]) -> str:
    """How many times as fast parts of an evaluation are on more ranks."""
    parts = ("X w [s]", "X'c [s]", "loss from cells [s]", "loss by sorting [s]")
    curves = {part.removesuffix(" [s]"): [rows[0][part] / row[part] for row in rows] for part in parts}
    curves["reading memory"] = [rows[0]["triad [s]"] / row["triad [s]"] * row["ranks"] for row in rows]
    return _curves([row["ranks"] for row in rows], curves, ("ranks", "times as fast as one rank"))


def evaluations(rows: Sequence[Record]) -> str:
    """How many evaluations a proof takes, in the paper's setting and in the default one."""
    series = {
        name: [(row[key]["proof"], line) for line, row in enumerate(rows) if isinstance(row[key].get("proof"), int)]
        for name, key in (("default", "default"), ("the paper's setting", "paper"))
    }
    return _dots([*map(_problem, rows)], series, "evaluations until a gap of 1e-3 is proved")


def against_lightgbm(rows: Sequence[Record]) -> str:
    """By how much models on features are ahead of LightGBM."""
    leads = [(row, row["ahead"]["distsms - lightgbm"]) for row in rows]
    return _intervals(
        (
            (f"{row['set']}, {display_name(row['measure'])}", *(100 * lead[key] for key in ("value", "low", "high")))
            for row, lead in leads
        ),
        "ahead of LightGBM by [points]",
    )


def of_tables(rows: Sequence[Record]) -> str:
    """By how much the default model of a table is ahead of LightGBM and of logistic regression."""
    pairs = {"lightgbm": "LightGBM", "logistic": "logistic regression"}
    return _intervals(
        (
            (
                f"{row['table']}, {name}",
                *(100 * row["ahead"][f"default - {other}"][key] for key in ("value", "low", "high")),
            )
            for other, name in pairs.items()
            for row in rows
        ),
        "ahead by [points of ROCArea]",
    )


def head(rows: Sequence[Record]) -> str:
    """By how much training for the head is ahead of the best of four usual models."""
    return _intervals(
        (
            (f"{row['data']}, {row['select']}", *(100 * row[key] for key in ("ahead_by", "low", "high")))
            for row in rows
            if "ahead_by" in row
        ),
        "pauc ahead of the best of four models by [points]",
    )


def coverage(rows: Sequence[Record]) -> str:
    """How often intervals of ROCArea contain the true value, over the number of positive rows."""
    rows = [row for row in rows if row["part"] == "model"]
    counts, curves = sorted({row["n_pos"] for row in rows}), dict[str, list[float]]()
    for key, name in (("ours", "distsms"), ("before", "usual")):
        for which, of in (("mean", statistics.fmean), ("lowest", min)):
            shares = ([row["rocarea"][key]["covered"] for row in rows if row["n_pos"] == count] for count in counts)
            curves[f"{name}, {which}"] = [100 * of(each) for each in shares]
    return _curves(counts, curves, ("positive rows", "intervals that contain the truth [%]"))


def lambdas(rows: Sequence[Record]) -> str:
    """What other ways to choose lambda lose against a path on five folds."""
    rows = [row for row in rows if row["normalization"] == "standard"]
    ways = {"auto": "auto", "auto on a tenth": "auto on a tenth", "1": "always 1", "1e-4": "always 1e-4"}
    series = {
        name: [(100 * (row["test"][way] - row["test"]["path"]), line) for line, row in enumerate(rows)]
        for way, name in ways.items()
    }
    label = "ROCArea of test rows minus that of a path [points]"
    return _dots([row["set"] for row in rows], series, label, at=0, log=False)


def attacks(rows: Sequence[Record]) -> str:
    """How runs ended on each kind of problem."""
    kinds = [row for row in rows if row["by"] == "kind"]
    ended: dict[str, tuple[str, ...]] = {"proved": ("PROVED",), "limits of rounding": ("ROUNDING",)}
    ended["other ends, such as a limit"] = ("FLOOR", "LIMIT", "STALLED", "NONFINITE", "STOPPED", "TIME")
    parts = {name: [sum(row[status] for status in statuses) for row in kinds] for name, statuses in ended.items()}
    parts["false bounds"] = [row["false_bounds"] for row in kinds]
    return _shares([row["kind"] for row in kinds], parts, "runs [%]")


def chaos(rows: Sequence[Record]) -> str:
    """What disturbed jobs left behind, by what disturbed them."""
    left = {
        "the complete result": ("complete",),
        "the older result, untouched": ("the older result",),
        "a part, which was continued": ("incomplete", "other figures"),
        "nothing, as before": ("nothing",),
    }
    faults = list(dict.fromkeys(row["fault"] for row in rows))
    parts = {
        name: [sum(row["fault"] == fault and row["left"].startswith(words) for row in rows) for fault in faults]
        for name, words in left.items()
    }
    return _shares(faults, parts, "jobs [%]")


def table2(rows: Sequence[Record]) -> str:
    """Seconds until J is within 1 % of the least one, for smoothing and cutting planes, now and in 2012."""
    cells = [row["cells"] for row in rows if not row["every_lambda"]]
    names = [f"{cell['set']}, {display_name(cell['measure'])}, {cell['lambda']}" for cell in cells]
    methods = {"lmvm": "lmvm", "bmrm": "cutting planes (bmrm)", "SMS 2012": "SMS, 2012", "BMRM 2012": "BMRM, 2012"}
    series = {}
    for method, name in methods.items():
        matches = [re.match(r"([\d.]+) s", cell.get(method, "")) for cell in cells]
        series[name] = [(max(float(match[1]), 0.01), line) for line, match in enumerate(matches) if match]
    return _dots(names, series, "seconds until J is within 1 % of the least one")


def strings(rows: Sequence[Record]) -> str:
    """Seconds of training for ROCArea on sequences, by features and solver."""
    rows = [row for row in rows if row["measure"] == "rocarea"]
    maps = list(dict.fromkeys(row["map"] for row in rows))
    best = [max(row["rocarea"] for row in rows if row["map"] == each) for each in maps]
    names = [f"{each.rpartition(': ')[2]}: {value:.4f}" for each, value in zip(maps, best, strict=True)]
    series = {
        solver: [(row["seconds"], maps.index(row["map"])) for row in rows if row["solver"] == solver]
        for solver in dict.fromkeys(row["solver"] for row in rows)
    }
    return _dots(names, series, "seconds until a gap of 1e-3 is proved")


def normal_theory(rows: Sequence[Record]) -> str:
    """How far other measures are from the pairwise hinge, in points of ROCArea on held-out folds."""
    hinge = {row["set"]: row["auc"] for row in rows if row["measure"] == "rocarea"}
    sets, series = list(hinge), dict[str, list[tuple[float, int]]]()
    for row in rows:
        if row["measure"] != "rocarea":
            point = 100 * (row["auc"] - hinge[row["set"]]), sets.index(row["set"])
            series.setdefault(row["measure"], []).append(point)
    return _dots(sets, series, "ROCArea on held-out folds minus that of rocarea [points]", at=0, log=False)


PICTURES: Mapping[str, Callable[[Sequence[Record]], str]] = {
    "attack-101": attacks,
    "boosted-trees": against_lightgbm,
    "chaos": chaos,
    "coverage": coverage,
    "evaluations": evaluations,
    "from-text-3": from_text,
    "head": head,
    "lambdas": lambdas,
    "liblinear": time_ratios,
    "scaling": speedups,
    "strings": strings,
    "table2": table2,
    "tables": of_tables,
    "thesis-auc": normal_theory,
}
"""By the name of the file: what draws its picture, as SVG, from the records."""
