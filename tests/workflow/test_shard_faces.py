"""One request, sent through `distsms shard` and `distsms.shard`, gives the same data sets, warnings and refusals."""

from __future__ import annotations

import json

import numpy as np
import pandas as pd
import pytest
from scipy import sparse

import distsms
from distsms.base.communicator import Communicator
from distsms.base.errors import ColumnWarning, InputError
from distsms.base.wording import in_python
from distsms.ingest import file_names
from distsms.shards.dataset import load, read_manifest
from distsms.shards.manifest import MANIFEST
from distsms.workflow import shard as workflow
from tests.workflow.faces import noted, run, words_of

pytestmark = pytest.mark.serial
WORDS = {"hashed": "hash", "n_shards": "shards", "n_features": "columns"}


def visits(n=300, seed=0):
    rng = np.random.default_rng(seed)
    times = pd.Timestamp("2024-01-01") + pd.to_timedelta(rng.integers(0, 500, n), "D")
    return pd.DataFrame(
        {
            "bought": np.where(rng.random(n) < 0.3, "yes", "no"),
            "user": rng.integers(0, 40, n),
            "amount": rng.normal(size=n).round(3),
            "worth": rng.integers(0, 4, n),
            "day": times.strftime("%Y-%m-%d"),
            "city": rng.choice(["Bonn", "Köln", "Ulm"], n),
            "remark": [" ".join(rng.choice(["good", "bad", "late", "new", "old"], 4)) for _ in range(n)],
            "a--x": rng.integers(1000, 1009, n),
        }
    )


def by_command(folder, inputs, capsys, **options):
    """Run `distsms shard`; return what the request gave, with the warnings as they were printed."""
    assert run("shard", *inputs, folder, *words_of(options, **WORDS)) == 0
    return capsys.readouterr()


def in_program(folder, data, **options):
    return noted(lambda: distsms.shard(data, folder, **options))


def files(folder):
    return {str(path.relative_to(folder)): path for path in sorted(folder.rglob("*")) if path.is_file()}


def same(one, other, but=()):
    """Whether two folders have the same files to the byte, but for some fields of the manifests."""
    first, second = files(one), files(other)
    assert first.keys() == second.keys() and len(first) > 1
    for name, path in first.items():
        if but and path.name == MANIFEST:
            records = [json.loads(each.read_bytes()) for each in (path, second[name])]
            for record in records:
                for field in (*but, "checksum"):
                    record.pop(field, None)
            assert records[0] == records[1]
        else:
            assert path.read_bytes() == second[name].read_bytes(), name


CASES = [
    {},
    {"weight": "worth", "time": "day", "drop": ["user"]},
    {"group": "user", "split": (0.7, 0.3), "seed": 3},
    {"group": "user", "time": "day", "split": (0.7, 0.3)},  # a warning: groups, not time
    {"split": (0.5, 0.2, 0.2), "split_by": "doubles", "dtype": "float32"},
    {"categorical": ["a--x", "user"], "hashed": {"remark": 6}, "min_count": 2, "n_shards": 2},
    {"numeric": ["user"], "keep": ["user"], "group": "user", "normalize": "maxabs", "positive": "no"},
]


@pytest.mark.parametrize("options", CASES)
def test_the_same_data_sets(tmp_path, capsys, monkeypatch, options):
    visits().to_csv(tmp_path / "data--old.csv", index=False)
    done = []
    made = workflow.shard
    monkeypatch.setattr(workflow, "shard", lambda *all_: done.append(made(*all_)) or done[-1])
    by_command(tmp_path / "a", [tmp_path / "data--old.csv"], capsys, label="bought", **options)
    result, warned = in_program(tmp_path / "b", tmp_path / "data--old.csv", label="bought", **options)
    same(tmp_path / "a", tmp_path / "b")
    assert warned == result.warnings == [in_python(text) for text in done[0].warnings]
    assert ("group" in options and "time" in options) == any("split_by='time'" in text for text in warned)
    assert [manifest.fingerprint for manifest in result.data_sets] == [
        read_manifest(folder).fingerprint for folder in result.directories
    ]
    # a table in memory has the same rows, from a file of another name
    frame, _ = in_program(tmp_path / "c", pd.read_csv(tmp_path / "data--old.csv"), label="bought", **options)
    for one, other in zip(result.data_sets, frame.data_sets, strict=True):
        assert [shard.rows for shard in other.shards] and one.table.feature_names == other.table.feature_names
        blocks = [load(each.directory, Communicator()) for each in (one, other)]
        np.testing.assert_array_equal(blocks[0].labels, blocks[1].labels)
        w = np.random.default_rng(0).normal(size=one.p)
        np.testing.assert_allclose(*(block.features.margins(w) for block in blocks), rtol=1e-12)
    record = json.loads(json.dumps(result.to_dict()))
    assert [each["n"] for each in record["data_sets"]] == [manifest.n for manifest in result.data_sets]
    assert list(result.columns["name"]) == [column["name"] for column in record["columns"]]
    assert not list(tmp_path.rglob("rows-*"))


