"""Rules of the house: where the libraries come in, and what starts when."""

from __future__ import annotations

import configparser
import re
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest
from scipy import sparse

import distsms
from distsms.base.errors import InputError
from distsms.optim.solvers import tao
from distsms.shards.from_arrays import write_data

pytestmark = pytest.mark.serial
PACKAGE = Path(distsms.__file__).parent


def importers(library, sources):
    statement = re.compile(rf"^\s*(?:import|from) {library}\b", re.M)
    return {name for name, text in sources.items() if statement.search(text)}


def test_few_parts_of_the_package_import_from_each_other():
    """A part is a sub-package or a module at the top. Imports for types and in functions count, too."""
    graph = pytest.importorskip("grimp").build_graph("distsms", cache_dir=None)
    part = {module: module.split(".")[1] if "." in module else module for module in graph.modules}
    pairs = {(part[one], part[other]) for one in part for other in graph.find_modules_directly_imported_by(one)}
    pairs -= {(one, one) for one in part.values()}
    assert {("training", "optim"), ("__main__", "cli"), ("distsms", "python")} < pairs
    assert len(pairs) <= 80, sorted(pairs)


def test_libraries_come_in_at_one_place():
    places = {
        "mpi4py": {"parallel/communicator.py", "parallel/mpi.py"},
        "petsc4py": {"optim/solvers/tao.py"},
        "h5py": {
            "ingest/formats/anndata.py",
            "shards/coded_columns.py",
            "shards/reader.py",
            "shards/storage.py",
            "shards/writer.py",
            "models/output.py",
            "base/hdf5.py",
        },
        "numcodecs": {"shards/storage.py"},
        "pyarrow": {
            "ingest/formats/amounts.py",
            "ingest/formats/arrow.py",
            "ingest/formats/columns.py",
            "ingest/formats/csv_files.py",
            "ingest/formats/dates.py",
            "ingest/frames.py",
            "models/output.py",
        },
        "matplotlib": {"page/mpl.py"},
        "sklearn": {
            "python/estimator.py",
            "features/growing.py",
            "python/transformers.py",
            "workflow/competitors.py",
        },
        "xgboost": {"workflow/competitors.py"},
        "lightgbm": {"workflow/competitors.py"},
        "onnx": {"models/onnx_features.py"},
        "greenlet": {"optim/batching.py"},
        "fsspec": {"base/addresses.py"},
    }
    sources = {str(path.relative_to(PACKAGE)): path.read_text() for path in PACKAGE.rglob("*.py")}
    assert {library: importers(library, sources) for library in places} == places


def test_what_the_demo_installs_is_enough_for_the_tour():
    """Every extra but those of MPI, which comes from the system, of addresses, devices, tests, benchmarks and the
    manual."""
    (named,) = re.findall(r"stamp-run extras=(\S+)", (PACKAGE.parent / "scripts" / "setup").read_text())
    setup = configparser.ConfigParser()
    setup.read(PACKAGE.parent / "setup.cfg")
    assert set(named.split(",")) == set(setup["options.extras_require"]) - {
        "mpi",
        "petsc",
        "remote",
        "cuda",
        "bench",
        "dev",
        "docs",
    }


def requirements(lines):
    """Return a mapping from names to bounds."""
    return dict(re.match(r"([\w-]+) *([^;]*)", line).groups() for line in lines.split("\n") if line)


def test_the_recipe_for_conda_has_the_dependencies_of_the_package():
    """Those of a run and of PETSc are required, those of extras are bounded alike."""
    recipe = pytest.importorskip("yaml").safe_load((PACKAGE.parent / "docker" / "recipe.yaml").read_text())
    setup = configparser.ConfigParser()
    setup.read(PACKAGE.parent / "setup.cfg")
    extras = setup["options.extras_require"]
    needed = requirements(setup["options"]["install_requires"]) | requirements(extras["petsc"])
    wanted = requirements("\n".join(recipe["requirements"]["run"]))
    assert "python_requires = >=" + recipe["context"]["python_min"] in (PACKAGE.parent / "setup.cfg").read_text()
    others = {name: bounds for name, bounds in wanted.items() if name not in ("__linux", "python", "mpi")}
    renamed = {"matplotlib": "matplotlib-base", "xgboost-cpu": "py-xgboost", "xxhash": "python-xxhash"}
    assert others == {renamed.get(name, name): bounds for name, bounds in needed.items()}
    optional = requirements(
        "\n".join(extras[name] for name in ("plot", "sklearn", "tables", "codecs", "export", "baseline"))
    )
    bounds = {renamed.get(name, name): bounds for name, bounds in optional.items()}
    assert requirements("\n".join(recipe["requirements"]["run_constraints"])) == bounds
    assert recipe["context"]["version"] == distsms.__version__


def loaded(code):
    """Which modules a fresh Python has loaded after some code."""
    program = f"import sys\n{code}\nprint(' '.join(sys.modules))"
    return set(subprocess.check_output([sys.executable, "-c", program], text=True).split("\n")[-2].split())


def test_importing_the_package_starts_nothing():
    assert not loaded("import distsms\ndir(distsms)") & {"numpy", "mpi4py", "petsc4py", "h5py", "sklearn"}


