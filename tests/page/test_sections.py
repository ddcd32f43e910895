"""A report is one valid, self-contained page that shows what was measured, and escapes all text from elsewhere."""

from __future__ import annotations

import json
import re
from dataclasses import replace
from html.parser import HTMLParser

import numpy as np
import pytest

pytest.importorskip("matplotlib")

from distsms.base.communicator import Communicator
from distsms.base.errors import InputError
from distsms.base.measures import HEAD, WHOLE, Condition
from distsms.base.scored import Scored
from distsms.metrics import confidence, curves
from distsms.models import evaluation, model
from distsms.page import learned_sections, plots, sections
from distsms.page.mpl import as_svg
from distsms.shards.from_arrays import write_data
from distsms.shards.table_schema import Column, Table
from distsms.workflow.choice import Point
from distsms.workflow.method_results import Baseline, MethodResult
from distsms.workflow.path_result import PathResult
from distsms.workflow.report import (
    POINTS,
    OwnProbabilities,
    ReportData,
    ShownPoint,
    _trace,
)
from tests.support import simulated_program
from tests.support.program import run, run_json, write_svmlight

ALONE = Communicator()
NOTHING = evaluation.Interval(np.nan, np.nan, np.nan, np.nan, "DeLong", "too few")
EVIL = "<script>alert(1)</script>\"'&"
VOID = {"meta", "br", "hr", "img", "link", "input"}


class Reader(HTMLParser):
    """Check that elements are closed in order; collect ids, attributes that refer to something, and text."""

    def __init__(self, text):
        super().__init__()
        self.open, self.ids, self.words, self.elements, self.references = [], [], [], [], []
        self.feed(text)
        self.close()
        assert not self.open

    def handle_starttag(self, tag, attributes):
        self.elements.append((tag, dict(attributes)))
        self.ids += [value for key, value in attributes if key == "id"]
        self.references += [value for key, value in attributes if key in ("src", "href", "xlink:href", "action")]
        if tag not in VOID:
            self.open.append(tag)

    def handle_endtag(self, tag):
        assert self.open.pop() == tag

    def handle_startendtag(self, tag, attributes):
        self.handle_starttag(tag, attributes)
        if tag not in VOID:
            self.open.pop()

    def handle_data(self, data):
        self.words.append(data)

    def of(self, tag):
        return [attributes for name, attributes in self.elements if name == tag]


def report_data(labels, w=(1.0, -2.0, 0.0), info=None, trace=None, names=None, path="model.h5"):
    """Return the data of a report on rows with these labels, whose scores rise evenly from -1 to 1."""
    labels = np.array(labels, np.int8)
    info = {
        "measure": "rocarea",
        "threshold": 0.25,
        "label_map": {"+1": 1, "-1": -1},
        "zero_based": False,
        **(info or {}),
    }
    made = model.Model(np.array(w), info)
    scores = np.linspace(-1, 1, len(labels))
    at = [*POINTS, Condition.parse("top=4")]
    options = evaluation.EvaluationOptions(intervals=False, at=tuple(at))
    rows = evaluation.EvaluatedRows(np.arange(len(labels)))
    (judged,), _ = evaluation.evaluate([(path, made, Scored(scores, labels, ALONE))], rows, options)
    judged = replace(judged, intervals=dict.fromkeys(("rocarea", "prbep", *WHOLE, *HEAD), NOTHING))
    curve = curves.curve(Scored(scores, labels, ALONE), [info["threshold"]])
    histogram = curves.histogram(Scored(scores, labels, ALONE), curve)
    points = [ShownPoint(each, judged.measures["at"][str(each)], each == at[-1]) for each in at]
    return ReportData(judged, "rows", 0.95, curve, histogram, trace or {}, "no trace", names, points)


def course(n=5):
    J = 0.3 + 0.5 ** np.arange(1.0, n + 1)
    gap = np.where(np.arange(n), J - 0.25, np.nan)
    return {"evaluation": np.arange(1.0, n + 1), "seconds": np.arange(n) / 7, "best_J": J, "gap": gap}


