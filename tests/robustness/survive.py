"""Kill ranks of `distsms train --survive` at random moments, and look whether the others go on.

    python -m tests.robustness.survive DATA... [--kills 100] [--ranks 8] [--seed 0] [--memory SIZE]
        [--mpirun "mpirun --with-ft ulfm"] [--json FILE] [-- OPTIONS]

In each run one to five ranks other than rank 0 get SIGKILL: the first at a random moment, which in every third run is
soon after the rows were loaded and before the first evaluation; another at the same moment, while the others recover,
or later. The runs take turns with the data sets, with ROCArea and PRBEP, and with rows in
memory and streamed rows (if --memory is given). OPTIONS are options of `distsms train`. A run is good if its exit code
is 0, its gap is proved, its J agrees with that of an undisturbed run within the gaps, its trace has every evaluation
once, and its model file names the ranks that were killed. (Open MPI 5.0.11 sometimes crashes in a rank while the
communicator shrinks and another rank dies. The run survives this as any other death, and such ranks are counted.) The
exit code is 1 if a run is not good.
"""

from __future__ import annotations

import argparse
import contextlib
import itertools
import json
import os
import random
import re
import shlex
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from distsms.models import model
from scripts import records
from tests.robustness.chaos.faults import Job

LONGEST = 180.0  # seconds after which a run counts as hanging
ENDING = 30.0  # the most seconds from the last writing of the model until the job has ended
MEASURES = "rocarea", "prbep", "logistic"
CRASH = re.compile(r"Segmentation fault.*?\[ 1\] \S*libmpi", re.S)
"""What a rank prints that crashes in a function of MPI."""
LOADED = re.compile(r"^ +eval +seconds", re.MULTILINE)  # this is printed before the first evaluation


def main() -> int:
    """Run until so many ranks have been killed; print a line for each run and what was lost."""
    argv, options = sys.argv[1:], []
    if "--" in argv:
        argv, options = argv[: argv.index("--")], argv[argv.index("--") + 1 :]
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("data", nargs="+", metavar="DATA", help="data sets to train on")
    parser.add_argument("--kills", type=int, default=100, help="number of ranks to kill in all (%(default)s)")
    parser.add_argument("--ranks", type=int, default=8, help="ranks of each run (%(default)s)")
    parser.add_argument(
        "--memory", help="--memory of every second run, whose rows are streamed; by default there are none"
    )
    parser.add_argument("--mpirun", default="mpirun --with-ft ulfm", help="how ranks are started (%(default)s)")
    parser.add_argument("--seed", type=int, default=0, help="seed of ranks and moments (%(default)s)")
    records.add_json(parser)
    args = parser.parse_args(argv)
    args.options = options
    if why := missing_ulfm(args):
        print(f"skipped: {why}")
        return 0
    chance, found = random.Random(args.seed), list[records.Record]()
    kinds = itertools.cycle(itertools.product(args.data, MEASURES, (False, True) if args.memory else (False,)))
    with tempfile.TemporaryDirectory(prefix="distsms-survive-") as folder:
        references: dict[Any, dict[str, Any]] = {}
        while sum(len(record["killed"]) for record in found) < args.kills:
            kind = next(kinds)
            run = Run(Path(folder), args, *kind)
            if kind[:2] not in references:
                references[kind[:2]] = run.whole()
            found.append(run.disturbed(chance, references[kind[:2]]))
            records.write(args.json, "tests.robustness.survive", found)
            print(describe(found[-1]), flush=True)
    bad = sum(bool(record["bad"]) for record in found)
    killed = [kill for record in found for kill in record["killed"]]
    waits = sorted(record["longest_wait"] for record in found if record["survived"])
    early = sum(at == 0 for _, at in killed)
    crashed = sum(record["crashed"] for record in found)
    print(f"\n{len(found)} runs, {len(killed)} ranks killed ({early} before the first evaluation), {bad} runs not good")
    print(f"{crashed} more ranks crashed in MPI's own functions while the communicator shrank")
    if waits:
        print(f"longest time between two evaluations: median {waits[len(waits) // 2]:.2f} s, most {waits[-1]:.2f} s")
    return int(bad > 0)


def missing_ulfm(args: argparse.Namespace) -> str:
    """Return why ranks cannot survive here; "" if they can."""
    words = [*shlex.split(args.mpirun), "-n", "2", sys.executable, "-m", "distsms", "train", os.devnull, "--survive"]
    done = subprocess.run(words, capture_output=True, text=True, timeout=LONGEST, check=False)
    said = done.stderr + done.stdout
    return "" if "ULFM" not in said and "with-ft" not in said else said.strip()


