"""What labels mean, and conversions on any number of ranks."""

from __future__ import annotations

import contextlib

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from distsms.base.errors import InputError
from distsms.base.files import FileState
from distsms.ingest import convert as conversion
from distsms.shards.dataset import load
from distsms.shards.labels import interpret, to_signs
from distsms.shards.manifest import COMPRESSIONS, verify
from tests.support.conversion import convert
from tests.support.files import ALONE, on_root


@pytest.mark.serial
@pytest.mark.parametrize(
    "found, positive, expected",
    [
        ((-1, 1), None, (1, -1)),
        ((0, 1), None, (1, 0)),
        ((1, 2), None, (1, 2)),
        ((1,), None, (1, None)),
        ((2,), None, (None, 2)),
        ((-1,), None, (None, -1)),
        ((3, 7), 7, (7, 3)),
        ((1, 2), 2, (2, 1)),
        ((4,), 7, (None, 4)),
        ((1, 2, 3), 1, (1, [2, 3])),
        ((3, 7), "7", (7, 3)),
        ((), None, (None, None)),
    ],
)
def test_labels(found, positive, expected):
    meaning = interpret(map(float, found), positive)
    assert (meaning["+1"], meaning["-1"]) == expected
    found_signs = to_signs(np.array(found, float), meaning, "the labels").tolist()
    assert found_signs == [1 if label == meaning["+1"] else -1 for label in found]


@pytest.mark.serial
@pytest.mark.parametrize(
    "found, positive, expected",
    [
        (("True", "False"), None, ("True", "False")),
        (("TRUE", "FALSE"), "true", ("TRUE", "FALSE")),
        ((True, False), None, (True, False)),
        (("yes", "no"), None, ("yes", "no")),
        (("Yes", "yes", "No"), None, (["Yes", "yes"], "No")),
        (("Y", "N"), None, ("Y", "N")),
        (("positive", "negative"), None, ("positive", "negative")),
        (("0", "1"), None, ("1", "0")),
        (("n",), None, (None, "n")),
        (("good", "bad"), "Good", ("good", "bad")),
    ],
)
def test_labels_in_words(found, positive, expected):
    meaning = interpret(found, positive)
    assert (meaning["+1"], meaning["-1"]) == expected
    signs = [1 if label in np.atleast_1d(expected[0]).tolist() else -1 for label in found]
    assert to_signs(np.array(found), meaning, "the labels").tolist() == signs


@pytest.mark.serial
def test_truth_values_of_every_spelling_are_the_same_labels(tmp_path):
    """True as pandas writes it, in a model of Parquet's true."""
    write(ALONE, tmp_path / "a.csv", "x,y\n1,True\n2,False\n")
    pq.write_table(pa.table({"x": [1.0, 2.0], "y": [True, False]}), tmp_path / "a.parquet")
    for first, second in (("csv", "parquet"), ("parquet", "csv")):
        convert([tmp_path / f"a.{first}"], tmp_path / first, ALONE, label="y")
        like = convert([tmp_path / f"a.{second}"], tmp_path / "like", ALONE, like=tmp_path / first, overwrite=True)
        assert load(like, ALONE).labels.tolist() == [1, -1]


@pytest.mark.serial
def test_labels_that_nobody_can_know_are_counted(tmp_path):
    write(ALONE, tmp_path / "a.csv", "x,y\n1,good\n2,bad\n3,bad\n")
    with pytest.raises(InputError, match=r"column 'y': found the labels: bad \(2 rows\), good \(1 row\).*--positive"):
        convert([tmp_path / "a.csv"], tmp_path / "d", ALONE, label="y")


@pytest.mark.serial
@pytest.mark.parametrize("found, positive", [((3, 7), None), ((1, 2, 3), None), ((1, 2), 3), ((5,), None)])
def test_labels_that_nobody_can_know(found, positive):
    with pytest.raises(InputError, match="label"):
        interpret(map(float, found), positive)


def write(comm, path, text):
    if comm.is_root:
        path.write_text(text)
    comm.barrier()


@pytest.mark.parametrize("n_shards", [None, 1, 3, 50])
def test_rows_keep_their_order(comm, shared_dir, n_shards):
    """Write fewer lines than shards, lines of very different length, comments; each row begins with its number."""
    lines = [f"{1 if k % 3 else -1} 1:{k + 1} " + " ".join(f"{c}:2" for c in range(2, 2 + k % 7)) for k in range(40)]
    write(comm, shared_dir / "a.svm", "# head\n\n" + "\n".join(lines[:25]) + "\n")
    write(comm, shared_dir / "b.svm", "\n".join(lines[25:]))
    manifest = convert([shared_dir / "a.svm", shared_dir / "b.svm"], shared_dir / "d", comm, n_shards)
    assert (manifest.n, manifest.p, manifest.n_neg) == (40, 7, 14)
    assert verify(shared_dir / "d") == []
    block = load(manifest, comm)
    first = block.features.margins(np.eye(7)[0])
    np.testing.assert_array_equal(first, block.first_row + 1 + np.arange(len(first)))
    np.testing.assert_array_equal(block.labels, np.where((first - 1) % 3, 1, -1))


