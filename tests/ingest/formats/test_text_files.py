"""Text files: every cut into pieces gives the same rows, compressed or not; unusable files are refused."""

from __future__ import annotations

import bz2
import gzip
import itertools
import lzma
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest
import zstandard
from hypothesis import given
from hypothesis import strategies as st
from scipy import sparse
from sklearn.datasets import load_svmlight_file

from distsms.base.errors import InputError
from distsms.base.text_files import ByteRange, open_text, plan
from distsms.ingest.formats import base, svmlight
from distsms.ingest.formats.registry import open_reader
from distsms.ingest.options import ReadOptions
from distsms.shards.rows import concatenate
from tests.ingest.formats.test_svmlight import assert_same, texts_of
from tests.support.files import ALONE, parse, read

pytestmark = pytest.mark.serial
DATA = Path(__file__).resolve().parents[4] / "shared" / "data"
COMPRESSORS = {"gz": gzip.compress, "bz2": bz2.compress, "xz": lzma.compress, "zst": zstandard.compress}


@given(st.lists(texts_of(), min_size=1, max_size=3), st.data())
def test_all_cuts_give_the_same_rows(
    tmp_path_factory: pytest.TempPathFactory, written: list, data: st.DataObject
) -> None:
    folder = tmp_path_factory.mktemp("cuts")
    paths = []
    zero_based = written[0][1]
    written = [one for one in written if one[1] == zero_based]
    for number, (text, _, _) in enumerate(written):
        compress = data.draw(st.sampled_from([lambda plain: plain, *COMPRESSORS.values()]))
        paths.append(folder / f"{number}.txt")
        paths[-1].write_bytes(compress(text))
    whole = concatenate(parse(text, zero_based) for text, _, _ in written)
    assert_same(whole, concatenate(rows for _, _, rows in written))
    block_bytes = data.draw(st.sampled_from([1, 7, 50, 10**6]))
    size = sum(path.stat().st_size for path in paths)
    for n_shares in [*range(1, 12), size, size + 3]:
        shares = plan(paths, max(1, n_shares))
        assert len(shares) == max(1, n_shares)
        blocks = [concatenate(read(share, zero_based, block_bytes)) for share in shares]
        assert_same(concatenate(blocks), whole)
        found = {piece.path for piece in itertools.chain(*shares) if piece.end is None}
        assert sum(piece.end is None for piece in itertools.chain(*shares)) == len(found)


