"""Fixtures, and what pytest needs to run as one of several ranks.

Under mpirun every rank runs the same tests in the same order. The root reports; a rank on which a test fails prints it
and ends the job, since the others would wait for it.
"""

from __future__ import annotations

import os
import shutil
import socket
import sys
import tempfile
import zlib
from collections.abc import Iterator
from pathlib import Path

import pytest
from hypothesis import Phase, settings

from distsms.parallel.communicator import Communicator
from distsms.parallel.mpi import launched_size, world

# The same examples on every rank and in every run; no deadlines, since nothing is timed. Fewer
# on each number of ranks, since there are several, and the more ranks, the longer an example takes.
EXAMPLES = 50 // launched_size() if launched_size() else 60
settings.register_profile("distsms", derandomize=True, deadline=None, max_examples=EXAMPLES)
settings.register_profile(  # for tests/robustness/mutate.py, which asks only whether a test fails
    "mutants", settings.get_profile("distsms"), phases=[Phase.explicit, Phase.generate]
)
settings.load_profile("distsms")

# Without a launcher MPI stays out of this process: what it adds to the environment would confuse a launcher that a test
# starts from a worker of this one.
WORLD = world() if launched_size() else Communicator()
DATA = Path(__file__).resolve().parents[2] / "shared" / "data"


@pytest.fixture(scope="session", autouse=True)
def wide_terminal() -> Iterator[None]:
    """A terminal so wide that what a test looks for is in one line, here and in programs."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("COLUMNS", "1000")
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


@pytest.fixture(scope="session")
def comm() -> Communicator:
    """All ranks of this run."""
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


def pytest_addoption(parser: pytest.Parser) -> None:
    parser.addoption("--third", type=int, choices=[0, 1, 2], help="run a third of the tests, which their names divide")


@pytest.hookimpl(tryfirst=True)  # before markers select
def pytest_collection_modifyitems(config: pytest.Config, items: list[pytest.Item]) -> None:
    """Mark tests that do not take `comm` as serial: they would do the same on every rank.

    The tests with a SLURM are the first. They wait most of their time, and others run meanwhile.
    """
    for item in items:
        if "comm" not in getattr(item, "fixturenames", ()):
            item.add_marker("serial")
    items.sort(key=lambda item: item.path.name != "test_slurm.py")
    if (third := config.getoption("--third")) is not None:
        thirds: list[list[pytest.Item]] = [[], [], []]
        for item in items:
            thirds[zlib.crc32(item.nodeid.encode()) % 3].append(item)
        items[:] = thirds.pop(third)
        config.hook.pytest_deselected(items=[item for other in thirds for item in other])


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
