"""Settings of the manual's site; `scripts/docs` builds it."""

from __future__ import annotations

import sys
from pathlib import Path

HERE = Path(__file__).parent
sys.path[:0] = [str(HERE.parent), str(HERE / "_ext")]  # the package of this clone, and extensions of the manual's own

import distsms  # noqa: E402

project = "distsms"
author = "the authors of distsms"
copyright = author
version = release = distsms.__version__

extensions = [
    "myst_parser",
    "numpydoc",
    "sphinx.ext.autodoc",
    "sphinx_copybutton",
    "sphinx_design",
    *sorted(path.stem for path in (HERE / "_ext").glob("*.py")),
]
exclude_patterns = ["**/_*"]

myst_enable_extensions = ["colon_fence", "deflist", "dollarmath", "fieldlist"]
myst_heading_anchors = 3
autodoc_preserve_defaults = True  # `lambda: False`, not where it lies in memory
autodoc_typehints = "none"  # numpydoc's sections have the types
numpydoc_show_class_members = False

default_role = "code"  # what stands between single backquotes in docstrings

html_theme = "furo"
html_static_path = ["_static"]
html_css_files = ["manual.css"]
html_title = f"distsms {release}"
html_copy_source = False
html_show_sphinx = False
if (HERE / "_ext" / "mathml.py").exists():
    html_math_renderer = "mathml"  # the browser draws formulas by itself: MathJax would be fetched from the network
copybutton_prompt_text = "$ "
