"""One certificate by the command line, `distsms.train` and `SMSClassifier`, and its check by all that check."""

from __future__ import annotations

import json
import warnings

import h5py
import numpy as np
import pandas as pd
import pytest

import distsms
from distsms import SMSClassifier
from distsms.base.errors import InputError, ModelWarning
from distsms.shards.from_arrays import write_data
from tests.workflow.faces import noted, run
from tests.workflow.test_faces import rows

pytestmark = pytest.mark.serial
OWN = {"measure": "prbep", "lam": 1e-2, "solver": "lbfgs", "epsilon": 1e-4}


def by_command(capsys, *words):
    """Return the exit code and what a command prints."""
    capsys.readouterr()
    return run(*words), capsys.readouterr().out


def coefficients(path):
    with h5py.File(path) as file:
        return file["c"][:]


def test_every_face_writes_and_checks_the_same(tmp_path, capsys):
    X, y, weights, _ = rows()
    write_data(tmp_path / "d", X, y, weights=weights)
    words = [
        "train",
        tmp_path / "d",
        "--measure",
        "prbep",
        "--lambda",
        "1e-2",
        "--solver",
        "lbfgs",
        "--epsilon",
        "1e-4",
    ]
    _, said = by_command(
        capsys, *words, "--no-check", "--output", tmp_path / "m.h5", "--certificate", tmp_path / "c.h5"
    )
    assert f"proof {tmp_path / 'c.h5'}, which proves the lower bound" in " ".join(said.split())
    model, _ = noted(lambda: distsms.train((X, y), weight=weights, check=False, certificate=tmp_path / "p.h5", **OWN))
    estimator = SMSClassifier(certificate=tmp_path / "e.h5", **OWN)
    noted(lambda: estimator.fit(X, y, sample_weight=weights))
    for name in ("p.h5", "e.h5"):
        np.testing.assert_allclose(coefficients(tmp_path / name), coefficients(tmp_path / "c.h5"), atol=1e-9)
    paths = [tmp_path / "m.h5", tmp_path / "d", "--certificate", tmp_path / "c.h5"]
    code, said = by_command(capsys, "verify", *paths)
    assert code == 0 and "derived from" in said and "gap " in said and "the checksums of model and shards" in said
    command = json.loads(by_command(capsys, "verify", *paths, "--json")[1])
    found, warned = noted(lambda: distsms.verify(tmp_path / "m.h5", tmp_path / "d", certificate=tmp_path / "c.h5"))
    assert not warned and json.loads(json.dumps(found.to_dict(), default=str)) == command
    of_arrays = distsms.verify(model, (X, y), certificate=tmp_path / "p.h5", weight=weights)
    of_estimator = distsms.verify(estimator.model_, (X, y), certificate=tmp_path / "e.h5", weight=weights)
    for other in (of_arrays, of_estimator):
        assert not other.problems and other.J == pytest.approx(found.J, abs=1e-9)
        assert other.lower_bound == pytest.approx(found.lower_bound, abs=1e-7)
    assert found.gap <= 1e-4 + 1e-6 and found.J == pytest.approx(model.info["J"], abs=1e-9)


def test_without_a_certificate_it_says_what_can_be_checked(tmp_path, capsys):
    X, y, *_ = rows()
    write_data(tmp_path / "d", X, y)
    write_data(tmp_path / "other", X * [1.5, 1, 1, 1, 1], y)
    model, _ = noted(lambda: distsms.train(tmp_path / "d", check=False, **OWN))
    distsms.save_model(tmp_path / "m.h5", model)
    code, said = by_command(capsys, "verify", tmp_path / "m.h5", tmp_path / "d")
    assert code == 0 and "cannot be checked without a certificate" in " ".join(said.split())
    assert "lower bound " not in said.split("note")[0] and "PRBEP" in said
    code, said = by_command(capsys, "verify", tmp_path / "m.h5", tmp_path / "other")
    assert code == 1 and "it was trained on others" in " ".join(said.split())
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        assert (
            len(distsms.verify(model, (X * [1.5, 1, 1, 1, 1], y)).problems) == 3
        )  # of J and of both measures of the ranking
    assert {one.category for one in caught} == {ModelWarning} and len(caught) == 3
    with (tmp_path / "d" / "shard-00000.h5").open("r+b") as shard:  # where no row is read
        shard.seek(-200, 2)
        shard.write(b"\1")
    code, said = by_command(capsys, "verify", tmp_path / "m.h5", tmp_path / "d")
    assert code == 1 and "SHA-256 differs" in " ".join(said.split())
    with pytest.raises(InputError, match="no option 'threshold'"):
        distsms.verify(model, (X, y), threshold=1)


