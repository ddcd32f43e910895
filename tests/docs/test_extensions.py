"""The manual's own extensions of Sphinx, and the modules that the manual names."""

from __future__ import annotations

import re
import sys

import pytest

from distsms import cli
from tests.docs.pages import PAGES, ROOT, name

pytestmark = pytest.mark.serial
MODULE = re.compile(r"`(?:distsms/)?((?:[a-z_]+/)+(?:[a-z_]+\.py)?|[a-z_]+\.py)`")


@pytest.fixture
def extension(monkeypatch):
    """A function that imports one of docs/_ext."""
    pytest.importorskip("sphinx")
    monkeypatch.syspath_prepend(str(ROOT / "docs" / "_ext"))
    yield __import__
    for path in (ROOT / "docs" / "_ext").glob("*.py"):
        sys.modules.pop(path.stem, None)


def test_a_commands_page_has_every_option_with_its_help(extension):
    command_line, (_, parsers) = extension("command_line"), cli.make_parsers()
    for command in cli.COMMANDS:
        page = "\n".join(command_line.markdown(parsers[command]))
        for action in parsers[command]._actions:
            if "--help" not in action.option_strings:
                assert f"{{option}} {command_line.signature(action)}" in page, command
                assert command_line.escaped(command_line.help_text(parsers[command], action)) in page, command
        assert f"distsms {command}" in page.split("Examples\n" if "Examples\n" in page else "Example\n")[1]


def test_text_becomes_markdown(extension):
    escaped = extension("command_line").escaped
    assert escaped("<w, x> with --lambda and a_b of `shard --group`") == (
        r"\<w, x\> with `--lambda` and a\_b of `shard --group`"
    )


def test_the_floors_are_all_of_the_package(extension):
    house = extension("house")
    names = [one for level in house.floors() for one in level]
    folders = {path.parent.name for path in (ROOT / "distsms").glob("*/__init__.py")}
    assert folders <= set(names)
    assert all(house.purpose(one) for one in names)
    assert house.svg(house.floors()).count("<rect") == len(names)


def test_brackets_are_no_higher_than_the_line(extension):
    assert extension("mathml").mathml(r"\langle r, v \rangle").count('stretchy="false"') == 2


def test_modules_that_are_named_exist():
    files = [f"/{path.relative_to(ROOT)}{'/' * path.is_dir()}" for path in (ROOT / "distsms").rglob("*")]
    for page in PAGES:
        if name(page).startswith(("docs/dev", "docs/theory")):
            for module in set(MODULE.findall(page.read_text(encoding="utf-8"))) - {"losses/balanced_error_rate.py"}:
                known = (ROOT / module).exists() or any(file.endswith(f"/{module}") for file in files)
                assert known, (name(page), module)
