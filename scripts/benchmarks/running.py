"""Programs that the benchmarks start: modules of theirs under mpirun, and `distsms train`."""

from __future__ import annotations

import json
import os
import re
import subprocess
import sys
from pathlib import Path
from typing import Any

from experiment import told

SCRIPTS = Path(__file__).parents[1]
_UNITS = {"B": 1, "KiB": 2**10, "MiB": 2**20, "GiB": 2**30}


def module(name: str, *words: object, ranks: int = 1, limit: float | None = None) -> Any:
    """What a module of the benchmarks prints, as JSON; None if it is not done within `limit` seconds."""
    launcher = ["mpirun", "-n", str(ranks)] if ranks > 1 else []
    command = [*launcher, sys.executable, "-m", f"benchmarks.{name}", *map(str, words)]
    try:
        done = subprocess.run(
            command,
            capture_output=True,
            text=True,
            check=False,
            timeout=limit,
            env={**os.environ, "PYTHONPATH": str(SCRIPTS)},
        )
    except subprocess.TimeoutExpired:
        return None
    if done.returncode:
        sys.exit(f"{' '.join(command)}: exit code {done.returncode}\n{done.stdout}{done.stderr}")
    return json.loads(done.stdout)


def train(data: Path, model: Path, *words: object, ranks: int = 1) -> tuple[dict[str, Any], list[float]]:
    """What `distsms train` found, and the peak memory of each rank in bytes."""
    out = told("train", data, "--output", model, *words, ranks=ranks, codes=(0, 4, 5, 75))
    peaks = re.findall(r"^\d+ .* ([\d.e+]+) (B|KiB|MiB|GiB)$", out, re.MULTILINE)[-ranks:]
    return json.loads(told("info", model, "--json")), [float(number) * _UNITS[unit] for number, unit in peaks]
