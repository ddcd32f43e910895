"""`distsms.evaluate`, `predict`, `reasons`, `contributions`, `report` and `verify`: what a trained model does on rows.

They only translate into requests of `distsms.workflow`, and give its warnings as warnings of Python.
"""

from __future__ import annotations

import os
from collections.abc import Iterable, Mapping, Sequence
from numbers import Integral
from typing import TYPE_CHECKING, Any, TypeAlias

from numpy.typing import ArrayLike, NDArray

from distsms.base.errors import InputError, speaking_python
from distsms.base.formatting import did_you_mean
from distsms.base.measures import Condition
from distsms.base.typing import Floats
from distsms.base.wording import format_value
from distsms.models.contributions import Contributions
from distsms.models.evaluation import LEVEL, EvaluationOptions
from distsms.models.inputs import InputOptions
from distsms.models.model import Model
from distsms.python.calls import ranks_of, require_columns, warn
from distsms.shards import from_arrays
from distsms.shards.from_arrays import is_frame
from distsms.workflow import evaluate as judging
from distsms.workflow import predict as scoring
from distsms.workflow import verify as verifying
from distsms.workflow.evaluate import Evaluated
from distsms.workflow.requests import Arrays, EvaluateRequest, Path, PredictRequest, ReportRequest, VerifyRequest

if TYPE_CHECKING:
    from distsms.page.report import Report
    from distsms.workflow.verify import Verified

Data: TypeAlias = Path | tuple[Any, ArrayLike]
"""A path, or this rank's (X, y)."""


class Evaluation(dict[str, Any]):
    """The measures of one model by their names, as `distsms evaluate --json` has them, and what belongs to them.

    Attributes
    ----------
    evaluated : Evaluated
        The whole result: `models`, with their `intervals`; `pairs`; `level`; and `warnings`.
    """

    def __init__(self, evaluated: Evaluated) -> None:
        super().__init__(evaluated.models[0].measures)
        self.evaluated = evaluated

    @property
    def warnings(self) -> list[str]:
        """What users must know before they believe the measures."""
        return self.evaluated.warnings

    def to_dict(self) -> dict[str, Any]:
        """Return what `distsms evaluate --json` prints."""
        return self.evaluated.to_dict()

    def frame(self) -> Any:
        """Return the measures that have intervals as a DataFrame of pandas, with a line for each."""
        return self.evaluated.frame()


def predict(
    model: Model | Path,
    data: Any,
    comm: Any = None,
    *,
    ignore_new_features: bool = False,
    zero_based: bool | None = None,
) -> Floats:
    """Score the rows of this rank. **Collective.**

    Parameters
    ----------
    model : Model or path
        The model.
    data : path, DataFrame, or X
        A data set, a file, a pattern such as ``"day-*.csv"`` or a folder of tables, of whose rows each rank gets a
        contiguous share in the order of the ranks; or the rows of this rank, as a DataFrame with the columns of the
        training data, or sparse or array-like of shape (n_local, p); for a model of sequences also a list of strings,
        such as ``["ACGT", ...]``.
    comm : mpi4py communicator, optional
        The ranks that take part; None is this process alone.
    ignore_new_features : bool
        Leave out columns of a path or DataFrame that the model lacks, instead of refusing them.
    zero_based : bool, optional
        Whether svmlight text counts columns from 0; None: as the training data did.

    Returns
    -------
    ndarray of shape (n_local,)
        The scores <w, x> + bias, float64. A row is called positive where its score is at least `model.threshold`.
    """
    ranks = ranks_of(comm, locals())
    reading = InputOptions(ignore_new_features, labelled=False, zero_based=zero_based)
    with speaking_python():
        predicted = scoring.predict(PredictRequest(model, _rows(data, False), reading), ranks)
    warn(ranks, (), predicted.notes)
    assert predicted.scores is not None
    return predicted.scores


