"""Formulas as MathML, which browsers show without scripts, so that the manual works without a network."""

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
    """Convert a formula to MathML, in which brackets of inner products and norms are not stretched."""
    text = BRACKETS.sub(r'<mo stretchy="false">\1</mo>', tex2mathml(tex, as_block=as_block))
    return BARS.sub(lambda bar: f'<mo form="{"prefix" if bar[1] else "postfix"}" stretchy="false">{bar[2]}</mo>', text)


def visit_math(self: HTML5Translator, node: nodes.math) -> None:
    """Write an inline formula."""
    self.body.append(mathml(node.astext()))
    raise nodes.SkipNode


def visit_displaymath(self: HTML5Translator, node: nodes.math_block) -> None:
    """Write a displayed formula."""
    self.body.append(f'<div class="math">{mathml(node.astext(), as_block=True)}</div>\n')
    raise nodes.SkipNode


def setup(app: Sphinx) -> dict[str, Any]:
    """Register the renderer with Sphinx; `html_math_renderer = "mathml"` in the configuration selects it."""
    app.add_html_math_renderer("mathml", (visit_math, None), (visit_displaymath, None))
    return {"parallel_read_safe": True, "parallel_write_safe": True}
