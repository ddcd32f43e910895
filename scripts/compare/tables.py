"""Make the tables of a comparison: when each run came within 1 % of the least J known, and whether all runs agree.

The main table has the form of table 2 of JMLR. A problem is a measure and a lambda. The least J known of a problem is
the smallest J that any of its runs has found. Every run proves that no J is below its lower bound. If another run found
such a J, there is a mistake in a solver, in the objective, or in the proof.
"""

from __future__ import annotations

import csv
import io
from collections.abc import Sequence
from itertools import product
from typing import Any, NamedTuple

import numpy as np

from distsms.base.formatting import format_table
from distsms.base.measures import COMPARED, RANKING, display_name
from scripts.compare.grid import CompletedRun

SHARES = {"1 %": 0.01, "0.1 %": 0.001}
"""The targets that are timed, by the name of the column: a run reaches one when its J is above the least J known by at
most this share.
"""

ROUNDING = 1e-9
"""A J may be below another run's lower bound by this share, since it is a sum over all rows and has rounding errors."""

ENDINGS = {
    "proved": "proved to its target",
    "floor": "smoothing floor",
    "limit": "evaluation limit",
    "time": "time limit",
    "stalled": "no further progress",
    "rounding": "rounding",
    "nonfinite": "J not finite",
}

TESTED = (*RANKING, *COMPARED)
"""The measures on the test rows."""

Problem = tuple[str, float]


class TimeToTarget(NamedTuple):
    """The evaluations and seconds after which a run reached a target; None if it did not, and then `why` says why."""

    evaluations: int | None
    seconds: float | None
    why: str = ""

    def __str__(self) -> str:
        return f"n.a. ({self.why})" if self.seconds is None else f"{self.seconds:.2f} s ({self.evaluations})"


def problems(runs: Sequence[CompletedRun]) -> dict[Problem, list[CompletedRun]]:
    """Group the runs by measure and lambda, in their order."""
    groups: dict[Problem, list[CompletedRun]] = {}
    for run in runs:
        groups.setdefault((run.spec.measure, run.spec.lam), []).append(run)
    return groups


def best_run(runs: Sequence[CompletedRun]) -> CompletedRun | None:
    """Return the run with the least J, or None if no run has a finite one."""
    finite = [run for run in runs if run.result["J"] is not None]
    return min(finite, key=lambda run: run.result["J"], default=None)


def least_proved(runs: Sequence[CompletedRun]) -> str:
    """Return the least J of the runs of a problem, and by which share of it the minimum can at most be smaller."""
    if (best := best_run(runs)) is None:
        return "n.a."
    J, bound = best.result["J"], max(run.result["lower_bound"] or 0.0 for run in runs)
    return f"{J:.6f}" + (f", {100 * (1 - bound / J):.2g} %" if J > 0 else "")


def time_to(run: CompletedRun, least: float, share: float) -> TimeToTarget:
    """Return the evaluations and seconds after which the best J of a run was at most (1 + share) * least."""
    reached = np.flatnonzero(run.trace["best_J"] <= (1 + share) * least) if run.trace else np.empty(0, int)
    if len(reached):
        first = reached[0]
        return TimeToTarget(int(run.trace["evaluation"][first]), float(run.trace["seconds"][first]))
    J, ending = run.result["J"], ENDINGS.get(run.result["status"], run.result["status"])
    if J is None or not least > 0:
        return TimeToTarget(None, None, ending)
    above = 100 * (J / least - 1)
    return TimeToTarget(None, None, f"{ending}, {format(above, '.2g' if above < 100 else '.0f')} % above")


def best_lambda(runs: Sequence[CompletedRun], measure: str) -> float | None:
    """Return the lambda with the best test measure, that of its run with the least J; None without test rows.

    Measures are compared in per cent with two decimals, as the paper prints them. If several are equal, the largest
    lambda is chosen.
    """
    candidates = []
    for (name, lam), group in problems(runs).items():
        best = best_run(group)
        if name == measure and best is not None and best.result["test"] and best.result["test"][measure] is not None:
            candidates.append((round(100 * best.result["test"][measure], 2), lam))
    return max(candidates)[1] if candidates else None


def disagreements(runs: Sequence[CompletedRun]) -> list[str]:
    """Return a sentence for each pair of runs that contradict each other.

    They do if one run found a J below the lower bound that the other proved.
    """
    sentences = []
    for group in problems(runs).values():
        for run, other in product(group, group):
            J, bound = run.result["J"], other.result["lower_bound"]
            if J is not None and bound is not None and bound - J > ROUNDING * abs(bound):
                sentences.append(
                    f"{run.spec.measure}, lambda {run.spec.lam:g}: {run.spec.method} found J = {J:.12g}, below the "
                    f"lower bound {bound:.12g} that {other.spec.method} proved"
                )
    return sentences


