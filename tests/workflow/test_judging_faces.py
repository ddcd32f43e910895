"""One request to judge a model, sent through the command line and the Python functions, gives one result."""

from __future__ import annotations

import json
import os

import numpy as np
import pandas as pd
import pytest

import distsms
from distsms.base.errors import InputError
from distsms.base.wording import in_python
from distsms.shards.from_arrays import write_data
from tests.workflow.faces import noted, run

pytestmark = pytest.mark.serial
QUICK = {"bootstrap": 50, "seed": 3}


def by_command(capsys, command, *words, **options):
    """Return what a command prints."""
    line = [command, *words]
    for name, value in options.items():
        for each in value if isinstance(value, list) else [value]:
            line += [f"--{name.replace('_', '-')}", *([] if each is True else [each])]
    capsys.readouterr()
    assert run(*line) == 0
    return capsys.readouterr()


def evaluated(capsys, model, data, own, same_in_python=None):
    """Evaluate by command and from Python, which must give the same to the bit, and return the result."""
    options = {name: value for name, value in own.items() if value is not None} | QUICK
    models = model if isinstance(model, list) else [model]
    command = json.loads(by_command(capsys, "evaluate", *models, test=data, json=True, **options).out)
    said = by_command(capsys, "evaluate", *models, test=data, **options).out
    of_python = {"level": 0.95} | {name: value for name, value in own.items() if value is not None} | QUICK
    result, told = noted(
        lambda: distsms.evaluate(model, data if same_in_python is None else same_in_python, **of_python)
    )
    found = json.loads(json.dumps(result.to_dict(), default=float).replace("NaN", "null").replace("Infinity", "null"))
    assert {**found, "data": ""} == {**command, "data": ""}
    assert told == [in_python(line) for line in result.warnings]
    for line in result.warnings:
        assert " ".join(line.split()) in " ".join(said.split())
    assert said.count("warning   ") == len(result.warnings)
    return result


@pytest.fixture
def rows():
    rng = np.random.default_rng(0)
    X = rng.normal(size=(300, 4))
    y = np.where(X[:, 0] + rng.normal(size=300) > 0.8, 1, -1)
    return X, y, rng.integers(1, 4, 300).astype(float), rng.integers(0, 20, 300)


@pytest.fixture
def table(rows):
    X, y, weights, groups = rows
    frame = pd.DataFrame(X, columns=list("abcd")).assign(shop=np.array(["x", "y", "z"])[groups % 3])
    return frame.assign(weight=weights, group=groups, y=np.where(y > 0, "yes", "no"))


@pytest.fixture
def of_table(table, tmp_path):
    """Return the file of a model of a table, which was trained on half of the rows, with weights and within groups."""
    own = {"label": "y", "weight": "weight", "group": "group", "lam": 1e-2, "solver": "lbfgs", "check": False}
    (model, _) = noted(lambda: distsms.train(table[:150], within_groups="each", positive="yes", **own))
    distsms.save_model(tmp_path / "m.h5", model)
    return tmp_path / "m.h5"


ASKED = [
    {},
    {"k": 20, "threshold": 0.1},
    {"at": ["precision>=0.5", "recall>=0.8", "fpr<=0.2", "top=20", "top=10%"], "level": 0.8},
]


@pytest.mark.parametrize("own", ASKED, ids=str)
def test_arrays_text_and_data_sets_are_evaluated_alike(own, rows, tmp_path, capsys):
    X, y, _, _ = rows
    (model, _) = noted(lambda: distsms.train((X[:150], y[:150]), lam=1e-2, solver="lbfgs"))
    distsms.save_model(tmp_path / "m.h5", model)
    write_data(tmp_path / "d", X, y)
    np.savez(tmp_path / "a.npz", X=X, y=y)
    np.save(tmp_path / "b.npy", np.c_[y, X])
    of_set = evaluated(capsys, tmp_path / "m.h5", tmp_path / "d", own)
    assert ["training rows of the model" in line for line in of_set.warnings] == [True]
    for data, same in (("a.npz", None), ("a.npz", (X, y)), ("d", (X, y))):
        result = evaluated(capsys, tmp_path / "m.h5", tmp_path / data, own, same)
        assert result.to_dict() | {"data": ""} == of_set.to_dict() | {"data": ""}
    frame = of_set.frame().set_index("measure")
    assert frame.loc["rocarea", "value"] == of_set["rocarea"] and frame.low.rocarea < of_set["rocarea"]
    without, _ = noted(lambda: distsms.evaluate(model, (X, y), **{**own, "level": None}))
    levels = {"level", "at", "intervals_at_threshold"} if own.get("level") else set()
    assert {name: without[name] for name in set(without) - levels} == {
        name: of_set[name] for name in set(of_set) - levels
    }
    assert not without.evaluated.models[0].intervals


