"""What `pip install` makes of a clone: an editable installation is found from anywhere, and a wheel says its commit."""

from __future__ import annotations

import ast
import os
import shutil
import subprocess
import sys
import zipfile
from pathlib import Path

import pytest

from distsms.base import _version
from distsms.workflow.provenance import provenance
from tests.support.program import ROOT

pytestmark = pytest.mark.serial
NAMES = (
    "setup.cfg",
    "pyproject.toml",
    "MANIFEST.in",
    "README.md",
    "LICENSE",
    "scripts/__init__.py",
    "scripts/building.py",
)
PACKAGE = ("distsms/__init__.py", "distsms/base/__init__.py", "distsms/base/_version.py")


def in_words(*words, folder):
    others = {name: value for name, value in os.environ.items() if name != "PYTHONPATH"}
    done = subprocess.run(words, cwd=folder, env=others, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stdout + done.stderr
    return done.stdout.strip()


@pytest.fixture
def clone(tmp_path):
    """A clone named distsms with what a build reads, and one commit."""
    pytest.importorskip("wheel")
    folder = tmp_path / "beside" / "distsms"
    for name in (*NAMES, *PACKAGE):
        (folder / name).parent.mkdir(parents=True, exist_ok=True)
        shutil.copy(ROOT / name, folder / name)
    git = ("git", "-c", "user.name=x", "-c", "user.email=x@localhost", "-c", "commit.gpgsign=false")
    for words in (("init", "--quiet"), ("add", "."), ("commit", "--quiet", "--message", "All")):
        in_words(*git, *words, folder=folder)
    return folder


def build(clone, hook, folder):
    """Build something of a clone as pip does, and return the file."""
    folder.mkdir()
    code = f"from setuptools import build_meta\nprint(build_meta.{hook}({str(folder)!r}))"
    return folder / in_words(sys.executable, "-c", code, folder=clone).split("\n")[-1]


@pytest.mark.by_turns
def test_an_editable_installation_is_found_beside_the_clone(clone, tmp_path):
    """Python looks first into the current folder, and there the clone is a folder that is named like the package."""
    with zipfile.ZipFile(build(clone, "build_editable", tmp_path / "editable")) as wheel:
        wheel.extractall(tmp_path / "site")
    code = f"import site; site.addsitedir({str(tmp_path / 'site')!r})\nimport distsms; print(distsms.__file__)"
    for folder in (clone.parent, clone, tmp_path):
        assert in_words(sys.executable, "-S", "-c", code, folder=folder) == str(clone / "distsms" / "__init__.py")


@pytest.mark.by_turns
def test_what_is_built_says_of_which_commit(clone, tmp_path):
    """Also a wheel that is built from an sdist, which is no clone."""
    commit = in_words("git", "rev-parse", "--short=10", "HEAD", folder=clone)
    shutil.unpack_archive(build(clone, "build_sdist", tmp_path / "sdist"), tmp_path / "unpacked")
    (unpacked,) = (tmp_path / "unpacked").iterdir()
    with zipfile.ZipFile(build(unpacked, "build_wheel", tmp_path / "wheel")) as wheel:
        assert wheel.read(f"distsms/base/{_version.COMMIT}").decode() == f"{commit}\n"
        wheel.extractall(tmp_path / "installed")
    code = "from distsms.base._version import *; print(full_version())"
    assert in_words(sys.executable, "-c", code, folder=tmp_path / "installed") == (
        f"{_version.__version__} (commit {commit})"
    )
    in_clone = [sys.executable, "-c", code]
    assert in_words(*in_clone, folder=clone) == f"{_version.__version__} (commit {commit})"
    (clone / "README.md").write_text("changed")
    assert in_words(*in_clone, folder=clone) == f"{_version.__version__} (commit {commit}-dirty)"


def test_without_clone_and_record_there_is_no_commit(clone):
    shutil.rmtree(clone / ".git")
    code = "from distsms.base._version import *; print(full_version())"
    assert in_words(sys.executable, "-c", code, folder=clone) == _version.__version__


def test_the_version_stands_in_one_place():
    """What has to repeat it is compared with it."""
    recipe = Path(ROOT, "docker", "recipe.yaml").read_text()
    assert f'version: "{_version.__version__}"' in recipe
    assert Path(ROOT, "CHANGES.md").read_text().split("\n## ")[1].startswith((_version.__version__, "Not yet"))


def test_a_model_says_which_version_and_commit_made_it():
    versions = provenance()["versions"]
    assert versions["distsms"] == _version.__version__ and versions.get("commit") == _version.commit()


def test_nothing_is_imported_that_the_oldest_python_lacks():
    """setup.cfg allows Python 3.10; these names came with later versions."""
    later = {"datetime": {"UTC"}, "enum": {"StrEnum"}, "contextlib": {"chdir"}, "itertools": {"batched"}}
    later |= {"typing": {"Self", "LiteralString", "Never", "assert_never", "override"}, "hashlib": {"file_digest"}}
    modules = [path for folder in ("distsms", "scripts") for path in (ROOT / folder).rglob("*.py")]
    assert len(modules) > 300
    for path in modules:
        text = path.read_text()
        known = any(name in text for names in later.values() for name in names)
        for node in ast.walk(ast.parse(text)) if known else ():
            if isinstance(node, ast.ImportFrom):
                names = {alias.name for alias in node.names} & later.get(node.module or "", set())
                assert not names, f"{path}: {names}"
