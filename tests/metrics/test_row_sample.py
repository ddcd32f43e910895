"""Training rows are found again by their scores, on any number of ranks, and other rows are not."""

from __future__ import annotations

import numpy as np
import pytest

from distsms.base.scored import Scored
from distsms.metrics import row_sample
from distsms.metrics.row_sample import describe_share, sample_rows, share_of_training_rows
from tests.support.problems import local_part


def drawn(n, seed, decimals=15):
    rng = np.random.default_rng(seed)
    return rng.normal(size=n).round(decimals), np.where(rng.random(n) < 0.2, 1, -1).astype(np.int8)


@pytest.mark.parametrize("copies", [1.0, 0.3, 0.05, 0.0])
@pytest.mark.parametrize("n", [50, 3000, 60_000])
def test_the_share_of_copies_is_found_on_any_ranks(comm, n, copies):
    """In another order, with scores that differ by rounding, also if the sample has only a part of the rows."""
    (scores, labels), (others, of_others) = drawn(n, 0), drawn(n, 1)
    sample = sample_rows(Scored(local_part(scores, comm), local_part(labels, comm), comm))
    assert sample["repeated"] == 0 and sample["share"] == min(1, row_sample.SIZE / n)
    taken = np.random.default_rng(2).permutation(n)[: int(copies * n)]
    mixed = np.concatenate([scores[taken] * (1 + 1e-14), others[len(taken) :]])
    of_mixed = np.concatenate([labels[taken], of_others[len(taken) :]])
    share = share_of_training_rows(sample, Scored(local_part(mixed, comm), local_part(of_mixed, comm), comm))
    assert share == pytest.approx(len(taken) / n, abs=0.03)
    assert bool(describe_share(share)) == bool(copies) and ("All of" in describe_share(share)) == (copies == 1)
    swapped = share_of_training_rows(sample, Scored(local_part(scores, comm), local_part(-labels, comm), comm))
    assert swapped == 0  # a training row has its label, too


@pytest.mark.serial
def test_rows_of_few_kinds_are_no_training_rows_by_chance(comm):
    """Scores of one decimal: nearly every new row is like a training row."""
    (scores, labels), other = drawn(500, 0, 1), drawn(500, 1, 1)
    sample = sample_rows(Scored(scores, labels, comm))
    assert sample["repeated"] > 0.9 and share_of_training_rows(sample, Scored(*other, comm)) == 0
    (scores, labels), other = drawn(2000, 0, 3), drawn(2000, 1, 3)
    sample = sample_rows(Scored(scores, labels, comm))
    assert 0.2 < sample["repeated"] < 0.6 and share_of_training_rows(sample, Scored(*other, comm)) == 0
    assert share_of_training_rows(sample, Scored(scores, labels, comm)) == 1
    half = (np.concatenate([mine[:1000], theirs[:1000]]) for mine, theirs in zip((scores, labels), other, strict=True))
    assert share_of_training_rows(sample, Scored(*half, comm)) == pytest.approx(0.5, abs=0.1)


@pytest.mark.serial
def test_equal_scores_and_no_rows_tell_nothing(comm):
    scores, labels = drawn(30, 0)
    assert (
        sample_rows(Scored(np.zeros(30), labels, comm)) is None
        and share_of_training_rows(None, Scored(scores, labels, comm)) == 0
    )
    for values in range(2, 6):  # few scores of many rows, of which none may be in the sample
        few = np.random.default_rng(values).integers(0, values, 10**5).astype(float)
        sample = sample_rows(Scored(few, np.ones(10**5), comm))
        assert sample is None or 0 <= sample["repeated"] <= 1
        assert share_of_training_rows(sample, Scored(few, np.ones(10**5), comm)) in (0, 1)
    sample = sample_rows(Scored(scores, labels, comm))
    assert share_of_training_rows(sample, Scored(scores[:0], labels[:0], comm)) == 0
    coarse = sample_rows(Scored(scores, labels, comm), "float32")
    assert share_of_training_rows(coarse, Scored(scores.astype(np.float32).astype(float), labels, comm)) > 0.9
