"""Run the program on simulated ranks of this process: what `tests.support.program` does under mpirun, much faster."""

from __future__ import annotations

import json
from typing import Any

import distsms.cli.main as program
from tests.support import disturbed
from tests.support.simulated_job import Job


def run(size: int, *words: Any, code: int = 0) -> str:
    """Run `distsms WORDS` on so many ranks and return its standard output, or with code=1 its standard error.

    Fails unless all ranks end with this exit code, or one of them ends the others with it. Let trainings have a solver
    other than lmvm: PETSc would start MPI in this process.
    """
    out, err = list[str](), list[str]()
    job = Job(size, lambda rank: program.main([*map(str, words)]), switching=0.2)

    def keep() -> None:
        out.extend(rank.out.getvalue() for rank in job.ranks)
        err.extend(rank.err.getvalue() for rank in job.ranks)

    job.ended = keep  # type: ignore[method-assign] - later, ranks that another one has ended would say more
    with disturbed.installed():
        job.run()
    found = {rank.result for rank in job.ranks} if job.code is None else {job.code}
    assert found == {code}, f"exit codes {found}\n{''.join(out)}\n{''.join(err)}"
    return "".join(err if code == 1 else out)


def run_json(size: int, *words: Any) -> Any:
    return json.loads(run(size, *words, "--json"))
