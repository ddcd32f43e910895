"""Warnings that a column tells the outcome, and that a model overfits: given where they are true, and only there."""

from __future__ import annotations

import numpy as np
import pandas as pd
import pytest

import distsms
from distsms import cli
from distsms.base.communicator import Communicator
from distsms.base.errors import EXIT_VACUOUS, ModelWarning
from distsms.metrics.confidence import Interval
from distsms.models import model
from distsms.workflow.verdict import AreaOnTest, OnFolds, describe_doubt, describe_test

HOW = {"label": "y", "solver": "lbfgs", "lam": 1e-2, "split": (0.7, 0.3)}


def rows(n=800, p=3, seed=0):
    rng = np.random.default_rng(seed)
    frame = pd.DataFrame(rng.normal(size=(n, p)), columns=[f"x{k}" for k in range(p)])
    frame["y"] = (frame.x0 + rng.normal(size=n) > 1).astype(int)
    frame["city"] = rng.choice(["Rome", "Oslo", "Bern"], n)
    return frame


@pytest.mark.parametrize("kind", ["number", "category"])
def test_a_column_that_tells_the_outcome_is_named(comm, kind):
    frame = rows()
    mine = slice(*(len(frame) * rank // comm.size for rank in (comm.rank, comm.rank + 1)))
    assert distsms.train(frame[mine], comm.mpi_comm, **HOW).info["warnings"] == []
    rng = np.random.default_rng(1)
    refund = np.where(frame.y > 0, rng.integers(5, 9, len(frame)), rng.integers(0, 5, len(frame)))
    frame["refund"] = refund if kind == "number" else np.array(list("abcdefghi"))[refund]
    with pytest.warns(ModelWarning) if comm.is_root else np.errstate():
        found = distsms.train(frame[mine], comm.mpi_comm, **HOW)
    (warning,) = found.info["warnings"]
    assert "Column refund alone ranks" in warning and warning.endswith("--drop refund")


def noise(n=1000, positive=0.2, p=60):
    """Columns that say nothing about the label."""
    rng = np.random.default_rng(5)
    frame = pd.DataFrame(rng.normal(size=(n, p)), columns=[f"x{k}" for k in range(p)])
    return frame.assign(y=(rng.random(n) < positive).astype(int))


def run_train(frame, folder, *words, report=False):
    """Run `distsms train` on a table; return the exit code and the information of the model."""
    frame.to_csv(folder / "a.csv", index=False)
    words = ["train", str(folder / "a.csv"), "--label", "y", "--solver", "lbfgs", *words]
    args = cli.parse([*words, *([] if report else ["--no-report"]), "--output", str(folder / "m.h5")])
    code = args.run(args, Communicator())
    return code, model.load(folder / "m.h5").info


@pytest.mark.serial
@pytest.mark.parametrize("lam", ["1e-4", "auto"])
def test_overfitting_is_told_with_both_numbers(tmp_path, capsys, lam):
    code, info = run_train(rows(900, 200), tmp_path, "--lambda", lam, "--split", "0.6,0.4", report=lam == "auto")
    assert code == 0 and not info["vacuous"]
    said = " ".join(capsys.readouterr().out.split())
    (warning,) = info["warnings"]
    assert warning in said and "learned its training rows by heart" in warning
    assert ("has learned" in warning) == ("--drop" in warning) == (lam == "auto")  # there are folds that show it
    assert "larger lambda" not in warning  # the folds have chosen it
    assert info["training"]["rocarea"] > info["test"]["rocarea"] + 0.05
    assert all(f"{info[where]['rocarea']:.3f}" in warning for where in ("training", "test"))
    rows_of = info["test_rows"]
    assert f"{rows_of['n_pos']} positive and {rows_of['n_neg']} negative rows" in said
    assert rows_of["rocarea_low"] < info["test"]["rocarea"] < rows_of["rocarea_high"]
    if lam == "auto":
        assert "learned its training rows" in (tmp_path / "m.html").read_text()


@pytest.mark.serial
def test_a_model_of_noise_ends_with_exit_code_8(tmp_path, capsys):
    """The columns are many, so that the training rows are ranked much better than chance."""
    for lam in ("auto", "1e-3"):
        code, info = run_train(noise(), tmp_path, "--lambda", lam, report=lam == "auto")
        said = " ".join(capsys.readouterr().out.split())
        assert code == info["exit_code"] == EXIT_VACUOUS and info["vacuous"] and info["status"] == "proved"
        (warning,) = info["warnings"]
        assert "no better than chance on rows that it has not seen: its ROCArea on the test rows (" in warning
        assert warning in said and info["training"]["rocarea"] > 0.6
        assert ("--lambda auto may" in warning) == (lam != "auto")
        assert ("none of" in said) == ("ranks held-out rows better than chance" in said) == (lam == "auto")
    assert "on rows that it has not seen" in (tmp_path / "m.html").read_text()


@pytest.mark.serial
def test_few_test_rows_do_not_tell_and_the_folds_do(tmp_path):
    few = noise(400, 0.1)
    code, info = run_train(few, tmp_path, "--lambda", "1e-3")
    (warning,) = info["warnings"]
    assert code == 0 and not info["vacuous"]
    assert f"too few positive rows ({info['test_rows']['n_pos']}) to tell" in warning
    code, info = run_train(noise(), tmp_path, "--split", "0.95,0.05")
    assert code == EXIT_VACUOUS and info["vacuous"] and "none of" in info["warnings"][0]


@pytest.mark.serial
def test_a_path_on_noise_ends_with_exit_code_8(tmp_path, capsys):
    noise().to_csv(tmp_path / "a.csv", index=False)
    for words in (
        ["shard", str(tmp_path / "a.csv"), str(tmp_path / "data"), "--label", "y"],
        [
            "path",
            str(tmp_path / "data"),
            "--solver",
            "lbfgs",
            "--lambdas",
            "1e-1:1e-3",
            "--output",
            str(tmp_path / "p"),
        ],
    ):
        args = cli.parse(words)
        code = args.run(args, Communicator())
    info = model.load(tmp_path / "p/model.h5").info
    (warning,) = info["warnings"]
    assert code == EXIT_VACUOUS and info["vacuous"] and "on rows that it has not seen: none of 3 lambdas" in warning
    assert warning in " ".join(capsys.readouterr().out.split())


def test_noise_warns_in_python_on_any_number_of_ranks(comm):
    frame, y = noise(), noise().y.to_numpy()
    mine = slice(*(len(frame) * rank // comm.size for rank in (comm.rank, comm.rank + 1)))
    with pytest.warns(ModelWarning, match="on rows that it has not seen") if comm.is_root else np.errstate():
        found = distsms.train(frame[mine], comm.mpi_comm, label="y", solver="lbfgs", split=(0.7, 0.3))
    assert found.info["vacuous"] and len(found.info["warnings"]) == 1
    X = frame.drop(columns="y").to_numpy()
    with pytest.warns(ModelWarning, match="none of") if comm.is_root else np.errstate():
        found = distsms.train((X[mine], y[mine]), comm.mpi_comm, lam="auto", solver="lbfgs")
    assert found.info["vacuous"] and found.info["exit_code"] == EXIT_VACUOUS


@pytest.mark.serial
@pytest.mark.parametrize(
    "words, said",
    [
        (["--max-evaluations", "1", "--plain"], "The run ended without a proof: allow it more evaluations or time"),
        (["--measure", "f1", "--solver", "bmrm", "--lambda", "100"], "Train with --bias"),
        (["--measure", "prbep", "--solver", "bmrm", "--lambda", "100"], "At every lambda above"),
        (["--lambda", "1e6"], "This lambda is too large"),
    ],
)
def test_a_model_with_equal_scores_has_learned_nothing(tmp_path, capsys, words, said):
    """Test rows with equal scores tell nothing of noise, and the interval of their ROCArea tells nothing at all."""
    rng = np.random.default_rng(2)
    frame = rows(2000).drop(columns="city").assign(x0=lambda old: old.x0 + rng.normal(size=len(old)))
    _, info = run_train(frame, tmp_path, *words)
    (warning,) = info["warnings"]
    assert info["vacuous"] and "all scores are equal" in warning and said in warning and "noise" not in warning
    assert info["test_rows"]["rocarea_low"] is None and "(95 %)" not in capsys.readouterr().out


def area(value, error, n_pos, n_neg=10**6):
    return AreaOnTest(Interval(value, error, value - 2 * error, value + 2 * error, "DeLong"), n_pos, n_neg)


@pytest.mark.serial
@pytest.mark.parametrize(
    ("own", "value", "n", "said"),
    [
        (0.9, 0.8, 1000, "by heart"),
        (0.991, 0.388, 4, "by heart"),
        (1.0, 0.886, 2, "too few positive rows (2)"),
        (0.9, 0.8, 10, ""),
        (0.9, 0.87, 10**6, ""),
        (0.8, 0.9, 1000, ""),
        (1.0, 1.0, 1000, "hardly ever"),
        (1.0, 1.0, 5, ""),
    ],
)
def test_only_clear_differences_are_told(own, value, n, said):
    test = area(value, np.sqrt(value * (1 - value) / n), n)
    found = describe_test({"rocarea": own}, test, {"n_pos": 3 * n, "n_neg": 10**6}, True)
    assert said in found and bool(found) == bool(said)


@pytest.mark.serial
@pytest.mark.parametrize(
    ("mean", "error", "automatic", "said"),
    [
        (0.81, 0.01, True, "has learned its training rows by heart"),
        (0.81, 0.01, False, "--lambda auto compares lambdas"),
        (0.88, 0.01, True, "has not learned its training rows by heart"),
        (0.80, 0.06, True, "has not learned its training rows by heart"),
    ],
)
def test_what_folds_contradict_is_not_said(mean, error, automatic, said):
    """One split in many is unlucky; held-out folds of the same rows then do not show a difference."""
    folds = OnFolds("prbep", mean, error)
    training, counts = {"rocarea": 0.95, "prbep": 0.9}, {"n_pos": 3000, "n_neg": 10**6}
    found = describe_test(training, area(0.85, 0.01, 1000), counts, True, folds, automatic)
    assert said in found and f"PRBEP is 0.900 on the training rows, and {mean:.3f} on them" in found
    assert ("--drop" in found) == ("has not" not in found) and ("larger lambda" in found) == (not automatic)


@pytest.mark.serial
@pytest.mark.parametrize(
    ("test", "mean", "error", "said"),
    [
        (area(0.55, 0.05, 40), 0.6, 0.01, "or the 0.600 of held-out folds"),
        (area(0.55, 0.05, 40), 0.6, 0.06, ""),  # the folds may be chance, too
        (area(0.51, 0.01, 900), 0.6, 0.01, ""),  # the test rows exclude what the folds show
        (area(0.62, 0.05, 40), 0.6, 0.01, ""),
    ],
)
def test_test_rows_that_fit_the_folds_as_well_are_not_called_chance(test, mean, error, said):
    found = describe_doubt(test, OnFolds("rocarea", mean, error))
    assert said in found and bool(found) == bool(said) and not describe_doubt(test, None)
    assert not describe_doubt(test, OnFolds("prbep", mean, error))


@pytest.mark.serial
@pytest.mark.parametrize(
    ("test", "chance", "unknown"),
    [
        (area(0.55, 0.03, 100), True, False),
        (area(0.57, 0.03, 100), False, False),
        (area(0.45, 0.01, 30, 29), False, True),
        (area(0.9, 0.1, 3), False, False),
        (area(0.6, np.nan, 1), False, True),
        (area(0.5, 0.0, 50), True, False),
    ],
)
def test_enough_test_rows_decide_and_few_do_not(test, chance, unknown):
    assert (bool(test.why_chance()), bool(test.why_unknown())) == (chance, unknown)
