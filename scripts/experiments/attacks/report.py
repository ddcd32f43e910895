"""The verdicts on many runs as tables: by solver, by kind of problem, by both; and why runs ended without a proof."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Sequence
from statistics import median
from typing import Any

from distsms.optim.result import Status
from distsms.study.tables import markdown
from scripts.experiments.attacks.judgement import FLOORS, Verdict

HEAD = [
    "runs",
    "false bounds (worst)",
    "in the trace",
    "other",
    "proved",
    *(f"{status.name.lower()}" for status in Status if status is not Status.PROVED),
    "unproved above the floor",
    "and above that of slopes",
    "median evaluations",
]


def tables(verdicts: Sequence[Verdict]) -> str:
    """Everything as text."""
    by_solver = _table("solver", verdicts, lambda one: (_name(one),))
    by_kind = _table("kind", verdicts, lambda one: (one.kind,))
    by_both = _table("kind | solver", sorted(verdicts, key=_by_both), _by_both)
    return "\n\n".join([_summary(verdicts), by_solver, by_kind, by_both, _reasons(verdicts)])


def numbers(verdicts: Sequence[Verdict]) -> dict[str, Any]:
    """The same, with what can be looked into one by one: every run that is false, or unproved above the floor."""
    groups = {f"{kind} {solver}": _line(group) for (kind, solver), group in _grouped(verdicts, _by_both).items()}
    telling = [one._asdict() for one in verdicts if one.false or (not one.proved and one.provable)]
    return {"head": HEAD, "summary": _summary(verdicts), "table": groups, "runs": telling}


def _by_both(one: Verdict) -> tuple[str, ...]:
    return one.kind, _name(one)


def _name(one: Verdict) -> str:
    return one.solver if one.way else "default"


def _grouped(verdicts: Sequence[Verdict], key: Callable[[Verdict], tuple[str, ...]]) -> dict[tuple[str, ...], Any]:
    groups: dict[tuple[str, ...], list[Verdict]] = {}
    for one in verdicts:
        groups.setdefault(key(one), []).append(one)
    return groups


def _table(title: str, verdicts: Sequence[Verdict], key: Callable[[Verdict], tuple[str, ...]]) -> str:
    lines = [[*names, *_line(group)] for names, group in _grouped(verdicts, key).items()]
    return markdown([*title.split(" | "), *HEAD], [*lines])


def _line(group: Sequence[Verdict]) -> list[str]:
    bounds = [one.false["bound"] for one in group if "bound" in one.false]
    trace = sum("trace" in one.false for one in group)
    other = Counter(name for one in group for name in one.false if name not in ("bound", "trace"))
    statuses = Counter(one.status for one in group)
    above = sum(not one.proved and one.provable for one in group)
    return [
        str(len(group)),
        f"{len(bounds)} ({max(bounds):.2g})" if bounds else "0",
        str(trace),
        ", ".join(f"{count} {name}" for name, count in other.items()) or "0",
        str(statuses[Status.PROVED.name]),
        *(str(statuses[status.name]) for status in Status if status is not Status.PROVED),
        f"{above} ({above / len(group):.1%})",
        str(sum(not one.proved and one.provable_in_doubles for one in group)),
        f"{median(one.evaluations for one in group):g}",
    ]


def _summary(verdicts: Sequence[Verdict]) -> str:
    problems = _grouped(verdicts, lambda one: (one.problem,))
    false = [one for one in verdicts if one.false]
    told = [
        f"{len(problems)} problems, {len(verdicts)} runs, of which {len(false)} are false on "
        f"{len({one.problem for one in false})} problems."
    ]
    floors: dict[str, Callable[[Verdict], bool]] = {
        "their rounding floor": lambda one: one.provable,
        "both this and the floor of slopes": lambda one: one.provable_in_doubles,
    }
    for name, above in floors.items():
        groups = [group for group in problems.values() if above(group[0])]
        default = sum(not group[0].proved for group in groups)
        nobody = sum(not any(one.proved for one in group) for group in groups)
        share = max(len(groups), 1)
        told.append(
            f"{len(groups)} have a target above {FLOORS:g} times {name}: the default settings leave {default} of these "
            f"unproved ({default / share:.2%}), all their runs together {nobody} ({nobody / share:.2%})."
        )
    return "\n".join(told)


def _reasons(verdicts: Sequence[Verdict]) -> str:
    unproved = [one for one in verdicts if not one.proved]
    groups = _grouped(unproved, lambda one: (one.status.lower(), one.reason or "-"))
    lines = [
        [
            *names,
            str(len(group)),
            str(sum(one.provable for one in group)),
            str(sum(one.provable_in_doubles for one in group)),
            f"{max(one.excess for one in group):.2g}",
        ]
        for names, group in sorted(groups.items(), key=lambda item: -len(item[1]))
    ]
    return markdown(["unproved", "reason", "runs", "above the floor", "of slopes, too", "largest J(w) - least"], lines)
