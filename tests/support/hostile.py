"""The readers of all file formats, to be called with arbitrary bytes: they may raise InputError, and nothing else.

`TARGETS[name](folder)` makes valid example files, and a function that writes bytes to a file in the folder and reads it
as the program does. Used by tests/robustness/test_fuzz.py and tests/robustness/fuzz.py.
"""

from __future__ import annotations

import gzip
import io
import json
from collections.abc import Callable
from pathlib import Path
from typing import NamedTuple

import numpy as np
from scipy import sparse

from distsms.base import text_files
from distsms.base.communicator import Communicator
from distsms.base.errors import InputError
from distsms.ingest.formats.registry import open_reader
from distsms.ingest.formats.svmlight import SvmlightReader
from distsms.ingest.options import ReadOptions
from distsms.matrix.code_maps import Strings
from distsms.models import model
from distsms.shards import rows, sequence_rules
from distsms.shards.column_options import ColumnOptions
from distsms.shards.dataset import load, read_manifest
from distsms.shards.from_arrays import write_data
from distsms.shards.sequence_rules import SequenceOptions
from distsms.training import checkpoint
from tests.support.conversion import convert
from tests.support.files import write_anndata, write_csv
from tests.support.sharded import forget_checksums

ALONE = Communicator()
INFO = {"label_map": {"+1": 1, "-1": -1}, "threshold": 0.5, "bias": 0.0, "zero_based": False, "J": 0.5}


class Target(NamedTuple):
    """The contents of valid files, and a function that reads such contents."""

    seeds: list[bytes]
    read: Callable[[bytes], object]

    def __repr__(self) -> str:
        return "a target"


def attempt(target: Target, content: bytes, name: str = "hostile") -> None:
    """Read some bytes. Raises AssertionError if an InputError does not name the file; any other exception is a bug."""
    try:
        target.read(content)
    except InputError as error:
        assert name in str(error), f"the file is not named: {error}"


def matrix() -> tuple[sparse.csr_matrix, np.ndarray]:
    """Return X and y of nine rows."""
    X = sparse.random(9, 5, 0.5, "csr", random_state=1)
    X.data += 1
    return X, np.where(np.arange(9) % 2, 1, -1)


def sound(found: rows.RowBlock) -> None:
    """Check what every reader guarantees about its rows."""
    n, nnz = len(found.labels), len(found.data)
    assert found.indptr.shape == (n + 1,) and found.indptr[0] == 0 and found.indptr[-1] == nnz == len(found.indices)
    assert (np.diff(found.indptr) >= 0).all() and np.isfinite(found.data).all() and (found.data != 0).all()
    assert nnz == 0 or (found.indices.min() >= 0 and found.indices.max() < found.n_columns)
    assert found.ids is None or len(found.ids) == n


def text(folder: Path) -> Target:
    """Svmlight text, plain or compressed."""
    path = folder / "hostile.svm"
    plain = b"# made by hand\n1 1:0.5 3:1e-3 #x\n-1 2:-7 4:12345678901234567890\r\n\n+1 5:1.7976931348623157e308\n"

    def read(content: bytes) -> None:
        path.write_bytes(content)
        for share in text_files.plan([path], 2):
            sound(rows.concatenate(SvmlightReader([str(path)], ReadOptions()).read(share)))

    return Target([plain, gzip.compress(plain), b"0 1:1\n2 1:2", b"\xef\xbb\xbf1 7:1\n"], read)


def _sequences(folder: Path, name: str, seeds: list[bytes], fasta: bool) -> Target:
    """Sequences, which are read as those of a model with four letters are, and as a new input."""
    path = folder / name
    known = sequence_rules.encoding(SequenceOptions(window=(2, 4), degree=2), 4, name)

    def read(content: bytes) -> None:
        path.write_bytes(content)
        new = SequenceOptions(fasta=fasta)
        words = {"group": "g", "time": "t", "weight": "w"} if b"w=" in content else {}
        for options in (ReadOptions(encoding=known), ReadOptions(sequences=new), ReadOptions(sequences=new, **words)):
            reader = open_reader([path], options, ALONE)
            for share in reader.plan(2):
                for block in reader.read(share):
                    sound(block)
                    assert block.codes is not None and block.codes.shape[0] == len(block.labels)
                    assert ((block.codes < 4) | (block.codes == 255)).all()

    return Target(seeds, read)


def strings(folder: Path) -> Target:
    """Lines LABEL SEQUENCE, plain or compressed."""
    plain = b"# made by hand\n+1 ACGT\n-1\tnnTt # x\r\n\n+1 acgu\n"
    return _sequences(
        folder,
        "hostile.strings",
        [plain, gzip.compress(plain), b"yes ACGT #g=1 t=2 w=3\nno AC\x41T # t=1 g=x w=0 #"],
        False,
    )


