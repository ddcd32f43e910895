"""Files of every format give the same rows on any number of ranks; damaged ones are refused."""

from __future__ import annotations

import io
import json
import sys
from collections import Counter

import h5py
import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from scipy import sparse

from distsms.base import text_files
from distsms.base.errors import InputError
from distsms.cli import terminal
from distsms.ingest.formats import arrow, registry
from distsms.ingest.formats.registry import open_reader
from distsms.ingest.options import ReadOptions
from distsms.matrix import normalization
from distsms.shards.column_options import ColumnOptions
from distsms.shards.dataset import load_matrix, read_ids, read_manifest
from distsms.shards.manifest import verify
from tests.support.conversion import convert
from tests.support.files import (
    ALONE,
    FORMATS,
    HEADER,
    content,
    mixed,
    numbers,
    on_root,
    write,
    write_anndata,
    write_csv,
)


@pytest.mark.parametrize("kind", FORMATS)
def test_every_format_gives_the_same_rows(comm, shared_dir, kind, monkeypatch):
    """Rows are the same bit for bit, whatever the ranks, and however small the blocks."""
    monkeypatch.setattr("distsms.shards.rows.BLOCK_ENTRIES", 50)
    monkeypatch.setattr("distsms.ingest.formats.arrow.BATCH_ROWS", 5)
    X, y = numbers()
    how = on_root(comm, lambda: write(shared_dir / f"a.{kind}", X, y))
    for n_shards in (None, 4):
        manifest = convert([shared_dir / f"a.{kind}"], shared_dir / "d", comm, n_shards, 7, overwrite=True, **how)
        assert manifest.label_map == {"+1": 7, "-1": 3} and manifest.p == 7 and verify(shared_dir / "d") == []
        found, labels = content(shared_dir / "d")
        np.testing.assert_array_equal(found, X)
        np.testing.assert_array_equal(labels, np.where(y == 7, 1, -1))
        comm.barrier()


@pytest.mark.parametrize("kind", ["csv", "parquet", "npz", "h5ad"])
def test_several_files_are_read_one_after_the_other(comm, shared_dir, kind):
    X, y = numbers()
    names = [f"{k}.{kind}" for k in range(3)]
    (how, *_) = [
        on_root(comm, lambda k=k: write(shared_dir / names[k], X[20 * k :][:20], y[20 * k :][:20])) for k in range(3)
    ]
    convert([shared_dir / name for name in names], shared_dir / "d", comm, 2, "7", **how)
    np.testing.assert_array_equal(content(shared_dir / "d")[0], X)


@pytest.mark.parametrize("normalize", normalization.KINDS)
def test_data_sets_do_not_depend_on_the_ranks(comm, shared_dir, normalize, monkeypatch):
    """Every byte of manifest and shards is as one process writes it."""
    monkeypatch.setattr(text_files, "BLOCK_BYTES", 100)
    on_root(comm, lambda: write_csv(shared_dir / "a.csv", HEADER, mixed()))
    how = {"label": "y", "normalize": normalize}
    convert([shared_dir / "a.csv"], shared_dir / "d", comm, 5, "y", **how)
    if comm.is_root:
        convert([shared_dir / "a.csv"], shared_dir / "alone", ALONE, 5, "y", **how)
        for path in (shared_dir / "d").iterdir():
            assert path.read_bytes() == (shared_dir / "alone" / path.name).read_bytes(), path
    comm.barrier()


def claim(path, honest, lie):
    """Change the last place in a Parquet footer that holds a number of rows, from 64 to 8191.

    There it is an i64 of Thrift's compact protocol: 16 for the type, then 7 bits of a zigzag number in each byte.
    """

    def field(n):
        zigzag = 2 * n if n >= 0 else -2 * n - 1
        return bytes([0x16, zigzag & 0x7F | 0x80, zigzag >> 7])

    content = path.read_bytes()
    footer = len(content) - 8 - int.from_bytes(content[-8:-4], "little")
    at = content.rindex(field(honest), footer)
    path.write_bytes(content[:at] + field(lie) + content[at + 3 :])


