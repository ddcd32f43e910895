"""What a model's decision and calibration are, in words: for `train`, `path`, `info`, `evaluate` and `report`.

Also what they are worth on rows whose share pi of positives differs from that of the training data: TPR and FPR stay,
and the precision is TPR pi / (TPR pi + FPR (1 - pi)). Without labels, pi follows from the share q that is called
positive, q = TPR pi + FPR (1 - pi) (Forman, Data Mining and Knowledge Discovery 17, 2008).
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from typing import Any

from distsms.base.measures import Condition
from distsms.base.schema import Fields, find_fault, is_positive, is_share

RATES = {"precision": "precision", "recall": "recall", "fpr": "false positive rate"}
"""How the rates at a threshold are called."""
ERRORS, FACTOR = 3.29, 1.25
"""Two shares are called different if they differ by more than so many standard errors, which happens to one in 1,000
by chance, and by more than this factor.
"""
FACTOR_OF_MEANS = 1.1
"""This factor is for mean probabilities, which change by less than the share of positive rows does."""

MEANS: Fields = {**dict.fromkeys(("mean", "positive", "negative", "share", "variance"), is_share), "n": is_positive}
"""What is known of the probabilities of the training rows (`distsms.metrics.calibration.means_by_class`)."""


def describe(info: Mapping[str, Any]) -> list[str]:
    """Return lines on the decision and the calibration in a model's information. Local."""
    lines = []
    for label, key, in_words in (("decision", "decision", decision), ("curve", "calibration", calibration)):
        if record := info.get(key):
            first, *others = in_words(record)
            lines += [f"  {label:<9} {first}", *(f"            {line}" for line in others)]
    return lines


def decision(record: Mapping[str, Any]) -> list[str]:
    """Return lines on a decision: the threshold, the rates that held-out rows have at it, and how sure they are."""
    if record["threshold"] is None:
        return [f"{record['why']}; the model keeps the threshold of its training rows"]
    parts = []
    for name, value in (("precision", record["precision"]), ("recall", record["tpr"]), ("FPR", record["fpr"])):
        interval = record["intervals"][name.lower()]
        ends = [interval.get("low"), interval.get("high")]
        shown = "-" if value is None else f"{value:.4g}"
        parts.append(f"{name} {shown}" + ("" if None in ends else f" ({ends[0]:.4g} to {ends[1]:.4g})"))
    of = "weight is" if "by_rows" in record else "rows are"
    missing = record["intervals"].get(record["quantity"], {}).get("why")
    return [
        f"{record['condition']}: threshold {record['threshold']:.6g}, from {_rows(record)}",
        f"{', '.join(parts)}; {100 * record['called']:.3g} % of the {of} called positive",
        *([f"no interval of the {record['quantity']}: {missing}"] if missing else []),
    ]


def promise(info: Mapping[str, Any], measured: Mapping[str, Any]) -> str:
    """Return a sentence that compares what held-out folds promised of a threshold with what rows show, or "". Local."""
    decision: Any = info.get("decision") or {}
    if decision.get("threshold") is None or measured["threshold"] != decision["threshold"]:
        return ""
    condition = Condition.parse(decision["condition"])
    if condition.quantity == "top":
        called = (measured["tp"] + measured["fp"]) / sum(measured[name] for name in ("tp", "fp", "fn", "tn"))
        name, now = "share of rows called positive", percent(called)
        then = rate(decision | {"value": decision["called"]})
    else:
        name = RATES[condition.quantity]
        both = decision["intervals"][condition.quantity], measured["intervals_at_threshold"][condition.quantity]
        then, now = map(rate, both)
    return (
        f"The model's own threshold was found for {condition.in_words} on {decision['folds']:g} held-out folds of the "
        f"training rows, where the {name} was {then}. On these rows it is {now}."
    )


def percent(share: float) -> str:
    """Return a share in percent, with three digits."""
    return f"{100 * share:.3g} %"


def rate(interval: Mapping[str, Any]) -> str:
    """Return a rate with its interval, which `Interval.as_json` made."""
    value, *ends = (math.nan if interval.get(name) is None else interval[name] for name in ("value", "low", "high"))
    if math.isnan(value):
        return "not defined"
    return percent(value) + (
        " (no interval)" if any(map(math.isnan, ends)) else f" ({100 * ends[0]:.3g} to {100 * ends[1]:.3g})"
    )


