"""Formatting of tables and of numbers of bytes, and conversion of values to JSON."""

from __future__ import annotations

import json
import math
from collections.abc import Sequence
from typing import Any


def to_json(value: Any, indent: int | None = None) -> str:
    """Return a value as JSON, with NaN and infinities as null, since JSON has no notation for them."""

    def clean(value: Any) -> Any:
        if isinstance(value, dict):
            return {key: clean(item) for key, item in value.items()}
        if isinstance(value, (list, tuple)):
            return [clean(item) for item in value]
        return None if isinstance(value, float) and not math.isfinite(value) else value

    return json.dumps(clean(value), indent=indent, allow_nan=False)


def format_table(header: Sequence[str], rows: Sequence[Sequence[Any]]) -> str:
    """Return a table as text, with the first column aligned to the left and the others to the right.

    Parameters
    ----------
    header : sequence of str
        The columns' names.
    rows : sequence of sequences
        Cells are strings, or numbers, which are printed with four significant digits.
    """
    cells = [list(header), *[[cell if isinstance(cell, str) else f"{cell:.4g}" for cell in row] for row in rows]]
    widths = [max(len(row[i]) for row in cells) for i in range(len(header))]
    lines = [
        "  ".join(c.ljust(w) if i == 0 else c.rjust(w) for i, (c, w) in enumerate(zip(row, widths, strict=True)))
        for row in cells
    ]
    return "\n".join([lines[0], "  ".join("-" * w for w in widths), *lines[1:]])


def format_bytes(n_bytes: float) -> str:
    """Format a number of bytes for people, in a unit up to TiB."""
    for unit in ("B", "KiB", "MiB", "GiB"):
        if n_bytes < 1024:
            return f"{n_bytes:.4g} {unit}"
        n_bytes /= 1024
    return f"{n_bytes:.4g} TiB"
