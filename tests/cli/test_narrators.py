"""What prints a run has all methods of what the run tells; the program starts before it loads the observers."""

from __future__ import annotations

import pytest

from distsms.cli.baseline import BaselineNarrator
from distsms.cli.features import FeaturesNarrator
from distsms.cli.path_text import PathNarrator
from distsms.features.growing import FeaturesObserver
from distsms.workflow.baseline import BaselineObserver
from distsms.workflow.path_run import PathObserver

PAIRS = [(BaselineNarrator, BaselineObserver), (FeaturesNarrator, FeaturesObserver), (PathNarrator, PathObserver)]


@pytest.mark.parametrize(("narrator", "observer"), PAIRS)
def test_a_narrator_has_all_methods_of_its_observer(narrator, observer):
    assert [name for name in dir(observer) if not hasattr(narrator, name)] == []
