"""Simulate scores, models and folds whose true measures are known, and compute confidence intervals from them."""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass, replace
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray
from scipy import special
from scipy.sparse import csr_matrix

from distsms.base.scored import Scored
from distsms.base.typing import Floats
from distsms.matrix.arrays import as_features
from distsms.metrics import bootstrap, confidence, ranking
from distsms.metrics.confidence import Interval, MeanEstimate
from distsms.training.fit import fit
from distsms.training.solver_choice import settings_for
from distsms.training.task import TrainingTask
from distsms.workflow import method_results
from distsms.workflow.baseline_fits import Fit, Trial, left_lambdas
from distsms.workflow.competitors import ALONE
from distsms.workflow.folds import deal_rows
from distsms.workflow.method_results import EARLY_FOLDS, EARLY_LEVEL

LEVEL, REPLICATES, BLOCK = 0.95, 500, 10
COUNTS = {6: 400, 10: 400, 20: 400, 50: 1000, 200: 4000}
"""Number of rows for each number of positives."""
FEATURES = (
    (400, 10, 5),
    (400, 10, 50),
    (400, 20, 10),
    (1000, 50, 10),
    (1000, 50, 200),
    (4000, 200, 20),
    (4000, 200, 200),
)
"""The simulations on folds: number of rows, of positives, and of columns of each method."""


Quantiles = Callable[[Floats], Floats]


class Law(NamedTuple):
    """A distribution of scores, given by two quantile functions: one for positive and one for negative rows."""

    name: str
    pos: Quantiles
    neg: Quantiles

    def drawn(self, n_pos: int, n_neg: int, rng: np.random.Generator) -> tuple[Floats, NDArray[np.int8]]:
        """Draw scores and labels, both of shape (n,), the positive rows first."""
        scores = np.concatenate([self.pos(rng.random(n_pos)), self.neg(rng.random(n_neg))])
        return scores, np.repeat(np.array([1, -1], np.int8), [n_pos, n_neg])

    def truth(self, share: float) -> dict[str, float]:
        """Return both measures of infinitely many rows, a share of which is positive, computed on a fine grid."""
        m = 20_000
        u = (np.arange(m) + 0.5) / m
        values, at = np.unique(-np.concatenate([self.pos(u), self.neg(u)]), return_inverse=True)
        pos, neg = (np.bincount(at[part], minlength=len(values)) / m for part in (slice(m), slice(m, None)))
        below = 1 - np.cumsum(neg) + neg / 2
        called = np.cumsum(share * pos + (1 - share) * neg)
        k = int(np.searchsorted(called, share))
        tied = share * pos[k] + (1 - share) * neg[k]
        prbep = np.cumsum(pos)[k] - pos[k] * (called[k] - share) / tied
        return {"rocarea": float(pos @ below), "prbep": float(prbep)}


def normal(area: float, wide: float = 1.0, decimals: int = 15) -> tuple[Quantiles, Quantiles]:
    """Return the quantile functions of normal scores with this ROCArea.

    The standard deviation of positives is `wide` times that of negatives. Scores are rounded to `decimals`.
    """
    shift = float(special.ndtri(area)) * math.hypot(1, wide)
    return lambda u: np.round(wide * special.ndtri(u) + shift, decimals), lambda u: np.round(special.ndtri(u), decimals)


def exponential(area: float) -> tuple[Quantiles, Quantiles]:
    """Return the quantile functions of exponential scores with this ROCArea."""
    return lambda u: -np.log1p(-u) * area / (1 - area), lambda u: -np.log1p(-u)


def partly_lost(lost: float) -> tuple[Quantiles, Quantiles]:
    """Return quantile functions with which the share `lost` of the positives is below all negatives, the rest above."""
    return lambda u: np.where(u < lost, -1.0, 2.0), lambda u: u


LAWS = (
    *(Law(f"normal, {area:g}", *normal(area)) for area in (0.6, 0.8, 0.95, 0.99, 0.9995)),
    *(Law(f"positives three times as wide, {area:g}", *normal(area, 3.0)) for area in (0.6, 0.95)),
    *(Law(f"rounded to whole numbers, {area:g}", *normal(area, 1.0, 0)) for area in (0.6, 0.95)),
    *(Law(f"exponential, {area:g}", *exponential(area)) for area in (0.8, 0.99)),
    *(Law(f"{lost:.0%} of positives below all negatives", *partly_lost(lost)) for lost in (0.02, 0.2)),
    Law(
        "positives below the top 5% of negatives", lambda u: 1.5 + 0.6 * u, lambda u: np.where(u > 0.95, 20 * u - 17, u)
    ),
)


