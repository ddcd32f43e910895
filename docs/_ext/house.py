"""The directive `floors`: the floors (layers) of the package as a picture and a table.

Both are made from the contract that import-linter checks, in setup.cfg, and from the first lines of docstrings.
"""

from __future__ import annotations

import ast
import configparser
from collections.abc import Iterator
from html import escape
from pathlib import Path
from typing import Any

from command_line import escaped
from docutils import nodes
from sphinx.application import Sphinx
from sphinx.util.docutils import SphinxDirective

ROOT = Path(__file__).resolve().parents[2]
WIDTH, HEIGHT, GAP = 720, 40, 8  # of the picture, of a floor, and between boxes


class Floors(SphinxDirective):
    """The directive, which has neither arguments nor content."""

    def run(self) -> list[nodes.Node]:
        """Return the nodes for the page."""
        levels = floors()
        picture = nodes.raw("", svg(levels), format="html")
        return [picture, *self.parse_text_to_nodes("\n".join(table(levels)))]


def floors() -> list[list[str]]:
    """Return the names on each floor, the highest floor first."""
    setup = configparser.ConfigParser()
    setup.read(ROOT / "setup.cfg")
    layers = setup["importlinter:contract:floors"]["layers"].strip().splitlines()
    return [[name.strip() for name in layer.replace(":", "|").split("|")] for layer in layers]


def purpose(module: str) -> str:
    """Return the first line of the docstring of a module or package."""
    path = ROOT / "distsms" / module
    source = path / "__init__.py" if path.is_dir() else path.with_suffix(".py")
    return (ast.get_docstring(ast.parse(source.read_text(encoding="utf-8"))) or "").split("\n")[0]


def svg(levels: list[list[str]]) -> str:
    """Return the picture as SVG, with the highest floor at the top."""
    boxes = []
    for level, names in enumerate(levels):
        width = (WIDTH - GAP * (len(names) - 1)) / len(names)
        for place, name in enumerate(names):
            x, y = place * (width + GAP), level * (HEIGHT + GAP)
            boxes.append(
                f'<rect x="{x:g}" y="{y}" width="{width:g}" height="{HEIGHT}" rx="4" fill="none" '
                'stroke="currentColor"/>'
                f'<text x="{x + width / 2:g}" y="{y + HEIGHT / 2 + 5}" text-anchor="middle" fill="currentColor">'
                f"{escape(name)}</text>"
            )
    height = len(levels) * (HEIGHT + GAP) - GAP
    label = "The floors of the package; each imports only from those below it"
    return (
        f'<svg viewBox="-1 -1 {WIDTH + 2} {height + 2}" role="img" aria-label="{label}" style="max-width: 100%; '
        f'font-family: monospace; font-size: 15px">{"".join(boxes)}</svg>'
    )


def table(levels: list[list[str]]) -> Iterator[str]:
    """Yield the lines of a table with the purpose of each module and sub-package on each floor."""
    yield from ["| | |", "|---|---|"]
    for names in levels:
        for name in names:
            folder = ROOT / "distsms" / name
            inside = sorted(f"{name}/{one.parent.name}" for one in folder.glob("*/__init__.py"))
            yield from (f"| `{one}` | {escaped(purpose(one))} |" for one in [name, *inside])


def setup(app: Sphinx) -> dict[str, Any]:
    """Register the directive with Sphinx."""
    app.add_directive("floors", Floors)
    return {"parallel_read_safe": True, "parallel_write_safe": True}
