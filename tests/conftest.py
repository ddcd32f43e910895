"""Fixtures, and what pytest needs to run on several ranks.

Tests that take `comm` communicate. With `--turn SEED` each of them runs on one number of ranks from 1 to 4, which the
seed and its name decide, and with `--ranks N` on N: these are simulated ranks of this process (`RankTests`). Under
`mpirun` every test runs on all the ranks that there are. The root reports then; a rank on which a test fails prints it
and ends the job, since the others would wait for it.
"""

from __future__ import annotations

import functools
import os
import shutil
import socket
import sys
import tempfile
import time
import zlib
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from hypothesis import HealthCheck, Phase, settings

import distsms.cli.main  # noqa: F401 - before NumPy is loaded: threads of BLAS on every worker slow down all of them
from distsms.base.communicator import Communicator
from distsms.matrix import local
from distsms.parallel.mpi import launched_size, world
from tests.support.examples import EXAMPLES
from tests.support.rank_tests import RANKS, RankTests

# No deadlines, since nothing is timed. The same examples in every run, unless --hypothesis-seed gives others. Each test
# has its own `comm`, which does not change between examples.
settings.register_profile(
    "distsms",
    derandomize=True,
    database=None,
    deadline=None,
    max_examples=EXAMPLES,
    suppress_health_check=[HealthCheck.function_scoped_fixture],
)
settings.register_profile("seeded", settings.get_profile("distsms"), derandomize=False)
settings.register_profile(  # for tests/robustness/mutate.py, which asks only whether a test fails
    "mutants", settings.get_profile("distsms"), phases=[Phase.explicit, Phase.generate]
)
settings.load_profile("distsms")

os.environ.setdefault("TESTS_PROCESS", f"{os.getpid()}-{time.time_ns()}")  # also of the workers that it starts

# Without a launcher MPI stays out of this process: what it adds to the environment would confuse a launcher that a test
# starts from a worker of this one.
WORLD = world() if launched_size() else Communicator()
TURNS = (1, 2, 3, 4, 64)
"""The numbers of ranks that tests take turns on; the last is for those marked `many`."""
DATA = Path(__file__).resolve().parents[2] / "shared" / "data"


@pytest.fixture(scope="session", autouse=True)
def wide_terminal() -> Iterator[None]:
    """A terminal so wide that what a test looks for is in one line, here and in programs."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("COLUMNS", "1000")
        yield


@pytest.fixture(scope="session", autouse=True)
def kernels_at_once() -> Iterator[None]:
    """Few rows, too, take compiled loops; tests of what NumPy does in their place say so."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(local, "SMALL", -1)
        yield


@pytest.fixture(scope="session", autouse=True)
def own_session_folder() -> Iterator[None]:
    """A folder of its own for what Open MPI keeps while a program runs.

    Every program makes a common folder in it and removes it as it ends, unless there is something in it. One that is
    just starting would fail, so something is in it.
    """
    with pytest.MonkeyPatch.context() as patch, tempfile.TemporaryDirectory(prefix="mpi-") as directory:
        for program in ("ompi", "prte"):
            (Path(directory) / f"{program}.{socket.gethostname().split('.')[0]}.{os.geteuid()}" / "in use").mkdir(
                parents=True
            )
        for name in ("OMPI_MCA_orte_tmpdir_base", "PRTE_MCA_prte_tmpdir_base"):
            patch.setenv(name, directory)
        yield


@pytest.fixture
def comm() -> Communicator:
    """The ranks that run this test; `RankTests` replaces it on simulated ranks."""
    return WORLD


@pytest.fixture
def shared_dir(comm: Communicator):
    """A fresh directory, the same on every rank."""
    path = comm.bcast(tempfile.mkdtemp(prefix="distsms-") if comm.is_root else None)
    yield Path(path)
    comm.barrier()
    if comm.is_root:
        shutil.rmtree(path)


@pytest.fixture(scope="session")
def real_data():
    """The unpacked text of a file of real data, by name; the test is skipped where these data are not at hand."""
    import lzma

    def text(name: str) -> bytes:
        path = DATA / f"{name}.xz"
        if not path.exists():
            pytest.skip(f"no {path.name} beside the project")
        return lzma.decompress(path.read_bytes())

    return text


