"""Measures of the head of a ranking equal scikit-learn's and brute force, with ties and weights, on any ranks."""

from __future__ import annotations

import math
from decimal import Decimal, localcontext
from itertools import permutations

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from distsms.base.communicator import Communicator
from distsms.base.errors import InputError
from distsms.base.measures import Condition, HeadMeasure
from distsms.base.scored import Scored
from distsms.metrics import operating_points as points
from distsms.metrics import ranking, tied_scores
from distsms.metrics.operating_points import contingency
from tests.support.files import on_root
from tests.support.problems import drawn_scores, local_part

ALONE = Communicator()
ROWS = st.lists(
    st.tuples(st.integers(-3, 3).map(float), st.sampled_from([1, -1]), st.integers(0, 3)), min_size=1, max_size=12
)
LEVELS = (0.001, 0.05, 1 / 3, 0.5, 0.9, 1.0)


def columns(rows):
    """Return arrays of scores, labels and weights of drawn rows."""
    scores, labels, weights = (np.array(column) for column in zip(*rows, strict=True))
    return scores.astype(float), labels.astype(np.int8), weights.astype(float)


def of(scores, labels, weights=None, comm=ALONE):
    """Return every measure of this module by name."""
    tied = tied_scores.tied_scores(Scored(scores, labels, comm, weights))
    found = {"bedroc": points.bedroc(tied, comm), "n": tied.n_pos + tied.n_neg}
    for level in LEVELS:
        found |= {
            f"tpr {level}": points.head_value(HeadMeasure("", "tpr@fpr", level), tied, comm),
            f"recall {level}": points.head_value(HeadMeasure("", "recall@precision", level), tied, comm),
            f"pauc {level}": points.partial_area(tied, level, comm),
        }
        found |= {
            f"head {name} {level}": x for name, x in points.head(tied, Condition("top", level), comm)._asdict().items()
        }
        for quantity in ("fpr", "precision", "recall", "top"):
            at = points.operating_point(Condition(quantity, level), tied, comm)
            found |= {f"at {quantity} {level} {name}": x for name, x in vars(at.table).items()}
            found[f"at {quantity} {level}"] = at.threshold
    return found


@given(ROWS)
def test_on_all_ranks_as_on_one(comm, rows):
    scores, labels, weights = columns(rows)
    parts = [local_part(array, comm) for array in (scores, labels, weights)]
    weighted, plain = on_root(comm, lambda: (of(scores, labels, weights), of(scores, labels)))
    assert of(*parts, comm) == pytest.approx(weighted, abs=1e-12, nan_ok=True)
    assert of(*parts[:2], None, comm) == pytest.approx(plain, abs=1e-12, nan_ok=True)


@pytest.mark.parametrize("sample", [1, 512])
def test_many_rows_on_all_ranks_as_on_one(comm, monkeypatch, sample):
    monkeypatch.setattr(tied_scores, "SAMPLE", sample)
    for decimals in (0, 1, 12):
        scores, labels = drawn_scores(1500, 0.1, decimals=decimals)
        found = of(local_part(scores, comm), local_part(labels, comm), None, comm)
        assert found == pytest.approx(on_root(comm, lambda s=scores, y=labels: of(s, y)), abs=1e-12, nan_ok=True)
        tied = tied_scores.tied_scores(Scored(local_part(scores, comm), local_part(labels, comm), comm))
        assert sum(comm.allgather(len(tied.values))) == len(set(scores))  # no score is on two ranks


@pytest.mark.serial
@given(ROWS)
def test_a_whole_weight_is_as_many_rows_and_a_common_factor_is_nothing(rows):
    scores, labels, weights = columns(rows)
    copies = weights.astype(int)
    repeated = of(np.repeat(scores, copies), np.repeat(labels, copies))
    assert of(scores, labels, weights) == pytest.approx(repeated, abs=1e-12, nan_ok=True)
    scaled = of(scores, labels, 0.3 * weights)
    for name, value in repeated.items():
        if not name.endswith((" tp", " fp", " tn", " fn", "rows " + name.rpartition(" ")[2])) and name != "n":
            assert scaled[name] == pytest.approx(value, abs=1e-9, nan_ok=True), name


