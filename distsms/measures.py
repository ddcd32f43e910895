"""What a measure is called on the command line and in models, taken apart. Loads nothing, so that --help can use it."""

from __future__ import annotations

import re

from distsms.errors import InputError

NAMES = "rocarea, prbep, error-rate, f1 (or f0.5, f2, ...), precision@K or recall@K"

SMALLEST_BETA, LARGEST_BETA = 1e-6, 1e6

RANKING = ("rocarea", "prbep")
"""The paper's two measures, which comparisons are of."""

SHOWN = {"rocarea": "ROCArea", "prbep": "PRBEP"}
"""What they are called where people read."""


def parse(name: str) -> tuple[str, tuple[float, ...]]:
    """The family and its parameters: "f0.5" is ("f-beta", (0.5,)), "recall@9" is ("recall@k", (9,)).

    Raises InputError where there is no such measure.
    """
    if name in (*RANKING, "error-rate"):
        return name, ()
    found = re.fullmatch(r"f((\d+\.?\d*|\.\d+)(e[+-]?\d+)?)", name, re.ASCII)
    if found and SMALLEST_BETA <= (beta := float(found[1])) <= LARGEST_BETA:
        return "f-beta", (beta,)
    if found := re.fullmatch(r"(precision|recall)@([1-9]\d{0,17})", name, re.ASCII):
        return f"{found[1]}@k", (int(found[2]),)
    raise InputError(
        f"no measure is called {name!r}; there are {NAMES}, with K a whole number of at least 1, and f followed by a "
        f"number from {SMALLEST_BETA:g} to {LARGEST_BETA:g}"
    )


def at(name: str) -> int | None:
    """K of precision@K and recall@K, None for the other measures."""
    family, parameters = parse(name)
    return int(parameters[0]) if family.endswith("@k") else None
