"""What the manual says is so: every command in the README and in the help texts runs, and every option is explained."""

from __future__ import annotations

import contextlib
import gzip
import io
import os
import re
import shutil
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest

from distsms import api, cli
from distsms.data.convert import convert
from distsms.inference import model
from distsms.parallel.communicator import Communicator
from tests.support.files import write_anndata, write_csv
from tests.support.program import TIME_LIMIT, write_svmlight

ROOT = Path(__file__).parents[1]
README = (ROOT / "README.md").read_text(encoding="utf-8")
COMMANDS = [module.NAME for module in cli.COMMANDS]
OPTION = re.compile(r"(?<![\w-])--[a-z][a-z-]*")
NOT_HERE = ("scripts/test", "docker ")
"""Blocks that are not run here: what runs this, and what wants an engine for containers (docker/try goes without)."""

pytestmark = pytest.mark.serial


def blocks(language):
    """(line, text) of each fenced block."""
    for found in re.finditer(rf"^```{language}\n(.*?)^```$", README, re.M | re.S):
        yield README.count("\n", 0, found.start()) + 1, found[1]


def told(command):
    """A command's help."""
    out = io.StringIO()
    with contextlib.redirect_stdout(out), pytest.raises(SystemExit):
        cli.parse([command, "--help"])
    return out.getvalue()


def section(command):
    """What the README says under a command's heading."""
    return re.search(rf"^### `distsms {command}.*?(?=^##)", README, re.M | re.S)[0]


@pytest.mark.parametrize("command", COMMANDS)
def test_every_option_is_explained(command):
    known = set(OPTION.findall(told(command))) - {"--help"}
    assert known - set(OPTION.findall(README)) == set()
    rows = re.findall(r"^\| (`-.*?) \|", section(command), re.M)
    assert set(OPTION.findall(" ".join(rows))) - known == set(), "in the README's table, and not in the program"
    for line in re.findall(rf"(?:`|^)(?:mpirun -n \d+ )?distsms {command} ([^`\n]*)", README, re.M):
        assert set(OPTION.findall(line.partition("#")[0])) - known - {"--help"} == set(), line


def test_help_has_examples():
    for command in COMMANDS:
        assert examples(command), command


def examples(command):
    """The lines of its help that may be typed."""
    return re.findall(r"^  ((?:mpirun -n \d+ )?distsms .*)$", told(command), re.M)


def table(path, n, seed, key=None):
    """CSV or Parquet of people with an income."""
    rng = np.random.default_rng(seed)
    age, job = rng.integers(18, 80, n), rng.choice(["clerk", "cook", "driver"], n)
    rich = np.where(age + 20 * (job == "clerk") + rng.normal(0, 10, n) > 70, ">50K", "<=50K")
    columns = {"age": age.tolist(), "job": job.tolist(), **({key: [f"r{i}" for i in range(n)]} if key else {})}
    if path.suffix == ".parquet":
        pa, pq = pytest.importorskip("pyarrow"), pytest.importorskip("pyarrow.parquet")
        pq.write_table(pa.table(columns), path)
    else:
        columns["income"] = rich.tolist()
        write_csv(path, list(columns), zip(*columns.values(), strict=True))


