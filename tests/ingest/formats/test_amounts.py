"""Numbers as people write them, with units and marks, against a plain statement of the rule and the numbers meant."""

from __future__ import annotations

import re

import numpy as np
import pandas as pd
import pyarrow as pa
import pytest
from hypothesis import example, given
from hypothesis import strategies as st

import distsms
from distsms.base.errors import InputError
from distsms.cli.columns import format_columns
from distsms.ingest.formats import amounts, columns
from distsms.ingest.formats.arrow import Batch, BatchPosition
from distsms.ingest.formats.column_survey import TableSurvey
from distsms.shards.column_options import ColumnOptions
from distsms.shards.dataset import read_manifest
from distsms.shards.table_schema import Cells, Table, Writing
from tests.support.conversion import convert
from tests.support.examples import examples
from tests.support.files import ALONE, content, on_root


def number_of(text, thousands, decimal):
    """Return the number that a text is with these marks; None if it is none."""
    whole, _, decimals = text.partition(decimal)
    groups = whole.split(thousands) if thousands else [whole]
    first, *others = groups
    fits = all(re.fullmatch("[0-9]{3}", group) for group in others) and not (others and re.match("0|$", first))
    fits = (
        fits and (len(first) < 4 or not others) and re.fullmatch("[0-9]*", first) and re.fullmatch("[0-9]*", decimals)
    )
    return float(f"{''.join(groups)}.{decimals}0") if fits and (whole or decimals) else None


def meaning(texts, unit):
    """Return the numbers that texts without their unit stand for, if the rule takes them; else None."""
    found = []
    for thousands, decimal in amounts.READINGS:
        values = [number_of(text, thousands, decimal) for text in texts]
        found += [values] if None not in values else []
    two_marks = any(len(re.findall("[.,]", text)) > 1 or re.search("['  ].*[.,]", text) for text in texts)
    return found[0] if found and all(each == found[0] for each in found) and (unit or two_marks) else None


WRITTEN = st.text(st.sampled_from("0123.,' "), min_size=1, max_size=9).filter(
    lambda text: re.fullmatch("[0-9.,](?:.*[0-9.,])?", text)
)
AMOUNT = st.builds(
    lambda number, marks: f"{number:,}".replace(".", "D").replace(",", marks[0]).replace("D", marks[1]),
    st.integers(0, 10**7) | st.floats(0, 1e7).map(lambda number: round(number, 2)),
    st.shared(st.sampled_from([",.", ".,", "'.", " ,", " ."]), key="marks"),
)


@examples(20)
@given(
    st.lists(AMOUNT, min_size=1, max_size=4) | st.lists(WRITTEN, min_size=1, max_size=3),
    st.sampled_from(["", "%", "€"]),
)
@example(["1,200"], "€")
@example(["1,200", "1,5"], "€")
@example(["1.234,5", "7.5"], "")
@example([".5", "1,"], "")
def test_a_column_is_read_if_there_is_one_way_to_read_it(texts, unit):
    survey = amounts.Amounts()
    for k, text in enumerate(texts):
        part = amounts.Amounts()
        part.add(pa.array([f"{unit} {text}" if unit and k % 2 else f"{text}{unit}", None]))
        survey.merge(part)
    writing, expected = survey.writing(), meaning(texts, unit)
    assert (writing is None) == (expected is None)
    if writing is not None:
        plain = amounts.as_plain(pa.array([f"{text}{unit}" for text in texts]), writing)
        assert [float(text) for text in plain.to_pylist()] == expected


@pytest.mark.serial
def test_ranks_without_a_value_do_not_change_how_numbers_are_written():
    """Also where the user has named the marks."""
    cells, writings = Cells(thousands=","), []

    def surveyed(text):
        column = columns.clean(columns.numbered(np.zeros(1, np.int32), [text]), cells)
        survey = TableSurvey(["x"], cells)
        survey.add(Batch(BatchPosition("a", 0), columns.Columns.of({"x": column}, 1)))
        return survey

    for one, other in (("", "1.5%"), ("1.5%", "")):
        survey = surveyed(one)
        survey.merge(surveyed(other))
        writings.append(survey.texts["x"].amounts.writing())
    assert writings[0] == writings[1] == Writing("%", ",", ".")


LABELS = "yn" * 4


def table(comm, folder, texts, by=",", name="a.csv"):
    rows = [f'"{text}"{by}{label}\n' for text, label in zip(texts, LABELS, strict=True)]
    on_root(comm, lambda: (folder / name).write_text("".join([f"x{by}y\n", *rows])))
    return folder / name