def evaluate(
    model: Model | Path | Sequence[Model | Path],
    data: Data,
    comm: Any = None,
    *,
    threshold: float | None = None,
    k: int | None = None,
    at: str | Sequence[str] = (),
    within_groups: str | None = None,
    weight: str | ArrayLike | None = None,
    group: str | ArrayLike | None = None,
    level: float | None = None,
    **settings: Any,
) -> Any:
    """Measure models on the labelled rows of all ranks, exactly. **Collective.**

    Parameters
    ----------
    model : Model, path, or sequence of these
        The model; or several, which are then compared in pairs.
    data : path, DataFrame, or (X, y)
        A path as for `predict`, or the rows of this rank as for `train`. X may be a list of strings as for `predict`.
    comm : mpi4py communicator, optional
        The ranks that take part; None is this process alone.
    threshold : float, optional
        Call a row positive if its score is at least this; None takes the threshold of the model.
    k : int, optional
        Also give precision@k and recall@k; None takes the k that the model was trained for, if any.
    at : str or sequence of str
        Find thresholds for conditions such as "precision>=0.9", "recall>=0.95", "fpr<=0.001", "top=100" or "top=1%".
    within_groups : {"pairs", "each"}, optional
        Also give GAUC, ROCArea within groups; None: as the model was trained, if at all, and if the rows have groups.
    weight, group : str or array-like, optional
        The weight and the group of each row: the name of a column for tables and files, and an array of shape
        (n_local,) for ``(X, y)``, on every rank or on none. Data sets have their own. With weights, tp, fp, fn and tn
        are sums of weights.
    level : float, optional
        Also give intervals of all measures, at this level such as 0.95; several models always get them.
    **settings
        ``ignore_new_features`` and ``zero_based`` as for `predict`; ``label``, the column of the labels in tables and
        files, if it is another one than in training; ``missing_group``, what becomes of their rows without a group
        ("own" or "drop"); ``bootstrap`` and ``seed``, the number of bootstrap replicates for
        intervals (1000) and their seed (0).

    Returns
    -------
    Evaluation
        A dict with the measures, the same on every rank, by the keys that `distsms evaluate --json` has for them:
        rocarea, prbep, average_precision, threshold, tp, fp, fn, tn, precision, recall, fpr, f1, error_rate, n, n_pos,
        n_neg and others; `intervals_at_threshold` has the intervals of precision, recall and fpr, and `training_rows`
        the share of the rows that are training rows of the model, estimated by a sample that the model has of them.
        What is not defined is NaN. Several models give an `Evaluated`, with `models` and `pairs`. Both have
        `to_dict()`, which is what the command prints with --json, `frame()`, a DataFrame of the measures with
        intervals, and `warnings`.
    """
    ranks, several = ranks_of(comm, locals() | settings), isinstance(model, Iterable) and not isinstance(model, str)
    with speaking_python():
        with ranks.fail_together():
            reading = _reading("evaluate", settings, weight, group)
            measures = _measuring(
                settings,
                at,
                intervals=several or level is not None,
                level=LEVEL if level is None else level,
                threshold=threshold,
                k=k,
                within_groups=within_groups,
            )
            models: Any = list(model) if several else [model]  # type: ignore[arg-type]
            if not models:
                raise InputError("there is no model to evaluate", everywhere=True)
            request = EvaluateRequest(models, _rows(data, True, weight, group), measures, reading)
        evaluated = judging.evaluate(request, ranks)
    warn(ranks, evaluated.warnings, evaluated.notes)
    return evaluated if several else Evaluation(evaluated)


