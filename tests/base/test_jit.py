"""The cache of compiled kernels, used by two processes at once."""

from __future__ import annotations

import importlib
import os
import pwd
import stat
import subprocess
import sys
from pathlib import Path
from types import SimpleNamespace

import numpy as np
import pytest
from numba.core import caching, config

from distsms.base import jit
from distsms.base.jit import LOCK, njit

pytestmark = pytest.mark.serial


@pytest.mark.parametrize("home", [None, "relative"])
def test_without_a_place_for_the_cache(home, monkeypatch, capfd, tmp_path):
    """A home that is not known, or no path, makes no folder of that name, such as ~, in the working directory."""
    monkeypatch.chdir(tmp_path)
    monkeypatch.delenv("NUMBA_CACHE_DIR", raising=False)
    monkeypatch.delenv("HOME", raising=False)
    if home:
        monkeypatch.setenv("HOME", home)
    monkeypatch.setattr(pwd, "getpwuid", lambda uid: {}[uid])  # as for a user that is not in passwd
    of_home = [place for place in caching.CacheImpl._locator_classes if "UserWide" in place.__name__]
    assert of_home
    monkeypatch.setattr(caching.CacheImpl, "_locator_classes", of_home)
    monkeypatch.setattr(jit.compiling, "kept", True)
    jit._warn_once.cache_clear()
    assert njit()(lambda x: 2 * x)(3) == 6
    assert njit()(lambda x: 3 * x)(3) == 9
    assert capfd.readouterr().err.count("kernels are compiled at each start") == 1
    assert not jit.compiling.kept and os.listdir() == [] and os.environ.get("HOME") == home


MODULE = """\
import numba
from distsms.base.jit import njit

{decorator}
def bytes_of(x):
    return x.itemsize
"""
STORE = """\
import sys, time
import numpy as np
import kernel
from numba.core.caching import IndexDataCacheFile

save = IndexDataCacheFile._save_index
def slowly(self, overloads):
    save(self, overloads)
    print("index", flush=True)
    sys.stdin.readline()  # wait between writing the two files of one cache entry
IndexDataCacheFile._save_index = slowly
print("ready", flush=True)
sys.stdin.readline()
kernel.bytes_of(np.zeros(1, sys.argv[1]))
"""


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


def test_a_version_in_the_cache_is_loaded_without_the_compiler(tmp_path):
    """Also a version that allocates memory; and another version is compiled after it as if it were the first."""
    (tmp_path / "kernel.py").write_text(TWICE)
    env = {**os.environ, "PYTHONPATH": str(Path(__file__).parents[2]), "NUMBA_CACHE_DIR": str(tmp_path / "cache")}
    for compiled, other in ((True, "float64"), (False, "float64"), (False, "int32"), (False, "int32")):
        command = [sys.executable, "-c", CALL.format(other=other)]
        said = subprocess.run(command, cwd=tmp_path, env=env, capture_output=True, text=True, check=True)
        assert said.stdout == f"([2.0, 2.0], {compiled}, {compiled}) {[2, 2] if other == 'int32' else [2.0, 2.0]}\n"


def test_seconds_of_nested_compilations_count_once(monkeypatch):
    times = iter([10.0, 11.0, 12.0, 15.0, 20.0, 21.0])
    monkeypatch.setattr(jit, "time", SimpleNamespace(monotonic=lambda: next(times)))
    compiling = jit._Compiling()
    for told in ("start", "start", "end", "end", "start", "end"):
        getattr(compiling, f"on_{told}")(None)
    assert compiling.seconds == 5.0 + 1.0


def store(folder, env, dtype):
    return subprocess.Popen(
        [sys.executable, "-c", STORE, dtype],
        cwd=folder,
        env=env,
        text=True,
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
    )


@pytest.mark.parametrize("ours", [True, False])
def test_two_processes_that_store_at_once_are_not_mixed_up(tmp_path, ours):
    """With Numba's own cache the versions are mixed up, which shows that this test can fail."""
    (tmp_path / "kernel.py").write_text(MODULE.format(decorator="@njit()" if ours else "@numba.njit(cache=True)"))
    root = str(Path(__file__).parents[2])
    env = {**os.environ, "PYTHONPATH": root, "NUMBA_CACHE_DIR": str(tmp_path / "cache")}
    first, second = (store(tmp_path, env, dtype) for dtype in ("int8", "float64"))
    for process in (first, second):
        assert process.stdout.readline() == "ready\n"
    first.stdin.write("go\n")
    first.stdin.flush()
    assert first.stdout.readline() == "index\n"
    if ours:  # the second process waits for the lock
        second.stdin.write("go\n\n")
        second.stdin.flush()
        first.communicate("\n", timeout=60)
        second.communicate(timeout=60)
    else:  # the second process stores its entry before the first one has stored the rest of its own
        (found,) = (path for path in (tmp_path / "cache").rglob("*.nbi"))
        found.unlink()  # as if the second process had read the index a moment earlier
        second.communicate("go\n\n", timeout=60)
        first.communicate("\n", timeout=60)
    line = "import numpy as np, kernel; print(*(kernel.bytes_of(np.zeros(1, d)) for d in ('int8', 'float64')))"
    said = subprocess.run([sys.executable, "-c", line], cwd=tmp_path, env=env, capture_output=True, text=True)
    assert (said.stdout == "1 8\n") == ours


def test_a_folder_that_cannot_be_locked(tmp_path, monkeypatch):
    """The kernel works nevertheless."""
    import fcntl

    def refuse(*_):
        raise OSError("no locks here")

    monkeypatch.setattr(fcntl, "flock", refuse)
    monkeypatch.setenv("NUMBA_CACHE_DIR", str(tmp_path))

    @njit()
    def twice(x):
        return 2 * x

    assert twice(np.int32(4)) == 8


