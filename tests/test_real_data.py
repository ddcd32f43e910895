"""Real data, where they are at hand: proved gaps, known minima, the same figures on any number of ranks."""

from __future__ import annotations

import numpy as np
import pytest

from distsms.base.communicator import Communicator
from distsms.losses.registry import make_loss
from distsms.matrix.local import SparseRows
from distsms.optim.objective import Objective, Request
from distsms.optim.penalty import ElasticNet
from distsms.optim.result import Status
from distsms.optim.run import minimize
from distsms.optim.settings import Settings
from tests.support.files import parse
from tests.support.problems import asked, share

# adult9: min J proved to within 3e-6 by an independent program
LEAST = {
    ("rocarea", 1e-2): 0.261953,
    ("rocarea", 1e-4): 0.231457,
    ("rocarea", 1e-6): 0.230401,
    ("prbep", 1e-2): 0.766263,
    ("prbep", 1e-4): 0.729486,
    ("prbep", 1e-6): 0.728402,
}


def read(text):
    rows = parse(text)
    return rows, np.where(rows.labels > 0, 1, -1).astype(np.int8)


@pytest.fixture(scope="module")
def adult9(real_data):
    return read(real_data("adult9.train"))


def of(data, comm, measure):
    rows, y = data
    part = share(comm, len(y))
    first, last = rows.indptr[part.start], rows.indptr[part.stop]
    lengths = np.diff(rows.indptr[part.start : part.stop + 1])
    features = SparseRows(rows.data[first:last], rows.indices[first:last], lengths, rows.n_columns)
    return Objective(features, [make_loss(measure, "gather", y[part], None, comm)], comm)


@pytest.mark.parametrize("measure, lam", LEAST)
def test_known_minima(adult9, comm, measure, lam):
    result = minimize(of(adult9, comm, measure), Settings(lam=lam))
    assert result.status is Status.PROVED
    assert result.gap <= 1e-3
    assert result.lower_bound <= LEAST[measure, lam] + 1e-6
    assert LEAST[measure, lam] - 4e-6 <= result.J <= LEAST[measure, lam] + 1e-3


@pytest.mark.parametrize("measure", ["rocarea", "prbep"])
@pytest.mark.parametrize("name", ["adult9", "web8"])
def test_one_w_on_any_ranks(real_data, comm, name, measure):
    data = read(real_data(f"{name}.train"))
    w = np.random.default_rng(0).normal(size=data[0].n_columns) * 0.5
    request = [Request(w, 0.02, ElasticNet(1e-4))]
    found = asked(of(data, comm, measure), request)
    if comm.is_root:
        expected = asked(of(data, Communicator(), measure), request)[0]
        for quantity in ("J", "J_mu", "gradient", "r", "R", "R_mu", "d"):
            one, other = np.array(getattr(found[0], quantity)), np.array(getattr(expected, quantity))
            assert np.abs(one - other).max() <= 1e-11 * np.abs(other).max(), quantity
