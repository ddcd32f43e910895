"""What experiments compute from fits: how lambda is chosen, how rows are divided, and differences over splits."""

from __future__ import annotations

import numpy as np
import pytest
from scipy import sparse

from distsms.base.communicator import Communicator
from distsms.base.measures import Measure
from distsms.base.scored import Scored
from distsms.metrics import differences
from distsms.metrics.differences import JudgedRows
from scripts.experiments.feature_fits import MOST_LAMBDAS, climb
from scripts.experiments.feature_sets import SetRows, quarters
from scripts.experiments.features import difference

pytestmark = pytest.mark.serial


@pytest.mark.parametrize("best", [1e-5, 1e-3, 1e-2])
def test_lambda_goes_on_until_the_best_one_is_no_end(best):
    tried = []

    def judged(lam):
        tried.append(lam)
        return -abs(np.log10(lam / best))

    assert climb(judged, 1e-3) == pytest.approx(best)
    assert min(tried) < 0.5 * best and max(tried) > 2 * best
    assert climb(lambda lam: lam, 1.0) == pytest.approx(10 ** (0.5 * (MOST_LAMBDAS - 2)))  # it ends


def test_quarters_are_disjoint_and_whole():
    y = np.where(np.arange(101) % 3, -1, 1).astype(np.int8)
    rows = SetRows(sparse.csr_matrix(np.arange(1.0, 102)[:, None]), y)
    parts = list(quarters(rows, 4))
    tested = np.concatenate([test.X.toarray().ravel() for _, test in parts])
    assert sorted(tested) == list(range(1, 102))
    assert all(set(train.X.data).isdisjoint(test.X.data) and len(train.labels) > 70 for train, test in parts)


@pytest.mark.parametrize("measure", ["rocarea", "prbep"])
def test_the_difference_over_splits(measure):
    rng = np.random.default_rng(0)
    y = np.where(rng.random(300) < 0.3, 1, -1).astype(np.int8)
    ours, others = ([y + rng.normal(size=300) * spread for _ in range(3)] for spread in (1.0, 2.0))
    both = tuple(Scored(of_model[0], y, Communicator()) for of_model in (ours, others))
    judged = JudgedRows(both, np.arange(300), (0.0, 0.0))
    alone = differences.difference(Measure.parse(measure), judged)
    assert difference(measure, [y], ours[:1], others[:1]) == alone
    each = [difference(measure, [y], [a], [b]) for a, b in zip(ours, others, strict=True)]
    found = difference(measure, [y] * 3, ours, others)
    assert found.value == pytest.approx(np.mean([own.value for own in each]))
    expected = np.sqrt(np.sum([own.standard_error**2 for own in each])) / 3
    assert found.standard_error == pytest.approx(expected, rel=0.15)
