"""Decimal marks and marks between thousands, compared with the numbers that were written."""

from __future__ import annotations

import numpy as np
import pandas as pd
import pytest

import distsms
from distsms.base.errors import InputError
from distsms.cli.columns import format_columns
from distsms.shards.column_options import ColumnOptions
from distsms.shards.dataset import read_manifest
from tests.support.conversion import convert
from tests.support.files import content, on_root

AMOUNTS = np.array([1213, 715, 1234567, -45678, 3, 999, 1000, 20])
LABELS = "yn" * 4


def written(amount, thousands, decimal=None, places=0):
    text = f"{amount:,.{places}f}".replace(".", "D").replace(",", thousands)
    return text.replace("D", decimal or "")


def write(comm, path, texts, by=";"):
    lines = [f'"{text}"{by}{label}' for text, label in zip(texts, LABELS, strict=True)]
    on_root(comm, lambda: path.write_text("\n".join([f"amount{by}y", *lines])))
    return path


def shard(comm, path, **options):
    convert([path], path.with_suffix(""), comm, label="y", **options)
    return content(path.with_suffix(""))[0][:, 0]


@pytest.mark.parametrize("by", [";", ","])
@pytest.mark.parametrize("mark, places", [(".", 0), (".", 2), (",", 0), (",", 2), ("'", 2), (" ", 0), ("\u2019", 2)])
def test_marks_between_thousands_are_read_if_named(comm, shared_dir, by, mark, places):
    texts = [written(amount, mark, "," if mark == "." else ".", places) for amount in AMOUNTS]
    path = write(comm, shared_dir / "t.csv", texts, by)
    found = shard(comm, path, thousands={"\u2019": "'"}.get(mark, mark))
    np.testing.assert_array_equal(found, AMOUNTS)
    record = read_manifest(shared_dir / "t").table.as_json()
    assert (
        record["thousands"] == mark.replace("\u2019", "'")
        and type(read_manifest(shared_dir / "t").table).from_json(record) == read_manifest(shared_dir / "t").table
    )


def test_other_rows_are_read_with_the_marks_of_the_training_rows(comm, shared_dir):
    path = write(comm, shared_dir / "t.csv", [written(amount, ".") for amount in AMOUNTS])
    shard(comm, path, thousands=".")
    new = write(comm, shared_dir / "new.csv", ["1.213", "1.151,19", "7", "0,5", "3.000", "2", "1", "4"])
    found = shard(comm, new, like=shared_dir / "t")
    np.testing.assert_array_equal(found, [1213, 1151.19, 7, 0.5, 3000, 2, 1, 4])


@pytest.mark.parametrize("by, decimal", [(";", "."), (",", ",")])
def test_a_point_that_may_separate_thousands_is_refused(comm, shared_dir, by, decimal):
    path = write(comm, shared_dir / "t.csv", ["1.213", "715", "2.000", "60,68", "3", "4", "5", "12.345"], by)
    with pytest.raises(InputError, match=r"--thousands \. reads 1.213 as 1213; --numeric amount reads it as a decimal"):
        shard(comm, path, decimal=decimal)
    found = shard(comm, path, decimal=decimal, columns=ColumnOptions(numeric=("amount",)))
    np.testing.assert_array_equal(found, [1.213, 715, 2, 60.68, 3, 4, 5, 12.345])


@pytest.mark.parametrize("texts", ["0.213 1 2 3.000 4 5 6 7", "1.21 1.213 1 2 3 4 5 6", "1.2130 1 2 3 4 5 6 7"])
def test_a_point_that_can_only_be_a_decimal_point_is_one(comm, shared_dir, texts):
    path = write(comm, shared_dir / "t.csv", texts.split())
    np.testing.assert_array_equal(shard(comm, path), [float(text) for text in texts.split()])


def test_a_comma_that_may_separate_thousands_is_noted(comm, shared_dir):
    path, told = write(comm, shared_dir / "t.csv", ["1,213", "715", "2,000", "3", "4", "5", "6", "7"]), []
    convert([path], shared_dir / "d", comm, label="y", show_columns=told.extend)
    if comm.is_root:
        text = format_columns(told)
        assert "number ?" in text and "--thousands ," in text


@pytest.mark.parametrize(
    "text, by, options, advice",
    [
        ("1 151", ",", {}, "a space between thousands: --thousands space reads it"),
        ("1'151", ",", {}, '--thousands "\'" reads it'),
        ("1,151", ",", {}, "--decimal , reads it as a decimal comma, or --thousands ,"),
        ("1,5", ",", {}, "--decimal , reads it as a decimal comma; "),
    ],
)
def test_a_refused_number_names_the_options_that_read_it(comm, shared_dir, text, by, options, advice):
    path = write(comm, shared_dir / "t.csv", [text, *"1234567"], by)
    with pytest.raises(InputError, match=advice):
        shard(comm, path, **options)


@pytest.mark.parametrize("by", [";", ","])
def test_numbers_that_contradict_each_other_are_refused(comm, shared_dir, by):
    path = write(comm, shared_dir / "t.csv", ["1.151,19", "1,151.19", *"123456"], by)
    with pytest.raises(InputError, match=r"1.151,19 looks like a number with the mark . between thousands"):
        shard(comm, path)


def test_marks_that_contradict_each_other_are_refused(comm, shared_dir):
    path = write(comm, shared_dir / "t.csv", list("12345678"))
    with pytest.raises(InputError, match="contradict each other"):
        shard(comm, path, decimal=",", thousands=",")
    with pytest.raises(InputError, match="--thousands x: give one of"):
        shard(comm, path, thousands="x")


@pytest.mark.serial
def test_a_frame_of_strings_is_trained_on_and_scored_alike():
    texts = [written(amount, ".", ",", 2) for amount in AMOUNTS] * 5
    frame = pd.DataFrame({"amount": texts, "y": list(LABELS) * 5})
    found = distsms.train(frame, label="y", thousands=".", lam=1.0, solver="lbfgs", normalize="none")
    assert found.table.cells.thousands == "."
    scores = distsms.predict(found, frame.drop(columns="y"))
    np.testing.assert_allclose(scores, np.tile(AMOUNTS, 5) * found.w[0])
