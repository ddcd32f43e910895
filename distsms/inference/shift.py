"""Say what a threshold is worth on rows whose share of positives differs from that of the training data.

A threshold has a true positive rate TPR and a false positive rate FPR, which do not depend on the share pi of positive
rows if the positive rows look as in the training data, and so do the negative ones. Its precision does:

    precision = TPR pi / (TPR pi + FPR (1 - pi))

If the labels are not known, pi follows from the share q of rows that are called positive, since
q = TPR pi + FPR (1 - pi) (Forman, Data Mining and Knowledge Discovery 17, 2008).
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from typing import Any

ERRORS, FACTOR = 3.29, 1.25
"""Two shares are called different if they differ by more than so many standard errors, which happens to one in 1,000
by chance, and by more than this factor.
"""


def describe(info: Mapping[str, Any], called: int, n: int, positive: float | None = None) -> str:
    """Return what a model's threshold is worth on new rows; "" if their share of positives is as in training. Local.

    Parameters
    ----------
    info : mapping
        The model's information. Without a `decision`, the result is "".
    called, n : int
        How many of the new rows are called positive, and how many rows there are. Weights do not count here.
    positive : float, optional
        The share of positive rows, if it is known, also without weights.
    """
    decision: Any = info.get("decision") or {}
    decision = {**decision, **decision.get("by_rows", {})}
    if not n or any(decision.get(name) is None for name in ("threshold", "tpr", "fpr", "precision")):
        return ""
    tpr, fpr, before = (float(decision[name]) for name in ("tpr", "fpr", "precision"))
    share, usual = (called / n, decision["called"]) if positive is None else (positive, decision["positive_share"])
    if not _differ(share, n, usual, decision["effective"]):
        return ""
    if positive is not None:
        what = f"{_percent(share)} of these rows are positive, and {_percent(usual)} of the training rows were"
        prior = share
    else:
        what = (
            f"{_percent(share)} of these rows are labelled positive, and {_percent(usual)} of the held-out training"
            " rows were"
        )
        if not min(tpr, fpr) <= share <= max(tpr, fpr) or tpr <= fpr:
            return (
                f"{what}. No share of positive rows explains this, since {_percent(tpr)} of the positive and"
                f" {_percent(fpr)} of the negative training rows were labelled positive. So these rows differ from the"
                f" training rows in other ways too, and {decision['condition']} need not hold: check the columns, and"
                " label some rows to see"
            )
        prior = (share - fpr) / (tpr - fpr)
        what += f". If only the share of positive rows has changed, from {_percent(decision['positive_share'])} to"
        what += f" about {_percent(prior)}"
    reached = tpr * prior + fpr * (1 - prior)
    precision = tpr * prior / reached if reached else math.nan
    then = ", then" if positive is None else ". If both classes look as in training,"
    return (
        f"{what}{then} about {_percent(precision)} of the rows labelled positive are positive, and not"
        f" {_percent(before)} as on the held-out rows, where the threshold was chosen for {decision['condition']}. The"
        " recall and the rate of false alarms stay as they were"
    )


def _differ(share: float, n: float, usual: float, before: float) -> bool:
    """Return whether two shares, of so many rows, differ by more than chance and by more than `FACTOR`."""
    pooled = (share * n + usual * before) / (n + before)
    error = math.sqrt(pooled * (1 - pooled) * (1 / n + 1 / before))
    low, high = sorted((share, usual))
    return high - low > ERRORS * error and high > FACTOR * low


def _percent(share: float) -> str:
    return f"{100 * share:.3g} %"
