"""Search for schedules of ranks, faults of files and deaths that end a command wrongly.

    python -m tests.robustness.schedules --minutes M [--jobs J] [--seed S] [--only SEED] [--plant FAULT]

Each seed draws a command on tiny data, its options, 1 to 6 simulated ranks on some nodes, and mostly one or two faults:
a rank or a node dies or stands still, the power fails, a signal comes, a write or a read fails or is short, a file is
exchanged, a node sees old files. After each run: did it end, is the exit code right and the same on all ranks, was an
error said in words, is every output complete, does J equal its definition, is the lower bound below the minimum. If the
run was cut short, the same line is given again, without faults; it must succeed, agree, and leave nothing behind. A
seed and a commit repeat a run exactly: --only SEED does so, and prints what the ranks said.

--plant puts a fault into the package, which the search must find. The exit code is 1 if something was wrong.
"""

from __future__ import annotations

import argparse
import contextlib
import copy
import functools
import gc
import itertools
import json
import multiprocessing
import os
import random
import shutil
import sys
import tempfile
import time
from collections import Counter
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np

import distsms.cli.main as program
from distsms import cli
from distsms.base.communicator import Communicator
from distsms.base.measures import Measure
from distsms.losses.registry import make_loss
from distsms.matrix import local
from distsms.models import model
from distsms.optim.settings import Settings
from distsms.shards import dataset
from distsms.shards.dataset import MemoryBudget
from distsms.shards.from_arrays import write_data
from distsms.shards.manifest import verify
from distsms.training import plan
from distsms.training.fit import fit
from distsms.training.task import TrainingTask
from distsms.workflow.train import train_task
from tests.robustness.planted import PLANTED, planted
from tests.robustness.scenarios import CUTTING, LAMBDA, MEASURES, Scenario, drawn, faults_of
from tests.support import oracles
from tests.support.disturbed import Disturbance, Fault, installed
from tests.support.problems import data
from tests.support.sharded import as_array
from tests.support.simulated_job import Job


class Outcome(NamedTuple):
    """What became of a run."""

    code: int | None  # of the job
    codes: list[Any]  # of the ranks
    said: str
    errors: list[BaseException]
    counts: Counter[tuple[int, str]]
    happened: list[Fault]
    history: int
    aborted: bool = False  # one rank has ended the others


def run(scenario: Scenario, home: Path, out: Path, faults: list[Fault], seed: int) -> Outcome:
    """Run a command on its ranks."""

    def filled(word: str) -> str:
        return word.format(home=home, out=out)

    words = [scenario.command, *map(filled, scenario.words), "--stall-timeout", "0"]
    faults = [
        fault._replace(detail=tuple(map(filled, fault.detail)))
        if fault.kind in ("exchange", "stale")
        else fault._replace(detail=filled(fault.detail))
        if fault.kind == "unreadable"
        else fault
        for fault in faults
    ]
    job = Job(
        scenario.size,
        lambda rank: program.main(words, parsed),
        nodes=scenario.nodes,
        seed=seed,
        switching=0.0 if seed % 3 == 0 else 0.4,
    )
    job.survives = scenario.survives
    disturbance = Disturbance(job, home.parent, faults, seed)
    said = list[str]()
    ended = job.ended

    def keep() -> None:
        said.extend(
            f"[{rank.number}] {text}" for rank in job.ranks for text in (rank.out.getvalue(), rank.err.getvalue())
        )
        ended()

    job.ended = keep  # type: ignore[method-assign]
    with streaming(scenario.streams), contextlib.suppress(BaseException):
        job.run()
    if any(fault.kind == "exchange" for fault in disturbance.happened):
        home_of.cache_clear()
    codes = ["dead" if rank.dead else rank.result for rank in job.ranks]
    living = [code for code in codes if code != "dead"]
    code = job.code if job.code is not None else living[0] if living else 137
    text = "".join(line for line in said if line[4:])
    return Outcome(
        code,
        codes,
        text,
        job.errors,
        counts=disturbance.counts,
        happened=disturbance.happened,
        history=job.history.intdigest(),
        aborted=job.code is not None,
    )


