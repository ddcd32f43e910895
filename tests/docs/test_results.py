"""The pages of results: every table is made from a file that a program has written; no number is typed by hand."""

from __future__ import annotations

import importlib.util
import re
from types import SimpleNamespace

import pytest

from scripts import records
from tests.support.program import ROOT

pytestmark = pytest.mark.serial
PAGES = sorted((ROOT / "docs" / "results").glob("*.md"))
FILES = sorted((ROOT / "docs" / "results" / "data").glob("*.json"))
DIRECTIVE = re.compile(r"^```\{results\} (?P<name>\S+)\n(?::show: (?P<show>.*)\n)?(?P<command>.*\n)?```$", re.M)
SHOWN = [found for page in PAGES for found in DIRECTIVE.finditer(page.read_text(encoding="utf-8"))]


@pytest.fixture(scope="module")
def results():
    """The module of the directive, which lies where Sphinx looks for extensions."""
    pytest.importorskip("sphinx")
    spec = importlib.util.spec_from_file_location("results", ROOT / "docs" / "_ext" / "results.py")
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


def test_every_file_is_shown_and_every_directive_is_understood():
    names = {"history" if path.stem.startswith("history-") else path.stem for path in FILES}
    assert names <= {found["name"] for found in SHOWN}
    blocks = sum(page.read_text(encoding="utf-8").count("```{results}") for page in PAGES)
    assert len(SHOWN) == blocks > 10


def test_no_number_is_typed_in_a_table():
    number = re.compile(r"\|\s*[-+]?\d+([.,]\d+)?(e[-+]?\d+)?( ?(%|s|x|±.*))?\s*(?=\|)")
    for page in PAGES:
        assert not number.search(page.read_text(encoding="utf-8")), page.name


@pytest.mark.parametrize("page", [page for page in PAGES if page.stem != "index"], ids=lambda page: page.stem)
def test_a_page_begins_with_a_picture_and_a_sentence_of_what_it_shows(page):
    text = page.read_text(encoding="utf-8")
    first = DIRECTIVE.search(text)
    assert first is not None and first["show"].split()[0] in ("picture", "figure")
    assert text[: first.start()].count("\n") == 2, "only the title stands above it"
    assert text[first.end() :].startswith("\n\n**")


def test_every_picture_is_shown(results):
    assert set(results.page_pictures.PICTURES) == {found["name"] for found in SHOWN if found["show"] == "picture"}


def test_tables_are_folded(results):
    page = SimpleNamespace(parse_text_to_nodes=lambda text: [text])
    table = "| a | b |\n|---|---|\n| 1 | 2 |\n| 3 | 4 |"
    opening, inside, closing = results.Results._folded(page, table, "below")
    assert opening.astext().startswith("<details") and "(2 rows)" in opening.astext()
    assert inside.startswith("| a | b |") and inside.endswith("below") and closing.astext() == "</details>"


def by_turns(found):
    """Pictures take long, and the manual, whose building is tested, has all of them."""
    drawn = (found["show"] or "").startswith(("picture", "figure"))
    marks = [pytest.mark.by_turns] if drawn else []
    return pytest.param(found, id=f"{found['name']}-{found['show'] or 'all'}", marks=marks)


@pytest.mark.parametrize("shown", map(by_turns, SHOWN))
def test_a_table_is_made_of_the_records(results, shown):
    """A command that is shown writes the file that it stands beside; the file has what the table needs."""
    name, show = shown["name"], shown["show"] or ""
    commands = {found["command"] for found in SHOWN if found["name"] == name and found["command"]}
    for command in [shown["command"]] if shown["command"] else commands:
        published = command.startswith("scripts/bench ") and f"scripts/bench {name} --publish" in command
        assert published or f"--json docs/results/data/{name}.json" in command
    assert commands and (shown["command"] or show.startswith(("picture", "figure")))
    files = [records.read(path) for path in results.files_of(name)]
    if not results.has(files[0], show):
        return
    found = files[0]
    if show == "picture":
        pytest.importorskip("matplotlib")
        svg = results.page_pictures.PICTURES[name](found["records"])
        assert svg.count("<path") > 10 and "nan" not in svg
        return
    if show.startswith("figure"):
        pytest.importorskip("matplotlib")
        svg = results.pictures.over_versions(files) if name == "history" else results.figure(found, show)
        assert "<svg" in svg
        return
    if name == "history":
        assert all(found["version"] in results.history.table(files).split("\n")[0] for found in files)
        return
    text = results.table(found, show)
    assert text.count("\n") >= 1 and results.provenance(found).startswith("*Measured on 20")
    known = (
        found["program"].removesuffix(".run").replace("scripts.benchmarks", "scripts/bench").replace("bench.", "bench ")
    )
    assert known in shown["command"]
    assert "dirty" in found and not found["dirty"], "measured with uncommitted changes"
