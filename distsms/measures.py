"""The names of measures on the command line and in models. This module imports nothing large, so --help can use it."""

from __future__ import annotations

import re

from distsms.errors import InputError

NAMES = "rocarea, prbep, error-rate, f1 (or f0.5, f2, ...), precision@K or recall@K"

SMALLEST_BETA, LARGEST_BETA = 1e-6, 1e6

RANKING = ("rocarea", "prbep")
"""The two measures of the paper, which `compare` uses."""

SHOWN = {"rocarea": "ROCArea", "prbep": "PRBEP"}
"""Their names in output for people."""


def parse(name: str) -> tuple[str, tuple[float, ...]]:
    """Split a measure's name into its family and its parameters.

    Parameters
    ----------
    name : str
        Such as "rocarea", "f0.5" or "recall@9".

    Returns
    -------
    family : str
        "f-beta" for "f0.5", "recall@k" for "recall@9", else the name.
    parameters : tuple of float
        (0.5,) for "f0.5", (9,) for "recall@9".

    Raises
    ------
    InputError
        If there is no such measure.
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
    """Return K for precision@K and recall@K, None for other measures."""
    family, parameters = parse(name)
    return int(parameters[0]) if family.endswith("@k") else None