@pytest.mark.serial
def test_the_page_is_valid_and_fetches_nothing():
    text, drawn = sections.compose(report_data([-1, -1, 1, -1, 1, 1], trace=course()))
    page = Reader(text)
    assert len(page.ids) == len(set(page.ids))
    assert all(one.startswith("#") and one[1:] in page.ids for one in page.references)
    assert all(one in page.ids for one in re.findall(r"url\(#([^)]*)\)", text))
    assert not re.search(r"(url\((?!#)|@import|<script|<link|<iframe)", text)
    assert set(re.findall(r"https?://[^\s\"<]+", text)) <= {
        "http://www.w3.org/2000/svg",
        "http://www.w3.org/1999/xlink",
    }
    assert len(page.of("svg")) == len(drawn) == 8
    for one in page.of("svg"):
        assert one["role"] == "img" and len(one["aria-label"]) > 50 and "width" not in one
    assert len(page.of("h1")) == 1 and page.of("html")[0]["lang"] == "en"
    assert len(page.of("caption")) == len(page.of("table")) > 4
    assert all("scope" in one for one in page.of("th"))
    assert not re.search(r"#000000|#0072b2;|#d55e00;", text.split("</style>", 1)[1].lower())  # all follow the scheme


@pytest.mark.serial
@pytest.mark.usefixtures("undrawn")
def test_operating_points_and_code():
    """Of six rows with the scores -1, -0.6, ..., 1, the model calls two positive, and top=4 four."""
    text, drawn = sections.compose(
        replace(report_data([-1, -1, 1, -1, 1, 1]), trace_note="Give `--trace FILE`, not <x>.")
    )
    page = Reader(text)
    cells = [word.strip() for word in page.words if word.strip()]
    at = cells.index("the model's own")
    assert cells[at : at + 4] == ["the model's own", "0.25", "2 (33.3 %)", "100\u00a0% (no interval)"]
    assert cells[at + 6 : at + 10] == ["2", "top 4 rows (chosen)", "-0.2", "4 (66.7 %)"]
    assert "precision at least 90\u00a0%" in cells and "no score fulfils it" in cells  # top=0.1% of six rows
    assert "<p>Give <code>--trace FILE</code>, not &lt;x&gt;.</p>" in text
    assert {"class": "wide"} in page.of("table")  # its rows are folded on a narrow page, with the columns' names
    assert {"data-label": "lift"} in page.of("td")
    curves = [drawing for drawing in drawn if drawing.name in ("precision_recall", "roc", "roc_head", "gain", "lift")]
    for drawing in curves:
        lines = {line.get_label(): line.get_xydata()[0] for line in drawing.figure.axes[0].lines}
        assert {"threshold", "top=4"} <= set(lines)
        expected = {
            "precision_recall": (1, 3 / 4),
            "roc": (1 / 3, 1),
            "roc_head": (1 / 3, 1),
            "gain": (4 / 6, 1),
            "lift": (4 / 6, 1.5),
        }[drawing.name]
        np.testing.assert_allclose(lines["top=4"], expected)


@pytest.mark.serial
@pytest.mark.usefixtures("undrawn")
def test_a_threshold_and_probabilities_of_held_out_folds():
    rates = {rate: {"value": 0.9, "low": 0.85, "high": 0.95} for rate in ("precision", "recall", "fpr")}
    decision = {"condition": "precision>=0.9", "threshold": 0.25, "folds": 5, "intervals": rates}
    losses = {
        "brier": {"before": 0.4, "after": 0.3, "constant": 0.25},
        "log_loss": {"before": 2, "after": 1, "constant": 1},
    }
    bins = [{"predicted": p, "observed": p / 2, "low": p / 3, "high": p} for p in (0.2, 0.8)]
    calibration = {"method": "sigmoid", "slope": 1.0, "intercept": 0.0, "folds": 5, "before": "naive", "bins": bins}
    calibration |= losses
    own = OwnProbabilities(bins, {"brier": 0.41, "log_loss": 0.7}, {"brier": 0.31, "log_loss": 0.6})
    data = report_data([-1, -1, 1, -1, 1, 1], info={"decision": decision, "calibration": calibration})
    text, drawn = sections.compose(replace(data, probabilities=own))
    words = Reader(text).words
    assert "90\u00a0% (85 to 95). On these rows it is 100\u00a0% (no interval)" in " ".join(words)
    assert "the model's own: precision at least 90\u00a0%" in words
    cells = [word.strip() for word in words if word.strip()]
    at = cells.index("Brier score, before calibration")
    assert cells[at : at + 6] == [cells[at], "0.4000", "0.4100", "Brier score, after calibration", "0.3000", "0.3100"]
    assert cells[at + 6 : at + 9] == ["Brier score, the same for every row", "0.2500", "0.2500"]
    (drawing,) = [drawing for drawing in drawn if drawing.name == "reliability"]
    labels = drawing.figure.axes[0].get_legend_handles_labels()[1]
    assert labels == ["perfect", "these rows", "held-out folds"] and "0.2: 0.1" in drawing.description
    assert "Probabilities" not in Reader(sections.compose(report_data([1, -1]))[0]).words


