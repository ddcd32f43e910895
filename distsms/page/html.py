"""Build a web page in one file from HTML elements, with all text escaped, a style sheet and embedded figures.

The page loads nothing from elsewhere, and its content security policy forbids loading anything. Its colours follow the
reader's preference for light or dark: in the figures, matplotlib's black and the first colours of Okabe and Ito are
replaced by variables of the style sheet.
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from html import escape

STYLE = """\
:root { color-scheme: light dark; --ink: #1b1f24; --soft: #59636e; --paper: #ffffff; --raised: #f5f7f9; --line: #d5dbe1;
  --blue: #0072b2; --vermilion: #d55e00; --green: #009e73; --purple: #cc79a7; --red: #b3001b; }
@media (prefers-color-scheme: dark) {
  :root { --ink: #e6eaef; --soft: #a0abb6; --paper: #14171b; --raised: #1d2126; --line: #3a424b;
    --blue: #56b4e9; --vermilion: #e69f00; --green: #2fc79b; --purple: #e3a1c5; --red: #ff8080; } }
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
.notice { border: 2px solid var(--red); border-radius: .5rem; color: var(--red); font-weight: 600; margin: 1.25rem 0;
  max-width: none; padding: .75rem 1rem; }
.beside { display: grid; grid-template-columns: repeat(auto-fit, minmax(min(100%, 21rem), 1fr)); gap: 1.25rem 2rem;
  margin: 1rem 0; }
figure { margin: 0; }
figure svg { display: block; width: 100%; max-width: 34rem; height: auto; margin: 0 auto; }
figure svg text { fill: currentColor; font-family: inherit !important; }
figcaption { text-align: center; }
details { margin: .25rem 0 1rem; }
summary { color: var(--soft); cursor: pointer; font-size: .875rem; text-align: center; }
code { font-family: ui-monospace, "DejaVu Sans Mono", monospace; font-size: .9em; background: var(--raised); }
.scrolled { overflow-x: auto; margin: .75rem 0 1.25rem; scrollbar-width: thin; background:
  linear-gradient(to right, var(--paper) 30%, transparent) left / 2.5rem 100% local no-repeat,
  linear-gradient(to left, var(--paper) 30%, transparent) right / 2.5rem 100% local no-repeat,
  linear-gradient(to right, var(--line), transparent) left / .75rem 100% scroll no-repeat,
  linear-gradient(to left, var(--line), transparent) right / .75rem 100% scroll no-repeat; }
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
@media (max-width: 40rem) {
  .wide, .wide caption, .wide tbody, .wide tr, .wide tbody th { display: block; }
  .wide thead { position: absolute; width: 1px; height: 1px; overflow: hidden; clip-path: inset(50%); }
  .wide tr { padding: .4rem 0; border-bottom: 1px solid var(--line); }
  .wide tbody th { font-weight: 600; border: 0; padding: 0; }
  .wide td { display: flex; justify-content: space-between; gap: 1rem; padding: .05rem 0; border: 0;
    white-space: normal; }
  .wide td:empty { display: none; }
  .wide td::before, .wide tbody th::before { content: attr(data-label) " "; color: var(--soft); font-weight: 400;
    text-align: left; }
}
"""

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
    """Return an HTML element, such as "p". Parts that are not `Html` are plain text, which is escaped.

    In paragraphs, text in `backquotes` is shown as code. In the names of attributes a trailing underscore is dropped,
    and others become hyphens, so that `class_` and `aria_label` can be written in Python.
    """
    written = "".join(f' {name.rstrip("_").replace("_", "-")}="{escape(value)}"' for name, value in attributes.items())
    content = "".join(part if isinstance(part, Html) else escape(part) for part in parts)
    if tag == "p":
        content = re.sub("`([^`]+)`", r"<code>\1</code>", content)
    return Html(f"<{tag}{written}>{content}</{tag}>\n")


def section(heading: str, *parts: str) -> Html:
    """Return a section of the page with its heading."""
    return element("section", element("h2", heading), *parts)


def table(caption: str, header: Sequence[str], rows: Sequence[Sequence[str]], text: bool = False) -> Html:
    """Return a table that has a scroll bar of its own if the page is too narrow for it.

    The first cell of a row is its name; without a header there is no header row. With `text`, cells are aligned to the
    left. On a narrow page, as on a telephone, each row of a table with a header and more than three columns is shown as
    a list of its cells, each after the name of its column.
    """
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


def notice(text: str) -> Html:
    """Return a warning that stands out."""
    return element("p", text, class_="notice", role="alert")


def side_by_side(*parts: Html) -> Html:
    """Return the parts side by side, or one below the other where the page is narrow."""
    return element("div", *parts, class_="beside")


def figure(svg: str, name: str, caption: str, description: str) -> Html:
    """Return a figure of an SVG file of matplotlib, with a caption, and a description for those who cannot see it.

    `name` is unique on the page; the ids within the drawing begin with it.
    """
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
    head = [
        Html('<meta charset="utf-8">\n<meta name="viewport" content="width=device-width, initial-scale=1">\n'),
        Html('<meta name="generator" content="distsms report">\n'),
        Html(f'<meta http-equiv="Content-Security-Policy" content="{CONTENT_SECURITY_POLICY}">\n'),
        element("title", title),
        Html(f"<style>\n{STYLE}</style>\n"),
    ]
    body = element("body", element("main", *parts))
    return "<!DOCTYPE html>\n" + element("html", element("head", *head), body, lang="en")
