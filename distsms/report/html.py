"""A web page in one file: elements of HTML, everything escaped, its style, and figures drawn into it.

Nothing on the page is fetched from anywhere, and its own policy forbids it. Colours follow the reader's preference for
light or dark: matplotlib's black and the first colours of Okabe and Ito become variables of the page's style.
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from html import escape

STYLE = """\
:root { color-scheme: light dark; --ink: #1b1f24; --soft: #59636e; --paper: #ffffff; --raised: #f5f7f9; --line: #d5dbe1;
  --blue: #0072b2; --vermilion: #d55e00; --green: #009e73; --purple: #cc79a7; }
@media (prefers-color-scheme: dark) {
  :root { --ink: #e6eaef; --soft: #a0abb6; --paper: #14171b; --raised: #1d2126; --line: #3a424b;
    --blue: #56b4e9; --vermilion: #e69f00; --green: #2fc79b; --purple: #e3a1c5; } }
* { box-sizing: border-box; }
body { margin: 0 auto; padding: 1.5rem clamp(1rem, 4vw, 3rem) 4rem; max-width: 72rem; background: var(--paper);
  color: var(--ink); font: 1rem/1.5 system-ui, "Segoe UI", "DejaVu Sans", sans-serif; }
h1 { font-size: 1.6rem; line-height: 1.25; margin: 0 0 .25rem; overflow-wrap: anywhere; }
h2 { font-size: 1.2rem; margin: 2.5rem 0 .75rem; padding-bottom: .25rem; border-bottom: 1px solid var(--line); }
p { margin: .5rem 0; max-width: 48rem; overflow-wrap: anywhere; }
.soft, figcaption, caption { color: var(--soft); font-size: .875rem; }
.tiles { display: grid; grid-template-columns: repeat(auto-fit, minmax(13rem, 1fr)); gap: .75rem; margin: 1.25rem 0; }
.tiles div { background: var(--raised); border: 1px solid var(--line); border-radius: .5rem; padding: .75rem 1rem; }
.tiles dt { color: var(--soft); font-size: .875rem; }
.tiles dd { margin: 0; font-size: .8125rem; color: var(--soft); }
.tiles dd.value { font-size: 1.5rem; line-height: 1.3; color: var(--ink); font-variant-numeric: tabular-nums; }
.beside { display: grid; grid-template-columns: repeat(auto-fit, minmax(min(100%, 21rem), 1fr)); gap: 1.25rem 2rem;
  margin: 1rem 0; }
figure { margin: 0; }
figure svg { display: block; width: 100%; max-width: 34rem; height: auto; margin: 0 auto; }
figure svg text { fill: currentColor; font-family: inherit !important; }
figcaption { text-align: center; }
.scrolled { overflow-x: auto; margin: .75rem 0 1.25rem; }
table { border-collapse: collapse; min-width: min(100%, 18rem); font-variant-numeric: tabular-nums; }
caption { text-align: left; padding-bottom: .25rem; }
th, td { padding: .3rem .9rem .3rem 0; text-align: right; border-bottom: 1px solid var(--line); vertical-align: top; }
th:first-child, td.text { text-align: left; overflow-wrap: anywhere; }
td { white-space: nowrap; }
td.text { min-width: 9rem; white-space: normal; }
th { font-weight: 600; }
tbody th { font-weight: 400; min-width: 7rem; }
.bar { display: block; height: .7em; margin-top: .4em; background: var(--blue); }
.bar.minus { background: var(--vermilion); }
"""

POLICY = "default-src 'none'; style-src 'unsafe-inline'"
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
    """Text that is HTML already."""


def inner(*parts: str) -> Html:
    """Parts one after the other; what is not HTML is text, and escaped."""
    return Html("".join(one if isinstance(one, Html) else escape(one) for one in parts))


def element(name: str, *parts: str, **attributes: str) -> Html:
    """An element with attributes; a trailing underscore in their names is left out, one within is a hyphen."""
    words = "".join(f' {key.rstrip("_").replace("_", "-")}="{escape(one)}"' for key, one in attributes.items())
    return Html(f"<{name}{words}>{inner(*parts)}</{name}>\n")


def section(heading: str, *parts: str) -> Html:
    """A part of the page with its heading."""
    return element("section", element("h2", heading), *parts)


def table(caption: str, header: Sequence[str], rows: Sequence[Sequence[str]], text: bool = False) -> Html:
    """A table whose first column names its rows, without header words if there are none; text : cells to the left."""
    look = {"class_": "text"} if text else {}
    head = element("thead", element("tr", *(element("th", one, scope="col") for one in header))) if header else ""
    body = [
        element("tr", element("th", row[0], scope="row"), *(element("td", one, **look) for one in row[1:]))
        for row in rows
    ]
    whole = element("table", element("caption", caption), head, element("tbody", *body))
    return element("div", whole, class_="scrolled", role="region", aria_label=caption, tabindex="0")


def tiles(entries: Sequence[tuple[str, str, str]]) -> Html:
    """Some figures to be seen first: name, value, and a word on it."""
    each = [
        element("div", element("dt", name), element("dd", value, class_="value"), element("dd", word))
        for name, value, word in entries
    ]
    return element("dl", *each, class_="tiles")


def beside(*parts: Html) -> Html:
    """Parts side by side, or below each other where the page is narrow."""
    return element("div", *parts, class_="beside")


def figure(svg: str, name: str, caption: str, words: str) -> Html:
    """matplotlib's SVG in the page. name : unique on the page.  words : for who does not see it."""
    drawing = re.sub(r"<metadata>.*?</metadata>", "", svg[svg.index("<svg") :], flags=re.S)
    drawing = re.sub(r"<!--.*?-->", "", drawing, flags=re.S)
    for colour, variable in COLOURS.items():
        drawing = drawing.replace(colour, variable)
    referred = set(re.findall(r"#([\w-]+)[\")]", drawing))
    # ids are the page's, not the drawing's: the same twice would be one too many, and most are of no use
    drawing = re.sub(r' id="([^"]*)"', lambda m: f' id="{name}-{m[1]}"' if m[1] in referred else "", drawing)
    drawing = re.sub(r'(url\(|href=")#', rf"\g<1>#{name}-", drawing)
    head, _, rest = drawing.partition(">")
    viewport = re.search(r'viewBox="[^"]*"', head)
    assert viewport is not None
    links = ' xmlns:xlink="http://www.w3.org/1999/xlink"' if "xlink:" in rest else ""
    opening = f'<svg {viewport[0]} xmlns="http://www.w3.org/2000/svg"{links} role="img" aria-label="{escape(words)}">'
    return element("figure", Html(opening + rest), element("figcaption", caption))


def page(title: str, *parts: str) -> str:
    """The whole page."""
    head = [
        Html('<meta charset="utf-8">\n<meta name="viewport" content="width=device-width, initial-scale=1">\n'),
        Html('<meta name="generator" content="distsms report">\n'),
        Html(f'<meta http-equiv="Content-Security-Policy" content="{POLICY}">\n'),
        element("title", title),
        Html(f"<style>\n{STYLE}</style>\n"),
    ]
    body = element("body", element("main", *parts))
    return "<!DOCTYPE html>\n" + element("html", element("head", *head), body, lang="en")
