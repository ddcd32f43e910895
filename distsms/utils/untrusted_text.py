"""Texts of others, such as names of rows and columns, made harmless for a terminal and for a spreadsheet."""

from __future__ import annotations

import re

_NUMBER = re.compile(r"[+-]?(?:[0-9]+\.?[0-9]*|\.[0-9]+)(?:[eE][+-]?[0-9]+)?")
FORMULA = ("=", "+", "-", "@", "\t", "\r")
"""A spreadsheet takes a cell that begins so for a formula, and some formulas start programs."""


def printable(text: str, kept: str = "") -> str:
    """Return a text with escapes such as \\x1b for characters that a terminal would act on, except those kept."""
    if text.isprintable():
        return text
    return "".join(sign if sign.isprintable() or sign in kept else repr(sign)[1:-1] for sign in text)


def harmless_cell(text: str) -> str:
    """Return the text of a CSV cell: printable or quoted, and with ' before what could be a formula.

    Numbers, such as -0.5 and -12, stay as they are.
    """
    text = printable(text, "\t\r\n")
    return f"'{text}" if text.startswith(FORMULA) and not _NUMBER.fullmatch(text) else text
