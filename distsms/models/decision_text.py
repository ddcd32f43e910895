"""What a model's decision and calibration are, in words: for `train`, `path`, `info`, `evaluate` and `report`."""

from __future__ import annotations

import math
from collections.abc import Mapping
from typing import Any

from distsms.base.measures import Condition

RATES = {"precision": "precision", "recall": "recall", "fpr": "false positive rate"}
"""How the rates at a threshold are called."""


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
    value, low, high = (math.nan if interval.get(name) is None else interval[name] for name in ("value", "low", "high"))
    if math.isnan(value):
        return "not defined"
    limits = "no interval" if math.isnan(low + high) else f"{100 * low:.3g} to {100 * high:.3g}"
    return f"{percent(value)} ({limits})"


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
