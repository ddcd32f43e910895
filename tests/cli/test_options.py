"""The options of all commands, and the exit codes, are those of an earlier version, but for what is listed here."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from distsms import cli
from distsms.base import errors
from distsms.cli import train

pytestmark = pytest.mark.serial
EARLIER = Path(__file__).with_name("options.json")
SINCE = {
    "--separator": {"metavar": "MARK", "default": ""},
    "--missing": {"nargs": "+", "metavar": "MARK"},
    "--not-missing": {"nargs": "+", "metavar": "MARK"},
    "--no-header": {"const": True},
    "--names": {"nargs": "+", "metavar": "NAME"},
    "--missing-group": {"choices": ["own", "drop"], "default": "own"},
}
"""What `distsms shard` and, for files, `distsms train` have gained."""


def options_of(parser):
    """Return the options of a command, with what they take, by all their names; older names stand for others."""
    names = ("nargs", "metavar", "default", "choices", "const", "required")
    options = {}
    for action in parser._actions:
        facts = {name: getattr(action, name) for name in names}
        facts = {name: value for name, value in facts.items() if value not in (None, False, [], "==SUPPRESS==")}
        options[" ".join(action.option_strings) or action.dest] = facts
    older = {
        name: action for name, action in parser._option_string_actions.items() if name not in action.option_strings
    }
    return options | {name: {"stands for": action.option_strings[0]} for name, action in older.items()}


def surface():
    """Return the options of each command, and the exit codes."""
    codes = {name: value for name, value in vars(errors).items() if name.startswith("EXIT_")}
    commands = {name: options_of(parser) for name, parser in cli.make_parsers()[1].items()}
    return json.loads(json.dumps({"exit codes": codes} | commands))


def test_options_and_exit_codes_stay():
    expected = json.loads(EARLIER.read_text())
    del expected["compare"], expected["exit codes"]["EXIT_DISAGREE"]  # compare is a script now
    for command in ("shard", "train"):
        expected[command] |= SINCE
    for command in ("evaluate", "report"):
        expected[command]["--missing-group"] = SINCE["--missing-group"]
    for command in ("train", "path", "baseline"):
        expected[command]["--ordering"]["choices"].append("bins")
        expected[command]["--no-zero-plane"] = {"default": True}  # of the setting zero_plane, which the option clears
    for command in expected.keys() - {"exit codes", "export", "info"}:
        expected[command]["--config"] = {"metavar": "FILE"}
    expected["predict"]["--reasons"] = {"metavar": "K"}
    expected["train"]["--overwrite"] = expected["shard"]["--overwrite"]
    expected["info"] |= {name: {"const": True} for name in ("--config", "--all", "--columns")}
    expected["report"]["--card"] = {"metavar": "FILE"}
    expected["train"] |= {"--search": {"metavar": "TIME"}, "--plain": {}}
    expected["train"]["--device"] = {"choices": ["cpu", "cuda"], "default": "cpu"}
    expected["train"]["--certificate"] = {"metavar": "FILE"}
    expected["synth"]["kind"]["choices"].append("twin")
    expected["synth"] |= {"name": {"metavar": "NAME", "nargs": "?"}, "--scale": {"metavar": "S"}}
    expected["synth"] |= {"--test": {"const": True}}
    # A baseline takes files, too, with the options of shard on reading them, and tries few settings of trees at first.
    reading = cli.make_parsers(["shard"])[1]["shard"]._actions
    names = [" ".join(action.option_strings) for action in reading if action.dest in train.READING]
    expected["baseline"] |= {name: expected["shard"][name] for name in names} | {
        "--thorough": {"const": True},
        "--shards": {"metavar": "FOLDER"},
    }
    expected["baseline"] |= {"data": expected["train"]["data"], "--tree-fits": {"metavar": "N"}}
    here = surface()
    assert here.keys() == expected.keys() | {"verify"}
    for command, options in expected.items():
        assert here[command] == options, command


def test_lists_in_the_help_keep_their_lines():
    """Lines of an epilog that begin with spaces are lists, and each begins a line of the help, too."""
    _, parsers = cli.make_parsers()
    for name, parser in parsers.items():
        lines = [
            line for line in (parser.epilog or "").splitlines() if line.startswith("  ") and "distsms " not in line
        ]
        shown = [line[:30] for line in parser.format_help().splitlines()]
        assert {line[:30] for line in lines} <= set(shown), name
