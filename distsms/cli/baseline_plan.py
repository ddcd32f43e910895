"""What the fits of `distsms baseline` need: which methods fit into memory, where rows lie, what makes fits slow."""

from __future__ import annotations

import argparse
from typing import TYPE_CHECKING, Any

from distsms.base.errors import InputError
from distsms.optim.solvers.base import WIDE

if TYPE_CHECKING:
    from collections.abc import Sequence

    from distsms.optim.settings import Settings
    from distsms.parallel.communicator import Communicator
    from distsms.shards.manifest import Manifest
    from distsms.training.plan import Plan
    from distsms.workflow.path import Problem

BYTES = 48
"""The bytes of memory that a nonzero entry of the data takes on a rank.

They are for SciPy's matrix, for the copy of its training rows, and for what the libraries make of that copy.
"""
MANY = 10_000
"""From so many columns on, trees take far longer than linear models."""


EVALUATION = 50
"""The bytes of memory that a row takes on the root for each method, and for the best one, when it is evaluated."""


def leave_out_missing(args: argparse.Namespace, comm: Communicator) -> list[str]:
    """Leave out the methods whose packages are not installed, unless the user named them. **Collective.**

    Returns lines that say so.

    Raises
    ------
    InputError
        On all ranks, if the user named such a method, or no method is left.
    """
    from distsms.workflow import competitors

    missing = {name for own in comm.allgather(competitors.missing(args.methods)) for name in own}
    rest = [name for name in args.methods if name not in missing]
    if missing and (args.named or not rest):
        with comm.fail_together():
            competitors.require(args.methods)
    lines = []
    for name in args.methods:
        if name in missing:
            package = competitors.METHODS[name].package
            install = "pip install 'distsms[baseline]'"
            lines.append(f"left out  {name}: it needs {package}, which is not installed ({install})")
    args.methods = rest
    return lines


def leave_out(args: argparse.Namespace, manifest: Manifest, neighbours: list[int], comm: Communicator) -> list[str]:
    """Leave out the methods that need all rows in each process, if these do not fit. **Collective.**

    Returns lines that say so.

    Raises
    ------
    InputError
        On all ranks, if the user named such a method.
    """
    from distsms.workflow.competitors import METHODS

    others = [name for name in args.methods if not METHODS[name].own]
    why = next(filter(None, comm.allgather(_lack_of_memory(args.memory, manifest, len(neighbours)))), "")
    if not (others and why):
        return []
    if args.named:
        raise InputError(f"{', '.join(others)}: {why}. Use fewer ranks, or a sample of the rows", everywhere=True)
    args.methods = [name for name in args.methods if METHODS[name].own]
    return [f"left out  {', '.join(others)}: {why}"]


def _lack_of_memory(allowed: float | None, manifest: Manifest, here: int) -> str:
    """Return why the ranks of this node, `here` in number, cannot hold all rows each; "" if they can. Local."""
    from distsms.base import memory
    from distsms.base.formatting import format_bytes
    from distsms.losses.base import ROW_BYTES
    from distsms.training import plan

    each, available = plan.INTERPRETER + BYTES * manifest.explicit + ROW_BYTES * manifest.n, memory.available()
    if allowed is not None and each > allowed:
        return f"each rank would hold all rows, about {format_bytes(each)}, and --memory allows {format_bytes(allowed)}"
    if here * each <= available:
        return ""
    return (
        f"{here} rank(s) of this node would need {format_bytes(here * each)}, but only {format_bytes(available)} are "
        f"available: each rank would hold all rows, about {format_bytes(each)}"
    )


def plans(
    args: argparse.Namespace,
    identity: dict[str, Any],
    lambdas: list[float],
    settings: Settings,
    manifest: Manifest,
    methods: list[str],
    size: int,
    neighbours: list[int],
    one_by_one: bool = False,
) -> dict[str, tuple[Plan, Problem]]:
    """Return the plan and the problem of each method whose rows are distributed. Raises InputError if one does not fit.

    Local. With `one_by_one`, each fold has rows of its own, and one fold is trained after the other.
    """
    from dataclasses import replace

    from distsms.base.formatting import format_bytes
    from distsms.training.plan import INTERPRETER, make_plan
    from distsms.training.task import Distribution
    from distsms.workflow.competitors import OURS
    from distsms.workflow.distributed_fits import method_problem
    from distsms.workflow.path import Problem

    folds, at_once = identity["folds"], 1 if one_by_one or manifest.p >= WIDE else identity["folds"]
    settings = replace(settings, time_limit=float("inf"), vector_bytes=settings.vector_bytes // at_once)
    shared = {"at_once": at_once, "folds_by": identity["folds_by"]}
    whole, found = Problem(identity["measure"], lambdas, folds, identity["seed"], settings, **shared), {}
    for name in methods:
        problem = method_problem(whole, name, manifest.n_pos / manifest.n)
        how = {
            "memory": args.memory,
            "bias": bool(problem.bias),
            "losses": 1 if one_by_one else folds,
            "solves": at_once,
        }
        distribution = Distribution(args.ordering if name == OURS else "auto", args.step)
        plan = make_plan(manifest, problem.measure, settings, size, neighbours, distribution, **how)
        found[name] = plan, replace(problem, **plan.distribution._asdict())
    at_end = INTERPRETER + EVALUATION * manifest.n * (len(methods) + 1)
    if args.memory is not None and methods and at_end > args.memory:
        raise InputError(
            f"--memory {format_bytes(args.memory)} is too little: the root needs {format_bytes(at_end)} at the end, for"
            f" the intervals of {len(methods)} methods on {manifest.n} rows. Allow more memory, or name fewer --methods"
        )
    return found


def costs(manifest: Manifest, methods: Sequence[str]) -> list[str]:
    """Return lines on what makes fits slow: codes that stand for many nonzeros, and many columns for the trees."""
    from distsms.base.formatting import format_bytes
    from distsms.workflow.competitors import METHODS

    lines = []
    if manifest.coded:
        each, stored = format_bytes(BYTES * manifest.explicit), manifest.describe_entries()
        nonzeros = f"up to {manifest.explicit:,} nonzeros in place of {stored}"
        lines.append(f"matrix    the other libraries need {nonzeros}: about {each} on each rank")
    if manifest.p >= MANY and not all(METHODS[name].linear for name in methods):
        lines.append(
            f"hint      trees try all {manifest.p:,} columns at each split, so their fits may take many times as long "
            "as the others; --no-trees leaves them out, and --tree-fits 2 tries fewer settings"
        )
    return lines
