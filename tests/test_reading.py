"""Files of every format: the same rows, on any number of ranks, and what is wrong with them."""

from __future__ import annotations

import json

import h5py
import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from hypothesis import given
from hypothesis import strategies as st
from scipy import sparse

from distsms import normalization, textfiles
from distsms.comm import Communicator
from distsms.conversion import convert
from distsms.errors import InputError
from distsms.reading import Reading, open_reader
from distsms.shards import load, read_ids, read_manifest, verify
from tests.files import write_anndata, write_csv

ALONE = Communicator()
FORMATS = ["svm", "csv", "tsv.gz", "parquet", "npz", "sparse.npz", "npy", "h5ad", "sparse.h5ad"]


def numbers(n=60, p=7, seed=0):
    """Rows with zeros, tiny and huge values, labels 3 and 7."""
    rng = np.random.default_rng(seed)
    X = rng.normal(size=(n, p)) * 10.0 ** rng.integers(-8, 9, (n, p)) * (rng.random((n, p)) < 0.6)
    X[0, -1] = 1 / 3
    return X, np.where(rng.random(n) < 0.4, 7, 3)


def write(path, X, y):
    """The rows as a file of the format that the name says, and how to read it."""
    names = [f"c{k}" for k in range(X.shape[1])]
    kind = path.name.split(".", 1)[1]
    if kind == "svm":
        lines = (
            " ".join([str(label), *(f"{k + 1}:{float(v)!r}" for k, v in enumerate(row))])
            for row, label in zip(X, y, strict=True)
        )
        path.write_text("\n".join(lines) + "\n")
        return {}
    if kind in ("csv", "tsv.gz"):
        rows = [[*map(repr, map(float, row)), label] for row, label in zip(X, y, strict=True)]
        write_csv(path, [*names, "y"], rows, "," if kind == "csv" else "\t")
        return {"label": "y"}
    if kind == "parquet":
        pq.write_table(pa.table({**dict(zip(names, X.T, strict=True)), "y": y}), path, row_group_size=7)
        return {"label": "y"}
    if kind == "npz":
        np.savez_compressed(path, X=X, y=y)
        return {}
    if kind in ("sparse.npz", "npy"):
        np.save(path.parent / "labels.npy", y)
        sparse.save_npz(path, sparse.csr_matrix(X)) if kind == "sparse.npz" else np.save(path, X)
        return {"label": str(path.parent / "labels.npy")}
    write_anndata(path, sparse.csr_matrix(X) if kind == "sparse.h5ad" else X, names, {"y": y})
    return {"label": "y"}


def content(directory):
    """All rows of a data set as they are in its files: X dense, y."""
    manifest = read_manifest(directory)
    rows, labels = [], []
    for shard in manifest.shards:
        with h5py.File(directory / shard.file) as file:
            shape = tuple(file["X"].attrs["shape"])
            data = file["X/data"][:] if shard.values else np.ones(shard.nnz)
            rows.append(sparse.csr_matrix((data, file["X/indices"][:], file["X/indptr"][:]), shape).toarray())
            labels.append(file["y"][:])
    return np.concatenate(rows), np.concatenate(labels)


def on_root(comm, action):
    """Do it once; every rank waits."""
    found = action() if comm.is_root else None
    return comm.bcast(found)


@pytest.mark.parametrize("kind", FORMATS)
def test_every_format_gives_the_same_rows(comm, shared_dir, kind, monkeypatch):
    """To the bit, whatever the ranks, and however small the blocks."""
    monkeypatch.setattr("distsms.rows.BLOCK_ENTRIES", 50)
    monkeypatch.setattr("distsms.arrow.BATCH_ROWS", 5)
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


COLUMNS = {
    "size": (["", "1", "2.5", "-3e2", "+.5", "0"], None),
    "who": (["", "ann", "bob", "1", "NA", " ann ", "a,b", 'q"'], str),
    "flag": (["true", "false"], str),
}


def one_hot(rows):
    """Feature names, and a dictionary of values for each row, by the rules, with no library."""
    cleaned = [["" if cell.strip() in ("", "NA") else cell.strip() for cell in row] for row in rows]
    features, columns = [], list(zip(*cleaned, strict=True))
    for (name, (_, kind)), column in zip(COLUMNS.items(), columns, strict=True):
        words = kind is str and any(one.strip("+-.0123456789e") for one in column)
        features += [f"{name}={one}" for one in sorted(set(column) - {""})] if words else [name]
        features += [f"{name} is missing"] * ("" in column)
    X = np.zeros((len(rows), len(features)))
    for i, row in enumerate(cleaned):
        for name, cell in zip(COLUMNS, row, strict=True):
            for feature, value in (
                ((f"{name} is missing", 1), (f"{name}={cell}", 1)) if cell else ((f"{name} is missing", 1),)
            ):
                if (feature.endswith("is missing")) == (cell == "") and feature in features:
                    X[i, features.index(feature)] = value
            if cell and name in features:
                X[i, features.index(name)] = float(cell)
    return features, X


