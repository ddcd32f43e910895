"""Start other programs from a benchmark: modules of `scripts.benchmarks`, also under mpirun, and commands."""

from __future__ import annotations

import json
import os
import re
import shutil
import subprocess
import sys
from pathlib import Path
from typing import Any

from scripts.experiments.common import output_of
from scripts.records import ROOT

_UNITS = {"B": 1, "KiB": 2**10, "MiB": 2**20, "GiB": 2**30}


def run_module(name: str, *arguments: object, ranks: int = 1, limit: float | None = None) -> Any:
    """Run a module of `scripts.benchmarks` and return what it prints, decoded from JSON.

    Returns None if it has not ended within `limit` seconds, and ends this program if it fails.
    """
    launcher = ["mpirun", "-n", str(ranks)] if ranks > 1 else []
    command = [*launcher, sys.executable, "-m", f"scripts.benchmarks.{name}", *map(str, arguments)]
    environment = {**os.environ, "PYTHONPATH": str(ROOT)}
    try:
        done = subprocess.run(command, capture_output=True, text=True, check=False, timeout=limit, env=environment)
    except subprocess.TimeoutExpired:
        return None
    if done.returncode:
        sys.exit(f"{' '.join(command)}: exit code {done.returncode}\n{done.stdout}{done.stderr}")
    return json.loads(done.stdout)


def train(data: Path, model: Path, *options: object, ranks: int = 1) -> tuple[dict[str, Any], list[float]]:
    """Run `distsms train`; return the record in the model file, and the peak memory of each rank in bytes."""
    words = ("train", data, "--output", model, "--usage", "--no-check", *options)
    out = output_of(*words, ranks=ranks, codes=(0, 4, 5, 8, 75))
    return json.loads(output_of("info", model, "--json")), _peaks(out, ranks)


def train_unopened(data: Path, folder: Path, *options: object, ranks: int = 1) -> tuple[dict[str, Any], list[float]]:
    """Train without an opening, as runs with checkpoints do: few rows then take the same vectors as many."""
    kept = folder / "checkpoints"
    shutil.rmtree(kept, ignore_errors=True)
    return train(data, folder / "model.h5", "--checkpoint", kept, *options, ranks=ranks)


def features(data: Path, made: Path, *options: object, ranks: int = 1) -> tuple[dict[str, float], list[float]]:
    """Run `distsms features`; return the seconds of each step on the slowest rank, and the peak memory of each rank."""
    out = output_of("features", data, made, "--usage", "--overwrite", *options, ranks=ranks)
    steps = re.findall(r"^(\S.*?) +\[s\]((?: +[\d.]+)+)$", out, re.MULTILINE)
    return {name: max(map(float, seconds.split())) for name, seconds in steps}, _peaks(out, ranks)


def _peaks(out: str, ranks: int) -> list[float]:
    """Return the peak memory of each rank in bytes, from the table that --usage prints.

    Of many ranks the table has only the root, the least, the median and the most.
    """
    lines = " ".join(re.findall(r"^peak memory(.*)$", out, re.MULTILINE))
    peaks = re.findall(r"([\d.e+]+) (B|KiB|MiB|GiB)", lines)
    assert len(peaks) in (ranks, 4), out
    return [float(number) * _UNITS[unit] for number, unit in peaks]
