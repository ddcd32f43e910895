"""The cache of compiled kernels."""

from __future__ import annotations

import gc
import importlib
import os
import pwd
import stat
import subprocess
import sys
from pathlib import Path
from types import SimpleNamespace
from typing import NamedTuple

import numpy as np
import pytest
from numba import typeof

from distsms.base import jit
from distsms.base.jit import njit

pytestmark = pytest.mark.serial


@pytest.fixture(autouse=True)
def no_places_yet():
    """What was found out about folders of other tests is forgotten."""
    jit._places.cache_clear()
    jit._warn_once.cache_clear()
    yield
    jit._places.cache_clear()


@pytest.mark.parametrize("home", [None, "relative"])
def test_without_a_place_for_the_cache(home, monkeypatch, capfd, tmp_path):
    """A home that is not known, or no path, makes no folder of that name, such as ~, in the working directory."""
    monkeypatch.chdir(tmp_path)
    for name in ("NUMBA_CACHE_DIR", "XDG_CACHE_HOME", "HOME"):
        monkeypatch.delenv(name, raising=False)
    if home:
        monkeypatch.setenv("HOME", home)
    monkeypatch.setattr(pwd, "getpwuid", lambda uid: {}[uid])  # as for a user that is not in passwd
    monkeypatch.setattr(jit, "_OF_PROGRAM", Path(__file__, "compiled"))
    monkeypatch.setattr(jit.compiling, "kept", True)
    assert njit()(lambda x: 2 * x)(3) == 6
    assert njit()(lambda x: 3 * x)(3) == 9
    assert capfd.readouterr().err.count("kernels are compiled at each start") == 1
    assert not jit.compiling.kept and os.listdir() == [] and os.environ.get("HOME") == home


TWICE = """import sys
import numpy as np
from distsms.base.jit import njit

@njit()
def twice(x):
    return 2 * x

def compiler():
    return "numba.cpython.cmathimpl" in sys.modules
"""
CALL = """import sys, numpy as np, kernel
from distsms.base.jit import compiling
first = kernel.twice(np.ones(2)).tolist(), kernel.compiler(), compiling.seconds > 0
print(first, kernel.twice(np.ones(2, np.{other})).tolist())
"""


@pytest.mark.by_turns
def test_a_version_in_the_cache_is_loaded_without_the_compiler(tmp_path):
    """Also a version that allocates memory; and another version is compiled after it as if it were the first."""
    (tmp_path / "kernel.py").write_text(TWICE)
    env = {**os.environ, "PYTHONPATH": str(Path(__file__).parents[2]), "NUMBA_CACHE_DIR": str(tmp_path / "cache")}
    for compiled, other in ((True, "float64"), (False, "int32"), (False, "int32")):
        command = [sys.executable, "-c", CALL.format(other=other)]
        said = subprocess.run(command, cwd=tmp_path, env=env, capture_output=True, text=True, check=True)
        assert said.stdout == f"([2.0, 2.0], {compiled}, {compiled}) {[2, 2] if other == 'int32' else [2.0, 2.0]}\n"


def test_seconds_of_nested_compilations_count_once(monkeypatch):
    times = iter([10.0, 15.0, 20.0, 21.0])
    monkeypatch.setattr(jit, "time", SimpleNamespace(monotonic=lambda: next(times)))
    compiling = jit._Compiling()
    for told in ("start", "start", "end", "end", "start", "end"):
        getattr(compiling, f"on_{told}")(None)
    assert compiling.seconds == 5.0 + 1.0


STORE = """import os, sys
import numpy as np
import kernel

rename = os.replace
def slowly(*paths):
    print("written", flush=True)
    sys.stdin.readline()
    rename(*paths)
os.replace = slowly
print(kernel.twice(np.ones(2, sys.argv[1])).tolist(), flush=True)
"""


