"""Names that a terminal or a spreadsheet would act on."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from distsms.__main__ import main
from distsms.base.wording import harmless_cell, printable


def test_numbers_stay_as_they_are():
    for number in ["-0.5", "-12", "+3", "-.5e-7", "0", "-1.", "12345678901234567890"]:
        assert harmless_cell(number) == number


def test_what_could_be_a_formula_gets_an_apostrophe():
    texts = ["=1+1", "+49 123", "-", "-a", "@SUM(A1)", "\t=1", "\r=1", "\n=1", "-1+1", "=-5", "+", "--5", "-1-"]
    texts += [f"{sign}1+1" for sign in "\uff1d\uff0b\uff0d\uff20\ufe66\ufe62\ufe63\ufe6b"]
    for text in texts:
        assert harmless_cell(text) == "'" + text
        assert harmless_cell(f"a;{text}") == f"a;'{text}"  # where a semicolon ends a cell


def test_other_text_stays_as_it_is():
    for text in ["row 1", "a=b", "ä@b", "1-2", "", " =1", "日本"]:
        assert harmless_cell(text) == text == printable(text)


@given(st.text())
def test_nothing_that_a_terminal_acts_on_is_left(text):
    assert printable(text).isprintable()
    assert all(sign.isprintable() or sign == "\n" for sign in printable(text, "\n"))
    assert printable(text) == text or not text.isprintable()


def test_escapes_are_those_of_python():
    assert printable("a\x1b[2J\nb\u202e\x9b") == r"a\x1b[2J\nb\u202e\x9b"
    assert printable("a\x1b\n", "\n") == "a\\x1b\n"


def test_messages_and_text_have_no_escapes(tmp_path, capfd):
    """Of names of files, columns, labels and rows, whatever shows them."""
    evil = "evil\x1b[2J"
    rows = "".join(f'"{evil}{k}",{k % 7 + k % 2},{evil if k % 2 else "no"}\n' for k in range(60))
    path, data, model = (str(tmp_path / f"{evil}{name}") for name in (".csv", "", ".h5"))
    (tmp_path / f"{evil}.csv").write_text(f"id,{evil},y\n{rows}")
    commands = (
        (1, "shard", path, data, "--label", f"z{evil}"),
        (1, "shard", path, data, "--label", "id"),
        (0, "shard", path, data, "--label", "y", "--id", "id", "--positive", evil),
        (0, "info", data),
        (0, "train", data, "--output", model, "--lambda", "1e-2", "--solver", "lbfgs"),
        (0, "info", model),
        (0, "info", model, model),
        (0, "evaluate", model, data),
        (0, "predict", model, path, "--quiet"),
        (0, "export", model, "--to", "csv"),
    )
    for code, *words in commands:
        assert main(words) == code, (words, capfd.readouterr())
        found = capfd.readouterr()
        assert "\x1b" not in found.out + found.err, words
        assert r"evil\x1b[2J" in found.out + found.err, words
