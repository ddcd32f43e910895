"""Write the parts of a report that make it a model card, in words: what the model is for, which data it has seen, and
where its limits are. What the program cannot know, the owner of the model says, or a line says that the owner has to.

Mitchell et al., Model Cards for Model Reporting, FAT* 2019.
"""

from __future__ import annotations

from distsms.base.formatting import format_number
from distsms.base.measures import Condition, Measure, display_name
from distsms.metrics import row_sample
from distsms.page import html
from distsms.page.html import Html, element
from distsms.page.plots import Drawing
from distsms.workflow.report import OWNER, ReportData


def owner(data: ReportData, heading: str) -> Html:
    """Return what the owner says under a heading, or a line on what the owner has to say there."""
    if text := data.owner.get(heading):
        return Html("".join(element("p", part.strip()) for part in text.split("\n\n") if part.strip()))
    return element("p", f"The program cannot know: {OWNER[heading]}. The owner has to say so.", class_="owner")


def labels(data: ReportData) -> str:
    """Return which label is positive, and which column has it."""
    positive, negative = data.evaluation.model.class_names.values()
    table = data.evaluation.model.table
    column = f"column {table.label}; " if table is not None and table.label else ""
    return f"{column}positive: {positive or '1'}; negative: {negative or '-1'}"


def intended_use(data: ReportData, drawings: list[Drawing]) -> Html:
    """Return what scores, threshold and probabilities of the model are good for, as far as its training says."""
    model = data.evaluation.model
    measure = Measure.parse(data.info.get("measure", "rocarea"))
    sentences = [
        f"The model gives each row a score. It was trained for {display_name(measure.name)}: rows of the label"
        f" {model.class_names['+1'] or '1'} are to have the higher scores."
    ]
    if model.curve is not None:
        sentences.append("`distsms predict --probability` makes a probability of it.")
    else:
        sentences.append("A score is no probability, and its size means nothing beside scores of other models.")
    decision = data.info.get("decision") or {}
    if decision.get("threshold") is not None:
        condition = Condition.parse(decision["condition"]).in_words
        sentences.append(f"Its threshold is for decisions: {condition}, as held-out folds of the training rows showed.")
    elif model.has_decision:
        sentences.append("Its threshold is the one that its measure optimizes on the training rows.")
    else:
        sentences.append(
            "It has no threshold for decisions, only the order of the rows: from its own on, which the tables below"
            " show, as many training rows count as positive as are positive."
        )
    return Html(element("p", " ".join(sentences)) + owner(data, "Intended use"))


def factors(data: ReportData, drawings: list[Drawing]) -> Html:
    """Return what the scores depend on, columns with very many values, and groups."""
    model = data.evaluation.model
    parts = [element("p", f"The scores depend on {_inputs(data)} and nothing else.")]
    if model.table is not None and (many := model.table.very_many()):
        text = (
            f"Columns with very many values: {'; '.join(many)}. Few training rows have each value, so that the model"
            " may know some by heart."
        )
        parts.append(element("p", text))
    text = "How good the model is for one group of rows, a report on the rows of that group alone says."
    return Html("".join([*parts, element("p", text), owner(data, "Factors")]))


def _inputs(data: ReportData) -> str:
    model = data.evaluation.model
    if model.coded.sequences:
        return "the letters of a sequence"
    made = f", of which features are made: {model.features.describe()}," if model.features is not None else ""
    if model.table is None:
        return f"{model.p_original:,} columns{made}"
    return f"{len(model.table.columns):,} columns of a table ({model.table.describe()}){made}"


def metrics(data: ReportData, drawings: list[Drawing]) -> Html:
    """Return which measures are shown, why, and how sure they are."""
    trained, intervals = data.info.get("measure"), data.evaluation.intervals
    about = (
        "ROCArea (AUC) is the share of the pairs of a positive and a negative row in which the positive one has the"
        " higher score; PRBEP is the precision at the threshold at which as many rows are called positive as there are."
        " Both are about the order of the rows alone."
    )
    optimized = f"The training optimized {display_name(str(trained))}." if trained else ""
    sure = (
        f"Intervals of {100 * data.level:g} % ({intervals['rocarea'].method} for ROCArea, {intervals['prbep'].method}"
        f" for PRBEP) are of {intervals['rocarea'].of}, drawn as these were; they do not include what another training"
        " would change."
    )
    return Html("".join(element("p", text) for text in (f"{optimized} {about}".strip(), sure)))


