"""Text files: every cut into pieces gives the same rows, compressed or not; unusable files are refused."""

from __future__ import annotations

import bz2
import gzip
import itertools
import lzma
from pathlib import Path

import numpy as np
import pytest
import zstandard
from hypothesis import given, settings
from hypothesis import strategies as st
from sklearn.datasets import load_svmlight_file

from distsms.data.formats import svmlight
from distsms.data.formats.rows import concatenate
from distsms.data.formats.svmlight import parse, read
from distsms.data.formats.text_files import ByteRange, plan
from distsms.errors import InputError
from tests.data.formats.test_svmlight import assert_same, texts_of

pytestmark = pytest.mark.serial
DATA = Path(__file__).resolve().parents[4] / "shared" / "data"
COMPRESSORS = {"gz": gzip.compress, "bz2": bz2.compress, "xz": lzma.compress, "zst": zstandard.compress}


@settings(max_examples=60, deadline=None)
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
    monkeypatch.setattr(svmlight, "BLOCK_BYTES", 64)
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
def test_real_data_agree_with_scikit_learn(name: str, tmp_path: Path) -> None:
    source = DATA / f"{name}.xz"
    if not source.exists():
        pytest.skip(f"{source} is not there")
    path = tmp_path / name
    path.write_bytes(lzma.decompress(source.read_bytes()))
    matrix, labels = load_svmlight_file(str(path), zero_based=False)
    for rows in (
        concatenate(itertools.chain.from_iterable(read(share) for share in plan([path], 7))),
        concatenate(read(plan([source], 1)[0])),
    ):
        assert rows.labels.tobytes() == labels.tobytes()
        assert rows.data.tobytes() == matrix.data.tobytes()
        assert (rows.indices == matrix.indices).all()
        assert (rows.indptr == matrix.indptr).all()
        assert rows.n_columns == matrix.shape[1]