@pytest.mark.serial
@pytest.mark.parametrize("decimals", [0, 1, 12])
@pytest.mark.parametrize("weighted", [False, True])
def test_equal_scikit_learns(decimals, weighted):
    metrics = pytest.importorskip("sklearn.metrics")
    scores, labels = drawn_scores(900, 0.2, decimals=decimals)
    weights = np.random.default_rng(1).gamma(1.0, size=900) if weighted else None
    found = of(scores, labels, weights)
    fpr, tpr, _ = metrics.roc_curve(labels, scores, sample_weight=weights, drop_intermediate=False)
    precision, recall, _ = metrics.precision_recall_curve(labels, scores, sample_weight=weights)
    for level in LEVELS:
        assert found[f"tpr {level}"] == pytest.approx(tpr[fpr <= level * (1 + 1e-9)].max(), abs=1e-12)
        assert found[f"recall {level}"] == pytest.approx(recall[precision >= level * (1 - 1e-9)].max(), abs=1e-12)
        corrected = metrics.roc_auc_score(labels, scores, max_fpr=level, sample_weight=weights)
        least, most = level**2 / 2, level
        area = corrected if level == 1 else ((2 * corrected - 1) * (most - least) + least) / level
        assert found[f"pauc {level}"] == pytest.approx(area, abs=1e-12)


@pytest.mark.serial
def test_pauc_at_1_is_rocarea():
    scores, labels = drawn_scores(700, 0.1)
    area = ranking.rocarea(Scored(scores, labels, ALONE))
    tied = tied_scores.tied_scores(Scored(scores, labels, ALONE))
    assert points.partial_area(tied, 1.0, ALONE) == pytest.approx(area, abs=1e-14)


@pytest.mark.serial
@given(ROWS, st.sampled_from(LEVELS))
def test_the_point_is_the_best_threshold_that_fulfils_the_condition(rows, level):
    """By trying every score as a threshold."""
    scores, labels, _ = columns(rows)
    tied = tied_scores.tied_scores(Scored(scores, labels, ALONE))
    tables = {t: contingency(Scored(scores, labels, ALONE), t) for t in [*scores.tolist(), math.inf]}
    rates = {
        "fpr": lambda t: t.fp / max(tied.n_neg, 1) <= level and tied.n_neg > 0,
        "precision": lambda t: t.tp >= level * (t.tp + t.fp) - 1e-12 and t.tp + t.fp > 0,
        "recall": lambda t: tied.n_pos > 0 and t.recall >= level,
        "top": lambda t: t.tp + t.fp <= level * len(scores) + 1e-12,
    }
    for quantity, fulfils in rates.items():
        found = points.operating_point(Condition(quantity, level), tied, ALONE)
        good = [t for t, table in tables.items() if fulfils(table) and t < math.inf]
        expected = (max if quantity == "recall" else min)(good, default=math.inf)
        assert found.threshold == expected
        assert found.table == tables[expected]


@pytest.mark.serial
def test_top_rows_as_a_number():
    scores, labels = drawn_scores(300, 0.3)
    tied = tied_scores.tied_scores(Scored(scores, labels, ALONE))
    for k in (1, 7, 100, 300):
        found, expected = (
            points.head(tied, Condition("top", k, False), ALONE),
            ranking.top_k(Scored(scores, labels, ALONE), k),
        )
        assert (found.precision, found.recall) == pytest.approx(expected[:2], abs=1e-14)
        assert found.lift == pytest.approx(found.precision / np.mean(labels > 0))
        table = points.operating_point(Condition("top", k, False), tied, ALONE).table
        assert table.tp + table.fp <= k
    assert math.isnan(points.head(tied, Condition("top", 301, False), ALONE).precision)


def defined_bedroc(labels, alpha):
    """Compute BEDROC of labels in order of rank, as Truchon and Bayly define it."""
    n, ranks = len(labels), 1 + np.flatnonzero(np.array(labels) > 0)
    share = len(ranks) / n
    rie = np.mean(np.exp(-alpha * ranks / n)) / (1 / n * (1 - math.exp(-alpha)) / (math.exp(alpha / n) - 1))
    factor = share * math.sinh(alpha / 2) / (math.cosh(alpha / 2) - math.cosh(alpha / 2 - alpha * share))
    return rie * factor + 1 / (1 - math.exp(alpha * (1 - share)))