def sampled(scores: Floats, labels: NDArray[np.int8], seed: int) -> tuple[NDArray[np.int64], Floats, Floats]:
    """Return the inputs of intervals: placements, shares among the n+ highest scores, and bootstrap replicates."""
    placed = ranking.placements(Scored(scores, labels, ALONE))
    share = ranking.top_k_shares(Scored(scores, labels, ALONE), int(np.sum(labels > 0)))
    draws = bootstrap.Draws(np.arange(len(labels)), REPLICATES, seed)
    return placed, share, bootstrap.prbep_replicates(Scored(scores, labels, ALONE), draws)


def intervals_of(area: MeanEstimate, prbep: MeanEstimate, drawn: Floats, paired: bool = False) -> dict[str, Interval]:
    """Return the intervals of distsms."""
    if paired:
        return {
            "rocarea": confidence.rocarea_difference_interval(area, LEVEL),
            "prbep": confidence.prbep_difference_interval(prbep, drawn, LEVEL),
        }
    return {
        "rocarea": confidence.rocarea_interval(area, LEVEL),
        "prbep": confidence.prbep_interval(prbep, drawn, LEVEL),
    }


def before(area: MeanEstimate, drawn: Floats, paired: bool = False) -> dict[str, tuple[float, float]]:
    """Return the limits of the usual intervals, with the models taken as given; NaN where there are none."""
    value, half = area.value, 1.959964 * math.sqrt(area.error**2 / area.factor)
    if paired:
        of_area = value - half, value + half
    elif 0 < value < 1:
        low, high = (
            1 / (1 + math.exp(min(s * half / (value * (1 - value)), 700)) * (1 - value) / value) for s in (1, -1)
        )
        of_area = low, high
    else:
        of_area = math.nan, math.nan
    there = drawn[np.isfinite(drawn)]
    low, high = np.quantile(there, [0.025, 0.975]).tolist()
    return {"rocarea": of_area, "prbep": (low, high) if low < high or paired else (math.nan, math.nan)}


def numbers_of(ours: dict[str, Interval], others: dict[str, tuple[float, float]], truth: dict[str, Any]) -> list[float]:
    """Return for each measure five numbers: the truth, our limits, and the limits before."""
    return [x for name in ("rocarea", "prbep") for x in (truth[name], ours[name].low, ours[name].high, *others[name])]


class Model(NamedTuple):
    """A score on new rows."""

    law: int
    n_pos: int

    def simulate(self, seed: tuple[int, ...]) -> list[float]:
        """Make one simulation; `numbers_of` says what is returned."""
        rng, n = np.random.default_rng(seed), COUNTS[self.n_pos]
        n_pos = self.n_pos if seed[-1] % 2 else max(int(rng.binomial(n, self.n_pos / n)), 1)
        scores, labels = LAWS[self.law].drawn(n_pos, n - n_pos, rng)
        placed, share, drawn = sampled(scores, labels, seed[-1])
        area = confidence.rocarea_estimate(placed, Scored(scores, labels, ALONE))
        prbep = confidence.prbep_estimate(share, Scored(scores, labels, ALONE))
        return numbers_of(
            intervals_of(area, prbep, drawn), before(area, drawn), {"rocarea": math.nan, "prbep": math.nan}
        )

    def truth(self) -> dict[str, float]:
        """Return both measures on infinitely many rows."""
        return LAWS[self.law].truth(self.n_pos / COUNTS[self.n_pos])


class Pair(NamedTuple):
    """Two normal scores of the same rows; ROCArea of the second one is lower by `less`."""

    area: float
    # The correlation of the noise of the two scores. With 0 the noise is the same except for one row in 30 of each
    # score, which has noise of its own.
    correlation: float
    n_pos: int
    less: float

    def simulate(self, seed: tuple[int, ...]) -> list[float]:
        """Make one simulation; `numbers_of` says what is returned."""
        rng, n = np.random.default_rng(seed), COUNTS[self.n_pos]
        labels = np.where(np.arange(n) < self.n_pos, 1, -1).astype(np.int8)
        common, own = rng.normal(size=n), rng.normal(size=(2, n))
        if self.correlation:
            noise = math.sqrt(self.correlation) * common + math.sqrt(1 - self.correlation) * own
        else:
            noise = np.where(rng.random((2, n)) < 1 / 30, 3 * own, common)
        shifts = [math.sqrt(2) * float(special.ndtri(area)) for area in (self.area, self.area - self.less)]
        both = [
            sampled(own_noise + shift * (labels > 0), labels, seed[-1])
            for own_noise, shift in zip(noise, shifts, strict=True)
        ]
        placed, share, drawn = (a - b for a, b in zip(*both, strict=True))
        rows = Scored(noise[0], labels, ALONE)
        area, prbep = confidence.rocarea_estimate(placed, rows), confidence.prbep_estimate(share, rows)
        return numbers_of(
            intervals_of(area, prbep, drawn, True), before(area, drawn, True), {"rocarea": 0.0, "prbep": 0.0}
        )


