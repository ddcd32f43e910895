"""Texts for people: messages that name options, and texts of others, such as names of rows, made harmless for terminals
and spreadsheets.

The command line and Python write options differently: ``--bias 1`` and ``bias=1``. A text with ``option('label',
text='COLUMN')`` in it becomes a `Message`, as every error and warning does, which knows its options. Addresses in it
are without user, password and query.
"""

from __future__ import annotations

import re
import secrets
import shlex
from collections.abc import Mapping
from typing import Any, NamedTuple

DECIMAL = re.compile(r"[+-]?(?:[0-9]+\.?[0-9]*|\.[0-9]+)(?:[eE][+-]?[0-9]+)?")
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
    return text if DECIMAL.fullmatch(text) else _FORMULA.sub(r"\1'", text)


COMMANDS = {
    "compression": "compress",
    "dates": "date",
    "hashed": "hash",
    "lam": "lambda",
    "n_features": "columns",
    "n_shards": "shards",
    "spectra": "spectrum",
    "start": "init",
}
"""The options that have another name on the command line than in Python."""
_KEY = f"\N{OBJECT REPLACEMENT CHARACTER}{secrets.token_hex(8)}"
"""Stands around options in texts. No name has it by chance or on purpose, since each process draws its own."""
_OPTION = re.compile(f"{_KEY}(.*?){_KEY}(.*?){_KEY}", re.DOTALL)


class Option(NamedTuple):
    """An option in a message, in the words of the command line and of Python."""

    command: str
    python: str


def format_value(value: object) -> str:
    """Return a user's value as Python writes it, and 1.0 where NumPy 2 writes np.float64(1.0), also in a list."""
    return re.sub(r"\bnp\.\w+\(([^()]*)\)|\bnp\.(True|False)_\b", r"\1\2", repr(value))


def option(name: str, value: Any = None, *, text: str | None = None) -> str:
    """Return an option by its name in Python, with a `value` as Python takes it, or `text` on a command line."""
    words = [f"--{COMMANDS.get(name, name).replace('_', '-')}"]
    words += [_in_command(value) if text is None else text] * (value is not None or text is not None)
    shown = text if value is None else f"{value:g}" if isinstance(value, float) else format_value(value)
    return _marked(Option(" ".join(words), name if shown is None else f"{name}={shown}"))


def _in_command(value: Any) -> str:
    if isinstance(value, Mapping):
        return " ".join(shlex.quote(f"{name}:{each}") for name, each in value.items())
    if isinstance(value, list | tuple):
        return ("," if isinstance(value, tuple) else " ").join(map(_in_command, value))
    return f"{value:g}" if isinstance(value, float) else str(value) or "''"


def _marked(each: Option) -> str:
    return f"{_KEY}{each.command}{_KEY}{each.python}{_KEY}"


class Message(str):
    """A text in the words of the command line; its `parts`, in their order, are texts and the options in it."""

    parts: tuple[str | Option, ...]

    def __new__(cls, text: str) -> Message:
        pieces = _OPTION.split(without_credentials(marked(text)))
        parts: list[str | Option] = [pieces[0]]
        for command, python, after in zip(pieces[1::3], pieces[2::3], pieces[3::3], strict=True):
            parts += [Option(command, python), after]
        self = super().__new__(cls, "".join(part.command if isinstance(part, Option) else part for part in parts))
        self.parts = tuple(parts)
        return self

    def __reduce__(self) -> tuple[Any, tuple[Any, ...]]:
        return _of_parts, self.parts


def _of_parts(*parts: str | Option) -> Message:
    """Return the message of these parts, which another process may have sent."""
    return Message("".join(_marked(part) if isinstance(part, Option) else part for part in parts))


def marked(message: str) -> str:
    """Return a message as a text that can be a part of another message."""
    if not isinstance(message, Message):
        return message
    return "".join(_marked(part) if isinstance(part, Option) else part for part in message.parts)


def in_python(message: str) -> str:
    """Return a message with its options as the functions of Python take them."""
    if not isinstance(message, Message):
        return message
    return "".join(part.python if isinstance(part, Option) else part for part in message.parts)
