"""Write a report on one model, on the root, as a model card (Mitchell et al., FAT* 2019): functions of a `ReportData`,
listed in `CHAPTERS`, that return HTML ("" without data), and append their figures to a list.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from datetime import datetime, timezone
from typing import Any

from distsms.base._version import __version__
from distsms.base.formatting import format_bytes, format_number, format_rows
from distsms.base.measures import SHOWN, Condition, Measure, display_name
from distsms.metrics import row_sample
from distsms.metrics.confidence import LEVEL, METHOD
from distsms.metrics.operating_points import ratio
from distsms.page import html, learned_sections, measure_sections, plots
from distsms.page.html import Html, element
from distsms.page.plots import Drawing
from distsms.workflow import baseline_text, path_result
from distsms.workflow.report import OWNER, ReportData


def compose(data: ReportData) -> tuple[str, list[Drawing]]:
    """Return the page as a string, and the drawings in it."""
    drawings = list[Drawing]()
    chapters = [html.chapter(heading, *(part(data, drawings) for part in parts)) for heading, parts in CHAPTERS.items()]
    name = data.evaluation.path
    head = element("header", element("h1", f"Report on {name}"), element("p", _subtitle(data), class_="soft"))
    of_rows = row_sample.describe_share(data.evaluation.measures["training_rows"])
    warnings = [*filter(None, [of_rows]), *(data.info.get("warnings") or [])]
    notices = [element("p", text, class_="notice", role="alert") for text in warnings]
    first = [head, *notices, measure_sections.headline(data), html.contents(list(CHAPTERS))]
    return html.page(f"{name} - distsms report", *first, *chapters), drawings


def _subtitle(data: ReportData) -> str:
    measured, now = data.evaluation.measures, datetime.now(timezone.utc).strftime("%Y-%m-%d %H:%M UTC")
    by_weight = ""
    if weights := measured.get("weights"):
        by_weight = (
            f", by weight {weights['positive']:,.6g} positive and {weights['negative']:,.6g} negative, as good as"
            f" {weights['effective_positive']:,.6g} and {weights['effective_negative']:,.6g} rows of equal weight"
        )
    return (
        f"measured on {data.rows}: {format_rows(measured['n'], ',')}, {measured['n_pos']:,} positive, "
        f"{measured['n_neg']:,} negative{by_weight}. Made by distsms {__version__}, {now}."
    )


def _training(data: ReportData, drawings: list[Drawing]) -> Html:
    info = data.info
    settings = info.get("settings") or {}
    rows = [
        ["model", "a linear score of each row, <w, x>" + f" + {data.evaluation.model.bias:g}" * bool(info.get("bias"))],
        ["label", _labels(data)],
        ["measure", format_number(info.get("measure"))],
        ["lambda", format_number(info.get("lambda"), "g")],
        *([["search", info["search"]["reason"]]] if info.get("search") else []),
        *([["l1", f"{info['l1']:g}; {info['nonzeros']} coefficients are not 0"]] if info.get("l1") else []),
        ["solver", format_number(settings.get("solver"))],
        ["ended", data.ending],
        ["best J", format_number(info.get("J"), ".6g")],
        ["lower bound", format_number(info.get("lower_bound"), ".6g")],
        ["gap", format_number(info.get("gap"), ".3g")],
        ["J at w = 0", format_number(info.get("J_at_zero"), ".6g")],
        ["evaluations", format_number(info.get("evaluations"))],
        ["seconds", format_number(info.get("seconds"), ".3g")],
        ["ranks", f"{format_number(info.get('ranks'))}, ordering {format_number(info.get('ordering'))}"],
        *(
            [f"{SHOWN.get(name, name)} on the training rows", measure_sections.measure(value)]
            for name, value in (info.get("training") or {}).items()
        ),
        ["written", f"{format_number(info.get('written'))} on {format_number(info.get('host'))}"],
        ["command", format_number(info.get("command"))],
    ]
    table = html.table("The model and its training", [], rows, text=True)
    return html.section("What was trained", table, _owner(data, "Model details"))


def _proof(data: ReportData, drawings: list[Drawing]) -> Html:
    """Return what was proved of the model, and how others can check it."""
    info, certified = data.info, data.info.get("certificate")
    if info.get("lower_bound") is None:
        return Html("")
    J = f"lambda/2 ||w||²{' + l1 ||w||₁' * bool(info.get('l1'))} + R(w)"
    sentences = (
        f"The training minimizes J(w) = {J} on its rows, where R is the convex risk of {info.get('measure')}. No"
        f" linear model has a J below {format_number(info.get('lower_bound'), '.6g')}, so that of this one,"
        f" {format_number(info.get('J'), '.6g')}, is at most {format_number(info.get('gap'), '.3g')} above it."
    )
    check = "Without a certificate this rests on the program's word; distsms train --certificate FILE writes one."
    if certified is not None:
        check = (
            f"From the certificate {certified['file']}, a number for each training row, the bound"
            f" {format_number(certified['bound'], '.6g')} follows by arithmetic: distsms verify derives it, and so does"
            " scripts/verify_certificate.py, which needs NumPy and h5py alone."
        )
    return html.section("What was proved", element("p", sentences), element("p", check))


def _convergence(data: ReportData, drawings: list[Drawing]) -> Html:
    if not data.trace:
        return html.section("Convergence", element("p", data.trace_note))
    figures = [plots.convergence(data.trace, against) for against in ("seconds", "evaluations")]
    meaning = "No w has a J below the lower bound, so further training can lower J by at most the gap."
    return html.section("Convergence", element("p", meaning), plots.beside(drawings, figures))


def _path(data: ReportData, drawings: list[Drawing]) -> str:
    """Return the section on the path: a figure, the choice, and a table of all lambdas; "" without a path."""
    if (result := data.path) is None:
        return ""
    parts = [element("p", f"Warning: {warning.rstrip('.')}.") for warning in result.data_warnings]
    if result.choice:
        drawing = plots.path(result.means, result.points, result.choice, result.select)
        lines = path_result.describe_choice(result).strip().splitlines()
        paragraphs = [element("p", line.strip()) for line in lines]
        paragraphs.append(element("p", "The standard error is that of the mean over the folds.", class_="soft"))
        parts.append(plots.beside(drawings, [drawing], element("div", *paragraphs)))
    header, rows = path_result.points_table(result)
    table = html.table("Each lambda", [name or "remark" for name in header], rows)
    return html.section(f"Path of lambdas, {_describe_folds(result.problem)}", *parts, table)


def _describe_folds(problem: Mapping[str, Any]) -> str:
    return f"{problem['folds']} folds by {problem.get('folds_by', 'rows')}"


def _baseline(data: ReportData, drawings: list[Drawing]) -> str:
    """Return the section on other methods, and by how much distsms is ahead; "" without a baseline."""
    if (result := data.baseline) is None:
        return ""
    measure = result.select
    name, intervals = display_name(measure), {method.method: method.intervals[measure] for method in result.methods}
    differences = {each.method: each.differences[measure] for each in result.methods if measure in each.differences}
    figures = [plots.methods("methods", f"{name} on held-out folds", f"{name} [%]", intervals, False)]
    if differences:
        label = f"{name} of distsms less the other's, points"
        figures.append(plots.methods("differences", "By how much distsms is ahead", label, differences, True))
    header, rows = baseline_text.header(measure), [baseline_text.cells(method, measure) for method in result.methods]
    caption = f"Means over {_describe_folds(result.problem)}; intervals of {100 * LEVEL:g} % are of {METHOD}"
    sentences = (element("p", sentence) for sentence in result.sentences)
    parts = plots.beside(drawings, figures), html.table(caption, header, rows)
    return html.section("Beside other methods", *sentences, *parts)


def _usage(data: ReportData, drawings: list[Drawing]) -> str:
    if not (usage := data.info.get("usage")):  # of the busiest rank, or a list of all ranks'
        return ""
    ranks = usage if isinstance(usage, list) else [usage]
    phases = list(dict.fromkeys(name for rank in ranks for name in rank.get("seconds", {})))
    amounts = [name for name in ("bytes_sent", "bytes_received", "bytes_read", "peak_memory") if name in ranks[0]]
    rows = []
    for k, rank in enumerate(ranks):
        seconds = [format_number(rank.get("seconds", {}).get(name), ".3f") for name in phases]
        sizes = [format_bytes(rank[name]) if name in rank else "-" for name in amounts]
        rows.append([f"rank {k}" if len(ranks) > 1 else "most of any rank", *seconds, *sizes])
    header = ["", *(f"{name} [s]" for name in phases), *(name.replace("_", " ") for name in amounts)]
    return html.section("Seconds, memory and bytes", html.table("What the training took", header, rows))


def _provenance(data: ReportData, drawings: list[Drawing]) -> Html:
    tables = []
    for caption, key in (("Settings", "settings"), ("Versions", "versions")):
        rows = [[name, str(value)] for name, value in (data.info.get(key) or {}).items() if value is not None]
        tables.append(element("div", html.table(caption, [], rows, text=True)))
    return html.details("Settings and versions", html.side_by_side(*tables))


def _owner(data: ReportData, heading: str) -> Html:
    """Return what the owner says under a heading, or a line on what the owner has to say there."""
    if text := data.owner.get(heading):
        return Html("".join(element("p", part.strip()) for part in text.split("\n\n") if part.strip()))
    return element("p", f"The program cannot know: {OWNER[heading]}. The owner has to say so.", class_="owner")


def _labels(data: ReportData) -> str:
    """Return which label is positive, and which column has it."""
    positive, negative = data.evaluation.model.class_names.values()
    table = data.evaluation.model.table
    column = f"column {table.label}; " if table is not None and table.label else ""
    return f"{column}positive: {positive or '1'}; negative: {negative or '-1'}"


def _intended_use(data: ReportData, drawings: list[Drawing]) -> Html:
    """Return what scores, threshold and probabilities of the model are good for, as far as its training says."""
    model = data.evaluation.model
    measure = Measure.parse(data.info.get("measure", "rocarea"))
    size = "A score is no probability, and its size means nothing beside scores of other models."
    if model.curve is not None:
        size = "`distsms predict --probability` makes a probability of it."
    decision = data.info.get("decision") or {}
    if decision.get("threshold") is not None:
        condition = Condition.parse(decision["condition"]).in_words
        use = f"Its threshold is for decisions: {condition}, as held-out folds of the training rows showed."
    elif model.has_decision:
        use = "Its threshold is the one that its measure optimizes on the training rows."
    else:
        use = (
            "It has no threshold for decisions: its own, as the tables below show, calls as many rows positive as are."
        )
    text = (
        f"The model gives each row a score. It was trained for {display_name(measure.name)}: rows of the label"
        f" {model.class_names['+1'] or '1'} are to have the higher scores. {size} {use}"
    )
    return Html(element("p", text) + _owner(data, "Intended use"))


def _factors(data: ReportData, drawings: list[Drawing]) -> Html:
    """Return what the scores depend on, columns with very many values, and groups."""
    model = data.evaluation.model
    inputs = "the letters of a sequence" if model.coded.sequences else f"{model.p_original:,} columns"
    if model.table is not None:
        inputs = f"{len(model.table.columns):,} columns of a table ({model.table.describe()})"
    if model.features is not None:
        inputs += f", of which features are made: {model.features.describe()},"
    texts = [f"The scores depend on {inputs} and nothing else."]
    if model.table is not None and (many := model.table.very_many()):
        texts.append(f"Columns with very many values, which a model may know by heart: {'; '.join(many)}.")
    texts.append("How good the model is for one group of rows, a report on the rows of that group alone says.")
    return Html("".join(element("p", text) for text in texts) + _owner(data, "Factors"))


def _metrics(data: ReportData, drawings: list[Drawing]) -> Html:
    """Return which measures are shown, why, and how sure they are."""
    trained, intervals = data.info.get("measure"), data.evaluation.intervals
    about = (
        "ROCArea (AUC) is the share of the pairs of a positive and a negative row in which the positive one has the"
        " higher score; PRBEP is the precision at the threshold at which as many rows are called positive as there are."
    )
    optimized = f"The training optimized {display_name(str(trained))}." if trained else ""
    sure = (
        f"Intervals of {100 * data.level:g} % ({intervals['rocarea'].method} for ROCArea, {intervals['prbep'].method}"
        f" for PRBEP) are of {intervals['rocarea'].of}, drawn as these were; they do not include what another training"
        " would change."
    )
    return Html("".join(element("p", text) for text in (f"{optimized} {about}".strip(), sure)))


def _evaluation_data(data: ReportData, drawings: list[Drawing]) -> Html:
    """Return which rows the model was measured on, and how they differ from those that trained it."""
    measured = data.evaluation.measures
    share, part = ratio(measured["n_pos"], measured["n"]), measured["training_rows"]
    none = "none was seen among them" if "row_sample" in data.info else "not known"
    seen = row_sample.describe_part(part).lower() if part else none
    rows = [
        ["rows", data.rows],
        ["number", f"{measured['n']:,}: {measured['n_pos']:,} positive, {measured['n_neg']:,} negative"],
        ["share of positive rows", f"{100 * share:.3g} %"],
        ["rows that trained the model", seen],
    ]
    if weights := measured.get("weights"):
        rows.append(["weights", f"{weights['positive']:,.6g} positive, {weights['negative']:,.6g} negative"])
    rows += [["read with a note", note] for note in data.notes]
    return Html(html.table("The rows of this report", [], rows, text=True) + _owner(data, "Evaluation data"))


def _training_data(data: ReportData, drawings: list[Drawing]) -> Html:
    """Return which rows trained the model, and how each column and its missing values were treated."""
    trained_on, model = data.info.get("data") or {}, data.evaluation.model
    coded, table, kind = model.coded, model.table, model.normalization.kind
    stored = "codes" if coded.sequences else "nonzeros and codes" if coded else "nonzeros"
    count = {name: format_number(trained_on.get(name), ",") for name in ("n", "n_pos", "n_neg", "p", "nnz")}
    scaled = {"standard": "by their standard deviations", "maxabs": "by their largest values", "l2": "row by row"}
    rows = [
        ["training data", format_number(trained_on.get("directory"))],
        ["fingerprint", format_number(trained_on.get("fingerprint"))],
        ["rows", f"{count['n']}: {count['n_pos']} positive, {count['n_neg']} negative"],
        ["label", _labels(data)],
        ["columns", f"{count['p']}, {count['nnz']} {stored}"],
        *([["features", (model.features or coded).describe()]] if coded else []),
        ["scaled", f"{scaled[kind]} (--normalize {kind})" if kind in scaled else "not"],
        *([["columns left out", ", ".join(table.dropped)]] if table is not None and table.dropped else []),
    ]
    parts = [html.table("The training rows", [], rows, text=True)]
    if table is not None:
        listed = [[one.name, one.kind, f"{one.n_features:,}", one.describe_missing()] for one in table.columns]
        treated = html.table("Each column", ["column", "kind", "features", "a missing value"], listed, text=True)
        parts.append(html.details(f"How each of the {len(listed):,} columns was treated", treated))
    return Html("".join(parts) + _owner(data, "Training data"))


def _caveats(data: ReportData, drawings: list[Drawing]) -> Html:
    """Return the limits of the model and of what was measured, and what to do about them."""
    info, measured, model = data.info, data.evaluation.measures, data.evaluation.model
    items = list(dict.fromkeys(map(str, [*(info.get("warnings") or []), *data.warnings])))
    if not data.proved:
        items.append(f"The optimum was not reached as asked: {data.ending}. A longer training may give a better model.")
    if not measured["training_rows"]:
        items.append("Rows of another time or place can differ: measure the model again where it is used.")
    if data.baseline is None:
        items.append("No other method was tried; `distsms baseline` does so, and `--baseline` shows it here.")
    items.append(
        "A weight, or the share of a column, says what moves the score, and not what causes the label: columns that go"
        " together share their weight."
    )
    if model.table is not None and any(one.categories is not None and not one.other for one in model.table.columns):
        items.append("A category that the training rows did not have adds nothing to the score, with a warning.")
    listed = element("ul", *(element("li", item) for item in items))
    return Html(listed + _owner(data, "Caveats and recommendations"))


Section = Callable[[ReportData, list[Drawing]], str]
CHAPTERS: dict[str, tuple[Section, ...]] = {
    "Model details": (_training, _proof, _convergence, _usage, _provenance),
    "Intended use": (_intended_use,),
    "Factors": (_factors,),
    "Metrics": (_metrics,),
    "Evaluation data": (_evaluation_data,),
    "Training data": (_training_data,),
    "Quantitative analyses": (
        measure_sections.measures,
        measure_sections.operating_points,
        measure_sections.probabilities,
        measure_sections.scores,
        _path,
        _baseline,
        lambda data, drawings: learned_sections.words(data.evaluation.model, drawings),
        lambda data, drawings: learned_sections.features(data.contributions, drawings),
        lambda data, drawings: learned_sections.weights(data),
    ),
    "Ethical considerations": (lambda data, drawings: _owner(data, "Ethical considerations"),),
    "Caveats and recommendations": (_caveats,),
}
"""The headings of a model card, and the sections of each."""