def column(comm, folder, texts, by=",", **options):
    """Return the features of a column, and its notes."""
    shown = []
    options = {"label": "y", "normalize": "none", "show_columns": shown.extend, **options}
    convert([table(comm, folder, texts, by)], folder / "d", comm, overwrite=True, **options)
    return content(folder / "d")[0], " ".join(shown[0].notes) if shown else ""


@pytest.mark.parametrize(
    "texts, by, expected",
    [
        ("12% 0.5% -3% +4% 100% 7% 8.25% 9%", ",", [12, 0.5, -3, 4, 100, 7, 8.25, 9]),
        ("12,5% 0,5% 3% 4% 5% 6% 7% 8%", ",", [12.5, 0.5, 3, 4, 5, 6, 7, 8]),
        ("$5 $7.50 -$3 $1,200.50 $1,000,000 $-2 $0 $.5", ",", [5, 7.5, -3, 1200.5, 1e6, -2, 0, 0.5]),
        ("€_1,200.50 €_3 7€ 8_€ €9 €1 €2 €3", ",", [1200.5, 3, 7, 8, 9, 1, 2, 3]),
        ("1.200,50_EUR 3_EUR 7,5_EUR 1.000_EUR 1_EUR 2_EUR 3_EUR 4_EUR", ",", [1200.5, 3, 7.5, 1000, 1, 2, 3, 4]),
        ("1.200,50_€ 2,345_€ 7,5_€ 1.000_€ 1_€ 2_€ 3_€ 4_€", ";", [1200.5, 2.345, 7.5, 1000, 1, 2, 3, 4]),
        ("1.200,50_€ 2.345_€ 7,5_€ 1.000_€ 1_€ 2_€ 3_€ 4_€", ";", [1200.5, 2345, 7.5, 1000, 1, 2, 3, 4]),
        ("1.234,56 2.345 7,5 1 2 3 4 5", ";", [1234.56, 2345, 7.5, 1, 2, 3, 4, 5]),
        ("7,5 1 2 3 4 5 2.345 1.234,56", ";", [7.5, 1, 2, 3, 4, 5, 2345, 1234.56]),
        ("1,234.56 7.5 2,000 1 2 3 4 5", ",", [1234.56, 7.5, 2000, 1, 2, 3, 4, 5]),
        ("1 2 3 4 5 2,345 7 1,234,567", ",", [1, 2, 3, 4, 5, 2345, 7, 1234567]),
        ("1'234.5 1 2 3 4 5 6 7", ",", [1234.5, 1, 2, 3, 4, 5, 6, 7]),
        ("1_234,5 1 2 3 4 5 6 7_000", ",", [1234.5, 1, 2, 3, 4, 5, 6, 7000]),
    ],
)
@pytest.mark.parametrize("block", [9, 2**24])
def test_numbers_with_units_and_marks(comm, shared_dir, monkeypatch, texts, by, expected, block):
    """Whichever ranks meet them, and whatever comes first."""
    monkeypatch.setattr("distsms.base.text_files.read_blocks.__defaults__", (block,))
    found, notes = column(comm, shared_dir, [text.replace("_", " \u00a0"[block > 9]) for text in texts.split()], by)
    np.testing.assert_allclose(found[:, 0], expected)
    table_read = read_manifest(shared_dir / "d").table
    assert Table.from_json(table_read.as_json()) == table_read and table_read.columns[0].writing is not None
    assert "which counts as" in notes or not comm.is_root


def test_missing_values_and_means(comm, shared_dir):
    found, notes = column(comm, shared_dir, ["12%", "-", "", "NA", "20%", "?", "16%", "16%"])
    np.testing.assert_allclose(found.T, [[12, 16, 16, 16, 20, 16, 16, 16], [0, 1, 1, 1, 0, 1, 0, 0]])
    assert not comm.is_root or "'-' (1 row), '?' (1 row)" in notes


@pytest.mark.parametrize(
    "texts, told",
    [
        (["$5", "€6", "$7", "€8"], "different units ('€', '$'), which cannot be compared"),
        (["5%", "6", "7%", "8"], "different units ('%', none)"),
        (["$1,200", "$2,345", "$5", "$6"], "may be read in two ways: --thousands , if commas"),
    ],
)
def test_what_is_not_clear_stays_categories(comm, shared_dir, texts, told):
    found, notes = column(comm, shared_dir, texts * 2)
    assert found.shape[1] == 4 and (told in notes or not comm.is_root)


