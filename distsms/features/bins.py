"""Codes of attributes: the bin of a number, or the category that a set of 0/1 columns names; and crosses of two."""

from __future__ import annotations

from collections.abc import Sequence
from functools import cached_property
from typing import Any

import numpy as np
from numpy.typing import NDArray

from distsms.base.typing import Floats
from distsms.features.attributes import Attribute
from distsms.features.rows import Columns
from distsms.matrix.code_maps import Categories, Crosses

_SWEEPS = 500
"""If the means have not vanished after so many sweeps, the rest of them stays in G."""
_SMALL = 1e-12
"""Means count as 0 if they are smaller than this share of the largest entry."""


def purified(table: Floats, rows: Floats) -> tuple[Floats, Floats, Floats]:
    """Return G (n_u, n_v), a (n_u,) and b (n_v,), whose sum is the table, where G has the mean 0 over the rows of each
    code u and of each v (docs/theory/features.md); `rows` are its cells' weights. Local."""
    G, a, b = table.astype(np.float64), np.zeros(len(table)), np.zeros(table.shape[1])
    of_u, of_v = rows.sum(axis=1), rows.sum(axis=0)
    limit = _SMALL * np.abs(G[rows > 0]).max(initial=0.0)
    for _ in range(_SWEEPS):
        means_u = _shares((rows * G).sum(axis=1), of_u)
        a, G = a + means_u, G - means_u[:, None]
        means_v = _shares((rows * G).sum(axis=0), of_v)
        b, G = b + means_v, G - means_v
        if max(np.abs(means_u).max(), np.abs(means_v).max()) <= limit:
            break
    new_u = np.where(of_u > 0, 0.0, _shares(G @ of_v, of_v.sum()))
    a, G = a + new_u, G - new_u[:, None]
    new_v = np.where(of_v > 0, 0.0, _shares(of_u @ G, of_u.sum()))
    return G - new_v, a, b + new_v


def _shares(sums: Floats, of: Floats) -> Floats:
    return np.divide(sums, of, out=np.zeros_like(sums), where=np.asarray(of) > 0)


