"""Test measures and seconds beside what users have: linear models of scikit-learn, XGBoost's linear and tree models.

Every method tries its own few settings on every fifth training row, held out, once for each measure, and is then
trained on all rows. The seconds are of all this, without loading; one core. Without test rows, every fifth row is one.
"""

from __future__ import annotations

import time
import warnings
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import numpy as np
from benchmarks.measuring import EPSILON, Row, Set, matrix, row, say
from scipy import sparse

from distsms.comm import Communicator
from distsms.features import Sparse
from distsms.losses import make_loss
from distsms.measures import ranking
from distsms.objective import Objective
from distsms.settings import Settings
from distsms.training import train

HELD_OUT, MOST_ROWS = 5, 100_000
MEASURES = ("rocarea", "prbep")
Data = tuple[sparse.csr_matrix, np.ndarray]
Fit = Callable[[Data, Any, str], Callable[[sparse.csr_matrix], np.ndarray]]
"""From rows, a setting and the measure that is wanted to a function that scores rows."""


def benchmark(one: Set, folder: Path, quick: bool) -> Iterator[Row]:
    """Rows of a set; of more than `MOST_ROWS` training rows evenly spaced ones are taken, and it says so."""
    training, test = _data(one)
    step = -(-training[1].size // (500 if quick else MOST_ROWS))
    name = one.name if step == 1 else f"{one.name}, 1 row of {step}"
    training = training[0][::step], training[1][::step]
    for method, (fit, settings) in _methods().items():
        start, found = time.perf_counter(), {}
        try:
            chosen = _tuned(fit, settings[:2] if quick else settings, training)
            for measure in MEASURES:
                found[measure] = _measured(fit(training, chosen[measure], measure), test, measure)
        except ImportError as error:
            say(f"others: {method}: {error}; pip install 'distsms[bench]'")
            continue
        for measure in MEASURES:
            what = f"{method}: test {measure} ({chosen[measure]})"
            yield row("others", name, what, 100 * found[measure], "%")
        yield row("others", name, f"{method}: tuning and training", time.perf_counter() - start, "s")


def _data(one: Set) -> tuple[Data, Data]:
    X, y = matrix(one.train)
    if one.test:
        X_test, y_test = matrix(one.test)
        p = max(X.shape[1], X_test.shape[1])
        for some in (X, X_test):
            some.resize(some.shape[0], p)
        return (X, y), (X_test, y_test)
    return _split(X, y)


def _split(X: sparse.csr_matrix, y: np.ndarray) -> tuple[Data, Data]:
    held = np.arange(len(y)) % HELD_OUT == HELD_OUT - 1
    return (X[~held], y[~held]), (X[held], y[held])


def _tuned(fit: Fit, settings: list[Any], training: Data) -> dict[str, Any]:
    """The setting that is best on held-out rows, for each measure."""
    kept, held = _split(*training)
    best = {}
    for measure in MEASURES:
        best[measure] = max(settings, key=lambda setting, m=measure: _measured(fit(kept, setting, m), held, m))
    return best


def _measured(score: Callable[[sparse.csr_matrix], np.ndarray], data: Data, measure: str) -> float:
    X, y = data
    return float(getattr(ranking(np.asarray(score(X), float), y.astype(np.int8), Communicator()), measure))


def _methods() -> dict[str, tuple[Fit, list[Any]]]:
    """By name: how to fit, and the settings to try."""
    C = [0.001, 0.01, 0.1, 1.0, 10.0]
    found: dict[str, tuple[Fit, list[Any]]] = {"distsms": (_ours, [1e-2, 1e-3, 1e-4, 1e-5, 1e-6])}
    for weight in (None, "balanced"):
        said = ", balanced" if weight else ""
        found[f"LinearSVC{said}"] = _scikit("LinearSVC", C, class_weight=weight)
        found[f"LogisticRegression{said}"] = _scikit("LogisticRegression", C, class_weight=weight, max_iter=1000)
    found["XGBoost, linear"] = (_boosted(booster="gblinear"), [0.0, 0.001, 0.01, 0.1, 1.0])
    found["XGBoost, trees"] = (_boosted(booster="gbtree", tree_method="hist"), [3, 4, 6, 8, 10])
    return found


def _ours(data: Data, lam: float, measure: str) -> Callable[[sparse.csr_matrix], np.ndarray]:
    X, y = data
    loss = make_loss(measure, "exchange", y.astype(np.int8), None, Communicator())
    w = train(Objective(Sparse.of(X), [loss], Communicator()), Settings(lam, EPSILON)).w
    return lambda rows: rows @ w


def _scikit(name: str, settings: list[float], **words: Any) -> tuple[Fit, list[Any]]:
    def fit(data: Data, C: float, measure: str) -> Callable[[sparse.csr_matrix], np.ndarray]:
        from sklearn import linear_model, svm
        from sklearn.exceptions import ConvergenceWarning

        make = getattr(svm if name == "LinearSVC" else linear_model, name)
        with warnings.catch_warnings():
            warnings.simplefilter("ignore", ConvergenceWarning)
            return make(C=C, **words).fit(*data).decision_function

    return fit, settings


def _boosted(**words: Any) -> Fit:
    def fit(data: Data, setting: float, measure: str) -> Callable[[sparse.csr_matrix], np.ndarray]:
        import xgboost

        own = {"lambda": setting} if words["booster"] == "gblinear" else {"max_depth": setting}
        fixed = {"objective": "binary:logistic", "nthread": 1, "verbosity": 0}
        rows = xgboost.DMatrix(data[0], label=data[1] > 0)
        booster = xgboost.train({**fixed, **words, **own}, rows, num_boost_round=200)
        return lambda X: booster.predict(xgboost.DMatrix(X), output_margin=True)

    return fit
