"""Compiled loops over the text of CSV files."""

from __future__ import annotations

from distsms.utils.jit import njit

_TAB, _NEWLINE, _RETURN, _SPACE, _QUOTE, _ZERO, _NINE = 9, 10, 13, 32, 34, 48, 57
_LEADING, _FIRST, _MORE, _TRAILING, _OTHER = range(5)
"""Where in a field we are: before its first character, after a leading zero, after more digits, after a space that
follows these, or in a field that is something else.
"""


@njit()
def count_lines(text):  # type: ignore[no-untyped-def]
    """Return the number of newlines of a text (bytes,), and of those that may end an empty line."""
    lines, empty = 0, int(text[0] == _NEWLINE or text[0] == _RETURN)
    for i in range(1, len(text)):
        lines += text[i - 1] == _NEWLINE
        empty += (text[i - 1] == _NEWLINE) & ((text[i] == _NEWLINE) | (text[i] == _RETURN))
    return lines + (text[-1] == _NEWLINE), empty


@njit()
def find_padded(text, mark, found):  # type: ignore[no-untyped-def]
    """Mark in `found`, (columns,) bool, which columns have a whole number with a leading zero, as codes have.

    text : (bytes,) uint8, lines that end in a newline.  mark : the byte that separates fields.
    """
    hits = 0
    for i in range(len(text) - 1):  # a quick look, since most texts have none
        before = text[i - 1] if i else _NEWLINE
        starts = (before <= _SPACE) | (before == mark) | (before == _QUOTE)
        hits += starts & (text[i] == _ZERO) & (text[i + 1] >= _ZERO) & (text[i + 1] <= _NINE)
    if not hits:
        return
    column, state, quoted, inside = 0, _LEADING, False, False
    for byte in text:
        if byte == _QUOTE and (quoted or state == _LEADING):
            quoted, inside = True, not inside
        elif not inside and (byte in (mark, _NEWLINE)):
            if (state in (_MORE, _TRAILING)) and column < len(found):
                found[column] = True
            column = 0 if byte == _NEWLINE else column + 1
            state, quoted = _LEADING, False
        elif byte in (_SPACE, _TAB, _RETURN):
            if state == _FIRST:
                state = _OTHER
            elif state == _MORE:
                state = _TRAILING
        elif _ZERO <= byte <= _NINE and (state in (_FIRST, _MORE)):
            state = _MORE
        else:
            state = _FIRST if state == _LEADING and byte == _ZERO else _OTHER
