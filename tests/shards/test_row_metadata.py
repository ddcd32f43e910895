"""Groups and times of rows: the same from every format, no features unless asked for, refused if missing."""

from __future__ import annotations

import datetime
import hashlib
import json
import re
from functools import partial

import h5py
import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from hypothesis import given
from hypothesis import strategies as st

from distsms.base.errors import InputError
from distsms.models import inputs, model
from distsms.shards import from_arrays, row_metadata
from distsms.shards.dataset import read_manifest
from distsms.shards.from_arrays import write_data
from distsms.workflow import folds
from tests.support.conversion import convert
from tests.support.files import ALONE, on_root, write_anndata, write_csv
from tests.support.sharded import forget_checksums, rewrite

N = 30
USERS = np.random.default_rng(0).integers(0, 7, N) + 2**60  # more digits than a float has
DAYS = np.datetime64("2024-02-27") + np.random.default_rng(1).integers(0, 5, N)
X, Y = np.arange(1.0, N + 1)[:, None], np.arange(N) % 2
SECONDS = DAYS.astype("datetime64[s]").astype(float)


def files(folder):
    """Write a file of each format with groups and, if it can have them, times; return how to read it."""
    users, days = [str(one) for one in USERS], [str(one) for one in DAYS]
    named = {"label": "y", "group": "user", "time": "day"}
    write_csv(folder / "a.csv", ["user", "x", "day", "y"], zip(users, X[:, 0], days, Y, strict=True))
    write_csv(folder / "b.tsv.gz", ["x", "user", "day", "y"], zip(X[:, 0], users, days, Y, strict=True), "\t")
    columns = {"x": X[:, 0], "y": Y}
    dates = pa.array(DAYS.astype(object), pa.date32())
    stamps = pa.array(DAYS.astype("datetime64[us]"), pa.timestamp("us", "UTC"))
    pq.write_table(pa.table({**columns, "user": USERS, "day": dates}), folder / "c.parquet", row_group_size=7)
    pq.write_table(pa.table({**columns, "user": users, "day": stamps}), folder / "d.parquet")
    np.savez(folder / "e.npz", X=X, y=Y, user=USERS, day=DAYS)
    for name, array in (("X", X), ("y", Y), ("user", USERS), ("day", SECONDS)):
        np.save(folder / f"{name}.npy", array)
    write_anndata(folder / "g.h5ad", X, ["x"], {"y": Y, "user": np.array(users), "day": SECONDS})
    rows = zip(Y, USERS, X[:, 0], strict=True)
    (folder / "h.svm").write_text("".join(f"{y} qid:{user} 1:{x}\n" for y, user, x in rows))
    arrays = {key: str(folder / f"{name}.npy") for key, name in (("label", "y"), ("group", "user"), ("time", "day"))}
    return {
        **dict.fromkeys(("a.csv", "b.tsv.gz", "c.parquet", "d.parquet", "g.h5ad"), named),
        "e.npz": {"group": "user", "time": "day"},
        "X.npy": arrays,
        "h.svm": {"group": "qid"},
    }


def test_every_format_keeps_the_same_groups_and_times(comm, shared_dir):
    wanted = row_metadata.groups([str(one) for one in USERS], None)
    assert len(set(wanted.tolist())) == len(set(USERS.tolist()))
    for k, (name, how) in enumerate(on_root(comm, lambda: files(shared_dir)).items()):
        manifest = convert([shared_dir / name], shared_dir / name.replace(".", "-"), comm, 1 + k % 4, **how)
        assert (manifest.n, manifest.p) == (N, 1)  # neither is a feature
        assert manifest.group["groups"] == len(set(USERS.tolist()))
        assert manifest.group["largest"] == np.unique(USERS, return_counts=True)[1].max()
        np.testing.assert_array_equal(folds.read_fold_keys(manifest, "groups", 0, N), wanted)
        np.testing.assert_array_equal(folds.read_fold_keys(manifest, "groups", 3, 17), wanted[3:17])
        if "time" in how:
            np.testing.assert_array_equal(folds.read_fold_keys(manifest, "time", 0, N), SECONDS)
            assert (manifest.time["first"], manifest.time["last"]) == (SECONDS.min(), SECONDS.max())
            assert manifest.time["kind"] == ("numbers" if name in ("X.npy", "g.h5ad") else "dates")
        else:
            np.testing.assert_array_equal(folds.read_fold_keys(manifest, "time", 5, N), np.arange(5, N))


