"""Rules of the house: where the libraries come in, and what starts when."""

from __future__ import annotations

import re
import subprocess
import sys
from pathlib import Path

import pytest

import distsms

pytestmark = pytest.mark.serial
PACKAGE = Path(distsms.__file__).parent


def importers(library):
    statement = re.compile(rf"^\s*(?:import|from) {library}\b", re.M)
    files = PACKAGE.rglob("*.py")
    return {str(path.relative_to(PACKAGE)) for path in files if statement.search(path.read_text())}


@pytest.mark.parametrize(
    "library, modules",
    [
        ("mpi4py", {"comm.py"}),
        ("petsc4py", {"solvers/tao.py"}),
        ("h5py", {"shardfile.py", "model.py", "anndata.py", "predictions.py"}),
        ("pyarrow", {"arrow.py"}),
        ("matplotlib", {"figures.py"}),
        ("sklearn", {"estimator.py"}),
        ("onnx", {"export.py"}),
        ("greenlet", {"meeting.py"}),
    ],
)
def test_libraries_come_in_at_one_place(library, modules):
    assert importers(library) == modules


def loaded(code):
    """Which modules a fresh Python has loaded after some code."""
    program = f"import sys\n{code}\nprint(' '.join(sys.modules))"
    return set(subprocess.check_output([sys.executable, "-c", program], text=True).split("\n")[-2].split())


def test_importing_the_package_starts_nothing():
    assert not loaded("import distsms\ndir(distsms)") & {"numpy", "mpi4py", "petsc4py", "h5py", "sklearn"}


@pytest.mark.parametrize("command", ["train", "path", "compare", "evaluate", "report", "export", "shard", "predict"])
def test_help_starts_nothing(command):
    code = f"from distsms.__main__ import main\ntry: main([{command!r}, '--help'])\nexcept SystemExit: pass"
    assert not loaded(code) & {"numpy", "mpi4py", "mpi4py.MPI", "petsc4py", "h5py", "scipy", "numba", "matplotlib"}


def test_information_starts_neither_mpi_nor_petsc(tmp_path):
    code = (
        "from distsms.__main__ import main\nassert main(['info']) == 0\n"
        "from mpi4py import MPI\nassert not MPI.Is_initialized()"
    )
    assert "petsc4py.PETSc" not in loaded(code)


@pytest.mark.parametrize("command", ["evaluate", "report", "predict", "export", "info", "shard", "synth"])
def test_only_training_needs_petsc(command):
    """With petsc4py made unimportable, the command comes as far as its missing file."""
    words = {
        "synth": ["dense", "/dev/null/x"],
        "info": ["x"],
        "report": ["x", "--on", "y"],
        "export": ["x", "--to", "csv"],
    }.get(command, ["x", "y"])
    code = (
        "import sys\nsys.modules['petsc4py'] = None\n"
        f"from distsms.__main__ import main\nassert main([{command!r}, *{words!r}]) == 1"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    assert "petsc" not in done.stderr


def test_one_thread_per_rank_unless_told_otherwise(monkeypatch):
    code = "import os, distsms.__main__\nprint(os.environ['OMP_NUM_THREADS'])"
    for given, expected in ((None, "1"), ("3", "3")):
        monkeypatch.delenv("OMP_NUM_THREADS", raising=False)
        if given:
            monkeypatch.setenv("OMP_NUM_THREADS", given)
        assert subprocess.check_output([sys.executable, "-c", code], text=True).strip() == expected


@pytest.mark.parametrize("command", ["train", "evaluate", "predict"])
def test_threads_are_set_before_numpy_is_loaded(command, monkeypatch):
    monkeypatch.setenv("OMP_NUM_THREADS", "2")
    words = ["x", "y"] if command != "train" else ["x"]
    code = (
        "import os, sys\nfrom distsms.__main__ import main\nassert 'numpy' not in sys.modules\n"
        f"assert main([{command!r}, *{words!r}, '--threads', '5']) == 1\n"
        "from distsms.features import threads_wanted\n"
        "assert threads_wanted() == 5 and os.environ['OPENBLAS_NUM_THREADS'] == '5'"
    )
    assert "numpy" in loaded(code)