def two_methods(
    n: int, n_pos: int, p: int, signal: float, less: float, rng: np.random.Generator
) -> tuple[Floats, NDArray[np.int8], Floats]:
    """Return rows with p columns for each of two methods, labels, and the means of the columns of positive rows."""
    labels = np.where(np.arange(n) < n_pos, 1, -1).astype(np.int8)
    X = rng.normal(size=(n, 2 * p))
    means = np.zeros(2 * p)
    means[[*range(0, p, 4)]] = signal / math.sqrt(len(range(0, p, 4)))
    means[p:] = means[:p] * (1 - less)
    X[labels > 0] += means
    return X, labels, means


@dataclass(frozen=True)
class TwoMethods:
    """A method on some columns, and the same method on as many others whose signal is smaller by the share `less`."""

    n: int
    n_pos: int
    columns: int
    folds: int
    signal: float
    less: float

    def drawn(self, rng: np.random.Generator) -> tuple[Floats, NDArray[np.int8], Floats, NDArray[Any]]:
        """Draw rows of `two_methods`, and deal them to the folds; return X, labels, means and the fold of each row."""
        X, labels, means = two_methods(self.n, self.n_pos, self.columns, self.signal, self.less, rng)
        return X, labels, means, deal_rows(labels, np.ones(self.n, bool), self.folds, int(rng.integers(2**31)), ALONE)


@dataclass(frozen=True)
class Folds(TwoMethods):
    """The intervals of both methods, each with the best lambda on the other folds."""

    own: bool = False  # whether the method is `distsms train`, rather than Fisher's discriminant

    def simulate(self, seed: tuple[int, ...]) -> list[float]:
        """Make one simulation.

        Returns 14 numbers for the first method: those of `numbers_of`, and Nadeau & Bengio's limits for both measures.
        Then follow the same 14 numbers for the difference of the two methods.
        """
        rng, p = np.random.default_rng(seed), self.columns
        X, labels, means, fold = self.drawn(rng)
        results, truths = [], []
        for half in (slice(p), slice(p, None)):
            fits, kept = {}, {}
            for f in range(1, self.folds + 1):
                inside = fold == f
                for lam, w in (trained if self.own else discriminants)(X[~inside, half], labels[~inside]):
                    kept[lam, f] = scores, w = X[inside, half] @ w, w
                    found = ranking.ranking(Scored(scores, labels[inside], ALONE))
                    fits[lam, f] = Fit("", lam, f, 0.0, found.rocarea, found.prbep, "")
            chosen = method_results.choose(fits.values(), lambda fit: fit.rocarea)
            these = [kept[best.setting, best.fold] for best in chosen]
            results.append([sampled(s, labels[fold == f], seed[-1] + f) for f, (s, _) in enumerate(these, 1)])
            distances = [float(w @ means[half]) / float(np.linalg.norm(w)) for _, w in these]
            truths.append(np.mean([normal_measures(d, self.n_pos / self.n) for d in distances], axis=0))
        numbers: list[float] = []
        for paired in (False, True):
            parts = [
                tuple(x - y for x, y in zip(a, b, strict=True)) if paired else a for a, b in zip(*results, strict=True)
            ]
            own = [labels[fold == f] for f in range(1, self.folds + 1)]
            areas = [
                confidence.rocarea_estimate(part[0], Scored(y, y, ALONE)) for part, y in zip(parts, own, strict=True)
            ]
            prbeps = [
                confidence.prbep_estimate(part[1], Scored(y, y, ALONE)) for part, y in zip(parts, own, strict=True)
            ]
            area, prbep = confidence.pool_folds(areas), confidence.pool_folds(prbeps)
            drawn = np.mean([part[2] for part in parts], axis=0)
            truth = truths[0] - truths[1] if paired else truths[0]
            ours = intervals_of(area, prbep, drawn, paired)
            numbers += numbers_of(
                ours, before(area, drawn, paired), dict(zip(("rocarea", "prbep"), truth, strict=True))
            )
            numbers += [x for some in (areas, prbeps) for x in by_t([estimate.value for estimate in some])]
        return numbers


