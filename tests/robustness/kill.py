"""Kill or signal a training run at random moments, resume it each time, and count the evaluations that are lost.

    python -m tests.robustness.kill DATA [--rounds 20] [--ranks 2] [--every 0.3] [--lambda 1e-6] [--seed 0] [-- OPTIONS]

A round is one run until its gap is proved; OPTIONS are options of `distsms train`. The program interrupts the run
several times, after some evaluations or while it starts: by kill -9 of one rank or of all ranks, by SIGTERM, SIGUSR1 or
SIGUSR2 to one rank, or by kill -9 while a checkpoint is being written. Each time it starts the same command again. It
does not interrupt the last start. It checks that every job ends within seconds, that each start continues from the last
checkpoint, that the trace has every evaluation once, that the lower bound never falls, and that the proved result
agrees with that of an uninterrupted run.
"""

from __future__ import annotations

import argparse
import contextlib
import itertools
import json
import os
import random
import signal
import subprocess
import sys
import tempfile
import time
from pathlib import Path

SOON = 60.0  # seconds within which a broken job must end
MOMENTS = {
    "kill -9 of one rank": (signal.SIGKILL, False),
    "kill -9 of all ranks": (signal.SIGKILL, True),
    "kill -9 while writing": (signal.SIGKILL, False),
    "SIGTERM": (signal.SIGTERM, False),
    "SIGUSR1": (signal.SIGUSR1, False),
    "SIGUSR2": (signal.SIGUSR2, False),
}


class Run:
    """A run, which may need several starts."""

    def __init__(self, folder: Path, args: argparse.Namespace, name: str) -> None:
        self.folder = folder / name
        self.folder.mkdir()
        self.trace, self.model = self.folder / "trace.jsonl", self.folder / "model.h5"
        words = [args.data, "--lambda", args.lam, "--trace", self.trace, "--output", self.model, "--resume", "--quiet"]
        words += ["--checkpoint", self.folder / "c", "--checkpoint-every", args.every, *args.options]
        launcher = ["mpirun", "-n", str(args.ranks)] if args.ranks > 1 else []
        self.command = [*launcher, sys.executable, "-m", "distsms", "train", *map(str, words)]

    def start(self) -> subprocess.Popen[str]:
        """Start the run, or continue it."""
        return subprocess.Popen(self.command, stderr=subprocess.PIPE, stdout=subprocess.DEVNULL, text=True)

    def states(self) -> list[dict[str, float]]:
        """Return the complete lines of the trace."""
        with contextlib.suppress(FileNotFoundError):
            return [json.loads(line) for line in self.trace.read_text().split("\n")[:-1]]
        return []

    def reached(self) -> int:
        """Return the number of evaluations in the trace."""
        with contextlib.suppress(OSError):
            return self.trace.read_bytes().count(b"\n")
        return 0

    def info(self) -> dict[str, float]:
        """Return the record in the model."""
        words = [sys.executable, "-m", "distsms", "info", str(self.model), "--json"]
        return dict(json.loads(subprocess.check_output(words, text=True)))


def ranks_of(process: subprocess.Popen[str]) -> list[int]:
    """Return the process ids of the ranks: the children of mpirun, or the process itself."""
    command = list(process.args)  # type: ignore[arg-type]
    with contextlib.suppress(OSError):
        children = Path(f"/proc/{process.pid}/task/{process.pid}/children").read_text().split()
        ranks = [int(one) for one in children if b"distsms" in Path(f"/proc/{one}/cmdline").read_bytes()]
        return ranks if os.path.basename(str(command[0])) == "mpirun" else [process.pid]
    return []


def disturb(run: Run, process: subprocess.Popen[str], kind: str, chance: random.Random, span: int) -> str:
    """Wait for a random moment, then send the signal; return `kind`, or "" if the run has ended before.

    The moment is some evaluations later or, one time in five, within the first seconds.
    """
    evaluations, end = run.reached() + chance.randint(1, span), float("inf")
    if chance.random() < 0.2 and "writing" not in kind:
        end = time.monotonic() + chance.uniform(0.0, 4.0)
    while process.poll() is None:
        due = time.monotonic() >= end or run.reached() >= evaluations
        if due and ("writing" not in kind or list((run.folder / "c").glob(".checkpoint*.partial"))):
            break
        time.sleep(0.0005 if due else 0.01)
    number, everyone = MOMENTS[kind]
    struck = ranks_of(process)
    if process.poll() is not None or not struck:
        return ""
    for pid in struck if everyone else [chance.choice(struck)]:
        with contextlib.suppress(ProcessLookupError):
            os.kill(pid, number)
    return kind


