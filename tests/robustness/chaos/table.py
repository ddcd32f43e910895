"""The table of the chaos matrix, one row for each command and fault."""

from __future__ import annotations

import itertools
from collections import Counter
from collections.abc import Iterable

from scripts.records import Record

HEADER = ("command", "fault", "runs", "ended with", "after at most", "left", "next run", "bad")


def table(records: list[Record]) -> str:
    """Return the table in Markdown; runs of the same command and fault are put together."""
    lines = ["| " + " | ".join(HEADER) + " |", "|" + "---|" * len(HEADER)]

    def key(record: Record) -> tuple[str, str]:
        return record["command"], record["fault"]

    for (command, fault), group in itertools.groupby(sorted(records, key=key), key):
        runs = [record for record in group if not record["skipped"]]
        if not runs:
            continue
        cells = (
            f"`{command}`",
            fault,
            str(len(runs)),
            _counted(f"code {run['code']}" for run in runs),
            f"{max(run['seconds'] for run in runs):.0f} s",
            _counted(_short(run["left"]) for run in runs),
            _counted(run["again"] for run in runs),
            str(sum(bool(run["bad"]) for run in runs)),
        )
        lines.append("| " + " | ".join(cells) + " |")
    return "\n".join(lines)


def _counted(words: Iterable[str]) -> str:
    counts = Counter(words).most_common()
    return ", ".join(f"{word} ({count})" if len(counts) > 1 else word for word, count in counts)


def _short(left: str) -> str:
    return left.partition(" (")[0]
