"""Say what a threshold is worth on rows whose share pi of positives differs from that of the training data: TPR and FPR
stay, and the precision is TPR pi / (TPR pi + FPR (1 - pi)). Without labels, pi follows from the share q that is called
positive, q = TPR pi + FPR (1 - pi) (Forman, Data Mining and Knowledge Discovery 17, 2008).
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from typing import Any

from distsms.base.schema import Fields, find_fault, is_positive, is_share
from distsms.models.decision_text import percent

ERRORS, FACTOR = 3.29, 1.25
"""Two shares differ if by more than so many standard errors, one in 1,000 by chance, and by more than this factor."""
FACTOR_OF_MEANS = 1.1
"""This factor is for mean probabilities, which change by less than the share of positive rows does."""

MEANS: Fields = {**dict.fromkeys(("mean", "positive", "negative", "share", "variance"), is_share), "n": is_positive}
"""What is known of the probabilities of the training rows (`distsms.metrics.calibration.means_by_class`)."""


def describe(info: Mapping[str, Any], called: int, n: int, positive: float | None = None) -> str:
    """Return what a threshold is worth on n new rows; "" if their share of positives is as in training. Local."""
    decision: Any = info.get("decision") or {}
    decision = {**decision, **decision.get("by_rows", {})}
    if not n or any(decision.get(name) is None for name in ("threshold", "tpr", "fpr", "precision")):
        return ""
    tpr, fpr, before = (float(decision[name]) for name in ("tpr", "fpr", "precision"))
    share, usual = (called / n, decision["called"]) if positive is None else (positive, decision["positive_share"])
    if not _differ(share, n, usual, decision["effective"]):
        return ""
    if positive is not None:
        text = f"{percent(share)} of these rows are positive, and {percent(usual)} of the training rows were"
        prior, then = share, "If both classes look as in training"
    else:
        text = (
            f"{percent(share)} of these rows are labelled positive; {percent(usual)} of the held-out training rows were"
        )
        if not min(tpr, fpr) <= share <= max(tpr, fpr) or tpr <= fpr:
            rates = f"{percent(tpr)} of the positive and {percent(fpr)} of the negative ones were"
            return f"{text}. {_unexplained(rates, decision['condition'] + ' need not hold')}"
        prior = (share - fpr) / (tpr - fpr)
        then = _if_only_the_share(decision["positive_share"], prior)
    reached = tpr * prior + fpr * (1 - prior)
    precision = tpr * prior / reached if reached else math.nan
    return (
        f"{text}. {then}, about {percent(precision)} of the rows labelled positive are positive, not {percent(before)}"
        f" as on held-out rows, whose threshold for {decision['condition']} it is. Recall and FPR stay"
    )


def _unexplained(reason: str, consequence: str) -> str:
    cause = f"No share of positive rows explains this, since {reason}. So these rows differ in other ways too"
    return f"{cause}, and {consequence}: check the columns, and label some rows to see"


def _if_only_the_share(before: float, now: float) -> str:
    return f"If only the share of positive rows has changed, from {percent(before)} to about {percent(now)}"


def describe_probabilities(
    info: Mapping[str, Any], mean: float, variance: float, n: int, positive: float | None = None
) -> str:
    """Return what is wrong with probabilities on n new rows; "" if they seem to be as in training. Local."""
    of_logistic, calibrated = info.get("mean_probability"), info.get("calibration")
    by_rows = of_logistic.get("by_rows") if isinstance(of_logistic, dict) else None
    means: Any = calibrated.get("means") if calibrated else by_rows
    if not n or find_fault(means, MEANS) is not None:
        return ""
    usual, before, rows = float(means["mean"]), float(means["share"]), float(means["n"])
    of_positive, of_negative = float(means["positive"]), float(means["negative"])
    text, and_not = f"the mean probability of these rows is {percent(mean)}, and", ""
    if positive is not None:
        if not _differ(mean, n, positive, n):
            return ""
        text += f" {percent(positive)} of them are positive"
        if not _differ(positive, n, before, rows):
            return f"{text}, as in training. So these rows differ in other ways: check the columns"
        prior = positive
        text += f"; of the training rows, {percent(before)} were. If both classes look as in training"
    else:
        error, (low, high) = math.sqrt(max(variance, 0.0) / n + float(means["variance"]) / rows), sorted((mean, usual))
        if high - low <= ERRORS * error or high <= FACTOR_OF_MEANS * low:
            return ""
        text += f" that of the training rows was {percent(usual)}"
        if not of_negative < mean < of_positive:
            reason = f"it is {percent(of_positive)} of the positive and {percent(of_negative)} of the negative ones"
            return f"{text}. {_unexplained(reason, 'the probabilities need not be right')}"
        prior = (mean - of_negative) / (of_positive - of_negative)
        text += f". {_if_only_the_share(before, prior)}"
        and_not = ". If not, the columns may have changed: check them, and label some rows to see"
    factor = prior / (1 - prior) * (1 - before) / before if prior < 1 and before else math.inf
    wrong = f"the probabilities are too {'low' if prior > before else 'high'}"
    return f"{text}, {wrong}: multiply the odds p / (1 - p) of every row by {factor:.3g}{and_not}"


def _differ(share: float, n: float, usual: float, before: float) -> bool:
    """Return whether two shares, of so many rows, differ by more than chance and by more than `FACTOR`."""
    pooled = (share * n + usual * before) / (n + before)
    error = math.sqrt(pooled * (1 - pooled) * (1 / n + 1 / before))
    low, high = sorted((share, usual))
    return high - low > ERRORS * error and high > FACTOR * low
