"""A point of a path: the outcome of one training, at one lambda for one fold."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, NamedTuple


class Point(NamedTuple):
    """The outcome of one training, at one lambda for one fold. Mappings of measures have the names of these as keys."""

    lam: float
    fold: int  # 0: trained on all rows
    result: Mapping[str, Any]  # of `Result.numbers`; `vacuous`, `idle`, `chance` from `why_chance`; with l1, `nonzeros`
    threshold: float
    training: Mapping[str, float]  # on the rows that it was trained on
    held_out: Mapping[str, Any] | None  # on the fold's rows, with `MeanEstimate.squares`, `counts`; None for fold 0

    def as_json(self) -> dict[str, Any]:
        """Return the fields as files have them, where the fold is called ``lane``."""
        fields = self._asdict()
        return {"lane" if name == "fold" else name: value for name, value in fields.items()}

    @classmethod
    def from_json(cls, fields: Mapping[str, Any]) -> Point:
        """Return the point of what `as_json` returned."""
        return cls(**{"fold" if name == "lane" else name: value for name, value in fields.items()})
