"""Codes, names and records of feature maps."""

from __future__ import annotations

import json
import tempfile

import h5py
import numpy as np
import pandas as pd
import pytest
from hypothesis import given
from hypothesis import strategies as st
from scipy import sparse

from distsms.base.errors import InputError
from distsms.features import feature_map
from distsms.features.attributes import Attribute
from distsms.features.bins import Bins
from distsms.features.feature_map import FeatureMap
from distsms.features.forest import Forest
from distsms.matrix.coded import to_csr
from distsms.shards.coded_columns import CodedColumns, FeatureReference


def singles(*values):
    return np.array(values, np.float32)


def example(pairs=((0, 1), (1, 2)), keep=False, forest=True):
    """A map of seven columns: a number that may be missing, a category, a number, and two small trees."""
    attributes = [
        Attribute("age", (0,), missing=1),
        Attribute("job", (2, 3, 4), ("clerk", "cook", "other"), none=True),
        Attribute("wage", (5,), centre=100.0),
    ]
    bins = Bins(attributes, [singles(30, 35.5), singles(), singles(-0.1, 0.0, 7.25)], pairs)
    trees = Forest(
        np.array([5, -1, 0, -1, -1, -1], np.int32), singles(0.5, 0, 30, 0, 0, 0), np.array([0, 5, 6]), np.ones(7) / 7
    )
    return FeatureMap(7, bins, trees if forest else None, keep)


def rows(n, rng):
    """Rows on edges, one step beside them, and elsewhere."""
    age = rng.choice([30, np.nextafter(30.0, 0), np.nextafter(np.float32(30), np.float32(0)), 35.5, 35.4, 99, -5], n)
    wage = rng.choice([-0.1, np.float32(-0.1), 0.0, -0.0, 7.25, 7.2499998, 1e300, -1e300], n)
    job = rng.integers(0, 4, n)[:, None] == np.arange(3)
    return np.column_stack([age, rng.random(n) < 0.2, job, wage, rng.normal(size=n)]).astype(float)


@given(st.integers(0, 40), st.integers(0, 2**31))
def test_codes_are_those_of_pandas(n, seed):
    X = rows(n, np.random.default_rng(seed))
    codes = example(forest=False).codes(X)[0]
    for column, number, edges in ((0, 0, [30, 35.5]), (5, 2, [np.float32(-0.1), 0.0, 7.25])):
        values = X[:, column].clip(-3e38, 3e38).astype(np.float32)
        cut = pd.cut(values, [-np.inf, *np.float32(edges), np.inf], right=False, labels=False)
        expected = np.where(X[:, 1] > 0, len(edges) + 1, cut) if number == 0 else cut
        np.testing.assert_array_equal(codes[:, number], expected)
    job = np.where(X[:, 2:5].any(axis=1), X[:, 2:5].argmax(axis=1), 3)
    np.testing.assert_array_equal(codes[:, 1], job)


@given(st.integers(0, 40), st.integers(0, 2**31), st.booleans())
def test_rows_are_indicators_of_their_names(n, seed, keep):
    """Sparse and dense rows of both precisions have the same features, and each is what its name says."""
    rng, made = np.random.default_rng(seed), example(keep=keep)
    X = rows(n, rng)
    expected = np.zeros((n, made.p - 7 * keep))
    names = {made.column_name(j): j for j in range(expected.shape[1])}
    assert len(names) == expected.shape[1]
    for i, codes in enumerate(zip(*made.codes(X), strict=True)):
        of_bins = [made.bins.code_name(number, code) for number, code in enumerate(codes[0])]
        crosses = [f"{of_bins[a]} & {of_bins[b]}" for a, b in made.bins.pairs]
        leaves = [f"tree {tree}, leaf {leaf}" for tree, leaf in enumerate(codes[1])]
        expected[i, [names[name] for name in (*of_bins, *crosses, *leaves)]] = 1
    once = sparse.csr_matrix(X)
    halves = np.repeat(once.data / 2, 2), np.repeat(once.indices, 2), 2 * once.indptr
    for given_rows in (X, once, sparse.csr_matrix(halves, X.shape)):
        found = made.rows(given_rows)
        assert found.shape == (n, made.p)
        explicit = found.margins(np.eye(made.p)).T
        np.testing.assert_array_equal(explicit[:, 7 * keep :], expected)
        if keep:
            np.testing.assert_array_equal(explicit[:, :7], X)
    narrow = X.clip(-3e38, 3e38).astype(np.float32)
    for wide, single in zip(made.codes(X), made.codes(narrow), strict=True):
        np.testing.assert_array_equal(wide, single)


