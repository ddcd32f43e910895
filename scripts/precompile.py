"""Compile what usual commands need, so that nobody waits for it: in the image of a container, and after the set-up.

    . scripts/environment
    python -m scripts.precompile

The commands run on small drawn rows. What they compile is written to `distsms/compiled` of this clone, where everybody
who runs the program finds it, also where nobody can write to it. It is machine code for the processor of this machine.
"""

from __future__ import annotations

import os
import re
import shutil
import subprocess
import sys
import tempfile
from pathlib import Path

import numpy as np

ROOT = Path(__file__).resolve().parents[1]
FIRST = {
    "plain": "train table.csv --label y --plain",
    "table": "train table.csv --label y",
    "svmlight": "train rows.svm",
    "shards": "train rows",
    "fit": "fit",
    "evaluate": "evaluate rows.h5 rows.svm",
}
"""Commands that users begin with; `fit` stands for `SMSClassifier().fit`, with an array."""
MORE = (
    "train table.csv --label y --weight w --no-report",
    "train quoted.csv --label y --no-report",
    "train rows --measure prbep",
    "train rows.svm --normalize l2",
    "train ones.svm",
    "evaluate rows.h5 rows.svm",
)
"""Others, with the loops that many rows need."""
AT_ONCE = """
import runpy
from distsms.matrix import local
local.SMALL = -1
runpy.run_module("distsms", run_name="__main__", alter_sys=True)
"""
FIT = """
import numpy, distsms
rows = numpy.load("rows.npz")
distsms.SMSClassifier().fit(rows["X"], rows["y"])
"""


def main() -> None:
    with tempfile.TemporaryDirectory() as folder:
        os.environ["NUMBA_CACHE_DIR"] = folder
        make_data(Path(folder))
        for words in FIRST.values():
            run(command(words), Path(folder))
        for words in MORE:
            run([sys.executable, "-c", AT_ONCE, *words.split()], Path(folder))
        shutil.copytree(Path(folder, "distsms"), ROOT / "distsms" / "compiled", dirs_exist_ok=True)


def make_data(folder: Path, rows: int = 2000) -> None:
    """Write drawn rows as CSV, as an array, as svmlight text with and without values, and as shards, with models."""
    rng = np.random.default_rng(0)
    y = rng.random(rows) < 0.2
    numbers = (rng.normal(size=(rows, 3)) + y[:, None]).round(3)
    np.savez(folder / "rows.npz", X=numbers, y=y)
    (folder / "fit.py").write_text(FIT)
    with (folder / "table.csv").open("w") as file:
        print("y,a,b,c,kind,place,w", file=file)
        for i, (a, b, c) in enumerate(numbers.tolist()):
            print(int(y[i]), a, b, c, f"kind{i % 5}", f"place{i % 40}", 1 + i % 3, sep=",", file=file)
    quoted = re.sub("kind[0-9]", r'"\g<0>"', (folder / "table.csv").read_text())
    (folder / "quoted.csv").write_text(quoted)
    with (folder / "rows.svm").open("w") as file, (folder / "ones.svm").open("w") as ones:
        for positive in y:
            columns = np.unique(rng.integers(1, 300, 12))
            print(int(positive), *(f"{j}:{rng.random() + (positive and j % 3):.3f}" for j in columns), file=file)
            print(int(positive), *(f"{j}:1" for j in columns), file=ones)
    for words in (
        "shard rows.svm rows",
        "train rows --lambda 1e-2 --output rows.h5",
        "train table.csv --label y --drop w --lambda 1e-2 --no-report --output table.h5",
    ):
        run(command(words), folder)


def command(words: str) -> list[str]:
    """Return the command of an entry of `FIRST`."""
    return [sys.executable, *(["fit.py"] if words == "fit" else ["-m", "distsms", *words.split()])]


def run(words: list[str], folder: Path, **variables: str) -> None:
    """Run a command in a folder, with these variables of the environment; end this program if it fails."""
    environment = {**os.environ, "PYTHONPATH": str(ROOT), **variables}
    done = subprocess.run(words, cwd=folder, env=environment, capture_output=True, text=True, check=False)
    if done.returncode not in (0, 8):
        sys.exit(f"{' '.join(words)}: exit code {done.returncode}\n{done.stdout}{done.stderr}")


if __name__ == "__main__":
    main()
