"""Create matplotlib figures in one style; only this module imports matplotlib."""

from __future__ import annotations

import io
import pathlib
from typing import Any

import matplotlib
import numpy as np
from matplotlib.figure import Figure
from matplotlib.patches import PathPatch
from matplotlib.path import Path
from matplotlib.textpath import TextPath
from matplotlib.ticker import FuncFormatter, MaxNLocator, NullFormatter
from matplotlib.transforms import Affine2D

from distsms.base.files import atomic_write, real_path
from distsms.base.wording import printable

STYLE: Any = {"svg.fonttype": "none", "svg.hashsalt": "distsms", "font.size": 9, "axes.grid": True, "grid.alpha": 0.3}


def blank(inches: tuple[float, float], rows: int = 1, columns: int = 1, **ratios: Any) -> tuple[Figure, Any]:
    """Return a new figure of this size (width, height) and its axes. Those of one column share the x-axis; `ratios` are
    the `height_ratios` of rows, or the `width_ratios` of columns."""
    with matplotlib.rc_context(STYLE):
        figure = Figure(figsize=inches, layout="constrained")
        return figure, figure.subplots(rows, columns, squeeze=False, sharex=columns == 1, **ratios).ravel()


def add_cells(axes: Any, places: Any, **style: Any) -> None:
    """Fill the unit squares whose lower left corners are `places` (n, 2), all in one style, as one shape."""
    corners = np.array([[0, 0], [1, 0], [1, 1], [0, 1], [0, 0]])
    codes = [Path.MOVETO, Path.LINETO, Path.LINETO, Path.LINETO, Path.CLOSEPOLY]
    outline = (np.asarray(places, float)[:, None, :] + corners).reshape(-1, 2)
    if len(outline):
        shape = Path(outline, codes * (len(outline) // 5))
        axes.add_patch(PathPatch(shape, linewidth=0, antialiased=False, **style))


def literal(text: str, longest: int) -> str:
    """Return a text that is shown as it is, without mathematics or line breaks, and cut if it is too long."""
    shown = " ".join(printable(text, " \t\n\r").split())
    shown = shown if len(shown) <= longest else f"{shown[: longest - 1]}…"
    return shown.replace("$", r"\$")


def show_percent(axis: Any) -> None:
    """Write the numbers of a logarithmic axis, or of one of log-odds, as per cent, so that 0.001 is 0.1 %."""
    axis.set_major_formatter(FuncFormatter(lambda value, _: f"{100 * value:.6g} %"))
    axis.set_minor_formatter(NullFormatter())


def show_shares(axis: Any, most: int = 2) -> None:
    """Write the numbers of an axis of shares as per cent, at a few places."""
    axis.set_major_locator(MaxNLocator(most))
    axis.set_major_formatter(FuncFormatter(lambda value, _: f"{100 * value:.4g} %"))


def round_numbers(low: float, high: float) -> list[float]:
    """Return about five round numbers from a range."""
    return [float(place) for place in MaxNLocator(5).tick_values(low, high)]


def draw_logo(axes: Any, positions: Any, heights: Any, letters: str, colors: tuple[str, ...]) -> None:
    """Draw a sequence logo of heights (positions, letters), the highest outside; negative ones hang down."""
    outlines = [TextPath((0, 0), letter, size=1) for letter in letters]
    boxes = [outline.get_extents() for outline in outlines]
    for x, column in zip(positions, heights, strict=True):
        for sign in (1, -1):
            at = 0.0
            for k in sorted(np.flatnonzero(sign * column > 0), key=lambda k: abs(column[k])):
                box, height = boxes[k], abs(column[k])
                shape = Affine2D().translate(-box.x0, -box.y0).scale(0.9 / box.width, height / box.height)
                shape.translate(x - 0.45, at if sign > 0 else -at - height)
                axes.add_patch(PathPatch(shape.transform_path(outlines[k]), color=colors[k % len(colors)], linewidth=0))
                at += height
    axes.axhline(0, color="grey", linewidth=0.8)
    axes.set(xlim=(positions[0] - 0.7, positions[-1] + 0.7))
    axes.autoscale_view(scalex=False)


def as_svg(figure: Figure) -> str:
    """Return the figure as the text of an SVG file, with a transparent background."""
    stream = io.StringIO()
    with matplotlib.rc_context(STYLE):
        figure.savefig(stream, format="svg", transparent=True, metadata={"Date": None, "Creator": None})
    return stream.getvalue()


def save(figure: Figure, folder: pathlib.Path, name: str) -> list[pathlib.Path]:
    """Write NAME.png and NAME.svg into a folder, which is created if necessary, and return their paths."""
    real_path(folder).mkdir(parents=True, exist_ok=True)
    options: dict[str, dict[str, Any]] = {"png": {"dpi": 150}, "svg": {"metadata": {"Date": None}}}
    for kind, of_kind in options.items():
        stream = io.BytesIO()
        with matplotlib.rc_context(STYLE):
            figure.savefig(stream, format=kind, **of_kind)
        with atomic_write(folder / f"{name}.{kind}") as file:
            file.write(stream.getvalue())
    return [folder / f"{name}.{kind}" for kind in options]