def test_names():
    bins = example().bins
    assert [bins.code_name(0, code) for code in range(4)] == [
        "age < 30", "age in [30, 35.5)", "age >= 35.5", "age is missing"
    ]  # fmt: skip
    assert [bins.code_name(1, code) for code in range(4)] == ["job=clerk", "job=cook", "job=other", "job=none"]
    assert [bins.code_name(2, code) for code in (0, 3)] == ["wage < 99.9", "wage >= 107.25"]
    assert example().column_name(12) == "age < 30 & job=clerk"
    assert Bins([Attribute("x", (0,))], [singles()]).column_name(0) == "x has any value"
    whole = Bins([Attribute("x", (0,))], [singles(1e-5, 2, 1234567, 1e12)])
    assert whole.code_name(0, 1) == "x in [1e-05, 2)" and whole.code_name(0, 3) == "x in [1234567, 1e+12)"


def test_rows_that_no_category_fits():
    """Unless training had such rows, they have no column. If two columns are set, the first counts."""
    bins = Bins([Attribute("job", (0, 2), ("clerk", "cook"))], [singles()])
    X = np.array([[0, 1, 1], [0, 1, 0], [1, 0, 1], [0.5, 0, 0.6], [-1, 0, 7]])
    assert bins.codes(X)[:, 0].tolist() == [1, 255, 0, 1, 1]
    np.testing.assert_array_equal(to_csr(bins.code_map, bins.codes(X)).toarray().sum(axis=1), [1, 0, 1, 1, 1])


@pytest.mark.parametrize("pairs", [(), ((0, 1),)])
@pytest.mark.parametrize("keep", [False, True])
def test_a_map_is_read_as_it_was_written(own_dir, pairs, keep):
    made, X = example(pairs, keep), rows(30, np.random.default_rng(0))
    with h5py.File(own_dir / "x.h5", "w") as file:
        feature_map.write(made, file.create_group("map"))
    with h5py.File(own_dir / "x.h5") as file:
        read = feature_map.read(file, "map/", made.reference, "x.h5")
    assert read.reference == made.reference and read.record() == made.record() and read.coded == made.coded
    for own, other in zip(made.codes(X), read.codes(X), strict=True):
        np.testing.assert_array_equal(own, other)
    record = json.loads(json.dumps(made.coded.record()))
    assert CodedColumns.of(record) == made.coded


def test_different_maps_have_different_hashes():
    made = example()
    edges = [*made.bins.edges[:2], np.nextafter(made.bins.edges[2], np.float32(9))]
    others = [
        example(keep=True),
        example(((0, 1),)),
        example(forest=False),
        FeatureMap(7, Bins(made.bins.attributes, edges, made.bins.pairs), made.forest),
        FeatureMap(7, None, made.forest),
    ]
    assert len({own.hash for own in [made, *others]}) == 6