@pytest.mark.parametrize(
    "lies, message",
    [
        ({300: 356}, "it claims 356 rows, but its row groups have 300"),
        ({300: 244}, "it claims 244 rows, but its row groups have 300"),
        ({300: 0}, "it claims 0 rows, but its row groups have 300"),
        ({100: 156}, "it claims 300 rows, but its row groups have 356"),
        ({100: 64}, "it claims 300 rows, but its row groups have 264"),
        ({100: -2, 300: 198}, "it claims 198 rows, but its row groups have 198"),
        ({100: 156, 300: 356}, "group 1 lacks 56 rows"),
    ],
)
def test_parquet_that_lies_about_its_rows(comm, shared_dir, lies, message):
    """The damage is in the footer, or in the second group, whose number is the last one. No more of a group is read."""

    def prepare():
        table = {"x": np.arange(300.0), "y": np.arange(300) % 2}
        pq.write_table(pa.table(table), shared_dir / "a.parquet", row_group_size=200)
        for honest, lie in lies.items():
            claim(shared_dir / "a.parquet", honest, lie)
        claims = pq.read_metadata(shared_dir / "a.parquet")
        assert claims.num_rows == lies.get(300, 300) and claims.row_group(1).num_rows == lies.get(100, 100)

    on_root(comm, prepare)
    with pytest.raises(InputError, match=f"a.parquet: .*{message}; copy it again"):
        convert([shared_dir / "a.parquet"], shared_dir / "d", comm, label="y")


@pytest.mark.serial
def test_a_long_string_of_many_rows_takes_its_memory_once(tmp_path):
    """Parquet has it once, whether or not its reader is told so. All copies would take more than twice the bound."""
    n, pool = 20_000, pa.default_memory_pool()
    long = pa.DictionaryArray.from_arrays(pa.array(np.arange(n) % 2, pa.int32()), ["x" * 30_000, "u"])
    table = pa.table({"a": long, "b": [1.5] * n, "y": np.arange(n) % 2})
    for told in (False, True):
        pq.write_table(table, tmp_path / "a.parquet", compression="zstd", store_schema=told)
        pa.set_memory_pool(counting := pa.proxy_memory_pool(pool))
        try:
            manifest = convert([tmp_path / "a.parquet"], tmp_path / f"told {told}", ALONE, label="y")
        finally:
            pa.set_memory_pool(pool)
        assert manifest.table.columns[0].categories == ("u", "x" * 30_000)
        assert 0 < counting.max_memory() < 2**27


@pytest.mark.parametrize(
    "how", [{}, {"use_dictionary": False, "data_page_version": "2.0"}, {"write_statistics": False}]
)
def test_a_large_page_is_refused_before_it_is_read(tmp_path, monkeypatch, how):
    """Wherever it is among the pages of a column; those of columns that are left out do not count."""
    texts = ["x" * 10 * k for k in range(300)]
    texts[200] = "long" * 5000
    pq.write_table(
        pa.table({"a": texts, "b": np.arange(300) % 7 / 2, "y": [0, 1] * 150}),
        path := tmp_path / "a.parquet",
        **{"data_page_size": 1000, "write_batch_size": 10, "compression": "zstd", "row_group_size": 280, **how},
    )
    chunk, headers = pq.read_metadata(path).row_group(0).column(0), []
    monkeypatch.setattr(arrow, "MOST_PAGE_BYTES", 10_000)
    convert([path], tmp_path / "d", ALONE, label="y", drop=["a"])
    with pytest.raises(InputError, match=r"a\.parquet: column 'a' has a page of [0-9]+ bytes, and at most 10000"):
        convert([path], tmp_path / "e", ALONE, label="y")

    class Noted(arrow._Header):
        def struct(self):
            is_whole = not self.size  # else it is a part of a header
            found = super().struct()
            if is_whole:
                headers.append((found, self.size))
            return found

    monkeypatch.setattr(arrow, "MOST_PAGE_BYTES", 2**31)
    monkeypatch.setattr(arrow, "_Header", Noted)
    with open(path, "rb") as file:
        arrow.require_small_pages(file, chunk, "a.parquet")
    assert sum(fields[3] + length for fields, length in headers) == chunk.total_compressed_size
    assert sum(fields[2] + length for fields, length in headers) == chunk.total_uncompressed_size


