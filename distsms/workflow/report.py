"""What a page on a model shows, as a user asks for it; `distsms.page` draws it."""

from __future__ import annotations

import math
import os
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any, NamedTuple

from scipy.special import expit

from distsms.base.communicator import Communicator
from distsms.base.errors import InputError
from distsms.base.files import check_writable, read_toml, read_whole
from distsms.base.measures import Condition, Measure
from distsms.base.typing import Floats
from distsms.base.wording import without_credentials
from distsms.metrics import calibration, curves
from distsms.metrics.curves import Curve, Histogram
from distsms.metrics.head_intervals import rates_at
from distsms.metrics.operating_points import operating_point
from distsms.metrics.ranking import top_k
from distsms.metrics.row_weights import differ, effective, mass_of_classes
from distsms.metrics.tied_scores import tied_scores
from distsms.models import contributions, inputs, model
from distsms.models.contributions import ColumnSums, Contributions
from distsms.models.evaluation import ModelEvaluation
from distsms.models.model import Model
from distsms.optim.result import Status
from distsms.training.recorder import read_trace
from distsms.workflow.baseline_fits import BaselineStore
from distsms.workflow.evaluate import evaluate
from distsms.workflow.method_results import Baseline, MethodResult
from distsms.workflow.path_result import PathResult, PathStore
from distsms.workflow.requests import EvaluateRequest, ReportRequest

POINTS = [
    *(Condition("fpr", rate) for rate in (0.001, 0.01, 0.05)),
    *(Condition("precision", rate) for rate in (0.5, 0.9)),
    *(Condition("top", share) for share in (0.001, 0.01, 0.05, 0.1)),
]
"""The conditions whose thresholds every report shows."""

OWNER = {
    "Model details": "who made the model, who answers for it, and under which licence it is",
    "Intended use": "for which decisions it is, who makes them, and what it must not be used for",
    "Factors": "which columns stand for groups of people, or go with such groups as an address does, and whether the"
    " model errs more often for some of them",
    "Evaluation data": "why these rows stand for those that the model will meet",
    "Training data": "where the rows come from, of which time they are, and which rows were left out before",
    "Ethical considerations": "whether the rows are about people, whom an error of either kind harms, and what is done"
    " about it",
    "Caveats and recommendations": "when the model is measured and trained again, and who stops it if it fails",
}
"""The headings of a model card under which the program cannot know everything, and what the owner has to say there."""


class ShownPoint(NamedTuple):
    """A threshold that a report shows, with the rates at it (`distsms.metrics.head_intervals.rates_at`)."""

    condition: Condition  # what the threshold fulfils
    rates: dict[str, Any]
    marked: bool  # whether the user named the condition, so that the curves show it


class OwnProbabilities(NamedTuple):
    """How good the probabilities of a model are on the rows of the report."""

    bins: Sequence[Mapping[str, float]]  # from `distsms.metrics.calibration.reliability`
    before: Mapping[str, float]  # Brier score and log loss without calibration, and with it
    after: Mapping[str, float]


@dataclass(frozen=True)
class ReportData:
    """Everything that a report shows."""

    evaluation: ModelEvaluation  # of the model, on the rows of the report
    rows: str  # what these rows are called
    level: float  # of the intervals
    curve: Curve
    histogram: Histogram
    trace: dict[str, Floats]  # the columns of the training's trace, or empty
    trace_note: str  # why the trace is empty; "" if it is not
    feature_names: Sequence[str] | None  # (p,), None for columns without names
    points: Sequence[ShownPoint] = ()
    probabilities: OwnProbabilities | None = None  # None if the model has none
    path: PathResult | None = None
    baseline: Baseline | None = None
    contributions: Contributions | str | None = None  # of a model on features, or why there are none
    warnings: Sequence[str] = ()  # what users must know of the measures, and what readers left out; see `Evaluated`
    notes: Sequence[str] = ()
    owner: Mapping[str, str] = field(default_factory=dict)  # what the owner says, by headings of `OWNER`

    @property
    def info(self) -> dict[str, Any]:
        """The information that is stored with the model."""
        return self.evaluation.model.info

    @property
    def proved(self) -> bool:
        """Whether the training ended with its proof, as far as the model says."""
        return self.info.get("status") in (None, Status.PROVED.name.lower())

    @property
    def ending(self) -> str:
        """How the training ended, in words."""
        sentences = {status.name.lower(): status.sentence for status in Status}
        detail = f": {self.info['detail']}" if self.info.get("detail") else ""
        return sentences.get(str(self.info.get("status")), str(self.info.get("status"))) + detail