@pytest.mark.serial
@pytest.mark.parametrize("share", [0.01, 0.5])
def test_probabilities_of_0_and_1_can_be_drawn(share):
    bins = [{"predicted": p, "observed": y, "low": 0.0, "high": 1.0} for p, y in ((0.0, 0.0), (0.01, 1.0), (1.0, 1.0))]
    drawing = plots.reliability({"these rows": bins}, share)
    assert "<svg" in as_svg(drawing.figure)


@pytest.mark.serial
@pytest.mark.usefixtures("undrawn")
def test_a_useless_model_has_a_notice_at_the_top_and_its_gap_is_no_headline():
    labels = [-1, -1, 1, -1, 1, 1]
    text, _ = sections.compose(report_data(labels, info={"vacuous": True, "warnings": [f"Use another. {EVIL}"]}))
    page = Reader(text)
    (notice,) = [attributes for attributes in page.of("p") if attributes.get("role") == "alert"]
    assert notice["class"] == "notice" and f"Use another. {EVIL}" in page.words
    assert page.words.index(f"Use another. {EVIL}") < page.words.index("ROCArea")
    assert "Proved gap to the optimum" not in page.words
    page = Reader(sections.compose(report_data(labels, info={"vacuous": False, "warnings": []}))[0])
    assert "Proved gap to the optimum" in page.words and not [p for p in page.of("p") if "role" in p]


@pytest.mark.serial
@pytest.mark.parametrize("folds", [0, 3])
def test_path_and_baseline(folds, request):
    if not folds:
        request.getfixturevalue("undrawn")

    def value(lam, fold):
        return {"rocarea": 0.9 - 0.1 * abs(np.log10(lam) + 2) + 0.01 * fold, "prbep": None}

    result = {"status": "proved", "J": 0.1, "gap": 0.01, "evaluations": 9, "vacuous": False}
    points = [
        Point(lam, fold, result, 0.0, value(lam, 0), value(lam, fold) if fold else None)
        for lam in (0.1, 0.01, 0.001)
        for fold in range(folds + 1)
    ]
    problem = {"measure": "rocarea", "folds": folds, "data": {"path": EVIL}}
    many = confidence.MeanEstimate(0.9, (1e4, 0.0), (10**4, 10**6))
    sure = {"rocarea": confidence.rocarea_interval(many, 0.95), "prbep": NOTHING}
    less = {"rocarea": confidence.rocarea_difference_interval(many._replace(value=0.02), 0.95), "prbep": NOTHING}
    found = [
        MethodResult(name, [0.1], False, 1.0, "", sure, less if name == "svm" else {}) for name in ("distsms", "svm")
    ]
    path_result = PathResult(points, "rocarea", "best", problem, None)
    baseline_result = Baseline("folder", problem, "lmvm", "rocarea", methods=found, sentences=[EVIL])
    text, drawn = sections.compose(replace(report_data([1, -1, 1, -1]), path=path_result, baseline=baseline_result))
    page = Reader(text)
    assert "<script" not in text and EVIL in page.words
    assert len(page.ids) == len(set(page.ids)) and len(page.of("svg")) == len(drawn)
    assert [one.name for one in drawn if one.name in ("path", "methods", "differences")] == [
        *(["path"] if folds else []),
        "methods",
        "differences",
    ]
    if folds:
        assert "the chosen lambda is 0.01" in next(one.description for one in drawn if one.name == "path")
    assert "svm 2.00 (0.04 to 3.96)" in drawn[-1].description


