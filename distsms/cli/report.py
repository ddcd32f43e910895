"""Write a web page on a model: measures with intervals, curves, convergence, weights."""

from __future__ import annotations

import argparse
from pathlib import Path
from typing import TYPE_CHECKING, Any

from distsms.cli.evaluate import add_intervals, add_reading, reading
from distsms.cli.types import add_threads
from distsms.errors import EXIT_OK, InputError

if TYPE_CHECKING:
    from distsms.inference.model import Model
    from distsms.parallel.communicator import Communicator

NAME = "report"
USAGE = "MODEL --on DATA|FILE [options]"
EPILOG = """\
The report is one HTML file that loads nothing from elsewhere, in light or dark as the reader prefers. All numbers are
exact over all rows of all ranks; curves are thinned for drawing only. It needs matplotlib (pip install
'distsms[plot]').

For a model that `distsms path` chose, the report shows the path. --baseline adds what `distsms baseline` found. The
course of the training is shown from the file that `distsms train --trace` wrote; the model remembers where that is.

examples:
  distsms report model.h5 --on data/test --out report.html
  mpirun -n 8 distsms report model.h5 --on data/test --feature-names names.txt --figures figures
"""


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """What `distsms report` takes."""
    parser.add_argument("model", metavar="MODEL", help="A model written by `distsms train`.")
    parser.add_argument(
        "--on",
        required=True,
        metavar="DATA",
        help="A data set made by `distsms shard`, or a file of a format that it reads.",
    )
    parser.add_argument(
        "--out", default="report.html", metavar="FILE", help="The HTML file to write (default: %(default)s)."
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
    add_intervals(parser)
    add_reading(parser)
    add_threads(parser)


def run(args: argparse.Namespace, comm: Communicator) -> int:
    """Measure on all ranks, write on the root. Collective."""
    from distsms.inference import evaluation, inputs
    from distsms.metrics import curves
    from distsms.metrics.ranking import top_k

    beside: tuple[Any, ...] = ()
    with comm.fail_together():  # everything that can be refused before the rows are read
        inputs.check_distinct(args.out, args.model, args.on, args.trace, args.feature_names)
        if comm.is_root:
            beside = _beside(args)
    asked = evaluation.EvaluationOptions(args.level, args.bootstrap, args.seed)
    rows, (judged,), _ = evaluation.evaluate([args.model], args.on, asked, comm, reading(args))
    found = judged.measures
    head = top_k(judged.scores, rows.labels, found["n_pos"], comm)
    also = [one for one in (found["threshold"], head.threshold) if one == one]
    curve = curves.curve(judged.scores, rows.labels, comm, also)
    histogram = curves.histogram(judged.scores, rows.labels, curve, comm)
    with comm.fail_together():
        if comm.is_root:
            from distsms.report import sections

            material = sections.Material(judged, args.on, args.level, curve, histogram, *beside)
            _write(args, *sections.compose(material))
    return EXIT_OK


def _write(args: argparse.Namespace, text: str, drawn: list[Any]) -> None:
    from distsms.utils.files import atomic_write, require_space

    whole = text.encode("utf-8", "backslashreplace")  # names of files may be no Unicode
    require_space(Path(args.out).absolute().parent, len(whole))
    with atomic_write(args.out) as temporary:
        temporary.write_bytes(whole)
    print(f"{args.out}: {len(whole) / 1024:.0f} KiB")
    if args.figures:
        try:
            files = [path for one in drawn for path in one.save(Path(args.figures))]
        except OSError as error:
            raise InputError(f"{args.figures}: figures cannot be written: {error}") from error
        print(f"{args.figures}: {len(files)} files")


def _beside(args: argparse.Namespace) -> tuple[Any, ...]:
    """The trace, why there is none, the columns' names, path and baseline; refuses what would fail. On the root."""
    from distsms.inference import model

    try:
        from distsms.study import figures  # noqa: F401
    except ImportError as error:
        raise InputError(
            f"a report is drawn with matplotlib, which cannot be loaded: {error}. pip install 'distsms[plot]'"
        ) from error
    model.check_writable(args.out)
    if Path(args.out).is_file() and b"distsms report" not in Path(args.out).read_bytes()[:1000]:
        raise InputError(f"{args.out}: exists and is not a report; name another file, or remove it first")
    judged = model.load(args.model)
    names = judged.feature_names if args.feature_names is None else _names(args.feature_names, judged.p)
    return *_trace(args, judged), names, *_choice(args, judged)


def _choice(args: argparse.Namespace, judged: Model) -> tuple[Any, Any]:
    """The path that a model is on, and what else was tried. Raises InputError where what was asked for does not fit."""
    from distsms.report import selection_sections

    data = (judged.info.get("data") or {}).get("fingerprint")
    places = [Path(args.path)] if args.path else []
    if judged.info.get("path") and (Path(args.model).parent / "path.json").exists():
        places.append(Path(args.model).parent)
    path = selection_sections.read_path(places[0], data) if places else None
    return path, selection_sections.read_baseline(Path(args.baseline), data) if args.baseline else None


def _trace(args: argparse.Namespace, judged: Model) -> tuple[Any, str]:
    """The columns of the trace, or none and why. Raises InputError where one was asked for and cannot be read."""
    from distsms.training.trace import read_trace

    if args.trace is not None:
        return read_trace(Path(args.trace)), "The trace has no lines."
    told = judged.info.get("trace")
    if not told and judged.info.get("path"):
        again = f"`distsms train --measure {judged.info['measure']} --lambda {judged.info['lambda']:g} --trace FILE`"
        return {}, f"`distsms path` keeps no course of its models; {again} shows that of a run alone."
    if not told:
        return {}, "No course was written: `distsms train --trace FILE` does it."
    places = [one for one in (Path(told), Path(args.model).parent / Path(told).name) if one.is_file()]
    if not places:
        return {}, f"The training wrote its course to {told}, which is not there; --trace FILE says where it is."
    try:
        found = read_trace(places[0])
    except InputError as error:
        return {}, f"The course of the training cannot be shown: {error}"
    J = judged.info.get("J")
    if not found or J is None or abs(found["best_J"][-1] - J) > 1e-9 * abs(J):
        return {}, f"{places[0]} is not the course of this model's training: its last J is another."
    return found, ""


def _names(path: str, p: int) -> list[str]:
    """The names in a file, one for each of the model's p columns."""
    try:
        names = Path(path).read_text(encoding="utf-8", errors="replace").splitlines()
    except OSError as error:
        raise InputError(f"{path}: cannot be read: {error.strerror}") from error
    if len(names) != p:
        raise InputError(f"{path}: has {len(names)} lines, the model {p} columns; give one name a line, and no header")
    return names
