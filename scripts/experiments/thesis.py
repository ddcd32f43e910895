"""Compare with the thesis of Ghanbari (2019): its normal-theory AUC beside ours, and what it holds that we leave out.

    python -m scripts.experiments.thesis PART NAME=TRAIN[,TEST] ... [--json FILE]
    python -m scripts.experiments.thesis made [--runs 20] [--json FILE]

made         Table 4.5: test ROCArea on normal data of which some training rows of both classes are exchanged, for
             normal-auc from their moments and from the exact ones, and for ROCArea (hinge).
auc          Table 4.6: held-out ROCArea of five folds, each method with its best lambda of five, and the seconds of one
             training of all rows at this lambda, for normal-auc, ROCArea (hinge) and logistic regression.
starts       Evaluations of ROCArea from w = 0, and from the minimum of normal-auc, as it is and multiplied by the best
             of several factors (which are tried free of charge).
errors       Section 4.3: the error rate that normal theory predicts for the w and the threshold that minimize it, and
             the real one, beside that of logistic regression.
search       Chapter 3: search without derivatives. Over lambda and the weight of the positive class of logistic
             regression, by COBYQA (a trust region with quadratic models, as DFO-TR), by Nelder and Mead and by Bayesian
             optimization (a Gaussian process), compared with a path of seven lambdas from start to start; and over w
             itself, compared with a training for ROCArea.
accelerated  Chapter 2: evaluations of logistic regression until J is within 0.1 % and 1e-5 of its minimum, by
             quasi-Newton with and without Nesterov's acceleration, by the accelerated gradient, and by lmvm.

TRAIN and TEST are svmlight text, plain or compressed. Without TEST, every fifth row is a test row.
"""

from __future__ import annotations

import argparse
import time
import warnings
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import numpy as np
from scipy import optimize, sparse
from scipy.special import expit, ndtr, ndtri
from sklearn.datasets import load_svmlight_file
from sklearn.exceptions import ConvergenceWarning
from sklearn.gaussian_process import GaussianProcessRegressor, kernels
from sklearn.metrics import roc_auc_score

from distsms.base.communicator import Communicator
from distsms.base.measures import Measure
from distsms.base.typing import Floats
from distsms.cli.types import count
from distsms.matrix.arrays import as_features
from distsms.matrix.augmented import with_bias
from distsms.matrix.moments import Moments
from distsms.optim.objective import Objective
from distsms.optim.run import minimize
from distsms.optim.settings import Settings
from distsms.shards import from_arrays
from distsms.training.fit import fit
from distsms.training.normal_auc_closed import solve
from distsms.training.rows import make_losses
from distsms.training.task import TrainingTask
from distsms.workflow import path
from scripts import records
from scripts.compare.tables import markdown
from scripts.experiments.common import HELD_OUT, named_files, open_bytes
from scripts.records import Record

