"""What a report says of a model, section by section: functions of the material, local, on the root.

A further section is a further function in `SECTIONS`; one that has nothing to say returns an empty string.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from datetime import UTC, datetime
from typing import Any

import numpy as np

from distsms._version import __version__
from distsms.inference.evaluation import ModelEvaluation
from distsms.measures import SHOWN
from distsms.metrics.confidence import Interval
from distsms.metrics.curves import Curve, Histogram
from distsms.optim.result import Status
from distsms.report import html, plots
from distsms.report.html import Html, element
from distsms.report.plots import Drawing
from distsms.report.selection_sections import Beside, OnPath, baseline_section, figure_of, path_section
from distsms.utils.formatting import format_bytes
from distsms.utils.typing import Floats

WEIGHTS = 20
"""So many of the largest weights are shown."""


@dataclass(frozen=True)
class Material:
    """All that a report is made of. trace : columns, or none and then `trace_note` says why."""

    judged: ModelEvaluation
    on: str
    level: float
    curve: Curve
    histogram: Histogram
    trace: dict[str, Floats]
    trace_note: str
    names: Sequence[str] | None  # of the model's columns
    path: OnPath | None = None
    baseline: Beside | None = None

    @property
    def info(self) -> dict[str, Any]:
        """What the model file says."""
        return self.judged.model.info


def compose(material: Material) -> tuple[str, list[Drawing]]:
    """The page, and the drawings in it."""
    drawn: list[Drawing] = []
    sections = [make(material, drawn) for make in SECTIONS]
    name = material.judged.path
    head = element("header", element("h1", f"Report on {name}"), element("p", _subtitle(material), class_="soft"))
    return html.page(f"{name} - distsms report", head, *sections), drawn


def _subtitle(material: Material) -> str:
    found, now = material.judged.measures, datetime.now(UTC).strftime("%Y-%m-%d %H:%M UTC")
    return (
        f"measured on {material.on}: {found['n']:,} rows, {found['n_pos']:,} positive, {found['n_neg']:,} negative. "
        f"Made by distsms {__version__}, {now}."
    )


def _headline(material: Material, drawn: list[Drawing]) -> Html:
    found, sure, info = material.judged.measures, material.judged.intervals, material.info
    gap = f"J {_number(info.get('J'))}, lower bound {_number(info.get('lower_bound'))}"
    return html.tiles(
        [
            ("ROCArea", _measure(found["rocarea"]), in_words(sure["rocarea"], material.level)),
            ("PRBEP", _measure(found["prbep"]), in_words(sure["prbep"], material.level)),
            ("Average precision", _measure(found["average_precision"]), f"chance: {_measure(_base_rate(found))}"),
            ("Proved gap to the optimum", _number(info.get("gap"), ".3g"), gap),
        ]
    )


def _measured(material: Material, drawn: list[Drawing]) -> Html:
    found = material.judged.measures
    shown = {"precision": "precision", "recall": "recall", "f1": "F1", "error_rate": "error rate"}
    shown |= {name: name for name in material.judged.extra_measures}
    parts = []
    if found["n_pos"] and found["n_neg"]:
        these = [
            plots.roc(material.curve, found, in_words(material.judged.intervals["rocarea"], material.level)),
            plots.precision_recall(material.curve, found),
        ]
        drawn += these
        parts.append(html.beside(*map(figure_of, these)))
    else:
        parts.append(element("p", "Only one class is present: there are no curves, and ROCArea is not defined."))
    histogram = plots.scores(material.histogram, found["threshold"])
    drawn.append(histogram)
    measures = [[label, _measure(found[name])] for name, label in shown.items()]
    counts = [
        ["positive rows", f"{found['tp']:,}", f"{found['fn']:,}"],
        ["negative rows", f"{found['fp']:,}", f"{found['tn']:,}"],
    ]
    at_threshold = [
        html.table(f"At the threshold {found['threshold']:.6g}", ["measure", "value"], measures),
        html.table("Rows at this threshold", ["", "called positive", "called negative"], counts),
    ]
    return html.section(
        "On these rows",
        element("p", _sure(material)),
        *parts,
        html.beside(figure_of(histogram), element("div", *at_threshold)),
    )


def _sure(material: Material) -> str:
    sure = material.judged.intervals
    return (
        f"Intervals of {100 * material.level:g} % ({sure['rocarea'].method} for ROCArea, {sure['prbep'].method} for "
        f"PRBEP) are of {sure['rocarea'].of}, drawn as these were, not of what another training would give. Curves are "
        "exact at every point drawn."
    )


def _trained(material: Material, drawn: list[Drawing]) -> Html:
    info = material.info
    settings, data = info.get("settings") or {}, info.get("data") or {}
    rows = [
        ["measure", _text(info.get("measure"))],
        ["lambda", _number(info.get("lambda"), "g")],
        ["solver", _text(settings.get("solver"))],
        ["ended", _ending(info)],
        ["best J", _number(info.get("J"))],
        ["lower bound", _number(info.get("lower_bound"))],
        ["gap", _number(info.get("gap"), ".3g")],
        ["J at w = 0", _number(info.get("J_at_zero"))],
        ["evaluations", _text(info.get("evaluations"))],
        ["seconds", _number(info.get("seconds"), ".3g")],
        ["ranks", f"{_text(info.get('ranks'))}, ordering {_text(info.get('ordering'))}"],
        ["training data", _text(data.get("directory"))],
        [
            "rows",
            _whole(data.get("n")) + f": {_whole(data.get('n_pos'))} positive, {_whole(data.get('n_neg'))} negative",
        ],
        ["columns", f"{_whole(data.get('p'))}, {_whole(data.get('nnz'))} nonzeros"],
        *([name, _measure(one)] for name, one in _on_training(info).items()),
        ["written", _text(info.get("written"))],
    ]
    return html.section("What was trained", html.table("The model and its training", [], rows, text=True))


def _convergence(material: Material, drawn: list[Drawing]) -> Html:
    if not material.trace:
        return html.section("Convergence", element("p", material.trace_note))
    these = [plots.convergence(material.trace, one) for one in ("seconds", "evaluations")]
    drawn += these
    told = "No J can lie below the lower bound, whatever w: the gap is what is left to gain at the most."
    return html.section("Convergence", element("p", told), html.beside(*map(figure_of, these)))


def _path(material: Material, drawn: list[Drawing]) -> str:
    return path_section(material.path, drawn)


def _baseline(material: Material, drawn: list[Drawing]) -> str:
    return baseline_section(material.baseline, drawn)


def _weights(material: Material, drawn: list[Drawing]) -> Html:
    how, info = material.judged.model.normalization, material.info
    w = how.unfold(material.judged.model.w)  # those of normalized columns compare
    largest = np.argsort(-np.abs(w), kind="stable")[:WEIGHTS] if len(w) else np.empty(0, int)
    most = float(np.abs(w[largest]).max(initial=0.0)) or 1.0
    base = 0 if info["zero_based"] else 1
    rows = []
    for column in largest[w[largest] != 0]:
        value = float(w[column])
        bar = element(
            "span",
            class_="bar" if value > 0 else "bar minus",
            style=f"width: {8 * abs(value) / most:.2f}em",
            aria_hidden="true",
        )
        name = material.names[column] if material.names else f"column {column + base}"
        rows.append([name, f"{value:+.4g}", bar])
    counted = "" if material.names else f", columns counted from {base}"
    caption = f"The {len(rows)} largest of {np.count_nonzero(w):,} weights that are not 0{counted}"
    units = {"standard": "standard deviation of a column.", "maxabs": "column, from 0 to its largest size."}
    unit = units.get(how.kind, "unit of a column; sizes compare only where columns have like units.")
    told = f"What a row's score gains for each {unit}"
    return html.section("Largest weights", element("p", told), html.table(caption, ["column", "weight", ""], rows))


def _cost(material: Material, drawn: list[Drawing]) -> str:
    """`usage`: of one rank, or a list of all ranks'."""
    usage = material.info.get("usage")
    if not usage:
        return ""
    ranks = usage if isinstance(usage, list) else [usage]
    phases = list(dict.fromkeys(name for of_rank in ranks for name in of_rank.get("seconds", {})))
    others = [name for name in ("bytes_sent", "bytes_received", "bytes_read", "peak_memory") if name in ranks[0]]
    rows = []
    for k, of_rank in enumerate(ranks):
        spent = [_number(of_rank.get("seconds", {}).get(name), ".3f") for name in phases]
        amounts = [format_bytes(of_rank[name]) if name in of_rank else "-" for name in others]
        rows.append([f"rank {k}" if len(ranks) > 1 else "most of any rank", *spent, *amounts])
    header = ["", *(f"{name} [s]" for name in phases), *(name.replace("_", " ") for name in others)]
    return html.section("Seconds, memory and bytes", html.table("What the training took", header, rows))


