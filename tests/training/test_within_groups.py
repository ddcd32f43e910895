"""Training within groups: what it gains, where the groups come from, and what is refused."""

from __future__ import annotations

import json

import numpy as np
import pytest

import distsms
from distsms import cli
from distsms.base.communicator import Communicator
from distsms.base.errors import InputError
from distsms.base.measures import Measure
from distsms.base.scored import Scored
from distsms.metrics.within_groups import gauc_estimate
from distsms.python.estimator import SMSClassifier
from distsms.workflow.verdict import area_on_test, why_chance


def visits(n=1500, n_users=150, seed=0):
    """Rows of users of different levels: column 2 tells the level, and is noise within the rows of one user."""
    rng = np.random.default_rng(seed)
    user = rng.integers(0, n_users, n)
    level = 3 * rng.normal(size=n_users)[user]
    X = rng.normal(size=(n, 5))
    X[:, 2] += level
    y = np.where(X[:, 0] + level + rng.normal(size=n) > 1, 1, -1)
    return X, y, user


def mean_within(model_scores, y, user):
    return gauc_estimate(
        "pairs", Scored(model_scores, y.astype(np.int8), Communicator(), groups=user.astype(np.uint64))
    ).value


def test_users_are_ranked_better_within_than_by_rocarea(comm):
    X, y, user = visits()
    mine = np.arange(len(y)) % comm.size == comm.rank
    how = {"lam": 1e-3, "solver": "lbfgs"}
    mpi = comm.mpi_comm if comm.size > 1 else None
    within = distsms.train((X[mine], y[mine]), mpi, group=user[mine], within_groups="pairs", **how)
    plain = distsms.train((X[mine], y[mine]), mpi, **how)
    assert within.info["status"] == "proved" and within.info["measure"] == "gauc@pairs" and not within.info["vacuous"]
    assert within.info["training"]["gauc@pairs"] == pytest.approx(mean_within(X @ within.w, y, user), rel=1e-9)
    new = visits(seed=1)
    assert mean_within(new[0] @ within.w, *new[1:]) > mean_within(new[0] @ plain.w, *new[1:]) + 0.05


@pytest.mark.serial
def test_the_command_line_from_shards_to_evaluation(tmp_path, capsys):
    X, y, user = visits()
    text = tmp_path / "v.svm"
    text.write_text(
        "".join(
            f"{label} qid:{group} " + " ".join(f"{j + 1}:{value:.6f}" for j, value in enumerate(row)) + "\n"
            for row, label, group in zip(X, y, user, strict=True)
        )
    )

    def run(*words):
        args = cli.parse([str(word) for word in words])
        code = args.run(args, Communicator())
        return code, capsys.readouterr().out

    assert run("shard", text, tmp_path / "d", "--group", "qid")[0] == 0
    how = "--lambda", "1e-3", "--solver", "lbfgs", "--output", tmp_path / "m.h5"
    code, out = run("train", tmp_path / "d", "--within-groups", "each", "--test", text, *how)
    assert code == 0 and "GAUC (each)" in out
    evaluated = json.loads(run("evaluate", tmp_path / "m.h5", tmp_path / "d", "--json")[1])
    trained = distsms.load_model(tmp_path / "m.h5").info
    assert evaluated["gauc@each"] == pytest.approx(trained["training"]["gauc@each"], rel=1e-9)
    assert trained["test"]["gauc@each"] == pytest.approx(trained["training"]["gauc@each"], abs=1e-6)
    interval = evaluated["intervals"]["gauc@each"]
    assert interval["low"] < evaluated["gauc@each"] < interval["high"]
    of_file = run("evaluate", tmp_path / "m.h5", text, "--group", "qid", "--within-groups", "pairs", "--json")[1]
    assert json.loads(of_file)["gauc@pairs"] == pytest.approx(mean_within(X @ trained_w(tmp_path), y, user), abs=1e-6)
    with pytest.raises(InputError, match="needs the groups of the rows"):
        run("evaluate", tmp_path / "m.h5", text, "--within-groups", "pairs")
    code, out = run(
        "path", tmp_path / "d", "--within-groups", "pairs", "--lambdas", "1e-2:1e-3", "--folds", "3",
        "--solver", "lbfgs", "--output", tmp_path / "p",
    )  # fmt: skip
    chosen = json.loads((tmp_path / "p" / "path.json").read_text())
    assert code == 0 and chosen["select"] == "gauc@pairs" and chosen["chosen"]["mean"] > 0.7
    assert chosen["interval"]["method"] == "groups, beta"


def trained_w(folder):
    return distsms.load_model(folder / "m.h5").w


@pytest.mark.serial
def test_lambda_is_chosen_on_whole_groups():
    X, y, user = visits()
    model = distsms.train((X, y), group=user, within_groups="each", lam="auto", solver="lbfgs")
    assert "GAUC (each)" in model.info["auto_lambda"]["reason"] and "by groups" in model.info["auto_lambda"]["reason"]


@pytest.mark.serial
def test_the_estimator_takes_groups():
    X, y, user = visits()
    names = np.array([f"user {k}" for k in user])
    found, other = (SMSClassifier("gauc@pairs", lam=1e-3).fit(X, y, groups=groups) for groups in (user, names))
    np.testing.assert_allclose(found.coef_, other.coef_, rtol=1e-6)
    with pytest.raises(ValueError, match="needs the group of each row"):
        SMSClassifier("gauc@pairs").fit(X, y)
    with pytest.raises(ValueError, match="groups are for the measures"):
        SMSClassifier().fit(X, y, groups=user)


@pytest.mark.serial
def test_gauc_decides_whether_a_model_is_useful():
    """A model may rank all rows no better than chance and still rank each group well, and the other way round."""
    X, y, user = visits()
    comm, labels, groups = Communicator(), y.astype(np.int8), user.astype(np.uint64)
    rng = np.random.default_rng(0)
    of_user = 1e3 * rng.permutation(150)[user]
    useful, useless = of_user + X[:, 0], of_user + rng.normal(size=len(y))
    for scores, is_useful in ((useful, True), (useless, False)):
        within = gauc_estimate("pairs", Scored(scores, labels, comm, groups=groups))
        assert bool(why_chance(Scored(scores, labels, comm), 0.5, within=within)) != is_useful
    area = area_on_test(Scored(useful, labels, comm, groups=groups), Measure.parse("gauc@pairs"))
    assert (
        area.name == "GAUC (pairs)"
        and area.enough
        and area.above_chance
        and {"gauc_low", "groups"} <= set(area.as_json())
    )


@pytest.mark.serial
def test_refusals():
    X, y, user = visits(100, 10)
    with pytest.raises(InputError, match="prbep cannot be optimized within groups"):
        distsms.train((X, y), measure="prbep", group=user, within_groups="pairs")
    with pytest.raises(InputError, match="pairs or each is wanted, and not 'all'"):
        distsms.train((X, y), group=user, within_groups="all")
    with pytest.raises(InputError, match=r"groups has shape .*give one for each row"):
        distsms.train((X, y), group=user[:5], within_groups="pairs")
    with pytest.raises(InputError, match="groups, row 1"):
        distsms.train((X, y), group=["a", ""] * 50, within_groups="pairs")
    with pytest.raises(InputError, match="no group has both"):
        distsms.train((X, y), group=np.arange(100), within_groups="pairs")