def test_arrays(tmp_path, capsys):
    """Dense and sparse ones, with weights and groups: as from a .npz file of the same arrays."""
    rng = np.random.default_rng(1)
    X = sparse.random(80, 6, density=0.4, format="csr", random_state=1)
    y, weights, groups = rng.integers(0, 2, 80), rng.integers(0, 3, 80), rng.choice(["a", "b", "c"], 80)
    np.savez(
        tmp_path / "x.npz",
        **{name: getattr(X, name) for name in ("indptr", "indices", "data", "shape")},
        y=y,
        weights=weights,
        groups=groups,
    )
    by_command(tmp_path / "a", [tmp_path / "x.npz"], capsys, weight="weights", group="groups", split=(0.5, 0.5))
    how = {"weight": weights, "group": groups, "split": (0.5, 0.5)}
    for name, matrix in (("b", X), ("c", X.toarray()), ("d", X.toarray().astype(object))):
        distsms.shard((matrix, y), tmp_path / name, **how)
        same(tmp_path / "a", tmp_path / name, but=["source"])
    with pytest.raises(InputError, match="X does not hold numbers"):
        distsms.shard((np.full((80, 2), "a"), y), tmp_path / "e", **how)
    assert not (tmp_path / "e").exists()
    with pytest.raises(InputError, match="arrays for rows in memory"):
        distsms.shard((X, y), tmp_path / "e", weight="weights")
    with pytest.raises(InputError, match="put these into the table"):
        distsms.shard(visits(), tmp_path / "e", label="bought", weight=weights)


@pytest.mark.parametrize("missing", [None, np.nan, pd.NaT, pd.NA], ids=str)
def test_what_is_missing_among_objects_is_refused(tmp_path, missing):
    """It becomes neither a label, which would count as negative, nor a group that such rows share."""
    X, y, groups = np.eye(4), np.array(["yes", "no", "None", "yes"], object), np.array(["a", "nan", "b", 7], object)
    result = distsms.shard((X, y), tmp_path / "a", positive="yes", group=groups)
    assert (result.data_sets[0].n_neg, result.data_sets[0].group["groups"]) == (2, 4)
    with pytest.raises(InputError, match=r"row 2 \(counted from 0\): the label is missing"):
        distsms.shard((X, np.array(["yes", "no", missing, "yes"], object)), tmp_path / "b", positive="yes")
    with pytest.raises(InputError, match=r"row 1 \(counted from 0\): 'groups': the group is missing"):
        distsms.shard((X, y), tmp_path / "b", positive="yes", group=np.array(["a", missing, "b", 7], object))


REFUSED = [
    ({}, "which column is the label? label=COLUMN"),
    ({"label": "a--nothing"}, "has no column 'a--nothing'; it has 'bought'"),
    ({"label": "bought", "split_by": "rows"}, "split_by says what split keeps together; give both"),
    ({"label": "bought", "split": (0.9, 0.9)}, "as in split=(0.8, 0.2)"),
    ({"label": "bought", "split": (0.9, 0.1), "split_by": "groups"}, "split_by='groups' needs group=COLUMN"),
    (
        {"label": "bought", "drop": ["a--x"], "weight": "a--x"},
        "drop=['a--x']: the column of group, time or weight is not a feature anyway",
    ),
    ({"label": "bought", "keep": ["a--x"]}, "keep=['a--x']: is for columns of groups, times and weights"),
    ({"label": "bought", "numeric": ["city--group"]}, "column 'city--group' of categorical, numeric, dates or hashed"),
    ({"label": "bought", "hashed": {"remark": 99}}, "hashed={'remark': 99}: the number of bits is from 1 to"),
]


