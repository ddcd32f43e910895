"""What the manual says is so: options are explained, commands that are shown exist, and links lead somewhere."""

from __future__ import annotations

import contextlib
import io
import re
import shutil
from functools import cache
from pathlib import Path

import pytest

from distsms import cli
from tests.docs import pages
from tests.docs.pages import ROOT

COMMANDS = cli.COMMANDS
OPTION = re.compile(r"(?<![\w-])--[a-z][a-z-]*")
RUN, NOT_RUN, OUTPUT = {"sh", "python"}, "console", {"text", "csv", "json", "toml"}
LINK = re.compile(r"!?\[[^\]]*\]\(([^)\s]+)\)")
COMMAND = re.compile(r"(?:^|\$ |exec |sif |-n \d+ )distsms ([a-z]+)\b([^\n]*)", re.M)

pytestmark = pytest.mark.serial


@cache
def help_of(command: str) -> str:
    out = io.StringIO()
    with contextlib.redirect_stdout(out), pytest.raises(SystemExit):
        cli.parse([command, "--help"])
    return out.getvalue()


def options_of(command: str) -> set[str]:
    return set(OPTION.findall(help_of(command)))


def test_the_page_of_a_command_has_its_whole_help():
    """By the directive {command}; test_extensions.py shows that it prints every option."""
    for command in COMMANDS:
        page = (ROOT / "docs" / "reference" / f"{command}.md").read_text(encoding="utf-8")
        assert f"```{{command}} {command}\n" in page, command


def test_commands_that_are_shown_exist():
    """In blocks, and in the text as `distsms COMMAND`."""
    for page in pages.PAGES:
        shown = [text for _, language, text in pages.blocks(page) if language in RUN | {NOT_RUN}]
        shown += re.findall(r"`([^`]+)`", without_blocks(page))
        for command, words in COMMAND.findall("\n".join(shown)):
            where = f"{pages.name(page)}: distsms {command}{words}"
            assert command in COMMANDS, where
            words = re.split(r"#|\|| -- | \$\(|\(", words)[0]
            assert set(OPTION.findall(words)) <= options_of(command), where


def test_blocks_are_run_or_say_why_not():
    for page in pages.PAGES:
        for line, language, text in pages.blocks(page):
            where = f"{pages.name(page)}, line {line}"
            assert language in RUN | OUTPUT | {NOT_RUN} or language.startswith("{"), f"{where}: {language!r}"
            if language in OUTPUT:
                command = re.search(r"^(\$ )?(mpirun|distsms|python|pip|scripts/\w+) \S", text, re.M)
                assert not command, f"{where}: fence it as sh"
            if language == NOT_RUN:
                assert text.startswith("$ "), f"{where}: commands begin with '$ '"
                assert any(text.startswith(f"$ {words}") for words in pages.NOT_RUN), f"{where}: no reason in NOT_RUN"


def test_reasons_are_of_blocks_that_are_there():
    texts = [text for page in pages.PAGES for _, language, text in pages.blocks(page) if language == NOT_RUN]
    for words in pages.NOT_RUN:
        assert any(text.startswith(f"$ {words}") for text in texts), words


def without_blocks(page: Path) -> str:
    return pages.FENCE.sub("", page.read_text(encoding="utf-8"))


@cache
def anchors(page: Path) -> set[str]:
    """The headings of a page as GitHub and MyST make anchors of them, and the names that MyST is given: `(name)=`."""
    text = without_blocks(page)
    titles = (title.replace("`", "") for title in re.findall(r"^#+ (.*)$", text, re.M))
    headings = {re.sub(r"[^\w\- ]", "", title.strip().lower()).replace(" ", "-") for title in titles}
    return headings | set(re.findall(r"^\((\S+)\)=$", text, re.M))


def test_links_lead_somewhere():
    for page in pages.PAGES:
        for link in LINK.findall(without_blocks(page)):
            if re.match(r"[a-z]+:", link):
                continue
            file, _, anchor = link.partition("#")
            target, where = page.parent / file if file else page, f"{pages.name(page)}: {link}"
            assert target.exists(), where
            assert not anchor or anchor in anchors(target), where


def test_the_readme_is_short():
    text = (ROOT / "README.md").read_bytes()
    assert text.count(b"\n") <= 200 and len(text) <= 12_000


def examples(command: str) -> list[str]:
    """Return the commands in its help that may be typed, each in one line."""
    return re.findall(r"^  ((?:mpirun -n \d+ )?distsms .*)$", re.sub(r" \\\n +", " ", help_of(command)), re.M)


def test_help_has_examples():
    for command in COMMANDS:
        assert examples(command), command


@pytest.mark.e2e
@pytest.mark.slow
@pytest.mark.parametrize("command", COMMANDS)
def test_examples_of_the_help(command, prepared_tables, tmp_path):
    shutil.copytree(prepared_tables, tmp_path / "here")
    for line in examples(command):
        more = " --overwrite" if re.search(r"distsms (shard|synth)", line) else ""
        pages.run(pages.quicker(line + more), tmp_path / "here")
