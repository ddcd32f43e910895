"""The rules of leaves in words hold for those rows that reach the leaf, and for no others."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest

from distsms.features.forest import Forest
from distsms.models import contributions
from distsms.models.contributions import leaf_rule
from distsms.shards.table_schema import Column, Table
from tests.models.test_contributions import made_map, model_of, table

pytestmark = pytest.mark.serial


def holds(condition, row):
    """Whether a row fulfils a condition such as "1 < column 3 <= 2"."""
    text = condition.replace("column ", "column_")
    return eval(text, {}, {f"column_{j}": np.float32(value) for j, value in enumerate(row)})


def test_rules_hold_for_the_rows_of_their_leaves_alone(monkeypatch):
    monkeypatch.setattr(contributions, "_SHOWN", 99)
    X, y = table(100)
    made = replace(made_map(X, y, True), bins=None)
    model, leaves = model_of(made), made.forest.codes(X)
    offsets = 8 + made.forest.code_map.offsets
    assert leaf_rule(model, 7) == ""
    for tree, first in enumerate(offsets[:-1]):
        for leaf in range(made.forest.sizes[tree]):
            conditions = leaf_rule(model, int(first) + leaf).split(" and ")
            for row, reached in zip(X[:40], leaves[:40, tree], strict=True):
                assert all(holds(condition, row) for condition in conditions) == (reached == leaf)


def test_rules_of_a_table_have_its_names_and_numbers(monkeypatch):
    columns = Column("age", fill=40.0, centred=True), Column("job", ("cook", "clerk"))
    forest = Forest([0, 1, -1, 0, -1, -1, -1], [10, 0.5, 0, -5, 0, 0, 0], [0, 7], [0.5, 0.5, 0])
    X, y = table(50)
    model = model_of(replace(made_map(X, y, False, True), columns=3, bins=None, forest=forest))
    model = replace(model, table=Table(columns, "y"))
    rules = ["age <= 50 and not job=cook", "age <= 35 and job=cook", "35 < age <= 50 and job=cook", "age > 50"]
    assert [leaf_rule(model, j) for j in range(4)] == rules
    monkeypatch.setattr(contributions, "_SHOWN", 1)
    assert leaf_rule(model, 0) == "age <= 50 and 1 more"
