"""Write and read results of benchmarks and experiments as JSON, with their origin: machine, versions, commit.

A file holds one JSON object: `program`, `arguments`, `date`, `commit`, `dirty` (whether the clone had changes that
were not committed), `machine`, `versions` and `records`, a list of objects whose keys depend on the program. Some
programs add further keys to the file. The pages of the manual in docs/results are made from such files.
"""

from __future__ import annotations

import argparse
import json
import os
import platform
import re
import subprocess
import sys
from datetime import datetime, timezone
from pathlib import Path
from typing import Any

from distsms.base.formatting import to_json
from distsms.workflow.provenance import versions

ROOT = Path(__file__).resolve().parents[1]
PUBLISHED = ROOT / "docs" / "results" / "data"
Record = dict[str, Any]


def add_json(parser: argparse.ArgumentParser) -> None:
    """Add the option --json."""
    about = "write the results to this file, with machine, versions and commit"
    parser.add_argument("--json", type=Path, metavar="FILE", help=about)


def write(path: Path | None, program: str, records: list[Record], **more: Any) -> None:
    """Write the results of a program; do nothing without a path.

    Parameters
    ----------
    path : the file, or None if the user did not ask for one.
    program : name of the module, such as "scripts.experiments.attack".
    records : the results.
    **more : further keys and values of the file.
    """
    if path is None:
        return
    found = {
        "program": program,
        "arguments": [without_folders(argument) for argument in sys.argv[1:]],
        "date": datetime.now(timezone.utc).isoformat(timespec="seconds"),
        **commit(),
        "machine": machine(),
        "versions": versions(),
        **more,
        "records": records,
    }
    path.write_text(as_text(found), encoding="utf-8")


def as_text(found: dict[str, Any]) -> str:
    """Format the contents of a file, with one record a line."""
    head = to_json({**found, "records": []}, indent=1)
    lines = ",\n".join(f"  {to_json(record)}" for record in found["records"])
    return head.replace('"records": []', f'"records": [\n{lines}\n ]') + "\n"


def read(path: Path) -> dict[str, Any]:
    """Read a file that `write` has written."""
    return dict(json.loads(path.read_text(encoding="utf-8")))


def machine() -> dict[str, Any]:
    """Describe this machine: its processor, the number of its cores, its memory in bytes, its system, its load."""
    file = Path("/proc/cpuinfo")
    pairs = [line.partition(":")[::2] for line in file.read_text().splitlines()] if file.exists() else []
    about = {name.strip(): value.strip() for name, value in pairs}
    model = about.get("model name", platform.processor())
    # A virtual machine's name of the processor often stands for several generations.
    if {"cpu family", "model"} <= about.keys():
        model += f", family {about['cpu family']}, model {about['model']}"
    return {
        "processor": model,
        "cores": os.cpu_count(),
        "memory_bytes": os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES"),
        "system": platform.platform(),
        "load": os.getloadavg(),
    }


def without_folders(argument: str) -> str:
    """Remove the folders from all paths in an argument, since they mean nothing on another machine."""
    return re.sub(r"[^=,\s]*/", "", argument)


def commit(clone: Path = ROOT) -> dict[str, Any]:
    """Return the commit of a clone, and whether it has changes that were not committed, other than in results."""
    changes = git("status", "--porcelain", "--untracked-files=no", "--", ".", ":!docs/results/data", folder=clone)
    return {"commit": git("rev-parse", "HEAD", folder=clone), "dirty": changes != ""}


def git(*arguments: str, folder: Path = ROOT) -> str | None:
    """Return what a command of git prints about a clone; None if this is no clone or git is missing."""
    command = ["git", "-C", str(folder), *arguments]
    try:
        return subprocess.run(command, capture_output=True, text=True, check=True).stdout.strip()
    except (OSError, subprocess.CalledProcessError):
        return None
