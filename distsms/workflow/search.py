"""The search of a training on a table: which features of its columns, and which loss, rank held-out rows best.

A sample of the rows, which every rank gets, is cut into folds, for which features that look at labels are made anew.
Each candidate is tried by one rank, the columns first, which tell how long the plain training takes, and so the budget.
What is not finished within that is left out. The root chooses.
"""

from __future__ import annotations

import math
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field, replace
from importlib.util import find_spec
from itertools import chain
from pathlib import Path
from typing import Any, NamedTuple, cast

import numpy as np
from numpy.typing import NDArray
from scipy import sparse

from distsms.base.communicator import Communicator
from distsms.base.errors import InputError, StoppedError
from distsms.base.formatting import format_duration, format_seconds
from distsms.base.jit import compiling
from distsms.base.measures import Measure, display_name
from distsms.base.typing import Floats, Labels
from distsms.base.wording import Message, marked, option
from distsms.features import arrays
from distsms.features.attributes import table_attributes
from distsms.features.build import build
from distsms.features.feature_map import FeatureMap
from distsms.features.fit import FeatureOptions, fit
from distsms.features.growing import FeaturesObserver, drawn, whole
from distsms.features.rows import RowParts, stacked
from distsms.ingest.file_names import expand
from distsms.ingest.formats.registry import format_of
from distsms.matrix import local
from distsms.matrix.arrays import as_features
from distsms.shards.dataset import DataBlock, other_weights
from distsms.shards.from_arrays import is_frame
from distsms.shards.manifest import FEATURES_FOLDER, Manifest
from distsms.shards.row_metadata import in_range, some
from distsms.training.rows import TrainingObserver
from distsms.training.solver_choice import choose_solver, settings_for
from distsms.workflow import auto_lambda, choice
from distsms.workflow.candidates import RAW, named
from distsms.workflow.choice import Mean
from distsms.workflow.folds import Folds, choose_folds_by, make_folds, read_fold_keys
from distsms.workflow.path import ALONE, FoldRows, PathRows, Problem
from distsms.workflow.requests import DEFAULT_LAMBDA, TrainRequest
from distsms.workflow.tables import DataSets, of_paths

LEAST_SECONDS, TIMES = 30.0, 10.0
"""The budget, if the user gives none: so many times what the plain training takes, but at least so many seconds."""
FEWEST_ROWS, FEWEST_OF_CLASS = 1000, 50
"""With fewer training rows, or fewer of a class, candidates are only compared if the user asks for it."""
MOST_ROWS, MOST_ENTRIES = 100_000, 10**7
"""The most rows, and about the most entries, of the sample, which each rank has in memory."""
N_BINS = 32
BINS, CROSSES, LEAVES = f"bins={N_BINS}", f"bins={N_BINS},crosses=all", "trees=100,min-leaf=10"
MOST_ATTRIBUTES, MOST_CROSSED, MOST_COLUMNS = 32, 2**20, 500
"""With more attributes, or more columns of crosses, there are no crosses, and with more columns no leaves: they would
take long, or much memory, since a solver keeps some 40 numbers for each column and fold.
"""
LOGISTIC = Measure.parse("logistic")


class Tried(NamedTuple):
    """A candidate that was tried on the folds."""

    features: str  # as `parse` takes them
    measure: str  # what was trained for
    lam: float  # the best lambda
    seconds: float
    means: list[Mean]  # of the measure that chooses, for all lambdas
    values: list[float]  # of the folds, at the best lambda

    @property
    def mean(self) -> float:
        """The mean over the folds at the best lambda."""
        return float(np.mean(self.values))


@dataclass(frozen=True)
class Search:
    """What a search tried, and what it chose. All ranks have the same."""

    by: str  # the measure that chose
    rows: int  # those of the sample
    folds: int
    share: float  # of the training rows of the rarer class, those on which the models of a fold are trained
    budget: float  # seconds
    seconds: float
    tried: list[Tried]  # the columns, trained for the measure of the request, come first
    left_out: dict[str, str]  # what was not tried to the end, or would take too long on all rows, and why
    winner: Tried
    reason: str  # one sentence

    def as_json(self) -> dict[str, Any]:
        """Return what a model file gets."""
        tried = [each._asdict() | {"mean": each.mean} for each in self.tried]
        for each in tried:
            each["means"] = [mean._asdict() for mean in each["means"]]
        winner = {"features": self.winner.features, "measure": self.winner.measure}
        return vars(self) | {"tried": tried, "winner": winner}


