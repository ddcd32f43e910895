"""A report is a model card by Mitchell's headings: it says what the program knows, and what the owner has to say."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest

pytest.importorskip("matplotlib")

from distsms.base.errors import InputError
from distsms.models import model
from distsms.page import sections
from distsms.shards.table_schema import Column, Table
from distsms.workflow.report import OWNER, read_card
from tests.page.test_sections import Reader, report_data

pytestmark = [pytest.mark.serial, pytest.mark.usefixtures("undrawn")]
HEADINGS = [
    *("Model details", "Intended use", "Factors", "Metrics", "Evaluation data", "Training data"),
    *("Quantitative analyses", "Ethical considerations", "Caveats and recommendations"),
]


def chapters(data):
    """Return the text of each chapter of a page, by its heading, and the page."""
    text, _ = sections.compose(data)
    page, found, heading = Reader(text), {}, ""
    for word in page.words:
        heading = word if word in HEADINGS else heading
        found[heading] = " ".join([*found.get(heading, "").split(), *word.split()])
    return {heading: found[heading] for heading in HEADINGS}, page


def credit():
    """Return the data of a report on a table with a number that may be missing, and a column of very many values."""
    table = Table(
        (Column("age", missing=True, fill=40.5, centred=True), Column("town", tuple(f"t{k}" for k in range(120)))),
        label="bad",
        dropped=("name",),
    )
    info = {"status": "proved", "label_map": {"+1": "yes", "-1": "no"}, "lower_bound": 0.25, "J": 0.26, "gap": 0.01}
    data = report_data([1, -1, 1, -1], info={**info, "data": {"directory": "credit.csv", "n": 9, "n_pos": 4}})
    judged = replace(data.evaluation, model=model.Model(np.ones(table.p), data.info, table))
    return replace(data, evaluation=judged, feature_names=table.feature_names)


def test_what_is_known_is_said_under_the_headings_of_a_model_card():
    said, page = chapters(credit())
    links = [attributes["href"] for attributes in page.of("a")]
    assert [f"#{attributes.get('id')}" for attributes in page.of("section") if "id" in attributes] == links
    assert len(links) == 9
    assert "column bad; positive: yes; negative: no" in said["Model details"]
    assert "proved: the gap is below the target" in said["Model details"] and "0.01" in said["Model details"]
    assert (
        "It has no threshold for decisions" in said["Intended use"]
        and "its own, as the tables below show" in said["Intended use"]
        and "A score is no probability" in said["Intended use"]
    )
    assert "town: 120 of 122 features" in said["Factors"]
    assert "`" not in said["Caveats and recommendations"]
    assert "no interval" not in said["Metrics"] and "95 %" in said["Metrics"]
    assert "4: 2 positive, 2 negative" in said["Evaluation data"]
    assert "age number 2 counts as 40.5; marked by a feature" in said["Training data"]
    assert (
        "town category 120 none in training" in said["Training data"]
        and "columns left out name" in said["Training data"]
    )
    assert "No other method was tried" in said["Caveats and recommendations"]
    assert "A category that the training rows did not have" in said["Caveats and recommendations"]
    assert "was not reached" not in said["Caveats and recommendations"]


def test_a_run_without_proof_and_other_labels_are_said():
    info = {"status": "limit", "measure": "logistic", "label_map": {"+1": [2, 3], "-1": 1}, "warnings": ["Beware."]}
    said, _ = chapters(report_data([1, -1], info=info))
    assert "positive: 2, 3; negative: 1" in said["Model details"]
    assert "makes a probability of it" in said["Intended use"] and "3 columns" in said["Factors"]
    limits = said["Caveats and recommendations"]
    assert "The optimum was not reached as asked: evaluation limit reached" in limits and "Beware." in limits
    assert "A category" not in limits


def test_the_owner_says_what_the_program_cannot_know(tmp_path):
    data = credit()
    said, page = chapters(data)
    for heading, text in OWNER.items():
        assert f"The program cannot know: {text}. The owner has to say so." in said[heading]
    assert len([one for one in page.of("p") if one.get("class") == "owner"]) == len(OWNER)
    (tmp_path / "card.toml").write_text('intended_use = """\nRanks credits.\n\nNever refuses <one>."""\n')
    said, page = chapters(replace(data, owner=read_card(tmp_path / "card.toml")))
    assert said["Intended use"].endswith("Ranks credits. Never refuses <one>.")
    assert len([one for one in page.of("p") if one.get("class") == "owner"]) == len(OWNER) - 1
    for text, message in (
        ("use = 'x'", "use: takes a text for each of model_details"),
        ("x", "no TOML"),
        (None, "No such"),
    ):
        (tmp_path / "card.toml").unlink() if text is None else (tmp_path / "card.toml").write_text(text)
        with pytest.raises(InputError, match=message):
            read_card(tmp_path / "card.toml")