@pytest.mark.serial
def test_shards_hold_them_in_datasets_of_their_own(tmp_path):
    groups, times = np.array(["b", "a", "b"]), np.array([3, 1, 2])
    manifest = write_data(tmp_path / "d", np.eye(3), [1, -1, 1], 2, groups=groups, times=times)
    with h5py.File(tmp_path / "d" / "shard-00001.h5") as file:
        np.testing.assert_array_equal(file["groups"][:], row_metadata.groups(["a", "b"], None))
        np.testing.assert_array_equal(file["times"][:], [1, 2])
    told = json.loads(manifest.path.read_text())
    assert told["group"] == {"column": "groups", "groups": 2, "largest": 2}
    assert told["time"] == {"column": "times", "kind": "numbers", "first": 1.0, "last": 3.0}
    for name in ("group", "time"):  # a file that lacks what the manifest promises
        plain = write_data(tmp_path / name, np.eye(3), [1, -1, 1])
        rewrite(plain.directory, lambda record, name=name: record.update({name: told[name]}))
        with pytest.raises(InputError, match=f"has no dataset '{name}s'"):
            folds.read_fold_keys(read_manifest(tmp_path / name), "groups" if name == "group" else "time", 0, 3)
    with h5py.File(tmp_path / "d" / "shard-00001.h5", "r+") as file:
        file["times"][0] = np.nan
    with pytest.raises(InputError, match=r"shard-00001\.h5: its content is not what was written"):
        folds.read_fold_keys(manifest, "time", 0, 3)
    forget_checksums(tmp_path / "d")
    with pytest.raises(InputError, match=r"time nan at row 0 of the shard .*must be finite"):
        folds.read_fold_keys(read_manifest(tmp_path / "d"), "time", 0, 3)
    for wrong, message in (
        ({"groups": ["a", ""]}, "groups, row 1 .*is missing"),
        ({"times": [1, np.nan]}, "row 1"),
        ({"groups": ["a"]}, "give one for each row"),
    ):
        with pytest.raises(InputError, match=message):
            write_data(tmp_path / "none", np.eye(2), [1, -1], **wrong)


@pytest.mark.serial
def test_what_is_not_known_of_old_data_sets(tmp_path):
    """Older data sets have neither groups, times nor equal rows in the manifest."""
    manifest = write_data(tmp_path / "d", np.eye(3), [1, -1, 1])
    rewrite(tmp_path / "d", lambda record: record.pop("doubles"))
    told = json.loads(manifest.path.read_text())
    old = read_manifest(tmp_path / "d")
    assert (old.group, old.time, old.doubles) == (None, None, None)
    assert folds.choose_folds_by(None, old) == "rows"
    assert len(set(folds.read_fold_keys(old, "doubles", 0, 3).tolist())) == 3
    with pytest.raises(InputError, match="shard --group"):
        folds.choose_folds_by("groups", old)
    for name, wrong in (
        ("group", {"column": 1}),
        ("time", {"column": "a", "kind": "dates", "first": float("nan"), "last": 1.0}),
        ("time", {"column": "a", "kind": "moons", "first": 0.0, "last": 1.0}),
        ("doubles", {"rows": -1}),
    ):
        manifest.path.write_text(json.dumps({**told, name: wrong}))
        with pytest.raises(InputError, match=name):
            read_manifest(tmp_path / "d")


@pytest.mark.serial
def test_a_column_is_a_feature_only_where_asked_for(tmp_path):
    files(tmp_path)
    how = {"label": "y", "group": "user", "time": "day"}
    kept = convert([tmp_path / "c.parquet"], tmp_path / "kept", ALONE, keep=("user",), **how)
    assert kept.table.feature_names == ["x", "user"] and kept.table.dropped == ("day",)
    plain = convert([tmp_path / "a.csv"], tmp_path / "plain", ALONE, **how)
    assert plain.table.feature_names == ["x"] and plain.table.dropped == ("user", "day")
    # Later tables may have the columns or not; groups of data sets that are made like others are asked for again.
    write_csv(tmp_path / "new.csv", ["x", "y"], [[1, 0], [2, 1]])
    for name in ("new.csv", "a.csv", "c.parquet"):
        assert convert([tmp_path / name], tmp_path / "like", ALONE, like=tmp_path / "plain", overwrite=True).p == 1
        inputs.check(
            tmp_path / name,
            model.Model(
                np.zeros(1), {"label_map": plain.label_map, "zero_based": False, "threshold": 0.0}, plain.table
            ),
        )
    again = convert([tmp_path / "c.parquet"], tmp_path / "again", ALONE, like=tmp_path / "plain", group="user")
    assert again.group == plain.group and again.time is None
    with pytest.raises(InputError, match=r"new\.csv: has no column 'user'"):
        convert([tmp_path / "new.csv"], tmp_path / "none", ALONE, like=tmp_path / "plain", group="user")
    with pytest.raises(InputError, match="--keep x"):
        convert([tmp_path / "a.csv"], tmp_path / "none", ALONE, keep=("x",), **how)
    with pytest.raises(InputError, match="has no column 'nobody'"):
        convert([tmp_path / "a.csv"], tmp_path / "none", ALONE, label="y", group="nobody")