def fasta(folder: Path) -> Target:
    """FASTA, plain or compressed."""
    plain = b"\n>a x label=1 y\nAC\nGT\n\n>b 0\nacgu\r\n>c 0\nNNNN"
    return _sequences(
        folder,
        "hostile.fa",
        [plain, gzip.compress(plain), b"\xef\xbb\xbf>a label=1 t=3 g=\xc3\xa9 w=.5\nA C G T\n"],
        True,
    )


def labels(folder: Path) -> Target:
    """A file with the labels of sequences; the sequences are valid."""
    path, sequences = folder / "hostile.labels", folder / "a.fa"
    sequences.write_text(">a\nACGT\n>b\nACGT\n")

    def read(content: bytes) -> None:
        path.write_bytes(content)
        reader = open_reader([sequences], ReadOptions(sequences=SequenceOptions(labels=str(path))), ALONE)
        assert sum(len(block.labels) for block in reader.read(reader.plan(1)[0])) == 2

    return Target([b"# names\na 1\nb\t0\n", b"b x\na 1e5 # y\n"], read)


def _data_set(folder: Path, X: object, compression: str = "none") -> Path:
    codes = [] if X is not None else [(Strings("dna", 3, 2, ((1, 3, 2),)), np.arange(27).reshape(9, 3) % 4)]
    write_data(folder / "hostile", X, matrix()[1], weights=np.ones(9), compression=compression, codes=codes)
    return folder / "hostile"


def _shard(folder: Path, X: object, compression: str = "none") -> Target:
    data = _data_set(folder, X, compression)
    p = read_manifest(data).p
    path, manifest = data / "shard-00000.h5", data / "manifest.json"
    forget_checksums(data)  # else they would refuse nearly all that the fuzzer makes
    record = json.loads(manifest.read_text())

    def read(content: bytes) -> None:
        path.write_bytes(content)
        record["shards"][0]["bytes"] = len(content)
        manifest.write_text(json.dumps(record))
        block = load(data, ALONE)
        assert (
            block.features.shape == (9, p)
            and np.isfinite(block.features.margins(np.ones(p))).all()
            and len(block.labels) == 9
        )

    return Target([path.read_bytes()], read)


def shard(folder: Path) -> Target:
    """A shard in CSR; its manifest is valid."""
    return _shard(folder, matrix()[0])


def dense(folder: Path) -> Target:
    """A dense shard."""
    return _shard(folder, matrix()[0].toarray())


def coded(folder: Path) -> Target:
    """A shard of codes."""
    return _shard(folder, None)


def coded_manifest(folder: Path) -> Target:
    """The manifest of a data set of codes; its shards are valid."""
    return _manifest(_data_set(folder, None))


def compressed(folder: Path) -> Target:
    """A compressed shard in CSR."""
    return _shard(folder, matrix()[0], "blosc-lz4")


def compressed_dense(folder: Path) -> Target:
    """A compressed dense shard."""
    return _shard(folder, matrix()[0].toarray(), "blosc-lz4")


def manifest(folder: Path) -> Target:
    """A manifest; its shards are valid."""
    return _manifest(_data_set(folder, matrix()[0]))


def _manifest(data: Path) -> Target:
    forget_checksums(data)

    def read(content: bytes) -> None:
        (data / "manifest.json").write_bytes(content)
        block = load(data, ALONE)
        assert len(block.labels) == block.n == 9

    return Target([(data / "manifest.json").read_bytes()], read)


def model_file(folder: Path) -> Target:
    """A model."""
    path = folder / "hostile.h5"
    model.save(path, model.Model(np.arange(1.0, 6), INFO))

    def read(content: bytes) -> None:
        path.write_bytes(content)
        model.is_model(path)
        found = model.load(path)
        assert np.isfinite(found.w).all() and len(found.classes) == 2 and found.bias + found.threshold is not None

    return Target([path.read_bytes()], read)


def checkpoint_file(folder: Path) -> Target:
    """A checkpoint."""
    arrays = {"table.a": checkpoint.Rows.of(np.ones(3)), "vector.w": checkpoint.Rows.of(np.ones((2, 5)))}
    checkpoint.save(folder / "hostile", {"measure": "rocarea"}, {"count": 7}, arrays)
    path = folder / "hostile" / checkpoint.NEWEST

    def read(content: bytes) -> None:
        path.write_bytes(content)
        found = checkpoint.read(path)
        for name, shape in found.shapes.items():
            assert found.array(name).shape == shape

    return Target([path.read_bytes()], read)


def _table(folder: Path, name: str, seeds: list[bytes], reading: ReadOptions) -> Target:
    path = folder / name

    def read(content: bytes) -> None:
        path.write_bytes(content)
        reader = open_reader([path], reading, ALONE)
        for share in reader.plan(2):
            for block in reader.read(share):
                sound(block)

    return Target(seeds, read)


