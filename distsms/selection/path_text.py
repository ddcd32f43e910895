"""What a path says: a line for each point, the table, which lambda is chosen and how flat the optimum is."""

from __future__ import annotations

from collections.abc import Sequence

from distsms.measures import SHOWN
from distsms.metrics.confidence import LEVEL
from distsms.selection.path import Choice, Mean, Point, expected, faults, means


def line(point: Point, measure: str) -> str:
    """How a point ended."""
    found, rows = point.result, f"fold {point.lane}" if point.lane else "all rows"
    on, values = ("training", point.training) if point.held_out is None else ("held out", point.held_out)
    return (
        f"lambda {point.lam:<8g} {rows:8s} {found['status']:8s} J {_number(found['J'], '.8f')}"
        f"  gap {_number(found['gap'], '.2g'):>8s}  {found['evaluations']:5d} evaluations"
        f"  {on} {SHOWN[measure]} {_number(values[measure], '.6f')}"
    )


def table(points: Sequence[Point], measure: str, chosen: Choice | None) -> tuple[list[str], list[list[str]]]:
    """Header and a row for each lambda: of all rows J, gap, evaluations; of the folds evaluations, mean and s.e."""
    name, curve, rows = SHOWN[measure], {one.lam: one for one in means(points, measure)}, []
    wrong = faults(points)
    for lam in dict.fromkeys(one.lam for one in points):
        here = [one for one in points if one.lam == lam]
        own, mean = next((one for one in here if not one.lane), None), curve.get(lam)
        found = own.result if own else {}
        rows.append(
            [
                f"{lam:g}",
                _number(found.get("J"), ".8f"),
                _number(found.get("gap"), ".2g"),
                _number(found.get("evaluations"), "d"),
                str(sum(one.result["evaluations"] for one in here if one.lane)),
                _number(own and own.training[measure], ".6f"),
                _number(mean and mean.mean, ".6f"),
                _number(mean and mean.error, ".6f"),
                _remark(own, mean, chosen, wrong.get(lam)),
            ]
        )
    header = ["lambda", "J", "gap", "evaluations", "of the folds", f"training {name}", f"held out {name}", "s.e.", ""]
    return header, rows


def choice(measure: str, found: Choice, curve: Sequence[Mean], points: Sequence[Point] = (), rule: str = "best") -> str:
    """Which lambda, by which rule, and how flat the optimum is, in lines.

    points : to see whether the chosen one says anything.
    """
    best, chosen, wrong = found.best, found.chosen, faults(points)
    text = f"\nchosen    lambda {chosen.lam:g}: held-out {SHOWN[measure]} {chosen.mean:.6f}"
    text += f", standard error {chosen.error:.6f}"
    if chosen != best:
        text += f"; the best mean is {best.mean:.6f} at {best.lam:g}"
    if sure := expected(points, measure, rule):
        text += (
            f"\n  interval  {sure.low:.6f} to {sure.high:.6f} ({100 * LEVEL:g} %) about {sure.value:.6f}: of {sure.of}"
        )
        text += ";\n            each fold's lambda is chosen by the others"
    text += "\n  flatness  "
    if len(curve) == 1:
        text += "there is one lambda alone"
    elif found.low == found.high:
        text += f"no neighbour of the best lambda{' that says anything' * bool(wrong)} is within its standard error"
    else:
        ends = [f"{one.mean - best.mean:+.6f} at {one.lam:g}" for one in (found.low, found.high) if one != best]
        text += f"lambda {found.low.lam:g} to {found.high.lam:g} within one standard error of the best mean: "
        text += ", ".join(ends)
    if found.instead_of:
        lam = found.instead_of.lam
        text += f"\n  not       lambda {lam:g}, which the rule would choose by its mean: {wrong[lam]}"
    if chosen.lam in wrong:
        text += f"\n  warning   {wrong[chosen.lam]}: at this lambda the convex risk sees next to nothing in these data"
    elif len(curve) > 1 and best in (curve[0], curve[-1]):
        end = "largest" if best == curve[0] else "smallest"
        text += f"\n  warning   the best lambda is the {end} one: there may be better ones beyond it"
    return text


def nothing(measure: str, points: Sequence[Point]) -> str:
    """That no lambda does better than w = 0, if so, and what may; else no words."""
    if not all(one.result["vacuous"] for one in points if not one.lane):
        return ""
    advice = "use --measure rocarea, and its model as it is" if measure == "prbep" else "smaller ones may"
    return f"  warning   no lambda of these does better than w = 0: {advice}"


def _remark(own: Point | None, mean: Mean | None, chosen: Choice | None, fault: str | None) -> str:
    words = []
    if chosen and mean:
        words += ["chosen"] if mean == chosen.chosen else ["best"] if mean == chosen.best else []
    if own and own.result["status"] != "proved":
        words.append(own.result["status"])
    if fault:
        words.append(fault)
    return ", ".join(words)


def _number(value: float | None, form: str) -> str:
    return "-" if value is None else format(value, form)
