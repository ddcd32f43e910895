"""lambda/2 ||w||^2 and its conjugate."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from distsms.base.errors import InputError
from distsms.optim.penalty import ElasticNet

pytestmark = pytest.mark.serial


@given(st.floats(1e-6, 1e3), st.integers(0, 1000))
def test_fenchel(lam, seed):
    """Omega(w) + Omega*(-r) >= -<r, w>, with equality at w = -r / lam."""
    omega, rng = ElasticNet(lam), np.random.default_rng(seed)
    r, w = rng.normal(size=3), rng.normal(size=3)
    assert omega.value(w @ w) + omega.conjugate(r @ r) >= -r @ w - 1e-12 * omega.conjugate(r @ r)
    w = -r / lam
    assert omega.value(w @ w) + omega.conjugate(r @ r) == pytest.approx(-r @ w)
    np.testing.assert_allclose(omega.gradient(w, r), 0, atol=1e-12)


@pytest.mark.parametrize("lam", [0.0, -1.0, np.nan, np.inf, 1.5e-323, 9e-291])
def test_lambda_must_be_positive(lam):
    with pytest.raises(InputError, match="lambda"):
        ElasticNet(lam)