def test_parquet_in_small_pieces(tmp_path, monkeypatch):
    """Strings of a file are worked on in pieces, whose size changes nothing."""
    words = ["a", None, "bb", "", "c" * 30] * 20
    table = pa.table(
        {"w": words, "n": np.arange(100.0), "i": [f"row {k}" for k in range(100)], "y": np.arange(100) % 2}
    )
    pq.write_table(table, tmp_path / "a.parquet")
    found = []
    for piece_bytes in (arrow.PIECE_BYTES, 40, 1):
        monkeypatch.setattr(arrow, "PIECE_BYTES", piece_bytes)
        folder = tmp_path / str(piece_bytes)
        manifest = convert(
            [tmp_path / "a.parquet"], folder, ALONE, label="y", id="i", columns=ColumnOptions(categorical=["w"])
        )
        X, y, _ = load_matrix(manifest)
        found.append((X.toarray().tolist(), y.tolist(), list(read_ids(manifest, 0, 100))))
    assert found[0] == found[1] == found[2]


def test_columns_that_are_not_read_are_refused_by_their_type(tmp_path, monkeypatch):
    """Before anything of them is read, since a list may have any length."""
    pq.write_table(pa.table({"list": [[1.5] * 3] * 100, "y": [0, 1] * 50}), tmp_path / "a.parquet")
    monkeypatch.setattr(pq.ParquetFile, "iter_batches", lambda *_, **__: pytest.fail("it was read"))
    with pytest.raises(InputError, match=r"a\.parquet: column 'list' has the type list<.*neither numbers"):
        convert([tmp_path / "a.parquet"], tmp_path / "d", ALONE, label="y")


def test_parquet_that_shrinks_while_it_is_read(tmp_path):
    X, y = numbers()
    how = write(tmp_path / "a.parquet", X, y)
    reader = open_reader([tmp_path / "a.parquet"], ReadOptions(positive=7, **how), ALONE)
    write(tmp_path / "a.parquet", X[:50], y[:50])
    with pytest.raises(InputError, match="has 50 rows, but had at least 60; is another program writing to it"):
        list(reader.read(reader.plan(1)[0]))


@pytest.mark.parametrize("kind", ["npz", "sparse.npz", "npy", "h5ad", "sparse.h5ad"])
@pytest.mark.parametrize("bad", [np.nan, np.inf])
def test_arrays_must_be_finite(comm, shared_dir, kind, bad):
    X, y = numbers()
    X[41, 5] = bad
    how = on_root(comm, lambda: write(shared_dir / f"a.{kind}", X, y))
    with pytest.raises(InputError, match=rf"a\.{kind}: row 41, column 5 \(counted from 0\): {bad} is not finite"):
        convert([shared_dir / f"a.{kind}"], shared_dir / "d", comm, positive="7", **how)


