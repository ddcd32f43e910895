"""Weights of rows, from files to data sets: a whole number says as much as repeating the row."""

from __future__ import annotations

import gzip
from pathlib import Path

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from distsms.base.communicator import Communicator
from distsms.base.errors import InputError
from distsms.base.scored import Scored
from distsms.metrics.ranking import rocarea
from distsms.shards.dataset import Manifest, load
from distsms.shards.from_arrays import write_data
from distsms.shards.row_metadata import in_range, read_weight_file
from distsms.shards.splits import Splitter
from tests.support.conversion import convert
from tests.support.files import ALONE


def _table(path: Path, rows: np.ndarray, n: int, weights: np.ndarray | None = None, words: bool = True) -> None:
    """Write some rows of a table of n rows: numbers of which some are missing, a column with no zero, and words."""
    rng = np.random.default_rng(3)
    numbers, full = rng.normal(5.0, 2.0, n), rng.normal(1000.0, 1.0, n)
    columns = {"x": [None if k % 5 == 0 else numbers[k] for k in rows], "full": full[rows]}
    columns |= {"word": [("a", "b", "c")[k % 3] for k in rows]} if words else {}
    columns |= {"y": rows % 2} | ({} if weights is None else {"amount": weights})
    pq.write_table(pa.table(columns), path)


def _shards(path: Path, out: Path, comm: Communicator, **options) -> Manifest:
    return convert([path], out, comm, n_shards=4, label="y", **options)


@pytest.mark.parametrize("normalize", ["standard", "maxabs"])
def test_a_whole_weight_is_as_good_as_repeating_the_row(comm, shared_dir, normalize):
    n, rows = 80, np.arange(80)
    weights = np.random.default_rng(0).integers(0, 4, n)
    if comm.is_root:
        _table(shared_dir / "weighted.parquet", rows, n, weights)
        _table(shared_dir / "repeated.parquet", np.repeat(rows, weights), n)
    comm.barrier()
    weighted = _shards(shared_dir / "weighted.parquet", shared_dir / "w", comm, weight="amount", normalize=normalize)
    repeated = _shards(shared_dir / "repeated.parquet", shared_dir / "r", comm, normalize=normalize)
    assert weighted.table is not None and repeated.table is not None
    assert [column.name for column in weighted.table.columns] == ["x", "full", "word"]
    np.testing.assert_allclose(
        [column.fill for column in weighted.table.columns[:2]],
        [column.fill for column in repeated.table.columns[:2]],
        rtol=1e-12,
    )
    np.testing.assert_allclose(weighted.normalization.scale, repeated.normalization.scale, rtol=1e-9)
    block = load(weighted, comm)
    np.testing.assert_array_equal(np.concatenate(comm.allgather(block.weights)), weights)
    about = weighted.weight
    assert (about["column"], about["largest"]) == ("amount", 3)
    assert (about["positive"], about["negative"]) == (repeated.n_pos, repeated.n_neg)
    assert about["effective"] == pytest.approx(weights.sum() ** 2 / (weights**2).sum())


def test_weights_of_any_size_scale_columns_like_numpy(comm, shared_dir):
    n, rng = 60, np.random.default_rng(1)
    weights = np.where(rng.random(n) < 0.2, 0.0, rng.lognormal(0, 2, n) * 1e6)
    if comm.is_root:
        _table(shared_dir / "rows.parquet", np.arange(n), n, weights, words=False)
    comm.barrier()
    made = _shards(shared_dir / "rows.parquet", shared_dir / "out", comm, weight="amount", normalize="standard")
    full = np.array(pq.read_table(shared_dir / "rows.parquet")["full"])
    mean = np.average(full, weights=weights)
    deviation = np.sqrt(np.average((full - mean) ** 2, weights=weights))
    scale = dict(zip(made.table.feature_names, made.normalization.scale, strict=False))
    assert 1 / scale["full"] == pytest.approx(deviation, rel=1e-9)


def test_weights_go_with_their_rows_through_a_split(comm, shared_dir):
    n = 200
    if comm.is_root:
        _table(shared_dir / "rows.parquet", np.arange(n), n, np.arange(n) + 0.5)
    comm.barrier()
    split = Splitter((0.7, 0.3), 0, "rows")
    _shards(shared_dir / "rows.parquet", shared_dir / "parts", comm, weight="amount", split=split)
    blocks = [load(shared_dir / "parts" / name, ALONE) for name in split.names]
    found = np.concatenate([block.weights for block in blocks])
    assert sorted(found.tolist()) == (np.arange(n) + 0.5).tolist()
    labels = np.concatenate([block.labels for block in blocks])
    np.testing.assert_array_equal(labels > 0, (found - 0.5) % 2 == 1)


def test_a_file_of_weights_for_svmlight_text(comm, shared_dir):
    n = 30
    if comm.is_root:
        (shared_dir / "rows.svm").write_text("".join(f"{k % 2} {1 + k % 4}:{k + 1}\n" for k in range(n)))
        (shared_dir / "weights.txt").write_text("".join(f"{k / 8}\n" for k in range(n)))
    comm.barrier()
    path, weights = shared_dir / "rows.svm", shared_dir / "weights.txt"
    made = convert([path], shared_dir / "out", comm, n_shards=5, weight_file=weights)
    block = load(made, comm)
    np.testing.assert_array_equal(np.concatenate(comm.allgather(block.weights)), np.arange(n) / 8)
    assert made.weight["column"] == "weights.txt"
    with pytest.raises(InputError, match="--weight-file"):
        convert([path], shared_dir / "no", comm, weight="amount")