def one_round(run: Run, chance: random.Random, args: argparse.Namespace) -> list[tuple[str, int, int, float, float]]:
    """Interrupt a run several times, then let it end.

    Returns for each interruption: its kind, the evaluation, the lost evaluations and seconds, the seconds to the end.
    """
    struck = []
    for _ in range(args.strikes):
        kind = chance.choice(list(MOMENTS))
        process = run.start()
        what = disturb(run, process, kind, chance, args.span)
        began = time.monotonic()
        _, err = process.communicate(timeout=SOON)
        took = time.monotonic() - began
        if not what:
            if process.returncode == 0:
                break
            raise SystemExit(f"a run ended by itself with {process.returncode}:\n{err}")
        before = run.states()
        kept = subprocess.run([sys.executable, "-c", NEWEST, str(run.folder / "c")], capture_output=True, text=True)
        if kept.returncode:
            raise SystemExit(f"after {what}: no checkpoint can be read\n{kept.stderr}")
        evaluation, seconds = json.loads(kept.stdout)
        reached, at = (before[-1]["evaluation"], before[-1]["seconds"]) if before else (0, 0.0)
        struck.append((what, int(reached), int(reached) - evaluation, max(0.0, at - seconds), took))
    else:
        _, err = (process := run.start()).communicate()
        if process.returncode:
            raise SystemExit(f"the last start ended with {process.returncode}:\n{err}")
    return struck


NEWEST = """
import json, pathlib, sys
from distsms.training import checkpoint
folder, found = pathlib.Path(sys.argv[1]), None
for name in (checkpoint.NEWEST, checkpoint.OLDER):
    if (folder / name).exists():
        found = checkpoint.read(folder / name)
        break
print(json.dumps([found.numbers["count"], found.numbers["seconds"]] if found else [0, 0.0]))
"""


def check(run: Run, whole: dict[str, float]) -> None:
    """Check that the trace has every evaluation once, and that the result agrees with that of the undisturbed run."""
    states, found = run.states(), run.info()
    assert [s["evaluation"] for s in states] == list(range(1, len(states) + 1)), "the trace has a break"
    for name, sign in (("lower_bound", 1), ("best_J", -1), ("seconds", 1)):
        assert all(sign * (b[name] - a[name]) >= 0 for a, b in itertools.pairwise(states)), name
    assert found["evaluations"] == len(states), "evaluations do not add up"
    assert found["status"] == "proved"
    assert found["lower_bound"] <= whole["J"] and whole["lower_bound"] <= found["J"], (
        "the results of the two runs contradict each other"
    )


def main() -> None:
    """Run the rounds, and print a table."""
    argv, options = sys.argv[1:], []
    if "--" in argv:
        argv, options = argv[: argv.index("--")], argv[argv.index("--") + 1 :]
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("data", metavar="DATA", help="data set to train on")
    parser.add_argument("--rounds", type=int, default=20, help="number of runs (%(default)s)")
    parser.add_argument(
        "--strikes", type=int, default=5, help="largest number of interruptions in a round (%(default)s)"
    )
    parser.add_argument("--ranks", type=int, default=2, help="MPI ranks of each run (%(default)s)")
    parser.add_argument("--every", default="0.3", help="seconds between checkpoints (%(default)s)")
    parser.add_argument(
        "--span", type=int, default=60, help="interrupt after at most this number of evaluations (%(default)s)"
    )
    parser.add_argument("--lambda", dest="lam", default="1e-6", help="weight of the regularizer (%(default)s)")
    parser.add_argument("--seed", type=int, default=0, help="seed of the random moments (%(default)s)")
    args = parser.parse_args(argv)
    args.options = options
    chance, struck = random.Random(args.seed), []
    with tempfile.TemporaryDirectory(prefix="distsms-") as folder:
        undisturbed = Run(Path(folder), args, "whole")
        undisturbed.start().communicate()
        whole = undisturbed.info()
        print(
            f"undisturbed: {whole['evaluations']} evaluations, {whole['seconds']:.1f} s, J {whole['J']:.8f}", flush=True
        )
        for number in range(args.rounds):
            run = Run(Path(folder), args, f"round{number}")
            new = one_round(run, chance, args)
            check(run, whole)
            struck += new
            found = run.info()
            words = ", ".join(f"{what} at {at} (-{lost})" for what, at, lost, _, _ in new)
            print(
                f"round {number + 1}: {found['starts']} starts, {found['evaluations']} evaluations; {words}", flush=True
            )
    print("\nlost: evaluations that were repeated (largest number, mean) and their seconds; end: until the job ended")
    head = f"{'at evaluation':>14s} {'lost: max':>11s} {'mean':>6s} {'seconds':>8s} {'end: max':>10s}"
    print(f"{'interruption':24s} {'number':>6s} {head}")
    for kind in MOMENTS:
        rows = [one for one in struck if one[0] == kind]
        if rows:
            _, at, lost, seconds, took = zip(*rows, strict=True)
            span = f"{min(at)} to {max(at)}"
            mean = sum(lost) / len(lost)
            cost = f"{max(lost):11d} {mean:6.1f} {max(seconds):8.2f} {max(took):8.1f} s"
            print(f"{kind:24s} {len(rows):6d} {span:>14s} {cost}")


if __name__ == "__main__":
    main()
