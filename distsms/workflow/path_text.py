"""Describe a path: a line for each point, a table, and which lambda was chosen, with warnings."""

from __future__ import annotations

from collections.abc import Sequence

from distsms.base.measures import display_name
from distsms.metrics.confidence import LEVEL
from distsms.workflow.choice import THE_MEAN, Choice, Mean, Point, ends_at, expected, faults, means


def line(point: Point, measure: str) -> str:
    """Return a line on how a point ended."""
    result, rows = point.result, f"fold {point.fold}" if point.fold else "all rows"
    kind, values = ("training", point.training) if point.held_out is None else ("held out", point.held_out)
    return (
        f"lambda {point.lam:<8g} {rows:8s} {result['status']:8s} J {_number(result['J'], '.8f')}"
        f"  gap {_number(result['gap'], '.2g'):>8s}  {result['evaluations']:5d} evaluations"
        f"  {kind} {display_name(measure)} {_number(values.get(measure), '.6f')}"
    )


def table(points: Sequence[Point], measure: str, choice: Choice | None) -> tuple[list[str], list[list[str]]]:
    """Return the header and the rows of a table with a row for each lambda.

    For the model of all rows, a row has J (and before it, with an l1, the number of nonzero coefficients), gap, the
    number of evaluations (and, after a plus sign, the number for the models of the folds) and the measure on the
    training rows. The mean and standard error of the measure on the held-out folds, and a remark, follow.
    """
    name, curve, rows = display_name(measure), {mean.lam: mean for mean in means(points, measure)}, []
    unusable, sparse = faults(points), any("nonzeros" in point.result for point in points)
    for lam in dict.fromkeys(point.lam for point in points):
        at_lam = [point for point in points if point.lam == lam]
        of_all, mean = next((point for point in at_lam if not point.fold), None), curve.get(lam)
        result = of_all.result if of_all else {}
        of_folds = sum(point.result["evaluations"] for point in at_lam if point.fold)
        rows.append(
            [
                f"{lam:g}",
                *([_number(result.get("nonzeros"), "d")] if sparse else []),
                _number(result.get("J"), ".8f"),
                _number(result.get("gap"), ".2g"),
                _number(result.get("evaluations"), "d") + (f" + {of_folds}" if of_folds else ""),
                _number(of_all and of_all.training.get(measure), ".6f"),
                _number(mean and mean.mean, ".6f"),
                _number(mean and mean.error, ".6f"),
                _remark(of_all, mean, choice, unusable.get(lam)),
            ]
        )
    header = [
        "lambda",
        *(["nonzeros"] if sparse else []),
        "J",
        "gap",
        "evaluations",
        f"training {name}",
        f"held out {name}",
        "s.e.",
        "",
    ]
    return header, rows


def describe_choice(
    measure: str, choice: Choice, curve: Sequence[Mean], points: Sequence[Point] = (), rule: str = "best"
) -> str:
    """Return lines on the lambda that was chosen: its measure, how flat the optimum is, and warnings.

    `curve` has the means that the choice was made from, and `points` all points, for the interval and for the reasons
    not to choose a lambda (`choice.faults`).
    """
    best, mean, unusable = choice.best, choice.chosen, faults(points)
    text = f"\nchosen    lambda {mean.lam:g}: held-out {display_name(measure)} {mean.mean:.6f}"
    text += f", standard error {mean.error:.6f}"
    if mean != best:
        text += f"; the best mean is {best.mean:.6f} at {best.lam:g}"
    if interval := expected(points, measure, rule):
        text += f"\n  interval  {interval.low:.6f} to {interval.high:.6f} ({100 * LEVEL:g} %)"
        text += f" about {interval.value:.6f}: of {interval.of}"
        text += f"; the lambda of each fold is chosen by the other folds. {THE_MEAN}"
    text += "\n  flatness  "
    if len(curve) == 1:
        text += "unknown, since only one lambda was tried"
    elif choice.low == choice.high:
        others = "lambdas that can be used" if unusable else "lambdas"
        text += f"the next larger and smaller {others} have means more than one standard error below the best"
    else:
        ends = [f"{end.mean - best.mean:+.6f} at {end.lam:g}" for end in (choice.low, choice.high) if end != best]
        text += (
            f"the means of lambda {choice.low.lam:g} to {choice.high.lam:g} are within one standard error of the best"
        )
        text += f" mean: {', '.join(ends)}"
    if choice.instead_of:
        lam = choice.instead_of.lam
        text += f"\n  not       lambda {lam:g}, which the rule would choose by its mean: {unusable[lam]}"
    if mean.lam in unusable:
        text += f"\n  warning   {unusable[mean.lam]}: at this lambda the training learns almost nothing from these data"
        text += "; no other lambda that was tried can be used either"
    elif end := ends_at(curve, [best.lam]):
        other = end.replace("est", "er")
        text += f"\n  warning   the best lambda is the {end} one that was tried; {other} ones may be better still:"
        text += " add some with --lambdas, or let --extend try further ones"
    return text


def why_chance(points: Sequence[Point], choice: Choice) -> str:
    """Return why the chosen model of all rows ranks no better than chance; an empty string if it ranks better."""
    results = [point.result for point in points if not point.fold and point.lam == choice.chosen.lam]
    return str(results[0].get("chance") or "") if results else ""


def nothing(measure: str, points: Sequence[Point]) -> str:
    """Return a warning, with advice, if no lambda gives a model that ranks better than chance; otherwise ""."""
    if {point.lam for point in points if not point.fold} - set(faults(points)):
        return ""
    advice = (
        "smaller lambdas may do better" if measure == "rocarea" else "use --measure rocarea, and its model as it is"
    )
    return f"  warning   none of these lambdas gives a model that ranks better than chance; {advice}"


def _remark(of_all: Point | None, mean: Mean | None, choice: Choice | None, fault: str | None) -> str:
    remarks = []
    if choice and mean:
        remarks += ["chosen"] if mean == choice.chosen else ["best"] if mean == choice.best else []
    if of_all and of_all.result["status"] != "proved":
        remarks.append(of_all.result["status"])
    if fault:
        remarks.append(fault)
    return ", ".join(remarks)


def _number(value: float | None, form: str) -> str:
    return "-" if value is None else format(value, form)
