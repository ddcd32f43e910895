"""The fits of `scripts.experiments.features`: linear models on features, and boosted trees, all tuned in one way.

A fifth of the training rows is held out. Whatever has to be chosen is chosen by the measure of these rows: lambda, the
least number of rows in a leaf, and the settings and rounds of boosted trees. Features are made from the other four
fifths for that, so no row that judges them has grown a tree, divided a column into bins or trained a model. What was
chosen is then made from all training rows. Seconds are those of the processor, of one thread.
"""

from __future__ import annotations

import time
from collections.abc import Callable
from dataclasses import replace
from functools import partial
from typing import Any, NamedTuple, cast

import numpy as np
from scipy import sparse

from distsms.base.communicator import Communicator
from distsms.base.measures import RANKING, Measure
from distsms.base.scored import Scored
from distsms.base.typing import Floats
from distsms.features.feature_map import FeatureMap
from distsms.features.fit import FeatureOptions, fit
from distsms.features.growing import MIN_LEAF
from distsms.matrix.arrays import as_features
from distsms.metrics import ranking
from distsms.optim.settings import Settings
from distsms.shards.manifest import Manifest
from distsms.training import fit as training
from distsms.training.solver_choice import settings_for
from distsms.training.task import TrainingTask
from distsms.workflow.competitors import LIGHTGBM, METHODS, XGBOOST, Task, parameters
from distsms.workflow.folds import hold_out
from scripts.experiments.feature_sets import SetRows
from scripts.records import Record

ALONE = Communicator()
KINDS = "raw", "bins", "crosses", "leaves", "both"
"""`both` are crosses and leaves."""
BOOSTED = LIGHTGBM, XGBOOST
MIN_LEAVES, TRIAL_TREES = (1, 3, 10, 30), 100
"""The least numbers of rows in a leaf that are tried, and the most trees for that."""
WIDE = 200
"""With more columns than this, only the first two of them are tried."""
MOST_CROSSED, STRONGEST = 40, 300
"""With more attributes than the first number, only this many crosses are taken: the strongest."""
LOGISTIC = "logistic"
START = {"rocarea": 1e-4, "prbep": 1e-4, LOGISTIC: 1e-5}
"""The first lambda of a search, for rows of length 1."""
STEP, MOST_LAMBDAS = 10**-0.5, 9
HELD_OUT_PARTS = 5


class Split(NamedTuple):
    """Training rows, of which some are held out to choose by, and test rows."""

    train: SetRows
    test: SetRows
    held: Any  # (n,) bool
    inner: SetRows  # the training rows that are not held out
    outer: SetRows  # those that are held out

    @classmethod
    def of(cls, train: SetRows, test: SetRows) -> Split:
        """Hold out a fifth of the training rows."""
        held: Any = hold_out("rows", train.labels, train.labels, HELD_OUT_PARTS)
        return cls(train, test, held, train.take(~held), train.take(held))


class Features(NamedTuple):
    """A way to make features of rows, and what it cost."""

    rows: Callable[[Any], Any]  # from a matrix of columns to rows that can be trained on
    blocks: int  # the number of codes of a row; 1 for columns themselves
    columns: int
    seconds: float


Fits = tuple[list[Record], dict[str, Floats]]
"""What was chosen and found, and the scores of the test rows by the names of the records."""


def candidates(kind: str, train: SetRows, n_trees: int) -> dict[str, FeatureOptions | None]:
    """Return the features that are tried for a kind, by what they are called; None stands for the columns."""
    if kind == "raw":
        return {"": None}
    crosses = None
    if kind in ("crosses", "both"):
        attributes = len(cast(Any, _map(FeatureOptions(), train)[0].bins).attributes)
        crosses = "all" if attributes <= MOST_CROSSED else f"top:{STRONGEST}"
    bins = None if kind == "leaves" else FeatureOptions().bins
    options = FeatureOptions(bins, crosses)
    if kind in ("bins", "crosses"):
        return {f"crosses {crosses}" if crosses else "": options}
    least = MIN_LEAVES[:2] if train.p > WIDE else MIN_LEAVES
    return {f"min leaf {m}": replace(options, trees=n_trees, min_leaf=m) for m in least}


