"""Curves from scores to probabilities, fitted to the rows of all ranks, and how good probabilities are.

A curve is a dictionary, ready for JSON, with `method`. "sigmoid" has `slope` and `intercept` of 1 / (1 + exp(-(slope *
score + intercept))). "isotonic" has `scores`, rising, and `probabilities`, between which it is linear, and constant
beyond. Both are fitted to Platt's targets, (n+ + 1) / (n+ + 2) and 1 / (n- + 2), n the effective numbers of rows.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping
from dataclasses import replace
from typing import Any

import numpy as np
import scipy  # loads scipy.special and scipy.optimize when they are used, which saves time in each start

from distsms.base.schema import Fields, is_number, is_text
from distsms.base.scored import Scored
from distsms.base.typing import Floats
from distsms.metrics.confidence import LEVEL, MeanEstimate, limits
from distsms.metrics.operating_points import ratio
from distsms.metrics.row_weights import effective, mass_of_classes, weighted_mean
from distsms.metrics.tied_scores import tied_scores

METHODS = ("sigmoid", "isotonic")
LOGISTIC = {"method": "sigmoid", "slope": 1.0, "intercept": 0.0}
"""The curve of logistic regression, whose scores are the logarithms of the odds."""
BINS = 10
"""The largest number of bins of a reliability diagram."""
EQUAL = 1e-12
"""If scores differ by less than this share of the largest one, in the mean, that is rounding."""
STEPS = 100
"""The largest number of Newton steps of a sigmoid; it usually takes about ten."""


def fit(method: str, scored: Scored) -> dict[str, Any]:
    """Fit a curve, "sigmoid" or "isotonic", to all ranks' finite scores of both classes. **Collective.**"""
    return (sigmoid if method == "sigmoid" else isotonic)(effective(scored))


def targets(scored: Scored) -> tuple[float, float]:
    """Return Platt's targets of the negative and of the positive rows. **Collective**, two numbers."""
    n_pos, n_neg = mass_of_classes(scored)
    return 1 / (n_neg + 2), (n_pos + 1) / (n_pos + 2)


def sigmoid(scored: Scored) -> dict[str, Any]:
    """Fit the rising logistic curve of least log loss, by Newton (Platt 1999; Lin et al. 2007). **Collective.**"""
    low, high = targets(scored)
    comm, target, mass = scored.comm, np.where(scored.labels > 0, high, low), scored.mass
    unit = float(comm.maximum(np.array([np.abs(scored.scores).max(initial=0.0)]))[0]) or 1.0
    scores = scored.scores / unit  # whose squares neither overflow nor vanish
    total, of_scores, of_targets = comm.sum(np.array([np.sum(mass), mass @ scores, mass @ target])).tolist()
    centre = of_scores / total
    spread = math.sqrt(float(comm.sum(np.array([mass @ (scores - centre) ** 2]))[0]) / total)
    spread = spread if spread > EQUAL else 0.0
    z = (scores - centre) / (spread or 1.0)

    def derivatives(point: Floats) -> tuple[float, Floats, Floats]:
        """Return the mean loss at a slope and an intercept, its gradient (2,) and its Hessian (2, 2). Collective."""
        value = point[0] * z + point[1]
        p = scipy.special.expit(value)
        loss = -(mass @ (target * scipy.special.log_expit(value) + (1 - target) * scipy.special.log_expit(-value)))
        error, curvature = mass * (p - target), mass * p * (1 - p)
        sums = [loss, error @ z, np.sum(error), curvature @ z**2, curvature @ z, np.sum(curvature)]
        loss, a, b, aa, ab, bb = comm.sum(np.array(sums)) / total
        return float(loss), np.array([a, b]), np.array([[aa, ab], [ab, bb]])

    share = of_targets / total
    point = np.array([0.0, math.log(share / (1 - share))])
    loss, gradient, hessian = derivatives(point)
    for _ in range(STEPS if spread else 0):
        move = np.linalg.solve(hessian + 1e-14 * np.eye(2), -gradient)
        fraction = 1.0
        while fraction > 1e-10:
            further = derivatives(point + fraction * move)
            if further[0] <= loss + 1e-4 * fraction * float(gradient @ move):
                break
            fraction /= 2
        else:
            break  # rounding leaves no step that reduces the loss
        point = point + fraction * move
        loss, gradient, hessian = further
        if np.abs(fraction * move).max() <= 1e-12 * max(np.abs(point).max(), 1.0):
            break
    slope, intercept = point.tolist()
    if slope <= 0:
        slope, intercept = 0.0, math.log(share / (1 - share))
    slope /= spread or 1.0
    intercept -= slope * centre
    slope = min(slope / unit, np.finfo(float).max)  # the scores may be denormal numbers
    return {"method": "sigmoid", "slope": slope, "intercept": intercept}


