"""Run a test that takes `comm` on simulated ranks: each has its own fixtures, patches and output.

pytest sets up fixtures once for each test. Those that belong to a rank (`OF_A_RANK`, and what takes one of these) are
only stood in for then, and set up on each rank when the test is called. A test of hypothesis draws its examples once;
each example runs on all ranks, which have copies of what was drawn.
"""

from __future__ import annotations

import contextlib
import copy
import os
from collections.abc import Callable
from pathlib import Path
from types import SimpleNamespace
from typing import Any, NamedTuple

import pytest

from tests.support.simulated import communicator
from tests.support.simulated_job import Job, Rank, Turn

OF_A_RANK = {"comm", "monkeypatch", "capsys", "capfd", "tmp_path", "own_dir"}
RANKS = pytest.StashKey[int]()


class Output(NamedTuple):
    out: str
    err: str


class Capsys:
    """What a rank has printed."""

    def __init__(self, rank: Rank) -> None:
        self._streams = rank.out, rank.err

    def readouterr(self) -> Output:
        texts = [stream.getvalue() for stream in self._streams]
        for stream in self._streams:
            stream.seek(0)
            stream.truncate()
        return Output(*texts)


class RankPatch(pytest.MonkeyPatch):
    """Patches that are there only while their rank has its turn."""

    def __init__(self) -> None:
        super().__init__()
        self._out: list[Any] | None = None
        self._folder: str | None = None
        if Turn.rank is not None:  # also for `monkeypatch.context()`
            Turn.rank.state.patches.append(self)

    def exchange(self) -> None:
        """Take the patches away, or put them back."""
        places = [(setattr, delattr, getattr, *entry) for entry in self._setattr]
        places += [(_put, _remove, dict.get, *entry) for entry in self._setitem]
        if self._out is None:
            self._out = []
            for put, remove, get, target, name, old in reversed(places):
                self._out.append(get(target, name))
                remove(target, name) if old is _NOTSET else put(target, name, old)
        else:
            for (put, _, _, target, name, _), value in zip(places, reversed(self._out), strict=True):
                put(target, name, value)
            self._out = None
        if self._cwd is not None:
            here, self._folder = os.getcwd(), self._folder or str(self._cwd)
            os.chdir(self._folder)
            self._folder = here


def _put(mapping: Any, name: Any, value: Any) -> None:
    mapping[name] = value


def _remove(mapping: Any, name: Any) -> None:
    mapping.pop(name, None)


_probe = pytest.MonkeyPatch()
_probe.setattr(os, "no such name", None, raising=False)
_NOTSET = _probe._setattr[0][2]  # how pytest notes that there was nothing
_probe.undo()


def of_ranks(item: pytest.Item) -> set[str]:
    """Return the names of the test's fixtures that each rank has for itself."""
    named, definitions = set(OF_A_RANK), item._fixtureinfo.name2fixturedefs
    while more := {
        name
        for name, chain in definitions.items()
        if name not in named and chain[-1].scope == "function" and named & set(chain[-1].argnames)
    }:
        named |= more
    return named & set(definitions)


class RankTests:
    """The plugin. An item with `RANKS` in its stash runs on so many ranks."""

    @pytest.hookimpl(tryfirst=True)
    def pytest_fixture_setup(self, fixturedef: Any, request: Any) -> Any:
        item = request.node
        if isinstance(item, pytest.Item) and RANKS in item.stash and fixturedef.argname in of_ranks(item):
            fixturedef.cached_result = "of a rank", fixturedef.cache_key(request), None
            return "of a rank"
        return None

    @pytest.hookimpl(hookwrapper=True, tryfirst=True)
    def pytest_pyfunc_call(self, pyfuncitem: Any) -> Any:
        item, test = pyfuncitem, pyfuncitem.obj
        if RANKS not in item.stash:
            yield
        elif (drawn := getattr(test, "hypothesis", None)) is not None:
            inner = drawn.inner_test
            drawn.inner_test = lambda *args, **values: call(item, inner, args, values)
            yield
            drawn.inner_test = inner
        else:
            item.obj = lambda **values: call(item, test, (), values)
            yield
            item.obj = test


def call(item: Any, test: Callable[..., Any], args: Any, values: dict[str, Any]) -> None:
    """Call a test on all its ranks."""

    def work(rank: Rank) -> None:
        with contextlib.ExitStack() as stack:
            mine = fixtures_of(item, rank, stack)
            others = {name: value for name, value in values.items() if name not in mine}
            if hasattr(item.obj, "hypothesis"):
                others = copy.deepcopy(others)
            test(*copy.deepcopy(args), **others, **{name: mine[name] for name in values if name in mine})

    job = Job(item.stash[RANKS], work)
    try:
        with pytest.MonkeyPatch.context() as patch:
            patch.setattr(pytest, "MonkeyPatch", RankPatch)
            job.run()
    finally:
        for rank in job.ranks:
            print(rank.out.getvalue(), end="")


def fixtures_of(item: Any, rank: Rank, stack: contextlib.ExitStack) -> dict[str, Any]:
    """Set up a rank's fixtures, to be torn down with the stack."""
    names, definitions = of_ranks(item), item._fixtureinfo.name2fixturedefs
    mine: dict[str, Any] = {}

    def monkeypatch() -> RankPatch:
        patch = RankPatch()
        stack.callback(patch.undo)
        return patch

    def tmp_path() -> Path:
        path = item._request.getfixturevalue("tmp_path_factory").mktemp(f"rank-{rank.number}-", numbered=True)
        return Path(path)

    made: dict[str, Callable[[], Any]] = {
        "comm": lambda: communicator(rank),
        "monkeypatch": monkeypatch,
        "capsys": lambda: Capsys(rank),
        "capfd": lambda: Capsys(rank),
        "tmp_path": tmp_path,
    }

    parameters = item.callspec.params if hasattr(item, "callspec") else {}

    def value(name: str, fixture: str = "") -> Any:
        if name == "request":
            return SimpleNamespace(node=item, config=item.config, param=parameters.get(fixture))
        if name not in names:
            return item.funcargs[name] if name in item.funcargs else item._request.getfixturevalue(name)
        if name not in mine:
            if name in made:
                mine[name] = made[name]()
            else:
                definition = definitions[name][-1]
                got = definition.func(**{needed: value(needed, name) for needed in definition.argnames})
                if hasattr(got, "__next__"):
                    mine[name] = next(got)
                    stack.callback(next, got, None)
                else:
                    mine[name] = got
        return mine[name]

    for name in item._fixtureinfo.names_closure:
        if name in names:
            value(name)
    return mine
