"""Which columns belong together."""

from __future__ import annotations

import json

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from scipy import sparse

from distsms.base.communicator import Communicator
from distsms.base.errors import InputError
from distsms.features.arrays import ArrayRows
from distsms.features.attributes import (
    COVERED,
    Attribute,
    Survey,
    attributes_of,
    read_attributes,
    table_attributes,
    unique_names,
    used_columns,
)
from distsms.features.fit import FeatureOptions, fit
from distsms.features.growing import FeaturesObserver
from distsms.shards.table_schema import Column, Table


def one_hot(codes, size):
    """Columns of 0 and 1 for codes; a code that is not below the size sets none."""
    return (codes[:, None] == np.arange(size)) * 1.0


def surveyed(comm, X):
    """What all ranks together find out about X; each has some of the rows."""
    survey = Survey(X.shape[1])
    for part in np.array_split(np.arange(len(X))[comm.rank :: comm.size], 2):
        survey.add(sparse.csr_matrix(X[part]) if comm.rank % 2 else X[part])
    survey.reduce(comm)
    return survey


@given(st.lists(st.integers(2, 6), min_size=1, max_size=4), st.booleans(), st.integers(0, 2**31))
def test_sets_of_columns_that_exclude_each_other_are_found(comm, sizes, gaps, seed):
    """The columns of each variable are together, with numbers between them, and no row sets two."""
    rng = np.random.default_rng(seed)
    pieces, expected, at = [], [], 0
    for size in sizes:
        codes = rng.integers(0, size, 400)
        codes[: 2 * size] = np.repeat(np.arange(size), 2)  # each occurs, and the first of all rows have all pairs
        codes[400 - 20 * gaps :] = size
        pieces += [one_hot(rng.permutation(codes), size), rng.normal(size=(400, 1))]
        expected.append(range(at, at + size))
        at += size + 1
    survey = surveyed(comm, np.hstack(pieces))
    assert survey.n == 400 and survey.sets() == expected
    found = attributes_of(survey, lambda j: f"column {j}")
    assert [own.columns for own in found if own.categories] == [tuple(columns) for columns in expected]
    assert [own.columns for own in found if not own.categories] == [(columns.stop,) for columns in expected]
    assert all(own.none == gaps for own in found if own.categories)


def explicit_sets(X):
    """The sets by their definition, from the matrix: the first that reaches as far as possible and covers the rows."""
    binary = ((X == 0) | (X == 1)).all(axis=0)
    together = (X != 0).T.astype(int) @ (X != 0).astype(int)
    found, first, p = [], 0, X.shape[1]
    while first < p:
        stop = first + 1
        while stop < p and binary[first : stop + 1].all() and not together[stop, first:stop].any():
            stop += 1
        if stop - first > 1 and (X[:, first:stop] != 0).any(axis=1).mean() >= COVERED:
            found.append(range(first, stop))
            first = stop
        else:
            first += 1
    return found


@given(st.integers(1, 12), st.integers(1, 9), st.floats(0.02, 0.9), st.integers(0, 2**31))
def test_sets_are_those_of_the_definition(comm, n, p, density, seed):
    rng = np.random.default_rng(seed)
    X = (rng.random((n, p)) < density) * rng.choice([1.0, 1.0, 1.0, 1.0, 2.0], p)
    assert surveyed(comm, X).sets() == explicit_sets(X)


def test_adult_has_fourteen_attributes(real_data, own_dir):
    """Three of them are unknown in some rows, and the columns of nine have been numbers once."""
    X = np.zeros((32561, 123))
    for row, line in enumerate(real_data("adult9.train").splitlines()):
        X[row, [int(word.split(b":")[0]) - 1 for word in line.split()[1:]]] = 1
    survey = Survey(123)
    survey.add(X)
    found = attributes_of(survey, lambda j: str(j + 1))
    assert [len(own.columns) for own in found] == [5, 8, 5, 16, 5, 7, 14, 6, 5, 2, 2, 2, 5, 41]
    assert [own.none for own in found] == [k in (1, 6, 13) for k in range(14)]


def test_attributes_of_a_table():
    table = Table(
        (
            Column("age", missing=True),
            Column("job", ("clerk", "cook"), other=True, missing=True),
            Column("wage", fill=1e6, centred=True),
            Column("day", kind="date", missing=True, fill=24.0, centred=True),
            Column("name", kind="hash", bits=3),
        )
    )
    found = table_attributes(table)
    age, job, wage, day, month, weekday = found
    assert (age.name, age.columns, age.missing) == ("age", (0,), 1)
    assert job == Attribute("job", (2, 3, 4, 5), ("clerk", "cook", "other", "missing"))
    assert wage == Attribute("wage", (6,), centre=1e6)
    assert (day.name, day.columns, day.missing, day.centre) == ("day (years since 2000)", (7,), 27, 24.0)
    assert (month.columns, month.none) == (tuple(range(8, 20)), True)
    assert (weekday.categories[0], weekday.columns) == ("Mon", tuple(range(20, 27)))
    assert used_columns(found).tolist() == list(range(28))
    for own in found:
        assert Attribute(**json.loads(json.dumps(own.record()))) == own
    rows, said, observer = ArrayRows(np.zeros((2, table.p)), np.array([1, -1], np.int8)), [], FeaturesObserver()
    rows.table, observer.noted = table, lambda kind, text: said.append(text)
    assert fit(rows, Communicator(), FeatureOptions(2), observer, rows).bins.attributes == tuple(found)
    assert said == ["hashed columns get no bins: name"]


@pytest.mark.parametrize(
    "text, message",
    [
        ("{", "cannot be read as JSON"),
        ("[" * 100_000, "cannot be read as JSON"),
        ("[]", "must be an object"),
        ("{}", "must be an object"),
        ('{"a": []}', "'a' must have a column"),
        ('{"a": 1.5}', "'a' must have a column"),
        ('{"a": "9"}', "there is no column 9"),
        ('{"a": 1, "b": ["1", 2]}', "belongs to 'a' and to 'b'"),
        ('{"a": 1, "b": 0, "a": 2}', "names the attribute 'a' twice"),
    ],
)
def test_files_of_attributes_that_cannot_be_used(own_dir, text, message):
    def number(name):
        if name not in "012":
            raise InputError(f"there is no column {name}")
        return int(name)

    path = own_dir / "attributes.json"
    path.write_text(text)
    with pytest.raises(InputError, match=message):
        read_attributes(path, number)
    path.write_text('{"a": 2, "b": ["0", 1]}')
    assert read_attributes(path, number) == [Attribute("a", (2,)), Attribute("b", (0, 1), ("0", "1"))]


def test_names_must_differ():
    with pytest.raises(InputError, match="two attributes are named 'a'"):
        unique_names([Attribute("a", (0,)), Attribute("a", (1,))])