PUBLISHED = {
    "adult9": {"normal-auc": 0.9004, "rocarea": 0.9027, "ratio": 15667.87 / 0.92},
    "web8": {"normal-auc": 0.9636, "rocarea": 0.9643, "ratio": 5353.23 / 0.54},
}
"""AUC in the thesis's table 4.6, for a9a and w8a, and how many times its seconds for the hinge are those for F_AUC."""
MADE = {
    "data1": (500, 0.05, 0.0, (99.72, 99.41, 97.90)),
    "data2": (500, 0.35, 0.05, (99.63, 99.56, 96.34)),
    "data3": (500, 0.5, 0.1, (99.65, 99.59, 97.66)),
    "data4": (1000, 0.15, 0.0, (99.57, 99.33, 97.82)),
    "data5": (1000, 0.4, 0.05, (99.62, 99.51, 95.89)),
    "data6": (1000, 0.5, 0.1, (99.62, 99.49, 94.70)),
    "data7": (2500, 0.1, 0.0, (99.65, 98.74, 95.87)),
    "data8": (2500, 0.35, 0.05, (99.66, 99.29, 95.14)),
    "data9": (2500, 0.5, 0.1, (99.62, 99.32, 94.63)),
}
"""Tables 4.1 and 4.5 of the thesis: columns, share of positives, share of outliers, and the AUC [%] of F_AUC with exact
and with approximate moments and of the hinge. Each set has 5000 rows."""
MADE_ROWS, MADE_AREA, MADE_LAMBDAS = 5000, 0.9965, (1e-4, 1e-2, 1.0)
"""The best AUC on made data: about that of the thesis's exact moments. Its own means and covariances are not known."""
ALONE = Communicator()
LAMBDAS = [1e-1, 1e-2, 1e-3, 1e-4, 1e-5]
MEASURES = ("normal-auc", "rocarea", "logistic")
FACTORS = (0.5, 1.0, 2.0, 4.0, 8.0, 16.0)
BUDGET = 30
"""Models that each search over lambda and the weight may train."""
OVER_W = 150
"""Computations of the AUC that the search over w may make."""
Rows = tuple[sparse.csr_matrix, np.ndarray]


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("part", choices=("made", *PARTS), metavar="PART", help=", ".join(("made", *PARTS)))
    parser.add_argument("data", nargs="*", type=named_files, metavar="NAME=TRAIN[,TEST]")
    about = "draws of each set of `made` (%(default)s)"
    parser.add_argument("--runs", type=count, default=20, metavar="N", help=about)
    parser.add_argument("--sets", nargs="+", choices=tuple(MADE), default=tuple(MADE), help="of `made` (all)")
    records.add_json(parser)
    args = parser.parse_args()
    if (args.part == "made") == bool(args.data):
        parser.error("all parts but `made` need data sets")
    found: list[Record] = []
    for name in args.sets if args.part == "made" else ():
        found.append({"kind": "made", "set": name, **made(name, args.runs)})
        print(table(found), flush=True)
        records.write(args.json, "scripts.experiments.thesis", found)
    for name, files in args.data:
        train, test = read(files)
        found += [{"kind": args.part, "set": name, **row} for row in PARTS[args.part](name, train, test)]
        print(table(found), flush=True)
        records.write(args.json, "scripts.experiments.thesis", found)


def read(files: Sequence[Path]) -> tuple[Rows, Rows]:
    """Return X and y (+1, -1) of the training and of the test rows."""
    with open_bytes(files[0]) as text:
        X, y = load_svmlight_file(text)
    y = np.where(y > 0, 1, -1)
    if len(files) == 1:
        held = np.arange(1, len(y) + 1) % HELD_OUT == 0
        return (X[~held], y[~held]), (X[held], y[held])
    with open_bytes(files[1]) as text:
        X_test, y_test = load_svmlight_file(text, n_features=X.shape[1])
    return (X, y), (X_test, np.where(y_test > 0, 1, -1))