@pytest.mark.serial
@given(
    st.lists(st.tuples(*(st.sampled_from(values) for values, _ in COLUMNS.values())), min_size=2, max_size=12),
    st.integers(1, 5),
)
def test_tables_are_encoded_by_the_rules(tmp_path_factory, rows, n_shards):
    folder = tmp_path_factory.mktemp("t")
    labelled = [[*row, "no" if k else "yes", f"r{k}"] for k, row in enumerate(rows)]
    write_csv(folder / "a.csv", [*COLUMNS, "y", "id"], labelled)
    manifest = convert([folder / "a.csv"], folder / "d", ALONE, n_shards, "yes", label="y", id="id")
    features, X = one_hot(rows)
    assert manifest.table.features == features
    np.testing.assert_array_equal(content(folder / "d")[0], X)
    assert read_ids(manifest, 0, manifest.n) == [f"r{k}" for k in range(len(rows))]


@pytest.mark.serial
def test_types_of_parquet(tmp_path):
    """Dictionaries, truth values, integers, decimals, nulls and NaN; zeros of a category's codes do not matter."""
    from decimal import Decimal

    table = pa.table(
        {
            "d": pa.array(["b", None, "a", "b"]).dictionary_encode(),
            "t": pa.array([True, False, None, True]),
            "i": pa.array([1, None, 3, 2**40]),
            "f": pa.array([0.5, float("nan"), None, -0.0]),
            "m": pa.array([Decimal("1.25"), Decimal("2.50"), Decimal("0.00"), None]),
            "y": pa.array([True, False, True, False]),
        }
    )
    pq.write_table(table, tmp_path / "a.parquet")
    manifest = convert([tmp_path / "a.parquet"], tmp_path / "d", ALONE, label="y")
    names = "d=a d=b,d is missing,t=false t=true,t is missing,i,i is missing,f,f is missing,m,m is missing"
    assert manifest.table.features == [
        one for part in names.split(",") for one in ([part] if "is" in part else part.split())
    ]
    expected = [
        [0, 1, 0, 0, 1, 0, 1, 0, 0.5, 0, 1.25, 0],
        [0, 0, 1, 1, 0, 0, 0, 1, 0, 1, 2.5, 0],
        [1, 0, 0, 0, 0, 1, 3, 0, 0, 1, 0, 0],
        [0, 1, 0, 0, 1, 0, 2**40, 0, 0, 0, 0, 1],
    ]
    X, y = content(tmp_path / "d")
    np.testing.assert_array_equal(X, expected)
    assert y.tolist() == [1, -1, 1, -1] and manifest.label_map == {"+1": "true", "-1": "false"}


def mixed(n=200, seed=1):
    rng = np.random.default_rng(seed)
    words = np.array(["ann", "bob", "eve", "é", ""])
    return [
        [f"{rng.normal():.4g}" if rng.random() < 0.9 else "", words[rng.integers(5)], f"{k % 7}", "yn"[k % 3 > 0]]
        for k in range(n)
    ]


HEADER = ["x", "w", "k", "y"]


@pytest.mark.parametrize("normalize", normalization.KINDS)
def test_data_sets_do_not_depend_on_the_ranks(comm, shared_dir, normalize, monkeypatch):
    """Every byte of manifest and shards is what one process writes."""
    monkeypatch.setattr(textfiles, "BLOCK_BYTES", 100)
    on_root(comm, lambda: write_csv(shared_dir / "a.csv", HEADER, mixed()))
    how = {"label": "y", "normalize": normalize}
    convert([shared_dir / "a.csv"], shared_dir / "d", comm, 5, "y", **how)
    if comm.is_root:
        convert([shared_dir / "a.csv"], shared_dir / "alone", ALONE, 5, "y", **how)
        for path in (shared_dir / "d").iterdir():
            assert path.read_bytes() == (shared_dir / "alone" / path.name).read_bytes(), path
    comm.barrier()


# --- normalization -------------------------------------------------------------------------------------------------


def normalized(X, kind):
    """By NumPy."""
    if kind == "l2":
        lengths = np.linalg.norm(X, axis=1, keepdims=True)
        return X / np.where(lengths > 0, lengths, 1)
    sizes = {"standard": X.std(axis=0), "maxabs": np.abs(X).max(axis=0), "none": np.ones(X.shape[1])}[kind]
    return X / np.where(sizes > 0, sizes, 1)