@pytest.mark.by_turns
def test_processes_that_store_at_once_do_not_wait_for_each_other(tmp_path):
    """Neither for the same version nor for another one; and all of them are complete."""
    (tmp_path / "kernel.py").write_text(TWICE)
    env = {**os.environ, "PYTHONPATH": str(Path(__file__).parents[2]), "NUMBA_CACHE_DIR": str(tmp_path / "cache")}
    pipes = {"stdin": subprocess.PIPE, "stdout": subprocess.PIPE, "text": True}
    jobs = [
        subprocess.Popen([sys.executable, "-c", STORE, dtype], cwd=tmp_path, env=env, **pipes)
        for dtype in ("float64", "float64", "int32")
    ]
    assert [job.stdout.readline() for job in jobs] == ["written\n"] * len(jobs)  # all are between the two steps
    for job in reversed(jobs):
        assert job.communicate("go\n", timeout=60)[0] in ("[2.0, 2.0]\n", "[2, 2]\n")
    assert len(cached(tmp_path)) == len({"float64", "int32"})
    said = subprocess.run(
        [sys.executable, "-c", CALL.format(other="int32")], cwd=tmp_path, env=env, capture_output=True
    )
    assert said.stdout.decode().startswith("([2.0, 2.0], False, False) ")


def test_a_version_that_cannot_be_stored_is_used_nevertheless(tmp_path, monkeypatch):
    def full(*_):
        raise OSError(28, "No space left on device")

    monkeypatch.setenv("NUMBA_CACHE_DIR", str(tmp_path))
    monkeypatch.setattr(os, "replace", full)

    @njit()
    def fivefold(x):
        return 5 * x

    assert fivefold(np.int16(2)) == 10


def test_the_user_is_told_once_while_kernels_are_compiled_for_long(monkeypatch, caplog):
    times = iter([0.0, jit.LONG - 0.1, 10.0, 10.2, 20.0, 30.0])
    monkeypatch.setattr(jit, "time", SimpleNamespace(monotonic=lambda: next(times)))
    compiling = jit._Compiling()
    for said in (0, 1, 1):
        compiling.on_start(None)
        assert not gc.isenabled()
        compiling.on_end(None)
        assert gc.isenabled() and len(caplog.messages) == said
    assert "later runs take them from a cache" in caplog.text


@pytest.fixture
def kernel(tmp_path, monkeypatch):
    """Returns a new dispatcher of the same kernel, which has the number of calls that were compiled."""
    monkeypatch.setenv("NUMBA_CACHE_DIR", str(tmp_path / "cache"))
    monkeypatch.setattr(jit, "_OF_PROGRAM", Path(__file__, "compiled"))

    def sevenfold(x):
        return 7 * x

    def compiled():
        jit._places.cache_clear()
        dispatcher = njit()(sevenfold)
        assert dispatcher(np.int64(6)) == 42
        return sum(dispatcher.stats.cache_misses.values())

    return compiled


def cached(folder):
    return [path for path in folder.rglob("*.nbc")]