def test_shares_are_balanced(tmp_path: Path) -> None:
    paths = []
    for number, size in enumerate([1000, 0, 3000, 10]):
        paths.append(tmp_path / str(number))
        paths[-1].write_bytes(b"1 1:1\n" * (size // 6) + b"\n" * (size % 6))
    shares = plan(paths, 7)
    weights = [sum(piece.end - piece.start for piece in share) for share in shares]
    assert sum(weights) == 4010
    assert max(weights) - min(weights) <= 1
    assert plan([], 3) == [[], [], []]
    assert plan([paths[1]], 2) == [[], []]
    with pytest.raises(ValueError, match="n_shares"):
        plan(paths, 0)


def test_a_long_line_belongs_to_one_piece(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(svmlight.SvmlightReader, "block_bytes", 64)
    path = tmp_path / "long"
    path.write_text("1 " + " ".join(f"{i}:1" for i in range(1, 400)) + "\n-1 3:1\n")
    counts = [len(concatenate(read(share)).labels) for share in plan([path], 9)]
    assert counts == [1, 0, 0, 0, 0, 0, 0, 0, 1]


def test_blocks_are_bounded(tmp_path: Path) -> None:
    path = tmp_path / "rows.gz"
    path.write_bytes(gzip.compress(b"1 1:1\n" * 1000))
    blocks = list(read([ByteRange(str(path))], block_bytes=600))
    assert [len(block.labels) for block in blocks] == [100] * 10


# --- files that cannot be used -------------------------------------------------------------------------------------


def test_files_that_cannot_be_read(tmp_path: Path) -> None:
    with pytest.raises(InputError, match=r"absent: No such file"):
        plan([tmp_path / "absent"], 2)
    with pytest.raises(InputError, match="is a directory"):
        plan([tmp_path], 2)
    with pytest.raises(InputError, match="is no regular file"):
        plan(["/dev/null"], 2)
    with pytest.raises(InputError, match=r"gone: No such file"):
        list(read([ByteRange(str(tmp_path / "gone"), 0, 10)]))


def test_a_file_that_shrinks(tmp_path: Path) -> None:
    path = tmp_path / "rows"
    path.write_text("1 1:1\n" * 10)
    share = plan([path], 1)[0]
    path.write_text("1 1:1\n" * 5)
    with pytest.raises(InputError, match=r"rows: ends at byte 30, but had 60"):
        list(read(share))


@pytest.mark.parametrize("kind", COMPRESSORS)
def test_compressed_files_that_are_cut_or_damaged(kind: str, tmp_path: Path) -> None:
    text = "".join(f"1 1:{value!r}\n" for value in np.random.default_rng(0).random(5000).tolist()).encode()
    packed = COMPRESSORS[kind](text)
    path = tmp_path / "rows.txt"  # known by its first bytes, not by its name
    path.write_bytes(packed)
    assert len(concatenate(read(plan([path], 3)[1])).labels) == 5000
    path.write_bytes(packed[:-20])
    with pytest.raises(InputError, match=r"rows\.txt: the compressed data end too early"):
        list(read(plan([path], 1)[0]))
    middle = len(packed) // 2
    path.write_bytes(
        packed[:middle] + bytes(byte ^ 255 for byte in packed[middle : middle + 50]) + packed[middle + 50 :]
    )
    with pytest.raises(InputError, match=r"rows\.txt:"):
        list(read(plan([path], 1)[0]))
    path.write_bytes(packed + packed)  # members one after the other are one text
    assert len(concatenate(read(plan([path], 1)[0])).labels) == 10000


# --- real data -----------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("name", ["adult9.train", "web8.test", "rcv1-ccat-sample.train", "covertype-20k"])
def test_real_data_agree_with_scikit_learn(name: str, tmp_path: Path, real_data: Callable[[str], bytes]) -> None:
    path = tmp_path / name
    path.write_bytes(real_data(name))
    matrix, labels = load_svmlight_file(str(path), zero_based=False)
    for rows in (
        concatenate(itertools.chain.from_iterable(read(share) for share in plan([path], 7))),
        concatenate(read(plan([DATA / f"{name}.xz"], 1)[0])),
    ):
        assert rows.labels.tobytes() == labels.tobytes()
        assert rows.data.tobytes() == matrix.data.tobytes()
        assert (rows.indices == matrix.indices).all()
        assert (rows.indptr == matrix.indptr).all()
        assert rows.n_columns == matrix.shape[1]


@pytest.mark.parametrize("encoding", ["utf-16", "utf-16-le", "utf-16-be", "utf-32"])
@pytest.mark.parametrize("ending", ["svm", "csv", "csv.gz"])
def test_text_in_other_encodings_is_named(tmp_path: Path, encoding: str, ending: str) -> None:
    """What Windows calls Unicode: with a byte order mark or without."""
    path = tmp_path / f"rows.{ending}"
    content = "a,y\n1,0\n2,1\n".encode(encoding)
    path.write_bytes(gzip.compress(content) if ending.endswith(".gz") else content)
    with pytest.raises(InputError, match=rf"rows\.{ending}: is text in UTF-(16|32).*iconv -f UTF-(16|32)"):
        for share in open_reader([path], ReadOptions(label="y" if "csv" in ending else None), ALONE).plan(1):
            list(read(share))


PEAK = """
import resource, sys
from distsms.__main__ import main
for path in sys.argv[1:]:
    assert main(["shard", path, path + ".data", *(["--label", "y"] if ".csv" in path else [])]) == 1
print(resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * 1024)
"""


@pytest.mark.e2e
@pytest.mark.by_turns
def test_small_files_that_expand_to_long_lines(tmp_path: Path) -> None:
    """Lines of 2 GiB, in files of many equal pieces; a shard's rows may take a quarter of a GiB."""
    piece, count = b"0" * 2**20, 2**11
    paths = []
    for name, head in (("long.svm", b"1 1:1\n1 "), ("row.csv", b"a,y\n1,0\n"), ("header.csv", b"a,y")):
        for ending in ("gz", "xz"):
            compress = COMPRESSORS[ending]
            paths.append(str(tmp_path / f"{name}.{ending}"))
            Path(paths[-1]).write_bytes(compress(head) + compress(piece) * count)
            assert Path(paths[-1]).stat().st_size < 4 * 2**20
    found = subprocess.run([sys.executable, "-c", PEAK, *paths], capture_output=True, text=True, check=True)
    assert found.stderr.count("a line has more than") == len(paths)
    assert int(found.stdout) < 2**30 + 2**28


def test_an_xz_file_may_not_ask_for_gigabytes(tmp_path: Path) -> None:
    filters = [{"id": lzma.FILTER_LZMA2, "preset": 0, "dict_size": 2**29}]
    (tmp_path / "rows.svm").write_bytes(lzma.compress(b"1 1:1\n", filters=filters))
    with pytest.raises(InputError, match=r"rows\.svm: .*[Mm]emory"):
        list(read(plan([tmp_path / "rows.svm"], 1)[0]))


@pytest.mark.parametrize("module, remedy", [("lzma", "built without lzma"), ("zstandard", "pip install zstandard")])
def test_modules_that_are_not_there(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, module: str, remedy: str) -> None:
    compress = {"lzma": lzma.compress, "zstandard": zstandard.compress}[module]
    (tmp_path / "rows.svm").write_bytes(compress(b"1 1:1\n"))
    monkeypatch.setitem(sys.modules, module, None)
    with pytest.raises(InputError, match=remedy), open_text(str(tmp_path / "rows.svm")):
        pass


def test_the_pieces_of_rows_are_bounded(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Of arrays: rows are read in pieces, whatever their lengths; a row that is too long is refused by its number."""
    X = sparse.random(50, 30, 0.3, "csr", random_state=0)
    X = sparse.vstack([X, np.ones((5, 30))]).tocsr()
    np.save(tmp_path / "y.npy", np.arange(55) % 2)
    sparse.save_npz(tmp_path / "X.npz", X)
    np.savez_compressed(tmp_path / "dense.npz", X=X.toarray(), y=np.arange(55) % 2)
    for most in (30, 31, 100, 10**6):
        monkeypatch.setattr(base, "MAX_ENTRIES", most)
        reader = open_reader([tmp_path / "X.npz"], ReadOptions(label=str(tmp_path / "y.npy")), ALONE)
        blocks = list(reader.read(reader.plan(1)[0]))
        assert max(len(block.data) for block in blocks) <= most
        assert concatenate(blocks).indptr.tolist() == X.indptr.tolist()
        assert concatenate(blocks).data.tolist() == X.data.tolist()
    monkeypatch.setattr(base, "MAX_ENTRIES", 29)
    reader = open_reader([tmp_path / "X.npz"], ReadOptions(label=str(tmp_path / "y.npy")), ALONE)
    with pytest.raises(InputError, match=r"X\.npz: row 50 \(counted from 0\) has 30 nonzeros"):
        list(reader.read(reader.plan(1)[0]))
    reader = open_reader([tmp_path / "dense.npz"], ReadOptions(), ALONE)
    with pytest.raises(InputError, match=r"dense\.npz: X has 30 dense columns; up to 29 are read"):
        list(reader.read(reader.plan(1)[0]))
