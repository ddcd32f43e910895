"""Messages know the options in them, and nothing else is taken for one."""

from __future__ import annotations

import ast
import pickle
import re
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

import distsms
from distsms.base import wording
from distsms.base.errors import InputError, speaking_python
from distsms.base.wording import Message, format_value, in_python, marked, option
from tests.support.examples import examples

PACKAGE = Path(distsms.__file__).parent
PLAIN = {"parallel", "cli", "report"}
"""The parts of the package whose messages are for the command line alone."""


@pytest.mark.parametrize(
    ("words", "command", "python"),
    [
        (option("min_count"), "--min-count", "min_count"),
        (option("label", text="COLUMN"), "--label COLUMN", "label=COLUMN"),
        (option("lam", "auto"), "--lambda auto", "lam='auto'"),
        (option("bias", 10.0), "--bias 10", "bias=10"),
        (option("split", (0.8, 0.2)), "--split 0.8,0.2", "split=(0.8, 0.2)"),
        (option("drop", ["a", "b"]), "--drop a b", "drop=['a', 'b']"),
        (option("drop", [""]), "--drop ''", "drop=['']"),
        (option("dates", {"the day": "%d"}), "--date 'the day:%d'", "dates={'the day': '%d'}"),
        (option("hashed", {"a": 16}, text="a"), "--hash a", "hashed={'a': 16}"),
    ],
    ids=range(9),  # the first texts have another key in every process
)
def test_options(words, command, python):
    message = Message(f"give {words}!")
    assert message == f"give {command}!" and in_python(message) == f"give {python}!"


@pytest.mark.serial
@examples(1)
@given(st.lists(st.text() | st.sampled_from(["--group", "a--x", "{option}", "\ufffc"]), min_size=2, max_size=2))
def test_only_options_are_worded(names):
    """Whatever files and columns are called, also through errors, other processes and messages in messages."""
    first, last = names
    message = Message(f"{first}: {option('drop', [last])}{last}")
    assert message == f"{first}: --drop {last or repr('')}{last}"
    wanted = f"{first}: drop={[last]!r}{last}"
    assert in_python(message) == in_python(pickle.loads(pickle.dumps(message))) == wanted
    outer = InputError(f"<{marked(InputError(message).message)}>")
    assert str(outer) == f"<{message}>" and in_python(outer.message) == f"<{wanted}>"
    with pytest.raises(InputError) as raised, speaking_python():
        raise pickle.loads(pickle.dumps(outer))
    assert str(raised.value) == f"<{wanted}>" and raised.value.everywhere == outer.everywhere


def test_each_process_has_its_own_mark():
    """So that a message of another process is understood by its parts, and not by marks that a name could have."""
    code = "import pickle, sys; from distsms.base.wording import *; "
    code += "sys.stdout.buffer.write(pickle.dumps(Message(f\"a{option('bias', 1)}\")))"
    found = subprocess.run([sys.executable, "-c", code], capture_output=True, check=True).stdout
    assert wording._KEY.encode() not in found
    assert in_python(pickle.loads(found)) == "abias=1"


def test_no_message_has_an_option_in_plain_words():
    """Outside of what is for the command line alone, errors name options by `option`."""
    found = []
    for path in sorted(PACKAGE.rglob("*.py")):
        text = path.read_text()
        if path.relative_to(PACKAGE).parts[0] in PLAIN or "InputError(" not in text:
            continue
        for node in ast.walk(ast.parse(text)):
            if isinstance(node, ast.Call) and getattr(node.func, "id", "") == "InputError":
                texts = [part.value for part in ast.walk(node) if isinstance(part, ast.Constant)]
                words = [
                    word
                    for text in texts
                    if isinstance(text, str)
                    for word in re.findall(r"(?<!\w)--[a-z][\w-]*", text)
                ]
                found += [(path.relative_to(PACKAGE).as_posix(), word) for word in words]
    allowed = {"--survive", "--with-ft", "--long", "--ultra", "--mpi", "--gpus-per-task", "--gpus", "--nv"}
    of_commands = ("ingest/synthetic/", "workflow/info.py", "workflow/competitors.py", "workflow/baseline", "optim/")
    assert [pair for pair in found if pair[1] not in allowed and not pair[0].startswith(of_commands)] == []


class Written:
    """A value that is written as NumPy 2 writes it, whichever NumPy is installed."""

    def __init__(self, text: str) -> None:
        self.text = text

    def __repr__(self) -> str:
        return self.text


@pytest.mark.parametrize(
    ("value", "expected"),
    [
        (np.float64(1.0), "1.0"),
        ((np.float32(0.5), [np.int64(3)]), "(0.5, [3])"),
        (np.True_, "True"),
        (np.str_("yes"), "'yes'"),
        (Written("np.float64(1.0)"), "1.0"),
        (Written("{'lam': [np.float64(-1e-05), np.int64(3)], 'b': np.True_}"), "{'lam': [-1e-05, 3], 'b': True}"),
        (Written("np.str_('yes')"), "'yes'"),
        (Written("array([1., 2.])"), "array([1., 2.])"),
        ("text", "'text'"),
        (None, "None"),
    ],
)
def test_numbers_of_numpy_are_plain(value, expected):
    assert format_value(value) == expected
