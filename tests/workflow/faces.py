"""What tests of several faces share: commands in this process, the warnings of a call, and what two runs have alike."""

from __future__ import annotations

import warnings

from distsms import cli
from distsms.base.communicator import Communicator
from distsms.base.errors import ModelWarning

PASSING = {"seconds", "usage", "versions", "command", "written", "host", "trace"}
"""What two runs of one request for a model need not have in common."""


def run(*words):
    """Run a command line as the only rank, and return its exit code."""
    args = cli.parse([*map(str, words)])
    return args.run(args, Communicator())


def words_of(options, **names):
    """Options of a call as words of a command line, some of which have other names there.

    True and False stand for an option without a value, a tuple for a value with commas, a list for several values, and
    a dict for several of KEY:VALUE.
    """
    words = []
    for name, value in options.items():
        words.append(f"--{names.get(name, name).replace('_', '-')}")
        if isinstance(value, dict):
            words += [f"{key}:{each}" for key, each in value.items()]
        elif isinstance(value, list):
            words += map(str, value)
        elif not isinstance(value, bool):
            words.append(",".join(map(str, value)) if isinstance(value, tuple) else str(value))
    return words


def noted(call):
    """Return what a call returns, and its warnings, but for those on columns and on runs that end early."""
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        result = call()
    return result, [str(one.message) for one in caught if one.category is ModelWarning]


def lasting(value, passing=PASSING):
    """Return what two runs of one request have in common, as a file has it."""
    if isinstance(value, dict):
        return {name: lasting(each, passing) for name, each in value.items() if name not in passing}
    return [lasting(each, passing) for each in value] if isinstance(value, list | tuple) else value