@pytest.mark.serial
@pytest.mark.usefixtures("undrawn")
def test_the_interval_of_a_path_is_that_of_its_rule():
    """Each fold is judged at the lambda that the rule, and not the best mean, takes by the other folds."""
    values = {1.0: (0.81, 0.83, 0.84, 0.86), 0.1: (0.82, 0.83, 0.85, 0.87)}
    spread = {"squares": [1.0, 1.0], "counts": [50, 50], "squares_of": "rocarea"}
    result = {"status": "proved", "J": 0.1, "gap": 0.01, "evaluations": 9, "vacuous": False}
    points = [
        Point(lam, fold, result, 0.0, {}, {"rocarea": value} | spread)
        for lam, of_folds in values.items()
        for fold, value in enumerate(of_folds, 1)
    ]
    problem = {"measure": "rocarea", "folds": 4, "data": {"path": "d"}}
    found = {}
    for rule in ("best", "one-se"):
        path = PathResult(points, "rocarea", rule, problem, None)
        text, _ = sections.compose(replace(report_data([1, -1, 1, -1]), path=path))
        found[rule] = path.interval.value
        assert f"about {path.interval.value:.6f}: of" in text
    assert found["one-se"] < found["best"]


@pytest.mark.serial
def test_what_others_wrote_is_escaped():
    info = {
        "status": EVIL,
        "detail": EVIL,
        "data": {"directory": EVIL},
        "settings": {EVIL: EVIL},
        "training": {EVIL: 0.5},
    }
    text, _ = sections.compose(report_data([1, -1, 1, -1], info=info, names=[EVIL, "$x$", "z"], path=EVIL))
    assert "<script" not in text and "script>" not in text
    page = Reader(text)
    assert page.words.count(EVIL) >= 4 and f"Report on {EVIL}" in page.words


@pytest.mark.serial
@pytest.mark.parametrize("labels", [[1, 1, 1], [-1, -1], [1, -1], []])
def test_few_rows_and_no_trace(labels):
    text, drawn = sections.compose(report_data(labels))
    Reader(text)
    assert "no trace" in text and "no interval: too few" in text
    assert ("There is no interval for TPR at FPR 0.1 %, TPR at FPR 1 %" in text) == (len(set(labels)) == 2)
    assert ("Only one class" in text) == (len(set(labels)) < 2)
    assert [one.name for one in drawn][-1] == "scores"


@pytest.mark.serial
def test_a_threshold_beyond_all_scores():
    text, drawn = sections.compose(report_data([1, -1, 1, -1], info={"threshold": 99.0}))
    assert "not defined" in Reader(text).words and "which lies outside" in text and "nan" not in text
    assert "lift" in [drawing.name for drawing in drawn]  # on a logarithmic axis, where 0 rows cannot be shown


@pytest.mark.serial
@pytest.mark.usefixtures("undrawn")
def test_largest_weights_by_name_or_number():
    text, _ = sections.compose(report_data([1, -1], w=[0.5, -3.0, 0.0, 1.0]))
    words = Reader(text).words
    assert [one for one in words if one.startswith("column ")][-3:] == ["column 2", "column 4", "column 1"]
    assert {"-3", "+1", "+0.5", "The 3 largest of 3 weights that are not 0, columns counted from 1"} <= set(words)
    named, _ = sections.compose(report_data([1, -1], w=[0.5, -3.0], names=["age", "height"]))
    words = Reader(named).words
    assert words.index("height") < words.index("age")