class Plan(TwoMethods):
    """The default of `distsms baseline` with two methods: lambdas are halved, and trees may end early.

    The second method plays the best other linear model, which has all folds, and trees, whose first folds may settle
    the verdict.
    """

    def simulate(self, seed: tuple[int, ...]) -> list[float]:
        """Return four verdicts, 1 if the first method is called better, -1 if worse: on linear models, on trees at the
        end, on trees early, and what looks after each fold would say that take the usual intervals.
        """
        rng, folds = np.random.default_rng(seed), range(1, self.folds + 1)
        X, labels, _, fold = self.drawn(rng)
        some, results = rng.random(self.n) < 0.3, []
        for half in (slice(self.columns), slice(self.columns, None)):
            # 1) Trials of all lambdas are on some of the training rows, fits on all of them.
            trials, fits, scores = [], {}, {}
            for f in folds:
                judged = fold == f
                for rows in (~judged & some, ~judged):
                    for lam, w in discriminants(X[rows, half], labels[rows]):
                        of_rows = X[judged, half] @ w
                        area = ranking.ranking(Scored(of_rows, labels[judged], ALONE)).rocarea
                        if rows.sum() < (~judged).sum():
                            trials.append(Trial("svm", lam, f, 0.0, area, 0))
                        else:
                            fits[lam, f], scores[lam, f] = Fit("svm", lam, f, 0.0, area, 0.0, ""), of_rows
            # 2) Each fold takes one of those that the trials of the others leave to it.
            left = left_lambdas(trials, "svm")
            dropped = [("svm", lam, f) for lam, f in fits if lam not in left[f]]
            chosen = method_results.choose(fits.values(), lambda fit: fit.rocarea, dropped)
            results.append(
                [
                    ranking.placements(Scored(scores[fit.setting, fit.fold], labels[fold == fit.fold], ALONE))
                    for fit in chosen
                ]
            )
        areas = [
            confidence.rocarea_estimate(a - b, Scored(labels[fold == f], labels[fold == f], ALONE))
            for f, (a, b) in enumerate(zip(*results, strict=True), 1)
        ]
        end = sign_of(confidence.rocarea_difference_interval(confidence.pool_folds(areas), LEVEL))
        look = confidence.rocarea_difference_interval(
            confidence.pool_folds(areas[:EARLY_FOLDS], of_folds=self.folds), EARLY_LEVEL
        )
        early = sign_of(look) * method_results.is_settled(look)
        usual = [confidence.pool_folds(areas[:k], of_folds=self.folds) for k in range(EARLY_FOLDS, self.folds + 1)]
        naive = next((np.sign(a.value) for a in usual if abs(a.value) > 1.96 * a.error / math.sqrt(a.factor)), 0)
        return [float(end), float(early or end), float(early), float(naive)]


def sign_of(difference: Interval) -> int:
    """Return 1 or -1 if the interval is above or below 0, and 0 if 0 is in it."""
    return int(difference.low > 0) - int(difference.high < 0)


def by_t(values: list[float]) -> tuple[float, float]:
    """Return Nadeau & Bengio's limits, from the folds' values alone."""
    k, mean = len(values), float(np.mean(values))
    half = float(special.stdtrit(k - 1, 0.975)) * float(np.std(values, ddof=1)) * math.sqrt(1 / k + 1 / (k - 1))
    return mean - half, mean + half


def discriminants(X: Floats, y: NDArray[np.int8]) -> list[tuple[float, Floats]]:
    """Return Fisher's discriminant for several ridges, the largest first."""
    means = [X[y == sign].mean(axis=0) for sign in (1, -1)]
    inner = X - np.where(y[:, None] > 0, *means)
    values, vectors = np.linalg.eigh(inner.T @ inner / len(y))
    along = vectors.T @ (means[0] - means[1])
    return [(lam, vectors @ (along / (values + lam))) for lam in (10.0, 1.0, 0.1)]


def trained(X: Floats, y: NDArray[np.int8]) -> list[tuple[float, Floats]]:
    """Return models of `distsms train` for two values of lambda, the larger first."""
    settings = settings_for("rocarea", "lmvm", None, 0.01, lam=1.0)
    rows = as_features(csr_matrix(X))
    models = []
    for lam in (0.1, 1e-3):
        task = TrainingTask.of_rows(rows, y, "rocarea", replace(settings, lam=lam))
        models.append((lam, fit(task, ALONE).w))
    return models


def normal_measures(distance: float, share: float) -> tuple[float, float]:
    """Return ROCArea and PRBEP if both classes have normal scores of variance 1.

    distance : the difference of the means of positives and negatives. share : the share of positive rows.
    """
    low, high = -20.0, 20.0
    for _ in range(60):
        cut = (low + high) / 2
        called = share * special.ndtr(distance - cut) + (1 - share) * special.ndtr(-cut)
        low, high = (cut, high) if called > share else (low, cut)
    return float(special.ndtr(distance / math.sqrt(2))), float(special.ndtr(distance - low))
