"""The choice of a solver for a measure and a machine, and the settings of a run with it."""

from __future__ import annotations

from dataclasses import fields
from typing import Any

from distsms.base.communicator import Communicator
from distsms.base.errors import InputError
from distsms.base.formatting import did_you_mean
from distsms.base.measures import Measure
from distsms.optim.settings import Settings


def choose_solver(
    requested: str | None, measure: str | Measure, comm: Communicator, lmvm_only: str = "", l1: float = 0.0
) -> tuple[str, str]:
    """Return the solver, and a reason if users should know it: ``bmrm`` without smoothed risk, and ``lbfgs`` for
    ``lmvm`` with an l1, or if a rank lacks petsc4py and nothing asks for ``lmvm``. **Collective.**
    """
    with comm.fail_together():
        smooth = Measure.parse(measure).family.smooth
    if not (requested or smooth):
        return "bmrm", "this measure has no smoothed risk"
    name = requested or "lmvm"
    if name == "lmvm" and l1 and not requested:
        name = "lbfgs"
    if name != "lmvm":
        return name, ""
    from distsms.optim.solvers import tao

    # Any rank may have to run the solver, so all are asked. Only the root loads the library, which it needs anyway.
    reasons = comm.allgather(tao.lacking(load=comm.is_root))
    named = (f"{reason}{f' [rank {rank}]' * (comm.size > 1)}" for rank, reason in enumerate(reasons) if reason)
    reason = next(named, "")
    if not reason:
        return name, ""
    if needs := "lmvm" if requested else lmvm_only:
        remedy = "mend that, or leave out that option: then lbfgs is used, with the same objective and proof"
        raise InputError(f"{needs} needs PETSc's Python package: {reason}; {remedy}", everywhere=True)
    if set(reasons) == {tao.NOT_INSTALLED}:
        return "lbfgs", ""
    return "lbfgs", f"in lmvm's place, since {reason}; the objective and the proof are the same"


def settings_for(
    measure: str | Measure, solver: str, epsilon: float | None = None, relative: float | None = None, **others: Any
) -> Settings:
    """Return the settings for a measure and solver, 1e-3 to prove by default; InputError if they contradict. Local."""
    names = {field.name for field in fields(Settings)}
    if wrong := set(others) - names:
        raise InputError(f"there is no option {min(wrong)!r} for these rows{did_you_mean(min(wrong), names)}")
    measure = Measure.parse(measure)
    epsilon = 1e-3 if epsilon is None and relative is None else epsilon
    settings = Settings(solver=solver, epsilon=epsilon, relative=relative, **others)
    settings.check_measure(measure.name, measure.family)
    return settings