@pytest.mark.parametrize("kind", normalization.KINDS)
@pytest.mark.parametrize("dtype", ["float64", "float32"])
def test_training_sees_normalized_rows(comm, shared_dir, kind, dtype):
    """A constant column, an empty one, an empty row, time stamps; the files keep the rows as they were."""
    X, y = numbers(40, 6)
    X[:, 1], X[:, 2], X[3], X[:, 4] = 5, 0, 0, 1.7e9 + np.arange(40)
    X = X.astype(dtype).astype(float)
    on_root(comm, lambda: write(shared_dir / "a.svm", X, y))
    convert([shared_dir / "a.svm"], shared_dir / "d", comm, 3, 7, dtype=dtype, normalize=kind, n_features=6)
    np.testing.assert_array_equal(content(shared_dir / "d")[0], X)
    block = load(shared_dir / "d", comm)
    mine = slice(block.first_row, block.first_row + len(block.labels))
    found = block.features.margins(np.eye(6)).T
    np.testing.assert_allclose(found, normalized(X, kind)[mine], rtol=1e-6 if dtype == "float32" else 1e-12, atol=0)
    assert read_manifest(shared_dir / "d").fingerprint == read_manifest(shared_dir / "d").fingerprint


@pytest.mark.serial
@given(
    st.lists(st.lists(st.floats(-1e100, 1e100) | st.just(0.0), min_size=3, max_size=3), min_size=2, max_size=20),
    st.randoms(),
)
def test_deviations_are_sums_without_order(rows, random):
    """The same bits for any order of the rows and any parts, and those of exact fractions to 1e-10."""
    from fractions import Fraction

    def scale(rows):
        X = sparse.csr_matrix(np.array(rows))
        parts = (
            [(X.indices[:k], X.data[:k]), (X.indices[k:], X.data[k:])] if (k := X.nnz // 2) else [(X.indices, X.data)]
        )
        return normalization.measure("standard", lambda: parts, (len(rows), 3), ALONE).scale

    first = scale(rows)
    shuffled = list(rows)
    random.shuffle(shuffled)
    assert first.tolist() == scale(shuffled).tolist()
    for j in range(3):
        column = [Fraction(row[j]) for row in rows]
        mean = sum(column) / len(column)
        spread = max(column) - min(column)
        if spread:
            variance = sum(((one - mean) / spread) ** 2 for one in column) / len(column)
            wanted = 1 / (float(spread) * float(variance) ** 0.5) if float(spread) > 1e-290 else None
            assert wanted is None or abs(first[j] - wanted) <= 1e-10 * wanted
        else:
            assert first[j] == 1


# --- what is wrong --------------------------------------------------------------------------------------------------

BAD_TABLES = [
    ("x,y\n1,a\n2,b\n3\n", {}, r"a\.csv:4: found 1 fields, expected 2"),
    ("x,y\n1,a\n2,b,c\n", {}, r"a\.csv:3: found 3 fields, expected 2"),
    ("x,x,y\n1,2,a\n", {}, "'x' occurs twice"),
    ("x,y\n1,a\n\n2,\n3,b\n", {}, r"a\.csv:4: column 'y'.*label is missing"),
    ("x,y\n1,a\ninf,b\n", {}, r"a\.csv:3: column 'x'.*'inf'.*not finite"),
    ("x,y\n1,a\n2,a\n", {}, "one value only, a"),
    ("x,y\n1,a\n2,b\n", {"positive": "c"}, "found the labels: a, b; --positive c is none of them"),
    ("x,y\n1,a\n2,b\n", {"positive": None}, "found the labels: a, b; .*--positive"),
    ("x,y\n1,a\n2,b\n", {"label": "z"}, "has no column 'z'; it has 'x', 'y'"),
    ("x,y\n1,a\n2,b\n", {"label": None}, "--label COLUMN; columns: 'x', 'y'"),
    ("x;y\n1,5;a\n2;b\n", {}, "it has 'x;y' .*separated by commas"),
    ("x,y\n", {}, r"a\.csv: not a single row"),
    ("x,y\n1,a\n2,b\n", {"id": "z"}, "has no column 'z'"),
    (",x,y\n0,1,a\n1,2,b\n", {}, "column 1 has no name"),
    ("", {}, "first line must name the columns"),
    ('x,y\n1,a\n"2\n3",b\n', {}, r"a\.csv:[23]: .*(a quoted field|found 1 fields)"),
    ('x,y\n1,"a\n2,b"\n', {}, r"a\.csv:[23]: in or after this line a quoted field"),
    (
        "x,y\n" + "".join(f"{k},{'ab'[k % 2]}\n" for k in range(1500)) + "12o,a\n",
        {},
        r"a\.csv:1502: column 'x': is no number",
    ),
    ("y\na\nb\n", {}, "no column besides label"),
    (
        "x,y\n" + "".join(f"1,{k}\n" for k in range(1500)),
        {"positive": "3"},
        "more than 1000 different values: is it the label",
    ),
]


@pytest.mark.parametrize("text, how, message", BAD_TABLES)
def test_bad_tables(comm, shared_dir, text, how, message):
    if comm.is_root:
        (shared_dir / "a.csv").write_text(text)
    comm.barrier()
    how = {"label": "y", "positive": "a", **how}
    with pytest.raises(InputError, match=message):
        convert([shared_dir / "a.csv"], shared_dir / "d", comm, **how)
    comm.barrier()
    assert not (shared_dir / "d").exists()


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
        ({300: 356}, "it claims 356 rows, its groups 300"),
        ({300: 244}, "it claims 244 rows, its groups 300"),
        ({300: 0}, "it claims 0 rows, its groups 300"),
        ({100: 156}, "it claims 300 rows, its groups 356"),
        ({100: 64}, "it claims 300 rows, its groups 264"),
        ({100: -2, 300: 198}, "it claims 198 rows, its groups 198"),
        ({100: 156, 300: 356}, "56 rows are missing in group 1"),
    ],
)
def test_parquet_that_lies_about_its_rows(comm, shared_dir, lies, message):
    """In the footer, or in the second group, whose number comes last in it. No more of a group is read than that."""

    def prepare():
        table = {"x": np.arange(300.0), "y": np.arange(300) % 2}
        pq.write_table(pa.table(table), shared_dir / "a.parquet", row_group_size=200)
        for honest, lie in lies.items():
            claim(shared_dir / "a.parquet", honest, lie)
        claims = pq.read_metadata(shared_dir / "a.parquet")
        assert claims.num_rows == lies.get(300, 300) and claims.row_group(1).num_rows == lies.get(100, 100)

    on_root(comm, prepare)
    with pytest.raises(InputError, match=f"a.parquet: is damaged: {message}; copy it again"):
        convert([shared_dir / "a.parquet"], shared_dir / "d", comm, label="y")


