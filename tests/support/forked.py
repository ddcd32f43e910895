"""Run the program in a new process, which is forked from a process that has already imported the package.

Importing takes most of the time of a small command. The forkserver of `multiprocessing` has imported the package, but
has started neither MPI nor PETSc, and forks a process for each command. Such a process has its own folder, environment,
standard output and exit code, as if it had been started directly. But a variable of the environment that a library
reads while it is imported has no effect; tests of such variables start Python.
"""

from __future__ import annotations

import atexit
import multiprocessing
import os
import sys
import tempfile

from distsms import cli

PRELOADED = ["distsms.__main__", "distsms.cli.train_text", "distsms.training.fit", __name__]
PRELOADED += [*(f"distsms.cli.{name}" for name in cli.COMMANDS), "scipy.sparse", "scipy.special", "scipy.optimize"]
"""The modules that the server imports. `distsms.__main__` is the first, since it sets the number of threads."""


def run(words: list[str], seconds: float) -> tuple[int, str, str]:
    """Run `distsms WORDS` to its end; return its exit code, standard output and standard error.

    If it takes longer than `seconds`, it is killed, and TimeoutError is raised.
    """
    server = multiprocessing.get_context("forkserver")
    server.set_forkserver_preload(PRELOADED)
    with tempfile.TemporaryFile("w+") as out, tempfile.TemporaryFile("w+") as err:
        files = [f"/proc/{os.getpid()}/fd/{file.fileno()}" for file in (out, err)]
        process = server.Process(target=_command, args=(words, os.getcwd(), dict(os.environ), files))
        process.start()
        process.join(seconds)
        if process.exitcode is None:
            process.kill()
            process.join()
            raise TimeoutError(f"distsms {' '.join(words)}: still running after {seconds} s")
        out.seek(0)
        err.seek(0)
        return process.exitcode, out.read(), err.read()


def _command(words: list[str], folder: str, environment: dict[str, str], files: list[str]) -> None:
    """Run the command in the forked process."""
    from distsms.__main__ import THREADS, main

    for number, file in enumerate(files, start=1):
        os.dup2(os.open(file, os.O_WRONLY | os.O_APPEND), number)
    os.setsid()
    os.chdir(folder)
    threads = {name: "1" for name in THREADS}
    os.environ.clear()
    os.environ.update(threads | environment)
    sys.argv = ["distsms", *words]
    code = 1
    try:
        code = main(words)
    except SystemExit as end:
        code = end.code
    finally:
        # The interpreter would do this when it ends, but a forked process skips it.
        atexit._run_exitfuncs()
        if petsc := sys.modules.get("petsc4py.PETSc"):
            petsc._finalize()
        if "mpi4py.MPI" in sys.modules and (mpi := sys.modules["mpi4py.MPI"]).Is_initialized():
            mpi.Finalize()
    sys.exit(code)
