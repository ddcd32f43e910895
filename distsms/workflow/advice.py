"""Write the warnings of a training: why its model is of little use, and what to use instead."""

from __future__ import annotations

import math
from collections.abc import Mapping

from distsms.base.measures import GROUPED, Measure, display_name
from distsms.base.wording import Message, marked, option
from distsms.optim.result import Result, Status, largest_gain
from distsms.optim.settings import Settings
from distsms.workflow.quick_check import rounded_up

OTHER_COLUMNS = "Another lambda will hardly help; other columns or more rows may."


def largest_lambda(settings: Settings, result: Result) -> float:
    """Return a lambda such that, for this and every larger lambda, J(0) is within the wanted gap of min J. Local.

    The lower bound that the run proved implies this: see `distsms.optim.result.largest_gain`.
    """
    gain = largest_gain(result.J_at_zero, result.lower_bound, settings.lam, settings.lam)
    return settings.lam * min(1.0, gain / (settings.target(result.J_at_zero) or gain or 1.0))


def describe_chance(
    why: str,
    measure: Measure,
    settings: Settings,
    bias: float | None,
    result: Result,
    n_pos: int,
    weights: tuple[float, float] | None = None,
    no_lambda_helps: bool = False,
) -> str:
    """Return sentences that say that a model ranks no better than chance, and what the run suggests to do. Local.

    `why` is from `distsms.workflow.verdict.why_chance`. There are `n_pos` positive training rows; `weights` are those
    of the positive and of the negative ones. `no_lambda_helps` if cross-validation found no lambda that ranks better.
    """
    said = [f"This model ranks no better than chance: {why}."]
    below = largest_lambda(settings, result)
    if result.status is not Status.PROVED:
        more = "allow it more evaluations or time, or take a larger lambda"
        rounding = result.status is Status.ROUNDING
        said.append(f"The run ended without a proof: {f'rounding errors, {result.detail}' if rounding else more}.")
    elif measure.k not in (None, n_pos):
        said.append(
            f"K differs from the number of positive rows, {n_pos}. Then training can lower its risk by adding the same "
            "number to all scores, which changes nothing in their order."
        )
    elif settings.l1 >= result.l1_limit:
        said.append(f"l1 is too large: all coefficients are 0 from l1 = {result.l1_limit:.3g} on; take a smaller one.")
    elif settings.l1 and (measure.family.smooth_by_itself or measure.family.compares_pairs):
        said.append(
            f"l1 or lambda is too large: use an {option('l1')} below {settings.l1:g}, or {option('lam', 'auto')}."
        )
    elif measure.family.compares_pairs:
        said.append(
            OTHER_COLUMNS
            if no_lambda_helps
            else f"This lambda is too large: use {option('lam', 'auto')}, or a lambda below {float(f'{below:.1g}'):g}."
        )
    elif result.idle:
        lam, gain = f"{rounded_up(below, 1):g}", max(result.J_at_zero - result.lower_bound, 0.0)
        said.append(
            f"At every lambda above {lam}{' with this l1' if settings.l1 else ''}, training for this measure ends with "
            "such a model: no w has a J that is lower than that of w = 0 by more than the gap to prove, "
            f"{settings.target(result.J_at_zero):g} (at lambda {settings.lam:g}: by more than {gain:.2g})."
        )
        said += [text for text in [describe_distance(measure, result.slope_at_zero, weights)] if text]
    return Message(" ".join([*said, marked(describe_no_bias(measure, bias))]).rstrip())


def describe_no_bias(measure: Measure, bias: float | None) -> str:
    """Return advice to add a constant feature where the measure depends on the threshold and there is none, or ""."""
    if bias or not measure.family.has_threshold:
        return ""
    return Message(f"Train with {option('bias', 1)}: without it, a row is called positive if its score is at least 0.")


def describe_constant(measure: Measure, l1: float, constant: float | None, bias: float) -> str:
    """Return a warning if l1 made the constant 0 where the measure depends on it; else "". Local.

    constant : the value of the constant feature, None without one. bias : what the model adds to each score.
    """
    if not (l1 and constant) or bias or measure.family.ignores_shift:
        return ""
    use = "probabilities" if measure.family.log_loss else "labels"
    return Message(
        f"l1 made the weight of the constant feature 0. So a row of zeros has the score 0, and the {use} may be wrong. "
        "Give the constant feature a larger value, which makes its penalty smaller "
        f"({option('bias', 10.0 * constant)}), or take a smaller l1."
    )


def describe_distance(measure: Measure, slope: float | None, weights: tuple[float, float] | None) -> str:
    """Return a sentence on the distance D between the classes, which limits what training for the head can gain. Local.

    D is the distance from the mean m+ of the positive rows to the set of the means of negative rows in which no row has
    a larger share than 1/K, with K as in `distsms.losses.pauc`, and K = n+ for PRBEP with n+ <= n-. For pauc, D is the
    length of the shortest subgradient of R at w = 0; for PRBEP, that length is (2 n+ / n) D. So J is at least J(0) -
    (the length)^2 / (2 lambda).

    `slope` is `Result.slope_at_zero`, a bound on that length, and `weights` are those of the positive and of the
    negative rows. Returns "" for other measures, and if nothing is known.
    """
    if weights is None or slope is None or not math.isfinite(slope):
        return ""
    positive, negative = weights
    if measure.max_fpr is not None:
        K, share, least = measure.max_fpr * negative, 1.0, "D^2 / (2 lambda)"
    elif measure.family.can_be_vacuous and positive <= negative:
        K, share = positive, 2 * positive / (positive + negative)
        least = f"({share:.3g} D)^2 / (2 lambda)"
    else:
        return ""
    return (
        f"The distance D from the mean of the positive rows to the nearest mean of negative rows, in which no row has a"
        f" larger share than 1/K, is at most {slope / share:.2g} (K = {K:.6g}), and J is at least 1 - {least}."
    )


def describe_unseen(why: str, training: Mapping[str, float] | None, automatic: bool) -> str:
    """Return sentences on a model that ranks no better than chance on rows that it has not seen. Local.

    `why` says how this is known, `training` has the measures on the training rows, and `automatic` says whether lambda
    was chosen by cross-validation.
    """
    said = f"This model ranks no better than chance on rows that it has not seen: {why}."
    if training is not None:
        name = next((name for name in training if name in GROUPED), "rocarea")
        said += f" What it has learned is the noise of its training rows, where its {display_name(name)} is "
        said += f"{training[name]:.3f}."
    auto = f"{option('lam', 'auto')} may find a better lambda; other columns or more rows may help."
    return Message(f"{said} {OTHER_COLUMNS if automatic else auto}")


def describe_idleness(result: Result) -> str:
    """Return a sentence if a run ended without proof and with a model that is no better than w = 0; else "". Local."""
    if result.status is Status.PROVED or not result.idle:
        return ""
    return (
        "This model is not yet better than w = 0: allow more evaluations, or take a larger lambda, which needs fewer."
    )