@pytest.mark.parametrize(
    "own",
    [
        {},  # with a warning that the model was trained with weights
        {"weight": "weight"},
        {"group": "group"},
        {"group": "group", "within_groups": "pairs", "weight": "weight"},
    ],
    ids=str,
)
def test_tables_are_evaluated_alike(own, table, of_table, tmp_path, capsys):
    lacking = [name for name in ("weight", "group") if name not in own]
    rest = table[150:].drop(columns=lacking)
    rest.to_csv(tmp_path / "a.csv", index=False)
    rest.to_parquet(tmp_path / "a.parquet")
    of_file = evaluated(capsys, of_table, tmp_path / "a.csv", own)
    for data, same in (("a.parquet", None), ("a.csv", rest)):
        other = evaluated(capsys, of_table, tmp_path / data, own, same)
        assert other.to_dict() | {"data": ""} == of_file.to_dict() | {"data": ""}
    assert ("gauc@each" in of_file) == (own.get("group") is not None and "within_groups" not in own)
    assert ("gauc@pairs" in of_file) == ("within_groups" in own)
    assert any("trained with weights" in line for line in of_file.warnings) == ("weight" not in own)


def test_several_models_and_groups_in_arrays(rows, tmp_path, capsys):
    X, y, weights, groups = rows
    paths = [tmp_path / f"{lam}.h5" for lam in (1e-3, 1.0)]
    for path, lam in zip(paths, (1e-3, 1.0), strict=True):
        distsms.save_model(path, noted(lambda lam=lam: distsms.train((X, y), lam=lam, solver="lbfgs"))[0])
    write_data(tmp_path / "d", X, y, weights=weights, groups=groups)
    own = {"within_groups": "pairs", "level": 0.9}
    both = evaluated(capsys, paths, tmp_path / "d", own)
    assert len(both.warnings) == 2 and len(both.frame()) == 2 * len(both.models[0].intervals)
    arrays, _ = noted(lambda: distsms.evaluate(paths, (X, y), weight=weights, group=groups, **own, **QUICK))
    assert [each.measures for each in arrays.models] == [each.measures for each in both.models]
    assert [each.intervals for each in arrays.models] == [each.intervals for each in both.models]
    assert [pair.as_json() for pair in arrays.pairs] == [pair.as_json() for pair in both.pairs]


def test_scores_are_alike_to_the_bit(rows, table, of_table, tmp_path, capsys):
    rest = table[150:]
    rest.to_csv(tmp_path / "a.csv", index=False)
    (scores, told) = noted(lambda: distsms.predict(of_table, rest))
    assert not told
    np.testing.assert_array_equal(distsms.predict(of_table, tmp_path / "a.csv"), scores)
    np.testing.assert_array_equal(distsms.predict(distsms.load_model(of_table), rest[["shop", *"dcba"]]), scores)
    by_command(capsys, "predict", of_table, tmp_path / "a.csv", output=tmp_path / "s.npy")
    np.testing.assert_array_equal(np.load(tmp_path / "s.npy"), scores)
    printed = by_command(capsys, "predict", of_table, tmp_path / "a.csv", quiet=True).out
    assert list(map(float, printed.split())) == scores.tolist()


def test_labels_and_probabilities_are_those_of_the_model(rows, tmp_path, capsys):
    X, y, _, _ = rows
    own = {"lam": 1e-2, "solver": "lbfgs", "at": "recall>=0.7", "calibrate": "sigmoid"}
    (model, _) = noted(lambda: distsms.train((X, y), **own))
    distsms.save_model(tmp_path / "m.h5", model)
    write_data(tmp_path / "d", X[y > 0], y[y > 0])
    output = tmp_path / "s.csv"
    said = by_command(
        capsys, "predict", tmp_path / "m.h5", tmp_path / "d", output=output, labels=True, probability=True
    )
    written, scores = pd.read_csv(output, float_precision="round_trip"), distsms.predict(model, X[y > 0])
    assert written.score.tolist() == scores.tolist()
    assert written.label.tolist() == model.labels(scores).tolist()
    assert written.probability.tolist() == model.probabilities(scores).tolist()
    assert said.err.count("distsms predict: warning: ") == 2  # all rows are positive, or nearly so by their labels


