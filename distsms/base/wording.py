"""Messages that name options, which the command line and Python write differently: ``--bias 1`` and ``bias=1``. A text
with ``option('label', text='COLUMN')`` in it becomes a `Message`, as every error and warning does, which knows its
options. Addresses in it are without user, password and query.
"""

from __future__ import annotations

import re
import secrets
import shlex
from collections.abc import Mapping
from typing import Any, NamedTuple

from distsms.base.untrusted_text import without_credentials

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
