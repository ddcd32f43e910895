"""Sequences from lines and from FASTA: the same codes on any number of ranks, and refusals with file and line."""

from __future__ import annotations

import gzip
import lzma

import h5py
import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from distsms.base.errors import InputError
from distsms.ingest.formats import sequences
from distsms.ingest.formats.registry import format_of, open_reader
from distsms.ingest.options import ReadOptions
from distsms.shards import row_metadata
from distsms.shards.dataset import load, load_matrix, read_ids, read_manifest
from distsms.shards.row_statistics import describe
from distsms.shards.rows import concatenate
from distsms.shards.sequence_rules import SequenceOptions, encoding
from distsms.shards.splits import Splitter
from tests.support.conversion import convert
from tests.support.files import ALONE, on_root

DNA, PROTEIN = "ACGT", "ACDEFGHIKLMNPQRSTVWY"


def draw(n=40, length=11, seed=0, letters="ACGTacgtNUu", labels=("+1", "-1")):
    """Return sequences and labels as text."""
    rng = np.random.default_rng(seed)
    words = ["".join(rng.choice(list(letters), length)) for _ in range(n)]
    return words, [str(label) for label in rng.choice(labels, n)]


def codes_of(words, letters=DNA):
    """Return the codes of words letter by letter, (n, length)."""
    table = {letter: code for code, letter in enumerate(letters)}
    if letters == DNA:
        table["U"] = table["T"]
    return np.array([[table.get(letter, 255) for letter in word.upper()] for word in words], np.uint8)


def as_lines(words, labels):
    return "".join(f"{label}\t{word}\n" for label, word in zip(labels, words, strict=True))


def as_fasta(words, labels, width=4):
    """Return FASTA with the label after label= or as the second word, in lines of `width` letters."""
    records = []
    for row, (word, label) in enumerate(zip(words, labels, strict=True)):
        header = f">s{row} chr{row % 3} label={label} end" if row % 2 else f">s{row}  \t{label}"
        lines = [word[at : at + width] for at in range(0, len(word), width)]
        records.append("\n".join([header, *lines, *[""] * (row % 3)]) + "\n")
    return "".join(records)


def read(path, n_shares=1, **options):
    """Return all rows of a file, read in so many shares."""
    asked = options.pop("sequences", SequenceOptions())
    reader = open_reader([path], ReadOptions(sequences=asked, **options), ALONE)
    return concatenate([block for share in reader.plan(n_shares) for block in reader.read(share)]), reader


def test_names_of_files_tell_sequences():
    for name, kind in [("a.fa", "fasta"), ("a.fasta.gz", "fasta"), ("x/b.faa", "fasta"), ("a.strings.xz", "strings")]:
        assert format_of(name) == kind
    assert format_of("a.fa.csv") == "table" and format_of("a.txt") == "text" and format_of("a.parquet.gz") == "text"


