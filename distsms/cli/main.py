"""The program: one thread per rank, one guard around everything, then the command."""

from __future__ import annotations

import errno
import gc
import math
import os
import sys
import time
import traceback
from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING

from distsms import cli
from distsms.base import program
from distsms.base.errors import EXIT_ERROR, EXIT_INTERRUPTED, EXIT_KILLED, EXIT_OK, DistsmsError
from distsms.base.program import memory_limit
from distsms.base.wording import printable
from distsms.cli.terminal import fold, open_streams, output_was_lost

if TYPE_CHECKING:
    import argparse

    from distsms.base.communicator import Communicator

# These act only before numpy is loaded: a BLAS with a thread per core on every rank slows all of them down.
THREADS = ("OMP_NUM_THREADS", "OPENBLAS_NUM_THREADS", "MKL_NUM_THREADS", "NUMBA_NUM_THREADS")
FAILING_DISK = errno.EIO, errno.ESTALE, errno.ENOSPC, errno.EDQUOT, errno.ENOENT
for _name in THREADS:
    os.environ.setdefault(_name, "1")


def main(argv: Sequence[str] | None = None, parse: Callable[[Sequence[str]], argparse.Namespace] = cli.parse) -> int:
    """Run a command line (without the program's name), which `parse` reads, and return its exit code. One rank that
    fails ends the whole job, since the others would wait for it forever."""
    open_streams()
    try:
        args = parse(sys.argv[1:] if argv is None else argv)
    except SystemExit:  # after --help, --version and usage errors, before MPI starts
        if output_was_lost("distsms"):
            return EXIT_ERROR
        raise
    if (limit := memory_limit()).bytes < program.LEAST_MEMORY:
        need = f"the libraries alone need {program.LEAST_MEMORY >> 20} MiB"
        print(fold(f"{args.program}: {limit}, and {need}; raise the limit"), file=sys.stderr)
        return EXIT_ERROR
    if args.threads is not None:
        os.environ.update(dict.fromkeys(THREADS, str(args.threads)))
    if args.signals is not None:
        args.signals.remember(program=args.program)
    if "numba" not in sys.modules:
        _load_libraries(quiet=getattr(args, "quiet", False))
    from distsms.base.communicator import Communicator
    from distsms.parallel.arguments import require_same_command
    from distsms.parallel.mpi import launched_size, world
    from distsms.parallel.watcher import Watchdog

    comm = Communicator()
    try:
        with Watchdog(args.stall_timeout if args.mpi and launched_size() > 1 else 0) as watchdog:
            if args.mpi:
                comm = world()
                if args.survive:
                    from distsms.parallel.survival import surviving

                    comm = surviving(comm)
                watchdog.watch(comm)
                words = sys.argv[1:] if argv is None else argv
                require_same_command([*words, *(f"--{name}={value}" for name, value in args.given.items())], comm)
            program.options = args.given
            code = args.run(args, comm)
            if output_was_lost(args.program) and code == EXIT_OK and getattr(args, "output", "-") == "-":
                code = EXIT_ERROR  # what was printed is the only result
            # A launcher may kill the other ranks once one returns an exit code other than 0. And the watchers take a
            # rank that is idle from here on for one that was stopped.
            comm.surviving(comm.barrier)
        comm.leave(code)
        return code
    except BaseException as error:
        return _failed(error, args, comm)
    finally:
        program.options = {}


def _failed(error: BaseException, args: argparse.Namespace, comm: Communicator) -> int:
    """Say what has failed, end the other ranks unless they fail alike, and return the exit code."""
    rank = f"rank {comm.rank} of {comm.size}"
    place, code, alike = f"{rank} on {os.uname().nodename}", EXIT_ERROR, False
    if isinstance(error, DistsmsError):
        alike, code = error.everywhere and not comm.dead, error.exit_code
        where = "" if comm.size == 1 or error.everywhere else f"{rank}: "
        gone = "" if program.has_working_folder() else f" ({program.NO_WORKING_FOLDER})"
        if comm.dead:  # another rank may still wait for this one; the first that wakes up reports it and ends all
            time.sleep(min(comm.rank, 4) * 0.5)
        text = "" if alike and not comm.is_root else fold(f"{args.program}: {where}{printable(str(error))}{gone}")
    elif isinstance(error, comm.failures):
        time.sleep(min(comm.rank, 4) * 0.5)  # the first rank that wakes up reports it, and ends the others
        missing = "no model was written, since the rows were not loaded yet"
        when = f"the model is in {args.written}" if args.written else missing
        died = "another rank has died while the run could not go on without it"
        text, code = fold(f"{args.program}: {place}: {died}; {when} ({error})"), EXIT_KILLED
    elif isinstance(error, KeyboardInterrupt):
        text, code = f"{args.program}: interrupted", EXIT_INTERRUPTED
    elif isinstance(error, MemoryError):
        limited = "" if (limit := memory_limit()).bytes == math.inf else f" ({limit})"
        limited += f": {error}" if str(error) else ""
        text = f"{args.program}: {place} is out of memory{limited}. More ranks hold less each"
        if "memory" in args:
            text += ", and with --memory SIZE, rows that do not fit are read from the disk on each pass"
        text = fold(text)
    elif error is program.failure_of_standard_output() and output_was_lost(args.program):
        text = ""
    else:
        why = f" failed:\n{traceback.format_exc()}"
        if not program.has_working_folder():
            why = f": {program.NO_WORKING_FOLDER}. Go to a folder that exists (cd), and give the command again"
        elif isinstance(error, OSError) and error.errno in FAILING_DISK:
            gone = ", or a file was taken away" if error.errno == errno.ENOENT else ""
            why = f": a disk or a file server fails{gone}: {error}. Give the command again when it works"
        text = f"{args.program}: {place}{why}"
    if text:
        print(text, file=sys.stderr, flush=True)
    if not alike and comm.size > 1:
        comm.abort(EXIT_ERROR if isinstance(error, DistsmsError) else code)
    return code


def _load_libraries(quiet: bool) -> None:
    """Load NumPy and Numba. A search for garbage would find none among what they make, and take up to 0.1 s."""
    gc.disable()
    from distsms.base.jit import compiling

    program.runs, compiling.silent = True, quiet
    gc.freeze()  # later searches leave out all that there is now
    gc.enable()
