"""What the list of columns says of each: codes, numbers with a unit, long lists; and the progress meanwhile."""

from __future__ import annotations

import numpy as np
import pytest

from distsms.base import text_files
from distsms.base.errors import InputError
from distsms.cli.columns import format_columns
from distsms.shards.column_options import ColumnOptions
from tests.support.conversion import convert
from tests.support.files import ALONE

pandas = pytest.importorskip("pandas")


def reports_of(tmp_path, frame, **how):
    """Return the reports on the columns of a table with a label."""
    rng = np.random.default_rng(0)
    frame = pandas.DataFrame(frame).assign(label=lambda rows: rng.integers(0, 2, len(rows)))
    frame.to_csv(tmp_path / "a.csv", index=False)
    shown = []
    made = convert([tmp_path / "a.csv"], tmp_path / "d", ALONE, label="label", show_columns=shown.extend, **how)
    return shown, made.table


@pytest.mark.serial
def test_codes_are_known_by_their_names(tmp_path):
    rng = np.random.default_rng(1)
    codes = ["customer_id", "id_branch", "zipCode", "plz", "product code", "customerId"]
    amounts = ["paid", "grid", "idle", "age"]
    shown, _ = reports_of(tmp_path, {name: rng.poisson(50, 900) for name in codes + amounts})
    assert [report.name for report in shown if any("look like codes" in note for note in report.notes)] == codes
    text = format_columns(shown)
    assert text.count("look like codes") == 1 and text.count("number ?") == len(codes)
    assert "--categorical COLUMN or --drop COLUMN" in " ".join(text.split())


@pytest.mark.serial
def test_numbers_that_are_spread_evenly_look_like_codes(tmp_path):
    rng = np.random.default_rng(2)
    n = 9000
    codes = {
        "commune": rng.integers(1, 195, n),
        "a": rng.integers(1, 2001, n),
        "b": 10 * rng.integers(1000, 2000, n),
        "c": rng.choice(rng.integers(10**9, 10**10, 6000), n),
    }
    amounts = {
        "age": rng.integers(18, 90, n),
        "year": rng.integers(1850, 2020, n),
        "euros": rng.lognormal(7, 1, n).round(),
        "count": rng.poisson(200, n),
        "large": 1000 * rng.lognormal(7, 0.6, n).round(),
        "percent": rng.integers(0, 101, n),
        "brightness": rng.integers(0, 256, n),
        "weight": rng.integers(0, 3000, n) / 10,
    }
    shown, _ = reports_of(tmp_path, codes | amounts)
    assert {report.name for report in shown if any("look like codes" in note for note in report.notes)} == set(codes)
    assert {report.name for report in shown if report.features} == {*codes, *amounts}


@pytest.mark.serial
def test_numbers_with_a_unit_are_pointed_out(tmp_path):
    """Otherwise each amount becomes a category, and says nothing about the next larger one."""
    rng = np.random.default_rng(3)
    n = 400
    cents, few = rng.integers(100, 400, n), rng.integers(1, 9, n)
    units = {
        "price": ([f"{k / 100} SEK" for k in cents], "'SEK' behind it"),
        "dollars": ([f"${k:,}.00" if k > 1100 else "unclear" for k in cents * 10], "'$' before it"),
        "share": ([f"{k}\u2030" for k in cents], "'\u2030' behind it"),
        "some": ([f"{k} kg" if k > 110 else "unknown" for k in cents], "'kg' behind it"),
        "differ": ([f"{k / 7} SEK" for k in range(n)], "'SEK' behind it"),
    }
    others = {
        "size": [f"{k} EU" for k in few],
        "code": [f"A{k}" for k in cents],
        "row": [f"row {k}" for k in range(n)],
        "street": [f"{'abcdef'[k % 6]} {j % 99}" for k, j in zip(cents, cents, strict=True)],
        "number": list(cents / 7),
        "word": list(rng.choice(["red", "blue"], n)),
    }
    cells = {name: column for name, (column, _) in units.items()} | others
    shown, _ = reports_of(tmp_path, cells)
    notes = {report.name: " ".join(report.notes) for report in shown}
    for name, (_, told) in units.items():
        assert f"most values are a number with {told}: remove that from the file" in notes[name]
        assert (f"--drop {name}" if name != "differ" else "left out") in notes[name]
    assert not any("a number with" in notes[name] for name in others)
    assert "price                         category ?" in format_columns(shown)