@pytest.mark.serial
@given(
    seed=st.integers(0, 99),
    kind=st.sampled_from(["strings", "fa"]),
    n=st.sampled_from([1, 2, 17, 60]),
    length=st.sampled_from([1, 3, 11]),
    n_shares=st.integers(1, 9),
    block=st.sampled_from([1, 7, 30, 2**20]),
    ends=st.sampled_from(["\n", "\r\n"]),
    window=st.integers(0, 3),
    bare=st.booleans(),
)
def test_rows_are_the_same_however_the_files_are_cut(
    tmp_path_factory, seed, kind, n, length, n_shares, block, ends, window, bare
):
    """Labels, names and codes; any cut, block and end of line, a byte order mark, and no newline at the end."""
    words, labels = draw(n, length, seed)
    text = (as_fasta if kind == "fa" else as_lines)(words, labels).replace("\n", ends)
    path = tmp_path_factory.mktemp("text") / f"a.{kind}"
    path.write_bytes((b"\xef\xbb\xbf" if bare else b"") + text.encode().rstrip(b"\r\n" if bare else b""))
    first, last = (1 + length // 3, max(length - 1, 1 + length // 3)) if window == 0 else (1, length)
    asked = SequenceOptions(window=(first, last) if window == 0 else None, degree=1)
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(sequences.SequenceReader, "block_bytes", block)
        patch.setattr(sequences, "FIRST_BYTES", block)
        rows, reader = read(path, n_shares, sequences=asked)
    np.testing.assert_array_equal(rows.codes, codes_of(words)[:, first - 1 : last])
    assert rows.labels.tolist() == [float(label) for label in labels]
    assert rows.ids == ([f"s{row}" for row in range(n)] if kind == "fa" else None)
    assert reader.n_columns == 4 * (last - first + 1)


@pytest.mark.parametrize("opened", [gzip.open, lzma.open])
def test_compressed_text_and_a_file_of_labels(tmp_path, opened):
    words, labels = draw(labels=("donor", "none"))
    ending = "gz" if opened is gzip.open else "xz"
    with opened(tmp_path / f"a.txt.{ending}", "wt") as file:
        file.write("\n" + as_fasta(words, ["x"] * len(words)))
    with opened(tmp_path / "labels.gz", "wt") as file:
        file.write("# name label\n" + "".join(f"s{row} {label}  # \n\n" for row, label in enumerate(labels)))
    rows, reader = read(tmp_path / f"a.txt.{ending}", 3, sequences=SequenceOptions(labels=str(tmp_path / "labels.gz")))
    assert rows.labels.tolist() == labels and reader.fasta
    np.testing.assert_array_equal(rows.codes, codes_of(words))
    unlabelled, _ = read(tmp_path / f"a.txt.{ending}", labelled=False)
    assert not unlabelled.labels.any()


def test_protein_rna_and_lines_without_labels(tmp_path):
    words, labels = draw(letters=PROTEIN + "BZX" + PROTEIN.lower())
    (tmp_path / "a.strings").write_text(as_lines(words, labels))
    (tmp_path / "bare.strings").write_text("# sequences alone\n" + "\n".join(words))
    for name in ("a", "bare"):
        asked = SequenceOptions(alphabet="protein")
        rows, _ = read(tmp_path / f"{name}.strings", labelled=False, sequences=asked)
        np.testing.assert_array_equal(rows.codes, codes_of(words, PROTEIN))
    (tmp_path / "r.strings").write_text("1 ACGU\n0 TTnA\n")
    rows, _ = read(tmp_path / "r.strings", sequences=SequenceOptions(alphabet="rna", degree=2))
    assert rows.codes.tolist() == [[0, 1, 2, 3], [3, 3, 255, 0]]


FAULTS = {
    "a.strings": [
        ("1 ACGT\n\n1 ACXT\n", ":3: character 5 of the line, 'X', is no letter of dna (for protein"),
        ("1 ACGT\n1 AC-T\n", ":2: character 5 of the line, '-', is no letter of dna"),
        ("1 ACGT\n1 ACG\n", ":2: the sequence has 3 letters, but the first sequence has 4"),
        ("1 ACGT\n1 ACGTA\n", ":2: the sequence has 5 letters"),
        ("1 ACGT\nACGT\n", ":2: expected LABEL SEQUENCE, and found one word"),
        ("1 ACGT x\n", ":1: expected LABEL SEQUENCE, and found more"),
        ("1e999 ACGT\n", ":1: the label 1e999 is too large"),
        ("1 ACGT\n0 \xc4CGT\n", ":2: character 3 of the line, 'Ä'"),
        (b"kl\xe4r ACGT\n", ":1: 'klär' is not UTF-8"),
        ("# nothing\n\n", ": there is no sequence"),
        ("", ": there is no sequence"),
    ],
    "a.fa": [
        ("ACGT\n>a 1\nACGT\n", ":1: expected a header"),
        (">a 1\nACGT\n>b 1\nAC\nG*\n", ":5: character 2 of the line, '*'"),
        (">a 1\nACGT\n>b 1\n>c 1\nACGT\n", ":3: the sequence has 0 letters"),
        (">a 1\nACGT\n>b 1\nACG\nTT", ":3: the sequence has 5 letters"),
        (">a 1\nACGT\n>b\nACGT", ":3: 'b' has no label in the header"),
        (">a 1\nACGT\n>b strand -1\nACGT", ":3: 'b' has no label in the header"),
        (">a 1\nACGT\n>b 1e999\nACGT", ":3: the label 1e999 is too large"),
    ],
}


@pytest.mark.parametrize(("name", "text", "message"), [(name, *fault) for name in FAULTS for fault in FAULTS[name]])
@pytest.mark.parametrize("block", [1, 2**20])
def test_faults_are_refused_with_file_and_line(tmp_path, monkeypatch, name, text, message, block):
    monkeypatch.setattr(sequences.SequenceReader, "block_bytes", block)
    (tmp_path / name).write_bytes(text if isinstance(text, bytes) else text.encode())
    with pytest.raises(InputError) as error:
        read(tmp_path / name, sequences=SequenceOptions(degree=1))
    assert f"{tmp_path / name}{message}" in str(error.value)


def test_a_record_without_end_is_refused(tmp_path, monkeypatch):
    monkeypatch.setattr(sequences, "LONGEST_RECORD", 100)
    monkeypatch.setattr(sequences.SequenceReader, "block_bytes", 10)
    monkeypatch.setattr(sequences, "FIRST_BYTES", 10)
    (tmp_path / "a.fa").write_text(">a 1\nACGT\n>b 1\n" + "A\n" * 100)
    for n_shares in (1, 9):
        with pytest.raises(InputError, match=r"a.fa: a sequence takes over 100 bytes; cut windows"):
            read(tmp_path / "a.fa", n_shares)


@pytest.mark.parametrize(
    ("text", "message"),
    [("s0 1 2\n", ":1: expected NAME LABEL"), ("a 1\na 0\n", ":2: 'a' has a label already"), ("s1 1\n", "'s0' has no")],
)
def test_faults_in_files_of_labels(tmp_path, text, message):
    (tmp_path / "a.fa").write_text(">s0\nACGT\n")
    (tmp_path / "labels").write_text(text)
    with pytest.raises(InputError, match=message):
        read(tmp_path / "a.fa", sequences=SequenceOptions(degree=1, labels=str(tmp_path / "labels")))


@pytest.mark.parametrize(
    ("asked", "message"),
    [
        ({"window": (3, 9)}, "--window 3:9 is not within the sequences, whose 8 letters"),
        ({"degree": 9}, "--degree 9: for dna it is from 0 to 8"),
        ({"degree": 5, "alphabet": "protein"}, "--degree 5: for protein it is from 0 to 4"),
        ({"degree": 0}, "--degree 0 leaves no features"),
        ({"degree": 4, "window": (1, 3)}, "--degree 4 is more than the 3 letters"),
        ({"spectrum_degree": 2}, "say in which region with --spectrum"),
        ({"window": (2, 8), "spectra": ((1, 8),)}, "--spectrum 1:8 is not within the window 2:8"),
        ({"spectra": ((1, 3),), "spectrum_degree": 4}, "has fewer letters than its degree, 4"),
        ({"spectra": ((1, 3),), "spectrum_degree": 0}, "--spectrum-degree 0: for dna it is from 1 to 8"),
    ],
)
def test_options_that_do_not_fit(asked, message):
    with pytest.raises(InputError, match=message):
        encoding(SequenceOptions(**asked), 8, "a.fa")


@pytest.mark.parametrize(
    ("name", "options", "message"),
    [
        ("a.fa", {"label": "y"}, "--label is for columns, and sequences have none"),
        ("a.fa", {"drop": ("g",)}, "--drop g is for CSV and Parquet"),
        ("a.fa", {"group": "label"}, "'label': give the NAME of words NAME=VALUE"),
        ("a.fa", {"time": "g="}, "'g=': give the NAME of words NAME=VALUE"),
        ("a.strings", {"sequences": SequenceOptions(labels="labels")}, "--labels labels: is for FASTA"),
        ("a.csv", {"sequences": SequenceOptions(degree=2)}, "options for sequences were given"),
    ],
)
def test_options_of_other_formats_are_refused(tmp_path, name, options, message):
    (tmp_path / name).write_text("1 ACGT\n" if name == "a.strings" else ">s0 1\nACGT\n")
    with pytest.raises(InputError, match=message):
        open_reader([tmp_path / name], ReadOptions(**options), ALONE)


def test_groups_times_and_weights_are_words_of_headers_and_comments(tmp_path):
    """Both formats give the same groups, times and weights, which are those of an oracle, in any number of shares."""
    words, labels = draw(60)
    about = [f"gene=g{row % 7} day={row} cost={row % 3}" for row in range(60)]
    (tmp_path / "a.fa").write_text(
        "".join(f">s{k} label={labels[k]} {about[k]}\n{words[k]}\n" for k in range(60)), encoding="utf-8"
    )
    (tmp_path / "a.strings").write_text(
        "".join(f"{labels[k]} {words[k]}  # {about[k]} #\n" for k in range(60)), encoding="utf-8"
    )
    hashes = row_metadata.groups([f"g{row % 7}" for row in range(60)], None)
    for name in ("a.fa", "a.strings"):
        for n_shares in (1, 5):
            found, _ = read(tmp_path / name, n_shares, group="gene", time="day", weight="cost")
            np.testing.assert_array_equal(found.codes, codes_of(words))
            np.testing.assert_array_equal(found.metadata.groups, hashes)
            np.testing.assert_array_equal(found.metadata.times, np.arange(60))
            np.testing.assert_array_equal(found.metadata.weights, np.arange(60) % 3)


@pytest.mark.parametrize(
    ("name", "text", "message"),
    [
        (
            "a.fa",
            b">a label=1 gene=x\nACGT\n>b label=1\nACGT\n",
            "a.fa:3: there is no gene=VALUE in the header; the group",
        ),
        ("a.strings", b"1 ACGT # gene=x\n1 ACGT\n", "a.strings:2: there is no gene=VALUE in a comment"),
        ("a.strings", b"1 ACGT # gene=x\n1 ACGT # gene=\xff\n", "a.strings:2: '.*' is not UTF-8"),
    ],
)
def test_rows_without_a_group_are_refused(tmp_path, name, text, message):
    (tmp_path / name).write_bytes(text)
    with pytest.raises(InputError, match=message):
        read(tmp_path / name, group="gene")


def test_unknown_letters_are_counted(comm, shared_dir):
    """The manifests of both parts of a split count the letters of the window that are unknown, and their rows."""
    words, labels = draw(300, letters="ACGTACGTACGTN")
    on_root(comm, lambda: (shared_dir / "a.strings").write_text(as_lines(words, labels)))
    options = {"sequences": SequenceOptions(window=(3, 9), degree=2)}
    whole = convert([shared_dir / "a.strings"], shared_dir / "d", comm, 3, **options)
    unknown = codes_of(words)[:, 2:9] == 255
    assert whole.unknown == {"letters": unknown.sum(), "rows": unknown.any(axis=1).sum()}
    line = describe(whole)["unknown"]
    assert line.startswith(f"{unknown.sum()} letters of the window in {unknown.any(axis=1).sum()} rows")
    convert([shared_dir / "a.strings"], shared_dir / "s", comm, 3, split=Splitter((0.5, 0.5)), **options)
    parts = [read_manifest(shared_dir / "s" / name) for name in ("train", "test")]
    for part in parts:
        codes = np.concatenate([*stored_letters(part)])
        assert part.unknown["letters"] == np.count_nonzero(codes == 255)
    assert sum(part.unknown["rows"] for part in parts) == whole.unknown["rows"]


def stored_letters(manifest):
    for shard in manifest.shards:
        with h5py.File(manifest.directory / shard.file) as file:
            yield file["codes/0"][:]


def test_names_of_columns_have_positions_in_the_whole_sequence():
    read_as = encoding(SequenceOptions(window=(5, 8), degree=2, spectra=((6, 8),)), 12, "a.fa")
    names = [read_as.column_name(j) for j in range(read_as.code_map.p)]
    assert names[:6] == ["5:A", "5:C", "5:G", "5:T", "5:AA", "5:AC"] and names[-1] == "6-8:TT"
    assert read_as.describe() == "12 letters (dna), window 5:8, weighted degree 2, spectrum 6:8 of degree 2"


def features_by_hand(words, degree, spectra):
    """Return the features of words by the definition, one k-mer at a time: each part of length 1, then the row."""
    columns, rows = {}, []
    for word in words:
        parts = []
        for place in [None, *spectra]:
            first, last = place or (1, len(word))
            row = {}
            for k in range(1, degree + 1):
                beta = 2 * (degree - k + 1) / (degree * (degree + 1))
                for i in range(first - 1, last - k + 1):
                    key = (place, i if place is None else None, word[i : i + k])
                    row[key] = row.get(key, 0) + np.sqrt(beta)
            length = np.sqrt(sum(value**2 for value in row.values()))
            parts.append({key: value / length for key, value in row.items()})
        rows.append({key: value / np.sqrt(len(parts)) for part in parts for key, value in part.items()})
        columns |= dict.fromkeys(rows[-1])
    return np.array([[row.get(key, 0.0) for key in columns] for row in rows])


def test_data_sets_have_the_features_of_the_definition(comm, shared_dir):
    """Their inner products do not depend on the order of columns. Rows have length 1, on any number of ranks."""
    words, labels = draw(30, 12, letters=DNA)
    on_root(comm, lambda: (shared_dir / "a.fa").write_text(as_fasta(words, labels)))
    asked = SequenceOptions(degree=3, spectra=((1, 6), (4, 12)))
    manifest = convert([shared_dir / "a.fa"], shared_dir / "d", comm, 3, sequences=asked)
    assert manifest.label_map == {"+1": 1.0, "-1": -1.0} and manifest.layout == "coded" and manifest.nnz == 30 * 12
    by_hand = features_by_hand(words, 3, asked.spectra)
    X, y, _ = load_matrix(manifest)
    np.testing.assert_allclose((X @ X.T).toarray(), by_hand @ by_hand.T, atol=1e-12)
    np.testing.assert_array_equal(y, np.array(labels, float))
    w = np.random.default_rng(1).normal(size=manifest.p)
    block = load(manifest, comm)
    local = slice(block.first_row, block.first_row + len(block.labels))
    np.testing.assert_allclose(block.features.margins(w), (X @ w)[local], atol=1e-12)
    np.testing.assert_allclose(comm.sum(block.features.transposed_times(np.ones(len(block.labels)))), X.sum(0).A1)
    assert read_ids(manifest, 3, 5) == ["s3", "s4"]


def test_splits_doubles_labels_and_like(comm, shared_dir):
    """Equal sequences stay together, whatever their letters' case; labels may be words; --like reads as before."""
    words, labels = draw(40, 9, letters=DNA, labels=("EI", "IE", "N"))
    words, labels = [*words, *(word.lower() for word in words)], [*labels, *labels]
    on_root(comm, lambda: (shared_dir / "a.strings").write_text(as_lines(words, labels)))
    how = {"positive": "EI", "sequences": SequenceOptions(degree=2, window=(2, 9))}
    convert([shared_dir / "a.strings"], shared_dir / "d", comm, split=Splitter((0.5, 0.5), 1, "doubles"), **how)
    train, test = (read_manifest(shared_dir / "d" / part) for part in ("train", "test"))
    assert train.doubles["rows"] == train.n and test.doubles["rows"] == test.n and train.n + test.n == 80
    assert sorted(train.label_map["-1"]) == ["IE", "N"] and train.n_pos + test.n_pos == labels.count("EI")
    again = convert([shared_dir / "a.strings"], shared_dir / "e", comm, like=shared_dir / "d" / "train")
    assert again.coded == train.coded and again.n_pos == labels.count("EI")
    with pytest.raises(InputError, match="with --like, alphabet, window and degrees come from"):
        convert([shared_dir / "a.strings"], shared_dir / "f", comm, like=shared_dir / "e", **how | {"positive": None})
    with pytest.raises(InputError, match="--columns and --normalize are not for sequences"):
        convert([shared_dir / "a.strings"], shared_dir / "f", comm, normalize="l2", **how)
    on_root(comm, lambda: (shared_dir / "a.svm").write_text("1 1:1\n0 2:1\n"))
    convert([shared_dir / "a.svm"], shared_dir / "g", comm)
    with pytest.raises(InputError, match=r"--like .*: that data set has no sequences, as .*a.strings has"):
        convert([shared_dir / "a.strings"], shared_dir / "f", comm, like=shared_dir / "g")
    with pytest.raises(InputError, match=r"a.svm:1: character 3 of the line, '1', is no letter of dna"):
        convert([shared_dir / "a.svm"], shared_dir / "f", comm, like=shared_dir / "e")
