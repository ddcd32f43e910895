"""The directive `command`: the help of a command of `distsms`, or of scripts.compare, made from its argument parser.

    ```{command} train
    ```

gives the usage, the description, every option by group, and the examples. Options can be referred to as
{option}`distsms train --lambda`. The page has the same text as `distsms train --help`.
"""

from __future__ import annotations

import argparse
import re
from collections.abc import Iterator
from typing import Any, ClassVar

from docutils import nodes
from sphinx.application import Sphinx
from sphinx.util.docutils import SphinxDirective

from distsms import cli
from scripts.compare import command

TITLES = {"positional arguments": "Arguments", "options": "Options"}
FENCE = "````"


class Command(SphinxDirective):
    """The directive; its argument is the name of the command."""

    required_arguments = 1
    has_content = False
    option_spec: ClassVar[dict[str, Any]] = {}

    def run(self) -> list[nodes.Node]:
        """Return the nodes for the page."""
        name = self.arguments[0]
        _, parsers = cli.make_parsers()
        parsers["compare"] = command.make_parser()
        if name not in parsers:
            raise self.error(f"there is no command {name!r}; the commands are {', '.join(parsers)}")
        return self.parse_text_to_nodes("\n".join(markdown(parsers[name])), allow_section_headings=True)


def markdown(parser: argparse.ArgumentParser) -> Iterator[str]:
    """Yield the lines of a command's page in MyST Markdown."""
    prose, literal = [], []
    for block in re.split(r"\n\s*\n", (parser.epilog or "").strip("\n")):
        (literal if re.match(r"(examples?|exit codes):", block) else prose).append(block)
    usage = parser.format_usage().removeprefix("usage: ").strip().split("\n")
    yield from ["```text", *map(str.strip, usage), "```", ""]
    for block in prose:
        yield from [escaped(block), ""]
    yield from [f":::{{program}} {parser.prog}", ":::", ""]
    for group in parser._action_groups:
        shown = [action for action in group._group_actions if action.help != argparse.SUPPRESS]
        shown = [action for action in shown if not isinstance(action, argparse._HelpAction)]
        if shown:
            title = TITLES.get(group.title or "", group.title or "")
            yield from [f":::{{rubric}} {title[:1].upper()}{title[1:]}", ":::", ""]
        for action in shown:
            yield from [f"{FENCE}{{option}} {signature(action)}", "", escaped(help_text(parser, action)), "", FENCE, ""]
    for block in literal:
        title, _, text = block.partition(":")
        lines = [line.removeprefix("  ") for line in text.strip("\n").split("\n")]
        yield from [f":::{{rubric}} {title[:1].upper()}{title[1:]}", ":::", "", "```text", *lines, "```", ""]


def signature(action: argparse.Action) -> str:
    """Return an argument as it is shown in the usage: `--lambda LAM`, `DATA`."""
    value = values(action)
    return ", ".join(f"{name} {value}".strip() for name in action.option_strings) or value


def values(action: argparse.Action) -> str:
    """Return the placeholder for the values of an argument."""
    if action.nargs == 0:
        return ""
    one: Any = action.metavar
    if one is None and action.choices is not None:
        one = "{" + ",".join(map(str, action.choices)) + "}"
    one = one or action.dest.upper()
    return {"+": f"{one} [{one} ...]", "*": f"[{one} ...]", "?": f"[{one}]"}.get(str(action.nargs), one)


def help_text(parser: argparse.ArgumentParser, action: argparse.Action) -> str:
    """Return the help text of an argument, with its default filled in."""
    return parser._get_formatter()._expand_help(action)


def escaped(text: str) -> str:
    """Escape plain text for Markdown. Text between backquotes stays as it is."""
    text = re.sub(r"(?<![\w`-])(--[a-z][a-z-]*|--(?= ))(?![^`\n]*`[^`]*$)", r"`\1`", text)
    parts = re.split(r"(`[^`]*`)", text)
    return "".join(part if part.startswith("`") else re.sub(r"([\\*_<>\[\]$#|])", r"\\\1", part) for part in parts)


def setup(app: Sphinx) -> dict[str, Any]:
    """Register the directive with Sphinx."""
    app.add_directive("command", Command)
    return {"parallel_read_safe": True, "parallel_write_safe": True}