@pytest.mark.parametrize(
    "text, message",
    [
        ("1 1:1\n-1 1:x\n", r"a\.svm:2:"),
        ("1 9:1\n", r"uses column 9 .* but --columns or --like allows 5"),
        ("1 1:1\n2 1:1\n3 1:1\n", "3 different labels"),
    ],
)
def test_failures_leave_nothing(comm, shared_dir, text, message):
    write(comm, shared_dir / "a.svm", text)
    with pytest.raises(InputError, match=message):
        convert([shared_dir / "a.svm"], shared_dir / "d", comm, n_features=5)
    comm.barrier()
    assert not (shared_dir / "d").exists()
    with pytest.raises(InputError, match="nowhere"):
        convert([shared_dir / "nowhere"], shared_dir / "d", comm)


def test_a_data_set_in_the_way_is_told_before_the_text_is_read(comm, shared_dir):
    """So that nobody reads the list of columns in vain, or waits for it."""
    write(comm, shared_dir / "a.csv", "x,z,y\n1,2,0\n2,2,1\n")
    convert([shared_dir / "a.csv"], shared_dir / "d", comm, label="y")
    shown = []
    with pytest.raises(InputError, match="d: holds a data set already"):
        convert([shared_dir / "a.csv"], shared_dir / "d", comm, label="y", show_columns=shown.append)
    assert shown == []


def test_an_empty_file_is_no_data_set(comm, shared_dir):
    write(comm, shared_dir / "a.svm", "# nothing\n")
    with pytest.raises(InputError, match="row"):
        convert([shared_dir / "a.svm"], shared_dir / "d", comm)


@pytest.mark.parametrize("normalize", ["none", "standard"])
def test_compressed_is_the_same(comm, shared_dir, normalize):
    """Compressed data sets have the same rows, bit for bit, in smaller files."""
    write(comm, shared_dir / "a.svm", "".join(f"{k % 2} 1:{k % 9 / 7} {k % 50 + 2}:1\n" for k in range(20_000)))
    kinds = {}
    for compression in COMPRESSIONS:
        how = {"normalize": normalize, "compression": compression}
        manifest = convert([shared_dir / "a.svm"], shared_dir / compression, comm, 3, **how)
        block = load(manifest, comm)
        size = sum(shard.bytes for shard in manifest.shards)
        kinds[compression] = manifest.normalization, size, block.labels, block.features.margins(np.eye(51))
    (plain_scale, plain_bytes, *plain), (scale, n_bytes, *packed) = kinds.values()
    assert scale == plain_scale and 3 * n_bytes < plain_bytes
    for one, other in zip(plain, packed, strict=True):
        np.testing.assert_array_equal(one, other)


def test_float32_and_more_columns(comm, shared_dir):
    write(comm, shared_dir / "a.svm", "1 1:0.1 3:2\n-1 2:1e-3\n")
    manifest = convert([shared_dir / "a.svm"], shared_dir / "d", comm, n_features=9, dtype="float32")
    assert (manifest.p, manifest.dtype) == (9, "float32")
    block = load(manifest, comm)
    total = comm.sum(block.features.margins(np.ones(9)).sum(keepdims=True))
    assert total[0] == float(np.float32(0.1)) + 2 + float(np.float32(1e-3))


@pytest.mark.parametrize("odd", ["1 7:1 99999:1 # 123:4", "1 0099999:2.5", "1 99999:0"])
def test_an_index_far_above_the_others_is_named(comm, shared_dir, capfd, odd):
    """Whichever rank has it, whatever comment or value mentions the same number."""
    lines = [f"{(-1) ** row} {1 + row % 40}:99999 # 99999:1" for row in range(3000)]
    lines[2221] = odd
    on_root(comm, lambda: (shared_dir / "a.svm").write_text("1 1:1\n"))
    on_root(comm, lambda: (shared_dir / "b.svm").write_text("\n".join(lines)))
    manifest = convert([shared_dir / "a.svm", shared_dir / "b.svm"], shared_dir / "made", comm)
    err = comm.bcast(capfd.readouterr().err)
    assert manifest.p == 99999
    assert f"{shared_dir}/b.svm:2222: has the index 99999, which is far above the others: only 1 of 3001 rows" in err


def test_a_file_that_is_being_written_is_refused(comm, shared_dir, monkeypatch):
    """The ranks would divide the file differently if they did not see the same size."""
    on_root(comm, lambda: (shared_dir / "a.svm").write_text("1 1:1\n-1 1:2\n"))
    monkeypatch.setattr(FileState, "_now", staticmethod(lambda path: (13 + comm.rank, 0, 0, 0)))
    with pytest.raises(InputError, match="is being written") if comm.size > 1 else contextlib.nullcontext():
        convert([shared_dir / "a.svm"], shared_dir / "d", comm)


@pytest.mark.parametrize("zero_based", [False, True])
def test_a_high_index_that_is_not_odd_is_only_mentioned(comm, shared_dir, capfd, monkeypatch, zero_based):
    text = "".join(f"{(-1) ** row} {3000 + row}:1\n" for row in range(100))
    on_root(comm, lambda: (shared_dir / "a.svm").write_text(text))
    said = []
    convert([shared_dir / "a.svm"], shared_dir / "plain", comm, say=said.append, zero_based=zero_based)
    assert said == []
    monkeypatch.setattr(conversion, "WIDE", 2**10)
    convert([shared_dir / "a.svm"], shared_dir / "wide", comm, say=said.append, zero_based=zero_based)
    assert said == [f"{shared_dir}/a.svm:100: has the highest index, 3099"] * comm.is_root
    assert "far above" not in capfd.readouterr().err
