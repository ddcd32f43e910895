"""What all ranks must be given alike: the words of the command, the versions of libraries, the arguments of a call."""

from __future__ import annotations

import os
import sys
from collections.abc import Sequence
from dataclasses import is_dataclass
from typing import Any

import numpy as np
import xxhash

from distsms.base._version import __version__
from distsms.base.communicator import Communicator

OF_ROWS = "data", "weight", "group"
"""The arguments that may hold the rows of a rank."""


def require_same_command(words: Sequence[str], comm: Communicator) -> None:
    """Raise InputError on all ranks unless they run the same command with the same versions. **Collective.**"""
    versions = {"distsms": __version__, "Python": sys.version.split()[0], "NumPy": np.__version__}
    comm.require_same(versions, "version", "Start all ranks with the same installation")
    named, name = dict[str, str](), "command"
    for word in words:
        option, _, value = word.partition("=") if word.startswith("--") else ("", "", word)
        name = option or name
        named[name] = f"{named.get(name, '')} {value}".strip()
    comm.require_same(named, "command line", "Start all ranks with the same command")


def require_same_arguments(comm: Communicator, **arguments: Any) -> None:
    """Raise InputError on all ranks unless their arguments are alike, rows by type. **Collective.**"""
    if comm.size > 1:
        texts = {name: _as_text(value, name in OF_ROWS) for name, value in arguments.items() if not callable(value)}
        comm.require_same(texts, "argument", "Call the function on all ranks with the same arguments")


def _as_text(value: Any, of_rows: bool = False) -> str:
    if isinstance(value, str | int | float | None | np.generic):
        return repr(value.item() if isinstance(value, np.generic) else value)
    if isinstance(value, os.PathLike):
        return repr(os.fspath(value))
    if isinstance(value, list | tuple) and not of_rows:
        return repr([_as_text(one) for one in value])
    if isinstance(weights := getattr(value, "w", None), np.ndarray):  # a model
        return f"a {type(value).__name__} with the digest {xxhash.xxh3_64_hexdigest(weights.tobytes())}"
    return repr(value) if is_dataclass(value) else f"a {type(value).__name__}"
