"""The command `distsms report`."""

from __future__ import annotations

import argparse
import math
from pathlib import Path
from typing import TYPE_CHECKING, Any

from distsms.base.errors import EXIT_OK, InputError
from distsms.base.measures import CONDITIONS, Condition, Measure
from distsms.cli.evaluate import add_intervals, add_reading, reading
from distsms.cli.types import add_old_names, add_threads, condition

if TYPE_CHECKING:
    from distsms.models.contributions import ColumnSums, Contributions
    from distsms.models.evaluation import EvaluatedRows, ModelEvaluation
    from distsms.models.model import Model
    from distsms.parallel.communicator import Communicator
    from distsms.report.data import OwnProbabilities, ShownPoint

USAGE = "MODEL --test DATA|FILE [options]"
EPILOG = """\
The report is one HTML file that loads nothing from elsewhere, in light or dark as the reader prefers. All numbers are
exact over all rows of all ranks; only the drawn curves leave out points. It needs matplotlib (pip install
'distsms[plot]').

If `distsms path` chose the model, the report also shows the results of all lambdas. --baseline adds the results of
`distsms baseline`. If the model was trained with `distsms train --trace FILE`, the report shows the course of the
training; the model contains the name of that file.

examples:
  distsms report model.h5 --test data/test --output report.html
  mpirun -n 8 distsms report model.h5 --test data/test --feature-names names.txt --figures figures
  distsms report model.h5 --test data/test --at "precision>=0.9" --at top=1%
"""


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Add the arguments of `distsms report`."""
    parser.add_argument("model", metavar="MODEL", help="A model written by `distsms train`.")
    parser.add_argument(
        "--test",
        required=True,
        metavar="DATA",
        help="A data set made by `distsms shard`, or a file of a format that it reads.",
    )
    parser.add_argument(
        "--output", default="report.html", metavar="FILE", help="The HTML file to write (default: %(default)s)."
    )
    parser.add_argument("--figures", metavar="FOLDER", help="Also write each figure as PNG and SVG into this folder.")
    parser.add_argument(
        "--feature-names",
        metavar="FILE",
        help="A text file with the names of the columns, one in each line (default: the names of the table).",
    )
    parser.add_argument(
        "--trace",
        metavar="FILE",
        help="The trace of the training (default: where the model says that it was written, or beside the model).",
    )
    parser.add_argument(
        "--path", metavar="FOLDER", help="A folder of `distsms path` (default: the folder of the model, if it is one)."
    )
    parser.add_argument("--baseline", metavar="FOLDER", help="A folder of `distsms baseline`.")
    parser.add_argument(
        "--at",
        metavar="CONDITION",
        type=condition,
        action="append",
        default=[],
        help=(
            "Find the threshold for a condition on these rows, and mark it on the curves: "
            f"{CONDITIONS}. May be repeated."
        ).replace("%", "%%"),
    )
    add_intervals(parser)
    add_reading(parser)
    add_threads(parser)
    add_old_names(parser, on="test", out="output")
    parser.set_defaults(shown={})


def run(args: argparse.Namespace, comm: Communicator) -> int:
    """Evaluate the model on all ranks and write the report on the root. **Collective.**"""
    from distsms.metrics import curves
    from distsms.metrics.ranking import top_k
    from distsms.metrics.row_weights import mass_of_classes
    from distsms.models import contributions, evaluation, inputs

    more: tuple[Any, ...] = ()
    with comm.fail_together():  # all checks that can be made before the rows are read
        inputs.check_distinct(args.output, args.model, args.test, args.trace, args.feature_names)
        if comm.is_root:
            more = _check_and_read(args)
    options = evaluation.EvaluationOptions(args.level, args.bootstrap, args.seed, at=tuple(args.at))
    sums = contributions.ColumnSums()
    rows, (evaluated,), _ = evaluation.evaluate([args.model], args.test, options, comm, reading(args), sums)
    if evaluated.model.features is not None:
        sums.reduce(evaluated.model.p, comm)
    threshold = evaluated.measures["threshold"]
    weights = rows.weights
    of_pos = mass_of_classes(rows.labels, weights, comm)[0]
    prbep_threshold = top_k(evaluated.scores, rows.labels, of_pos, comm, weights).threshold
    points = _points(args, evaluated, rows, comm)
    exact_at = [threshold, prbep_threshold, *(point.found["threshold"] for point in points)]
    exact_at = [score for score in exact_at if math.isfinite(score)]  # NaN or infinite where there is none
    curve = curves.curve(evaluated.scores, rows.labels, comm, exact_at, weights)
    histogram = curves.histogram(evaluated.scores, rows.labels, curve, comm, weights=weights)
    probabilities = _probabilities(evaluated, rows, comm)
    with comm.fail_together():
        if comm.is_root:
            from distsms.report import sections

            trace, note, names, *selection = more
            found = _contributions(evaluated.model, sums)
            about = trace, note, names, points, probabilities, *selection, found
            rows_name = args.shown.get(args.test, args.test)
            data = sections.ReportData(evaluated, rows_name, args.level, curve, histogram, *about)
            _write(args, *sections.compose(data))
    return EXIT_OK


def _contributions(model: Model, sums: ColumnSums) -> Contributions | str | None:
    """Return what the features of a model contribute, or why that cannot be said; None if it has none. Local."""
    from distsms.models.contributions import of_sums

    try:
        return None if model.features is None else of_sums(model, sums)
    except InputError as error:
        return f"Contributions are not shown: {error}."


def _points(
    args: argparse.Namespace, evaluated: ModelEvaluation, rows: EvaluatedRows, comm: Communicator
) -> list[ShownPoint]:
    """Return the thresholds that the report shows, and the rates at them. Collective."""
    from distsms.metrics import threshold_rates
    from distsms.metrics.row_weights import differ, effective
    from distsms.metrics.tied_scores import tied_scores
    from distsms.report.data import POINTS, ShownPoint

    k = Measure.parse(evaluated.model.info.get("measure", "rocarea")).k
    own = [Condition("top", k, False)] if k and not differ(rows.weights, comm) else []
    wanted = list(dict.fromkeys([*args.at, *POINTS, *own]))
    of_rows = args.level, evaluated.scores, rows.labels, comm, rows.weights
    tied = tied_scores(evaluated.scores, rows.labels, effective(rows.weights, comm), comm)
    found = threshold_rates.rates_of_conditions(wanted, tied, *of_rows)
    return [ShownPoint(each, found[str(each)], each in args.at) for each in wanted]


def _probabilities(evaluated: ModelEvaluation, rows: EvaluatedRows, comm: Communicator) -> OwnProbabilities | None:
    """Return how good the model's probabilities are on these rows; None if it has none. Collective."""
    if "calibration" not in evaluated.model.info:
        return None
    from scipy.special import expit

    from distsms.metrics import calibration
    from distsms.report.data import OwnProbabilities

    of_rows, predicted = (rows.labels, comm, rows.weights), evaluated.model.probabilities(evaluated.scores)
    before, after = (calibration.losses(p, *of_rows) for p in (expit(evaluated.scores), predicted))
    return OwnProbabilities(calibration.reliability(predicted, *of_rows), before, after)