def test_a_lock_that_is_held_is_waited_for_once(tmp_path, monkeypatch, capfd):
    """After that a message is printed, and kernels are loaded and stored without the lock."""
    import fcntl

    from distsms.base import jit

    monkeypatch.setattr(jit, "PATIENCE", 0.2)
    folder = str(tmp_path)
    with open(tmp_path / LOCK, "a+b") as holder:
        fcntl.flock(holder, fcntl.LOCK_EX)
        for kind in (fcntl.LOCK_SH, fcntl.LOCK_EX, fcntl.LOCK_SH):
            with jit._lock(folder, kind):
                pass
    assert capfd.readouterr().err.count("continuing without") == 1


def test_a_version_that_cannot_be_stored_is_used_nevertheless(tmp_path, monkeypatch):
    from numba.core.caching import IndexDataCacheFile

    def full(*_):
        raise OSError(28, "No space left on device")

    monkeypatch.setenv("NUMBA_CACHE_DIR", str(tmp_path))
    monkeypatch.setattr(IndexDataCacheFile, "save", full)

    @njit()
    def fivefold(x):
        return 5 * x

    assert fivefold(np.int16(2)) == 10


def test_the_cache_is_opened_by_the_first_call(monkeypatch):
    opened = []
    monkeypatch.setattr(caching.CacheImpl, "__init__", lambda self, function: opened.append(function) or 1 / 0)
    kernel = njit()(lambda x: 2 * x)
    assert not opened
    with pytest.raises(ZeroDivisionError):
        kernel(3)
    assert len(opened) == 1


@pytest.fixture
def kernel(tmp_path, monkeypatch):
    """Returns a new dispatcher of the same kernel, which has the number of calls that were compiled."""
    monkeypatch.setenv("NUMBA_CACHE_DIR", str(tmp_path / "cache"))
    monkeypatch.setattr(config, "CACHE_DIR", str(tmp_path / "cache"))
    monkeypatch.setattr(caching.CacheImpl, "_locator_classes", caching.CacheImpl._locator_classes[:1])
    monkeypatch.setattr(jit, "_warn_once", print)

    def sevenfold(x):
        return 7 * x

    def made():
        found = njit()(sevenfold)
        assert found(np.int64(6)) == 42
        return sum(found.stats.cache_misses.values())

    return made


def cached(folder):
    return [path for path in folder.rglob("*.nb?")]


def test_damaged_files_of_the_cache_are_compiled_again(kernel, tmp_path):
    assert (kernel(), kernel()) == (1, 0)
    for path in cached(tmp_path):
        whole = path.read_bytes()
        damaged = [whole[: len(whole) // 2], b"", whole[:-32], whole + b"x"]
        damaged += [
            whole[:at] + bytes([whole[at] ^ 4]) + whole[at + 1 :] for at in range(0, len(whole), len(whole) // 7)
        ]
        for content in damaged:
            path.write_bytes(content)
            assert (kernel(), kernel()) == (1, 0)
    assert len(cached(tmp_path)) == 2


def test_a_cache_where_others_can_write_is_not_used(kernel, tmp_path, capfd):
    """Neither a folder of another user, nor one that can be exchanged, nor a file of another user or open to others."""
    kernel()
    (folder,) = (tmp_path / "cache").iterdir()
    folder.chmod(0o777)  # as with the umask 000: it is ours, and closed to others
    assert kernel() == 0
    assert stat.S_IMODE(folder.stat().st_mode) == 0o755
    cached(folder)[0].chmod(0o666)
    assert kernel() == 1
    (tmp_path / "cache").chmod(0o777)
    assert kernel() == 1
    assert "is not used for compiled kernels" in capfd.readouterr().out
    (tmp_path / "cache").chmod(0o1777)
    assert kernel() == 0
    if os.geteuid() == 0:
        os.chown(cached(folder)[0], 4242, 4242)
        assert kernel() == 1
        os.chown(folder, 4242, 4242)
        assert kernel() == 1
        assert "is not used for compiled kernels" in capfd.readouterr().out


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


@pytest.mark.parametrize("change, expected", [({"factor": 4}, 20), ({"result": "2 * x"}, 30)])
def test_a_change_in_another_file_is_compiled(change, expected, tmp_path, monkeypatch):
    """A kernel and a constant of another module are compiled into a kernel, so it is not taken from the cache."""
    monkeypatch.setenv("NUMBA_CACHE_DIR", str(tmp_path / "cache"))  # where Numba looks again when it compiles
    monkeypatch.setattr(config, "CACHE_DIR", str(tmp_path / "cache"))
    monkeypatch.syspath_prepend(tmp_path)
    monkeypatch.setattr(sys, "dont_write_bytecode", True)
    (tmp_path / "outer.py").write_text(OUTER)
    same, results = {"factor": 3, "result": "x"}, []
    for text in (INNER.format(**same), INNER.format(**same), INNER.format(**same | change)):
        (tmp_path / "inner.py").write_text(text)
        for name in ("outer", "inner"):
            monkeypatch.delitem(sys.modules, name, raising=False)
        jit._digest_of_file.cache_clear()  # of another process
        kernel = importlib.import_module("outer").result
        results.append((kernel(5), sum(kernel.stats.cache_hits.values())))
    assert results == [(15, 0), (15, 1), (expected, 0)]


def test_the_lock_lies_beside_the_cache():
    @njit()
    def thrice(x):
        return 3 * x

    assert thrice(3) == 9
    assert os.path.exists(os.path.join(thrice._cache.cache_path, LOCK))
