"""Which solver runs where none is named, and what is refused without petsc4py, before anything is read."""

from __future__ import annotations

import json
import subprocess
import sys

import pytest

from distsms import cli
from distsms.base.errors import InputError
from distsms.cli.options import USUAL_SOLVER
from distsms.models.model import load
from distsms.optim.solvers import tao
from distsms.shards.from_arrays import write_data
from distsms.training.solver_choice import choose_solver
from tests.support.problems import data

BLOCKED = "import sys; sys.modules['petsc4py'] = None; "
BROKEN = "import sys, types; sys.modules['petsc4py'] = types.ModuleType('petsc4py'); "  # without its library


@pytest.fixture
def petsc(monkeypatch, comm):
    """Makes petsc4py usable on all ranks, or on all but the last, whatever is installed."""

    def usable(everywhere):
        there = everywhere or comm.rank < comm.size - 1
        monkeypatch.setattr(tao, "lacking", lambda load: "" if there else "petsc4py cannot be imported: it is away")

    return usable


def test_the_usual_solver(petsc, comm):
    petsc(True)
    assert choose_solver(None, "prbep", comm, lmvm_only="options") == ("lmvm", "")
    assert choose_solver("lmvm", "rocarea", comm) == ("lmvm", "")
    assert choose_solver(None, "rocarea", comm, l1=0.1) == ("lbfgs", "")
    name, why = choose_solver(None, "f1", comm)
    assert name == "bmrm" and "no smoothed risk" in why


def test_one_rank_without_petsc_decides_for_all(petsc, comm):
    petsc(False)
    name, why = choose_solver(None, "prbep", comm)
    assert name == "lbfgs" and "it is away" in why
    assert (f"rank {comm.size - 1}" in why) == (comm.size > 1)
    assert choose_solver("agm", "prbep", comm) == ("agm", "")
    assert choose_solver(None, "f1", comm)[0] == "bmrm"
    for asked, also in (("lmvm", ""), (None, "options")):
        with pytest.raises(InputError, match=f"{asked or also} needs PETSc.*it is away.*lbfgs is used") as caught:
            choose_solver(asked, "rocarea", comm, lmvm_only=also)
        assert caught.value.everywhere


@pytest.mark.serial
def test_asking_starts_neither_mpi_nor_petsc():
    pytest.importorskip("petsc4py")
    code = (
        "import sys, mpi4py\nfrom distsms.optim.solvers import tao\nassert tao.lacking(load=False) == '' and "
        "'petsc4py.PETSc' not in sys.modules\nassert tao.lacking() == ''\nmpi4py.rc.initialize = False\nfrom mpi4py "
        "import MPI\nassert not MPI.Is_initialized()"
    )
    subprocess.run([sys.executable, "-c", code], check=True)


@pytest.mark.serial
def test_what_needs_petsc_is_refused_before_anything_is_read(tmp_path):
    """Where the data are missing, too, it is petsc4py that is named."""
    lines = [
        ["train", "x", "--solver", "lmvm"],
        ["train", "x", "--", "-tao_monitor"],
        ["path", "x", "--solver", "lmvm"],
        ["baseline", "x", "--solver", "lmvm"],
    ]
    code = (
        f"{BLOCKED}from distsms.__main__ import main\nfor line in {lines!r}:\n    print('==', *line, file=sys.stderr, "
        "flush=True)\n    assert main(line) == 1\nimport distsms\nfor more in ({'solver': 'lmvm'}, {'solver_options': "
        "('-tao_monitor',)}):\n    try: distsms.train('x', **more)\n    except distsms.InputError as error: "
        "print('==', more, error, file=sys.stderr)\n    else: raise AssertionError(more)"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=False, cwd=tmp_path)
    assert done.returncode == 0, done.stderr
    told = done.stderr.split("==")[1:]
    assert len(told) == len(lines) + 2
    for one in told:
        assert "needs PETSc's Python package: petsc4py is not installed" in one and "Traceback" not in one


@pytest.mark.serial
def test_a_petsc_that_does_not_load_is_as_good_as_none(tmp_path):
    (tmp_path / "petsc4py" / "lib").mkdir(parents=True)
    (tmp_path / "petsc4py" / "__init__.py").write_text("__version__ = '3.18.0'")
    (tmp_path / "petsc4py" / "lib" / "__init__.py").write_text(
        "def ImportPETSc(): raise OSError('libpetsc_real.so.3.18: cannot open shared object file')"
    )
    code = (
        f"import sys; sys.path.insert(0, {str(tmp_path)!r})\nfrom distsms.base.communicator import Communicator\n"
        "from distsms.training.solver_choice import choose_solver\nprint(*choose_solver(None, 'rocarea', "
        "Communicator()))"
    )
    out = subprocess.check_output([sys.executable, "-c", code], text=True)
    assert out.startswith("lbfgs") and "libpetsc_real.so.3.18: cannot open" in out


@pytest.mark.serial
def test_every_command_without_petsc(tmp_path):
    """It is written down: in the trace, in models, in tables. Where petsc4py is merely not there, nothing is wrong, and
    nothing is said of it; where it is broken, that is said first.
    """
    write_data(tmp_path / "data", *data(120))
    lines = [
        "train data --lambda 1e-2 --output model.h5 --trace trace.jsonl --step spread",
        "path data --lambdas 1e-1 --output path --folds 2",
        "baseline data --lambdas 1e-1 --output beside --folds 2 --methods distsms",
    ]

    def told(before, lines):
        code = f"{before}from distsms.__main__ import main\nfor line in {lines!r}: assert main(line.split()) == 0"
        return subprocess.check_output([sys.executable, "-c", code], text=True, cwd=tmp_path)

    assert "petsc4py" not in told(BLOCKED, lines)
    assert {json.loads(line)["solver"] for line in (tmp_path / "trace.jsonl").read_text().splitlines()} == {"lbfgs"}
    for model in ("model.h5", "path/model.h5"):
        assert load(tmp_path / model).info["settings"]["solver"] == "lbfgs"
    assert json.loads((tmp_path / "beside" / "baseline.json").read_text())["solver"] == "lbfgs"
    out = told(BROKEN, ["train data --lambda 1e-2 --output model.h5"])
    assert out.startswith("solver    lbfgs: in lmvm's place, since petsc4py cannot be imported: "), out


@pytest.mark.serial
@pytest.mark.parametrize("command", ["train", "path", "baseline"])
def test_help_names_the_usual_solver(command, capsys):
    with pytest.raises(SystemExit):
        cli.parse([command, "--help"])
    assert USUAL_SOLVER in " ".join(capsys.readouterr().out.split())