@pytest.fixture(scope="module")
def prepared(tmp_path_factory):
    """A folder with everything that the manual's commands name."""
    pytest.importorskip("pyarrow")
    folder, alone = tmp_path_factory.mktemp("manual"), Communicator()
    for seed, name in enumerate(("train", "test", "part-0", "part-1", "all")):
        write_svmlight(folder / f"{name}.svm", seed=seed)
    write_svmlight(folder / "new.svm", n=50, p=4)
    for part in folder.glob("part-*.svm"):
        (folder / f"{part.name}.gz").write_bytes(gzip.compress(part.read_bytes()))
    table(folder / "adult.csv", 300, 0, "person")
    table(folder / "adult-test.csv", 100, 1, "person")
    table(folder / "test.csv", 100, 1, "person")
    table(folder / "new.parquet", 50, 2, "customer")
    visits = [[f"u{k % 9}", f"2024-05-{1 + k % 30:02d}", k % 7, k % 2] for k in range(60)]
    write_csv(folder / "visits.csv", ["user", "day", "pages", "bought"], visits)
    X = np.random.default_rng(0).normal(size=(60, 3))
    np.save(folder / "X.npy", X)
    np.save(folder / "y.npy", np.where(X[:, 0] > 0.5, 1, -1))
    cells = {"cell_type": np.where(X[:, 0] > 0.5, "B cell", "T cell"), "_index": np.array([f"c{i}" for i in range(60)])}
    write_anndata(folder / "cells.h5ad", X, ["a", "b", "c"], cells)
    how = {"label": "income", "positive": ">50K", "id": "person"}
    convert([folder / "adult.csv"], folder / "data/train", alone, **how)
    for name in ("test", "new"):
        convert([folder / "adult-test.csv"], folder / "data" / name, alone, like=folder / "data/train", label="income")
    trained = api.train(folder / "data/train", lam=1e-2, solver="lbfgs")
    for name in ("model", "a", "b", "sweep/a", "sweep/b", "scaling/1"):
        (folder / name).parent.mkdir(exist_ok=True)
        model.save(folder / f"{name}.h5", trained)
    (folder / "names.txt").write_text("".join(f"feature {j}\n" for j in range(trained.p)))
    return folder


def typed(lines, folder):
    """Run them in a folder as a user would in bash, with fewer ranks and rows, and a gap that is soon proved."""
    lines = re.sub(r"mpirun -n \d+", "mpirun -n 2", lines)
    lines = re.sub(r"--rows \S+", "--rows 2000", lines)
    lines = re.sub(r"(distsms path .*)", r"\1 --epsilon 1e-2", lines)
    lines = re.sub(r"(distsms baseline \S+)", r"\1 --tree-fits 2", lines)
    folder.mkdir(exist_ok=True)
    for name in ("scripts", ".venv", "setup.cfg"):
        if (ROOT / name).exists() and not (folder / name).exists():
            (folder / name).symlink_to(ROOT / name)
    path = f"{Path(sys.executable).parent}:{os.environ['PATH']}"
    process = subprocess.run(
        ["bash", "-euo", "pipefail", "-c", lines],
        cwd=folder,
        env={**os.environ, "PATH": path},
        capture_output=True,
        text=True,
        timeout=TIME_LIMIT,
    )
    assert process.returncode == 0, f"{lines}\n{process.stdout}\n{process.stderr}"


@pytest.mark.e2e
def test_blocks_of_the_readme(prepared, tmp_path):
    """The demo, then each block of the shell beside what it left; then those of Python."""
    demo, *shell = [text for _, text in blocks("sh") if not text.startswith(NOT_HERE)]
    typed(demo, tmp_path / "begun")
    for number, text in enumerate(shell):
        folder = tmp_path / str(number)
        shutil.copytree(prepared, folder)
        shutil.copytree(tmp_path / "begun" / "demo-output", folder / "demo-output")
        if "distsms shard" in text:
            shutil.rmtree(folder / "data")
        typed(text, folder)
    given = (
        "import numpy as np\nfrom distsms.data.shards.dataset import read_manifest\nrng = np.random.default_rng(0)\n"
        "def fresh():\n    y = np.where(rng.random(200) < 0.3, 1, -1)\n"
        "    X = rng.normal(size=(200, 10)) + (y > 0)[:, None]\n    return {'X': X, 'y': y, 'X_new': X}\n"
    )
    folder = tmp_path / "0"
    for line, text in blocks("python"):
        shutil.rmtree(folder / "data" / "written", ignore_errors=True)
        text = text.replace('write_data("data/train"', 'write_data("data/written"')
        given += f"exec(compile({text!r}, 'README.md, the block at line {line}', 'exec'), fresh())\n"
    typed(f"python - <<'PYTHON'\n{given}PYTHON", folder)


@pytest.mark.e2e
@pytest.mark.slow
@pytest.mark.parametrize("command", COMMANDS)
def test_examples_of_the_help(command, prepared, tmp_path):
    shutil.copytree(prepared, tmp_path / "here")
    for line in examples(command):
        more = " --overwrite" if re.search(r"distsms (shard|synth)", line) else ""
        typed(line + more, tmp_path / "here")