@pytest.mark.serial
def test_arrays_of_other_kinds(tmp_path):
    X, y = numbers()

    def refused(message, name, **how):
        with pytest.raises(InputError, match=message):
            convert([tmp_path / name], tmp_path / "d", ALONE, positive="7", **how)

    sparse.save_npz(tmp_path / "csc.npz", sparse.csc_matrix(X))
    refused("format csc; expected CSR", "csc.npz")
    np.save(tmp_path / "one.npy", y)
    refused("expected rows and columns", "one.npy", label="y")
    np.save(tmp_path / "X.npy", X)
    refused(r"--label y\.npy", "X.npy")
    np.save(tmp_path / "short.npy", y[:-1])
    refused("59 entries, but the input has 60 rows", "X.npy", label=str(tmp_path / "short.npy"))
    np.save(tmp_path / "number.npy", 7)
    refused("number.npy: has a single number, but the input", "X.npy", label=str(tmp_path / "number.npy"))
    np.savez(tmp_path / "o.npz", X=X.astype(object), y=y)
    refused("Python objects", "o.npz")
    np.savez(tmp_path / "f.npz", X=np.asfortranarray(X), y=y)
    refused("stored by columns", "f.npz")
    CSR = sparse.csr_matrix(X)
    of_X = {"indptr": CSR.indptr, "indices": CSR.indices, "data": CSR.data, "y": y}
    for shape in ((61, 7), (59, 7), (60, -7), (-1, 7)):
        np.savez(tmp_path / "s.npz", shape=shape, **(of_X if shape[0] > 0 else of_X | {"indptr": CSR.indptr[:0]}))
        refused(f"X claims to be {shape[0]} x {shape[1]}, which its indptr is not", "s.npz")
    np.savez(tmp_path / "s.npz", shape=(60, 7), **(of_X | {"indptr": np.append(-1, CSR.indptr[1:])}))
    refused("near row 0 indptr does not fit the entries", "s.npz")
    for shape in (60, (60,), (60, 7, 1), (60, "x")):
        np.savez(tmp_path / "s.npz", shape=shape, **of_X)
        refused("cannot be read", "s.npz")
    (tmp_path / "t.npz").write_bytes((tmp_path / "f.npz").read_bytes()[:200])
    refused("cannot be read", "t.npz")
    write_anndata(tmp_path / "a.h5ad", X, list("abcdefa"), {"y": y})
    refused("'a' occurs twice", "a.h5ad", label="y")
    write_anndata(tmp_path / "a.h5ad", X, list("abcdefg"), {"y": y})
    refused("has no column 'z'; it has 'y'", "a.h5ad", label="z")
    refused("--label COLUMN", "a.h5ad")
    write_anndata(tmp_path / "s.h5ad", CSR, list("abcdefg"), {"y": y})
    for shape in ((61, 7), (60, -7)):
        with h5py.File(tmp_path / "s.h5ad", "r+") as file:
            file["X"].attrs["shape"] = shape
        refused(f"X claims to be {shape[0]} x {shape[1]}, which its indptr is not", "s.h5ad", label="y")
    (tmp_path / "no.h5ad").write_bytes(b"x")
    refused("cannot be read as HDF5", "no.h5ad", label="y")
    (tmp_path / "no.parquet").write_bytes(b"x" * 100)
    refused("cannot be read as Parquet", "no.parquet", label="y")


@pytest.mark.serial
def test_labels_of_anndata(tmp_path):
    """Read categories, truth values and numbers that may be missing; ids come from the index."""
    X = np.arange(8.0).reshape(4, 2)
    obs = {
        "cell": np.array(["b", "a", "b", "c"]),
        "name": np.array(["w", "x", "y", "z"]),
        "ok": np.array([1, 0, 0, 1], bool),
    }
    write_anndata(tmp_path / "a.h5ad", X, ["g1", "g2"], obs)
    manifest = convert([tmp_path / "a.h5ad"], tmp_path / "d", ALONE, positive="b", label="cell", id="name")
    assert manifest.label_map == {"+1": "b", "-1": ["a", "c"]} and manifest.table.feature_names == ["g1", "g2"]
    assert content(tmp_path / "d")[1].tolist() == [1, -1, 1, -1]
    assert read_ids(manifest, 1, 3) == ["x", "y"]
    manifest = convert([tmp_path / "a.h5ad"], tmp_path / "e", ALONE, label="ok")
    assert content(tmp_path / "e")[1].tolist() == [1, -1, -1, 1] and manifest.label_map == {"+1": "true", "-1": "false"}
    with h5py.File(tmp_path / "a.h5ad", "r+") as file:
        group = file["obs"].create_group("maybe")
        group["values"], group["mask"] = np.array([1, 0, 1, 0]), np.array([0, 0, 0, 1], bool)
    with pytest.raises(InputError, match=r"row 3 \(counted from 0\): the label is missing"):
        convert([tmp_path / "a.h5ad"], tmp_path / "f", ALONE, label="maybe")


