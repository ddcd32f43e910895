"""The sentences of `distsms baseline`: they say what the intervals say."""

from __future__ import annotations

import pytest

from distsms.metrics import estimates
from distsms.metrics.confidence import Interval
from distsms.optim.settings import Settings
from distsms.selection import baseline_text
from distsms.selection.competitors import OURS
from distsms.selection.method_results import BEST, MethodResult

pytestmark = pytest.mark.serial
SETTINGS = Settings(lam=1.0, epsilon=1e-4)


def method_result(method, value, less=None, **more):
    def interval(one):
        return Interval(one[0], 0.1, *one[1:], "DeLong", p=0.5)

    intervals = dict.fromkeys(("rocarea", "prbep"), interval((value, value - 0.1, value + 0.1)))
    differences = {} if less is None else dict.fromkeys(("rocarea", "prbep"), interval(less))
    told = {"chosen": [0.1, 0.1, 0.01], "at_end": False, "seconds": 1.0, "notes": ""}
    return MethodResult(method, intervals=intervals, differences=differences, **{**told, **more})


@pytest.mark.parametrize(
    "less, word",
    [
        (
            (0.02, 0.01, 0.03),
            "is ahead of the best of the other linear models, chosen for each fold by the other folds",
        ),
        ((-0.02, -0.03, -0.01), "does not pay here: it is behind the best of the other linear models"),
        ((0.02, -0.01, 0.05), "is ahead of the best of the other linear models"),
        ((-0.02, -0.05, 0.01), "is behind the best of the other linear models"),
    ],
)
def test_what_is_said_is_what_the_interval_says(less, word):
    found = [
        method_result(OURS, 0.9),
        method_result("svm", 0.88, (0.1, 0.05, 0.15)),
        method_result("logistic", 0.8, less),
    ]
    best = method_result(BEST, 0.88, less, notes="logistic (regression) in 2, svm (hinge) in 1")
    first, known, *_ = baseline_text.sentences([*found, best], "rocarea")
    assert word in first and best.notes in first and "by 2.000 points" in first
    assert ("Take either" in first) == (less[1] < 0 < less[2])
    assert "is itself a ranking SVM" in known
    assert "is itself a linear SVM, with hinge loss" in baseline_text.sentences([*found, best], "prbep")[1]
    tuned = method_result("trees", 0.95, (-0.05, -0.06, -0.04), notes="2 fits odd", at_end=True, chosen=[20.0] * 3)
    said = " ".join(baseline_text.sentences([*found, tuned, best], "rocarea"))
    assert "the best of 20 settings" in said and "are ahead of distsms, by 5.000 points" in said
    assert "(interval 4.000 to 6.000)" in said and "--measure prbep compares" in said
    assert "trees: 2 fits odd." in said and "end of the grid" in said and estimates.METHOD in said
    assert "behind these trees" not in said and "--methods with trees" not in said
    assert "--methods with trees" in " ".join(baseline_text.sentences([*found, best], "rocarea"))
    assert "irect" not in " ".join(baseline_text.sentences(found[1:2], "rocarea"))
    assert "0.1" in baseline_text.table([*found, best], "rocarea")


@pytest.mark.parametrize(
    ("prbep", "said"),
    [
        (
            (-0.1, -0.2, -0.05),
            "But it is clearly behind by PRBEP; take the other model if that is what counts for you.",
        ),
        ((0.1, 0.05, 0.2), "It is clearly ahead by PRBEP, so take distsms if that counts for you."),
        ((0.0, -0.1, 0.1), "Take either."),
    ],
)
def test_take_either_is_not_said_where_another_measure_is_clear(prbep, said):
    best = method_result(BEST, 0.88, (-0.01, -0.05, 0.03))
    best = best._replace(differences=best.differences | {"prbep": Interval(prbep[0], 0.1, *prbep[1:], "DeLong", p=0.5)})
    first, *_ = baseline_text.sentences([method_result(OURS, 0.9), best], "rocarea")
    assert said in first and ("Take either" in first) == (said == "Take either.")
