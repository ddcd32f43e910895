"""Build a web page in one file from HTML elements, with all text escaped, a style sheet and embedded figures; it loads
nothing from elsewhere, and follows the reader's preference for light or dark.
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from html import escape
from pathlib import Path

CONTENT_SECURITY_POLICY = "default-src 'none'; style-src 'unsafe-inline'"
COLOURS = {
    "#000000": "currentColor",
    "#0072b2": "var(--blue)",
    "#d55e00": "var(--vermilion)",
    "#009e73": "var(--green)",
    "#cc79a7": "var(--purple)",
    "#808080": "var(--soft)",
    "#b0b0b0": "var(--soft)",
}


class Html(str):
    """Text that is HTML already, and must not be escaped again."""


def element(tag: str, *parts: str, **attributes: str) -> Html:
    """Return an HTML element, such as "p", whose parts are escaped unless they are `Html`; `backquotes` mark code."""
    written = "".join(f' {name.rstrip("_").replace("_", "-")}="{escape(value)}"' for name, value in attributes.items())
    content = "".join(part if isinstance(part, Html) else escape(part) for part in parts)
    if tag in ("p", "li"):
        content = re.sub("`([^`]+)`", r"<code>\1</code>", content)
    return Html(f"<{tag}{written}>{content}</{tag}>\n")


def chapter(heading: str, *parts: str) -> Html:
    """Return a chapter of the page with its heading, which `contents` refers to."""
    return element("section", element("h2", heading), *parts, id=_place(heading))


def contents(headings: Sequence[str]) -> Html:
    """Return links to chapters."""
    return element("nav", *(element("a", heading, href=f"#{_place(heading)}") for heading in headings))


def _place(heading: str) -> str:
    return heading.lower().replace(" ", "-")


def section(heading: str, *parts: str) -> Html:
    """Return a section of a chapter with its heading."""
    return element("section", element("h3", heading), *parts)


def table(caption: str, header: Sequence[str], rows: Sequence[Sequence[str]], text: bool = False) -> Html:
    """Return a table, the first cell of a row its name, with cells to the left if `text`."""
    wide = len(header) > 3
    attributes = {"class_": "text"} if text else {}
    labels = [{"data_label": name} if wide else {} for name in header or [""] * max(map(len, rows), default=0)]
    head = element("thead", element("tr", *(element("th", name, scope="col") for name in header))) if header else ""
    body = [
        element(
            "tr",
            element("th", name, scope="row", **labels[0]),
            *(element("td", cell, **attributes, **label) for cell, label in zip(cells, labels[1:], strict=True)),
        )
        for name, *cells in rows
    ]
    shape = {"class_": "wide"} if wide else {}
    whole = element("table", element("caption", caption), head, element("tbody", *body), **shape)
    return element("div", whole, class_="scrolled", role="region", aria_label=caption, tabindex="0")


def tiles(entries: Sequence[tuple[str, str, str]]) -> Html:
    """Return the headline numbers of the page as tiles, from (name, value, remark) of each."""
    each = [
        element("div", element("dt", name), element("dd", value, class_="value"), element("dd", remark))
        for name, value, remark in entries
    ]
    return element("dl", *each, class_="tiles")


def side_by_side(*parts: Html) -> Html:
    """Return the parts side by side, or one below the other where the page is narrow."""
    return element("div", *parts, class_="beside")


def figure(svg: str, name: str, caption: str, description: str) -> Html:
    """Return a figure of an SVG of matplotlib; ids within the drawing begin with `name`, which is unique."""
    drawing = re.sub(r"<metadata>.*?</metadata>", "", svg[svg.index("<svg") :], flags=re.S)
    drawing = re.sub(r"<!--.*?-->", "", drawing, flags=re.S)
    for colour, variable in COLOURS.items():
        drawing = drawing.replace(colour, variable)
    drawing = re.sub(r' d="[^"]*"', lambda m: re.sub(r"(\.\d\d)\d+", r"\1", m[0]), drawing)  # hundredths of a point
    referred = set(re.findall(r"#([\w-]+)[\")]", drawing))
    # Ids must be unique on the page, so each begins with the name of its drawing. Ids without references are removed.
    drawing = re.sub(r' id="([^"]*)"', lambda m: f' id="{name}-{m[1]}"' if m[1] in referred else "", drawing)
    drawing = re.sub(r'(url\(|href=")#', rf"\g<1>#{name}-", drawing)
    head, _, rest = drawing.partition(">")
    viewport = re.search(r'viewBox="[^"]*"', head)
    assert viewport is not None
    links = ' xmlns:xlink="http://www.w3.org/1999/xlink"' if "xlink:" in rest else ""
    opening = (
        f'<svg {viewport[0]} xmlns="http://www.w3.org/2000/svg"{links} role="img" aria-label="{escape(description)}">'
    )
    return element("figure", Html(opening + rest), element("figcaption", caption))


def details(summary: str, *parts: str) -> Html:
    """Return parts that are shown when the reader opens them."""
    return element("details", element("summary", summary), *parts)


def page(title: str, *parts: str) -> str:
    """Return the whole page, from its title and the parts of its body."""
    style = (Path(__file__).parent / "style.css").read_text(encoding="utf-8")
    head = [
        Html('<meta charset="utf-8">\n<meta name="viewport" content="width=device-width, initial-scale=1">\n'),
        Html('<meta name="generator" content="distsms report">\n'),
        Html(f'<meta http-equiv="Content-Security-Policy" content="{CONTENT_SECURITY_POLICY}">\n'),
        element("title", title),
        Html(f"<style>\n{style}</style>\n"),
    ]
    body = element("body", element("main", *parts))
    return "<!DOCTYPE html>\n" + element("html", element("head", *head), body, lang="en")