@contextlib.contextmanager
def streaming(wanted: bool) -> Iterator[None]:
    """Let trainings read their rows on each pass."""
    if not wanted:
        yield
        return
    room, part = plan.Plan.room, local.PART_ENTRIES
    plan.Plan.room, local.PART_ENTRIES = (lambda self, root: MemoryBudget(600)), 20  # type: ignore[method-assign,assignment]
    try:
        yield
    finally:
        plan.Plan.room, local.PART_ENTRIES = room, part  # type: ignore[method-assign]


def parsed(words: Sequence[str]) -> argparse.Namespace:
    """Return what a command line says: parsed once, since to make the parser takes longer than many a run."""
    return copy.deepcopy(_parsed(tuple(words)))


@functools.lru_cache(1000)
def _parsed(words: tuple[str, ...]) -> argparse.Namespace:
    return cli.parse(words)


# What must be true after a run


@functools.cache
def base() -> Path:
    """Return the folder for everything."""
    return Path(tempfile.mkdtemp(prefix="schedules-", dir="/dev/shm" if os.path.isdir("/dev/shm") else None))


@functools.cache
def inputs() -> Path:
    """Write what the commands read, once."""
    home = base() / "inputs"
    home.mkdir()
    for name, seed in (("", 1), ("other-", 2)):
        X, y = data(n=40, p=5, seed=seed)
        for kind in ("data", "groups"):
            more = {"groups": np.arange(len(y)) // 8} if kind == "groups" else {}
            write_data(home / f"{name}{kind}", X, y, 2, **more)
    for name, seed in (("", 1), ("other-", 2)):
        X, y = data(n=40, p=5, seed=seed)
        dense = X.toarray()
        svm = (
            " ".join([str(label), *(f"{k + 1}:{v!r}" for k, v in enumerate(row))])
            for row, label in zip(dense, y, strict=True)
        )
        (home / f"{name}rows.svm").write_text("\n".join(svm) + "\n")
        rows = (",".join([*map(repr, row), str(label)]) for row, label in zip(dense.tolist(), y, strict=True))
        (home / f"{name}rows.csv").write_text("a,b,c,d,e,y\n" + "\n".join(rows) + "\n")
        manifest = dataset.read_manifest(home / f"{name}data")
        task = TrainingTask(manifest, Measure.parse("rocarea"), Settings(lam=1e-2, solver="lbfgs"))
        model.save(home / f"{name}model.h5", train_task(task, Communicator()).to_model(Communicator()))
    return home


def prepare() -> None:
    """Compute, once for all processes, what schedules are compared with."""
    inputs()
    for measure in MEASURES:
        least(measure)


def risk(measure: str, scores: Any, y: Any) -> float | None:
    """Return a risk by its definition, or by the package on one rank where the oracles are slow."""
    positive, negative = scores[y > 0], scores[y < 0]
    if measure == "rocarea":
        return float(oracles.rocarea_risk(positive, negative))
    if measure == "prbep":
        return float(oracles.prbep_risk(positive, negative))
    if measure == "pauc@0.3":
        return float(oracles.pauc_risk(positive, negative, 0.3))
    if measure == "logistic":
        return float(np.mean(np.logaddexp(0, -y * scores)))
    if measure.startswith("gauc"):
        return None
    loss = make_loss(measure, "gather", y.astype(np.int8), None, Communicator())
    return float(loss.evaluate(scores, 0.0).R)


@functools.cache
def least(measure: str) -> float:
    """Return J at nearly the minimum."""
    of_groups = measure.startswith("gauc")
    manifest = dataset.read_manifest(inputs() / ("groups" if of_groups else "data"))
    solver = "bmrm" if measure in CUTTING else "lbfgs"
    parsed = Measure.parse(measure)
    task = TrainingTask(manifest, parsed, Settings(lam=LAMBDA, epsilon=1e-7, solver=solver))
    return float(fit(task, Communicator()).result.J)


def wrong_model(path: Path, scenario: Scenario) -> Iterator[str]:
    """Yield what is not true of a model that a training on undisturbed rows has written."""
    trained = model.load(path)
    info = trained.info
    J, bound = info["J"], info["lower_bound"]
    minimum = least(scenario.measure)
    if bound > minimum * (1 + 1e-9) + 1e-12:
        yield f"the lower bound {bound} is above J = {minimum}"
    if minimum - 1e-7 > J:
        yield f"J = {J} is below the minimum {minimum}"
    epsilon = float(scenario.words[scenario.words.index("--epsilon") + 1])
    if info["status"] == "proved" and J - bound > epsilon * (1 + 1e-9):
        yield f"a gap of {J - bound} counts as proved"
    X, y = data(n=40, p=5, seed=1)
    if not info.get("bias") and (exact := risk(scenario.measure, X @ trained.w, y)) is not None:
        exact += LAMBDA / 2 * float(trained.w @ trained.w)
        if abs(J - exact) > 1e-8 * (1 + abs(exact)):
            yield f"J = {J}, by definition {exact}"


def wrong_output(scenario: Scenario, home: Path, out: Path, reference: Path) -> Iterator[str]:
    """Yield what is wrong with the complete output of a run."""
    path = out / scenario.output
    if not path.exists():
        yield f"no {scenario.output}"
    elif scenario.command == "train":
        yield from wrong_model(path, scenario)
    elif scenario.command == "predict":
        if path.read_text() != (reference / scenario.output).read_text():
            yield "other scores"
    elif scenario.command == "path":
        found, right = (json.loads((folder / "path/path.json").read_text()) for folder in (out, reference))
        if found.get("lambda") != right.get("lambda"):
            yield f"lambda {found.get('lambda')} instead of {right.get('lambda')}"
    else:
        if messages := verify(path):
            yield "; ".join(messages)
        found, right = (dataset.read_manifest(folder / scenario.output) for folder in (out, reference))
        if (found.n, found.nnz, found.p, found.n_pos) != (right.n, right.nnz, right.p, right.n_pos):
            yield "other rows"


def mixed_rows(path: Path) -> Iterator[str]:
    """Yield whether a converted data set has other rows than both versions of its file, whose columns may be scaled."""
    block = dataset.load(path, Communicator())
    rows = as_array(block.features)
    for seed in (1, 2):
        X, y = data(n=40, p=5, seed=seed)
        parts = [array / np.linalg.norm(array, axis=0) for array in (rows, X.toarray())]
        if np.array_equal(block.labels, y) and np.allclose(*parts):
            return
    yield "rows of no version of the file"


def left_behind(out: Path) -> list[str]:
    """Return the names of temporary files and locks."""
    return [str(path.relative_to(out)) for path in out.rglob("*") if path.name.endswith((".partial", ".writing"))]


def wrong(scenario: Scenario, outcome: Outcome) -> Iterator[str]:
    """Yield what is wrong with how a run ended."""
    kinds = {fault.kind for fault in outcome.happened}
    yield from (f"{type(error).__name__}: {error}" for error in outcome.errors)
    if "Traceback" in outcome.said:
        yield "a traceback"
    living = {code for code in outcome.codes if code not in ("dead", None)}
    if outcome.code is None or (len(living) > 1 and not outcome.errors):
        yield f"codes {outcome.codes}"
    stale = {fault.rank: fault.detail for fault in outcome.happened if fault.kind == "stale"}
    allowed = {1} if len({stale.get(node) for node in range(scenario.nodes)}) > 1 else {0, 8}  # nodes see other files
    allowed |= {1} if kinds & {"write", "read", "exchange", "stale", "unreadable"} else set()
    allowed |= {75, 130, 137} if kinds & {"death", "node", "power", "signal"} else set()
    allowed |= {1, 4} if scenario.survives and kinds & {"death", "node", "signal"} else set()
    if outcome.code not in allowed:
        yield f"exit code {outcome.code}: {outcome.said[-300:]}"
    if outcome.code == 1 and "distsms" not in outcome.said:
        yield "an error without a word"


class Found(NamedTuple):
    """A schedule: what was wrong, and what tells it from others."""

    seed: int
    scenario: Scenario
    faults: list[Fault]
    outcome: Outcome
    problems: list[str]
    others: Sequence[Outcome] = ()  # of the same line without faults, before and after


@functools.lru_cache(500)
def reference_of(scenario: Scenario) -> tuple[Path, Outcome]:
    """Run a command without faults; return its outputs and what became of it. Raises AssertionError if it fails."""
    with fresh() as (home, out):
        outcome = run(scenario, home, out, [], 0)
        problems = [
            *wrong(scenario, outcome),
            *(wrong_output(scenario, home, out, out) if outcome.code == 0 else ()),
        ]
        if problems or outcome.code:
            raise AssertionError(f"undisturbed: {outcome.code} {problems} {scenario}\n{outcome.said}")
        return out.rename(Path(tempfile.mkdtemp(prefix="reference-", dir=base())) / "out"), outcome


@functools.cache
def home_of(process: int) -> Path:
    """Return the folder from which the commands of a process read; whoever changes a file there calls `cache_clear`."""
    home = base() / f"process-{process}/home"
    shutil.rmtree(home, ignore_errors=True)
    return Path(shutil.copytree(inputs(), home))


@contextlib.contextmanager
def fresh() -> Iterator[tuple[Path, Path]]:
    """Yield the folder of the inputs, and one for outputs, which are always the same: so are the command lines."""
    home = home_of(os.getpid())
    out = home.parent / "out"
    out.mkdir()
    try:
        yield home, out
    finally:
        shutil.rmtree(out, ignore_errors=True)


def schedule(seed: int, plant: str | None = None) -> Found:
    """Draw a command and what happens to it, and look what becomes of it, with a fault in the package or without."""
    chance = random.Random(seed)
    scenario = drawn(random.Random(seed % 400))  # so that most commands have been run without faults before
    try:
        right, before = reference_of(scenario)
    except AssertionError as error:
        return Found(seed, scenario, [], Outcome(None, [], "", [], Counter(), [], 0), [str(error)[-3000:]])
    faults = faults_of(chance, scenario, before.counts)
    with planted(plant), fresh() as (home, out):
        outcome = run(scenario, home, out, faults, seed)
        problems = [*wrong(scenario, outcome)]
        changed = {fault.kind for fault in outcome.happened} & {"exchange", "stale"}
        if not problems and outcome.code in (0, 8) and not changed:
            problems = [*wrong_output(scenario, home, out, right)]
            if all(fault.kind != "write" for fault in outcome.happened):  # it may be the removal that failed
                problems += [f"left behind: {name}" for name in left_behind(out)]
        if not problems and outcome.code == 1 and not outcome.aborted:
            problems = [f"left behind after an error: {name}" for name in left_behind(out)]
        if not problems and outcome.code == 0 and scenario.command == "shard":
            problems = [*mixed_rows(out / scenario.output)]
        then = None
        if not problems and outcome.code not in (0, 8) and not changed:
            then = run(scenario, home, out, [], seed + 1)
            problems = [f"then: {problem}" for problem in wrong_again(scenario, then, home, out, right)]
        return Found(seed, scenario, faults, outcome, problems, [before] if then is None else [before, then])


def wrong_again(scenario: Scenario, outcome: Outcome, home: Path, out: Path, right: Path) -> Iterator[str]:
    """Yield what is wrong after the same line was given again, without faults."""
    yield from wrong(scenario, outcome)
    if outcome.code in (0, 8):
        yield from wrong_output(scenario, home, out, right)
        yield from (f"left behind: {name}" for name in left_behind(out))
    if "damaged" in outcome.said:
        yield f"something is damaged: {outcome.said}"


def describe(found: Found) -> str:
    """Return a line about a schedule that went wrong."""
    line = " ".join([found.scenario.command, *found.scenario.words])
    faults = "; ".join(dict.fromkeys(map(str, found.outcome.happened))) or "no fault"
    return (
        f"seed {found.seed}: {found.scenario.size} ranks on {found.scenario.nodes} nodes: {line}"
        f"\n  {faults}; code {found.outcome.code}\n  " + "\n  ".join(found.problems)
    )


class Tally(NamedTuple):
    """What a search has tried."""

    different: set[int]  # digests of the histories of all runs
    commands: Counter[str]
    faults: Counter[str]
    codes: Counter[Any]
    wrong: list[int]  # seeds
    processor: float  # seconds

    @property
    def tried(self) -> int:
        return self.commands.total()

    def describe(self, seconds: float) -> str:
        """Return what was tried in so many seconds."""
        different = len(self.different)
        hours, of_processor = (max(taken, 1e-9) / 3600 for taken in (seconds, self.processor))
        lines = [
            f"{self.tried} schedules, {different} different interleavings in {seconds:.0f} s "
            f"({different / hours:.0f} an hour, {different / of_processor:.0f} for each hour of a processor); "
            f"{len(self.wrong)} went wrong"
        ]
        for title, counts in (("commands", self.commands), ("faults", self.faults), ("exit codes", self.codes)):
            lines.append(f"  {title}: " + ", ".join(f"{name} {count}" for name, count in counts.most_common()))
        return "\n".join(lines)


def search(seeds: Iterator[int], minutes: float, plant: str | None = None, most: int = 20) -> Tally:
    """Try seeds until the time is over, and print what goes wrong."""
    until, processor = time.monotonic() + 60 * minutes, time.process_time()
    tally = Tally(set(), Counter(), Counter(), Counter(), [], 0.0)
    for seed in seeds:
        if time.monotonic() > until or len(tally.wrong) >= most:
            break
        one = schedule(seed, plant)
        tally.different.update(outcome.history for outcome in (one.outcome, *one.others))
        tally.commands[one.scenario.command] += 1
        tally.faults.update({fault.kind for fault in one.outcome.happened} or {"none"})
        tally.codes[one.outcome.code] += 1
        if one.problems:
            tally.wrong.append(seed)
            print(describe(one), flush=True)
        if tally.tried % 200 == 0:
            gc.collect()
    return tally._replace(processor=time.process_time() - processor)


def search_in_processes(jobs: int, first: int, minutes: float, plant: str | None = None) -> Tally:
    """Share the seeds from the first one on among processes; return what all have tried."""
    prepare()
    with multiprocessing.get_context("fork").Pool(jobs) as pool:
        parts = [
            pool.apply_async(search, (itertools.count(first + number, jobs), minutes, plant)) for number in range(jobs)
        ]
        tallies = [part.get() for part in parts]
    return functools.reduce(added, tallies)


def added(tally: Tally, other: Tally) -> Tally:
    """Return what two searches have tried together."""
    return Tally(
        tally.different | other.different,
        tally.commands + other.commands,
        tally.faults + other.faults,
        tally.codes + other.codes,
        tally.wrong + other.wrong,
        tally.processor + other.processor,
    )


def main() -> int:
    """Search, and print what was found."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--minutes", type=float, default=1.0, help="how long to search (%(default)s)")
    parser.add_argument("--jobs", type=int, default=1, help="number of processes (%(default)s)")
    parser.add_argument("--seed", type=int, default=0, help="the first seed (%(default)s)")
    parser.add_argument("--only", type=int, metavar="SEED", help="repeat the schedule of one seed")
    parser.add_argument("--plant", choices=PLANTED, help="a fault of the package that is to be found")
    args = parser.parse_args()
    with installed():
        try:
            if args.only is None:
                begun = time.monotonic()
                tally = search_in_processes(args.jobs, args.seed, args.minutes, args.plant)
                print(tally.describe(time.monotonic() - begun))
                return int(bool(tally.wrong))
            found = schedule(args.only, args.plant)
            print(found.outcome.said, found.outcome.codes, f"{found.outcome.history:x}", describe(found), sep="\n")
            return int(bool(found.problems))
        finally:
            shutil.rmtree(base())


if __name__ == "__main__":
    sys.exit(main())
