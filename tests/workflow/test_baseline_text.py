"""The sentences of `distsms baseline`: they say what the intervals say."""

from __future__ import annotations

import pytest

from distsms.metrics import confidence
from distsms.metrics.confidence import Interval
from distsms.optim.settings import Settings
from distsms.workflow import baseline_text
from distsms.workflow.competitors import OURS
from distsms.workflow.method_results import BEST, BEST_FEATURES, MethodResult

pytestmark = pytest.mark.serial
SETTINGS = Settings(lam=1.0, epsilon=1e-4)


def method_result(method, value, less=None, **more):
    def interval(one):
        return Interval(one[0], 0.1, *one[1:], "DeLong", p=0.5)

    intervals = dict.fromkeys(("rocarea", "prbep"), interval((value, value - 0.1, value + 0.1)))
    differences = {} if less is None else dict.fromkeys(("rocarea", "prbep"), interval(less))
    told = {"settings": [0.1, 0.1, 0.01], "at_end": False, "seconds": 1.0, "notes": ""}
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
    tuned = method_result("trees", 0.95, (-0.05, -0.06, -0.04), notes="2 fits odd", at_end=True, settings=[20.0] * 3)
    said = " ".join(baseline_text.sentences([*found, tuned, best], "rocarea"))
    assert "the best of 20 settings" in said and "are ahead of distsms, by 5.000 points" in said
    assert "(interval 4.000 to 6.000)" in said and "--measure prbep compares" in said
    assert "trees: 2 fits odd." in said and "end of the grid" in said and confidence.METHOD in said
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


def results(ahead, ours="", theirs="", **more):
    """Return distsms, logistic regression and the best other one; `ours` and `theirs`: where the grid ends early."""
    low, high = ahead - 0.01, ahead + 0.01
    rival = method_result("logistic", 0.8, (ahead, low, high), beyond=theirs, **more)
    best = method_result(BEST, 0.8, (ahead, low, high), notes="logistic (regression) in 3")
    return [method_result(OURS, 0.9, beyond=ours), rival, best]


@pytest.mark.parametrize("ahead", [0.02, 0.001, -0.02])
@pytest.mark.parametrize(("ours", "theirs"), [("", ""), ("above 1", ""), ("", "below 0.1"), ("above 1", "below 0.1")])
def test_nothing_is_decided_that_a_lambda_beyond_the_grid_might_change(ahead, ours, theirs):
    """A better lambda makes its method better. So it cannot change that this method is ahead."""
    found = results(ahead, ours, theirs)
    wanted = [f"for {OURS} {ours}"] * bool(ours and ahead < 0.01) + [f"for logistic {theirs}"] * bool(
        theirs and ahead > -0.01
    )
    first, _, other, *_ = baseline_text.sentences(found, "rocarea")
    of_head = baseline_text.head_sentences({"rocarea": found, "prbep": found})
    for sentence in (first, other, *of_head):
        assert ("not decided (**)" in sentence) == bool(wanted)
        assert sentence in of_head or not wanted or f"is {100 * ahead:+.3f} points of " in sentence
        assert not (wanted and "Take either" in sentence)
    assert len(of_head) == 1 + (not wanted) and (not wanted or "Tuned for ROCArea and PRBEP, it is" in of_head[0])
    advice = baseline_text.describe_beyond([found, found], [first, *of_head])
    assert len(advice) == bool(wanted)
    assert all(one in advice[0] and advice[0].count("for ") == bool(ours) + bool(theirs) for one in wanted)


@pytest.mark.parametrize(("ahead", "starred", "told"), [(0.02, OURS, False), (0.02, "logistic", True)])
def test_a_verdict_says_where_a_starred_lambda_might_change_it(ahead, starred, told):
    """A star is an end of the grid. Its last step made no difference here, but further ones may."""
    found = [one._replace(at_end=one.method == starred) for one in results(ahead)]
    first, _, other, *_ = baseline_text.sentences(found, "rocarea")
    for sentence in (first, other, *baseline_text.head_sentences({"rocarea": found})):
        assert (f"{starred} took an end of their grid (*)" in sentence) == told and "ahead of" in sentence


def test_trees_are_compared_with_a_distsms_whose_grid_does_not_end_early():
    for value, decided in ((0.05, False), (-0.05, True)):
        tuned = method_result("trees", 0.95, (-value, -value - 0.01, 0.01 - value), settings=[20.0] * 3)
        said = baseline_text.sentences([method_result(OURS, 0.9, beyond="below 0.1"), tuned], "rocarea")[0]
        assert ("not decided (**) whether trees" in said) != decided and ("A linear model is enough" in said) == decided


@pytest.mark.parametrize("value", [0.0, 1e-9, -1e-9])
def test_no_difference_is_a_tie(value):
    tied = [method_result(OURS, 0.9), method_result(BEST, 0.9, (value, value, value), notes="svm (hinge) in 3")]
    first, _, other, *_ = baseline_text.sentences(tied, "rocarea")
    for sentence in (first, other, *baseline_text.head_sentences({"rocarea": tied})):
        assert "level with" in sentence and "the difference is 0.000 points of" in sentence
        assert "ahead" not in sentence and "behind" not in sentence
    assert "Take either" in first


@pytest.mark.parametrize(
    ("chosen", "at_end", "cell"), [([0.01, 1e-6, 0.001], True, "1e-06 to 0.01*"), ([0.1] * 3, False, "0.1")]
)
def test_the_lambdas_of_all_folds_are_shown(chosen, at_end, cell):
    assert baseline_text.cells(method_result("svm", 0.9, settings=chosen, at_end=at_end), "rocarea")[-2] == cell


def test_the_row_of_the_best_features_is_explained_before_it_is_used():
    best = method_result(BEST_FEATURES, 0.92, (-0.02, -0.03, -0.01), notes="distsms-crosses (crosses) in 3")
    own = method_result("distsms-crosses", 0.92)
    said = baseline_text.sentences([method_result(OURS, 0.9), own, best], "rocarea")
    assert said[0].startswith(f'The row "{BEST_FEATURES}" is distsms on the original columns or on features')
    assert said[1].startswith("distsms with the best features is ahead of distsms on the original columns, by 2.000")
    ends_early = baseline_text.sentences([method_result(OURS, 0.9, beyond="below 0.1"), own, best], "rocarea")
    assert "not decided" in ends_early[1]
    # where the same models are chosen, better lambdas would make both better
    same = method_result(BEST_FEATURES, 0.9, (0.0, 0.0, 0.0), notes="distsms (the original columns) in 3")
    said = baseline_text.sentences([method_result(OURS, 0.9, beyond="below 0.1"), own, same], "rocarea")[1]
    assert "is level with distsms on the original columns: the difference is 0.000 points" in said
    assert "(interval 0.000 to 0.000)" in said
