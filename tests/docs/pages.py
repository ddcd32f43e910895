"""The manual's pages, and how a test runs what they show.

A block ```sh or ```python is run. A page is one script: its blocks run one after the other, in one shell, in a folder
that has the files that pages name. Blocks of Python with no shell block between them are one program. A block that is
```console is not run, and NOT_RUN has the reason. A block ```text is what a program prints, or the form of a file.
"""

from __future__ import annotations

import os
import re
import subprocess
import sys
from functools import cache
from itertools import groupby
from pathlib import Path
from typing import NamedTuple

from tests.support import forked

ROOT = Path(__file__).parents[2]
PAGES = [ROOT / "README.md", *sorted((ROOT / "docs").rglob("*.md"))]
TIME_LIMIT = 600  # seconds for a page; far above what any takes
FENCE = re.compile(r"^(?P<fence>`{3,})(?P<language>[^\n`]*)\n(?P<text>.*?)^(?P=fence)[ \t]*$", re.M | re.S)

INSTALLS = "it installs packages, from the network"
CONTAINERS = "it needs an engine for containers; docker/try builds the image without one"
DEVICE = "it needs a graphics processor; tests/device computes the same in CUDA's simulator"
ULFM = "it needs Open MPI 5; test_survive.py runs such trainings where there is one"
KUBERNETES = "it needs a cluster of Kubernetes; tests/test_jobs.py compares the job with the schema"
CLUSTER = "it needs SLURM; the tests of jobs/ run these scripts on one that they start"
NOT_RUN = {
    "cd distsms": INSTALLS,
    "conda create": INSTALLS,
    "pip install": INSTALLS,
    "pip wheel": INSTALLS,
    "python3 -m venv": INSTALLS,
    "python3.11 -m venv": INSTALLS,
    "docker build": CONTAINERS,
    "docker build -t registry": KUBERNETES,
    "export MLFLOW_TRACKING_URI": "it needs MLflow; tests/docs/test_mlflow.py runs the example where it is installed",
    "python -m scripts.experiments.table2": "it draws and trains on sets of up to 480 million nonzeros, for an hour",
    "python -m scripts.experiments.strings repeat": "it makes 20 million rows",
    "python tests/robustness/mutate.py": "it runs the tests of a sub-package for every mutant",
    "python -m tests.robustness.schedules": "it searches for half an hour; test_schedules.py tries some seeds",
    "python -m tests.robustness.fuzz": "it needs Atheris; test_fuzz.py runs it where that is installed",
    "mpirun -n 2 distsms synth sparse try": "it tries an installation of a cluster; other pages run `mpirun`",
    "DISTSMS_PYTHON=/apps": CLUSTER,
    "distsms shard covertype-20k.svm": "it needs data sets that are not part of the project",
    "distsms shard Caravan.csv": "it needs data sets that are not part of the project",
    "cp distsms/jobs": CLUSTER,
    "mpirun --with-ft ulfm": ULFM,
    "mpirun -n 4 distsms train data/train --device": DEVICE,
    "rm -f model.h5": ULFM,
}
"""The first words of each block ```console: why it is not run."""


class Block(NamedTuple):
    line: int
    language: str
    text: str


def name(page: Path) -> str:
    return str(page.relative_to(ROOT))


@cache
def blocks(page: Path) -> list[Block]:
    """Each fenced block of a page, with the number of its first line."""
    text = page.read_text(encoding="utf-8")
    return [
        Block(text.count("\n", 0, found.start()) + 1, found["language"].strip(), found["text"])
        for found in FENCE.finditer(text)
    ]


def in_sections(*sections: str) -> list[Path]:
    """The pages whose names begin so and that have something to run."""
    pages = [page for page in PAGES if name(page).startswith(sections)]
    return [page for page in pages if any(block.language in ("sh", "python") for block in blocks(page))]


def script(page: Path) -> str:
    """What a page shows, as one shell script that says on standard error where it is."""
    runs = [block for block in blocks(page) if block.language in ("sh", "python")]
    lines = []
    for language, group in groupby(runs, key=lambda block: block.language):
        if language == "sh":
            for block in group:
                lines += [f"echo '== {name(page)}, line {block.line}' >&2", quicker(block.text)]
        else:
            program = "".join(
                f"exec(compile({block.text!r}, '{name(page)}, the block at line {block.line}', 'exec'), globals())\n"
                for block in group
            )
            lines.append(f"python - <<'PYTHON_OF_THE_PAGE'\n{program}PYTHON_OF_THE_PAGE")
    return "\n".join(lines)


def makes_data(commands: str) -> bool:
    """Whether they write a data set to data/ by themselves."""
    return re.search(r"distsms (shard|synth) [^\n]*\bdata(/|\b)|write_data\(\"data/", commands) is not None


def quicker(commands: str) -> str:
    """The same commands with fewer ranks, rows and lambdas, a gap soon proved, and trees that are soon searched."""
    commands = re.sub(r"mpirun -n \d+", "mpirun -n 2", commands)
    commands = re.sub(r"--rows \S+", "--rows 2000", commands)
    path = r"[^#\n]*[^#\s\\])"
    commands = re.sub(r"(distsms path (?![^\n]*--lambdas)" + path, r"\1 --lambdas 1e-1:1e-3", commands)
    commands = re.sub(r"(distsms path " + path, r"\1 --epsilon 1e-2", commands)
    return re.sub(r"(distsms baseline \S+)", r"\1 --tree-fits 2", commands)


@cache
def python() -> Path:
    """Return a Python whose `-m distsms` is forked, for scripts, which start the program so."""
    path, program = forked.programs() / "python-of-scripts", forked.programs() / "distsms"
    path.write_text(
        f'#!/bin/sh\nif [ "$1 $2" = "-m distsms" ]; then shift 2; exec {program} "$@"; fi\nexec {sys.executable} "$@"\n'
    )
    path.chmod(0o755)
    return path


def run(commands: str, folder: Path) -> None:
    """Run commands in a folder as a user of a clone would in bash; the first that fails ends them."""
    for there in ("scripts", "tests", "jobs", "docs", ".venv", "setup.cfg"):
        if (ROOT / there).exists() and not (folder / there).exists():
            (folder / there).symlink_to(ROOT / there)
    process = subprocess.run(
        ["bash", "-euo", "pipefail", "-c", commands],
        cwd=folder,
        env={
            **os.environ,
            "PATH": f"{forked.programs()}:{Path(sys.executable).parent}:{os.environ['PATH']}",
            "DISTSMS_PYTHON": str(python()),  # what is installed stays as it is
        },
        capture_output=True,
        text=True,
        timeout=TIME_LIMIT,
    )
    assert process.returncode == 0, f"{commands}\n{process.stdout}\n{process.stderr}"