def reasons(
    model: Model | Path, data: Any, count: int = 3, comm: Any = None, *, ignore_new_features: bool = False
) -> NDArray[Any]:
    """Return the columns that move the score of each row most, such as "amount +1.2". **Collective.**

    Parameters
    ----------
    model : Model or path
        A model that was trained on a table: on its columns, or on bins, crosses or leaves of them.
    data : path, DataFrame or X
        Rows, as for `predict`.
    count : int
        How many columns to name for each row.
    comm : mpi4py communicator, optional
        The ranks that share the rows; None is this process alone.
    ignore_new_features
        As for `predict`.

    Returns
    -------
    ndarray of shape (n_local, count)
        Strings, the largest contribution first: the name of a column, of a pair of columns ("a & b"), or "trees", and
        what it adds to the score of the row, compared with the mean training row. All contributions add up to the score
        less the mean score of the training rows.

    Notes
    -----
    As many products with the rows as the model has terms.
    """
    ranks = ranks_of(comm, locals())
    reading = InputOptions(ignore_new_features, labelled=False)
    with speaking_python():
        if not isinstance(count, Integral) or count < 1:
            raise InputError(f"count is {format_value(count):.60}; it must be a whole number of at least 1", True)
        predicted = scoring.predict(PredictRequest(model, _rows(data, False), reading, reasons=count), ranks)
    warn(ranks, (), predicted.notes)
    assert predicted.reasons is not None
    return predicted.reasons


def contributions(
    model: Model | Path,
    data: Any = None,
    comm: Any = None,
    *,
    weight: str | ArrayLike | None = None,
    ignore_new_features: bool = False,
    zero_based: bool | None = None,
) -> Contributions:
    """Return what attributes, pairs of attributes and columns contribute to the scores of a model. **Collective.**

    Parameters
    ----------
    model : Model or path
        A model on the columns as they are, or on bins, crosses or leaves; not one of sequences, of rows that are
        scaled to unit length, or of more than 2^20 columns.
    data : path, DataFrame or X, optional
        Rows, as for `predict`. Without rows, all codes of an attribute count alike, and so do the leaves of a tree;
        shares of the variance are then not known.
    comm : mpi4py communicator, optional
        The ranks that share the rows; None is this process alone.
    weight : str or array-like, optional
        The weight of each row: the name of a column for tables, and an array of shape (n_local,) for X. Data sets have
        their own.
    ignore_new_features, zero_based
        As for `predict`.

    Returns
    -------
    Contributions
        The same on every rank.

    Notes
    -----
    One pass over the rows. Memory on each rank: two numbers for each column of the model in addition to what `predict`
    takes, and about six while the tables are made.
    """
    ranks = ranks_of(comm, locals())
    column = weight if isinstance(weight, str) else None
    reading = InputOptions(ignore_new_features, labelled=False, zero_based=zero_based, weight=column)
    with speaking_python():
        with ranks.fail_together():
            rows = None if data is None else _rows(data, False, weight)
        return judging.contributions_of(PredictRequest(model, rows, reading), ranks)


def verify(
    model: Model | Path,
    data: Data,
    comm: Any = None,
    *,
    certificate: Path | None = None,
    weight: str | ArrayLike | None = None,
    group: str | ArrayLike | None = None,
    **settings: Any,
) -> Verified:
    """Check what a model says of J and, with a certificate, that no other w has a J below its bound. **Collective.**

    Parameters
    ----------
    model : Model or path
        The model.
    data : path, DataFrame, or (X, y)
        The rows that it was trained on, in the same order, as for `evaluate`.
    comm : mpi4py communicator, optional
        The ranks that take part; None is this process alone.
    certificate : path, optional
        What `train` has written to the path of its argument `certificate`. Without one, there is no bound.
    weight, group : str or array-like, optional
        As for `evaluate`.
    **settings
        ``zero_based``, ``label`` and ``missing_group``, as for `evaluate`.

    Returns
    -------
    Verified
        `J`, `lower_bound` and `gap`, computed from the rows and the two files alone; `problems`, which are warnings,
        too; and `notes`. The same on every rank. Files that do not belong together raise InputError.
    """
    ranks = ranks_of(comm, locals() | settings)
    with speaking_python():
        with ranks.fail_together():
            reading = _reading("verify", settings, weight, group)
            request = VerifyRequest(model, _rows(data, True, weight, group), certificate, reading)
        verified = verifying.verify(request, ranks)
    warn(ranks, verified.problems)
    return verified