def csv(folder: Path) -> Target:
    """A CSV file."""
    lines = b'id,y,a,"b, c"\n1,yes,0.5,red\n2,no,,"blue, green"\n3,yes,-1e3,NA\n'
    dates = b"id;y;when;t\n1;yes;2024-05-31T12:30:00+02:00;a b\n2;no;;NA\n3;yes;2023-02-28;c\n"
    asked = ReadOptions(label="y", id="id", positive="yes")
    return _table(folder, "hostile.csv", [lines, gzip.compress(lines), dates], asked)


def encoded(folder: Path) -> Target:
    """A CSV file with dates in a given format, hashed words, codes, and rare categories."""
    lines = b"y,day,words,code,c\n1,31.12.2024,red red blue,07,a\n0,01.01.1970,,7.0,b\n1,,\xc3\xa9t\xc3\xa9,12,a\n"
    how = ColumnOptions(("code", "c"), (), {"day": "%d.%m.%Y"}, {"words": 4}, 2)
    return _table(folder, "hostile.csv", [lines], ReadOptions(label="y", columns=how, decimal=","))


def encoding(folder: Path) -> Target:
    """The encoding of a table in a manifest, with which a table is then read."""
    write_csv(
        folder / "rows.csv", ["y", "d", "w", "x"], [[k % 2, f"2024-01-0{k + 1}", "ab"[k % 2], k] for k in range(9)]
    )
    how = ColumnOptions(hashed={"w": 3})
    convert([folder / "rows.csv"], folder / "hostile", ALONE, label="y", columns=how)
    path = folder / "hostile" / "manifest.json"

    def read(content: bytes) -> None:
        path.write_bytes(content)
        table = read_manifest(folder / "hostile").table
        if table is not None and table.p <= 1000:
            reading = ReadOptions(table=table, labelled=False, ignore_new=True)
            try:
                reader = open_reader([folder / "rows.csv"], reading, ALONE)
                found = rows.concatenate([block for share in reader.plan(1) for block in reader.read(share)])
            except InputError as error:
                raise InputError(f"{error} (hostile)") from error
            sound(found)

    return Target([path.read_bytes()], read)


def parquet(folder: Path) -> Target:
    """A Parquet file."""
    import pyarrow as pa
    import pyarrow.parquet as pq

    columns = {"y": [1, 0, 1], "a": [0.5, None, 2.0], "b": ["red", "blue", None], "id": ["x", "y", "z"]}
    file = io.BytesIO()
    pq.write_table(pa.table(columns), file)
    return _table(folder, "hostile.parquet", [file.getvalue()], ReadOptions(label="y", id="id"))


def npz(folder: Path) -> Target:
    """Arrays in a zip file, CSR or dense."""
    X, y = matrix()
    files = [io.BytesIO() for _ in range(3)]
    arrays = {name: getattr(X, name) for name in ("indptr", "indices", "data", "shape")}
    np.savez(files[0], y=y, format=np.array(b"csr"), **arrays)
    np.savez_compressed(files[1], y=y, format=np.array(b"csr"), **arrays)
    np.savez_compressed(files[2], y=y, X=X.toarray())
    return _table(folder, "hostile.npz", [file.getvalue() for file in files], ReadOptions())


def npy(folder: Path) -> Target:
    """An NPY file, with the labels in a second file."""
    X, y = matrix()
    np.save(folder / "hostile-y.npy", y)
    file = io.BytesIO()
    np.save(file, X.toarray())
    return _table(folder, "hostile.npy", [file.getvalue()], ReadOptions(label=str(folder / "hostile-y.npy")))


def anndata(folder: Path) -> Target:
    """An AnnData file."""
    X, y = matrix()
    seeds, obs = [], {"y": np.where(y > 0, "yes", "no")}
    for one, storage in ((X, {}), (X.toarray(), {"compression": "gzip"})):
        write_anndata(folder / "made.h5ad", one, [f"g{k}" for k in range(5)], obs, **storage)
        seeds.append((folder / "made.h5ad").read_bytes())
    return _table(folder, "hostile.h5ad", seeds, ReadOptions(label="y", positive="yes"))


TARGETS: dict[str, Callable[[Path], Target]] = {
    "text": text,
    "shard": shard,
    "dense": dense,
    "lz4": compressed,
    "lz4dense": compressed_dense,
    "coded": coded,
    "codedmanifest": coded_manifest,
    "strings": strings,
    "fasta": fasta,
    "labels": labels,
    "manifest": manifest,
    "model": model_file,
    "checkpoint": checkpoint_file,
    "csv": csv,
    "encoded": encoded,
    "encoding": encoding,
    "parquet": parquet,
    "npz": npz,
    "npy": npy,
    "anndata": anndata,
}
