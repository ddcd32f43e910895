"""The compiled passes over text with sequences, used by `distsms.ingest.formats.sequences`. Texts end in a newline."""

from __future__ import annotations

from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from distsms.base.jit import njit
from distsms.shards.sequence_rules import NO_LETTER

BAD_LETTER, WRONG_LENGTH, NO_SEQUENCE, TOO_MUCH, NO_HEADER = 1, 2, 3, 4, 5
"""The codes of the faults that the passes find."""
_TAB, _NEWLINE, _RETURN, _SPACE, _HASH, _SEMICOLON, _GREATER = 9, 10, 13, 32, 35, 59, 62


class Scan(NamedTuple):
    """What a pass over text returns."""

    fault: int  # one of the codes, or 0
    at: int  # where it is
    letters: int  # how many letters that sequence has
    rows: int  # the number of rows


@njit()
def _is_blank(byte: int) -> bool:
    return byte in (_SPACE, _TAB, _RETURN)


@njit()
def _skip_blanks(text: NDArray[np.uint8], i: int) -> Any:
    """Return the place of the first byte from i on that is no blank."""
    while _is_blank(text[i]):
        i += 1
    return i


@njit()
def _end_of_field(text: NDArray[np.uint8], i: int) -> Any:
    """Return the place of the first byte from i on that is a blank, the beginning of a comment or a newline."""
    while not _is_blank(text[i]) and text[i] != _NEWLINE and text[i] != _HASH:
        i += 1
    return i


@njit()
def scan_lines(labelled, text, begin, table, first, last, length, codes, fields):  # type: ignore[no-untyped-def]
    """Read lines LABEL SEQUENCE, of which the labels may be absent if `labelled` is false; return what `Scan` says.

    text : (bytes,) uint8, whole lines, of which the first begins at `begin`.  length : the letters of each sequence.
    table : (256,) uint8, see `sequence_rules.code_table`.  first, last : the letters first <= k < last are kept.
    codes : (rows, last - first) uint8, receives the codes.
    fields : (rows, 2) int64, receives where each label begins and ends; both are equal if there is none.
    """
    n = 0
    i = begin
    while i < len(text):
        # 1) The label and the sequence, as two words; the only word is the sequence.
        label = _skip_blanks(text, i)
        label_end = _end_of_field(text, label)
        start = _skip_blanks(text, label_end)
        stop = _end_of_field(text, start)
        if label_end == label:  # a blank line or a comment
            stop = label
        else:
            if stop == start:
                if labelled:
                    return NO_SEQUENCE, label, 0, n
                start, stop, label_end = label, label_end, label
            # 2) The codes of the letters within the window.
            for k in range(start, stop):
                code = table[text[k]]
                if code == NO_LETTER:
                    return BAD_LETTER, k, 0, n
                if k - start >= length:
                    break
                if first <= k - start < last:
                    codes[n, k - start - first] = code
            # 3) The row is complete, unless something else than a comment follows.
            if stop - start != length:
                return WRONG_LENGTH, start, stop - start, n
            fields[n, 0], fields[n, 1] = label, label_end
            n += 1
            stop = _skip_blanks(text, stop)
            if text[stop] != _NEWLINE and text[stop] != _HASH:
                return TOO_MUCH, stop, 0, n
        while text[stop] != _NEWLINE:
            stop += 1
        i = stop + 1
    return 0, 0, 0, n


@njit()
def scan_records(text, begin, table, first, last, length, codes, fields):  # type: ignore[no-untyped-def]
    """Read records of FASTA as `scan_lines`: a line with >, then lines of letters, or of comments (;). `fields` gets
    where each header begins, after its >, and ends; a fault in the length is at the header."""
    n = 0
    letters = 0
    i = begin
    while i < len(text):
        if text[i] == _GREATER:  # a header ends the record before it, and begins the next one
            if n and letters != length:
                return WRONG_LENGTH, fields[n - 1, 0], letters, n
            fields[n, 0] = i + 1
            while text[i] != _NEWLINE:
                i += 1
            fields[n, 1] = i
            n += 1
            letters = 0
        elif text[i] == _SEMICOLON:  # a comment
            while text[i] != _NEWLINE:
                i += 1
        else:  # a line of letters
            while text[i] != _NEWLINE:
                if not _is_blank(text[i]):
                    code = table[text[i]]
                    if not n:
                        return NO_HEADER, i, 0, n
                    if code == NO_LETTER:
                        return BAD_LETTER, i, 0, n
                    if first <= letters < last:
                        codes[n - 1, letters - first] = code
                    letters += 1
                i += 1
        i += 1
    if n and letters != length:
        return WRONG_LENGTH, fields[n - 1, 0], letters, n
    return 0, 0, 0, n