@pytest.mark.serial
@pytest.mark.usefixtures("undrawn")
def test_usage_is_shown_where_the_model_has_it():
    usage = {"seconds": {"loss": 1.25, "margins": 0.5}, "bytes_sent": 2048, "peak_memory": 3 * 2**20}
    for known, times in (({"usage": usage}, 1), ({"usage": [usage] * 2}, 2), ({}, 0)):
        text, _ = sections.compose(report_data([1, -1], info=known))
        words = Reader(text).words
        shown = {"loss [s]", "1.250", "2 KiB", "3 MiB", "bytes sent", "peak memory"}
        assert shown <= set(words) if times else "Seconds, memory and bytes" not in text
        assert words.count("1.250") == times


@pytest.fixture(scope="module")
def trained(tmp_path_factory):
    folder = tmp_path_factory.mktemp("report")
    write_svmlight(folder / "train.svm", seed=1)
    write_svmlight(folder / "test.svm", n=150, seed=2)
    run("shard", folder / "train.svm", folder / "train")
    for name, lam in (("a", "1e-3"), ("b", "10")):
        words = ["--lambda", lam, "--solver", "lbfgs", "--output", folder / f"{name}.h5", "--quiet"]
        run("train", folder / "train", *words, "--trace", folder / f"{name}.jsonl")
    return folder


@pytest.mark.serial
@pytest.mark.e2e
def test_a_report_from_the_command_line(trained, tmp_path):
    out, names = tmp_path / "<b>.html", tmp_path / "names.txt"
    names.write_text("".join(f"feature number {k}\n" for k in range(10)))
    words = ["report", trained / "a.h5", "--test", trained / "test.svm", "--output", out, "--feature-names", names]
    told = simulated_program.run(2, *words, "--figures", tmp_path / "figures")
    assert "16 files" in told
    kinds = (
        "precision_recall",
        "roc",
        "roc_head",
        "gain",
        "lift",
        "scores",
        "convergence_seconds",
        "convergence_evaluations",
    )
    written = {path.name for path in (tmp_path / "figures").iterdir()}
    assert written == {f"{kind}.{end}" for kind in kinds for end in ("png", "svg")}
    judged = run_json("evaluate", trained / "a.h5", trained / "test.svm")
    page = Reader(out.read_text())
    shown = "\n".join(page.words)
    low, high = (judged["intervals"]["rocarea"][name] for name in ("low", "high"))
    for word in (
        f"{judged['rocarea']:.4f}",
        f"{judged['prbep']:.4f}",
        f"{low:.4f} to {high:.4f} (95 %)",
        "feature number 0",
    ):
        assert word in shown
    assert len(page.of("svg")) == 8
    run(*words)  # a report is replaced, anything else is not
    assert "is not a report" in run(
        "report", trained / "a.h5", "--test", trained / "test.svm", "--output", names, code=1
    )
    assert "in use" in run(
        "report", trained / "a.h5", "--test", trained / "test.svm", "--output", trained / "a.h5", code=1
    )
    names.write_text("one\n")
    assert "has 1 lines, but the model has 10 columns" in run(*words, code=1)


@pytest.mark.serial
def test_the_trace_of_another_run_is_not_shown(tmp_path):
    """Nor is one that is gone or damaged; if --trace names such a file, this is an error."""
    lines = [
        {"evaluation": k, "seconds": 0.1 * k, "best_J": 1 / k, "gap": None if k < 2 else 0.1 / k} for k in (1, 2, 3)
    ]
    trace, elsewhere = tmp_path / "trace.jsonl", tmp_path / "gone" / "trace.jsonl"
    trace.write_text("".join(json.dumps(one) + "\n" for one in lines))

    def told(asked=None, J=1 / 3, place=elsewhere, **more):
        return _trace(asked, model.Model(np.zeros(1), {"J": J, "trace": place and str(place), **more}), tmp_path)

    found, _ = told()  # beside the model, though not where it was written
    assert found["best_J"].tolist() == [1, 1 / 2, 1 / 3] and np.isnan(found["gap"][0])
    assert "is not the trace" in told(J=0.3)[1] and not told(J=0.3)[0]
    assert "train --trace" in told(place=None)[1]
    assert (
        "--measure prbep --lambda 0.001 --trace"
        in told(place=None, path={"folds": 5}, measure="prbep", **{"lambda": 1e-3})[1]
    )
    assert told(asked=str(trace), J=0.3)[0]
    trace.write_text("{")
    assert "cannot be shown" in told()[1]
    with pytest.raises(InputError, match="cannot be read at line 1"):
        told(asked=str(trace))
    trace.unlink()
    assert "which is not there" in told()[1]


