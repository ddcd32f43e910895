"""Find out whether a model file holds what a model needs."""

from __future__ import annotations

import math
from typing import TYPE_CHECKING, Any

import numpy as np

from distsms.base import schema
from distsms.base.schema import Fields, is_number, is_number_or_null, is_positive, is_share, is_text
from distsms.matrix.normalization import BY_COLUMN, KINDS
from distsms.metrics import calibration, row_sample

if TYPE_CHECKING:
    from distsms.models.model import Model


def _is_interval(value: Any) -> bool:
    return isinstance(value, dict) and all(is_number_or_null(value.get(name)) for name in ("value", "low", "high"))


_IS_INTERVALS = dict.fromkeys(("precision", "recall", "fpr"), _is_interval)
_IS_RATES = {**dict.fromkeys(("called", "positive_share"), is_share), "effective": is_positive}
DECISION: Fields = {
    **dict.fromkeys(("threshold", "estimate", "low", "high", "precision", "tpr", "fpr"), is_number_or_null),
    **dict.fromkeys(("n", "folds", "not_proved"), is_number),
    **_IS_RATES,
    **dict.fromkeys(("condition", "why", "quantity", "folds_by"), is_text),
    "intervals": lambda value: schema.find_fault(value, _IS_INTERVALS) is None,
}
"""What a decision must have (`distsms.workflow.decisions`)."""


def find_fault(model: Model) -> str | None:
    """Return what is wrong with a model, or None."""
    w, scale, info = model.w, model.scale, model.info
    table, coded, features = model.table, model.coded, model.features
    labels = info.get("label_map") if isinstance(info, dict) else None
    if (
        not isinstance(labels, dict)
        or not {"+1", "-1"} <= set(labels)
        or not isinstance(info.get("threshold"), float)
        or not isinstance(bias := info.get("bias", 0.0), float)
        or not math.isfinite(bias)
        or not isinstance(info.get("zero_based"), bool)
    ):
        return "threshold, bias, label_map or zero_based is missing"
    normalize = info.get("normalize", "none")
    vectors = [w] if scale is None else [w, scale]
    if any(v.shape != (w.size,) or v.dtype != np.float64 or not np.isfinite(v).all() for v in vectors):
        return "w must be a vector of finite float64, and so must scale"
    if (
        normalize not in KINDS
        or (normalize in BY_COLUMN and scale is None)
        or (table and table.p > (features.columns if features else w.size))
    ):
        return "normalize, scale or table do not fit w"
    if (
        coded.p > w.size
        or (coded.sequences is not None and coded.p != w.size)
        or (features is not None and (features.p != w.size or features.coded != coded))
    ):
        return "its coded columns do not fit w"
    l1, nonzeros = info.get("l1", 0.0), info.get("nonzeros", 0)
    if not is_number(l1) or l1 < 0 or type(nonzeros) is not int or not 0 <= nonzeros <= w.size:
        return "l1 or nonzeros cannot be true"
    if info.get("row_sample") and (fault := schema.find_fault(info["row_sample"], row_sample.RECORD)):
        return f"its sample of training rows cannot be used: {fault}"
    curve: Any = info.get("calibration")
    if "calibration" in info and (
        fault := calibration.find_fault(curve) or schema.find_fault(curve, calibration.JUDGED)
    ):
        return f"its calibration cannot be used: {fault}"
    decision: Any = info.get("decision")
    wrong = schema.find_fault(decision, DECISION) if "decision" in info else None
    if wrong is None and decision and "by_rows" in decision:
        wrong = schema.find_fault(decision["by_rows"], _IS_RATES)
    if wrong:
        return f"its decision cannot be used: {wrong}"
    return None