def seconds() -> float:
    """Return the time without that for compiling loops, which only a first run needs. Local."""
    return time.monotonic() - compiling.seconds


def why_not_searched(request: TrainRequest, comm: Communicator) -> str | None:
    """Return why the rows of a request are trained on as they are: "" if the user says so, or they are no table; None
    if there is a search. Raises InputError if the user asks for one that cannot be. **Collective.**
    """
    with comm.fail_together():
        names = [] if is_frame(request.data) else expand(of_paths(request.data))
        is_table, settings = all(format_of(name) == "table" for name in names), request.settings
        for_columns = {name: getattr(request, name) for name in ("start", "memory", "checkpoint", "certificate")}
        for_columns |= {name: settings.get(name) for name in ("l1", "c_mu")}
        for_columns |= {"lam": request.lam not in (None, "auto"), "device": request.device != "cpu"}
        reading = request.reading  # features of bins and trees have no hashed columns, and need no normalization
        normalize = reading.get("normalize") not in (None, "standard")
        for_columns |= {"hashed": reading.get("hashed"), "normalize": normalize}
        named = [f"{option(name)} is for a model of the columns" for name, value in for_columns.items() if value]
        why = next(iter(named), None)
        if request.measure.within_groups or request.measure.k:
            why = f"a model for {request.measure.name} is one of the columns"
        elif settings.get("solver_options"):
            why = "PETSc's options are for a model of the columns"
        if request.search and (why or not is_table):
            why = why or "it is for tables: DataFrames, CSV or Parquet"
            leave = "; leave one of the two out" if named else ""
            raise InputError(f"{option('search', float(request.search), text=f'{request.search:g}s')}: {why}{leave}")
    return "" if request.search == 0 or not is_table else why and Message(why)


def why_too_few(request: TrainRequest, manifest: Manifest) -> str | None:
    """Return why the rows are too few for a search, unless the user asks for one; None if they are not. Local."""
    if request.search or (manifest.n >= FEWEST_ROWS and min(manifest.n_pos, manifest.n_neg) >= FEWEST_OF_CLASS):
        return None
    few = f"{manifest.n_pos} positive and {manifest.n_neg} negative rows are few to compare features"
    return Message(f"{few}; {option('search', text='TIME')} does")


@dataclass(frozen=True)
class SampleRows:
    """The rows of a sample, all of them on each rank, and the feature maps that were made of them."""

    manifest: Manifest
    X: Any  # (m, p), CSR or an array, before any normalization
    y: Labels  # (m,)
    weights: Floats | None  # (m,), above 0
    keys: NDArray[Any]  # (m,), by which folds are made
    by: str  # how folds are made: "rows", "groups" or "time"
    n_folds: int
    folds: Folds
    maps: dict[tuple[FeatureOptions, int], FeatureMap] = field(default_factory=dict)

    def with_features(self, features: str, fold: int, observer: FeaturesObserver) -> DataBlock:
        """Return the rows with features that are made from the training rows of a fold, 0 standing for all rows."""
        if features == RAW:
            rows: Any = as_features(self.X)
            rows.normalize(self.manifest.normalization)
        else:
            options, binned, forest = arrays.options(named(features)), None, None
            if options.bins:  # which look at no labels, so that those of all rows do for each fold
                binned = self._fit(FeatureOptions(options.bins, options.crosses), 0, observer).bins
            if options.trees:
                forest = self._fit(replace(options, bins=None, crosses=None), fold, observer).forest
            rows = FeatureMap(self.X.shape[1], binned, forest).rows(self.X)
        n, p = rows.shape
        weighted = other_weights(self.weights)
        return DataBlock(rows, self.y, self.weights, first_row=0, n=n, p=p, bytes_read=0, weighted=weighted)

    def _fit(self, options: FeatureOptions, fold: int, observer: FeaturesObserver) -> FeatureMap:
        if (options, fold) not in self.maps:
            taken = self.folds.training(fold)
            rows = arrays.ArrayRows(self.X[taken], self.y[taken], some(self.weights, taken))
            rows.table = self.manifest.table
            self.maps[options, fold] = fit(cast(Manifest, rows), ALONE, options, observer, rows)
        return self.maps[options, fold]


