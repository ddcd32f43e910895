"""Fuzz the readers of files: whatever the bytes, the only error may be one that names the file.

    python -m tests.robustness.fuzz [TARGET...] [--seconds 10] [--seed 1] [--finds fuzz-finds]
    python -m tests.robustness.fuzz --replay FILE...     a file's name begins with its target: model-heap.h5

Atheris (libFuzzer) changes valid files, which this program makes itself, and keeps those that reach new lines of
distsms. For this, the kernel that parses text runs as Python. The libraries (HDF5, Arrow, NumPy) are not instrumented,
so that changes there are blind. These are bugs: any exception but an InputError that names the file, a signal, more
than 10 s for a file, and more than 4 GiB of memory. The program prints each bug, keeps the file, and continues until
the time is over. The exit code is 1 if there was a bug, and 2 without Atheris.
"""

from __future__ import annotations

import argparse
import importlib
import importlib.util
import os
import re
import resource
import subprocess
import sys
import tempfile
import time
import zipfile
from pathlib import Path

SECONDS_FOR_ONE, MEMORY, MOST_FINDS = 10, 4 * 2**30, 20
INTERPRETED = ("text", "strings", "fasta")
"""The targets whose kernels run as Python, so that the fuzzer sees which lines of them it reaches."""
ROOT = Path(__file__).resolve().parents[2]
NAMES = [
    "text",
    "shard",
    "dense",
    "lz4",
    "lz4dense",
    "coded",
    "codedmanifest",
    "strings",
    "fasta",
    "labels",
    "manifest",
    "model",
    "checkpoint",
    "csv",
    "encoded",
    "encoding",
    "parquet",
    "npz",
    "npy",
    "anndata",
]


def main() -> int:
    """Fuzz the targets in turn, each in processes of its own."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("targets", nargs="*", metavar="TARGET", help=f"{', '.join(NAMES)}; all by default")
    parser.add_argument("--seconds", type=float, default=10, help="seconds for each target (%(default)s)")
    parser.add_argument("--seed", type=int, default=1, help="seed of the random numbers (%(default)s)")
    parser.add_argument(
        "--finds", type=Path, default=Path("fuzz-finds"), help="folder for files that show a bug (%(default)s)"
    )
    parser.add_argument("--replay", nargs="+", type=Path, metavar="FILE", help="read these files instead")
    parser.add_argument("--libfuzzer", nargs=argparse.REMAINDER, help=argparse.SUPPRESS)
    args = parser.parse_args()
    if unknown := set(args.targets) - set(NAMES):
        parser.error(f"no such target: {', '.join(sorted(unknown))}")
    if importlib.util.find_spec("atheris") is None:
        print(
            "the fuzzer needs Atheris, which scripts/setup (without --run) installs if it is available for this Python",
            file=sys.stderr,
        )
        return 2
    if args.libfuzzer:
        return child(args.targets[0], args.libfuzzer)
    if args.replay:
        jobs = [(path.name.split("-")[0], path) for path in args.replay]
        return max([report(name, str(path), *run(name, [str(path)])) for name, path in jobs])
    args.finds.mkdir(parents=True, exist_ok=True)
    return max([fuzz(name, args) for name in args.targets or NAMES])


def fuzz(name: str, args: argparse.Namespace) -> int:
    """Fuzz a target until the time is over, starting again after each bug; return 1 if there was one."""
    began, seed, inputs, finds = time.monotonic(), args.seed, 0, 0
    with tempfile.TemporaryDirectory(prefix="distsms-") as corpus:
        while (left := args.seconds - (time.monotonic() - began)) > 0 and finds < MOST_FINDS:
            words = [f"-max_total_time={max(1, round(left))}", f"-seed={seed}", f"-timeout={SECONDS_FOR_ONE}"]
            words += [f"-artifact_prefix={args.finds}/{name}-", "-print_final_stats=1", "-rss_limit_mb=4096"]
            code, out = run(name, [*words, "-max_len=16384", corpus])
            if "number_of_executed_units" not in out:
                raise SystemExit(f"{name}: the reader refuses a valid file:\n{out}")
            inputs += sum(map(int, re.findall(r"number_of_executed_units: (\d+)", out)))
            finds += report(name, str(args.finds), code, out)
            seed += 1
    print(f"{name:11s} {inputs:9d} inputs in {time.monotonic() - began:6.1f} s, {finds} finds", flush=True)
    return int(finds > 0)


def run(name: str, words: list[str]) -> tuple[int, str]:
    """Run this program with options of libFuzzer in a process that may die; return its exit code and output."""
    command = [sys.executable, "-m", "tests.robustness.fuzz", name, "--libfuzzer", *words]
    environment = {
        **os.environ,
        "PYTHONPATH": str(ROOT),
        "NUMBA_DISABLE_JIT": str(int(name in INTERPRETED)),
        "OMP_NUM_THREADS": "1",
    }
    done = subprocess.run(command, capture_output=True, env=environment, check=False)
    return done.returncode, (done.stdout + done.stderr).decode(errors="replace")


def report(name: str, where: str, code: int, out: str) -> int:
    """Print the bug if there is one, and return the number of bugs (0 or 1)."""
    if code == 0:
        return 0
    telling = re.findall(r"^.*(?:Error|Exception|SUMMARY|ALARM|Test unit|rss_limit).*$", out, re.MULTILINE)
    print(f"{name}: {where}: exit code {code}:", *(telling or out.splitlines())[-6:], sep="\n    ", flush=True)
    return 1


def child(name: str, words: list[str]) -> int:
    """Fuzz, or read the named files, in this process; libFuzzer ends it."""
    import atheris

    if name not in INTERPRETED:  # Numba cannot compile code that is instrumented
        formats = [f"ingest.formats.{name}_kernels" for name in ("survey", "svmlight", "sequence", "csv")]
        for kernels in ("base.hashing", *formats, "ingest.formats.csv_text", "matrix.kernels", "matrix.coded"):
            importlib.import_module(f"distsms.{kernels}")
    with atheris.instrument_imports(include=["distsms"], enable_loader_override=False):
        from tests.support import hostile
    # a fuzzer cannot guess checksums
    zipfile.ZipExtFile._update_crc = lambda *_: None  # type: ignore[attr-defined]
    resource.setrlimit(resource.RLIMIT_AS, (MEMORY, MEMORY))
    resource.setrlimit(resource.RLIMIT_CORE, (0, 0))
    with tempfile.TemporaryDirectory(prefix="distsms-") as folder:
        target = hostile.TARGETS[name](Path(folder))
        for number, content in enumerate(target.seeds):
            target.read(content)  # a valid file must be read
            if os.path.isdir(words[-1]):
                (Path(words[-1]) / f"seed-{number}").write_bytes(content)
        atheris.Setup([sys.argv[0], *words], lambda content: hostile.attempt(target, content))
        atheris.Fuzz()
    return 0


if __name__ == "__main__":
    sys.exit(main())