@pytest.mark.serial
@pytest.mark.e2e
def test_models_are_compared_on_the_same_rows(trained):
    models = [trained / "a.h5", trained / "b.h5"]
    told = run("evaluate", *models, "--test", trained / "test.svm")
    assert "DeLong, paired" in told and "bootstrap, paired" in told and "p = " in told and confidence.MODEL in told
    words = ("evaluate", *models, "--test", trained / "test.svm")
    alone, found = run_json(*words), simulated_program.run_json(3, *words)
    assert json.dumps(found["pairs"][0]["prbep"]) == json.dumps(alone["pairs"][0]["prbep"])
    for name in ("low", "high", "p"):
        assert found["pairs"][0]["rocarea"][name] == pytest.approx(alone["pairs"][0]["rocarea"][name], rel=1e-9)
    one = simulated_program.run_json(2, "evaluate", models[0], trained / "test.svm")
    assert one["intervals"]["prbep"] == found["models"][0]["intervals"]["prbep"]
    other = run_json("evaluate", models[0], trained / "test.svm", "--seed", 1, "--level", 0.5)
    wide, narrow = (one["intervals"]["prbep"], other["intervals"]["prbep"])
    assert narrow["high"] - narrow["low"] < wide["high"] - wide["low"]
    none = run_json("evaluate", models[0], trained / "test.svm", "--bootstrap", 0)
    assert none["intervals"]["prbep"]["method"] == "binomial" and none["intervals"]["prbep"]["of"] == confidence.MODEL


@pytest.mark.serial
@pytest.mark.e2e
def test_models_that_disagree_on_who_is_positive_are_refused(tmp_path):
    write_data(tmp_path / "data", np.eye(4), np.array([1, -1, 1, -1]))
    (tmp_path / "text.svm").write_text("".join(f"{label} {k + 1}:1\n" for k, label in enumerate([1, -1, 1, -1])))
    for name, meaning in (("a", {"+1": 1.0, "-1": -1.0}), ("b", {"+1": -1.0, "-1": 1.0})):
        info = {"measure": "rocarea", "threshold": 0.0, "label_map": meaning, "zero_based": False}
        model.save(tmp_path / f"{name}.h5", model.Model(np.arange(4.0), info))
    told = run("evaluate", tmp_path / "a.h5", tmp_path / "b.h5", "--test", tmp_path / "text.svm", code=1)
    assert "do not agree on which label is positive" in told
    run("evaluate", tmp_path / "a.h5", code=2)


@pytest.mark.serial
def test_weights_of_numbers_and_of_values_are_apart_and_those_of_one_column_together():
    """By standard deviation (factors 1/2 and 1/100), pay counts 3 and age 2; the factor 1 of `old` says 0 or 1."""
    columns = (
        *(Column(name, fill=1.0) for name in ("age", "pay")),
        Column("old"),
        Column("town", ("A", "B", "C"), missing=True),
        Column("words", kind="hash", bits=1),
    )
    table = Table(columns, label="bad")
    w, scale = np.array([1.0, 0.03, 9.0, 0.5, -0.5, 0.25, 0, 0.1, -0.1]), np.ones(9)
    scale[:2] = 0.5, 0.01
    info = {"normalize": "standard", "measure": "rocarea", "zero_based": True}
    data = report_data([1, -1], info=info)
    judged = replace(data.evaluation, model=model.Model(w, data.info, table, scale))
    data = replace(data, evaluation=judged, feature_names=table.feature_names)
    words = [word.strip() for word in Reader(str(learned_sections.weights(data))).words if word.strip()]
    assert words[words.index("pay") :][:4] == ["pay", "+3", "age", "+2"]
    at = words.index("Values")
    assert words[at + 4 :] == [
        *("old", "9", "1 +9", "town", "1", "A +0.5, C +0.25, missing +0, B -0.5"),
        *("words", "0.2", "hash 0 +0.1, hash 1 -0.1"),
    ]
