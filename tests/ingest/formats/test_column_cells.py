"""What is written in cells: dates, slips of the pen, codes with leading zeros, categories of pandas, encodings."""

from __future__ import annotations

import re

import h5py
import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from distsms.base.errors import InputError
from distsms.ingest.formats import dates
from distsms.shards.column_options import ColumnOptions
from distsms.shards.dataset import read_manifest
from tests.support.conversion import convert
from tests.support.files import on_root

pandas = pytest.importorskip("pandas")


@pytest.mark.parametrize(
    "texts, form",
    [
        (["01.01.2024 00:07", "31.01.2024 12:30"], "%d.%m.%Y %H:%M"),
        (["01/02/2024 10:00:05", "01/31/2024 11:00:00"], "%m/%d/%Y %H:%M:%S"),
        (["31/01/24"], "%d/%m/%y"),
        (["2024/01/31 10:00"], "%Y/%m/%d %H:%M"),
        (["31-Jan-2024"], "%d-%b-%Y"),
        (["01/31/2024 10:00 PM"], "%m/%d/%Y %I:%M %p"),
        (["31 January 2024"], "%d %B %Y"),
    ],
)
def test_the_form_of_dates_is_guessed(texts, form):
    assert dates.guess_forms(texts) == [form]
    last = ["01/02/2024"] * 5000 + ["01/31/2024"] * 10
    assert dates.guess_forms(last) == ["%m/%d/%Y"]


@pytest.mark.parametrize(
    "texts, first, second",
    [
        (["01/02/2024", "11/12/2024"], "%d/%m/%Y' (day first)", "%m/%d/%Y' (month first)"),
        (["01/02/2024 12:02 AM"], "%m/%d/%Y %I:%M %p' (month first)", "%d/%m/%Y %I:%M %p' (day first)"),
    ],
)
def test_both_orders_of_day_and_month_are_named_where_the_values_do_not_decide(comm, shared_dir, texts, first, second):
    rows = "".join(f"{text},{k % 3},{k % 2}\n" for k, text in enumerate(texts * 20))
    on_root(comm, lambda: (shared_dir / "a.csv").write_text("the day,x,y\n" + rows))
    told = f"--date 'the day:{first} or --date 'the day:{second}: the values that were looked at do not decide which"
    for how in {}, {"time": "the day"}:
        with pytest.raises(InputError, match=re.escape(told)):
            convert([shared_dir / "a.csv"], shared_dir / "d", comm, label="y", **how)


def test_the_other_order_of_day_and_month_is_proposed(comm, shared_dir):
    """Where the form that was named does not fit a later value, and the other order does."""
    rows = [f"{1 + k % 12:02d}/05/2024,{k % 3},{k % 2}\n" for k in range(40)]
    text = "day,x,y\n" + "".join([*rows, "05/31/2024,1,1\n"])
    on_root(comm, lambda: (shared_dir / "a.csv").write_text(text))
    asked = ColumnOptions(dates={"day": "%d/%m/%Y"})
    for how in {}, {"time": "day"}:
        told = r"a\.csv:42: .*'05/31/2024'.*the other way round: --date day:%m/%d/%Y reads this value"
        with pytest.raises(InputError, match=told):
            convert([shared_dir / "a.csv"], shared_dir / "d", comm, label="y", columns=asked, **how)
    assert dates.describe_other_order("day", "05/32/2024", "%d/%m/%Y") == ""
    assert dates.describe_other_order("day", "x", None) == ""


def times_of(manifest):
    return np.concatenate([h5py.File(f"{manifest.directory}/{shard.file}")["times"][:] for shard in manifest.shards])


GERMAN = [f"{1 + k:02d}.{1 + k % 12:02d}.2024 {k % 24:02d}:07" for k in range(28)]


@pytest.mark.parametrize("ending", [".csv", ".parquet"])
@pytest.mark.parametrize("keep", [(), ("when",)])
def test_times_may_be_written_in_any_form(comm, shared_dir, ending, keep):
    frame = pandas.DataFrame({"when": GERMAN, "x": np.arange(28.0) % 5, "y": np.arange(28) % 2})
    path = shared_dir / f"t{ending}"
    on_root(comm, lambda: frame.to_csv(path, index=False) if ending == ".csv" else frame.to_parquet(path))
    form = "%d.%m.%Y %H:%M"
    with pytest.raises(InputError, match=f"--date 'when:{form}'"):
        convert([path], shared_dir / "d", comm, label="y", time="when")
    asked = ColumnOptions(dates={"when": form})
    made = convert([path], shared_dir / "d", comm, label="y", time="when", keep=keep, columns=asked)
    expected = pandas.to_datetime(frame.when, format=form).astype("datetime64[s]").astype(np.int64)
    np.testing.assert_array_equal(times_of(made), expected)
    assert ("when (years since 2000)" in made.table.feature_names) == bool(keep)
    convert([path], shared_dir / "e", comm, like=shared_dir / "d", time="when", columns=asked)
    np.testing.assert_array_equal(times_of(read_manifest(shared_dir / "e")), expected)