def _provenance(material: Material, drawn: list[Drawing]) -> Html:
    info = material.info
    told = {"Settings": info.get("settings"), "Versions": info.get("versions")}
    tables = [
        element(
            "div",
            html.table(name, [], [[key, str(one)] for key, one in (words or {}).items() if one is not None], text=True),
        )
        for name, words in told.items()
    ]
    fingerprint = _text((info.get("data") or {}).get("fingerprint"))
    return html.section(
        "Settings and versions",
        element("p", f"Fingerprint of the training data: {fingerprint}", class_="soft"),
        html.beside(*tables),
    )


SECTIONS: tuple[Callable[[Material, list[Drawing]], str], ...] = (
    _headline,
    _measured,
    _trained,
    _convergence,
    _path,
    _baseline,
    _weights,
    _cost,
    _provenance,
)


def in_words(one: Interval, level: float) -> str:
    """An interval for people."""
    return f"no interval: {one.why}" if one.why else f"{one.low:.4f} to {one.high:.4f} ({100 * level:g} %)"


def _ending(info: Mapping[str, Any]) -> str:
    by_name = {one.name.lower(): one.sentence for one in Status}
    detail = f": {info['detail']}" if info.get("detail") else ""
    return by_name.get(str(info.get("status")), str(info.get("status"))) + detail


def _on_training(info: Mapping[str, Any]) -> dict[str, Any]:
    return {f"{SHOWN.get(name, name)} on them": one for name, one in (info.get("training") or {}).items()}


def _base_rate(found: Mapping[str, Any]) -> float:
    return found["n_pos"] / found["n"] if found["n"] else math.nan


def _text(value: Any) -> str:
    return "-" if value is None else str(value)


def _measure(value: float | None) -> str:
    return "not defined" if value is None or math.isnan(value) else f"{value:.4f}"


def _number(value: float | None, form: str = ".6g") -> str:
    return "-" if value is None else format(value, form)


def _whole(value: int | None) -> str:
    return "-" if value is None else f"{value:,}"
