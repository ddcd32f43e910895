"""What a comparison comes to (JMLR, table 2): who came within 1 % of the least J known, and when; and do all agree?

The least J known of a problem (a measure and a lambda) is the least that any of its runs has found. Every run proves
that no J lies below its lower bound, so that a J of another run below it shows a mistake: in a solver, in the
objective, or in the proof.
"""

from __future__ import annotations

import csv
import io
from collections.abc import Sequence
from typing import Any, NamedTuple

import numpy as np

from distsms.study.grid import CompletedRun
from distsms.utils.formatting import format_table

SHARES = {"1 %": 0.01, "0.1 %": 0.001}
"""How near to the least J known."""

ROUNDING = 1e-9
"""Share of J by which a J may lie below another run's lower bound: J, too, is a rounded sum over all rows."""

ENDINGS = {
    "proved": "proved to its target",
    "floor": "smoothing floor",
    "limit": "evaluation limit",
    "time": "time limit",
    "stalled": "no further progress",
    "rounding": "rounding",
    "nonfinite": "J not finite",
}

Problem = tuple[str, float]


class Reached(NamedTuple):
    """When a run came somewhere, or why it did not."""

    evaluations: int | None
    seconds: float | None
    why: str = ""

    def __str__(self) -> str:
        return f"n.a. ({self.why})" if self.seconds is None else f"{self.seconds:.2f} s ({self.evaluations})"


def problems(runs: Sequence[CompletedRun]) -> dict[Problem, list[CompletedRun]]:
    """The runs of each measure and lambda, in their order."""
    found: dict[Problem, list[CompletedRun]] = {}
    for one in runs:
        found.setdefault((one.cell.measure, one.cell.lam), []).append(one)
    return found


def best_run(runs: Sequence[CompletedRun]) -> CompletedRun | None:
    """The run with the least J; None where no run has a finite one."""
    finite = [one for one in runs if one.result["J"] is not None]
    return min(finite, key=lambda one: one.result["J"], default=None)


def within(run: CompletedRun, least: float, share: float) -> Reached:
    """When the best J so far came below (1 + share) least."""
    there = np.flatnonzero(run.trace["best_J"] <= (1 + share) * least) if run.trace else np.empty(0, int)
    if len(there):
        return Reached(int(run.trace["evaluation"][there[0]]), float(run.trace["seconds"][there[0]]))
    J, ending = run.result["J"], ENDINGS.get(run.result["status"], run.result["status"])
    if J is None or not least > 0:
        return Reached(None, None, ending)
    above = 100 * (J / least - 1)
    return Reached(None, None, f"{ending}, {format(above, '.2g' if above < 100 else '.0f')} % above")


def best_lambda(runs: Sequence[CompletedRun], measure: str) -> float | None:
    """The lambda whose run of least J has the best test measure; the larger one where both print alike, as the paper
    prints them, in per cent with two decimals. None without test rows."""
    found = []
    for (name, lam), group in problems(runs).items():
        best = best_run(group)
        if name == measure and best is not None and best.result["test"] and best.result["test"][measure] is not None:
            found.append((round(100 * best.result["test"][measure], 2), lam))
    return max(found)[1] if found else None


def disagreements(runs: Sequence[CompletedRun]) -> list[str]:
    """In words, where the J of one run is below what another one proved to be a lower bound."""
    words = []
    for group in problems(runs).values():
        for one in group:
            for other in group:
                J, bound = one.result["J"], other.result["lower_bound"]
                if J is not None and bound is not None and bound - J > ROUNDING * abs(bound):
                    words.append(
                        f"{one.cell.measure}, lambda {one.cell.lam:g}: {one.cell.method} found J = {J:.12g}, below the "
                        f"lower bound {bound:.12g} that {other.cell.method} proved"
                    )
    return words


def rows(runs: Sequence[CompletedRun]) -> list[dict[str, Any]]:
    """One row for each run, ready for CSV; what was not reached is None, and `why` says so."""
    found = []
    for group in problems(runs).values():
        best = best_run(group)
        least = np.nan if best is None else best.result["J"]
        for run in group:
            reached = {name: within(run, least, share) for name, share in SHARES.items()}
            row: dict[str, Any] = {"measure": run.cell.measure, "lambda": run.cell.lam}
            row |= {"solver": run.cell.solver, "c_mu": run.cell.c_mu}
            row |= {name: run.result[name] for name in ("status", "vacuous", "J", "lower_bound", "gap")}
            row |= {"least_J": least, "evaluations": run.result["evaluations"], "seconds": run.result["seconds"]}
            for name, (evaluations, seconds, why) in reached.items():
                row |= {f"evaluations to {name}": evaluations, f"seconds to {name}": seconds, f"why not {name}": why}
            test = run.result["test"] or {}
            row |= {"test ROCArea": test.get("rocarea"), "test PRBEP": test.get("prbep")}
            found.append(row)
    return found