@pytest.mark.parametrize(
    "name, text, how, message",
    [
        (
            "a.csv",
            "u,x,y\na,1,0\n\n ,2,1\n",
            {"label": "y", "time": "u"},
            r"a\.csv:2: column 'u': found 'a': expected a ti",
        ),
        (
            "a.csv",
            "t,x,y\n1,1,0\nNA,2,1\n",
            {"label": "y", "time": "t"},
            r"a\.csv:3: column 't': found '': expected a ti",
        ),
        (
            "a.csv",
            "t,x,y\n1,1,0\nsoon,2,1\n",
            {"label": "y", "time": "t"},
            r"a\.csv:3: .*found 'soon': expected a time",
        ),
        ("a.csv", "t,x,y\n1,1,0\n1e999,2,1\n", {"label": "y", "time": "t"}, r"a\.csv:3: .*found '1e999'"),
        ("a.csv", "t,x,y\n7,1,0\n2024-01-01,2,1\n", {"label": "y", "time": "t"}, "'t' holds both dates and numbers"),
        (
            "a.svm",
            "1 qid:1 1:1\n# c\n\n 0 1:1\n",
            {"group": "qid"},
            r"a\.svm:4: found '0': the row has no query id after its label",
        ),
        ("a.svm", f"1 qid:1 1:1\n0 qid:{2**63} 1:1\n", {"group": "qid"}, r"a\.svm:2: .*the query id is above"),
        ("a.svm", "1 qid:1 1:1\n", {"group": "user"}, "--group qid"),
        ("a.svm", "1 qid:1 1:1\n", {"keep": ("qid",), "group": "qid"}, "--keep qid is for CSV and Parquet"),
    ],
)
def test_rows_of_no_group_or_time_are_refused(comm, shared_dir, name, text, how, message):
    on_root(comm, lambda: (shared_dir / name).write_text(text))
    with pytest.raises(InputError, match=message):
        convert([shared_dir / name], shared_dir / "d", comm, **how)
    assert not (shared_dir / "d" / "manifest.json").exists()


@pytest.mark.serial
def test_missing_in_arrays_and_parquet(tmp_path):
    users = np.array([1.0, np.nan, 2.0])
    pq.write_table(pa.table({"x": [1, 2, 3], "y": [0, 1, 0], "u": users}), tmp_path / "a.parquet")
    np.savez(tmp_path / "a.npz", X=np.eye(3), y=[0, 1, 0], u=users)
    with pytest.raises(InputError, match=r"a\.npz: row 1 \(counted from 0\): .*the group is missing"):
        convert([tmp_path / "a.npz"], tmp_path / "d", ALONE, group="u")
    with pytest.raises(InputError, match=r"a\.parquet: row 1 \(counted from 0\): .*'u': found '': expected a time"):
        convert([tmp_path / "a.parquet"], tmp_path / "d", ALONE, time="u", label="y")
    assert convert([tmp_path / "a.parquet"], tmp_path / "d", ALONE, group="u", label="y").group["groups"] == 3


@pytest.mark.serial
def test_what_contradicts_itself_or_would_be_lost(tmp_path):
    (tmp_path / "a.csv").write_text("y,g,t,x\n1,a,9007199254740993,1\n0,b,9007199254740995,2\n")
    for how, message in (
        ({"group": "y"}, "--weight y is the label"),
        ({"group": "g", "drop": ("g",)}, "not a feature anyway"),
        (
            {"time": "t"},
            r"a.csv:2: column 't': found '9007199254740993': .*cannot distinguish whole numbers of this size",
        ),
    ):
        with pytest.raises(InputError, match=message):
            convert([tmp_path / "a.csv"], tmp_path / "d", ALONE, label="y", **how)


@pytest.mark.serial
@pytest.mark.parametrize(
    ("text", "problem"),
    [("7" * 400, "expected a time"), ("9" * 5000, "expected a time"), ("0" * 5000 + "9007199254740993", "distinguish")],
)
def test_times_of_very_many_digits(text, problem):
    with pytest.raises(InputError, match=f"^t, row 1 .*found '[0-9]*: .*{problem}"):
        row_metadata.times(["0" * 5000 + "7", text], partial(from_arrays._refuse, "t"))