class Bins:
    """The codes of attributes, of which there is at least one, and crosses of two of them, `pairs`.

    Code k of a number stands for [edge k - 1, edge k), and one more for a missing number if a column says so. The code
    of a categorical attribute is the place of its first column that is set; if none is, one more code if there is one,
    else none: no column has the row. `edges` ascend, and are empty for categories; `screened`: whether labels chose the
    pairs. Raises ValueError for pairs that make no crosses.
    """

    def __init__(
        self,
        attributes: Sequence[Attribute],
        edges: Sequence[NDArray[np.float32]],
        pairs: Sequence[tuple[int, int]] = (),
        screened: bool = False,
    ) -> None:
        self.attributes, self.edges, self.screened = tuple(attributes), tuple(edges), screened
        self.pairs = tuple((int(a), int(b)) for a, b in pairs)
        self.blocks = Categories(self.sizes)  # whose columns come first in `code_map`
        self.code_map: Categories | Crosses = Crosses(self.sizes, self.pairs) if self.pairs else self.blocks

    @cached_property
    def sizes(self) -> tuple[int, ...]:
        return tuple(
            len(edges) + 1 + (attribute.missing is not None)
            if attribute.categories is None
            else len(attribute.columns) + attribute.none
            for attribute, edges in zip(self.attributes, self.edges, strict=True)
        )

    def codes(self, X: Any) -> NDArray[Any]:
        """Return the codes of rows (n, p), sparse or dense, without NaN: (n, attributes), of the map's type. Local."""
        columns, missing = Columns(X), np.iinfo(self.code_map.dtype).max
        codes = np.empty((len(self.attributes), columns.n), self.code_map.dtype)
        for attribute, edges, out in zip(self.attributes, self.edges, codes, strict=True):
            if attribute.categories is None:
                out[:] = np.searchsorted(edges, columns.values(attribute.columns[0]), side="right")
                if attribute.missing is not None:
                    out[columns.is_set(attribute.missing)] = len(edges) + 1
                continue
            out[:] = len(attribute.columns) if attribute.none else missing
            for code in range(len(attribute.columns) - 1, -1, -1):  # so that the first one counts
                out[columns.is_set(attribute.columns[code])] = code
        return codes.T

    @cached_property
    def names_of_columns(self) -> dict[int, str]:
        """The names of the columns that attributes use: those of numbers, or of categories, such as job=clerk."""
        return {
            column: attribute.name if attribute.categories is None else self.code_name(number, code)
            for number, attribute in enumerate(self.attributes)
            for code, column in enumerate(attribute.columns)
        }

    def code_name(self, number: int, code: int) -> str:
        """Return what a code of an attribute says: age in [30, 35), or education=Bachelors."""
        attribute, text = self.attributes[number], self.code_text(number, code)
        if attribute.categories is not None:
            return f"{attribute.name}={text}"
        return f"{attribute.name}{ {'[': ' in', 'm': ' is', 'a': ' has'}.get(text[0], '') } {text}"

    def code_text(self, number: int, code: int) -> str:
        """Return what a code of an attribute says, without the attribute: [30, 35), or Bachelors."""
        attribute, edges = self.attributes[number], self.edges[number]
        if attribute.categories is not None:
            return attribute.categories[code] if code < len(attribute.columns) else "none"
        if code > len(edges):
            return "missing"
        if not len(edges):
            return "any value"
        low, high = (edge_text(edges[k], attribute.centre) if 0 <= k < len(edges) else "" for k in (code - 1, code))
        return f"[{low}, {high})" if low and high else f">= {low}" if low else f"< {high}"

    def column_name(self, j: int) -> str:
        """Return the name of column j: that of a code, or those of both codes of a cross, joined by " & "."""
        codes = self.code_map.place(j) if isinstance(self.code_map, Crosses) else (self.code_map.place(j),)
        return " & ".join(self.code_name(number, code) for number, code in codes)

    def describe(self) -> str:
        numbers = sum(attribute.categories is None for attribute in self.attributes)
        parts = [f"{numbers} numbers in bins"] if numbers else []
        parts += [f"{len(self.attributes) - numbers} categories"] if numbers < len(self.attributes) else []
        parts += [f"{len(self.pairs)} crosses"] if self.pairs else []
        return f"{', '.join(parts)}: {self.code_map.p} columns"

    def listing(self) -> list[str]:
        return [
            f"{attribute.name}: {size} {'bins' if attribute.categories is None else 'categories'}"
            for attribute, size in zip(self.attributes, self.sizes, strict=True)
        ]

    def record(self) -> dict[str, Any]:
        """Return everything but the edges, ready for JSON."""
        fields: dict[str, Any] = {"attributes": [attribute.record() for attribute in self.attributes]}
        fields |= {"pairs": [list(pair) for pair in self.pairs]} if self.pairs else {}
        return fields | ({"screened": True} if self.screened else {})

    def arrays(self) -> dict[str, NDArray[Any]]:
        """Return the edges of all attributes, one after the other, and where those of each begin."""
        ends = np.cumsum([0, *map(len, self.edges)])
        return {"edges": np.concatenate([np.empty(0, np.float32), *self.edges]), "starts": ends.astype(np.int64)}

    @classmethod
    def of(cls, record: Any, edges: NDArray[np.float32], starts: NDArray[np.int64]) -> Bins:
        """Return what `record` and `arrays` described."""
        attributes = [Attribute(**each) for each in record["attributes"]]
        of_attributes = np.split(edges, starts[1:-1])
        return cls(attributes, of_attributes, record.get("pairs", ()), record.get("screened", False))


def edge_text(edge: float | np.float32, centre: float) -> str:
    """Return an edge, to which `centre` is added, with the digits that float32 has."""
    edge = np.float32(edge)
    if centre:
        return f"{float(edge) + centre:.7g}"
    plain = edge == 0 or 1e-4 <= abs(edge) < 1e7
    return np.format_float_positional(edge, trim="-") if plain else f"{edge:.7g}"
