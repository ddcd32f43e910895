"""What coefficients prove: never more than the risk allows, all that evaluations have proved, and the largest theta."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from scipy.optimize import linprog

from distsms.base.communicator import Communicator
from distsms.base.errors import InputError
from distsms.losses.dual_bound import dual_bound, share_of_pairs
from distsms.losses.registry import make_loss
from tests.support.problems import share

MEASURES = ["rocarea", "pauc@0.3", "prbep", "error-rate", "logistic", "logistic-balanced", "normal-auc"]
MEASURES += ["gauc@pairs", "gauc@each", "f1", "f2", "precision@5", "recall@5", "precision@9", "recall@14"]
SMOOTH = {
    name for name in MEASURES if name[0] in "rgpe" and "@5" not in name and "@9" not in name and "@14" not in name
}


def rows(seed, n=24, weighted=False):
    """Return labels (9 positive), weights or None, and groups, the first of which has both classes."""
    rng = np.random.default_rng(seed)
    y = rng.permutation(np.repeat([1, -1], [9, n - 9])).astype(np.int8)
    y[:2] = np.where(y[:2].sum() == 0, y[:2], [1, -1])
    y[2:] = rng.permutation(np.repeat([1, -1], [9 - np.sum(y[:2] > 0), n - 9 - np.sum(y[:2] < 0)]))
    groups = rng.integers(0, 3, n).astype(np.uint64)
    groups[:2] = 0
    return y, rng.integers(0, 4, n) + (np.arange(n) < 2) * 1.0 if weighted else None, groups


def loss_of(measure, y, a, groups, comm=None):
    ordering = "exchange" if measure[:4] in ("roca", "pauc", "prbe", "gauc") else "gather"
    part = slice(None) if comm is None else share(comm, len(y))
    return make_loss(measure, ordering, y[part], None if a is None else a[part], comm or Communicator(), groups[part])


def mixture(measure, loss, y, seed):
    """Return coefficients of a mixture of evaluations, what the measure needs besides, and the constant it proves."""
    rng = np.random.default_rng(seed)
    c, alpha, d, labelings = np.zeros(len(y)), np.zeros(len(y)), 0.0, []
    for part in rng.dirichlet(np.ones(5))[:4]:  # the rest is the zero plane
        scores, nu = rng.normal(size=len(y)).round(1), rng.choice([0.0, 0.3]) if measure in SMOOTH else 0.0
        value = loss.evaluate(scores, nu)
        part *= min(1.0, loss.planes_up_to / max(value.R, 1e-9))
        c, d = c + part * value.coefficients, d + part * value.d
        if measure[:4] == "pauc":
            alpha += part * loss.alphas(scores, nu)
        labelings.append((part, np.sum(value.coefficients < 0), np.sum(value.coefficients > 0)))
    return c, (alpha, np.array(labelings)), d


def require_below(loss, proved, rng):
    """Look for scores at which the plane would be above the risk: by subgradients of the difference, from 8 places."""
    for start in range(8):
        s, best = rng.normal(size=len(proved.c)) * 10.0 ** rng.integers(-2, 2), -np.inf
        for step in range(40):
            value = loss.evaluate(s, 0.0)
            best = max(best, proved.c @ s + proved.d - value.R)
            s = s + (10.0 / (1 + step)) * (proved.c - value.coefficients) * len(s) * (1 + start % 4)
        assert best <= 1e-9 * (1 + abs(proved.d))


@pytest.mark.parametrize("weighted", [False, True])
@pytest.mark.parametrize("measure", MEASURES)
def test_a_mixture_of_evaluations_proves_its_constant(measure, weighted):
    if weighted and ("@5" in measure or measure[0] == "f" or "@9" in measure or "@14" in measure):
        pytest.skip("counts rows")
    for seed in range(3):
        y, a, groups = rows(seed, weighted=weighted)
        loss = loss_of(measure, y, a, groups)
        c, further, d = mixture(measure, loss, y, seed)
        proved = dual_bound(loss, c, *further)
        assert proved.d >= d - 1e-9
        np.testing.assert_allclose(proved.c, c, atol=1e-9)
        require_below(loss, proved, np.random.default_rng(seed))


@pytest.mark.parametrize("measure", MEASURES)
def test_no_coefficients_prove_too_much(measure):
    """Whatever they are: those of evaluations changed a little or much, and none that any evaluation has."""
    for seed in range(15):
        rng = np.random.default_rng(seed)
        y, a, groups = rows(seed, weighted=seed % 2 == 1 and measure in SMOOTH)
        loss = loss_of(measure, y, a, groups)
        c, (alpha, table), _ = mixture(measure, loss, y, seed)
        kind = seed % 5
        c = [
            c * rng.uniform(0.5, 2),
            c * rng.uniform(0, 2, len(c)),
            rng.permutation(np.abs(c)),
            c * 0 + 1 / 24,
            c * 1e9,
        ][kind]
        sign = np.where(loss.positive, -1.0, 1.0) * (loss.positive | loss.negative)
        c = sign * np.abs(c) if kind >= 2 else c
        if kind:
            table, alpha = table * rng.uniform(0.5, 2, (4, 3)), rng.uniform(0, 2, len(c))
        require_below(loss, dual_bound(loss, c, alpha, table), rng)


def test_signs_that_contradict_the_labels_are_refused():
    y, a, groups = rows(0)
    loss = loss_of("rocarea", y, a, groups)
    c, further, _ = mixture("rocarea", loss, y, 0)
    for wrong in (-c, np.where(y > 0, np.nan, c), np.where(np.arange(len(y)) == np.argmin(c), 1e-3, c)):
        with pytest.raises(InputError, match="contradict the labels"):
            dual_bound(loss, wrong, *further)


def test_coefficients_of_normal_auc_are_finite_and_count_with_their_size():
    y, a, groups = rows(0)
    loss = loss_of("normal-auc", y, a, groups)
    c, *_ = mixture("normal-auc", loss, y, 0)
    size = 1e3 * np.sum(np.abs(c))  # errors of rounding are in proportion to it
    assert dual_bound(loss, 1e3 * c).size == pytest.approx(size) and size > 2.0
    with pytest.raises(InputError, match="not finite"):
        dual_bound(loss, np.where(y > 0, np.nan, c))


@pytest.mark.parametrize("measure", MEASURES)
def test_any_number_of_ranks_proves_the_same(measure, comm):
    y, a, groups = rows(3, n=60, weighted=measure in SMOOTH)
    alone, whole = loss_of(measure, y, a, groups), loss_of(measure, y, a, groups, comm)
    c, further, _ = mixture(measure, alone, y, 3)
    c = c * np.random.default_rng(5).uniform(0.9, 1.1, len(c))
    expected, part = dual_bound(alone, c, *further), share(comm, len(y))
    found = dual_bound(whole, c[part], further[0][part], further[1])
    assert found.d == pytest.approx(expected.d, abs=1e-9)
    np.testing.assert_allclose(found.c, expected.c[part], atol=1e-9)


@given(st.integers(1, 5), st.integers(1, 6), st.floats(0.3, 1.0), st.integers(0, 10**6))
def test_theta_is_the_largest(k, m, total, seed):
    """As a linear program finds it: theta u and theta v are the sums of a matrix with entries up to caps_i caps_j."""
    rng = np.random.default_rng(seed)
    caps, caps_v = rng.random(k) + 0.05, rng.random(m) + 0.05
    caps, caps_v = caps / caps.sum(), total * caps_v / caps_v.sum()
    u, v = caps * rng.random(k), caps_v * rng.random(m)
    u, v = u / u.sum() * min(u.sum(), v.sum()), v / v.sum() * min(u.sum(), v.sum())
    rows_of, columns_of = np.kron(np.eye(k), np.ones(m)), np.kron(np.ones(k), np.eye(m))
    equal = np.vstack([np.c_[-u, rows_of], np.c_[-v, columns_of]])
    bounds = [(0, 1), *((0, cap) for cap in np.outer(caps, caps_v).ravel())]
    program = linprog(np.r_[-1.0, np.zeros(k * m)], A_eq=equal, b_eq=np.zeros(k + m), bounds=bounds)
    assert share_of_pairs(u, caps, v, caps_v, fine=True) == pytest.approx(-program.fun, abs=2e-6)