def evaluation_data(data: ReportData, drawings: list[Drawing]) -> Html:
    """Return which rows the model was measured on, and how they differ from those that trained it."""
    measured = data.evaluation.measures
    share = measured["n_pos"] / measured["n"] if measured["n"] else float("nan")
    seen = "not known" if "row_sample" not in data.info else "none was seen among them"
    if measured["training_rows"]:
        seen = row_sample.describe_part(measured["training_rows"]).lower()
    rows = [
        ["rows", data.rows],
        ["number", f"{measured['n']:,}: {measured['n_pos']:,} positive, {measured['n_neg']:,} negative"],
        ["share of positive rows", f"{100 * share:.3g} %"],
        ["rows that trained the model", seen],
    ]
    if weights := measured.get("weights"):
        rows.append(["weights", f"{weights['positive']:,.6g} positive, {weights['negative']:,.6g} negative"])
    rows += [["read with a note", note] for note in data.notes]
    return Html(html.table("The rows of this report", [], rows, text=True) + owner(data, "Evaluation data"))


def training_data(data: ReportData, drawings: list[Drawing]) -> Html:
    """Return which rows trained the model, and how each column and its missing values were treated."""
    trained_on, model = data.info.get("data") or {}, data.evaluation.model
    coded = model.coded
    stored = "codes" if coded.sequences else "nonzeros and codes" if coded else "nonzeros"
    n_pos, n_neg = (format_number(trained_on.get(name), ",") for name in ("n_pos", "n_neg"))
    counts = f"{n_pos} positive, {n_neg} negative"
    scaled = {"standard": "by their standard deviations", "maxabs": "by their largest values", "l2": "row by row"}
    kind = model.normalization.kind
    table = model.table
    rows = [
        ["training data", format_number(trained_on.get("directory"))],
        ["fingerprint", format_number(trained_on.get("fingerprint"))],
        ["rows", f"{format_number(trained_on.get('n'), ',')}: {counts}"],
        ["label", labels(data)],
        ["columns", f"{format_number(trained_on.get('p'), ',')}, {format_number(trained_on.get('nnz'), ',')} {stored}"],
        *([["features", (model.features or coded).describe()]] if coded else []),
        ["scaled", f"{scaled[kind]} (--normalize {kind})" if kind in scaled else "not"],
        *([["columns left out", ", ".join(table.dropped)]] if table is not None and table.dropped else []),
    ]
    parts = [html.table("The training rows", [], rows, text=True)]
    if table is not None:
        listed = [
            [column.name, column.kind, f"{column.n_features:,}", column.describe_missing()] for column in table.columns
        ]
        treated = html.table("Each column", ["column", "kind", "features", "a missing value"], listed, text=True)
        parts.append(html.details(f"How each of the {len(listed):,} columns was treated", treated))
    return Html("".join(parts) + owner(data, "Training data"))


def caveats(data: ReportData, drawings: list[Drawing]) -> Html:
    """Return the limits of the model and of what was measured, and what to do about them."""
    info, measured, model = data.info, data.evaluation.measures, data.evaluation.model
    items = list(dict.fromkeys(map(str, [*(info.get("warnings") or []), *data.warnings])))
    if not data.proved:
        items.append(f"The optimum was not reached as asked: {data.ending}. A longer training may give a better model.")
    if not measured["training_rows"]:
        items.append(
            "The measures are of these rows. Rows of another time or place can differ, and the model with them: measure"
            " it again on labelled rows from where it is used."
        )
    if data.baseline is None:
        items.append(
            "No other method was tried on these data for this report; `distsms baseline` does so, and `--baseline`"
            " shows it here."
        )
    items.append(
        "A weight, or the share of a column, says what moves the score, and not what causes the label: columns that go"
        " together share their weight."
    )
    if model.table is not None and any(one.categories is not None and not one.other for one in model.table.columns):
        items.append("A category that the training rows did not have adds nothing to the score, with a warning.")
    listed = element("ul", *(element("li", item) for item in items))
    return Html(listed + owner(data, "Caveats and recommendations"))