def _write(args: argparse.Namespace, text: str, drawings: list[Any]) -> None:
    from distsms.base.files import atomic_write, require_space
    from distsms.base.output_file import naming_failures

    page = text.encode("utf-8", "backslashreplace")  # file names need not be valid Unicode
    require_space(Path(args.output).absolute().parent, len(page))
    with atomic_write(args.output) as file:
        file.write(page)
    print(f"{args.output}: {len(page) / 1024:.0f} KiB")
    if args.figures:
        with naming_failures(args.figures):
            files = [path for drawing in drawings for path in drawing.save(Path(args.figures))]
        print(f"{args.figures}: {len(files)} files")


def _check_and_read(args: argparse.Namespace) -> tuple[Any, ...]:
    """Check what can be checked early, and read what else the report shows. On the root.

    Returns the fields `trace`, `trace_note`, `feature_names`, `path` and `baseline` of `ReportData`.
    """
    from distsms.models import model

    try:
        from distsms.report import mpl  # noqa: F401
    except ImportError as error:
        raise InputError(
            f"the figures of a report need matplotlib, which cannot be imported: {error}. Install it with: "
            "pip install 'distsms[plot]'"
        ) from error
    model.check_writable(args.output)
    if Path(args.output).is_file() and b"distsms report" not in Path(args.output).read_bytes()[:1000]:
        raise InputError(f"{args.output}: exists and is not a report; name another file, or remove it first")
    loaded = model.load(args.model)
    names = loaded.feature_names if args.feature_names is None else _read_names(args.feature_names, loaded.p)
    return *_trace(args, loaded), names, *_selection(args, loaded)


def _selection(args: argparse.Namespace, model: Model) -> tuple[Any, Any]:
    """Read the results of `distsms path` and `distsms baseline` for a model; each is None if there are none.

    Raises InputError where a folder that was asked for does not fit the model.
    """
    from distsms.report import selection_sections

    fingerprint = (model.info.get("data") or {}).get("fingerprint")
    places = [Path(args.path)] if args.path else []
    if model.info.get("path") and (Path(args.model).parent / "path.json").exists():
        places.append(Path(args.model).parent)
    path = selection_sections.read_path(places[0], fingerprint) if places else None
    return path, selection_sections.read_baseline(Path(args.baseline), fingerprint) if args.baseline else None


def _trace(args: argparse.Namespace, model: Model) -> tuple[Any, str]:
    """Return the columns of the training's trace, or no columns and a sentence that says why.

    Raises InputError where --trace names a file that cannot be read.
    """
    from distsms.training.trace import read_trace

    if args.trace is not None:
        return read_trace(Path(args.trace)), "The trace has no lines."
    written = model.info.get("trace")
    if not written and model.info.get("path"):
        command = f"`distsms train --measure {model.info['measure']} --lambda {model.info['lambda']:g} --trace FILE`"
        return {}, f"`distsms path` keeps no trace of its models. To get one, train this model alone: {command}."
    if not written:
        return {}, "The training wrote no trace; `distsms train --trace FILE` writes one."
    places = [path for path in (Path(written), Path(args.model).parent / Path(written).name) if path.is_file()]
    if not places:
        return (
            {},
            f"The training wrote its trace to {written}, which is not there; if it was moved, give --trace FILE.",
        )
    try:
        trace = read_trace(places[0])
    except InputError as error:
        return {}, f"The trace of the training cannot be shown: {error}"
    J = model.info.get("J")
    if not trace or J is None or abs(trace["best_J"][-1] - J) > 1e-9 * abs(J):
        return {}, f"{places[0]} is not the trace of this model's training: its last J differs from the model's."
    return trace, ""


def _read_names(path: str, p: int) -> list[str]:
    """Read a file of names, one for each of the model's p columns."""
    from distsms.base.files import read_whole

    try:
        names = read_whole(path).decode("utf-8", errors="replace").splitlines()
    except OSError as error:
        raise InputError(f"{path}: cannot be read: {error.strerror}") from error
    if len(names) != p:
        raise InputError(
            f"{path}: has {len(names)} lines, but the model has {p} columns; write one name in each line, and no header"
        )
    return names