def test_damaged_files_of_the_cache_are_compiled_again(kernel, tmp_path):
    assert (kernel(), kernel()) == (1, 0)
    (path,) = cached(tmp_path)
    whole = path.read_bytes()
    damaged = [whole[: len(whole) // 2], b"", whole[:-32], whole + b"x"]
    damaged += [whole[:at] + bytes([whole[at] ^ 4]) + whole[at + 1 :] for at in range(0, len(whole), len(whole) // 7)]
    for content in damaged:
        path.write_bytes(content)
        assert (kernel(), kernel()) == (1, 0)
    assert cached(tmp_path) == [path]


def test_a_cache_where_others_can_write_is_not_used(kernel, tmp_path, capfd):
    """Neither a folder of another user, nor one that can be exchanged, nor a file of another user or open to others."""
    kernel()
    folder, said = tmp_path / "cache" / "distsms", "is not used for compiled kernels"
    folder.chmod(0o777)  # as with the umask 000: it is ours, and closed to others
    assert kernel() == 0
    assert stat.S_IMODE(folder.stat().st_mode) == 0o755
    cached(folder)[0].chmod(0o666)
    assert kernel() == 1
    (tmp_path / "cache").chmod(0o777)
    assert kernel() == 1
    assert said in capfd.readouterr().err
    (tmp_path / "cache").chmod(0o1777)
    assert kernel() == 0
    if os.geteuid() == 0:
        os.chown(cached(folder)[0], 4242, 4242)
        assert kernel() == 1
        jit._warn_once.cache_clear()
        os.chown(folder, 4242, 4242)
        assert kernel() == 1
        assert said in capfd.readouterr().err


def test_what_was_compiled_with_the_program_is_found(kernel, tmp_path, monkeypatch):
    """As in an image: a folder that nobody can write to, whoever runs the program."""
    kernel()
    monkeypatch.setattr(jit, "_OF_PROGRAM", tmp_path / "compiled")
    (tmp_path / "cache" / "distsms").rename(tmp_path / "compiled")
    (tmp_path / "cache").rmdir()
    assert kernel() == 0
    monkeypatch.setattr(os, "access", lambda path, mode: False)
    assert kernel() == 0


def test_old_versions_are_removed(kernel, tmp_path, monkeypatch):
    monkeypatch.setattr(jit, "KEPT", 2)
    for number in range(4):
        monkeypatch.setattr(np, "__version__", f"0.{number}")
        jit._platform.cache_clear()
        assert kernel() == 1
    assert len(cached(tmp_path)) == 2 and kernel() == 0
    monkeypatch.undo()
    jit._platform.cache_clear()


INNER = """from distsms.base.jit import njit

factor = {factor}

@njit()
def times(x):
    return {result}
"""
OUTER = """import inner
from distsms.base.jit import njit
from inner import factor

@njit()
def result(x):
    return factor * inner.times(x)
"""


@pytest.mark.parametrize(
    "inner, outer, expected, hits",
    [
        (INNER.format(factor=4, result="x"), OUTER, 20, 0),
        (INNER.format(factor=3, result="2 * x"), OUTER, 30, 0),
        (INNER.format(factor=3, result="x"), OUTER.replace("@njit()", '@njit(error_model="numpy")'), 15, 0),
        ('"""About it."""\n\n' + INNER.format(factor=3, result="x") + "\nother = 5\n", "\n" + OUTER, 15, 1),
    ],
)
def test_what_has_changed_is_compiled_and_nothing_else(inner, outer, expected, hits, tmp_path, monkeypatch):
    """A kernel and a constant of another module are compiled into a kernel; what else stands in a file is not."""
    monkeypatch.setenv("NUMBA_CACHE_DIR", str(tmp_path / "cache"))
    monkeypatch.syspath_prepend(tmp_path)
    monkeypatch.setattr(sys, "dont_write_bytecode", True)
    before, results = (INNER.format(factor=3, result="x"), OUTER), []
    for texts in (before, before, (inner, outer)):
        for name, text in zip(("inner", "outer"), texts, strict=True):
            (tmp_path / f"{name}.py").write_text(text)
            monkeypatch.delitem(sys.modules, name, raising=False)
        importlib.invalidate_caches()
        kernel = importlib.import_module("outer").result
        results.append((kernel(5), sum(kernel.stats.cache_hits.values())))
    assert results == [(15, 0), (15, 1), (expected, hits)]


def test_a_tuple_with_other_fields_is_another_type():
    """Numba's name of it has no fields, but kernels read them by their places."""
    one, other = (NamedTuple("Pair", [(name, float) for name in names]) for names in (("a", "b"), ("b", "a")))
    assert str(typeof(one(1.0, 2.0))) == str(typeof(other(1.0, 2.0)))
    assert jit._described(typeof(one(1.0, 2.0))) != jit._described(typeof(other(1.0, 2.0)))
