"""Run the program in new processes with a time limit; a process that does not end in time has failed."""

from __future__ import annotations

import contextlib
import json
import os
import subprocess
import sys
import time
from pathlib import Path

import numpy as np
from sklearn.datasets import dump_svmlight_file

from tests.support import forked

ROOT = Path(__file__).parents[2]
TIME_LIMIT = 120  # seconds; far more than any of these programs needs


def start(*words, ranks=None, program=("-m", "distsms"), env=None):
    """Start `distsms WORDS`, under mpirun if `ranks` is given."""
    launcher = [] if ranks is None else ["mpirun", "-n", str(ranks)]
    return subprocess.Popen(
        [*launcher, sys.executable, *program, *map(str, words)],
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
        env={**os.environ, **(env or {})},
        start_new_session=True,
    )


def finish(process, seconds=TIME_LIMIT):
    """Wait for a started program; return its exit code, standard output and standard error."""
    try:
        out, err = process.communicate(timeout=seconds)
    except subprocess.TimeoutExpired:
        os.killpg(process.pid, 9)
        raise
    return process.returncode, out, err


def run(*words, ranks=None, code=0, **more):
    """Run `distsms WORDS` and return its standard output, or with code=1 its standard error.

    Fails if the exit code is not `code`. Without `ranks` and further options, the process is forked from one that has
    imported the package.
    """
    if ranks is None and not more:
        found, out, err = forked.run([*map(str, words)], TIME_LIMIT)
    else:
        found, out, err = finish(start(*words, ranks=ranks, **more))
    assert found == code, f"exit code {found}\n{out}\n{err}"
    return err if code == 1 else out


def run_module(module, *words, **more):
    """Run a module of this clone, such as "scripts.experiments.attack", and return its standard output."""
    return run(*words, program=("-m", module), env={"PYTHONPATH": str(ROOT)}, **more)


def run_json(*words, **more):
    return json.loads(run(*words, "--json", **more))


KILLER = """
import os, signal, sys
from distsms.optim import objective
from {module} import main

answer, count = objective.Objective._answer, 0

def broken(self, *questions):
    global count
    count += 1
    if count == {at} and int(os.environ["OMPI_COMM_WORLD_RANK"]) == 1:
        os.kill(os.getpid(), signal.SIGKILL)
    return answer(self, *questions)

objective.Objective._answer = broken
sys.exit(main(sys.argv[1:]))
"""


def killed(at, *words, module="distsms.__main__"):
    """Run the `main` of a module on two ranks, and kill the second one in its pass number `at` over the data."""
    job = start(*words, ranks=2, program=("-c", KILLER.format(at=at, module=module)))
    code, out, err = finish(job)
    assert code != 0, out + err
    for _ in range(200):  # the other rank may take a moment to leave, and holds its lock until then
        if not _lives(session=job.pid):
            break
        time.sleep(0.05)


def _lives(session):
    """Whether a session has a process."""
    for pid in filter(str.isdigit, os.listdir("/proc")):
        with contextlib.suppress(ProcessLookupError):
            if os.getsid(int(pid)) == session:
                return True
    return False


def write_svmlight(path, n=300, p=10, seed=0, positive=0.2, shift=1.0):
    """Write n rows as svmlight text, with positives shifted in column 0; return dense X, and y."""
    rng = np.random.default_rng(seed)
    y = np.where(rng.random(n) < positive, 1, -1)
    y[:2] = 1, -1
    X = rng.normal(size=(n, p)).round(3) * (rng.random((n, p)) < 0.6)
    X[:, 0] += shift * (y > 0)
    X[0, p - 1] = 1.5
    dump_svmlight_file(X, y, str(path), zero_based=False)
    return X, y


def children(pid):
    """Return the child processes of a process that still run."""
    with open(f"/proc/{pid}/task/{pid}/children") as file:
        return [int(child) for child in file.read().split()]


def rank_of(pid):
    """Return the rank of a process under Open MPI; -1 if it has none."""
    with open(f"/proc/{pid}/environ", "rb") as file:
        variables = dict(one.split(b"=", 1) for one in file.read().split(b"\0") if b"=" in one)
    return int(variables.get(b"OMPI_COMM_WORLD_RANK", -1))