def as_csv(runs: Sequence[CompletedRun]) -> str:
    """`rows` as CSV with a header."""
    lines, stream = rows(runs), io.StringIO()
    writer = csv.DictWriter(stream, list(lines[0]) if lines else [], lineterminator="\n")
    writer.writeheader()
    writer.writerows(lines)
    return stream.getvalue()


def as_markdown(runs: Sequence[CompletedRun], heading: str) -> str:
    """The tables for people: the paper's table 2, then every run, then whether they agree."""
    parts = [heading]
    if any(one.result["test"] for one in runs):
        parts += [
            "Seconds (evaluations) to within 1 % of the least J known, at the lambda of the best test measure:",
            markdown(*table2(runs)),
        ]
    else:
        parts.append("Without test rows no lambda is chosen: `distsms compare --test` does it.")
    parts += ["Every run, seconds (evaluations):", markdown(*_every(runs))]
    parts.append("Each run was made once: small differences of seconds are chance.")
    wrong = disagreements(runs)
    if wrong:
        parts.append("**The runs contradict each other:**\n\n" + "\n".join(f"- {one}" for one in wrong))
    else:
        parts.append("No run found a J below what another one proved to be a lower bound.")
    return "\n\n".join(parts) + "\n"


def table2(runs: Sequence[CompletedRun], every_lambda: bool = False) -> tuple[list[str], list[list[str]]]:
    """Header and a row for each measure: lambda of the best test measure, that measure, the least J known and within
    what share of it the optimum is proved to be, and each method's seconds. Or such a row for every lambda."""
    methods = list(dict.fromkeys(one.cell.method for one in runs))
    lines = []
    chosen = {(one.cell.measure, best_lambda(runs, one.cell.measure)) for one in runs}
    for (measure, lam), group in problems(runs).items():
        best = best_run(group)
        if best is None or not best.result["test"] or not (every_lambda or (measure, lam) in chosen):
            continue
        times = {one.cell.method: str(within(one, best.result["J"], SHARES["1 %"])) for one in group}
        note = ", vacuous" if best.result["vacuous"] else ""
        test = _number(best.result["test"][measure], ".2%").rstrip("%")
        J = best.result["J"]
        bound = max(one.result["lower_bound"] or 0.0 for one in group)
        least = f"{J:.6f}" + (f", {100 * (1 - bound / J):.2g} %" if J > 0 else "")
        entries = [times.get(method, f"not run at lambda {lam:g}") for method in methods]
        lines.append([measure, f"{lam:g}{note}", test, least, *entries])
    return ["measure", "lambda", "test measure [%]", "least J, proved within", *methods], lines


def markdown(header: Sequence[str], lines: Sequence[Sequence[str]]) -> str:
    """A table in Markdown."""
    rule = ["---"] * len(header)
    return "\n".join(f"| {' | '.join(line)} |" for line in (header, rule, *lines))


def aligned(header: Sequence[str], lines: Sequence[Sequence[str]]) -> str:
    """A table for a terminal: its columns become lines, since methods are many and measures are few."""
    turned = [list(one) for one in zip(header, *lines, strict=True)]
    return format_table(turned[0], turned[1:])


def _every(runs: Sequence[CompletedRun]) -> tuple[list[str], list[list[str]]]:
    header = ["measure", "lambda", "solver", "ended", "J", "lower bound", "gap"]
    header += [*(f"to {name}" for name in SHARES), "to the proof", "test ROCArea [%]", "test PRBEP [%]"]
    lines = []
    for run, row in zip(_ordered(runs), rows(runs), strict=True):
        ended = "w = 0 is as good" if row["vacuous"] else ""
        line = [run.cell.measure, f"{run.cell.lam:g}", run.cell.method, ", ".join(filter(None, [row["status"], ended]))]
        line += [_number(row["J"], ".8f"), _number(row["lower_bound"], ".8f"), _number(row["gap"], ".2g")]
        line += [
            str(Reached(row[f"evaluations to {name}"], row[f"seconds to {name}"], row[f"why not {name}"]))
            for name in SHARES
        ]
        whole = Reached(row["evaluations"], row["seconds"])
        ending = ENDINGS.get(row["status"], row["status"])
        line.append(str(whole if row["status"] == "proved" else Reached(None, None, f"{ending}, {whole}")))
        tests = (row["test ROCArea"], row["test PRBEP"])
        lines.append([*line, *(_number(None if one is None else 100 * one, ".2f") for one in tests)])
    return header, lines


def _ordered(runs: Sequence[CompletedRun]) -> list[CompletedRun]:
    return [one for group in problems(runs).values() for one in group]


def _number(value: float | None, form: str) -> str:
    return "" if value is None else format(value, form)