def test_codes_feature_maps_tables_and_strings(tmp_path):
    X, y, *_ = rows()
    write_data(tmp_path / "d", X, y)
    distsms.make_features(tmp_path / "d", tmp_path / "f", bins=8, crosses="all")
    own = {"check": False, "certificate": tmp_path / "c.h5", "output": None, **OWN}
    own.pop("output")
    model, _ = noted(lambda: distsms.train(tmp_path / "f", **own))
    for data in (tmp_path / "f", tmp_path / "d", (X, y)):  # the codes, and the rows of which the model makes them
        found = distsms.verify(model, data, certificate=tmp_path / "c.h5")
        assert not found.problems and found.gap <= 1e-4 + 1e-6
    frame = pd.DataFrame(X, columns=list("abcde")).assign(shop=np.where(X[:, 1] > 0, "x", "y"), label=y)
    frame.to_csv(tmp_path / "t.csv", index=False)
    model, _ = noted(lambda: distsms.train(tmp_path / "t.csv", label="label", **own))
    for data in (tmp_path / "t.csv", frame):
        found = distsms.verify(model, data, certificate=tmp_path / "c.h5")
        assert not found.problems and found.gap <= 1e-4 + 1e-6


def test_the_report_says_what_was_proved(tmp_path):
    pytest.importorskip("matplotlib")
    X, y, *_ = rows()
    for certificate, said in (
        (tmp_path / "c.h5", f"From the certificate {tmp_path / 'c.h5'}"),
        (None, "--certificate FILE writes one"),
    ):
        model, _ = noted(
            lambda certificate=certificate: distsms.train((X, y), check=False, certificate=certificate, **OWN)
        )
        noted(lambda model=model: distsms.report(model, (X, y), tmp_path / "r.html", bootstrap=10))
        page = (tmp_path / "r.html").read_text()
        assert "What was proved" in page and said in page and f"{model.info['gap']:.3g} above it" in page


@pytest.mark.parametrize("bias", [0.0, 10.0])
def test_the_model_of_a_path_says_its_constant_feature(tmp_path, bias):
    X, y, *_ = rows()
    write_data(tmp_path / "d", X, y)
    path = {"lambdas": [1e-2], "folds": 2, "measure": "logistic", "solver": "lbfgs"}
    made, _ = noted(lambda: distsms.path(tmp_path / "d", output=tmp_path / "p", bias=bias, **path))
    for model in (made.model, *(tmp_path / "p" / "models").glob("*_all.h5")):
        assert distsms.verify(model, tmp_path / "d").problems == []


@pytest.mark.parametrize("features", [{"bins": 4}, {"bins": 4, "keep": True}, "leaves"])
def test_the_model_of_an_estimator_makes_its_features(tmp_path, features):
    X, y, *_ = rows()
    estimator = SMSClassifier(certificate=tmp_path / "c.h5", features=features, **OWN)
    noted(lambda: estimator.fit(X, y))
    distsms.save_model(tmp_path / "m.h5", estimator.model_)
    found = distsms.verify(tmp_path / "m.h5", (X, y), certificate=tmp_path / "c.h5")
    assert not found.problems and found.gap <= 1e-4 + 1e-6
    scores = estimator.decision_function(X) + estimator.threshold_
    np.testing.assert_allclose(distsms.predict(estimator.model_, X), scores, atol=1e-12)
    noted(lambda: estimator.set_params(certificate=None).fit(X, y))
    assert not hasattr(estimator, "model_")
