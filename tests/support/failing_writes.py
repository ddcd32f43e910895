"""Runs commands while writes fail, each in a forked process: `failing_writes.c` is the disk whose quota ends.

As a program (with the library preloaded) it reads cases from standard input, one JSON object, and prints what became of
each.
"""

from __future__ import annotations

import ctypes
import errno
import importlib
import json
import os
import shutil
import subprocess
import sys
import tempfile
from dataclasses import asdict, dataclass, field
from pathlib import Path

from tests.support.forked import PRELOADED
from tests.support.program import ROOT

SECONDS = 60
"""The time that a case may take."""


@dataclass
class Case:
    """A command, and what fails: writes below `folder`, after so many bytes."""

    words: list[str]
    folder: str
    after: int
    errno: int = errno.EDQUOT
    calls: str = "write"
    environment: dict[str, str] = field(default_factory=dict)
    emptied: list[str] = field(default_factory=list)  # folders that are made anew before the command

    @property
    def variables(self):
        """The variables of the environment that the library heeds."""
        own = {"FAILING_FOLDER": self.folder, "FAILING_ERRNO": str(self.errno), "FAILING_CALLS": self.calls}
        return self.environment | own | {"FAILING_AFTER": str(self.after)}


@dataclass
class Ended:
    """How a command ended: its code (negative for a signal), the bytes that it wrote, and what it printed."""

    code: int
    written: int
    out: str
    err: str


def library(folder: Path) -> Path | None:
    """Compile the library; None without a compiler."""
    compiler = shutil.which("cc")
    if compiler is None:
        return None
    made = folder / "failing_writes.so"
    source = Path(__file__).with_suffix(".c")
    subprocess.run([compiler, "-shared", "-fPIC", "-O1", "-o", made, source, "-ldl"], check=True)
    return made


def run(cases: list[Case], preloaded: Path, seconds: float = 600) -> list[Ended]:
    """Run all cases, in one process that forks."""
    done = subprocess.run(
        [sys.executable, "-m", __name__],
        input=json.dumps([asdict(case) for case in cases]),
        env={**os.environ, "LD_PRELOAD": str(preloaded), "PYTHONPATH": f"{ROOT}:{os.environ.get('PYTHONPATH', '')}"},
        capture_output=True,
        text=True,
        timeout=seconds,
        check=False,
    )
    assert done.returncode == 0, done.stderr
    return [Ended(**found) for found in json.loads(done.stdout)]


def _run(case: Case) -> Ended:
    for path in map(Path, case.emptied):
        shutil.rmtree(path, ignore_errors=True)
        path.mkdir()
    with tempfile.TemporaryFile("w+") as out, tempfile.TemporaryFile("w+") as err, tempfile.TemporaryFile() as count:
        child = os.fork()
        if not child:
            _command(case, count.fileno(), out.fileno(), err.fileno())
        _, status = os.waitpid(child, 0)
        for file in (out, err, count):
            file.seek(0)
        return Ended(os.waitstatus_to_exitcode(status), int(count.read() or 0), out.read(), err.read())


def _command(case: Case, count: int, *files: int) -> None:
    """What the forked process does: the command, and then what the interpreter does at its end."""
    import atexit
    import signal

    from distsms.__main__ import main

    signal.alarm(SECONDS)
    for number, file in enumerate(files, start=1):
        os.dup2(file, number)
    os.environ.update(case.variables)
    tempfile.tempdir = None
    code = 70
    try:
        code = main(case.words)
    except SystemExit as end:
        code = end.code
    finally:
        program = ctypes.CDLL(None)
        program.failing_writes_written.restype = ctypes.c_longlong
        os.write(count, str(program.failing_writes_written()).encode())
        atexit._run_exitfuncs()
        program.exit(code)


if __name__ == "__main__":
    for module in PRELOADED:
        importlib.import_module(module)
    print(json.dumps([asdict(_run(Case(**case))) for case in json.load(sys.stdin)]))