@pytest.mark.serial
@given(
    st.lists(st.tuples(st.integers(0, 2), st.sampled_from([1, -1])), min_size=2, max_size=6), st.sampled_from([5, 20])
)
def test_bedroc_is_the_mean_over_all_orders_of_tied_rows(rows, alpha):
    rows = [(0, 1), (0, -1), *rows[2:]]
    scores, labels = (np.array(column) for column in zip(*rows, strict=True))
    orders = [order for order in permutations(range(len(rows))) if (np.diff(scores[list(order)]) <= 0).all()]
    expected = np.mean([defined_bedroc(labels[list(order)], alpha) for order in orders])
    tied = tied_scores.tied_scores(Scored(scores.astype(float), labels.astype(np.int8), ALONE))
    assert points.bedroc(tied, ALONE, alpha) == pytest.approx(expected, abs=1e-12)


@pytest.mark.serial
def test_bedroc_is_0_for_the_worst_and_1_for_the_best_ranking():
    labels = np.array([1] * 5 + [-1] * 95, np.int8)
    for scores, expected in ((np.arange(100.0), 0.0), (-np.arange(100.0), 1.0)):
        tied = tied_scores.tied_scores(Scored(scores, labels, ALONE))
        assert points.bedroc(tied, ALONE) == pytest.approx(expected, abs=1e-9)


def test_what_is_no_number_and_no_rows(comm):
    for scores, labels in (([1.0, np.nan], [1, -1]), ([], [])):
        found = of(np.array(scores), np.array(labels, np.int8), None, comm)
        assert found["n"] == 0
        assert all(math.isnan(found[name]) for name in found if name.startswith(("pauc", "tpr", "recall", "bedroc")))


@pytest.mark.serial
def test_conditions_are_read():
    assert Condition.parse("precision >= 0.9") == Condition("precision", 0.9)
    assert Condition.parse("fpr<=0.1%") == Condition.parse("fpr<=1e-3") == Condition("fpr", 0.001)
    assert Condition.parse("top=100") == Condition("top", 100, False)
    assert Condition.parse("top=1%") == Condition("top", 0.01)
    for text in ("precision>=0.9", "recall>=0.95", "fpr<=0.001", "top=100", "top=1%"):
        assert str(Condition.parse(text)) == text
    refused = "precision<=0.9 fpr<=0 top=0 top=1.5 top=0.5 top=1e400 recall>=101% recall>=1.1 f1>=1"
    for text in ("", *refused.split()):
        with pytest.raises(InputError, match="is no condition"):
            Condition.parse(text)


def test_more_rows_than_there_are_is_every_row():
    assert Condition.parse("top=500").measures(400)[0].level == 1


@pytest.mark.parametrize("ratio", [1e-300, 1e-20, 1e-6, 1.0, 1e6, 1e13, 1e20])
def test_bedroc_of_classes_of_any_weight(ratio):
    """Compared with its definition in 400 digits: the share of what is between the worst and the best order."""
    labels, weights = np.array([1, -1, -1, 1, 1], np.int8), np.array([2.0, 1.0, 3.0, 1.0, 0.5])
    weights[labels > 0] *= ratio
    with localcontext(prec=400):
        exact, total = [Decimal(x) for x in weights.tolist()], sum(Decimal(x) for x in weights.tolist())
        ends = [sum(exact[i:]) / total for i in range(len(exact) + 1)]  # the last row has the highest score
        between = [(-20 * ends[i + 1]).exp() - (-20 * ends[i]).exp() for i in range(len(exact))]
        own = sum(x for x, label in zip(between, labels, strict=True) if label > 0)
        share = sum(x for x, label in zip(exact, labels, strict=True) if label > 0) / total
        high, low = 1 - (-20 * share).exp(), (-20 * (1 - share)).exp() - Decimal(-20).exp()
        expected = float((own - low) / (high - low))
    found = of(np.arange(5.0), labels, weights)["bedroc"]
    assert found == pytest.approx(expected, abs=1e-13)
    perfect = of(labels + 0.0, labels, weights)["bedroc"]
    assert perfect == pytest.approx(1.0, abs=1e-13) and perfect <= 1
