"""Where planes come from: the points at which a certificate evaluates the coefficients of the rows once more.

A plane of an evaluation is known again from its point, w and the width nu. A merged plane is a mixture of such planes,
and so is the best mixture of all. So it is enough to keep each point once, and for each plane the shares of its points.
"""

from __future__ import annotations

import numpy as np

from distsms.base.typing import Floats
from distsms.optim.result import Origin, Snapshot

OPENING = -1.0
"""The width of the one point that is no evaluation: the plane that an opening has left, whose coefficients it keeps."""
Shares = dict[int, float]


class Origins:
    """The points of the planes of a proof, at most `most` of them, and of the mixture that proves the best bound."""

    def __init__(self, most: int) -> None:
        self._most, self._next = most, 0
        self._points: dict[int, Origin] = {}
        self._planes: dict[int, Shares] = {}  # by the plane's place
        self._best: Shares = {}

    def put(self, slot: int, point: Origin | None) -> None:
        """Note the point of a new plane; None for the zero plane, which needs none."""
        self._planes[slot] = {}
        if point is not None:
            self._planes[slot], self._points[self._next] = {self._next: point.share}, point
            self._next += 1

    def merge(self, kept: int, gone: int, a: float, b: float) -> None:
        """Note that plane `kept` is now a times itself plus b times plane `gone`."""
        self._planes[kept] = self._mixed({kept: a, gone: b})

    def follow(self, alpha: Floats, best: bool) -> None:
        """Note the mixture alpha (k,) of the present planes if it proves the best bound, and forget unused points.

        If there are too many, that of least weight is forgotten. What is left of its mixture, scaled up to its sum, is
        a plane below R, too, but may prove less.
        """
        if best:
            self._best = self._mixed({int(slot): float(alpha[slot]) for slot in np.flatnonzero(alpha)})
        mixtures = [*self._planes.values(), self._best]
        used = {number for shares in mixtures for number in shares}
        if len(used) > self._most:
            factors = [*(float(alpha[slot]) for slot in self._planes), 1.0]

            def weight(number: int) -> float:
                return sum(factor * shares.get(number, 0.0) for factor, shares in zip(factors, mixtures, strict=True))

            for number in sorted(used, key=weight)[: len(used) - self._most]:
                used.discard(number)
                for shares in mixtures:
                    gone, rest = shares.pop(number, 0.0), sum(shares.values())
                    for other in shares if gone else ():
                        shares[other] *= 1 + gone / rest
        self._points = {number: point for number, point in self._points.items() if number in used}

    def mixture(self) -> list[Origin]:
        """Return the points of the best mixture with their shares of it, which add up to at most 1."""
        return [self._points[number]._replace(share=share) for number, share in self._best.items() if share > 0]

    def snapshot(self) -> Snapshot:
        rows = {number: row for row, number in enumerate(self._points)}
        mixtures = [*(self._planes.get(slot, {}) for slot in range(max(self._planes, default=-1) + 1)), self._best]
        shares = np.zeros((len(mixtures), len(rows)))
        for row, mixture in enumerate(mixtures):
            for number, share in mixture.items():
                shares[row, rows[number]] = share
        points = list(self._points.values())
        tables = {"shares": shares, "widths": np.array([point.nu for point in points])}
        return Snapshot({}, tables, {"points": [point.w for point in points]})

    def restore(self, snapshot: Snapshot) -> None:
        """Set the state to that of another object."""
        points = zip(snapshot.vectors["points"], snapshot.tables["widths"].tolist(), strict=True)
        self._points = {number: Origin(w, nu) for number, (w, nu) in enumerate(points)}
        self._next = len(self._points)
        mixtures = [{int(k): float(row[k]) for k in np.flatnonzero(row)} for row in snapshot.tables["shares"]]
        self._planes, self._best = dict(enumerate(mixtures[:-1])), mixtures[-1]

    def _mixed(self, weights: Shares) -> Shares:
        """Return the shares of a mixture of planes."""
        mixed: Shares = {}
        for slot, weight in weights.items():
            for number, share in self._planes.get(slot, {}).items():
                mixed[number] = mixed.get(number, 0.0) + weight * share
        return mixed
