"""Texts of others, such as names of rows and columns, made harmless for a terminal and for a spreadsheet."""

from __future__ import annotations

import re

_NUMBER = re.compile(r"[+-]?(?:[0-9]+\.?[0-9]*|\.[0-9]+)(?:[eE][+-]?[0-9]+)?")
_FORMULA = re.compile("(^|;)(?=[-=+@\t\r\n\uff0d\uff1d\uff0b\uff20\ufe63\ufe66\ufe62\ufe6b])")
"""A spreadsheet takes a cell that begins so for a formula, and some formulas start programs; some also take the wide
and small forms of these signs. In countries that write 1,5 for 1.5, it takes a semicolon for the end of a cell.
"""

_ADDRESS = re.compile(r"([A-Za-z][A-Za-z0-9+.-]*://)([^\s/?#]*@)?([^\s?#'\"]*)")
_QUERY = re.compile(r"(https?://[^\s?#'\"]*)[?#]\S*?(?=[],:;.)'\"]*(?:\s|$))", re.IGNORECASE)


def without_credentials(text: str) -> str:
    """Return a text whose addresses have neither user and password nor, on the web, what follows the file's name."""
    return _QUERY.sub(r"\1", _ADDRESS.sub(r"\1\3", text)) if "://" in text else text


def printable(text: str, kept: str = "") -> str:
    """Return a text with escapes such as \\x1b for characters that a terminal would act on, except those kept."""
    if text.isprintable():
        return text
    return "".join(sign if sign.isprintable() or sign in kept else repr(sign)[1:-1] for sign in text)


def harmless_cell(text: str) -> str:
    """Return the text of a CSV cell, printable or quoted, with ' before what could be a formula, but no number."""
    text = printable(text, "\t\r\n")
    return text if _NUMBER.fullmatch(text) else _FORMULA.sub(r"\1'", text)