def report_data(request: ReportRequest, comm: Communicator) -> ReportData | None:
    """Measure the model, and read what else the page shows; None on other ranks than the root. **Collective.**"""
    training: dict[str, Any] = {}
    with comm.fail_together():  # all checks that can be made before the rows are read
        used = [request.model, request.data, request.trace, request.feature_names, request.card]
        inputs.check_distinct(request.output, *(each for each in used if isinstance(each, str | os.PathLike)))
        if comm.is_root:
            check_page(request.output)
            training = _read_training(request)
    sums, asked = ColumnSums(), EvaluateRequest([request.model], request.data, request.measures, request.reading)
    evaluated = evaluate(asked, comm, sums)
    (of_model,) = evaluated.models
    scored = of_model.scored
    if of_model.model.features is not None or of_model.model.table is not None:
        sums.reduce(of_model.model.p, comm)
    # Curves are exact at the thresholds that the page names.
    points = _points(request.measures.at, of_model, evaluated.level)
    prbep_threshold = top_k(scored, mass_of_classes(scored)[0]).threshold
    exact_at = [of_model.measures["threshold"], prbep_threshold, *(point.rates["threshold"] for point in points)]
    curve = curves.curve(scored, [score for score in exact_at if math.isfinite(score)])  # NaN, infinite: there is none
    histogram, probabilities = curves.histogram(scored, curve), _probabilities(of_model)
    if not comm.is_root:
        return None
    return ReportData(
        of_model,
        without_credentials(request.called or evaluated.data),
        evaluated.level,
        curve,
        histogram,
        points=points,
        probabilities=probabilities,
        **training,
        contributions=_contributions(of_model.model, sums),
        warnings=evaluated.warnings,
        notes=evaluated.notes,
    )


def check_page(path: str | os.PathLike[str]) -> None:
    """Raise InputError if a page cannot be written to a path, or would replace something that is no page. Local."""
    check_writable(path)
    if os.path.isfile(path):
        with open(path, "rb") as file:
            if b"distsms report" not in file.read(1000):
                raise InputError(f"{path}: exists and is not a report; name another file, or remove it first")


def _read_training(request: ReportRequest) -> dict[str, Any]:
    """Read the fields of `ReportData` on the training. Raises InputError if something does not fit. On the root."""
    folder = None if isinstance(request.model, Model) else Path(request.model).parent
    loaded = request.model if isinstance(request.model, Model) else model.load(request.model)
    named = request.feature_names
    trace, note = _trace(request.trace, loaded, folder)
    fingerprint = (loaded.info.get("data") or {}).get("fingerprint")
    of_path = request.path
    if of_path is None and folder is not None and loaded.info.get("path") and (folder / "path.json").exists():
        of_path = folder
    return {
        "owner": {} if request.card is None else read_card(request.card),
        "trace": trace,
        "trace_note": note,
        "feature_names": loaded.feature_names if named is None else _names(named, loaded.p),
        "path": None if of_path is None else read_path(Path(of_path), fingerprint),
        "baseline": None if request.baseline is None else read_baseline(Path(request.baseline), fingerprint),
    }


def _trace(named: str | os.PathLike[str] | None, of: Model, folder: Path | None) -> tuple[dict[str, Floats], str]:
    """Return the columns of the training's trace, or no columns and a sentence that says why."""
    if named is not None:
        return read_trace(Path(named)), "The trace has no lines."
    written = of.info.get("trace")
    if not written:
        again = f" --measure {of.info['measure']} --lambda {of.info['lambda']:g}" if of.info.get("path") else ""
        return {}, f"The training wrote no trace; `distsms train{again} --trace FILE` writes one."
    beside = [] if folder is None else [folder / Path(written).name]
    places = [path for path in (Path(written), *beside) if path.is_file()]
    if not places:
        return {}, f"The training wrote its trace to {written}, which is not there; if it was moved, give --trace FILE."
    try:
        trace = read_trace(places[0])
    except InputError as error:
        return {}, f"The trace of the training cannot be shown: {error}"
    J = of.info.get("J")
    if not trace or J is None or abs(trace["best_J"][-1] - J) > 1e-9 * abs(J):
        return {}, f"{places[0]} is not the trace of this model's training: its last J differs from the model's."
    return trace, ""