def test_one_word_among_numbers_is_refused_and_named(comm, shared_dir):
    """Otherwise a slip of the pen would cost the column, which looks like an id because its numbers differ."""
    lines = [f"{k * 1.25},{k % 2}\n" for k in range(300)]
    lines[200] = "oops,1\n"
    on_root(comm, lambda: (shared_dir / "a.csv").write_text("x,y\n" + "".join(lines)))
    with pytest.raises(InputError, match=r"a\.csv:202: column 'x': found 'oops': is not a number, but most values"):
        convert([shared_dir / "a.csv"], shared_dir / "a", comm, label="y")


def test_integer_categories_of_pandas_are_categories(comm, shared_dir):
    frame = pandas.DataFrame({"store": [7, 12, 7, 30] * 30, "x": np.sqrt(np.arange(120.0)), "y": [0, 1] * 60})
    frame["store"] = frame["store"].astype("category")
    frame["code"] = pandas.Series(["0910", "0030"] * 60, dtype="category")
    on_root(comm, lambda: frame.to_parquet(shared_dir / "a.parquet"))
    made = convert([shared_dir / "a.parquet"], shared_dir / "a", comm, label="y")
    expected = ["code=30", "code=910", "store=12", "store=30", "store=7", "x"]
    assert sorted(made.table.feature_names) == expected
    # The record of pandas still has columns that pyarrow has left out, and an index without a name.
    table = pa.Table.from_pandas(frame.set_index(pandas.CategoricalIndex(["p", "q"] * 60))).drop_columns(["code"])
    on_root(comm, lambda: pq.write_table(table, shared_dir / "less.parquet"))
    made = convert([shared_dir / "less.parquet"], shared_dir / "less", comm, label="y")
    assert sorted(made.table.feature_names) == expected[2:]
    how = ColumnOptions(numeric=("store",))
    made = convert([shared_dir / "a.parquet"], shared_dir / "b", comm, label="y", columns=how)
    assert {"store", "x"} < set(made.table.feature_names)


def test_numbers_with_leading_zeros_look_like_codes(comm, shared_dir):
    rows = "".join(f"{k % 40:04d},{k % 40},{k % 7 / 8},{k % 2}\n" for k in range(400))
    on_root(comm, lambda: (shared_dir / "a.csv").write_text("branch,day,share,y\n" + rows))
    shown = []
    convert([shared_dir / "a.csv"], shared_dir / "a", comm, label="y", show_columns=shown.extend)
    if comm.is_root:
        assert [bool(report.notes) for report in shown] == [True, False, False]
        assert "look like codes" in shown[0].notes[0] and "--categorical branch" in shown[0].notes[0]


def test_dates_that_do_not_exist_are_refused(comm, shared_dir):
    lines = [f"{1 + k % 28:02d}.{1 + k % 12:02d}.2024,{k % 2}\n" for k in range(60)]
    for wrong in ("31.02.2024", "30.02.2023", "31.04.2024", "29.02.2023"):
        text = "day,y\n" + "".join([*lines, f"{wrong},1\n"])
        on_root(comm, lambda text=text: (shared_dir / "a.csv").write_text(text))
        how = ColumnOptions(dates={"day": "%d.%m.%Y"})
        with pytest.raises(InputError, match=rf"a\.csv:62: column 'day': found '{wrong}': there is no such date"):
            convert([shared_dir / "a.csv"], shared_dir / "a", comm, label="y", columns=how)
    microseconds, there = dates.as_microseconds(pa.array(["29.02.2024", "31.02.2024", None]), "%d.%m.%Y")
    assert there.tolist() == [True, False, False]
    assert microseconds[0] == np.datetime64("2024-02-29", "us").astype(int)
    texts = ["29.02.2024 10:00:01.25 PM", "31.02.2024 10:00:01.25 PM", "29.02.2024 10:00:01 PM", None]
    microseconds, there = dates.as_microseconds(pa.array(texts), "%d.%m.%Y %I:%M:%S.%f %p")
    assert there.tolist() == [True, False, False, False]
    assert microseconds[0] == np.datetime64("2024-02-29T22:00:01.25", "us").astype(int)


@pytest.mark.parametrize("text, line", [("gr\u00f6\u00dfe,y\n1,0\n2,1\n", 1), ("x,y\n1,0\n\u00e4,1\n", 3)])
def test_other_encodings_are_named_with_the_remedy(comm, shared_dir, text, line):
    on_root(comm, lambda: (shared_dir / "a.csv").write_text(text, encoding="latin1"))
    with pytest.raises(InputError, match=rf"a\.csv:{line}: is not UTF-8 .*iconv -f LATIN1"):
        convert([shared_dir / "a.csv"], shared_dir / "a", comm, label="y")
