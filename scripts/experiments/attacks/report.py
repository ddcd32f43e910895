"""Tables of the verdicts on many runs: by solver, by kind of problem, by both, and why runs ended without a proof.

The verdicts are first summarized in records, and the tables are made from these. The manual makes the same tables from
stored records.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Sequence
from statistics import median
from typing import Any

from distsms.optim.result import Status
from scripts.compare.tables import markdown
from scripts.experiments.attacks.judgement import FLOORS, Verdict
from scripts.records import Record

UNPROVED = [status.name for status in Status if status is not Status.PROVED]
COLUMNS = {
    "runs": "runs",
    "false_bounds": "false bounds (largest error)",
    "false_in_trace": "false bounds in the trace",
    "otherwise_false": "other false statements",
    "PROVED": "proved",
    **{name: name.lower() for name in UNPROVED},
    "above_floor": "unproved, target above the rounding floor",
    "above_both": "unproved, target above both floors",
    "median_evaluations": "median evaluations",
}
"""Key in a record of a group, and header of the column."""
FLOOR_NAMES = {"floor": "the rounding floor", "both": "the sum of the rounding floor and the floor of slopes"}


def all_records(verdicts: Sequence[Verdict]) -> list[Record]:
    """Summarize the verdicts on all runs in records. The field `by` of a record says how the runs were grouped.

    There is one record with `by` = "all". There are records with "solver", "kind" and "kind, solver", one for each
    group, and with "reason", one for each reason why runs ended without a proof.
    """
    solvers = _grouped(verdicts, lambda verdict: {"solver": _name(verdict)})
    kinds = _grouped(verdicts, lambda verdict: {"kind": verdict.kind})
    both = _grouped(verdicts, lambda verdict: {"kind": verdict.kind, "solver": _name(verdict)})
    groups = {
        "solver": solvers,
        "kind": kinds,
        "kind, solver": sorted(both, key=lambda group: tuple(group[0].values())),
    }
    found = [{"by": by, **names, **_counts(group)} for by, each in groups.items() for names, group in each]
    return [_summary(verdicts), *found, *_reasons(verdicts)]


def runs_to_look_into(verdicts: Sequence[Verdict]) -> list[Record]:
    """Return every run that is false, or that proved nothing although its target is well above the rounding floor."""
    return [v._asdict() for v in verdicts if v.false or (not v.proved and v.provable)]


def text(found: Sequence[Record]) -> str:
    """Return the text with the summary and all tables."""
    return "\n\n".join([summary(found), *(table(found, by) for by in ("solver", "kind", "kind, solver", "reason"))])


def summary(found: Sequence[Record]) -> str:
    """Return the numbers of problems and runs, of false runs, and of problems without a proof, in sentences."""
    whole = next(record for record in found if record["by"] == "all")
    lines = [
        f"{whole['problems']} problems, {whole['runs']} runs. {whole['false_runs']} runs are false, on "
        f"{whole['false_problems']} problems."
    ]
    for floor, name in FLOOR_NAMES.items():
        if counts := whole["above"].get(floor):
            share = max(counts["problems"], 1)
            default, none = (counts[which] for which in ("default_unproved", "all_unproved"))
            lines.append(
                f"{counts['problems']} problems have a target above {FLOORS:g} times {name}. For {default} of these "
                f"({default / share:.2%}) the run with default settings has no proof, and for {none} "
                f"({none / share:.2%}) none of the runs has one."
            )
    return "\n".join(lines)


def table(found: Sequence[Record], by: str) -> str:
    """Make a table of the records that are `by` solver, kind, both, or reason."""
    chosen = [record for record in found if record["by"] == by]
    if by == "reason":
        header = [
            "status",
            "reason",
            "runs",
            "target above the rounding floor",
            "above both floors",
            "largest J(w) - least",
        ]
        keys = ("status", "reason", "runs", "above_floor", "above_both")
        return markdown(header, [[*(str(r[key]) for key in keys), f"{r['largest_excess']:.2g}"] for r in chosen])
    names, known = by.split(", "), [key for key in COLUMNS if all(key in record for record in chosen)]
    lines = [[*(r[name] for name in names), *(_cell(r, key) for key in known)] for r in chosen]
    return markdown([*names, *(COLUMNS[key] for key in known)], lines)


def _cell(record: Record, key: str) -> str:
    value = record[key]
    if key == "false_bounds" and value:
        return f"{value} ({record['worst']:.2g})"
    if key == "otherwise_false":
        return ", ".join(f"{count} {name}" for name, count in value.items()) or "0"
    return f"{value} ({value / record['runs']:.1%})" if key == "above_floor" else f"{value:g}"


def _name(verdict: Verdict) -> str:
    return verdict.solver if verdict.way else "default"


Group = tuple[dict[str, str], list[Verdict]]


def _grouped(verdicts: Sequence[Verdict], key: Callable[[Verdict], dict[str, str]]) -> list[Group]:
    groups: dict[tuple[str, ...], Group] = {}
    for verdict in verdicts:
        names = key(verdict)
        groups.setdefault(tuple(names.values()), (names, []))[1].append(verdict)
    return list(groups.values())


def _counts(group: Sequence[Verdict]) -> Record:
    bounds = [verdict.false["bound"] for verdict in group if "bound" in verdict.false]
    statuses = Counter(verdict.status for verdict in group)
    false = Counter(name for verdict in group for name in verdict.false)
    return {
        "runs": len(group),
        "false_bounds": len(bounds),
        "worst": max(bounds, default=0.0),
        "false_in_trace": false.pop("trace", 0),
        "otherwise_false": {name: count for name, count in false.items() if name != "bound"},
        **{status.name: statuses[status.name] for status in Status},
        "above_floor": sum(not verdict.proved and verdict.provable for verdict in group),
        "above_both": sum(not verdict.proved and verdict.provable_in_doubles for verdict in group),
        "median_evaluations": median(verdict.evaluations for verdict in group),
    }


def _summary(verdicts: Sequence[Verdict]) -> Record:
    problems = [group for _, group in _grouped(verdicts, lambda verdict: {"problem": verdict.problem})]
    floors: dict[str, Callable[[Verdict], bool]] = {
        "floor": lambda verdict: verdict.provable,
        "both": lambda verdict: verdict.provable_in_doubles,
    }
    above: dict[str, Any] = {}
    for floor, is_above in floors.items():
        groups = [group for group in problems if is_above(group[0])]
        above[floor] = {
            "problems": len(groups),
            "default_unproved": sum(not group[0].proved for group in groups),
            "all_unproved": sum(not any(verdict.proved for verdict in group) for group in groups),
        }
    return {
        "by": "all",
        "problems": len(problems),
        "runs": len(verdicts),
        "false_runs": sum(bool(verdict.false) for verdict in verdicts),
        "false_problems": len({verdict.problem for verdict in verdicts if verdict.false}),
        "above": above,
    }


def _reasons(verdicts: Sequence[Verdict]) -> list[Record]:
    unproved = [verdict for verdict in verdicts if not verdict.proved]
    groups = _grouped(unproved, lambda verdict: {"status": verdict.status.lower(), "reason": verdict.reason or "-"})
    return [
        {
            "by": "reason",
            **names,
            "runs": len(group),
            "above_floor": sum(verdict.provable for verdict in group),
            "above_both": sum(verdict.provable_in_doubles for verdict in group),
            "largest_excess": max(verdict.excess for verdict in group),
        }
        for names, group in sorted(groups, key=lambda group: -len(group[1]))
    ]
