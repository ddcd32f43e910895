"""The performance measures: their names, families and parameters.

A measure has a name on the command line, in model files and in the library, such as ``"rocarea"``, ``"f0.5"`` or
``"precision@100"``. The commands and public functions convert the name to a `Measure` with `Measure.parse`; all other
functions are given the `Measure`. This module does not import NumPy, so that ``--help`` is fast.
"""

from __future__ import annotations

import re
from dataclasses import dataclass, field

from distsms.errors import InputError

NAMES = "rocarea, pauc@BETA, prbep, error-rate, f1 (or f0.5, f2, ...), precision@K or recall@K"

SMALLEST_BETA, LARGEST_BETA = 1e-6, 1e6

RANKING = ("rocarea", "prbep")
"""The two measures of the paper. `path`, `baseline` and `compare` work with these."""

ALIASES = {"auc": "rocarea", "roc_auc": "rocarea", "roc-auc": "rocarea"}
"""Other names that are understood."""

CHOOSERS = (
    "rocarea, prbep, average-precision, precision@K, recall@K, accuracy, precision, recall, f1 (or f0.5, f2, ...)"
)
"""The measures of held-out rows that can choose a lambda, whatever is trained; see `check_chooser`."""

SHOWN = {"rocarea": "ROCArea", "prbep": "PRBEP"}
"""How these two are written in reports."""


@dataclass(frozen=True)
class Measure:
    """A performance measure of a linear classifier.

    Parameters
    ----------
    name : str
        The name as it was given. Two spellings of one measure, such as ``"f2"`` and ``"f2."``, are equal.
    family : str
        ``"rocarea"``, ``"pauc"``, ``"prbep"``, ``"error-rate"``, ``"f-beta"``, ``"precision@k"`` or ``"recall@k"``.
    beta : float, optional
        The weight of recall in F-beta; None for the other families.
    k : int, optional
        The number of rows called positive in precision@K and recall@K; None for the other families.
    max_fpr : float, optional
        The largest false positive rate that counts in pauc@BETA, above 0 and at most 1; None for the other families.
    """

    name: str = field(compare=False)
    family: str
    beta: float | None = None
    k: int | None = None
    max_fpr: float | None = None

    @classmethod
    def parse(cls, measure: str | Measure) -> Measure:
        """Return the measure of this name; a `Measure` is returned as it is.

        Raises
        ------
        InputError
            If no measure has this name.
        """
        if isinstance(measure, Measure):
            return measure
        measure = ALIASES.get(measure, measure)
        if measure in (*RANKING, "error-rate"):
            return cls(measure, measure)
        match = re.fullmatch(r"f((\d+\.?\d*|\.\d+)(e[+-]?\d+)?)", measure, re.ASCII)
        if match and SMALLEST_BETA <= (beta := float(match[1])) <= LARGEST_BETA:
            return cls(measure, "f-beta", beta=beta)
        if match := re.fullmatch(r"(precision|recall)@([1-9]\d{0,17})", measure, re.ASCII):
            return cls(measure, f"{match[1]}@k", k=int(match[2]))
        match = re.fullmatch(r"pauc@((\d+\.?\d*|\.\d+)(e-?\d+)?)", measure, re.ASCII)
        if match and 0 < (max_fpr := float(match[1])) <= 1:
            return cls(measure, "pauc", max_fpr=max_fpr)
        raise InputError(
            f"no measure is called {measure!r}; there are {NAMES}, with K a whole number of at least 1, f followed by "
            f"a number from {SMALLEST_BETA:g} to {LARGEST_BETA:g}, and BETA a false positive rate above 0 and at most "
            "1, such as pauc@0.05"
        )

    @property
    def parameters(self) -> tuple[float, ...]:
        """The additional arguments of the constructor of the measure's loss: beta, K, the largest FPR, or nothing."""
        return tuple(value for value in (self.beta, self.k, self.max_fpr) if value is not None)

    @property
    def smooth(self) -> bool:
        """Whether the risk of this measure has a smoothed form. Without one, only the cutting-plane solver works."""
        return self.family in (*RANKING, "pauc", "error-rate")

    @property
    def display_name(self) -> str:
        """The name as it is written in reports."""
        return display_name(self.name)

    def __str__(self) -> str:
        return self.name


def display_name(name: str) -> str:
    """Return a measure's name as it is written in reports."""
    return SHOWN.get(name, name)


def check_chooser(name: str) -> str:
    """Return the name, not an alias, if held-out rows can be measured by it, so that it can choose a lambda.

    Raises
    ------
    InputError
        If it is not one of `CHOOSERS`.
    """
    if name == "error-rate":
        raise InputError(
            "error-rate is smaller where models are better; choose by accuracy, which is 1 less error-rate"
        )
    name = ALIASES.get(name, name)
    if name not in ("average-precision", "accuracy", "precision", "recall"):
        try:
            Measure.parse(name)
        except InputError:
            raise InputError(f"no measure called {name!r} can choose; there are {CHOOSERS}") from None
    return ALIASES.get(name, name)
