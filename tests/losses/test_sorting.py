"""Sorting scores with their rows, compared with NumPy's stable sort."""

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from distsms.losses import pairwise
from distsms.losses.rocarea import RocAreaExchange

SPECIAL = [0.0, -0.0, 5e-324, -5e-324, 1.0, -1.0, 1.7e308, -1.7e308, np.inf, -np.inf]


@pytest.mark.parametrize("by_digits", [True, False])
@given(st.lists(st.floats(allow_nan=False) | st.sampled_from(SPECIAL), max_size=300))
def test_the_order_is_that_of_a_stable_sort(by_digits, numbers):
    values, rows = np.array(numbers), np.arange(len(numbers))[::-1] * 3
    order = np.argsort(values, kind="stable")
    wanted = values[order], rows[order]
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(pairwise, "LEAST", 0)
        patch.setattr(pairwise, "FALLS", -1.0 if by_digits else 2.0)
        found = pairwise.sort_with_rows(values, rows)
    np.testing.assert_array_equal(values, wanted[0])
    np.testing.assert_array_equal(found, wanted[1])


def test_both_ways_are_taken(monkeypatch):
    """Numbers in any order are sorted by their digits, those that are nearly sorted are not."""
    taken, real = [], pairwise.radix_sort
    monkeypatch.setattr(pairwise, "radix_sort", lambda bits, rows: taken.append(len(bits)) or real(bits, rows))
    rng, rows = np.random.default_rng(0), np.arange(pairwise.LEAST)
    for values in (rng.normal(size=len(rows)), np.sort(rng.normal(size=len(rows))), rng.normal(size=100)):
        wanted = np.argsort(values, kind="stable")[: len(values)]
        np.testing.assert_array_equal(pairwise.sort_with_rows(values, rows[: len(values)]), wanted)
        assert (np.diff(values) >= 0).all()
    assert taken == [pairwise.LEAST]


def test_risks_are_the_same_in_both_ways(comm, monkeypatch):
    rng, found = np.random.default_rng(comm.rank), []
    labels = np.where(rng.random(60) < 0.4, 1, -1).astype(np.int8)
    evaluations = [rng.integers(-9, 9, 60) / 4 for _ in range(3)]  # with ties and zeros of both signs
    evaluations[1] *= -1.0
    for falls in (-1.0, 2.0):
        monkeypatch.setattr(pairwise, "LEAST", 0)
        monkeypatch.setattr(pairwise, "FALLS", falls)
        loss = RocAreaExchange(labels, None, comm)
        found.append([loss.evaluate(scores, 0.5) for scores in evaluations])
    for one, other in zip(*found, strict=True):
        assert one[:3] == other[:3]
        np.testing.assert_array_equal(one.coefficients, other.coefficients)


@pytest.mark.parametrize("sign", [1.0, -1.0])
def test_digits_sort_numbers_of_one_sign(sign):
    """Without moving many of them afterwards, for which there would be no time."""
    values = sign * np.random.default_rng(0).lognormal(0, 9, 2 * pairwise.LEAST)
    ordered, rows = pairwise.radix_sort(values.copy(), np.arange(len(values)))
    np.testing.assert_array_equal(rows, np.argsort(values, kind="stable"))
    np.testing.assert_array_equal(ordered, np.sort(values))


@pytest.mark.parametrize("spread", [1e-12, 1e-300])
def test_numbers_that_are_too_close_together_for_float32(spread):
    """Nearly all are equal as float32, and so NumPy sorts them after all."""
    values = np.random.default_rng(0).normal(size=2 * pairwise.LEAST) * spread + (1.0 if spread > 1e-100 else 0.0)
    rows, wanted = np.arange(len(values)), np.argsort(values, kind="stable")
    assert pairwise.radix_sort(values.copy(), rows) is None
    np.testing.assert_array_equal(pairwise.sort_with_rows(values, rows), wanted)
    assert (np.diff(values) >= 0).all()