@pytest.mark.parametrize(("options", "words"), REFUSED)
def test_bad_input_is_refused_alike(tmp_path, capsys, options, words):
    visits().to_csv(tmp_path / "data--old.csv", index=False)
    messages = []
    for call, name in ((by_command, "a"), (in_program, "a")):
        more = (capsys,) if call is by_command else ()
        data = tmp_path / "data--old.csv"
        with pytest.raises(InputError) as refused:
            call(tmp_path / name, [data] if more else data, *more, **options)
        messages.append(refused.value.message)
        assert not (tmp_path / name).exists()
    assert in_python(messages[0]) == messages[1] and words in messages[1]
    assert "data--old.csv" in messages[1] or str(tmp_path) not in messages[0]


def test_names_that_look_like_options_are_not_changed(tmp_path, monkeypatch):
    """Neither those of files nor those of columns, in errors, warnings and reports."""
    monkeypatch.chdir(tmp_path)
    frame = visits().rename(columns={"remark": "--group", "city": "x --label COLUMN", "amount": "--hash it"})
    frame.to_csv("data--old --drop.csv", index=False)
    with pytest.warns(ColumnWarning) as warned:
        result = distsms.shard("data--old --drop.csv", "made --weight", label="bought")
    text = str(warned[0].message)
    assert "--group: left out: text; hashed={'--group': 16} keeps it" in text
    assert "a--x: " in text and "categorical=['a--x']" in text
    assert list(result.columns["name"]) == list(frame.columns.drop("bought"))
    assert result.directories == [(tmp_path / "made --weight").relative_to(tmp_path)]
    with pytest.raises(InputError) as refused:
        distsms.shard("data--old --drop.csv", "other")
    assert str(refused.value).startswith("data--old --drop.csv: which column is the label? label=COLUMN; columns: ")
    assert "--hash it" in str(refused.value) and "x --label COLUMN" in str(refused.value)
    with pytest.raises(InputError, match=r"^made --weight: holds a data set already; .* replace it .overwrite.$"):
        distsms.shard("data--old --drop.csv", "made --weight", label="bought")
    with pytest.raises(InputError, match=r"^made --weight/--like: there is no such file or folder$"):
        distsms.shard("data--old --drop.csv", "other", label="bought", like="made --weight/--like")


def test_notes_on_columns_do_not_name_temporary_files(tmp_path):
    """What is odd about a column of a table in memory is said of the table."""
    frame = visits()
    frame["room"] = ["x", *map(str, range(299))]
    with pytest.warns(ColumnWarning) as warned:
        result = distsms.shard(frame, tmp_path / "d", label="bought", categorical=["room"], min_count=2)
        model = distsms.train(frame, lam=1.0, solver="lbfgs", label="bought", categorical=["room"], min_count=2)
    texts = [str(each.message) for each in warned] + [str(result.columns.to_dict()), str(model.info["columns"])]
    assert sum("the first 'x' at the table" in text for text in texts) == 4, texts
    assert not any("rows-0000" in text for text in texts)


def test_an_unknown_option_is_refused(tmp_path):
    visits().to_csv(tmp_path / "a.csv", index=False)
    with pytest.raises(InputError, match="shard: there is no option 'categorial'; did you mean categorical"):
        distsms.shard(tmp_path / "a.csv", tmp_path / "d", label="bought", categorial=["user"])
    with pytest.raises(InputError, match="no such file"):
        distsms.shard(tmp_path / "b-*.csv", tmp_path / "d")
    assert file_names.is_data_set(tmp_path / "nothing") is False


def test_arrays_leave_the_users_files_alone(tmp_path):
    """Temporary files are in a folder of their own, which alone is removed, also if the data set cannot be made."""
    X, y, there = np.arange(40.0).reshape(20, 2), np.tile([1, -1], 10), tmp_path / "out"
    there.mkdir()
    with pytest.raises(InputError, match="expected one entry for each row"):
        distsms.shard((X, y[1:]), there)
    assert there.is_dir() and not any(there.iterdir())
    users = [there / "rows-00000.npz", there / "rows-00000.parquet"]
    for file in users:
        file.write_text("of the user")
    for data in (X, y), pd.DataFrame(X).assign(label=y):
        distsms.shard(data, there, label=None if isinstance(data, tuple) else "label", overwrite=True)
        assert {file.read_text() for file in users} == {"of the user"} and not any(tmp_path.rglob(".rows*"))
    with pytest.raises(InputError, match="holds a data set already"):
        distsms.shard((X, y), there)
    with pytest.raises(InputError, match="cannot be written: File exists; write to a folder"):
        distsms.shard((X, y), users[0])
