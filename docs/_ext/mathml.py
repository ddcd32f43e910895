"""Formulas as MathML, which every browser draws by itself: neither building nor reading needs a network or a script."""

from __future__ import annotations

import re
from typing import Any

from docutils import nodes
from docutils.utils.math.latex2mathml import tex2mathml
from sphinx.application import Sphinx
from sphinx.writers.html5 import HTML5Translator

BRACKETS = re.compile(r'<mo(?: class="math(?:open|close)")?>([⟨⟩])</mo>')
BARS = re.compile(r'<mo( class="mathopen")?>([|‖])</mo>')


def mathml(tex: str, as_block: bool = False) -> str:
    """A formula. Brackets of inner products and norms are as high as the line, and belong to what they enclose."""
    text = BRACKETS.sub(r'<mo stretchy="false">\1</mo>', tex2mathml(tex, as_block=as_block))
    return BARS.sub(lambda bar: f'<mo form="{"prefix" if bar[1] else "postfix"}" stretchy="false">{bar[2]}</mo>', text)


def visit_math(self: HTML5Translator, node: nodes.math) -> None:
    """A formula within a line."""
    self.body.append(mathml(node.astext()))
    raise nodes.SkipNode


def visit_displaymath(self: HTML5Translator, node: nodes.math_block) -> None:
    """A formula on lines of its own."""
    self.body.append(f'<div class="math">{mathml(node.astext(), as_block=True)}</div>\n')
    raise nodes.SkipNode


def setup(app: Sphinx) -> dict[str, Any]:
    """Sphinx's entry; the configuration chooses it by `html_math_renderer = "mathml"`."""
    app.add_html_math_renderer("mathml", (visit_math, None), (visit_displaymath, None))
    return {"parallel_read_safe": True, "parallel_write_safe": True}
