"""What a model's decision and calibration are, in words: for `train`, `path` and `info`."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any


def describe(info: Mapping[str, Any]) -> list[str]:
    """Return lines on the decision and the calibration in a model's information. Local."""
    lines = []
    for label, key, in_words in (("decision", "decision", decision), ("curve", "calibration", calibration)):
        if found := info.get(key):
            first, *others = in_words(found)
            lines += [f"  {label:<9} {first}", *(f"            {line}" for line in others)]
    return lines


def decision(found: Mapping[str, Any]) -> list[str]:
    """Return lines on a decision: the threshold, the rates that held-out rows have at it, and how sure they are."""
    if found["threshold"] is None:
        return [f"{found['why']}; the model keeps the threshold of its training rows"]
    parts = []
    for name, value in (("precision", found["precision"]), ("recall", found["tpr"]), ("FPR", found["fpr"])):
        interval = found["intervals"][name.lower()]
        ends = [interval.get("low"), interval.get("high")]
        shown = "-" if value is None else f"{value:.4g}"
        parts.append(f"{name} {shown}" + ("" if None in ends else f" ({ends[0]:.4g} to {ends[1]:.4g})"))
    of = "weight is" if "by_rows" in found else "rows are"
    missing = found["intervals"].get(found["quantity"], {}).get("why")
    return [
        f"{found['condition']}: threshold {found['threshold']:.6g}, from {_rows(found)}",
        f"{', '.join(parts)}; {100 * found['called']:.3g} % of the {of} called positive",
        *([f"no interval of the {found['quantity']}: {missing}"] if missing else []),
    ]


def calibration(found: Mapping[str, Any]) -> list[str]:
    """Return lines on a calibration: how it was made, and what held-out rows say of its probabilities."""
    judged = [
        f"{name} {values['after']:.4g} (score as log-odds {values['before']:.4g}, constant {values['constant']:.4g})"
        for name, values in (("Brier score", found["brier"]), ("log loss", found["log_loss"]))
    ]
    flat = found["method"] == "sigmoid" and not found["slope"]
    return [
        f"{found['method']}, from {_rows(found)}",
        ", ".join(judged),
        *(["all probabilities are equal, since the held-out scores rank no better than chance"] if flat else []),
    ]


def _rows(found: Mapping[str, Any]) -> str:
    """Return from which rows something was found."""
    lacking = f"; {found['not_proved']} of their gaps are not proved" if found["not_proved"] else ""
    return f"{found['n']:,} rows of {found['folds']} held-out folds (by {found['folds_by']}){lacking}"