def calibration(record: Mapping[str, Any]) -> list[str]:
    """Return lines on a calibration: how it was made, and what held-out rows say of its probabilities."""
    losses = [
        f"{name} {values['after']:.4g} (score as log-odds {values['before']:.4g}, constant {values['constant']:.4g})"
        for name, values in (("Brier score", record["brier"]), ("log loss", record["log_loss"]))
    ]
    flat = record["method"] == "sigmoid" and not record["slope"]
    return [
        f"{record['method']}, from {_rows(record)}",
        ", ".join(losses),
        *(["all probabilities are equal, since the held-out scores rank no better than chance"] if flat else []),
    ]


def _rows(record: Mapping[str, Any]) -> str:
    """Return from which rows a decision or a calibration is."""
    lacking = f"; {record['not_proved']} of their gaps are not proved" if record["not_proved"] else ""
    return f"{record['n']:,} rows of {record['folds']} held-out folds (by {record['folds_by']}){lacking}"


def shifted_decision(info: Mapping[str, Any], called: int, n: int, positive: float | None = None) -> str:
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
        text = f"{percent(share)} of these rows are labelled positive, and {percent(usual)} of the held-out training"
        text += " rows were"
        if not min(tpr, fpr) <= share <= max(tpr, fpr) or tpr <= fpr:
            rates = f"{percent(tpr)} of the positive and {percent(fpr)} of the negative ones were labelled positive"
            return f"{text}. {_unexplained(rates, decision['condition'] + ' need not hold')}"
        prior = (share - fpr) / (tpr - fpr)
        then = _if_only_the_share(decision["positive_share"], prior)
    reached = tpr * prior + fpr * (1 - prior)
    precision = tpr * prior / reached if reached else math.nan
    return (
        f"{text}. {then}, about {percent(precision)} of the rows labelled positive are positive, and not"
        f" {percent(before)} as on the held-out rows, where the threshold was chosen for {decision['condition']}. The"
        " recall and the rate of false alarms stay as they were"
    )


def _unexplained(reason: str, consequence: str) -> str:
    return (
        f"No share of positive rows explains this, since {reason}. So these rows differ from the training rows in other"
        f" ways too, and {consequence}: check the columns, and label some rows to see"
    )


def _if_only_the_share(before: float, now: float) -> str:
    return f"If only the share of positive rows has changed, from {percent(before)} to about {percent(now)}"


def shifted_probabilities(
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
            return (
                f"{text}, as in training. So these rows differ from the training rows in other ways: check the columns"
            )
        prior = positive
        text += f"; of the training rows, {percent(before)} were. If both classes look as in training"
    else:
        error, (low, high) = math.sqrt(max(variance, 0.0) / n + float(means["variance"]) / rows), sorted((mean, usual))
        if high - low <= ERRORS * error or high <= FACTOR_OF_MEANS * low:
            return ""
        text += f" that of the training rows was {percent(usual)}"
        if not of_negative < mean < of_positive:
            means_of_both = (
                f"it is {percent(of_positive)} of the positive and {percent(of_negative)} of the negative ones"
            )
            return f"{text}. {_unexplained(means_of_both, 'the probabilities need not be right')}"
        prior = (mean - of_negative) / (of_positive - of_negative)
        text += f". {_if_only_the_share(before, prior)}"
        and_not = ". If not, the columns may have changed: check them, and label some rows to see"
    factor = prior / (1 - prior) * (1 - before) / before if prior < 1 and before else math.inf
    return (
        f"{text}, the probabilities are too {'low' if prior > before else 'high'}: multiply the odds p / (1 - p) of"
        f" every row by {factor:.3g}{and_not}"
    )


def _differ(share: float, n: float, usual: float, before: float) -> bool:
    """Return whether two shares, of so many rows, differ by more than chance and by more than `FACTOR`."""
    pooled = (share * n + usual * before) / (n + before)
    error = math.sqrt(pooled * (1 - pooled) * (1 / n + 1 / before))
    low, high = sorted((share, usual))
    return high - low > ERRORS * error and high > FACTOR * low