@pytest.mark.serial
def test_query_ids_as_times(tmp_path):
    (tmp_path / "a.svm").write_text("1 qid:30 1:1\n0 qid:7 1:1\n")
    manifest = convert([tmp_path / "a.svm"], tmp_path / "d", ALONE, time="qid")
    np.testing.assert_array_equal(folds.read_fold_keys(manifest, "time", 0, 2), [30, 7])
    (tmp_path / "a.svm").write_text(f"1 qid:{2**60} 1:1\n0 qid:{2**53 + 1} 1:1\n")
    with pytest.raises(InputError, match=r"a\.svm:2: .*cannot distinguish whole numbers of this size"):
        convert([tmp_path / "a.svm"], tmp_path / "e", ALONE, time="qid")


@pytest.mark.serial
def test_a_group_is_its_text():
    def one(text):
        return int(row_metadata.groups([text], None)[0])

    assert (
        one("17")
        == one("17.0")
        == one("17.")
        == int(row_metadata.groups(row_metadata.as_strings(np.array([17.0])), None)[0])
    )
    assert one("+7") == one("7") and one("-0") == one("0") == one("-0.0")
    of_arrays = [
        int(row_metadata.groups(row_metadata.as_strings(np.array([10**16], kind)), None)[0])
        for kind in ("i8", "f8", "O")
    ]
    assert set(of_arrays) == {one("10000000000000000")}
    missing = [None, np.nan, np.datetime64("NaT")]
    assert row_metadata.as_strings(np.array([*missing, "a", "nan"], object)) == ["", "", "", "a", "nan"]
    assert one("17") == int.from_bytes(hashlib.blake2b(b"17", digest_size=8).digest(), "little")
    assert len({one(text) for text in ("17", "017", "17.5", "-17", "a", "A", "17.0.0", "é")}) == 8


@pytest.mark.serial
@given(st.datetimes(datetime.datetime(1800, 1, 1), datetime.datetime(2200, 1, 1)))
def test_dates_are_seconds(moment):
    wanted = (np.datetime64(moment) - np.datetime64(0, "us")) / np.timedelta64(1, "s")
    (text, space, utc, east), kinds = row_metadata.times(
        [moment.isoformat(), str(moment), f"{moment.isoformat()}Z", f"{moment.isoformat()}+02:00"], None
    )
    assert text == space == utc == pytest.approx(wanted, abs=1e-4) and east == pytest.approx(wanted - 7200, abs=1e-4)
    assert kinds == {"dates"}
    shown = row_metadata.format_time(np.floor(text), "dates")
    assert shown == moment.strftime("%Y-%m-%d %H:%M:%S" if np.floor(text) % 86400 else "%Y-%m-%d")


class OfPython310(datetime.datetime):
    """Reads what `datetime.fromisoformat` does in Python 3.10, as its documentation says."""

    @classmethod
    def fromisoformat(cls, text):
        if not re.fullmatch(r"\d{4}-\d\d-\d\d(.\d\d(:\d\d(:\d\d(\.\d{3}(\d{3})?)?)?)?([+-]\d\d:\d\d)?)?", text):
            raise ValueError
        return super().fromisoformat(text)


@pytest.mark.serial
@pytest.mark.parametrize("kind", [datetime.datetime, OfPython310])
def test_dates_do_not_depend_on_the_version_of_python(monkeypatch, kind):
    monkeypatch.setattr(row_metadata, "datetime", kind)
    texts = ["12:30Z", "12:30:00Z", "12:30:00.5", "12:30:00.25+02:00", "12:30:00.123456789Z", "12:30:00.125"]
    expected = 1717158600 + np.array([0, 0, 0.5, 0.25 - 7200, 0.123456, 0.125])
    found, _ = row_metadata.times([f"2024-05-31T{text}" for text in texts], None)
    np.testing.assert_allclose(found, expected, rtol=0, atol=1e-6)


@pytest.mark.serial
def test_dates_at_the_ends_of_time_are_in_the_range_that_a_manifest_may_have(tmp_path):
    texts = ["9999-12-31T23:59:59.999999", "9999-12-31T23:00:00-05:00", "0001-01-01T00:00:00+05:00"]
    made = write_data(tmp_path / "d", np.ones((3, 1)), [1, -1, 1], times=texts)
    assert (made.time["first"], made.time["last"]) == (row_metadata.EARLIEST, row_metadata.LATEST)