def report(
    model: Model | Path,
    data: Data,
    output: Path = "report.html",
    comm: Any = None,
    *,
    at: str | Sequence[str] = (),
    level: float = LEVEL,
    weight: str | ArrayLike | None = None,
    group: str | ArrayLike | None = None,
    figures: Path | None = None,
    feature_names: Path | Sequence[str] | None = None,
    baseline: Path | None = None,
    **settings: Any,
) -> Report:
    """Write a web page on a model and its measures on labelled rows. **Collective.**

    It does what the command ``distsms report`` does with the options of the same names, and writes the same page.

    Parameters
    ----------
    model : Model or path
        The model.
    data : path, DataFrame, or (X, y)
        The rows, as for `evaluate`.
    output : path
        The HTML file to write; an older report is replaced.
    comm : mpi4py communicator, optional
        The ranks that take part; None is this process alone.
    at : str or sequence of str
        Conditions, as for `evaluate`, whose thresholds are marked on the curves.
    level : float
        The level of the intervals.
    weight, group : str or array-like, optional
        As for `evaluate`.
    figures : path, optional
        A folder that gets each figure as PNG and SVG.
    feature_names : path or sequence of str, optional
        The names of the columns, or a text file with one in each line.
    baseline : path, optional
        A folder of ``distsms baseline``.
    **settings
        As for `evaluate`; ``trace``, the file with the trace of the training, and ``path``, a folder of
        ``distsms path``, if they are not beside the model; and ``card``, a TOML file with what the owner says.

    Returns
    -------
    Report
        Where the page is, its size, and the measures in it. The same on every rank.
    """
    ranks = ranks_of(comm, locals() | settings)
    from distsms.page import report as page  # which loads what paths and baselines need

    with speaking_python():
        with ranks.fail_together():
            places: Any = {name: settings.pop(name, None) for name in ("trace", "path", "card")}
            reading = _reading("report", settings, weight, group)
            request = ReportRequest(
                model,
                _rows(data, True, weight, group),
                _measuring(settings, at, level=level),
                output,
                figures=figures,
                reading=reading,
                feature_names=feature_names,
                baseline=baseline,
                **places,
            )
        written = page.report(request, ranks)
    warn(ranks, written.warnings, written.notes)
    return written


READING = ("ignore_new_features", "zero_based", "label", "missing_group")
"""The options of how rows are read."""
BOOTSTRAP = {"bootstrap": "replicates", "seed": "seed"}
"""The options of the bootstrap, with the fields of `EvaluationOptions` that they are."""


def _reading(function: str, settings: Mapping[str, Any], weight: Any, group: Any) -> InputOptions:
    """Return how files and tables are read; names of columns count, and arrays do not. InputError for other options."""
    names = {*READING, *BOOTSTRAP}
    if other := set(settings) - names:
        raise InputError(f"{function}: there is no option {min(other)!r}{did_you_mean(min(other), names)}")
    options = {name: settings[name] for name in READING if name in settings}
    options |= {name: column for name, column in (("weight", weight), ("group", group)) if isinstance(column, str)}
    return InputOptions(**options)


def _measuring(settings: Mapping[str, Any], at: Any, **more: Any) -> EvaluationOptions:
    """Return what is computed, and how the bootstrap draws."""
    conditions = tuple(map(Condition.parse, at if isinstance(at, list | tuple) else [] if at is None else [at]))
    draws = {field: settings[name] for name, field in BOOTSTRAP.items() if name in settings}
    return EvaluationOptions(at=conditions, **draws, **more)


def _rows(data: Any, labelled: bool, weight: Any = None, group: Any = None) -> Any:
    """Return rows as a request has them. Raises InputError for names of columns of arrays, and the reverse."""
    with_columns = isinstance(data, str | os.PathLike)
    if is_frame(data):  # without labels, it may have arrays
        with_columns = labelled or all(isinstance(each, str | None) for each in (weight, group))
    require_columns(weight, group, of_arrays=not with_columns)
    if with_columns:
        return data
    X, y = from_arrays.pair(data) if labelled else (data, None)
    return Arrays(X, y, weights=weight, groups=group)