def make(options: FeatureOptions | None, train: SetRows) -> Features:
    """Make features from training rows."""
    if options is None:
        begun = time.process_time()
        scale = sparse.diags(_scale(train.X))
        return Features(lambda X: as_features(sparse.csr_matrix(X @ scale)), 1, train.p, time.process_time() - begun)
    made, seconds = _map(options, train)
    blocks = (options.trees or 0) + (len(made.bins.attributes) + len(made.bins.pairs) if made.bins else 0)
    return Features(made.rows, blocks, made.p, seconds)


def _map(options: FeatureOptions, train: SetRows) -> tuple[FeatureMap, float]:
    """Return a feature map and its seconds; what was made before, also for another kind, is not made again."""
    if options not in train.maps:
        if options.bins and options.trees:
            parts = replace(options, trees=None, min_leaf=MIN_LEAF), replace(options, bins=None, crosses=None)
            (binned, some), (grown, more) = (_map(part, train) for part in parts)
            train.maps[options] = FeatureMap(train.p, binned.bins, grown.forest), some + more
        else:
            begun = time.process_time()
            made = fit(cast(Manifest, train), ALONE, options, parts=train)
            train.maps[options] = made, time.process_time() - begun
    return cast(tuple[FeatureMap, float], train.maps[options])


def _scale(X: Any) -> Floats:
    """Return factors (p,) that give columns of numbers the standard deviation 1; those of 0 and 1 stay as they are."""
    mean, squares = (np.asarray(own.mean(axis=0)).ravel() for own in (X, X.multiply(X)))
    numbers = np.bincount(X.indices, ~np.isin(X.data, (0.0, 1.0)), X.shape[1]) > 0
    deviation = np.sqrt(np.maximum(squares - mean**2, 0))
    return np.where(numbers & (deviation > 1e-12), 1 / np.maximum(deviation, 1e-12), 1.0)


def linear(kind: str, split: Split, n_trees: int) -> Fits:
    """Choose among the candidates of a kind, train for both measures and by logistic regression, and test."""
    inner, outer = split.inner, split.outer
    wanted = [(measure, measure) for measure in RANKING] + [(LOGISTIC, measure) for measure in RANKING]
    tried: dict[tuple[str, str], list[tuple[float, str, float]]] = {pair: [] for pair in wanted}
    options = candidates(kind, inner, min(n_trees, TRIAL_TREES))
    begun = time.process_time()
    for name, own in options.items():
        judge = Judge(make(own, inner), inner, outer)
        for trained_for, measure in wanted:
            lam = climb(partial(judge.held_out, trained_for, measure), START[trained_for])
            tried[trained_for, measure].append((judge.held_out(trained_for, measure, lam), name, lam))
    search = time.process_time() - begun
    options = candidates(kind, inner, n_trees)
    found, scores, whole = list[Record](), dict[str, Floats](), dict[str, tuple[Features, Any, Any, float]]()
    for trained_for, measure in wanted:
        held_out, name, lam = max(tried[trained_for, measure])
        if name not in whole:
            made, begun = make(options[name], split.train), time.process_time()
            rows = made.rows(split.train.X)
            whole[name] = made, rows, made.rows(split.test.X), made.seconds + time.process_time() - begun
        made, rows, test, seconds = whole[name]
        begun = time.process_time()
        model = trained(rows, split.train.labels, trained_for, lam * made.blocks, 1e-3, 1000)
        own_scores = test.margins(model.w)
        found.append(
            {
                "kind": kind,
                "trained_for": trained_for,
                "select": measure,
                "candidate": name,
                "lambda": lam * made.blocks,
                "held_out": held_out,
                "test": value(measure, own_scores, split.test.labels),
                "columns": made.columns,
                "status": model.result.status.name,
                "evaluations": model.result.evaluations,
                "features_seconds": seconds,
                "training_seconds": time.process_time() - begun,
                "search_seconds": search,
                "tried": [[own[1], own[2], own[0]] for own in tried[trained_for, measure]],
            }
        )
        scores[f"{trained_for} {measure}"] = own_scores
    return found, scores


