"""What commands say of weights that are lost, of probabilities that a format lacks, and of words in another order."""

from __future__ import annotations

import csv

import numpy as np
import pytest

from distsms import cli
from distsms.base.communicator import Communicator
from distsms.base.errors import InputError
from distsms.models import model
from distsms.python import api
from distsms.workflow.decisions import check

pytestmark = pytest.mark.serial
ALONE = Communicator()


def run(*words):
    args = cli.parse([str(word) for word in words])
    return args.run(args, ALONE)


@pytest.fixture(scope="module")
def weighted(tmp_path_factory):
    """Return a folder with a table of payments, a data set with weights, and a model that was trained on it."""
    folder, rng = tmp_path_factory.mktemp("weighted"), np.random.default_rng(0)
    fraud = rng.random(300) < 0.3
    with open(folder / "rows.csv", "w", newline="") as file:
        rows = zip(fraud * 1, rng.uniform(1, 9, 300).round(2), rng.normal(fraud, 1).round(3), strict=True)
        csv.writer(file).writerows([["fraud", "amount", "x"], *rows])
    run("shard", folder / "rows.csv", folder / "data", "--label", "fraud", "--weight", "amount", "--keep", "amount")
    made = api.train(folder / "data", lam=1e-2, solver="lbfgs", calibrate="sigmoid")
    model.save(folder / "model.h5", made)
    return folder


def test_weights_that_get_lost_are_told(weighted, tmp_path, capsys):
    like = "shard", weighted / "rows.csv", tmp_path / "new", "--like", weighted / "data"
    run(*like)
    assert "Give --weight amount" in " ".join(capsys.readouterr().out.split())
    run(*like, "--weight", "amount", "--keep", "amount", "--overwrite")
    assert "Give --weight" not in capsys.readouterr().out
    judge = "evaluate", weighted / "model.h5", weighted / "rows.csv", "--bootstrap", 0
    run(*judge)
    told = " ".join(capsys.readouterr().out.split())
    assert "trained with weights from the column amount" in told and "Give --weight amount for a file" in told
    run(*judge, "--weight", "amount")
    assert "trained with weights" not in capsys.readouterr().out


def test_formats_without_probabilities_say_so(weighted, tmp_path, capsys):
    run("export", weighted / "model.h5", "--to", "csv", "--output", tmp_path / "w.csv")
    assert "csv has no probabilities" in capsys.readouterr().err
    plain = model.load(weighted / "model.h5")
    del plain.info["calibration"]
    model.save(tmp_path / "plain.h5", plain)
    run("export", tmp_path / "plain.h5", "--to", "csv", "--output", tmp_path / "w.csv")
    assert "probabilities" not in capsys.readouterr().err


def test_exported_logistic_regression_needs_no_curve(weighted, tmp_path, capsys):
    logistic = model.load(weighted / "model.h5")
    logistic.info.update(measure="logistic", threshold=0.0)
    del logistic.info["calibration"]
    model.save(tmp_path / "logistic.h5", logistic)
    for to, told in (("csv", "is 1 / (1 + exp(-score))"), ("liblinear", "predict -b 1 of LIBLINEAR writes")):
        run("export", tmp_path / "logistic.h5", "--to", to, "--output", tmp_path / "w")
        assert told in capsys.readouterr().err


def test_several_paths_say_once_that_rows_are_duplicates(tmp_path, capsys):
    rng = np.random.default_rng(0)
    rows = [f"{y:d},{x:.3f}" for y, x in zip(rng.random(300) < 0.4, rng.normal(size=300), strict=True)]
    (tmp_path / "rows.csv").write_text("\n".join(["y,x", *rows, *rows, ""]))
    run("shard", tmp_path / "rows.csv", tmp_path / "data", "--label", "y")
    capsys.readouterr()
    few = "--lambdas", "1e-1", "--folds", 2, "--solver", "lbfgs"
    run("path", tmp_path / "data", *few, "--l1", "1e-2", "1e-3", "--output", tmp_path / "paths")
    out = capsys.readouterr().out
    assert out.count("have an exact duplicate") == 1 and "--- 2 of 2" in out


def test_info_leaves_out_what_is_empty(weighted, capsys):
    run("info", weighted / "model.h5")
    names = [line.split()[0] for line in capsys.readouterr().out.splitlines() if line[:1].strip()]
    assert "detail" not in names and "threshold" in names


