"""`distsms info` refuses folders of other commands, and says what they are."""

from __future__ import annotations

import argparse

import pytest

from distsms.cli import info
from distsms.errors import InputError
from distsms.selection.baseline import BaselineStore
from distsms.selection.path_store import PathStore
from distsms.study.grid import IDENTITY
from distsms.training.checkpoint import NEWEST

pytestmark = pytest.mark.serial


@pytest.mark.parametrize(
    "identity, advice",
    [
        (f"{PathStore.kind}.json", "`distsms report .*model.h5 --test DATA`"),
        (f"{BaselineStore.kind}.json", "`distsms report MODEL --test DATA --baseline "),
        (IDENTITY, "table.md"),
        (NEWEST, "`distsms train --checkpoint .* --resume`"),
    ],
)
@pytest.mark.parametrize("others", [[], ["."]])
def test_a_folder_of_another_command_is_named_with_the_command_that_reads_it(tmp_path, identity, advice, others):
    (tmp_path / identity).write_text("{}")
    args = argparse.Namespace(paths=[str(tmp_path), *others], verify=False, usage=False, json=False)
    with pytest.raises(InputError, match=f"{tmp_path}: is .*neither a data set nor a model.*{advice}"):
        info.run(args, None)