class Judge:
    """Judges models for all lambdas by the rows that are held out, and keeps their scores.

    The lambdas are those for rows of length 1. A row of codes has a 1 for each block, so training multiplies them by
    the number of blocks.
    """

    def __init__(self, made: Features, inner: SetRows, outer: SetRows) -> None:
        self._blocks = made.blocks
        self._rows, self._held = made.rows(inner.X), made.rows(outer.X)
        self._labels = inner.labels, outer.labels
        self._known: dict[tuple[str, float], Floats] = {}

    def held_out(self, trained_for: str, measure: str, lam: float) -> float:
        """Return the measure of the rows that are held out."""
        if (trained_for, lam) not in self._known:
            model = trained(self._rows, self._labels[0], trained_for, lam * self._blocks, 3e-3, 300)
            self._known[trained_for, lam] = self._held.margins(model.w)
        return value(measure, self._known[trained_for, lam], self._labels[1])


def trained(rows: Any, y: Any, trained_for: str, lam: float, relative: float, evaluations: int) -> training.Fit:
    """Train on features, until the gap is below this share of J."""
    measure = Measure.parse(trained_for)
    settings = settings_for(measure, "lbfgs", None, relative, lam=lam, max_evaluations=evaluations)
    task = TrainingTask.of_rows(rows, y, measure, settings, measure.bias(None))
    return training.fit(task, ALONE)


def climb(judged: Callable[[float], float], start: float) -> float:
    """Return the best of several lambdas, which go on by `STEP` on the side where the best one is at the end."""
    values = {lam: judged(lam) for lam in (start / STEP, start, start * STEP)}
    while len(values) < MOST_LAMBDAS:
        best = max(values, key=lambda lam: values[lam])
        if best == max(values):
            values[best / STEP] = judged(best / STEP)
        elif best == min(values):
            values[best * STEP] = judged(best * STEP)
        else:
            break
    return max(values, key=lambda lam: values[lam])


def value(measure: str, scores: Floats, y: Any) -> float:
    """Return a measure."""
    return float(getattr(ranking.ranking(Scored(scores, y, ALONE)), measure))


def describe_trees(number: int, library: str) -> str:
    """Return a setting of trees as text."""
    named = parameters(number, library).items()
    return ", ".join(f"{name} {value:g}" for name, value in named if name != "grow_policy" and value)


def boosted(library: str, split: Split, budget: int) -> Fits:
    """Search the settings of boosted trees for each measure, train the best one on all training rows, and test."""
    (X, y), method = (_plain(split.train.X), split.train.labels), METHODS["trees" if library == XGBOOST else library]
    assert method.fit is not None and method.search is not None
    found, scores = list[Record](), dict[str, Floats]()
    for measure in RANKING:
        begun = time.process_time()
        task = Task(X, y, measure, Settings(lam=1.0), split.held)
        tried = [method.search(task, number) for number in range(budget)]
        number = int(np.argmax([attempt.value for attempt in tried]))
        search, begun = time.process_time() - begun, time.process_time()
        score = method.fit(task._replace(rounds=tried[number].rounds), number).score
        seconds = time.process_time() - begun
        own_scores = score(_plain(split.test.X))
        found.append(
            {
                "kind": library,
                "trained_for": "log loss",
                "select": measure,
                "candidate": describe_trees(number, library),
                "rounds": tried[number].rounds,
                "held_out": tried[number].value,
                "test": value(measure, own_scores, split.test.labels),
                "features_seconds": 0.0,
                "training_seconds": seconds,
                "search_seconds": search,
            }
        )
        scores[f"log loss {measure}"] = own_scores
    return found, scores


def _plain(X: Any) -> Any:
    """Return an array if there are numbers. In a sparse matrix, XGBoost would take 0 for missing."""
    return X if np.isin(X.data, (0.0, 1.0)).all() else X.toarray()


def fits(kind: str, split: Split, n_trees: int, budget: int) -> Fits:
    """Make the fits of a kind of features or of a library."""
    return boosted(kind, split, budget) if kind in BOOSTED else linear(kind, split, n_trees)


def warm_up(split: Split) -> None:
    """Make each kind of fit on few rows, so that no compilation is measured."""
    few = np.concatenate([np.flatnonzero(split.train.labels == sign)[:100] for sign in (1, -1)])
    small = Split.of(split.train.take(few), split.train.take(few))
    for kind in (*KINDS, *BOOSTED):
        fits(kind, small, 3, 1)
