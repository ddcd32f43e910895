"""The cells of the chaos matrix, and what happens in one."""

from __future__ import annotations

import contextlib
import os
import random
import shutil
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from dataclasses import asdict, dataclass, field
from pathlib import Path

from scripts.records import Record
from tests.robustness.chaos import hosts
from tests.robustness.chaos.commands import COMMANDS, Command, Figures, agree, make_inputs, version
from tests.robustness.chaos.faults import FAULTS, Fault, Job
from tests.support import failing_writes

STALL = 3  # seconds, the --stall-timeout of all runs
SOON = STALL + 57.0  # seconds within which a job must end
CUT_OFF = "host cut off"


@dataclass(frozen=True)
class Cell:
    """A cell: names of a command and a fault, and whether the command streams its rows and keeps checkpoints."""

    command: str
    fault: str
    streams: bool = False
    checkpoint: bool = False


def all_cells() -> list[Cell]:
    """Return all cells that apply."""
    return [
        Cell(name, fault, streams, kept)
        for name, command in COMMANDS.items()
        for fault in FAULTS
        for streams in (False, True)[: 1 + command.streams]
        for kept in (False, True)[: 1 + command.kept]
        if command.result or not FAULTS[fault].writes
    ]


@dataclass
class Ended:
    """How a run ended; code is None if it did not end by itself."""

    code: int | None
    seconds: float
    out: str
    err: str
    left_over: list[str] = field(default_factory=list)  # processes that did not end
    struck: bool = True


class Matrix:
    """Runs cells in a folder; keeps the inputs and, of each command, an undisturbed result."""

    def __init__(self, folder: Path) -> None:
        self.folder, self.home = folder, folder / "home"
        self.home.mkdir()
        make_inputs(self.home)
        self._library = failing_writes.library(folder)
        self._right: dict[tuple[str, bool], tuple[Figures, float, Path]] = {}

    def run(self, cell: Cell, seed: int) -> Record:
        """Run a cell once."""
        record: Record = asdict(cell) | {"seed": seed, "skipped": "", "bad": ""}
        with contextlib.ExitStack() as stack:
            out = self.folder / "out"
            out.mkdir()
            stack.callback(shutil.rmtree, out)
            if cell.fault == "disk full" and not stack.enter_context(_small_disk(out)):
                return record | {"skipped": "mounting a small disk is not allowed"}
            launcher = stack.enter_context(hosts.two_hosts(self.folder)) if cell.fault == CUT_OFF else []
            if cell.fault == CUT_OFF and not launcher:
                return record | {"skipped": "network namespaces are not allowed"}
            if FAULTS[cell.fault].variables and self._library is None:
                return record | {"skipped": "there is no C compiler"}
            return record | self._disturbed(cell, out, launcher, random.Random(f"{cell}{seed}"))

    def _disturbed(self, cell: Cell, out: Path, launcher: list[str], chance: random.Random) -> Record:
        command, fault = COMMANDS[cell.command], FAULTS[cell.fault]
        right, seconds, older = self._undisturbed(cell)
        result = out / (command.result or "printed")
        if command.replaces and command.result:
            _copy(older, result)
        before = version(result)
        words = self._words(cell, out, result)
        moment = chance.uniform(0.0, seconds)
        ended = self._run(cell, words, out, launcher, (fault, moment, chance))
        if not command.result:
            result.write_text(ended.out)
        state = _state(command, result, before, right)
        bad = _faults_of(command, ended, state, bool(before))
        if state.startswith("complete") and ended.code == 0 and not ended.struck:
            state = "complete, the run was over"
        again = self._run(cell, words, out, launcher)
        if not command.result:
            result.write_text(again.out)
        second = _state(command, result, [], right)
        if again.code or second != "complete":
            bad.append(f"the next run: code {again.code}, {second}: {again.err[-400:]}")
        kept = _starts(result) if cell.command == "train" else 0
        return {
            "moment": moment,
            "code": ended.code,
            "seconds": ended.seconds,
            "left": self._without_folder(state),
            "message": self._message(ended.err),
            "again": second if not again.code else f"code {again.code}",
            "starts": kept,
            "bad": "; ".join(bad),
        }

    def _message(self, err: str) -> str:
        lines = [line for line in err.splitlines() if line.startswith("distsms")]
        return self._without_folder(lines[-1])[:300] if lines else ""

    def _without_folder(self, text: str) -> str:
        """Return a text without the temporary folder, whose name says nothing to readers of the records."""
        return text.replace(f"{self.folder}/", "")

    def _undisturbed(self, cell: Cell) -> tuple[Figures, float, Path]:
        """Return the figures of an undisturbed run of a command, its seconds, and its result."""
        key = cell.command, cell.streams
        if key not in self._right:
            command = COMMANDS[cell.command]
            out = self.folder / f"right-{cell.command}-{cell.streams}"
            out.mkdir()
            result = out / (command.result or "printed")
            ended = self._run(cell, self._words(cell, out, result), out, [])
            assert ended.code == 0, ended.err
            if not command.result:
                result.write_text(ended.out)
            self._right[key] = command.figures(result), ended.seconds, result
        return self._right[key]

    def _words(self, cell: Cell, out: Path, result: Path) -> list[str]:
        words = [*COMMANDS[cell.command].words(self.home, result), "--stall-timeout", f"{STALL}s"]
        if cell.streams:
            words += ["--memory", (self.home / "least").read_text()]
        if cell.checkpoint:
            words += ["--checkpoint", out / "checkpoint", "--checkpoint-every", "0.1s", "--resume"]
        return [str(word) for word in words]

    def _run(
        self,
        cell: Cell,
        words: list[str],
        out: Path,
        launcher: list[str],
        disturbed: tuple[Fault, float, random.Random] | None = None,
    ) -> Ended:
        """Run a command line on two ranks to its end, and disturb it."""
        mark = f"{os.getpid()}-{time.monotonic_ns()}"
        rescue = self.folder / "rescue"
        rescue.mkdir(exist_ok=True)
        env = os.environ | {"CHAOS": mark, "TMPDIR": str(rescue), "OMPI_MCA_orte_tmpdir_base": "/tmp"}
        if disturbed and disturbed[0].variables:
            env |= self._failing(cell, disturbed[0], disturbed[2], out)
        line = [
            "mpirun",
            "-n",
            "2",
            *launcher,
            "-x",
            "CHAOS",
            sys.executable,
            "-m",
            COMMANDS[cell.command].program,
            *words,
        ]
        if launcher:
            line = [launcher[launcher.index("plm_rsh_agent") + 1], hosts.NAMES[0], *line]
        with tempfile.TemporaryFile("w+") as printed, tempfile.TemporaryFile("w+") as errors:
            began = time.monotonic()
            process = subprocess.Popen(line, stdout=printed, stderr=errors, env=env, start_new_session=True)
            job = Job(process.pid, mark, self.home, out, COMMANDS[cell.command].reads)
            struck = bool(disturbed and disturbed[0].variables)
            try:
                if disturbed and disturbed[0].strike:
                    struck = _strike(process, job, *disturbed)
                    began = time.monotonic()
                code, left_over = _end(process, job)
            finally:
                if disturbed and disturbed[0].repair:
                    disturbed[0].repair(job)
            seconds = time.monotonic() - began
            for file in (printed, errors):
                file.seek(0)
            return Ended(code, seconds, printed.read(), errors.read(), left_over, struck)

    def _failing(self, cell: Cell, fault: Fault, chance: random.Random, out: Path) -> dict[str, str]:
        """Return the variables with which reads or writes fail after a random share of the bytes."""
        writes = fault.variables["FAILING_CALLS"] == "write"
        folder = out if writes else self.home
        bulk = self._undisturbed(cell)[2] if writes else self.home / Path(COMMANDS[cell.command].reads).parts[0]
        after = int(chance.uniform(0, _size(bulk) / 2))  # each of two ranks
        return fault.variables | {
            "LD_PRELOAD": str(self._library),
            "FAILING_FOLDER": str(folder),
            "FAILING_AFTER": str(after),
        }