def made(name: str, runs: int) -> Record:
    """Draw a set of table 4.1 several times; return the mean and the deviation of the test ROCArea of each method.

    Both classes have a random covariance, with eigenvalues from 0.5 to 1.5, and the means differ in a random direction
    as far as the best area demands. Of the training rows, a share of each class gets the other label; of the test rows,
    none. The best of three lambdas is that with the best area on a quarter of the training rows.
    """
    p, share, outliers, _ = MADE[name]
    areas, seconds = [], []
    for seed in range(runs):
        rng = np.random.default_rng([seed, p])
        turn = np.linalg.qr(rng.standard_normal((p, p)))[0]
        scales = np.sqrt(rng.uniform(0.5, 1.5, (2, p)))  # of the positive and of the negative rows, in this basis
        direction = rng.standard_normal(p)
        both = (scales**2).sum(axis=0)
        best = direction / both
        shift = float(ndtri(MADE_AREA)) * np.sqrt(best @ (both * best)) / (best @ direction)
        y = np.where(rng.random(MADE_ROWS) < share, 1, -1)
        X = rng.standard_normal((MADE_ROWS, p)) * scales[np.where(y > 0, 0, 1)]
        X[y > 0] += shift * direction
        X, train = X @ turn.T, np.arange(MADE_ROWS) < 0.8 * MADE_ROWS
        labels, fewer = y.copy(), min(np.sum(train & (y > 0)), np.sum(train & (y < 0)))
        for sign in (1, -1):
            labels[rng.permutation(np.flatnonzero(train & (y == sign)))[: round(outliers * fewer)]] = -sign
        models, of_seed = [turn @ best], []
        inner, judged = np.split(np.flatnonzero(train), [MADE_ROWS * 3 // 5])
        for method in (of_moments, of_hinge):
            tried = {
                lam: roc_auc_score(labels[judged], X[judged] @ method(X[inner], labels[inner], lam))
                for lam in MADE_LAMBDAS
            }
            lam, begun = max(tried, key=lambda lam: tried[lam]), time.perf_counter()
            models.append(method(X[train], labels[train], lam))
            of_seed.append(time.perf_counter() - begun)
        seconds.append(of_seed)
        areas.append([100 * roc_auc_score(y[~train], X[~train] @ w) for w in models])
    mean, deviation = np.mean(areas, axis=0), np.std(areas, axis=0, ddof=1 if runs > 1 else 0)
    return {"auc": mean.tolist(), "deviation": deviation.tolist(), "seconds": np.median(seconds, axis=0).tolist()} | {
        "runs": runs
    }


def of_moments(X: Floats, y: np.ndarray, lam: float) -> Floats:
    """Return the w of normal-auc."""
    return solve(as_features(X).moments((y < 0).astype(np.int16), 2), lam).w


def of_hinge(X: Floats, y: np.ndarray, lam: float) -> Floats:
    """Return the w of ROCArea."""
    return np.asarray(evaluated((X, y.astype(np.int8)), "rocarea", Settings(lam, 1e-3)).w)


def auc(name: str, train: Rows, test: Rows) -> list[Record]:
    """Cross-validate the three measures on all training rows, one after the other in the same process."""
    block, found = from_arrays.block(*train, ALONE), []
    for measure in MEASURES:
        bias = Measure.parse(measure).bias(None)
        problem = path.Problem(measure, LAMBDAS, 5, 0, Settings(1.0, 1e-3), at_once=6, select="rocarea", bias=bias)
        done = path.run(path.PathRows(block, ALONE), problem, lambda *_: None)
        areas = {lam: [p.held_out["rocarea"] for p in done.points if p.lam == lam and p.held_out] for lam in LAMBDAS}
        best = max(areas, key=lambda lam: np.mean(areas[lam]) if areas[lam] else 0.0)
        of_folds = {"lambda": best, "auc": float(np.mean(areas[best])), "deviation": float(np.std(areas[best], ddof=1))}
        seconds = []
        for _ in range(5):
            begun = time.perf_counter()
            if measure == "normal-auc":
                solve(class_moments(train), best)
            else:
                evaluated(train, measure, Settings(best, 1e-3), bias=bias)
            seconds.append(time.perf_counter() - begun)
        found.append({"measure": measure, **of_folds, "seconds": float(np.median(seconds)), "passes": done.passes})
        found[-1] |= {"n": train[0].shape[0], "p": train[0].shape[1]}
    return found


def class_moments(rows: Rows) -> Moments:
    """Return the moments of the positive and of the negative rows."""
    return as_features(rows[0]).moments((rows[1] < 0).astype(np.int16), 2)


def evaluated(
    rows: Rows,
    measure: str,
    settings: Settings,
    start: np.ndarray | None = None,
    bias: float | None = None,
    watch: Any = lambda state, w: None,
) -> Any:
    """Train on rows in memory, and return the result of the run."""
    block = from_arrays.block(*rows, ALONE)
    _, losses = make_losses(block, measure, "auto", ALONE)
    return minimize(Objective(with_bias(block.features, bias), losses, ALONE), settings, start, watch)


def starts(name: str, train: Rows, test: Rows) -> list[Record]:
    """Count the evaluations of ROCArea from zero, from normal-auc, and from its best multiple."""
    moments, block, found = class_moments(train), from_arrays.block(*train, ALONE), list[Record]()
    _, (loss,) = make_losses(block, "rocarea", "auto", ALONE)
    for lam in (1e-2, 1e-4, 1e-6):
        w, settings = solve(moments, lam).w, Settings(lam, 1e-3)
        scores = block.features.margins(w)
        J = {k: loss.evaluate(k * scores, 0.0).R + 0.5 * lam * k * k * float(w @ w) for k in FACTORS}
        factor = min(J, key=lambda k: J[k])
        runs = [evaluated(train, "rocarea", settings, start) for start in (None, w, factor * w)]
        found.append({"lambda": lam, "factor": factor, "evaluations": [run.evaluations for run in runs]})
        found[-1]["statuses"] = [run.status.name.lower() for run in runs]
    return found


def errors(name: str, train: Rows, test: Rows) -> list[Record]:
    """Minimize the error rate of normal theory from the moments, and measure it on test rows."""
    moments = class_moments(train)
    share = moments.mass / moments.mass.sum()
    (m_pos, m_neg), (C_pos, C_neg) = moments.mean, moments.scatter / moments.mass[:, None, None]

    def predicted(v: np.ndarray) -> float:
        w, threshold = v[:-1], v[-1]
        deviations = [np.sqrt(max(w @ C @ w, 1e-300)) for C in (C_pos, C_neg)]
        return float(
            share[0] * ndtr((threshold - w @ m_pos) / deviations[0])
            + share[1] * ndtr((w @ m_neg - threshold) / deviations[1])
        )

    def gradient(v: np.ndarray) -> np.ndarray:
        w, threshold, total = v[:-1], v[-1], np.zeros(len(v))
        for part, mean, C, sign in ((share[0], m_pos, C_pos, 1.0), (share[1], m_neg, C_neg, -1.0)):
            deviation = np.sqrt(max(w @ C @ w, 1e-300))
            z = sign * (threshold - w @ mean) / deviation
            density = part * np.exp(-0.5 * z * z) / np.sqrt(2 * np.pi)
            total[:-1] += density * (-sign * mean / deviation - z * (C @ w) / deviation**2)
            total[-1] += density * sign / deviation
        return total

    w = solve(moments, 1e-4).w
    best = optimize.minimize(predicted, np.append(w, w @ (m_pos + m_neg) / 2), jac=gradient, method="L-BFGS-B")
    real = float(np.mean(np.where(test[0] @ best.x[:-1] >= best.x[-1], 1, -1) != test[1]))
    task = TrainingTask.of_rows(as_features(train[0]), train[1].astype(np.int8), "logistic", Settings(1e-4, 1e-3), 1.0)
    model = fit(task, ALONE)
    logistic = float(np.mean(np.where(test[0] @ model.w + model.bias >= 0, 1, -1) != test[1]))
    rare = float(min(np.mean(test[1] > 0), np.mean(test[1] < 0)))
    return [{"predicted": float(best.fun), "real": real, "logistic": logistic, "rarer class": rare}]


def logistic_auc(
    train: Rows, test: Rows, log_lam: float, log_weight: float, start: Floats | None = None
) -> tuple[float, int, Any]:
    """Train with a weight of the positive class; return 1 - AUC of the test rows, the evaluations, and w."""
    weights = np.where(train[1] > 0, 10.0**log_weight, 1.0)
    block = from_arrays.block(*train, ALONE, weights=weights)
    task = TrainingTask(block, Measure.parse("logistic"), Settings(10.0**log_lam, 1e-3), 1.0, start)
    model = fit(task, ALONE)
    return 1 - roc_auc_score(test[1], test[0] @ model.w), model.result.evaluations, model


def search(name: str, train: Rows, test: Rows) -> list[Record]:
    """Search by the AUC of a fifth of the training rows; count models and evaluations, and measure on test rows."""
    held = np.random.default_rng(0).random(len(train[1])) < 0.2
    inner, valid = (train[0][~held], train[1][~held]), (train[0][held], train[1][held])
    found: list[Record] = []

    def record(method: str, trials: list[tuple[float, int, Any]]) -> None:
        best = min(trials, key=lambda trial: trial[0])
        area = float(roc_auc_score(test[1], test[0] @ best[2].w))
        numbers = {"models": len(trials), "evaluations": sum(trial[1] for trial in trials), "auc": area}
        found.append({"over": "lambda, weight", "method": method, **numbers})

    trials, start = [], None
    for log_lam in range(-1, -8, -1):
        trials.append(logistic_auc(inner, valid, log_lam, 0.0, start))
        start = trials[-1][2].result.w
    record("path of 7 lambdas", trials)
    for method in ("cobyqa", "nelder-mead"):
        trials = []

        def trial(x: np.ndarray, trials: list[tuple[float, int, Any]] = trials) -> float:
            trials.append(logistic_auc(inner, valid, *x))
            return trials[-1][0]

        bounds, options = [(-7, -1), (-2, 2)], {"maxfev": BUDGET}
        optimize.minimize(trial, [-3.0, 0.0], method=method, bounds=bounds, options=options)
        record(method, trials)
    record("Bayesian", bayesian(lambda x: logistic_auc(inner, valid, *x)))
    features = as_features(inner[0])
    over_w = optimize.minimize(
        lambda w: 1 - roc_auc_score(inner[1], features.margins(w)),
        np.full(inner[0].shape[1], 1e-3),
        method="cobyqa",
        options={"maxfev": OVER_W},
    )
    area = float(roc_auc_score(test[1], test[0] @ over_w.x))
    found.append({"over": "w", "method": "cobyqa", "models": 1, "evaluations": over_w.nfev, "auc": area})
    result = evaluated(inner, "rocarea", Settings(1e-4, 1e-3))
    area = float(roc_auc_score(test[1], test[0] @ result.w))
    found.append({"over": "w", "method": "rocarea", "models": 1, "evaluations": result.evaluations, "auc": area})
    return found


def bayesian(trial: Callable[[np.ndarray], tuple[float, int, Any]]) -> list[tuple[float, int, Any]]:
    """Minimize by expected improvement of a Gaussian process, from five random points."""
    rng, low, high = np.random.default_rng(0), np.array([-7.0, -2.0]), np.array([-1.0, 2.0])
    points = list(rng.uniform(low, high, (5, 2)))
    trials = [trial(x) for x in points]
    kernel = kernels.ConstantKernel() * kernels.Matern([2.0, 1.0], nu=2.5) + kernels.WhiteKernel(1e-4)
    warnings.simplefilter("ignore", ConvergenceWarning)  # of the kernel's scales
    while len(trials) < BUDGET:
        values = np.array([value for value, _, _ in trials])
        process = GaussianProcessRegressor(kernel, normalize_y=True).fit(points, values)
        candidates = rng.uniform(low, high, (500, 2))
        mean, deviation = process.predict(candidates, return_std=True)
        gain = (values.min() - mean) / np.maximum(deviation, 1e-12)
        density = np.exp(-0.5 * gain**2) / np.sqrt(2 * np.pi)
        points.append(candidates[np.argmax(deviation * (gain * ndtr(gain) + density))])
        trials.append(trial(points[-1]))
    return trials


def accelerated(name: str, train: Rows, test: Rows) -> list[Record]:
    """Count evaluations of the log loss until J is near its minimum, at three lambdas."""
    found = []
    X, y = sparse.hstack([train[0], np.ones((len(train[1]), 1))]).tocsr(), train[1]
    for lam in (1e-2, 1e-4, 1e-6):
        values: list[float] = []

        def J(w: np.ndarray, lam: float = lam, values: list[float] = values) -> tuple[float, np.ndarray]:
            s = y * (X @ w)
            values.append(float(np.mean(np.logaddexp(0, -s)) + 0.5 * lam * w @ w))
            return values[-1], X.T @ (-y * expit(-s)) / len(y) + lam * w

        least = float(optimize.minimize(J, np.zeros(X.shape[1]), jac=True, method="L-BFGS-B", options=FINE).fun)
        for method, run in METHODS.items():
            values.clear()
            run(J, np.zeros(X.shape[1]))
            found.append({"lambda": lam, "method": method, "evaluations": counts(values, least)})
        for solver in ("agm", "lmvm"):
            trace: list[float] = []
            settings = Settings(lam, 1e-7, solver=solver, max_evaluations=1000)
            evaluated((X, y), "logistic", settings, watch=lambda state, w, trace=trace: trace.append(state.J))
            found.append({"lambda": lam, "method": solver, "evaluations": counts(trace, least)})
    return found


FINE = {"maxiter": 5000, "maxfun": 10000, "ftol": 0, "gtol": 1e-10, "maxcor": 30}


def counts(values: Sequence[float], least: float) -> list[int | None]:
    """Return how many evaluations it took to come within 0.1 % and 1e-5 of the least J; None if it never did."""
    return [
        next((k for k, value in enumerate(values, 1) if value <= least * (1 + share)), None) for share in (1e-3, 1e-5)
    ]


def quasi_newton(J: Callable[..., Any], w: np.ndarray, momentum: bool = False, limit: int = 500) -> None:
    """Minimize by L-BFGS with Armijo's rule; with momentum the step begins at a point beyond w (Nesterov's)."""
    pairs: list[tuple[np.ndarray, np.ndarray]] = []
    before, ahead = w, 0
    after, gradient = J(w)
    while ahead < limit:
        beyond = w + (ahead / (ahead + 3.0)) * (w - before) if momentum else w
        value, g = J(beyond) if momentum and ahead else (after, gradient)
        direction = -two_loops(pairs, g)
        step, slope = 1.0, float(g @ direction)
        for _ in range(20):
            there = beyond + step * direction
            after, gradient = J(there)
            if after <= value + 1e-4 * step * slope:
                break
            step /= 2
        s, z = there - beyond, gradient - g
        if s @ z > 1e-12 * (s @ s):
            pairs = [*pairs[-29:], (s, z)]
        if np.linalg.norm(gradient) < 1e-9 or step * np.linalg.norm(direction) < 1e-14:
            return
        before, w, ahead = w, there, ahead + 1


def two_loops(pairs: Sequence[tuple[np.ndarray, np.ndarray]], g: np.ndarray) -> np.ndarray:
    """Return the inverse quasi-Newton matrix times g."""
    q, shares = g.copy(), []
    for s, z in reversed(pairs):
        shares.append((s @ q) / (s @ z))
        q -= shares[-1] * z
    if pairs:
        s, z = pairs[-1]
        q *= (s @ z) / (z @ z)
    for (s, z), share in zip(pairs, reversed(shares), strict=True):
        q += (share - (z @ q) / (s @ z)) * s
    return q


METHODS: dict[str, Callable[..., None]] = {
    "L-BFGS": quasi_newton,
    "accelerated L-BFGS": lambda J, w: quasi_newton(J, w, momentum=True),
    "L-BFGS-B of SciPy": lambda J, w: optimize.minimize(J, w, jac=True, method="L-BFGS-B", options=FINE),
}
PARTS = {"auc": auc, "starts": starts, "errors": errors, "search": search, "accelerated": accelerated}


def table(found: Sequence[Record]) -> str:
    """Make the table of a part."""
    kind = found[0]["kind"]
    if kind == "auc":
        return auc_table(found)
    if kind == "made":
        return made_table(found)
    if kind == "starts":
        header = ["set", "lambda", "from w = 0", "from normal-auc", "from its best multiple", "multiple"]
        lines = []
        for row in found:
            own = *map(count_of, row["evaluations"], row["statuses"]), f"{row['factor']:g}"
            lines.append([row["set"], f"{row['lambda']:g}", *own])
    elif kind == "errors":
        names = ("predicted", "real", "logistic", "rarer class")
        header = ["set", "predicted by normal theory [%]", "real [%]", "logistic regression [%]"]
        header += ["always the larger class [%]"]
        lines = [[row["set"], *(f"{100 * row[name]:.2f}" for name in names)] for row in found]
    elif kind == "search":
        header = ["set", "search over", "method", "models", "evaluations", "test ROCArea [%]"]
        lines = [
            [*(str(row[key]) for key in ("set", "over", "method", "models", "evaluations")), f"{100 * row['auc']:.2f}"]
            for row in found
        ]
    else:
        header = ["set", "lambda", "method", "evaluations to 0.1 %", "to 0.001 %"]
        lines = [
            [row["set"], f"{row['lambda']:g}", row["method"], *(str(k or "never") for k in row["evaluations"])]
            for row in found
        ]
    return markdown(header, lines)


def count_of(evaluations: int, status: str) -> str:
    """Return a number of evaluations, with the way in which the run ended if it proved nothing."""
    return f"{evaluations}" + ("" if status == "proved" else f" ({status})")


def made_table(found: Sequence[Record]) -> str:
    """Make the table beside the thesis's table 4.5."""
    names = ("exact moments", "moments of the rows", "hinge")
    header = ["set", "columns", "positive [%]", "outliers [%]", *(f"thesis: {name} [%]" for name in names)]
    header += [f"{name} [%]" for name in names] + ["time, hinge / moments"]
    lines = []
    for row in found:
        p, share, outliers, theirs = MADE[row["set"]]
        own = [f"{area:.2f} ± {spread:.2f}" for area, spread in zip(row["auc"], row["deviation"], strict=True)]
        line = [
            row["set"],
            str(p),
            f"{100 * share:g}",
            f"{100 * outliers:g}",
            *(f"{area:.2f}" for area in theirs),
            *own,
        ]
        lines.append([*line, f"{row['seconds'][1] / row['seconds'][0]:.1f}"])
    return markdown(header, lines)


def auc_table(found: Sequence[Record]) -> str:
    """Make the table beside the thesis's table 4.6."""
    header = ["set", "rows", "columns", "thesis: F_AUC [%]", "thesis: hinge [%]", "its time, hinge / F_AUC"]
    header += [f"{Measure.parse(measure).name} [%]" for measure in MEASURES]
    header += ["time, rocarea / normal-auc", "time, logistic / normal-auc"]
    lines = []
    for name in dict.fromkeys(row["set"] for row in found):
        own = {row["measure"]: row for row in found if row["set"] == name}
        theirs, base = PUBLISHED.get(name), own["normal-auc"]
        line = [name, f"{base['n']:,}", str(base["p"])]
        line += [*(f"{100 * theirs[m]:.2f}" for m in MEASURES[:2]), f"{theirs['ratio']:,.0f}"] if theirs else [""] * 3
        line += [f"{100 * own[m]['auc']:.2f} ± {100 * own[m]['deviation']:.2f}" for m in MEASURES]
        line += [f"{own[m]['seconds'] / base['seconds']:.0f}" for m in MEASURES[1:]]
        lines.append(line)
    return markdown(header, lines)


if __name__ == "__main__":
    main()
