"""Divide a table of two attributes into what each attribute says by itself and what only the pair says.

A table F can be written as F(u, v) = a(u) + b(v) + G(u, v) in many ways. Here G has the mean 0 over the rows of each
code u, and over those of each code v, so nothing in it could be said by one attribute alone (Lengerich et al.,
*Purifying Interaction Effects with the Functional ANOVA*, AISTATS 2020). Means are found and moved in turn, as there.
"""

from __future__ import annotations

import numpy as np

from distsms.base.typing import Floats

_SWEEPS = 500
"""If the means have not vanished after so many sweeps, the rest of them stays in G."""
_SMALL = 1e-12
"""Means count as 0 if they are smaller than this share of the largest entry."""


def purified(table: Floats, rows: Floats) -> tuple[Floats, Floats, Floats]:
    """Return G (n_u, n_v), a (n_u,) and b (n_v,), whose sum is the table F (n_u, n_v). Local.

    `rows` (n_u, n_v) says how many rows have both codes, or their weight. Codes that no row has get their mean over the
    rows of the other attribute.
    """
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
    """Return sums divided by the weights `of`, and 0 where these are 0."""
    return np.divide(sums, of, out=np.zeros_like(sums), where=np.asarray(of) > 0)