def _strike(process: subprocess.Popen[bytes], job: Job, fault: Fault, moment: float, chance: random.Random) -> bool:
    with contextlib.suppress(subprocess.TimeoutExpired):
        process.wait(moment)
    for _ in range(100):  # a rank that does not exist yet will soon
        if process.poll() is not None:
            return False
        assert fault.strike is not None
        if fault.strike(job, chance):
            return True
        time.sleep(0.02)
    return False


def _end(process: subprocess.Popen[bytes], job: Job) -> tuple[int | None, list[str]]:
    """Wait for the end of a job; return its code, None if it hangs, and the processes that hang."""
    end = time.monotonic() + SOON
    with contextlib.suppress(subprocess.TimeoutExpired):
        process.wait(SOON)
    while (left := job.processes()) and time.monotonic() < end:
        time.sleep(0.05)
    code, names = process.poll(), []
    for pid in left:
        with contextlib.suppress(OSError):
            names.append(Path(f"/proc/{pid}/cmdline").read_bytes().replace(b"\0", b" ")[:80].decode())
            os.kill(pid, signal.SIGKILL)
    process.wait()
    return code, names


def _state(command: Command, result: Path, before: list[tuple[str, int, int]], right: Figures) -> str:
    """Say what there is of a result."""
    if not result.exists():
        return "nothing"
    if before and version(result) == before:
        return "the older result"
    try:
        found = command.figures(result)
    except Exception as error:
        return f"incomplete ({type(error).__name__}: {str(error)[:80]})"
    return "complete" if agree(found, right) else f"other figures ({found})"


def _faults_of(command: Command, ended: Ended, state: str, older: bool) -> list[str]:
    bad = []
    if ended.code is None or ended.left_over:
        bad.append(f"still there: {'; '.join(ended.left_over)}")
    if ended.code == 0 and state != "complete":
        bad.append(f"code 0, but {state}")
    stopped = ended.code != 0 and "stopped" in state  # such a model says so
    if command.result and command.replaces and not stopped and state.startswith(("incomplete", "other")):
        bad.append(state)
    if older and state == "nothing":
        bad.append("the older result is lost")
    if "Traceback" in ended.err:
        bad.append("a traceback")
    return bad


def _starts(result: Path) -> int:
    from distsms.models import model

    with contextlib.suppress(Exception):
        return int(model.load(result).info.get("starts", 1))
    return 0


def _size(path: Path) -> int:
    return sum(file.stat().st_size for file in ([path] if path.is_file() else path.rglob("*")) if file.is_file())


def _copy(source: Path, target: Path) -> None:
    shutil.copytree(source, target) if source.is_dir() else shutil.copy(source, target)


@contextlib.contextmanager
def _small_disk(folder: Path) -> Iterator[bool]:
    mount = ["mount", "-t", "tmpfs", "-o", "size=64m", "tmpfs", folder]
    allowed = not subprocess.run(mount, capture_output=True, check=False).returncode
    try:
        yield allowed
    finally:
        if allowed:
            subprocess.run(["umount", "--lazy", folder], check=True)