def isotonic(scored: Scored) -> dict[str, Any]:
    """Fit the rising curve of least squared error, exactly: ranks pool their ranges, then blocks. **Collective.**"""
    low, high = targets(scored)
    comm, tied = scored.comm, tied_scores(scored)
    positive, negative, values = tied.positive[::-1], tied.negative[::-1], tied.values[::-1]
    pooled = _pooled(np.array([positive, positive + negative, values, values], float))
    counts = comm.allgather(pooled.shape[1])
    blocks = _pooled(np.array([comm.allgather_rows(np.ascontiguousarray(row), counts) for row in pooled]))
    pairs = np.stack([blocks[2:], np.tile(low + (high - low) * (blocks[0] / blocks[1]), (2, 1))])  # (2, 2, blocks)
    ends = pairs.transpose(0, 2, 1).reshape(2, -1)
    kept = np.append(True, np.diff(ends[0]) > 0)
    return {"method": "isotonic", "scores": ends[0][kept].tolist(), "probabilities": ends[1][kept].tolist()}


def _pooled(rows: Floats) -> Floats:
    """Pool adjacent violators. Local. Rows: positive mass, whole mass, lowest and highest score, (4, m) by score."""
    if not rows.shape[1]:
        return rows
    starts = scipy.optimize.isotonic_regression(rows[0] / rows[1], weights=rows[1]).blocks
    sums = np.add.reduceat(rows[:2], starts[:-1], axis=1)
    return np.vstack([sums, rows[2, starts[:-1]], rows[3, starts[1:] - 1]])


def probabilities(curve: Mapping[str, Any], scores: Floats) -> Floats:
    """Return the probability that a row is positive by a curve, from its score, (n,). Local."""
    if curve["method"] == "sigmoid":
        return scipy.special.expit(curve["slope"] * scores + curve["intercept"])
    return np.interp(scores, curve["scores"], curve["probabilities"])


def find_fault(curve: Any) -> str:
    """Return what is wrong with a curve that was read from a file; "" if nothing is. Local."""
    if not isinstance(curve, dict) or curve.get("method") not in METHODS:
        return f"its method is none of {', '.join(METHODS)}"
    if curve["method"] == "sigmoid":
        slope, intercept = curve.get("slope"), curve.get("intercept")
        if is_number(slope) and is_number(intercept) and slope >= 0:  # type: ignore[operator]
            return ""
        return "slope and intercept must be finite numbers, and the slope not below 0"
    try:
        x, y = (np.array(curve.get(name), float) for name in ("scores", "probabilities"))
    except (TypeError, ValueError, OverflowError):
        return "scores and probabilities must be numbers"
    fine = x.ndim == 1 and x.shape == y.shape and len(x) > 0 and bool(np.isfinite(x).all())
    fine = fine and bool((np.diff(x) > 0).all() and (np.diff(y) >= 0).all() and y[0] >= 0 and y[-1] <= 1)
    return "" if fine else "scores must rise, and probabilities not fall"


def _are_numbers(*names: str) -> Callable[[Any], bool]:
    return lambda value: isinstance(value, dict) and all(is_number(value.get(name)) for name in names)


_IS_BIN = _are_numbers("predicted", "observed", "low", "high", "weight", "n")
JUDGED: Fields = {
    **dict.fromkeys(("n", "n_pos", "folds", "not_proved"), is_number),
    **dict.fromkeys(("brier", "log_loss"), _are_numbers("before", "after", "constant")),
    **dict.fromkeys(("before", "folds_by"), is_text),
    "bins": lambda value: isinstance(value, list) and all(map(_IS_BIN, value)),
}
"""What a model's `calibration` has besides the curve (`distsms.workflow.decisions.calibrated`)."""