class Run:
    """A training in a folder of its own."""

    def __init__(self, folder: Path, args: argparse.Namespace, data: str, measure: str, streams: bool) -> None:
        self.kind, self.folder, self.ranks = (data, measure, streams), Path(tempfile.mkdtemp(dir=folder)), args.ranks
        self.trace, self.model = self.folder / "trace.jsonl", self.folder / "model.h5"
        words = ["train", data, "--survive", "--measure", measure, "--trace", self.trace, "--output", self.model]
        words += ["--memory", args.memory] if streams else []
        launcher = [*shlex.split(args.mpirun), "-n", str(args.ranks)]
        self.command = [*launcher, sys.executable, "-m", "distsms", *map(str, words), *args.options]

    def whole(self) -> dict[str, Any]:
        """Train undisturbed, and return the information of the model."""
        done = subprocess.run(self.command, capture_output=True, text=True, timeout=LONGEST, check=False)
        if done.returncode:
            raise SystemExit(f"the undisturbed run ended with {done.returncode}:\n{done.stdout}{done.stderr}")
        info = model.load(self.model).info
        self.trace.unlink()
        self.model.unlink()
        return info

    def disturbed(self, chance: random.Random, whole: dict[str, Any]) -> records.Record:
        """Train, kill ranks meanwhile, and return what came of it."""
        data, measure, streams = self.kind
        record: records.Record = {"data": os.path.basename(data), "measure": measure, "streams": streams}
        record |= {
            "killed": [],
            "survived": [],
            "longest_wait": 0.0,
            "seconds_to_end": 0.0,
            "J": None,
            "code": None,
            "bad": "",
        }
        victims = chance.sample(range(1, self.ranks), min(chance.choice((1, 2, 3, 4, 5)), self.ranks - 1))
        first = chance.choice((0, *2 * [chance.randint(1, max(2, whole["evaluations"] // 2))]))
        moments = [first, *(chance.choice((0.0, chance.uniform(0, 1), chance.randint(1, 20))) for _ in victims[1:])]
        with open(self.folder / "out", "w+") as out:
            mark = self.folder.name
            process = subprocess.Popen(
                self.command,
                stdout=out,
                stderr=out,
                env=os.environ | {"CHAOS": mark, "PYTHONUNBUFFERED": "1"},
                start_new_session=True,
            )
            job, end = Job(process.pid, mark, self.folder, self.folder, ""), time.monotonic() + LONGEST
            try:
                while process.poll() is None and not self.loaded() and time.monotonic() < end:
                    time.sleep(0.002)
                pids = job.ranks()
                for rank, moment in zip(victims, moments, strict=True):
                    if isinstance(moment, float):
                        time.sleep(moment)
                    else:
                        aim = moment if rank == victims[0] else self.reached() + moment
                        while process.poll() is None and self.reached() < aim and time.monotonic() < end:
                            time.sleep(0.005)
                    if process.poll() is None:
                        with contextlib.suppress(KeyError, ProcessLookupError):
                            os.kill(pids[rank], signal.SIGKILL)
                            record["killed"].append([rank, self.reached()])
                process.wait(max(1.0, end - time.monotonic()))
                if self.model.exists():
                    record["seconds_to_end"] = time.time() - self.model.stat().st_mtime
            except subprocess.TimeoutExpired:
                record["bad"] = "hangs"
            finally:
                for pid in job.processes():
                    with contextlib.suppress(ProcessLookupError):
                        os.kill(pid, signal.SIGKILL)
            process.wait()
            out.seek(0)
            record["code"], said = process.returncode, out.read()
        record["crashed"] = len(CRASH.findall(said))
        record["bad"] = record["bad"] or "; ".join(self.faults(record, whole))
        if record["bad"]:
            print(said)
        return record

    def loaded(self) -> bool:
        """Return whether the run has printed that the rows are loaded."""
        return bool(LOADED.search((self.folder / "out").read_text()))

    def reached(self) -> int:
        """Return the number of evaluations in the trace."""
        with contextlib.suppress(OSError):
            return self.trace.read_bytes().count(b"\n")
        return 0

    def faults(self, record: records.Record, whole: dict[str, Any]) -> Iterator[str]:
        """Yield what is wrong with the result, and complete the record."""
        if record["code"] or not self.model.exists():
            yield f"code {record['code']}{'' if record['code'] else ', but no model'}"
            return
        info = model.load(self.model).info
        states = [json.loads(line) for line in self.trace.read_text().splitlines()]
        record["J"], record["survived"] = info["J"], info.get("survived", [])
        seconds = [0.0, *(state["seconds"] for state in states)]
        record["longest_wait"] = max(b - a for a, b in itertools.pairwise(seconds))
        if record["seconds_to_end"] > ENDING:
            yield f"{record['seconds_to_end']:.0f} s passed between the model and the end"
        if info["status"] != "proved":
            yield info["status"]
        if info["lower_bound"] > whole["J"] or whole["lower_bound"] > info["J"]:
            yield f"J {info['J']} contradicts {whole['J']}"
        if [state["evaluation"] for state in states] != list(range(1, len(states) + 1)):
            yield "the trace has a break"
        if any(b["lower_bound"] < a["lower_bound"] or b["best_J"] > a["best_J"] for a, b in itertools.pairwise(states)):
            yield "the bounds of the trace are not monotone"
        named = {int(words.split()[1]) for survived in record["survived"] for words in survived["dead"]}
        early = {rank for rank, at in record["killed"] if at < len(states)}
        others = named - {rank for rank, _ in record["killed"]}
        if not early <= named or len(others) > record["crashed"]:
            yield f"the model names {sorted(named)}"


def describe(record: records.Record) -> str:
    """Return a line about a run."""
    killed = ", ".join(f"{rank} at {at}" for rank, at in record["killed"])
    how = "streaming" if record["streams"] else "in memory"
    lost = f"; {len(record['survived'])} recoveries, longest wait {record['longest_wait']:.2f} s"
    killed = (killed or "none") + (f", {record['crashed']} crashed in MPI" if record["crashed"] else "")
    text = f"{record['data']} {record['measure']:7s} {how}: killed {killed}{lost}, J {record['J']}"
    return text + (f"  BAD: {record['bad']}" if record["bad"] else "")


if __name__ == "__main__":
    sys.exit(main())