def _names(names: str | os.PathLike[str] | Sequence[str], p: int) -> Sequence[str]:
    """Return a name for each of the model's p columns; a file has one in each line."""
    if isinstance(names, str | os.PathLike):
        try:
            lines: Sequence[str] = read_whole(names).decode("utf-8", errors="replace").splitlines()
        except OSError as error:
            raise InputError(f"{names}: cannot be read: {error.strerror}") from error
        count, remedy = f"{names}: has {len(lines)} lines", "; write one name in each line, and no header"
    else:
        lines, count, remedy = names, f"{len(names)} names of features were given", ""
    if len(lines) != p:
        raise InputError(f"{count}, but the model has {p} columns{remedy}")
    return list(map(str, lines))


def read_card(path: str | os.PathLike[str]) -> dict[str, str]:
    """Return what a model's owner says by the headings of `OWNER`, from a TOML file such as intended_use = "..."."""
    headings = {heading.lower().replace(" ", "_"): heading for heading in OWNER}
    try:
        content = read_toml(path)
    except OSError as error:
        raise InputError(f"{path}: cannot be read: {error.strerror}") from error
    for name, text in content.items():
        if name not in headings or not isinstance(text, str):
            raise InputError(f"{path}: {name}: takes a text for each of {', '.join(headings)}, and nothing else")
    return {headings[name]: text for name, text in content.items()}


def read_path(folder: Path, fingerprint: str | None) -> PathResult:
    """Read the result of a finished path, which must be of the data with the model's fingerprint."""
    store = PathStore(folder)
    content = store.read("problem", "points")
    problem, warnings = content["problem"], content.get("warnings")
    _require_same_data(folder, problem, fingerprint)
    return PathResult(
        points=store.points(),
        select=content.get("select") or problem["measure"],
        rule=str(content.get("rule", "best")),
        problem=problem,
        folder=folder,
        data_warnings=list(map(str, warnings)) if isinstance(warnings, list) else [],
    )


def read_baseline(folder: Path, fingerprint: str | None) -> Baseline:
    """Read the result of a finished baseline from its folder; parameters and errors are those of `read_path`."""
    store = BaselineStore(folder)
    content = store.read("problem", "methods", "sentences")
    problem, select = content["problem"], str(content.get("select"))
    _require_same_data(folder, problem, fingerprint)
    methods = [MethodResult.from_json(method, store.identity) for method in content["methods"]]
    if not all(select in method.intervals for method in methods):  # a baseline of an earlier version
        select = problem["measure"]
    return Baseline(
        folder=folder,
        problem=problem,
        solver=str(content.get("solver", "")),
        select=select,
        methods=methods,
        sentences=[str(sentence) for sentence in content["sentences"]],
    )


def _require_same_data(folder: Path, problem: Mapping[str, Any], fingerprint: str | None) -> None:
    data = problem.get("data") or {}
    if "measure" not in problem or data.get("fingerprint") != fingerprint:
        named = f"{folder}: was made on other data than the model, {data.get('path')}"
        raise InputError(f"{named}. Name a folder that was made on the model's training data")


def _points(at: Sequence[Condition], of: ModelEvaluation, level: float) -> list[ShownPoint]:
    """Return the thresholds that the report shows, and the rates at them. **Collective.**"""
    scored, comm = of.scored, of.scored.comm
    k = Measure.parse(of.model.info.get("measure", "rocarea")).k
    of_training = [Condition("top", k, False)] if k and not differ(scored.weights, comm) else []
    tied, points = tied_scores(effective(scored)), list[ShownPoint]()
    for each in dict.fromkeys([*at, *POINTS, *of_training]):
        rates = rates_at(operating_point(each, tied, comm).threshold, level, scored)
        points.append(ShownPoint(each, rates, each in at))
    return points


def _probabilities(of: ModelEvaluation) -> OwnProbabilities | None:
    """Return how good the model's probabilities are on these rows; None if it has none. **Collective.**"""
    if "calibration" not in of.model.info:
        return None
    scores = of.scored.scores
    before, after = (replace(of.scored, scores=p) for p in (expit(scores), of.model.probabilities(scores)))
    return OwnProbabilities(calibration.reliability(after), calibration.losses(before), calibration.losses(after))


def _contributions(of: Model, sums: ColumnSums) -> Contributions | str | None:
    """Return what columns and features contribute, or why that cannot be said; None without names of columns. Local."""
    try:
        return None if of.features is None and of.table is None else contributions.of_sums(of, sums)
    except InputError as error:
        return f"Contributions are not shown: {error}."