def load_sample(manifest: Manifest, measure: Measure, comm: Communicator) -> SampleRows | None:
    """Return a sample of the rows on all ranks; None if there are too few for folds. **Collective.**"""
    most = min(MOST_ROWS, MOST_ENTRIES * manifest.n // max(manifest.nnz, 1))
    shares = auto_lambda.sample_shares(manifest.n_pos, manifest.n_neg, manifest.nnz, measure, most)
    parts, by = RowParts.of_rank(manifest, comm), choose_folds_by(None, manifest)  # groups or rows
    with comm.fail_together():
        numbers, pieces = zip(*drawn(manifest, parts, shares), strict=True)
        keys = read_fold_keys(manifest, by, parts.first, parts.last)[np.concatenate(numbers) - parts.first]
        of_rank = stacked(pieces)
    rows = whole(of_rank, comm)
    keys = comm.allgather_rows(keys, comm.allgather(len(keys)))
    n_folds = min(auto_lambda.FOLDS, int(np.sum(rows.labels > 0)), int(np.sum(rows.labels < 0)))
    if n_folds < 2:
        return None
    scaled = None if rows.weights is None else in_range(rows.weights, ALONE)
    as_csr = sparse.issparse(rows.X) or rows.X.size <= local.SMALL  # products with few CSR rows need no compiling
    table = sparse.csr_matrix(rows.X) if as_csr else rows.X
    counted = np.ones(len(rows.labels), bool)
    try:
        folds = make_folds(by, keys, rows.labels, counted, n_folds, 0, ALONE)
    except InputError:  # few groups
        return None
    return SampleRows(manifest, table, rows.labels, scaled, keys, by, n_folds, folds)


class Trials(FeaturesObserver):
    """Tries candidates until it has to stop. Local."""

    def __init__(self, request: TrainRequest, rows: SampleRows, end: Callable[[], bool]) -> None:
        self._request, self._rows, self._end = request, rows, end
        self.by = request.measure.chooser

    def progress(self, task: str, unit: str, done: float, of: float) -> None:
        """Give up features that take too long."""
        if self._end():
            raise InputError("there was no time to try it")

    def of_features(self, features: str) -> tuple[list[Tried], str]:
        """Return what the models on some features are worth, and why some are missing."""
        rows, tried = self._rows, list[Tried]()
        begun, of_request = seconds(), self._request.measure
        try:
            # Only trees look at labels; without them all folds have the same features, and share their passes.
            folds = range(1, rows.n_folds + 1) if "trees" in features else range(1)
            blocks = {fold: rows.with_features(features, fold, self) for fold in folds}
            making = seconds() - begun
            for measure in [of_request] if of_request.family.log_loss else [of_request, LOGISTIC]:
                begun = seconds() - making
                points = self._points(measure, blocks.get(0, lambda fold: PathRows(blocks[fold], ALONE, rows.keys)))
                means = choice.means(points, self.by)
                best = max(means, key=lambda mean: mean.mean)
                of_folds = {point.fold: point.held_out for point in points if point.lam == best.lam}
                values = [held_out[self.by] for _, held_out in sorted(of_folds.items()) if held_out]
                tried.append(Tried(features, measure.name, best.lam, seconds() - begun, means, values))
        except InputError as error:
            return tried, error.message
        except MemoryError:
            return tried, "there was not enough memory to try it"
        return tried, ""

    def _points(self, measure: Measure, block: DataBlock | FoldRows) -> list[choice.Point]:
        rows, bias = self._rows, measure.bias(self._request.bias)
        settings = settings_for(measure, choose_solver(self._request.solver, measure, ALONE)[0], lam=DEFAULT_LAMBDA)
        problem = Problem(
            measure.name, auto_lambda.GRID, rows.n_folds, 0, settings, folds_by=rows.by, select=self.by, bias=bias
        )
        outcome = auto_lambda.cross_validate(PathRows(block, ALONE, rows.keys), problem, self._end)
        if outcome.stopped or not outcome.points:
            raise InputError("there was no time to try it")
        return outcome.points


def candidates(manifest: Manifest, by_labels: bool) -> tuple[list[str], dict[str, str]]:
    """Return the features to try beside the columns, those that look at labels only if `by_labels`; why not others."""
    assert manifest.table is not None
    tried, left_out, attributes = [BINS], dict[str, str](), table_attributes(manifest.table)
    sizes = [len(each.categories or range(N_BINS)) + each.none + (each.missing is not None) for each in attributes]
    most_columns = sum(sizes) + (sum(sizes) ** 2 - sum(size**2 for size in sizes)) // 2
    if len(sizes) > MOST_ATTRIBUTES:
        left_out[CROSSES] = f"{len(sizes)} columns of the table are many to cross: at most {MOST_ATTRIBUTES} are"
    elif most_columns > MOST_CROSSED:
        most_searched = f"at most {MOST_CROSSED:,} are searched"
        left_out[CROSSES] = f"up to {most_columns:,} columns would take much memory: {most_searched}"
    else:
        tried.append(CROSSES)
    if not by_labels:
        left_out[LEAVES] = "they look at labels, and a threshold or probabilities on folds need features that do not"
    elif manifest.p > MOST_COLUMNS:
        left_out[LEAVES] = f"{manifest.p} columns are many to grow trees on: at most {MOST_COLUMNS} are searched so"
    elif find_spec("sklearn") is None:
        left_out[LEAVES] = "they need scikit-learn: pip install 'distsms[sklearn]'"
    else:
        tried += [LEAVES, f"{tried[-1]},{LEAVES}"]
    return tried, left_out


def search(
    request: TrainRequest,
    manifest: Manifest,
    comm: Communicator,
    observer: TrainingObserver,
    stop_wanted: Callable[[], bool],
) -> Search | None:
    """Try candidates on a sample of the rows, and choose; None if there are too few rows. **Collective.**"""
    begun, rows = seconds(), load_sample(manifest, request.measure, comm)
    if rows is None:
        groups = " or groups" * (manifest.group is not None)
        observer.noted("search", f"left out: there are too few rows{groups} for folds")
        return None
    size, most = len(rows.y), min(request.search or math.inf, request.settings.get("time_limit") or math.inf)
    in_words = "" if most == math.inf else f"{most:g} s" if most < 1 else format_duration(most)
    if request.search is None and most > LEAST_SECONDS:
        usual = f"{LEAST_SECONDS:g} s or, if that is more, {TIMES:g} times what a training on the columns takes"
        in_words = f"{usual}, and no more than {in_words}" if in_words else usual
    on_folds = f"features of the columns, and logistic regression, on {rows.n_folds} folds of {size} rows"
    plain = option("search", 0.0, text="0")
    observer.noted("search", Message(f"{on_folds}, for at most {in_words}; {plain} leaves it out"))
    # 1) The columns, which tell how long the plain training takes: the choice of lambda, and a training on all rows.
    plain_trials = Trials(request, rows, lambda: stop_wanted() or seconds() - begun > most)
    tried, why = comm.of_root(lambda: plain_trials.of_features(RAW))
    end_if_stopped(stop_wanted, comm)
    if why:
        observer.noted("search", Message(f"left out: the columns were not tried to the end: {marked(why)}"))
        return None
    budget = min(most, request.search or max(LEAST_SECONDS, TIMES * tried[0].seconds * (1 + manifest.n / size)))
    # 2) The others, which the ranks share. A signal to one of them ends all after the candidates of that time.
    trials = Trials(request, rows, lambda: stop_wanted() or seconds() - begun > budget)
    by_labels = request.at is None and request.calibrate is None
    shared, left_out = comm.of_root(lambda: candidates(manifest, by_labels))  # other hosts may lack scikit-learn
    results = dict[str, tuple[list[Tried], str]]()
    for first in range(0, len(shared), comm.size):
        with comm.fail_together():
            for features in shared[first + comm.rank :][:1]:
                results[features] = trials.of_features(features)
        end_if_stopped(stop_wanted, comm)
    results = {features: result for of_rank in comm.allgather(results) for features, result in of_rank.items()}
    # 3) The choice, among those whose training on all rows fits into the budget, too.
    left_out |= {features: results[features][1] for features in shared if results[features][1]}
    for each in chain.from_iterable(results[features][0] for features in shared):
        if manifest.n > size and each.seconds * manifest.n / size > budget:
            left_out[f"{each.features} for {each.measure}"] = "a training on all rows would take longer than the budget"
        else:
            tried.append(each)
    winner, reason = choose(tried, trials.by)
    share_of_rarer = float(min(np.sum(rows.y > 0), np.sum(rows.y < 0)) / min(manifest.n_pos, manifest.n_neg))
    outcome = Search(
        by=trials.by,
        rows=size,
        folds=rows.n_folds,
        share=share_of_rarer * (1 - 1 / rows.n_folds),
        budget=budget,
        seconds=seconds() - begun,
        tried=tried,
        left_out=left_out,
        winner=winner,
        reason=reason,
    )
    outcome = comm.bcast(outcome)
    observer.noted("search", f"{outcome.reason}; {format_seconds(outcome.seconds)}")
    for features, why in outcome.left_out.items():
        observer.noted("search", f"{features} left out: {why}")
    return outcome


def end_if_stopped(stop_wanted: Callable[[], bool], comm: Communicator) -> None:
    """Raise StoppedError on all ranks if one was asked to stop, since there is no model yet. **Collective.**"""
    if any(comm.allgather(stop_wanted())):
        raise StoppedError("stopped during the search among features, before the training: no model is written", True)


def choose(tried: Sequence[Tried], by: str) -> tuple[Tried, str]:
    """Return the candidate with the best mean, and why. The first one is taken in its place if the lead over it is at
    most a standard error of the folds' differences, or else the one with the same features for the measure of the
    first, if that itself leads the first. Local.
    """
    plain, best, name = tried[0], max(tried, key=lambda each: each.mean), display_name(by)
    twin = next(each for each in tried if (each.features, each.measure) in ((best.features, plain.measure), best[:2]))
    as_good = not choice.leads(best.values, twin.values) and choice.leads(twin.values, plain.values)
    winner = plain if not choice.leads(best.values, plain.values) else twin if as_good else best
    rank = "the best" if winner is best else f"not clearly behind the best, {best.mean:.4f},"
    features = "the columns" if winner.features == RAW else winner.features
    mean = f"{features} for {winner.measure}: mean {name} {winner.mean:.4f} on the folds"
    reason = f"{mean}, {rank} of {len(tried)} candidates"
    return winner, reason + f"; the columns for {plain.measure}: {plain.mean:.4f}" * (winner is not plain)


def request_of(
    request: TrainRequest, sets: DataSets, outcome: Search, comm: Communicator
) -> tuple[TrainRequest, DataSets, auto_lambda.LambdaChoice | None]:
    """Return the request for what a search chose, data sets with its features, and the lambda. **Collective.**"""
    winner, manifest, plain = outcome.winner, sets.training, outcome.tried[0]
    if (winner.features, winner.measure) == (plain.features, plain.measure):
        return request, sets, None
    measure, distribution = request.measure, request.distribution
    if winner.measure != measure.name:
        measure, distribution = LOGISTIC, distribution._replace(ordering="auto")  # an ordering is for the other measure
    lam = auto_lambda.for_more_rows(winner.lam, winner.lam, winner.means, outcome.share)
    means, rows, took, reason = winner.means, outcome.rows, outcome.seconds, outcome.reason
    picked = auto_lambda.LambdaChoice(lam, means, rows, took, reason, measure=outcome.by, searched=plain.measure)
    if winner.features != RAW:
        folder = Path(manifest.directory) / FEATURES_FOLDER
        featured = build(manifest.directory, folder, comm, arrays.options(named(winner.features)), overwrite=True)
        sets = sets._replace(training=featured)
    return replace(request, measure=measure, distribution=distribution, lam=lam), sets, picked