@pytest.mark.serial
@pytest.mark.parametrize(
    "text, problem",
    [
        ("1\n2\n", "has 2 lines, but the data have 3 rows"),
        ("1\n2\n3\n4\n", "has 4 lines, but the data have 3 rows"),
        ("1\n-2\n3\n", ":2: found '-2': expected a weight"),
        ("1\n2\nnan\n", ":3: found 'nan': expected a weight"),
        ("1\n2\n\n", "has 2 lines, but the data have 3 rows"),
        ("1\n2\n1_000\n", ":3: found '1_000': expected a weight"),
        ("1\n\n3\n", ":2: found '': expected a weight"),
        ("1\ntwo\n1e999\n", ":2: found 'two': expected a weight"),
        (f"1\n{'0' * 10000}\n3\n", "a line has more than 4096 bytes"),
    ],
)
def test_a_wrong_file_of_weights_is_refused_with_its_line(tmp_path, text, problem):
    (tmp_path / "w.txt").write_text(text)
    with pytest.raises(InputError, match=problem):
        read_weight_file(tmp_path / "w.txt", 0, 3, 3)


@pytest.mark.serial
def test_a_wrong_weight_in_a_table_is_refused_with_its_row(tmp_path):
    (tmp_path / "a.csv").write_text("x,y,w\n1,0,1\n2,1,2\n3,1,-1\n")
    with pytest.raises(InputError, match=r"a\.csv:4: column 'w': found '-1': expected a weight"):
        convert([tmp_path / "a.csv"], tmp_path / "out", ALONE, label="y", weight="w")


@pytest.mark.serial
def test_arrays_have_their_weights_described(tmp_path):
    X, y = np.arange(12.0).reshape(6, 2), np.array([1, -1] * 3)
    made = write_data(tmp_path / "d", X, y, weights=[1, 2, 3, 0, 0, 2])
    assert made.weight == {"column": "weights", "positive": 4, "negative": 4, "largest": 3, "effective": 0} | {
        "effective": pytest.approx(64 / 18)
    }


@pytest.mark.parametrize("factor", [1e-310, 1e-200, 1e200, 2e307])
def test_a_common_factor_of_any_size_is_taken_out(comm, factor):
    """But for a power of two; up to the digits that the smallest numbers have lost."""
    weights, mine = np.array([3.0, 0.0, 1.0, 5.0]), slice(comm.rank, None, comm.size)
    found = np.zeros(4)
    found[mine] = in_range(weights[mine] * factor, comm)
    found = comm.sum(found)
    assert 0.5 <= found.max() <= 1
    np.testing.assert_allclose(found / found.max(), weights / 5, rtol=1e-9)
    for kept in (1e-90, 1e-20, 1e20, 1e90):  # so that sums of weights are shown as they are
        np.testing.assert_array_equal(in_range(weights[mine] * kept, comm), weights[mine] * kept)


@pytest.mark.parametrize("factor", [1e-200, 1.0, 1e200])
def test_all_rows_on_every_rank_have_the_weights_of_one_process(comm, shared_dir, factor):
    """With weights like 1e200, the products of weights in ROCArea overflow unless their common factor is taken out."""
    X, y = np.arange(8.0).reshape(8, 1), np.array([1, -1, 1, 1, -1, -1, 1, -1])
    weights = np.arange(8.0) * factor
    with comm.fail_together():
        if comm.is_root:
            write_data(shared_dir / f"{factor:g}", X, y, weights=weights)
    comm.barrier()
    block = load(shared_dir / f"{factor:g}", comm, share=(0, 1))
    np.testing.assert_allclose(block.weights / block.weights.max(), weights / weights.max(), rtol=1e-12)
    found = rocarea(Scored(X[:, 0], block.labels, Communicator(), block.weights))
    assert found == pytest.approx(rocarea(Scored(X[:, 0], y, Communicator(), weights / factor)), rel=1e-12)
    with np.errstate(over="ignore"):
        assert factor < 1e200 or np.isnan(rocarea(Scored(X[:, 0], y, Communicator(), weights)))  # and not 1


def test_a_weight_that_vanishes_beside_the_largest_is_refused(comm):
    with pytest.raises(InputError, match="vanish in float64 beside the largest"):
        in_range(np.array([1e300, 1e-300]), comm)
    same = np.array([1e10, 1e-300])
    assert in_range(same, comm) is same


@pytest.mark.serial
@pytest.mark.parametrize("name", ["w.txt", "w.txt.gz"])
def test_files_of_weights_from_other_programs(tmp_path, name):
    """They may be compressed, with a byte order mark, and with empty lines at the end."""
    with (gzip.open if name.endswith("gz") else open)(tmp_path / name, "wb") as stream:
        stream.write(b"\xef\xbb\xbf1\r\n2.5\r\n3\r\n\r\n\r\n")
    assert read_weight_file(tmp_path / name, 0, 2, 3).tolist() == [1, 2.5]
    assert read_weight_file(tmp_path / name, 2, 1, 3).tolist() == [3]