def losses(predicted: Scored) -> dict[str, float]:
    """Return Brier score and log loss of probabilities (n_local,), clipped as in scikit-learn. **Collective.**"""
    p, mass, positive, eps = predicted.scores, predicted.mass, predicted.labels > 0, np.finfo(float).eps
    true = np.clip(np.where(positive, p, 1 - p), eps, 1 - eps)
    sums = np.array([mass @ (p - positive) ** 2, -(mass @ np.log(true)), np.sum(mass)])
    brier, logarithm, total = predicted.comm.sum(sums).tolist()
    return {"brier": ratio(brier, total), "log_loss": ratio(logarithm, total)}


def means_by_class(predicted: Scored) -> dict[str, float]:
    """Return mean probabilities of all rows and of each class, variance, share of positives, and n. **Collective.**"""
    n_pos, n_neg = mass_of_classes(predicted)
    weighted = predicted.mass * predicted.scores
    sums = np.array([*(np.sum(weighted[rows]) for rows in predicted.classes), weighted @ predicted.scores])
    positive, negative, squares = predicted.comm.sum(sums).tolist()
    means = {"mean": ratio(positive + negative, n_pos + n_neg), "share": ratio(n_pos, n_pos + n_neg)}
    means["variance"] = max(ratio(squares, n_pos + n_neg) - means["mean"] ** 2, 0.0)
    means |= {"positive": ratio(positive, n_pos), "negative": ratio(negative, n_neg)}
    return means | {"n": int(predicted.comm.sum(np.array([len(weighted)]))[0])}


def means_of_logistic(scored: Scored) -> dict[str, dict[str, float]]:
    """Return `means_by_class` of the probabilities of logistic regression, by_rows and by_weight. **Collective.**"""
    predicted = replace(scored, scores=scipy.special.expit(scored.scores))
    return {"by_rows": means_by_class(replace(predicted, weights=None)), "by_weight": means_by_class(predicted)}


def reliability(predicted: Scored, bins: int = BINS) -> list[dict[str, float]]:
    """Compare probabilities with the shares of positive rows, in at most `bins` with about equal numbers of these: by
    rising probability predicted (the mean), observed (the share), low and high (its 95 % interval), weight and n. Rows
    with equal probabilities are in the same bin. **Collective.**"""
    comm, mass, tied = predicted.comm, predicted.mass, tied_scores(effective(predicted))
    n_pos = tied.n_pos or 1
    filled = np.floor(bins * (tied.tp / n_pos) * (1 + 1e-12))
    before = np.floor(bins * ((tied.tp - tied.positive) / n_pos) * (1 + 1e-12))
    lowest = tied.values[(filled > before) & (tied.tp < tied.n_pos * (1 - 1e-12))]  # of each bin but the last
    edges = np.sort(comm.allgather_rows(np.ascontiguousarray(lowest), comm.allgather(len(lowest))))
    where, positive = np.searchsorted(edges, predicted.scores, "right"), predicted.labels > 0
    parts = [mass, mass * predicted.scores, mass * positive, np.ones(len(mass))]
    # Without rows, bincount returns integers whatever it counts.
    table = comm.sum(np.array([np.bincount(where, part, len(edges) + 1) for part in parts], float))
    result = []
    for number, (total, of_predicted, of_positive, rows) in enumerate(table.T.tolist()):
        if not rows:
            continue
        observed = of_positive / total
        estimate = MeanEstimate(observed, (rows * observed * (1 - observed),), (rows, 0))
        if predicted.weights is not None:
            _, squares, size = weighted_mean(1.0 * positive, where == number, mass, comm)
            estimate = MeanEstimate(observed, (squares,), (size, 0))
        low, high = limits(estimate, LEVEL, worst=1.0)
        numbers = {"predicted": of_predicted / total, "observed": observed, "low": low, "high": high}
        result.append(numbers | {"weight": total, "n": int(rows)})
    return result