def test_the_page_and_its_warnings(rows, tmp_path, capsys):
    pytest.importorskip("matplotlib")
    X, y, weights, _ = rows
    (model, _) = noted(lambda: distsms.train((X, y), lam=1e-2, solver="lbfgs"))
    distsms.save_model(tmp_path / "m.h5", model)
    write_data(tmp_path / "d", X, y, weights=weights)
    (tmp_path / "names.txt").write_text("a\nb\nc\nd\n")
    own = {"at": "top=10%", "level": 0.8, **QUICK}
    pages = [tmp_path / name for name in ("command.html", "set.html", "arrays.html")]
    (tmp_path / "card.toml").write_text('factors = "None that we know of."')
    more = {"figures": tmp_path / "f", "card": tmp_path / "card.toml"}
    of_set = {"feature_names": tmp_path / "names.txt", **more}
    said = by_command(capsys, "report", tmp_path / "m.h5", test=tmp_path / "d", output=pages[0], **of_set, **own)
    assert "warning   All of these rows were training rows" in said.out
    result, _ = noted(lambda: distsms.evaluate(tmp_path / "m.h5", tmp_path / "d", **own))
    of_arrays = {"weight": weights, "feature_names": list("abcd"), **more}
    for path, data, options in ((pages[1], tmp_path / "d", of_set), (pages[2], (X, y), of_arrays)):
        (page, told) = noted(lambda: distsms.report(tmp_path / "m.h5", data, path, **options, **own))  # noqa: B023
        assert len(page.figures) > 10 and (page.path, page.size) == (str(path), path.stat().st_size)
        assert told == [in_python(line) for line in page.warnings] and "training rows of the model" in told[0]
        assert page.measures | {"data": ""} == result.to_dict() | {"data": ""} and page.to_dict()["path"] == page.path
    first, *others = (lasting(path.read_text(), tmp_path / "d") for path in pages)
    assert others == [first, first] and any("None that we know of." in line for line in first)


def lasting(page, data):
    """Return the text of a page without times, ids of drawings and the name of the rows."""
    page = page.replace(str(data), "the rows given").split("</style>", 1)[1]
    lines = page.split("<svg")
    texts = [lines[0], *(line.split("</svg>")[1] for line in lines[1:])]
    return [line for text in texts for line in text.splitlines() if "Made by distsms" not in line]


def test_bad_input_is_refused_alike(rows, table, of_table, tmp_path, capsys):
    X, y, weights, _ = rows
    (model, _) = noted(lambda: distsms.train((X, y), lam=1e-2, solver="lbfgs"))
    distsms.save_model(tmp_path / "a.h5", model)
    write_data(tmp_path / "d", X, y, weights=weights)
    table.drop(columns="a").to_csv(tmp_path / "lacks.csv", index=False)
    table[:0].to_csv(tmp_path / "empty.csv", index=False)
    refused = [
        (tmp_path / "a.h5", tmp_path / "d", {"k": 10}, "precision@10"),
        (tmp_path / "a.h5", tmp_path / "d", {"within_groups": "each"}, "needs the groups of the rows"),
        (
            tmp_path / "a.h5",
            tmp_path / "d",
            {"weight": "w"},
            "are of files, and were chosen when this data set was made",
        ),
        (tmp_path / "gone.h5", tmp_path / "d", {}, "there is no such model file"),
        (of_table, tmp_path / "lacks.csv", {}, "lacks.csv"),
        (of_table, tmp_path / "empty.csv", {}, "there is no row to evaluate a model on"),
        (of_table, tmp_path / "gone.csv", {}, "gone.csv"),
    ]
    for path, data, own, message in refused:
        with pytest.raises(InputError, match=message) as command:
            by_command(capsys, "evaluate", path, data, **own)
        with pytest.raises(InputError, match=message) as python:
            distsms.evaluate(path, data, **own)
        assert str(python.value) == in_python(command.value.message)
    for call in (
        lambda: distsms.evaluate(model, (X, y), weight="w"),
        lambda: distsms.evaluate(model, tmp_path / "d", weight=weights),
        lambda: distsms.contributions(model, X, weight="w"),
    ):
        with pytest.raises(InputError, match="weight and group are names of columns for tables"):
            call()
    with pytest.raises(InputError, match="evaluate: there is no option 'sed'; did you mean seed"):
        distsms.evaluate(model, (X, y), sed=1)
    (tmp_path / "page.html").write_text("mine")
    os.truncate(tmp_path / "page.html", 2**40)  # no more than its beginning fits into memory
    for call in (
        lambda: by_command(capsys, "report", tmp_path / "a.h5", test=tmp_path / "d", output=tmp_path / "page.html"),
        lambda: distsms.report(tmp_path / "a.h5", tmp_path / "d", tmp_path / "page.html"),
    ):
        with pytest.raises(InputError, match=r"page\.html: exists and is not a report"):
            call()


def test_no_output_is_a_file_of_a_pattern(table, of_table, tmp_path, capsys):
    for day in (tmp_path / "day-1.csv", tmp_path / "day-2.csv"):
        table.to_csv(day, index=False)
    content, pattern = day.read_bytes(), tmp_path / "day-*.csv"
    for words, more in ((["predict", of_table, pattern], {}), (["report", of_table], {"test": pattern})):
        with pytest.raises(InputError, match=r"day-2\.csv: would overwrite .*day-2\.csv, which is in use"):
            by_command(capsys, *words, output=day, **more)
        assert day.read_bytes() == content
