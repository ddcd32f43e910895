"""Create matplotlib figures in one style, and save them or embed them in a page.

Only this module and `distsms.study.figures` import matplotlib.
"""

from __future__ import annotations

import io
from pathlib import Path
from typing import Any

import matplotlib
from matplotlib.figure import Figure

STYLE: Any = {"svg.fonttype": "none", "svg.hashsalt": "distsms", "font.size": 9, "axes.grid": True, "grid.alpha": 0.3}


def blank(inches: tuple[float, float], rows: int = 1) -> tuple[Figure, Any]:
    """Return a new figure of this size (width, height) and its axes: `rows` of them, which share the x-axis."""
    with matplotlib.rc_context(STYLE):
        figure = Figure(figsize=inches, layout="constrained")
        return figure, figure.subplots(rows, 1, squeeze=False, sharex=True)[:, 0]


def as_svg(figure: Figure) -> str:
    """Return the figure as the text of an SVG file, with a transparent background."""
    stream = io.StringIO()
    with matplotlib.rc_context(STYLE):
        figure.savefig(stream, format="svg", transparent=True, metadata={"Date": None, "Creator": None})
    return stream.getvalue()


def save(figure: Figure, folder: Path, name: str) -> list[Path]:
    """Write NAME.png and NAME.svg into a folder, which is created if necessary, and return their paths."""
    folder.mkdir(parents=True, exist_ok=True)
    paths = [folder / f"{name}.png", folder / f"{name}.svg"]
    with matplotlib.rc_context(STYLE):
        figure.savefig(paths[0], dpi=150)
        figure.savefig(paths[1], metadata={"Date": None})
    return paths
