"""Methods of a baseline fitted in this process, also those that `distsms baseline` trains on rows of all ranks."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from functools import partial

import pytest

from distsms.workflow.competitors import METHODS, Fitted, Task
from scripts.experiments.on_test_rows import fit_by_distsms


def fit_of(name: str) -> Callable[[Task, float], Fitted]:
    """Return the function that fits a method to a task with a setting."""
    method = METHODS[name]
    return method.fit or partial(fit_by_distsms, method)


@pytest.fixture
def fits_alone(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    """Let `fit_alone` fit all methods."""
    for name, method in METHODS.items():
        monkeypatch.setitem(METHODS, name, method._replace(fit=fit_of(name)))
    yield