def rows(runs: Sequence[CompletedRun]) -> list[dict[str, Any]]:
    """Return a row of a CSV file for each run, ordered by problem.

    If a run did not reach a target, its evaluations and seconds are None, and another column has the reason.
    """
    lines = []
    for group in problems(runs).values():
        best = best_run(group)
        least = np.nan if best is None else best.result["J"]
        for run in group:
            reached = {name: time_to(run, least, share) for name, share in SHARES.items()}
            row: dict[str, Any] = {"measure": run.spec.measure, "lambda": run.spec.lam}
            row |= {"solver": run.spec.solver, "c_mu": run.spec.c_mu}
            row |= {name: run.result[name] for name in ("status", "vacuous", "J", "lower_bound", "gap")}
            row |= {"least_J": least, "evaluations": run.result["evaluations"], "seconds": run.result["seconds"]}
            for name, (evaluations, seconds, why) in reached.items():
                row |= {f"evaluations to {name}": evaluations, f"seconds to {name}": seconds, f"why not {name}": why}
            test = run.result["test"] or {}
            row |= {f"test {display_name(name)}": test.get(name) for name in TESTED}
            lines.append(row)
    return lines


def as_csv(runs: Sequence[CompletedRun]) -> str:
    """Return the text of a CSV file with a header and the `rows` of the runs."""
    lines, stream = rows(runs), io.StringIO()
    writer = csv.DictWriter(stream, list(lines[0]) if lines else [], lineterminator="\n")
    writer.writeheader()
    writer.writerows(lines)
    return stream.getvalue()


def as_markdown(runs: Sequence[CompletedRun], heading: str) -> str:
    """Return the tables as Markdown: the paper's table 2, then every run, then whether they agree."""
    parts = [heading]
    if any(run.result["test"] for run in runs):
        parts += [
            "Seconds (evaluations) to within 1 % of the least J known, at the lambda of the best test measure:",
            markdown(*table2(runs)),
        ]
    else:
        parts.append("Without test rows no lambda is chosen; the option --test adds them.")
    parts += ["Every run, seconds (evaluations):", markdown(*_all_runs(runs))]
    parts.append("Each run was made once, so that small differences of seconds are chance.")
    contradictions = disagreements(runs)
    if contradictions:
        parts.append("**The runs contradict each other:**\n\n" + "\n".join(f"- {line}" for line in contradictions))
    else:
        parts.append("No run found a J below a lower bound that another run proved.")
    return "\n\n".join(parts) + "\n"


def table2(runs: Sequence[CompletedRun], every_lambda: bool = False) -> tuple[list[str], list[list[str]]]:
    """Return the header and the rows of the paper's table 2.

    There is a row for each measure, at the lambda of the best test measure, or with `every_lambda` a row for each
    measure and lambda. A row has the test measure; the least J known, and by which share of it the minimum can at most
    be smaller; and the seconds and evaluations that each method needed to come within 1 % of the least J known.
    """
    methods = list(dict.fromkeys(run.spec.method for run in runs))
    lines = []
    chosen = {(run.spec.measure, best_lambda(runs, run.spec.measure)) for run in runs}
    for (measure, lam), group in problems(runs).items():
        best = best_run(group)
        if best is None or not best.result["test"] or not (every_lambda or (measure, lam) in chosen):
            continue
        times = {run.spec.method: str(time_to(run, best.result["J"], SHARES["1 %"])) for run in group}
        note = ", vacuous" if best.result["vacuous"] else ""
        test = _number(best.result["test"][measure], ".2%").rstrip("%")
        entries = [times.get(method, f"not run at lambda {lam:g}") for method in methods]
        lines.append([measure, f"{lam:g}{note}", test, least_proved(group), *entries])
    return ["measure", "lambda", "test measure [%]", "least J, proved within", *methods], lines


def markdown(header: Sequence[str], lines: Sequence[Sequence[str]]) -> str:
    """Return a table in Markdown."""
    rule = ["---"] * len(header)
    return "\n".join(f"| {' | '.join(line)} |" for line in (header, rule, *lines))


def aligned(header: Sequence[str], lines: Sequence[Sequence[str]]) -> str:
    """Return a table for a terminal. It is transposed, since there are many methods and few measures."""
    transposed = [list(column) for column in zip(header, *lines, strict=True)]
    return format_table(transposed[0], transposed[1:])


def _all_runs(runs: Sequence[CompletedRun]) -> tuple[list[str], list[list[str]]]:
    header = ["measure", "lambda", "solver", "ended", "J", "lower bound", "gap"]
    header += [
        *(f"to {name}" for name in SHARES),
        "to the proof",
        *(f"test {display_name(name)} [%]" for name in TESTED),
    ]
    lines = []
    ordered = [run for group in problems(runs).values() for run in group]
    for run, row in zip(ordered, rows(runs), strict=True):
        ended = "w = 0 is as good" if row["vacuous"] else ""
        line = [run.spec.measure, f"{run.spec.lam:g}", run.spec.method, ", ".join(filter(None, [row["status"], ended]))]
        line += [_number(row["J"], ".8f"), _number(row["lower_bound"], ".8f"), _number(row["gap"], ".2g")]
        line += [
            str(TimeToTarget(row[f"evaluations to {name}"], row[f"seconds to {name}"], row[f"why not {name}"]))
            for name in SHARES
        ]
        whole = TimeToTarget(row["evaluations"], row["seconds"])
        ending = ENDINGS.get(row["status"], row["status"])
        line.append(str(whole if row["status"] == "proved" else TimeToTarget(None, None, f"{ending}, {whole}")))
        tests = [row[f"test {display_name(name)}"] for name in TESTED]
        lines.append([*line, *(_number(None if value is None else 100 * value, ".2f") for value in tests)])
    return header, lines


def _number(value: float | None, form: str) -> str:
    return "" if value is None else format(value, form)
