"""Pictures of published benchmarks: kernels beside the bandwidth of the memory, and figures over versions."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np

from distsms.page import mpl
from scripts.benchmarks import history

ENOUGH = 70.0
"""The share of the triad's bytes per second, in per cent, from which on a kernel is limited by the memory."""
BLUE, ORANGE, GREY = "#0072B2", "#D55E00", "#777777"
MARKERS = "osD^v"


def roofline(found: dict[str, Any]) -> str:
    """Draw a bar for each kernel, as long as its share of the triad's bytes per second, and return it as SVG."""
    rows = found["records"][::-1]
    figure, (axes,) = mpl.blank((5.2, 0.2 * len(rows) + 0.8))
    values = np.array([row["value"] for row in rows])
    spread = [values - [row["low"] for row in rows], [row["high"] for row in rows] - values]
    colors = [BLUE if value >= ENOUGH else ORANGE for value in values]
    axes.barh(range(len(rows)), values, xerr=spread, color=colors, ecolor=GREY)
    axes.axvline(100, color=GREY)
    axes.axvline(ENOUGH, color=GREY, linestyle=":")
    axes.set_yticks(range(len(rows)), [row["what"] for row in rows])
    axes.grid(axis="y", visible=False)
    axes.set_xlim(0, 130)
    axes.set_xlabel("bytes per second, % of those of the triad")
    return mpl.as_svg(figure)


def over_versions(files: Sequence[dict[str, Any]]) -> str:
    """Draw each figure over the versions, relative to the first one, as the mean over the sets; return it as SVG."""
    files = history.in_order(files)
    figure, (axes,) = mpl.blank((5.2, 3.4))
    values = [{(row["what"], row["data"]): row["value"] for row in file["records"]} for file in files]
    for marker, name in zip(MARKERS, sorted({what for what, _ in values[0]}), strict=False):
        shared = [key for key in values[0] if key[0] == name and all(key in other for other in values)]
        course = [np.exp(np.mean([np.log(other[key] / values[0][key]) for key in shared])) for other in values]
        axes.plot(range(len(files)), course, marker=marker, label=name)
    axes.set_yscale("log")
    axes.yaxis.set_major_formatter(lambda value, _: f"{value:g}")
    axes.yaxis.set_minor_formatter(lambda value, _: f"{value:g}")
    axes.set_xticks(range(len(files)), [file["version"] for file in files])
    axes.set_ylabel(f"relative to {files[0]['version']}")
    axes.legend(fontsize=8)
    return mpl.as_svg(figure)
