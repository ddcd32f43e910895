"""Names that a terminal or a spreadsheet would act on."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from distsms.utils.untrusted_text import harmless_cell, printable


@pytest.mark.parametrize("number", ["-0.5", "-12", "+3", "-.5e-7", "0", "-1.", "12345678901234567890"])
def test_numbers_stay_as_they_are(number):
    assert harmless_cell(number) == number


@pytest.mark.parametrize(
    "text", ["=1+1", "+49 123", "-", "-a", "@SUM(A1)", "\t=1", "\r=1", "-1+1", "=-5", "+", "--5", "-1-"]
)
def test_what_could_be_a_formula_gets_an_apostrophe(text):
    assert harmless_cell(text) == "'" + text


@pytest.mark.parametrize("text", ["row 1", "a=b", "ä@b", "1-2", "", " =1", "日本"])
def test_other_text_stays_as_it_is(text):
    assert harmless_cell(text) == text == printable(text)


@given(st.text())
def test_nothing_that_a_terminal_acts_on_is_left(text):
    assert printable(text).isprintable()
    assert all(sign.isprintable() or sign == "\n" for sign in printable(text, "\n"))
    assert printable(text) == text or not text.isprintable()


def test_escapes_are_those_of_python():
    assert printable("a\x1b[2J\nb\u202e\x9b") == r"a\x1b[2J\nb\u202e\x9b"
    assert printable("a\x1b\n", "\n") == "a\\x1b\n"
