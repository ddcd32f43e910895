"""CSV whose first line is a row: its columns are named by the user, or numbered."""

from __future__ import annotations

import gzip
import re

import numpy as np
import pytest

import distsms
from distsms.base.errors import InputError
from distsms.shards.dataset import read_manifest
from distsms.shards.table_schema import Table
from tests.support.conversion import convert
from tests.support.files import ALONE, content, on_root

ROWS = [f"{k % 7},{'ab'[k % 2]},{k / 8},{k % 3 // 2}" for k in range(40)]
TEXT = "\n".join(ROWS) + "\n"
NAMES = ("x", "w", "z", "y")


def made_of(comm, folder, text, name="a.csv", **options):
    on_root(comm, lambda: (folder / name).write_bytes(text.encode() if isinstance(text, str) else text))
    return convert([folder / name], folder / "d", comm, normalize="none", overwrite=True, **options)


@pytest.mark.parametrize("before", ["", "\ufeff", "sep=,\r\n", "\n", "x,w,z,y\n"])
def test_rows_without_names_are_those_with_names(comm, shared_dir, before):
    """A file that has the names nevertheless is read by them."""
    made_of(comm, shared_dir, "x,w,z,y\n" + TEXT, label="y")
    expected = content(shared_dir / "d")
    made = made_of(comm, shared_dir, before + TEXT, label="y", names=("x,w", "z", "y"))
    assert made.table.feature_names == ["x", "w=a", "w=b", "z"] and made.table.cells.names == NAMES
    for found, array in zip(content(shared_dir / "d"), expected, strict=True):
        np.testing.assert_array_equal(found, array)
    assert Table.from_json(made.table.as_json()) == made.table
    if before != "x,w,z,y\n":
        made = made_of(comm, shared_dir, before + TEXT, label="column_4", no_header=True)
        assert made.table.feature_names == ["column_1", "column_2=a", "column_2=b", "column_3"]
        np.testing.assert_array_equal(content(shared_dir / "d")[0], expected[0])


@pytest.mark.serial
def test_a_model_reads_other_files_as_its_own(tmp_path):
    """Without names, with names in another order, and compressed."""
    (tmp_path / "a.csv").write_text(TEXT)
    model = distsms.train(tmp_path / "a.csv", names=list(NAMES), label="y", lam=0.1, solver="lbfgs")
    scores = distsms.predict(model, tmp_path / "a.csv")
    turned = [",".join(row.split(",")[::-1]) for row in ROWS]
    (tmp_path / "b.csv").write_text("\n".join(["y,z,w,x", *turned, ""]))
    (tmp_path / "c.csv.gz").write_bytes(gzip.compress(TEXT.encode()))
    (tmp_path / "d.csv").write_text("\n".join(["x,w,z", *(row.rpartition(",")[0] for row in ROWS), ""]))
    for name in "b.csv", "c.csv.gz", "d.csv":
        np.testing.assert_array_equal(distsms.predict(model, tmp_path / name), scores)
    made = convert([tmp_path / "a.csv"], tmp_path / "d", ALONE, names=NAMES, label="y")
    assert convert([tmp_path / "c.csv.gz"], tmp_path / "e", ALONE, like=tmp_path / "d").n == made.n
    assert read_manifest(tmp_path / "e").table == made.table
    (tmp_path / "e.csv").write_text("".join(row.rpartition(",")[0] + "\n" for row in ROWS))
    np.testing.assert_array_equal(distsms.predict(model, tmp_path / "e.csv"), scores)
    with pytest.raises(InputError, match="'y'"):
        distsms.evaluate(model, tmp_path / "e.csv")
    (tmp_path / "f.csv").write_text("".join(",".join(row.split(",")[:2]) + "\n" for row in ROWS))
    with pytest.raises(
        InputError, match=r"f\.csv:1: the first row has 2 fields, and .* 4 names .*or without the label"
    ):
        distsms.predict(model, tmp_path / "f.csv")


@pytest.mark.parametrize(
    "text, options, told",
    [
        (TEXT, {}, r"the first line must name the columns, and seems to be missing; .*--no-header, or --names A,B"),
        ("Ann,39,red,1.5\nBob,40,red,2\n", {}, "seems to be missing"),
        ("name,age,colour,year\nBob,40,red,2\n", {}, "'year'$"),
        ("Ann,39,39\nBob,40,40\n", {}, "the column name '39' occurs twice; the first line must name"),
        (TEXT, {"names": ("x", "y")}, "the first row has 4 fields, and there are 2 names of columns"),
        (TEXT, {"names": ("x", "x", "z", "y")}, "--names: the column name 'x' occurs twice"),
        (TEXT, {"no_header": True}, "has no column 'y'; it has 'column_1', .*'column_4'$"),
        ("", {"no_header": True}, "the file is empty"),
    ],
)
def test_faults_of_names_are_told(comm, shared_dir, text, options, told):
    with pytest.raises(InputError) as raised:
        made_of(comm, shared_dir, text, label="y", **options)
    assert re.search(told, str(raised.value).removesuffix(f" [rank 0 of {comm.size}]"))


@pytest.mark.serial
def test_parquet_has_names(tmp_path):
    import pyarrow as pa
    import pyarrow.parquet as pq

    pq.write_table(pa.table({"x": [1, 2], "y": [0, 1]}), tmp_path / "a.parquet")
    with pytest.raises(InputError, match="--no-header and --names are for CSV"):
        convert([tmp_path / "a.parquet"], tmp_path / "d", ALONE, label="y", no_header=True)
