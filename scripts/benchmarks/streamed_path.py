"""Compare a path over streamed rows whose models share passes with one that trains a model after the other.

    python -m scripts.benchmarks.streamed_path DATA FOLDER --memory SIZE [--rounds N] [-- OPTIONS OF PATH]

Both run on one rank, in turn, with `--at-once 1` and with all models at once. Bytes that the process reads and seconds
of the processor are counted by the system, so that a busy machine or a slow disk does not decide; seconds of the clock
are shown beside them. The two must choose the same lambda.
"""

from __future__ import annotations

import argparse
import json
import os
import shutil
import statistics
import subprocess
import sys
import time
from pathlib import Path


def measure(words: list[str]) -> dict[str, float]:
    """Run `distsms` and return the bytes that it read, in GiB, and the seconds of the processor and of the clock."""
    begun = time.perf_counter()
    process = subprocess.Popen([sys.executable, "-m", "distsms", *words], stdout=subprocess.DEVNULL)
    os.waitid(os.P_PID, process.pid, os.WEXITED | os.WNOWAIT)  # it stays in /proc until it is waited for
    clock = time.perf_counter() - begun
    counts = dict(line.split(": ") for line in Path(f"/proc/{process.pid}/io").read_text().splitlines())
    _, status, usage = os.wait4(process.pid, 0)
    if code := os.waitstatus_to_exitcode(status):
        raise SystemExit(f"distsms {' '.join(words)} ended with exit code {code}")
    return {"GiB read": int(counts["rchar"]) / 2**30, "cpu [s]": usage.ru_utime + usage.ru_stime, "clock [s]": clock}


def main() -> None:
    """Run both in turn, and print the medians, and the ratios of the rounds with their spread."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("data", help="a data set of distsms shard")
    parser.add_argument("folder", type=Path, help="where the paths are written; two folders in it are replaced")
    parser.add_argument("--memory", required=True, help="less than the rows take, so that they are streamed")
    parser.add_argument("--rounds", type=int, default=3)
    words = sys.argv[1:]
    end = words.index("--") if "--" in words else len(words)
    args, options = parser.parse_args(words[:end]), words[end + 1 :]
    ways: dict[str, list[str]] = {"one by one": ["--at-once", "1"], "shared": []}
    results: dict[str, list[dict[str, float]]] = {way: [] for way in ways}
    lambdas = set()
    for _ in range(args.rounds):
        for way, at_once in ways.items():
            out = args.folder / way.replace(" ", "_")
            shutil.rmtree(out, ignore_errors=True)
            common = ["--memory", args.memory, "--no-check", "--quiet", *options]
            results[way].append(measure(["path", args.data, "--output", str(out), *common, *at_once]))
            lambdas.add(json.loads((out / "path.json").read_text())["chosen"]["lam"])
    for name in results["shared"][0]:
        alone, shared = ([result[name] for result in results[way]] for way in ways)
        ratios = sorted(one / other for one, other in zip(shared, alone, strict=True))
        medians = f"one by one {statistics.median(alone):.3f}, shared {statistics.median(shared):.3f}"
        spread = f"{statistics.median(ratios):.3f} ({ratios[0]:.3f} to {ratios[-1]:.3f} in {len(ratios)} rounds)"
        print(f"{name:10s} {medians}; ratio {spread}")
    print(f"lambda chosen: {', '.join(f'{lam:g}' for lam in sorted(lambdas))}")


if __name__ == "__main__":
    main()