@given(st.data())
def test_changed_maps_are_refused(data):
    """Whatever is changed in a record or an array, the map is refused in words, or is not the one that was named."""
    made = example()
    record, arrays = (
        json.loads(json.dumps(made.record())),
        {name: array.copy() for name, array in made.arrays().items()},
    )
    if data.draw(st.booleans()):
        place = record
        while isinstance(place, dict | list) and place:
            key = data.draw(st.sampled_from(sorted(place) if isinstance(place, dict) else range(len(place))))
            if not isinstance(place[key], dict | list) or data.draw(st.booleans()):
                place[key] = data.draw(st.sampled_from([None, -1, 0, 2, 10**30, "x", 1.5, True, [], {}, [1], [[0, 9]]]))
                break
            place = place[key]
    else:
        name = data.draw(st.sampled_from(sorted(arrays)))
        change = data.draw(st.sampled_from(["value", "shape", "type", "gone"]))
        if change == "value":
            at = data.draw(st.integers(0, arrays[name].size - 1))
            arrays[name][at] = data.draw(st.sampled_from([-1, 0, 3, 100]))
        elif change == "shape":
            arrays[name] = arrays[name][: data.draw(st.integers(0, arrays[name].size - 1))]
        elif change == "type":
            arrays[name] = arrays[name].astype(np.float64 if arrays[name].dtype != np.float64 else np.float32)
        else:
            del arrays[name]
    with tempfile.NamedTemporaryFile() as place, h5py.File(place.name, "w") as file:
        file["record"] = np.frombuffer(json.dumps(record).encode(), np.uint8)
        for name, array in arrays.items():
            file[name] = array
        changed = json.dumps(record) != json.dumps(made.record()) or arrays.keys() != made.arrays().keys()
        changed |= any(
            array.dtype != made.arrays()[name].dtype or not np.array_equal(array, made.arrays()[name])
            for name, array in arrays.items()
        )
        if changed:
            with pytest.raises(InputError, match=r"^x: "):
                feature_map.read(file, "", made.reference, "x")
        else:
            assert feature_map.read(file, "", made.reference, "x").hash == made.hash


def test_files_that_are_not_the_map(own_dir):
    made, path = example(), own_dir / "x.h5"
    with h5py.File(path, "w") as file:
        feature_map.write(made, file)
    with h5py.File(path, "r+") as file:
        file["bins/edges"][0] += 1
    with h5py.File(path) as file, pytest.raises(InputError, match="is not the one that it was written with"):
        feature_map.read(file, "", made.reference, path)
    with h5py.File(path, "r+") as file:
        del file["bins/edges"]
        file["bins/edges"] = h5py.SoftLink("/record")
    with h5py.File(path) as file, pytest.raises(InputError, match="its data are in another file"):
        feature_map.read(file, "", made.reference, path)
    with h5py.File(path, "r+") as file:  # one packed array with many names, each of which is possible alone
        del file["bins/edges"]
        file.create_dataset("bins/edges", data=np.zeros(200_000), compression="gzip")
        for k in range(50):
            file[f"bins/edges{k}"] = file["bins/edges"]
    with h5py.File(path) as file, pytest.raises(InputError, match="too large"):
        feature_map.read(file, "", made.reference, path)


@pytest.mark.parametrize(
    "record",
    [
        {"hash": "a" * 64},
        {"hash": "a" * 63, "columns": 3},
        {"hash": "A" * 64, "columns": 3},
        {"hash": "a" * 64, "columns": 0},
        {"hash": "a" * 64, "columns": "3"},
        {"hash": "a" * 64, "columns": 3, "more": 1},
        {"hash": 5, "columns": 3},
        [],
    ],
)
def test_damaged_references_are_refused(record):
    with pytest.raises((TypeError, ValueError)):
        FeatureReference.of(record)
    with pytest.raises(ValueError):
        CodedColumns.of({"features": {"hash": "a" * 64, "columns": 3}})


def test_rows_that_a_map_cannot_take():
    X = rows(5, np.random.default_rng(0))
    X[3, 6] = np.nan
    for given_rows in (X, sparse.csr_matrix(X)):
        with pytest.raises(InputError, match="NaN"):
            example().codes(given_rows)
    with pytest.raises(ValueError, match="did not grow on"):
        FeatureMap(8, None, example().forest)
    with pytest.raises(ValueError, match="needs bins or trees"):
        FeatureMap(8)
