"""Who gets the evaluations: steps that pay are taken on and on, steps that do not ever more rarely."""

from __future__ import annotations

import numpy as np
import pytest

from distsms.optim.course import LevelStepSchedule

pytestmark = pytest.mark.serial


class Enough(Exception):
    """The proof, say."""


def course(solver, bundle, evaluations):
    """Whose each evaluation was, if one of either multiplies the gap by the given factor."""
    pace, who, gap = LevelStepSchedule(eager=True), [], 1.0

    def evaluated(name, factor):
        nonlocal gap
        gap *= factor
        who.append(name)
        if len(who) == evaluations:
            raise Enough
        return gap

    try:
        while True:
            pace.solver_evaluated(evaluated("solver", solver(len(who))))
            if pace.trial_due:
                pace.trial(lambda: evaluated("bundle", bundle(len(who))))
    except Enough:
        return who


@pytest.mark.parametrize("gain, first", [(0.99, 50), (0.9, 16)])  # 0.9**16 < 0.2; at 0.99 it takes too long
def test_a_bundle_that_pays_has_nearly_all_the_rest_once_the_gap_says_something(gain, first):
    who = course(lambda k: gain, lambda k: 0.8, 400)
    assert first <= who.index("bundle") <= first + 1
    assert who[first + 1 :].count("solver") <= 5 * np.log2(400 / 10)


@pytest.mark.parametrize("gain", [1.0, 0.95])
def test_a_bundle_that_does_not_pay_is_tried_ever_more_rarely(gain):
    who = np.array(course(lambda k: 0.9, lambda k: gain, 1000))
    trials = np.flatnonzero(who == "bundle")
    assert 0 < len(trials) < np.log2(1000)
    assert np.all(np.diff(np.diff(trials)) > 0)


def test_where_the_solver_stalls_the_bundle_has_time_to_learn():
    """It gains only from its twentieth step on, the solver nothing after a good start."""
    steps = []

    def bundle(k):
        steps.append(k)
        return 1.0 if len(steps) < 20 else 0.5

    who = course(lambda k: 0.5 if k < 5 else 1.0, bundle, 300)
    assert who[200:].count("bundle") >= 90


def test_rescue_ends_where_nothing_is_gained_any_more():
    pace, gaps = LevelStepSchedule(eager=True), iter([0.5, 0.25, *[0.25] * 1000])
    pace.solver_evaluated(1.0)
    pace.rescue(lambda: next(gaps))
    assert next(gaps) == 0.25
    assert sum(1 for _ in gaps) > 900