@pytest.mark.serial
def test_a_long_list_of_columns_is_short(tmp_path):
    rng = np.random.default_rng(1)
    frame = {f"x{k}": rng.normal(size=200) for k in range(60)} | {"tiny": rng.normal(size=200) * 1e-310}
    frame |= {"word": rng.choice(["a", "b"], 200), "day": pandas.date_range("2024-01-01", periods=200)}
    lines = format_columns(reports_of(tmp_path, frame)[0]).split("\n")
    assert len([line for line in lines if not line.startswith(" ")]) <= 17
    assert any(line.startswith("tiny") and "number ?" in line for line in lines)
    assert any("tiny: all numbers are smaller than 1e-307" in line for line in lines)
    assert {"word", "day", "tiny", "x0"} <= {line.split()[0] for line in lines}
    assert any(line.startswith("... and 48 more (48 number)") for line in lines)


@pytest.mark.serial
def test_lists_of_columns(tmp_path):
    """Columns are named as a,b or one by one, and a column whose own name has a comma is still one column."""
    rng = np.random.default_rng(1)
    frame = {name: rng.choice(["u", "v"], 200) for name in ("a", "b", "c", "d,e", "f")}
    for drop in (("a,b", "d,e"), ("a", "b", "d,e"), ("b, a", "d,e")):
        _, table = reports_of(tmp_path, frame, drop=drop, columns=ColumnOptions(hashed={"c,f": 3}), overwrite=True)
        assert {column.name: column.bits for column in table.columns} == {"c": 3, "f": 3}
    with pytest.raises(InputError, match="has no column 'nosuch'"):
        reports_of(tmp_path, frame, drop=("a,nosuch",), overwrite=True)


@pytest.mark.serial
def test_what_is_read_is_counted(tmp_path, monkeypatch):
    """Progress grows within one file and one shard, and ends at the whole."""
    monkeypatch.setattr(text_files, "BLOCK_BYTES", 1000)
    monkeypatch.setattr(text_files.read_blocks, "__defaults__", (1000,))
    seen = {}

    def show(task, unit, done, of):
        seen.setdefault(task, []).append((done, of, unit))

    reports_of(tmp_path, {"a": np.arange(900) * 0.5, "b": np.arange(900) % 7}, progress=show, n_shards=1)
    size = (tmp_path / "a.csv").stat().st_size / 2**20
    for task in ("looking at the columns", "writing the shards"):
        done = [part for part, _, _ in seen[task]]
        assert len(done) > 5 and done == sorted(done) and done[0] == 0 and seen[task][0][2] == "MiB"
        assert done[-1] == pytest.approx(size, rel=1e-6) == seen[task][-1][1]


@pytest.mark.serial
@pytest.mark.parametrize(("codes", "noted"), [("DE NA US", True), ("DE NA usa", False), ("DE AT US", False)])
def test_codes_of_countries_tell_of_namibia(tmp_path, codes, noted):
    country = np.random.default_rng(3).choice(codes.split(), 300)
    for options, missing in ({}, noted), ({"not_missing": ("NA",)}, False):
        shown, _ = reports_of(tmp_path, {"country": country}, overwrite=True, **options)
        assert any("--not-missing NA" in note for note in shown[0].notes) == missing
    rare = np.where(np.arange(300) == 7, "XX", "DE")
    shown, _ = reports_of(tmp_path, {"c": rare}, columns=ColumnOptions(min_count=5), overwrite=True)
    assert "1 category with fewer than 5 rows is taken as other" in shown[0].notes