@pytest.mark.parametrize(
    "words",
    [
        ("evaluate", "m.h5", "--json", "data/test"),
        ("evaluate", "--json", "m.h5", "--k", "5", "data/test"),
        ("evaluate", "m.h5", "data/test", "--json"),
    ],
)
def test_files_may_stand_behind_options(words):
    args = cli.parse(words)
    assert (args.command, args.paths, args.test, args.json) == ("evaluate", ["m.h5", "data/test"], None, True)


def test_other_commands_take_files_behind_options_too(capsys):
    args = cli.parse(["train", "a.csv", "--label", "y", "b.csv", "--", "-tao_monitor"])
    assert args.data == ["a.csv", "b.csv"] and args.solver_options == ("-tao_monitor",) and args.label == "y"
    args = cli.parse(["shard", "a.csv", "--label", "y", "b.csv", "out"])
    assert (args.input, args.output) == (["a.csv", "b.csv"], "out")
    for wrong in (["predict", "m.h5", "data", "more"], ["evaluate", "m.h5", "--jsn", "data"]):
        with pytest.raises(SystemExit):
            cli.parse(wrong)
        assert "unrecognized arguments" in capsys.readouterr().err


@pytest.mark.parametrize(
    "words, told",
    [
        ("train a.csv --lable y", "did you mean --label?"),
        ("train a.csv --lable=y", "did you mean --label?"),
        ("train a.csv --xyzzy", "unrecognized arguments: --xyzzy (see --help)"),
        ("path a.csv --label y", "--label is an option of distsms shard"),
        ("features a.csv d --categorical y", "--categorical is an option of distsms shard"),
        ("predict m.h5 a.csv b.csv", "the command takes MODEL DATA|FILE, and no more at a time"),
        ("train data -tao_monitor", "go after --"),
        ("train data --calibrate", "expected one argument: sigmoid or isotonic"),
        ("train data --lambda 0,01", "'0,01' is not a positive number, such as 0.01 or 1e-2; auto chooses it"),
        ("path data --lambdas 1e-1..1e-5", "nor FROM:TO or FROM:TO:COUNT, as 1e-1:1e-7 is"),
        ("train a.csv --split 80,20", "shares are between 0 and 1: write 0.8,0.2"),
        ("shard a.csv d --split 2,1,1", "write 0.5,0.25,0.25"),
    ],
)
def test_usage_errors_say_what_may_have_been_meant(capsys, words, told):
    with pytest.raises(SystemExit):
        cli.parse(words.split())
    assert told in " ".join(capsys.readouterr().err.split())


def test_rows_without_the_names_of_training_are_told(weighted, tmp_path, capsys):
    rows = (weighted / "rows.csv").read_text().splitlines()
    named = [f"payment,{rows[0]}", *(f"p{k},{row}" for k, row in enumerate(rows[1:]))]
    (tmp_path / "named.csv").write_text("\n".join(named))
    run("shard", tmp_path / "named.csv", tmp_path / "data", "--label", "fraud", "--id", "payment", "--quiet")
    model.save(tmp_path / "m.h5", api.train(tmp_path / "data", lam=1e-2, solver="lbfgs"))
    for name, missing in ((weighted / "rows.csv", True), (tmp_path / "named.csv", False), (tmp_path / "data", False)):
        run("predict", tmp_path / "m.h5", name, "--output", tmp_path / "s.csv")
        assert ("has no column 'payment'" in " ".join(capsys.readouterr().err.split())) == missing
        assert (tmp_path / "s.csv").read_text().startswith("score" if missing else "payment,score")


def test_a_model_is_not_offered_a_number_of_rows(capsys):
    with pytest.raises(SystemExit):
        cli.parse(["train", "data", "--at", "top=none"])
    said = capsys.readouterr().err
    assert "top=1%" in said and "top=100" not in said
    with pytest.raises(InputError, match="top=1%") as error:
        check("top=none", None, 5)
    assert "top=100" not in str(error.value)
    with pytest.raises(SystemExit):
        cli.parse(["evaluate", "m.h5", "data", "--at", "top=none"])
    assert "top=100" in capsys.readouterr().err


def test_a_single_process_says_that_nobody_can_survive_it(weighted, tmp_path, capsys):
    words = "train", weighted / "data", "--solver", "lbfgs", "--lambda", "1e-2", "--output", tmp_path / "model.h5"
    run(*words)
    assert "survive" not in capsys.readouterr().out
    run(*words, "--survive")
    assert "a single process has no others to go on" in " ".join(capsys.readouterr().out.split())