def test_the_user_decides(comm, shared_dir):
    texts = ["$1,200", "$2,345", "$5", "$6"] * 2
    assert column(comm, shared_dir, texts, thousands=",")[0][:2, 0].tolist() == [1200, 2345]
    assert column(comm, shared_dir, texts, decimal=",")[0][:2, 0].tolist() == [1.2, 2.345]
    texts = ["12%", "5%", "12%", "7%"] * 2
    assert column(comm, shared_dir, texts, columns=ColumnOptions(categorical=("x",)))[0].shape[1] == 3
    assert column(comm, shared_dir, texts, columns=ColumnOptions(numeric=("x",)))[0][0].tolist() == [12]


def test_other_rows_are_read_as_the_training_rows(comm, shared_dir):
    column(comm, shared_dir, [f"${k}.50" for k in range(8)])
    other = table(comm, shared_dir, ["$1,200.50", "3$", "-$2", "$4", "$5", "$6", "$7", "$8"], name="b.csv")
    convert([other], shared_dir / "e", comm, like=shared_dir / "d", label="y")
    assert content(shared_dir / "e")[0][:, 0].tolist() == [1200.5, 3, -2, 4, 5, 6, 7, 8]
    for text in "5", "5%", "1.200,50", "$1.200,50":
        wrong = table(comm, shared_dir, [text, *"12345678"[1:]], name="c.csv")
        with pytest.raises(InputError, match=rf"c\.csv:2: column 'x': found '{re.escape(text)}.*expected a number"):
            convert([wrong], shared_dir / "f", comm, like=shared_dir / "d", label="y")


@pytest.mark.serial
@pytest.mark.parametrize(
    "trained, scored, told",
    [
        (["12,5 %", "3,125 %", "7 %"], {"3,125 %": 3.125, "1.234,5 %": 1234.5, "1.234.567 %": 1234567}, ["3.125 %"]),
        (["12.5 %", "3.125 %", "7 %"], {"3.125 %": 3.125, "1,234.5 %": 1234.5}, ["3,125 %", "-312,125%"]),
        (["$5", "$6"], {"$5.5": 5.5, "$0.125": 0.125, "$3.1250": 3.125}, ["$3.125"]),
        (["$1,234,567", "$6"], {"$1,234": 1234, "$1,234.125": 1234.125}, ["$3.125"]),
    ],
)
def test_a_mark_that_training_had_not_is_read_where_it_has_one_meaning(tmp_path, trained, scored, told):
    column(ALONE, tmp_path, (trained * 8)[:8], ";")
    other = table(ALONE, tmp_path, [*scored, *[trained[-1]] * (8 - len(scored))], ";", name="b.csv")
    convert([other], tmp_path / "e", ALONE, like=tmp_path / "d", label="y")
    centre = read_manifest(tmp_path / "d").table.offsets.get(0, 0.0)
    assert (content(tmp_path / "e")[0][: len(scored), 0] + centre).tolist() == [*scored.values()]
    for text in told:
        wrong = table(ALONE, tmp_path, [text, *[trained[-1]] * 7], ";", name="c.csv")
        problem = rf"c\.csv:2: column 'x': found '{re.escape(text)} .*where no number has this mark: write thousands"
        with pytest.raises(InputError, match=problem):
            convert([wrong], tmp_path / "f", ALONE, like=tmp_path / "d", label="y")


@pytest.mark.serial
def test_frames_are_trained_on_and_scored_alike(tmp_path):
    frame = pd.DataFrame({"x": [f"{k} %" for k in range(40)], "y": [k % 3 // 2 for k in range(40)]})
    model = distsms.train(frame, label="y", lam=1.0, solver="lbfgs", normalize="none")
    np.testing.assert_allclose(distsms.predict(model, frame), np.arange(40) * model.w[0])
    distsms.save_model(tmp_path / "m.h5", model)
    again = distsms.load_model(tmp_path / "m.h5")
    assert again.table == model.table and again.table.columns[0].writing == Writing("%", "", ".", unseen=".")
    with pytest.raises(InputError, match="'x' has the type double; expected strings, numbers with %"):
        distsms.predict(again, pd.DataFrame({"x": [0.5]}))
    assert "categorical=['x']" in model.info["columns"][0]["notes"][0]


@pytest.mark.serial
def test_weights_count_in_the_mean(tmp_path):
    (tmp_path / "a.csv").write_text("x,w,y\n10%,3,1\n20%,1,0\n,1,1\n30%,0,0\n")
    made = convert([tmp_path / "a.csv"], tmp_path / "d", ALONE, label="y", weight="w")
    assert made.table.columns[0].fill == 12.5
    assert "12.5" not in format_columns(made.columns)