@pytest.mark.serial
def test_a_manifest_that_contradicts_itself(tmp_path):
    write_csv(tmp_path / "a.csv", HEADER, mixed())
    convert([tmp_path / "a.csv"], tmp_path / "d", ALONE, positive="y", label="y", normalize="maxabs")
    whole = json.loads((tmp_path / "d/manifest.json").read_text())
    del whole["checksum"]
    for change in (
        {"scale": [1.0]},
        {"normalize": "x"},
        {"table": {"columns": 3}},
        {"scale": None},
        {"normalize": "l2"},
    ):
        (tmp_path / "d/manifest.json").write_text(json.dumps({**whole, **change}))
        with pytest.raises(InputError, match=r"manifest\.json"):
            read_manifest(tmp_path / "d")


@pytest.mark.serial
@pytest.mark.parametrize("form", [np.asarray, sparse.csr_matrix])
def test_files_that_anndata_itself_wrote(tmp_path, form):
    anndata, pandas = pytest.importorskip("anndata"), pytest.importorskip("pandas")
    X, y = numbers()
    obs = pandas.DataFrame({"y": pandas.Categorical(y.astype(str))}, index=[f"cell {i}" for i in range(len(y))])
    anndata.AnnData(form(X), obs=obs).write_h5ad(tmp_path / "a.h5ad", compression="gzip")
    convert([tmp_path / "a.h5ad"], tmp_path / "d", ALONE, positive="7", label="y", id="_index")
    found, labels = content(tmp_path / "d")
    np.testing.assert_array_equal(found, X)
    np.testing.assert_array_equal(labels, np.where(y == 7, 1, -1))


@pytest.mark.serial
def test_warnings_fit_the_terminal(monkeypatch, capsys):
    problem = "column 'country': categories that the training data did not have; they add nothing to the score"
    for watched in (False, True):
        monkeypatch.setattr(sys.stderr, "isatty", lambda watched=watched: watched)
        monkeypatch.setattr(terminal, "terminal_width", lambda: 80)
        monkeypatch.delenv("COLUMNS", raising=False)
        for warning in registry.reader_warnings("new.csv", Counter({problem: 3}), ALONE):
            terminal.print_warning(warning)
        text = capsys.readouterr().err
        assert " ".join(text.split()) == f"warning: new.csv: {problem}: 3 rows"
        assert (max(map(len, text.split("\n"))) <= 80) == watched


@pytest.mark.serial
@pytest.mark.parametrize("size", [1000, 1000 + 2**32])
def test_headers_of_pages_with_fields_of_any_kind(size):
    """Maps are passed over, sizes have 32 bits, and a number without an end is none."""

    def number(value):
        digits = [value >> shift & 127 for shift in range(0, 42, 7)]
        return bytes([digit | 128 for digit in digits[:-1]] + digits[-1:])

    maps = b"\x1b\x00" + b"\x1b\x02\x85" + b"\x01a\x02" * 2  # of texts and whole numbers, after an empty one
    fields = maps.replace(b"\x1b", b"\x0b\x0a") + b"\x05\x04" + number(2 * size) + b"\x15\x06\x00"
    header = arrow._Header(io.BytesIO(fields))
    assert header.struct() == {2: 1000, 3: 3} and header.size == len(fields)
    endless = arrow._Header(io.BytesIO(b"\x15" + b"\x80" * 2**20))
    with pytest.raises(LookupError):
        endless.struct()
    assert endless.size < 20


@pytest.mark.serial
@pytest.mark.parametrize("reverse", [False, True])
def test_categories_of_pandas_in_one_of_several_files(tmp_path, reverse):
    frame = pytest.importorskip("pandas").DataFrame({"c": [1, 2, 1, 2], "y": [0, 1, 1, 0]})
    frame.astype({"c": "category"}).to_parquet(tmp_path / f"{'ba'[reverse]}.parquet")
    frame.to_parquet(tmp_path / f"{'ab'[reverse]}.parquet")
    made = convert([tmp_path / "a.parquet", tmp_path / "b.parquet"], tmp_path / "d", ALONE, label="y")
    assert made.table.feature_names == ["c=1", "c=2"]