@pytest.mark.serial
def test_parquet_that_shrinks_while_it_is_read(tmp_path):
    X, y = numbers()
    how = write(tmp_path / "a.parquet", X, y)
    reader = open_reader([tmp_path / "a.parquet"], Reading(positive=7, **how), ALONE)
    write(tmp_path / "a.parquet", X[:50], y[:50])
    with pytest.raises(InputError, match="has 50 rows, had at least 60; is it being written to"):
        list(reader.read(reader.plan(1)[0]))


@pytest.mark.parametrize("kind", ["npz", "sparse.npz", "npy", "h5ad", "sparse.h5ad"])
@pytest.mark.parametrize("bad", [np.nan, np.inf])
def test_arrays_must_be_finite(comm, shared_dir, kind, bad):
    X, y = numbers()
    X[41, 5] = bad
    how = on_root(comm, lambda: write(shared_dir / f"a.{kind}", X, y))
    with pytest.raises(InputError, match=rf"a\.{kind}: row 41, column 5 \(counted from 0\): found {bad}"):
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
    refused("59 entries, the input 60 rows", "X.npy", label=str(tmp_path / "short.npy"))
    np.savez(tmp_path / "o.npz", X=X.astype(object), y=y)
    refused("Python objects", "o.npz")
    np.savez(tmp_path / "f.npz", X=np.asfortranarray(X), y=y)
    refused("stored by columns", "f.npz")
    (tmp_path / "t.npz").write_bytes((tmp_path / "f.npz").read_bytes()[:200])
    refused("cannot be read", "t.npz")
    write_anndata(tmp_path / "a.h5ad", X, list("abcdefa"), {"y": y})
    refused("'a' occurs twice", "a.h5ad", label="y")
    refused("has no column 'z'; it has 'y'", "a.h5ad", label="z")
    refused("--label COLUMN", "a.h5ad")
    (tmp_path / "no.h5ad").write_bytes(b"x")
    refused("cannot be read as HDF5", "no.h5ad", label="y")
    (tmp_path / "no.parquet").write_bytes(b"x" * 100)
    refused("cannot be read as Parquet", "no.parquet", label="y")


@pytest.mark.serial
def test_labels_of_anndata(tmp_path):
    """Categories, truth values, numbers that may be missing; ids from the index."""
    X = np.arange(8.0).reshape(4, 2)
    obs = {
        "cell": np.array(["b", "a", "b", "c"]),
        "name": np.array(["w", "x", "y", "z"]),
        "ok": np.array([1, 0, 0, 1], bool),
    }
    write_anndata(tmp_path / "a.h5ad", X, ["g1", "g2"], obs)
    manifest = convert([tmp_path / "a.h5ad"], tmp_path / "d", ALONE, positive="b", label="cell", id="name")
    assert manifest.label_map == {"+1": "b", "-1": ["a", "c"]} and manifest.table.features == ["g1", "g2"]
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
