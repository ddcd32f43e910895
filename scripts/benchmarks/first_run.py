"""Measure what compiling costs the first run of a command in an environment that was just installed.

    . scripts/environment
    python -m scripts.benchmarks.first_run                      # each command, with an empty cache, and then again
    python -m scripts.benchmarks.first_run table fit --kernels  # some of them, with the seconds of each kernel

The data are small and drawn, so nearly all of the difference between the two runs is compiling. Seconds are the
processor's. A kernel has a version for each combination of types of its arguments; `inner` are those of Numba itself.
"""

from __future__ import annotations

import argparse
import json
import os
import runpy
import sys
import tempfile
import time
from pathlib import Path
from typing import Any

from numba.core import event

from distsms.base import jit
from scripts.compare.tables import markdown
from scripts.precompile import FIRST, command, make_data, run

CHILD = "--child", "--child-installed"
"""The first argument of the process of a command, without what was compiled with the program, and with it."""


class Compilations(event.Listener):  # type: ignore[misc]
    """The versions of kernels that this process compiles, each with its seconds of the processor."""

    def __init__(self) -> None:
        self.versions: list[dict[str, Any]] = []
        self._begun: list[float] = []  # when each of those began that are being compiled: one may need others

    def on_start(self, event: Any) -> None:
        self._begun.append(time.process_time())

    def on_end(self, event: Any) -> None:
        seconds = time.process_time() - self._begun.pop()
        self._begun = [begun + seconds for begun in self._begun]  # what this took is not counted again
        kernel, types = event.data["dispatcher"].py_func, ", ".join(map(str, event.data["args"]))
        name = f"{kernel.__module__}.{kernel.__qualname__}"
        self.versions.append({"kernel": name, "types": types, "seconds": seconds})


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("names", nargs="*", metavar="COMMAND", help=f"{', '.join(FIRST)}; all without any")
    parser.add_argument("--installed", action="store_true", help="use what was compiled with the program")
    parser.add_argument("--most", type=int, metavar="N", help="fail if a command compiles more kernels than this")
    parser.add_argument("--kernels", action="store_true", help="also print what is compiled, by kernel")
    args = parser.parse_args()
    lines, compiled = [], []
    with tempfile.TemporaryDirectory() as folder:
        make_data(Path(folder))
        for name in args.names or FIRST:
            first, second = (measured(FIRST[name], Path(folder), name, args.installed) for _ in range(2))
            versions = sorted(first["versions"], key=lambda version: -float(version["seconds"]))
            ours = kernels_of(versions)
            seconds = first["seconds"], second["seconds"], first["seconds"] - second["seconds"]
            lines.append([name, *(f"{s:.1f}" for s in seconds), str(len(ours)), str(len(versions) - len(ours))])
            compiled.append(f"\n## {name}\n")
            compiled += [f"{version['seconds']:.3f}  {version['kernel']}({version['types']})" for version in versions]
    print(markdown(["command", "first run [s]", "second run [s]", "difference [s]", "versions", "inner"], lines))
    if args.kernels:
        print("\n".join(compiled))
    if args.most is not None and any(int(line[-2]) > args.most for line in lines):
        sys.exit(f"first_run: more than {args.most} kernels were compiled")


def kernels_of(versions: list[dict[str, Any]]) -> list[str]:
    """Return the kernels of the package among these versions, by their names."""
    return [version["kernel"] for version in versions if version["kernel"].startswith("distsms.")]


def measured(words: str, folder: Path, cache: str, installed: bool = False) -> dict[str, Any]:
    """Run a command in a new process; return its seconds of the processor, and what it compiled."""
    out = folder / "measured.json"
    child = [sys.executable, "-m", "scripts.benchmarks.first_run", CHILD[installed], str(out), *command(words)[1:]]
    run(child, folder, NUMBA_CACHE_DIR=str(folder / f"cache-{cache}"))
    return json.loads(out.read_text())  # type: ignore[no-any-return]


def _child(installed: bool, out: str, *words: str) -> None:
    """Run a module, after `-m`, or a file, with its arguments, and write what it compiled."""
    jit._OF_PROGRAM = jit._OF_PROGRAM if installed else Path(os.devnull, "compiled")
    compilations = Compilations()
    event.register("numba:compile", compilations)
    is_module = words[0] == "-m"
    sys.argv = list(words[is_module:])
    try:
        (runpy.run_module if is_module else runpy.run_path)(sys.argv[0], run_name="__main__")
    finally:
        record = {"seconds": time.process_time(), "versions": compilations.versions}
        Path(out).write_text(json.dumps(record))


if __name__ == "__main__":
    if len(sys.argv) > 2 and sys.argv[1] in CHILD:
        _child(bool(CHILD.index(sys.argv[1])), *sys.argv[2:])
    else:
        main()
