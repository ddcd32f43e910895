"""The table of the smaller class: sums by definition, in more precise numbers, and loops inside their arrays."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from distsms.base.communicator import Communicator
from distsms.losses import pairwise_kernels as kernel
from distsms.losses.pairwise import SortedClass
from tests.support.examples import examples

scores = st.lists(st.one_of(st.integers(-4, 4).map(float), st.floats(-4, 4, width=32)), min_size=1, max_size=12)
weights = st.one_of(st.none(), st.integers(0, 99))


def sorted_class(m, weighted=False):
    """Return a class with room for m values."""
    return SortedClass(np.zeros(m, np.intp), np.ones(1) if weighted else None, Communicator())


def by_definition(q, b, nu, of_q, of_b):
    """Return gamma of the points and of the different q, and the three sums, in extended precision."""
    t = b.astype(np.longdouble)[:, None] - q.astype(np.longdouble)
    beta = np.where(t > 0, 1.0, 0.0).astype(np.longdouble) if nu == 0 else np.clip(t / nu, 0, 1)
    hinge = np.maximum(t, 0)
    huber = hinge if nu == 0 else np.where(t >= nu, t - np.longdouble(nu) / 2, hinge**2 / (2 * np.longdouble(nu)))
    a = of_b[:, None] * of_q
    gamma_q = (of_b[:, None] * beta).sum(axis=0)[np.unique(q, return_index=True)[1]]
    return of_b * (beta * of_q).sum(axis=1), gamma_q, np.array([(a * f).sum() for f in (hinge, huber, beta)])


@pytest.mark.serial
@examples(5)
@given(
    scores, scores, st.sampled_from([0.0, 1e-9, 0.3, 1.0, 50.0]), st.sampled_from([1.0, 1e-200, 1e9, 1e150]), weights
)
def test_sums_are_those_by_definition(q, b, nu, unit, seed):
    """Also where scores are large or small beside the width; no digits are lost."""
    q, b, rng = np.sort(q) * unit, np.array(b) * unit, np.random.default_rng(seed)
    of_q, of_b = (None, None) if seed is None else (rng.random(len(q)) + 1e-3, rng.random(len(b)) + 1e-3)
    for width in {nu, nu * unit}:
        table, out, rows = sorted_class(len(q), seed is not None), np.empty(len(b)), np.arange(len(b), dtype=np.uint32)
        table.tabulate(q, width, of_q)
        table.add_points(b, rows, 1.0, 0.0, 1.0, out, of_b)
        ones = np.ones(len(q)), np.ones(len(b))
        of_point, of_value, sums = by_definition(q, b, width, *(ones if seed is None else (of_q, of_b)))
        np.testing.assert_allclose(out, of_point.astype(float), rtol=1e-13)
        np.testing.assert_allclose(table.gamma(), of_value.astype(float), rtol=1e-9, atol=1e-13)
        np.testing.assert_allclose(table.sums, sums.astype(float), rtol=1e-13)


@pytest.mark.serial
@pytest.mark.parametrize("q, step, nu", [(1e16, 8, 0.1), (1e14, 4, 0.06), (1e13, 4, 1e-3), (1e12, 4, 0.06)])
def test_widths_near_the_spacing_of_the_values(q, step, nu):
    """Where q + nu is rounded, the Huber hinge of a point above it is t - nu/2 all the same."""
    table = sorted_class(2)
    table.tabulate(np.array([q, q + 100]), nu)
    table.add_points(np.array([q + step]), np.zeros(1, np.uint32), 1.0, 0.0, 1.0, np.empty(1), None)
    hinge, huber, beta = table.sums
    np.testing.assert_allclose([hinge, hinge - huber, beta], [step, nu / 2, 1.0], rtol=1e-12)


@pytest.mark.serial
@pytest.mark.parametrize("weight", [None, 0.7])
def test_values_that_are_hardly_less_than_the_width_apart(weight):
    """Their difference is rounded to the width. The point is in the windows of both."""
    q, b = np.array([-1.0, -2.5e-33]), np.array([0.0])
    of_q, of_b = (None, None) if weight is None else (np.array([1.0, 0.5]), np.array([weight]))
    table, out = sorted_class(2, weight is not None), np.empty(1)
    table.tabulate(q, 1.0, of_q)
    table.add_points(b, np.zeros(1, np.uint32), 1.0, 0.0, 1.0, out, of_b)
    np.testing.assert_allclose(table.gamma(), (weight or 1.0) * np.array([1.0, 2.5e-33]), rtol=1e-12)
    np.testing.assert_allclose(table.sums[2], 1.0 if weight is None else weight, rtol=1e-12)


@pytest.mark.serial
def test_many_values_lose_no_digits():
    """Two thousand windows of many values each: rounding errors do not grow from one to the next."""
    rng = np.random.default_rng(0)
    q, b = np.sort(rng.normal(size=50_000)), rng.normal(size=40)
    table, out = sorted_class(len(q)), np.empty(len(b))
    table.tabulate(q, 0.004)
    table.add_points(b, np.arange(len(b), dtype=np.uint32), 1.0, 0.0, 1.0, out, None)
    of_point, of_value, sums = by_definition(q, b, 0.004, np.ones(len(q)), np.ones(len(b)))
    np.testing.assert_allclose(out, of_point.astype(float), rtol=5e-15)
    np.testing.assert_allclose(table.gamma(), of_value.astype(float), rtol=1e-12, atol=1e-13)
    np.testing.assert_allclose(table.sums, sums.astype(float), rtol=1e-12)


@pytest.mark.serial
@given(scores, scores, st.sampled_from([1e-300, 1.0, 1e300, 1.7e308]), st.sampled_from([0.0, 1.0, 1e308]))
def test_no_number_is_looked_up_outside_the_table(q, b, unit, nu):
    """As plain Python, which looks at every index, also where differences of scores overflow."""
    q, b = np.sort(np.clip(q, -1, 1)) * unit, np.clip(b, -1, 1) * unit
    table, rows, out = kernel.Table.allocate(len(q)), np.arange(len(b), dtype=np.uint32), np.empty(len(b))
    with np.errstate(over="ignore", invalid="ignore", under="ignore"), pytest.MonkeyPatch.context() as patch:
        patch.setattr(kernel, "_pair", kernel._pair.py_func)
        patch.setattr(kernel, "_sum_by_values", kernel._sum_by_values.py_func)
        d, m = kernel.tabulate.py_func(q, None, nu, table)
        assert d == len(np.unique(q))
        buffers = kernel.Buffers.allocate(rows, False)
        kernel.add_points.py_func(b, rows, None, 1.0, 0.0, nu, m, table, 1.0, out, buffers)
        kernel.walk.py_func(nu, d, table)


@pytest.mark.serial
@pytest.mark.parametrize("extra", [0, 1, 7])
@pytest.mark.parametrize("weighted", [False, True])
def test_points_in_chunks_stay_inside_their_arrays(extra, weighted, monkeypatch):
    """As plain Python, which looks at every index, the loop over points gives what the compiled one does."""
    rng, n = np.random.default_rng(extra), kernel.CHUNK + extra
    q, points = np.sort(np.round(rng.normal(size=30), 1)), rng.normal(size=n) + 10  # all of them above all q
    of_q, of_points = (rng.random(30), rng.random(n)) if weighted else (None, None)
    results = []
    compiled = kernel.add_points, kernel._pair
    for add_points, pair in (compiled, [function.py_func for function in compiled]):
        monkeypatch.setattr(kernel, "_pair", pair)
        table, out = kernel.Table.allocate(len(q)), np.empty(n)
        _, m = kernel.tabulate(q, of_q, 9.0, table)
        rows = np.arange(n, dtype=np.uint32)
        sums = add_points(
            points, rows, of_points, 1.0, 0.0, 9.0, m, table, 1.0, out, kernel.Buffers.allocate(rows, weighted)
        )
        results.append(np.concatenate([sums, out]))
    np.testing.assert_allclose(*results, rtol=1e-12)
