"""Training on coded rows gives the same on any number of ranks as training on the explicit matrix."""

from __future__ import annotations

import numpy as np
import pytest

from distsms.matrix.code_maps import Categories, Strings
from distsms.matrix.coded import CodedRows, code_rows, to_csr
from distsms.optim.objective import Objective, Request
from distsms.optim.penalty import ElasticNet
from distsms.optim.result import Status
from distsms.optim.run import minimize
from distsms.optim.settings import Settings
from tests.matrix.test_coded import draw_codes
from tests.support.problems import asked, objective, share


@pytest.mark.parametrize("measure", ["rocarea", "prbep"])
@pytest.mark.parametrize(
    "given_map", [Categories((1, 255, 2, 7)), Strings("dna", 14, 3, ((1, 6, 4), (7, 14, 2)))], ids=str
)
def test_evaluations_are_those_of_the_explicit_matrix(given_map, measure, comm):
    """On any number of ranks, some of which hold few rows or none."""
    rng, n, y = np.random.default_rng(5), 90, np.where(np.random.default_rng(6).random(90) < 0.3, 1, -1)
    y = y.astype(np.int8)
    codes = draw_codes(given_map, n, rng)
    codes[y > 0, 1] = 1
    mine, X = share(comm, n), to_csr(given_map, codes)
    n_local = mine.stop - mine.start
    cuts = [0, n_local // 3, n_local]
    rows = CodedRows(given_map, code_rows(codes[mine], given_map, cuts), cuts)
    explicit = objective(X, y, comm, measure)
    coded = Objective(rows, explicit.losses, comm)
    requests = [Request(rng.normal(size=given_map.p), 0.3, ElasticNet(0.05)) for _ in range(3)]
    pairs = zip(asked(coded, requests) or [], asked(explicit, requests) or [], strict=True)
    for found, expected in pairs:
        assert found.J == pytest.approx(expected.J, rel=1e-12)
        np.testing.assert_allclose(found.gradient, expected.gradient, atol=1e-12)
    settings = Settings(lam=0.05, epsilon=1e-4, solver="lbfgs")
    ours, theirs = minimize(coded, settings), minimize(explicit, settings)
    assert ours.status is theirs.status is Status.PROVED
    assert ours.J == pytest.approx(theirs.J, abs=1e-4)
