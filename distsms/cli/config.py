"""`--config FILE`: the options of a command from a TOML file, and the file that repeats the run of a model.

The file has a line for each option, without its dashes, and one for the files, by their name in argparse, such as
`lambda = 1e-4`, `bias = true` and `data = ["data/train"]`.
"""

from __future__ import annotations

import argparse
import json
from collections.abc import Mapping, Sequence
from itertools import pairwise
from typing import Any

from distsms.base.formatting import did_you_mean


def read(argv: Sequence[str]) -> tuple[str, dict[str, Any]]:
    """Return the file that a command line names, and what it says; "" and nothing if none. Raises ValueError."""
    paths = [word.partition("=")[2] for word in argv if word.startswith("--config=")]
    paths += [file for word, file in pairwise(argv) if word == "--config" and not file.startswith("-")]
    if not paths:
        return "", {}
    if len(paths) > 1:
        raise ValueError("--config is given twice; put all options into one file")
    from distsms.base.errors import InputError
    from distsms.base.files import read_toml

    path = paths[0]
    try:
        return path, read_toml(path)
    except OSError as error:
        raise ValueError(f"--config {path}: {error.strerror}") from error
    except InputError as error:
        raise ValueError(f"--config {error}") from error


def apply(path: str, values: Mapping[str, Any], parser: argparse.ArgumentParser, argv: Sequence[str]) -> dict[str, Any]:
    """Let values of a file take the place of defaults, unless the command line sets them, or what excludes them, and
    return those that count. May raise ValueError."""
    counted = dict[str, Any]()
    said = {word.partition("=")[0] for word in argv if word.startswith("-")}
    known = [action for action in parser._actions if action.dest not in ("config", "help")]
    named = {_name(action): action for action in sorted(known, key=lambda action: not action.option_strings)}
    for name, value in values.items():
        action = named.get(name)
        if isinstance(value, dict) or (isinstance(value, list) and any(isinstance(one, dict | list) for one in value)):
            raise ValueError(f"--config {path}: {name}: takes a text, a number, true or false, or a list of these")
        if action is None:
            raise ValueError(f"--config {path}: no option {name!r}{did_you_mean(name, named)}")
        groups = [group._group_actions for group in parser._mutually_exclusive_groups if action in group._group_actions]
        alike = [one for one in known if _name(one) == name or any(one in group for group in groups)]
        if said & {option for one in alike for option in one.option_strings}:
            continue
        counted[name] = value
        if twice := [_name(one) for one in alike if _name(one) != name and values.get(_name(one), False) is not False]:
            raise ValueError(f"--config {path}: {name} and {twice[0]} exclude each other")
        if value is False and action.nargs == "?":  # the option is not given
            continue
        try:
            parser.set_defaults(**{action.dest: _converted(parser, action, value)})
        except (argparse.ArgumentError, ValueError) as error:
            raise ValueError(f"--config {path}: {name}: {getattr(error, 'message', error)}") from error
        action.required = False
        if not action.option_strings:  # files: the command line may name others
            action.nargs = "*" if action.nargs in ("+", "*") else "?"
    return counted


def given(parser: argparse.ArgumentParser, words: Sequence[str]) -> dict[str, Any]:
    """Return what the words of a command say, by option, as a TOML file can say it. The parser is changed."""
    typed = {action.dest for action in parser._actions if action.type is not None}
    parser._defaults.clear()
    for action in parser._actions:
        action.type, action.choices, action.default = None, None, None
    namespace = vars(parser.parse_known_intermixed_args(list(words))[0])
    values = {}
    for dest, value in namespace.items():
        if value is not None and value != [] and dest != "config":
            actions = [action for action in parser._actions if action.dest == dest]
            action = next((action for action in actions if action.const is value), actions[0])
            flag = action.nargs == 0 and not isinstance(action, argparse.BooleanOptionalAction)
            number = dest in typed and isinstance(value, str)
            values[_name(action)] = True if flag else _number(value) if number else value
    return values


def as_toml(values: Mapping[str, Any]) -> str:
    """Return values as the lines of a TOML file. JSON's strings, numbers, lists and booleans are TOML's, too."""
    lines = (f"{name} = {json.dumps(value, ensure_ascii=False)}" for name, value in values.items())
    return "\n".join(lines).replace("\x7f", "\\u007f")


def _name(action: argparse.Action) -> str:
    """Return the name of an option without its dashes, or that of files."""
    long = [option[2:] for option in action.option_strings if option.startswith("--")]
    return long[0] if long else action.dest


def _converted(parser: argparse.ArgumentParser, action: argparse.Action, value: Any) -> Any:
    """Return a value of a file as argparse would have stored it."""
    if action.nargs == 0:
        if not isinstance(value, bool):
            raise ValueError("takes true or false")
        if isinstance(action, argparse.BooleanOptionalAction):
            return value
        return action.const if value else action.default
    if value is True and action.nargs == "?":
        return action.const
    values = [_text(one) for one in value] if isinstance(value, list) else [_text(value)]
    if action.nargs is None and isinstance(action.default, list):  # an option that may be repeated
        return [parser._get_values(action, [one]) for one in values]
    if action.nargs is None and len(values) != 1:
        raise ValueError("takes one value")
    if not values:
        raise ValueError("names nothing")
    return parser._get_values(action, values)


def _text(value: Any) -> str:
    """Return a value of a file as it would be written in a command line."""
    return str(int(value)) if isinstance(value, float) and value.is_integer() else str(value)


def _number(text: str) -> Any:
    """Return the number that a text says, or the text."""
    try:
        return json.loads(text, parse_constant=str)
    except ValueError:
        return text