@pytest.hookimpl(trylast=True)  # after the terminal reporter is there
def pytest_configure(config: pytest.Config) -> None:
    if WORLD.rank:
        config.get_terminal_writer()._file = open(os.devnull, "w")  # noqa: SIM115 - for the whole run
    if config.getoption("--hypothesis-seed") is not None:
        settings.load_profile("seeded")
    config.pluginmanager.register(RankTests())


def pytest_addoption(parser: pytest.Parser) -> None:
    parser.addoption(
        "--turn", metavar="SEED", help="run each test that communicates on one number of ranks, which this text decides"
    )
    parser.addoption("--ranks", type=int, metavar="N", help="run each test that communicates on so many ranks")


def turn_of(item: pytest.Item, seed: str, turns: int) -> int:
    """Which of some number of turns is a test's, from 1 on."""
    return 1 + zlib.crc32(f"{seed} {item.nodeid}".encode()) % turns


def needs_mpi(item: pytest.Item) -> bool:
    """Whether several ranks of a test are always real: PETSc cannot be spread over simulated ranks."""
    if any(marker.kwargs.get("only") for marker in item.iter_markers("mpi")):
        return True
    parameters = str([*getattr(item, "callspec", None).params.values()]) if hasattr(item, "callspec") else ""
    return "'lmvm'" in parameters and "'spread'" in parameters


@functools.cache
def shares_fixtures(file: Path) -> bool:
    """Whether a file of tests makes something once for several of them."""
    return 'scope="module"' in file.read_text()


@pytest.hookimpl(optionalhook=True)  # without pytest-xdist there is none
def pytest_xdist_make_scheduler(config: pytest.Config, log: Any) -> Any:
    """Let one worker run all tests of a file whose tests share fixtures, and deal out others one by one."""
    from xdist.scheduler import LoadScopeScheduling

    class Scheduling(LoadScopeScheduling):
        def _split_scope(self, nodeid: str) -> str:
            file = nodeid.partition("::")[0]
            return file if shares_fixtures(config.rootpath / file) else nodeid

    return Scheduling(config, log)


@pytest.hookimpl(tryfirst=True)  # before markers select
def pytest_collection_modifyitems(config: pytest.Config, items: list[pytest.Item]) -> None:
    """Mark tests that do not take `comm` as serial: they would do the same on every rank.

    Files of end-to-end tests come first, those with a SLURM before others: they wait most of their time, and others run
    meanwhile.
    """
    for item in items:
        if "comm" not in getattr(item, "fixturenames", ()):
            item.add_marker("serial")
    items.sort(key=lambda item: (item.path.name != "test_slurm.py", item.get_closest_marker("e2e") is None))
    if WORLD.size > 1:
        return
    seed, number = config.getoption("--turn"), config.getoption("--ranks")
    for item in items:
        if not item.get_closest_marker("serial") and not needs_mpi(item):
            turns = TURNS if item.get_closest_marker("many") else TURNS[:4]
            ranks = number or (turns[turn_of(item, seed, len(turns)) - 1] if seed else 1)
            if ranks > 1:
                item.stash[RANKS] = ranks
    if seed:
        long = [item for item in items if item.get_closest_marker("by_turns")]
        later = {*long} - {*long[zlib.crc32(seed.encode()) % 3 :: 3]}  # of each file
        config.hook.pytest_deselected(items=[*later])
        items[:] = [item for item in items if item not in later]


@pytest.hookimpl(hookwrapper=True)
def pytest_runtest_makereport(item: pytest.Item):
    report = (yield).get_result()
    if report.failed and WORLD.size > 1:
        sys.__stderr__.write(f"rank {WORLD.rank} of {WORLD.size}: {item.nodeid} failed\n{report.longreprtext}\n")
        WORLD.abort(1)


@pytest.fixture
def own_dir():
    """A directory of this rank alone."""
    with tempfile.TemporaryDirectory() as directory:
        yield Path(directory)