def test_help_starts_nothing():
    code = (
        "from distsms.__main__ import main\nfrom distsms.cli import COMMANDS\nfor command in COMMANDS:\n"
        "    try: main([command, '--help'])\n    except SystemExit: pass"
    )
    assert not loaded(code) & {"numpy", "mpi4py", "mpi4py.MPI", "petsc4py", "h5py", "scipy", "numba", "matplotlib"}


def test_information_starts_neither_mpi_nor_petsc(tmp_path):
    code = (
        "from distsms.__main__ import main\nassert main(['info']) == 0\n"
        "from mpi4py import MPI\nassert not MPI.Is_initialized()"
    )
    assert "petsc4py.PETSc" not in loaded(code)


def test_training_loads_no_more_than_it_needs(tmp_path):
    """Neither parts of SciPy, nor what drives devices, nor, for kernels in the cache, parts of Numba for np.empty."""
    X = np.random.default_rng(0).random((60, 4)) < 0.5
    write_data(tmp_path / "data", sparse.csr_matrix(X.astype(float)), np.where(X[:, 0], 1, -1))
    words = ["train", str(tmp_path / "data"), "--solver", "lbfgs", "--quiet", "--output", str(tmp_path / "m.h5")]
    code = f"from distsms.__main__ import main\nassert main({words}) == 0\nimport gc; assert gc.isenabled()"
    needless = {"numba.cpython.unicode", "pyarrow", "sklearn"}
    needless |= {f"scipy.{part}" for part in ("sparse", "special", "linalg", "optimize")}
    found = loaded(code)
    if needless & found:  # the kernels were not in the cache yet
        found = loaded(code)
    assert not needless & found
    assert not [name for name in found if name.startswith(("numba.cuda.", "numba_cuda", "distsms.device.r"))]


def test_only_training_needs_petsc():
    """With petsc4py made unimportable, other commands come as far as their missing files."""
    lines = ["synth dense /dev/null/x", "info x", "report x --test y", "export x --to csv"]
    lines += [f"{command} x y" for command in ("evaluate", "verify", "predict", "shard", "features")]
    code = (
        "import sys\nsys.modules['petsc4py'] = None\nfrom distsms.__main__ import main\n"
        f"for line in {lines}: assert main(line.split()) == 1, line"
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


def test_threads_are_set_before_numpy_is_loaded(monkeypatch):
    monkeypatch.setenv("OMP_NUM_THREADS", "2")
    code = (
        "import os, sys\nfrom distsms.__main__ import main\nassert 'numpy' not in sys.modules\nassert "
        "main(['train', 'x', '--threads', '5']) == 1\nfrom distsms.matrix.blocks import thread_count\n"
        "assert thread_count() == 5 and os.environ['OPENBLAS_NUM_THREADS'] == '5'"
    )
    assert "numpy" in loaded(code)


def test_every_row_on_reliability_has_its_test():
    """The page names them as file and function."""
    page = next(
        page for page in (PACKAGE.parent / "docs" / "reliability.md", PACKAGE.parent / "README.md") if page.exists()
    )
    rows = page.read_text().partition("| what happens |")[2].partition("\n\n")[0].splitlines()[2:]
    assert len(rows) > 30
    tests = dict[str, str]()
    for path in (PACKAGE.parent / "tests").rglob("test_*.py"):
        tests[path.name] = tests.get(path.name, "") + path.read_text()
    for row in rows:
        named = re.findall(r"`(test_\w+\.py)::(test_\w+)`", row)
        assert named, row
        for file, function in named:
            assert f"def {function}(" in tests[file], function


def test_a_path_without_greenlet_is_refused_in_a_sentence(tmp_path):
    code = (
        "import sys\nsys.modules['greenlet'] = None\n"
        "from distsms.__main__ import main\nassert main(['path', 'x', '--output', 'y']) == 1"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=False, cwd=tmp_path)
    assert done.returncode == 0, done.stderr
    assert "pip install greenlet" in done.stderr and "Traceback" not in done.stderr


def test_what_needs_scikit_learn_says_how_to_install_it():
    names = ["SMSClassifier", "BinCodes", "LeafCodes"]
    code = (
        "import sys; sys.modules['sklearn'] = None\nimport distsms; distsms.train\n"
        f"for name in {names}:\n    try: getattr(distsms, name)\n    except ImportError as error: print(error)"
    )
    told = subprocess.check_output([sys.executable, "-c", code], text=True).splitlines()
    needs = "needs scikit-learn, which is not installed: pip install 'distsms[sklearn]'"
    assert told == [f"distsms.{name} {needs}" for name in names]


def test_a_petsc_for_another_numpy_is_an_error_with_a_remedy(monkeypatch):
    library = pytest.importorskip("petsc4py.lib")

    def refuses(*_, **__):
        raise ValueError("numpy.dtype size changed, may indicate binary incompatibility")

    monkeypatch.setattr(library, "ImportPETSc", refuses)
    with pytest.raises(InputError, match=r"numpy\.dtype size changed.*pip install 'numpy<2'"):
        tao._petsc.__wrapped__()
