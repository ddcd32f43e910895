"""What a run tells: its course line by line, the trace file, and tables for people."""

from __future__ import annotations

import json
import math
from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    pass


def to_json(thing: Any, indent: int | None = None) -> str:
    """JSON with NaN and infinities as null, which JSON has no words for."""

    def clean(value: Any) -> Any:
        if isinstance(value, dict):
            return {key: clean(one) for key, one in value.items()}
        if isinstance(value, (list, tuple)):
            return [clean(one) for one in value]
        return None if isinstance(value, float) and not math.isfinite(value) else value

    return json.dumps(clean(thing), indent=indent, allow_nan=False)


def table(header: Sequence[str], rows: Sequence[Sequence[Any]]) -> str:
    """Columns aligned to the right, the first to the left."""
    cells = [list(header), *[[cell if isinstance(cell, str) else f"{cell:.4g}" for cell in row] for row in rows]]
    widths = [max(len(row[i]) for row in cells) for i in range(len(header))]
    lines = [
        "  ".join(c.ljust(w) if i == 0 else c.rjust(w) for i, (c, w) in enumerate(zip(row, widths, strict=True)))
        for row in cells
    ]
    return "\n".join([lines[0], "  ".join("-" * w for w in widths), *lines[1:]])


def size(n_bytes: float) -> str:
    """A number of bytes for people."""
    for unit in ("B", "KiB", "MiB", "GiB"):
        if n_bytes < 1024:
            return f"{n_bytes:.4g} {unit}"
        n_bytes /= 1024
    return f"{n_bytes:.4g} TiB"
