"""The rows of one rank, as the objective sees them: the protocol that every kind of features implements."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Protocol

from distsms.utils.typing import Floats


class Features(Protocol):
    """What the objective needs of the rows that a rank holds; see `distsms.matrix.local`."""

    @property
    def shape(self) -> tuple[int, int]: ...
    def margins(self, W: Floats, out: Floats | None = None) -> Floats: ...
    def transposed_times(self, C: Sequence[Floats] | Floats, out: Floats | None = None) -> Floats: ...
    def largest_terms(self, w: Floats) -> float: ...
    def columns(self) -> tuple[Floats, Floats]: ...
    def second_moments(self) -> Floats: ...
