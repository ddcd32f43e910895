"""Run the program in a new process, which is forked from a process that has already imported the package.

Importing takes most of the time of a small command. The server has imported the package, but has started neither MPI
nor PETSc, and forks a process for each command. Such a process has its own folder, environment, standard input and
output, and exit code, as if it had been started directly. But a variable of the environment that a library reads while
it is imported has no effect; tests of such variables start Python. Shell scripts find a program `distsms` in
`programs()`, which asks the server in the same way.
"""

from __future__ import annotations

import array
import atexit
import contextlib
import functools
import importlib
import json
import os
import selectors
import signal
import socket
import subprocess
import sys
import tempfile
import time
from pathlib import Path
from typing import Any

from distsms import cli

ROOT = Path(__file__).resolve().parents[2]
PRELOADED = ["distsms.__main__", "distsms.cli.train_text", "distsms.workflow.train"]
PRELOADED += [*(f"distsms.cli.{name}" for name in cli.COMMANDS), "scipy.sparse", "scipy.special", "scipy.optimize"]
"""The modules that the server imports. `distsms.__main__` is the first, since it sets the number of threads."""
CLIENT = """\
#!{python} -IS
import array, json, os, signal, socket, sys

if "OMPI_COMM_WORLD_SIZE" in os.environ:  # a rank
    os.execv({python!r}, [{python!r}, "-m", "distsms", *sys.argv[1:]])
server = socket.socket(socket.AF_UNIX)
server.connect({address!r})
words = json.dumps([sys.argv[1:], os.getcwd(), dict(os.environ)]).encode()
files = [(socket.SOL_SOCKET, socket.SCM_RIGHTS, array.array("i", [0, 1, 2]))]
server.sendmsg([len(words).to_bytes(4, "big")], files)
server.sendall(words)
answers = server.makefile()
child = int(answers.readline())
for one in (signal.SIGTERM, signal.SIGINT, signal.SIGHUP, signal.SIGUSR1, signal.SIGUSR2):
    signal.signal(one, lambda number, frame: os.kill(child, number))
code = int(answers.readline())
if code < 0:
    signal.signal(-code, signal.SIG_DFL)
    os.kill(os.getpid(), -code)
sys.exit(code)
"""


def run(words: list[str], seconds: float) -> tuple[int, str, str]:
    """Run `distsms WORDS` to its end; return its exit code, standard output and standard error.

    If it takes longer than `seconds`, it is killed, and TimeoutError is raised.
    """
    with (
        tempfile.TemporaryFile("w+") as out,
        tempfile.TemporaryFile("w+") as err,
        socket.socket(socket.AF_UNIX) as server,
    ):
        server.connect(str(_server() / "socket"))
        request = json.dumps([words, os.getcwd(), dict(os.environ)]).encode()
        files = array.array("i", [0, out.fileno(), err.fileno()])
        server.sendmsg([len(request).to_bytes(4, "big")], [(socket.SOL_SOCKET, socket.SCM_RIGHTS, files)])
        server.sendall(request)
        server.settimeout(seconds)
        answers = server.makefile()
        child = int(answers.readline())
        try:
            code = int(answers.readline())
        except TimeoutError:
            os.kill(child, signal.SIGKILL)
            raise TimeoutError(f"distsms {' '.join(words)}: still running after {seconds} s") from None
        for file in (out, err):
            file.seek(0)
        return code, out.read(), err.read()


def programs() -> Path:
    """Return a folder with a program `distsms`, to be the first in the PATH of a shell."""
    return _server() / "programs"


@functools.cache
def _server() -> Path:
    """Return the folder of the server, which the first of the processes of a run of tests starts for all of them."""
    tests = os.environ.setdefault("TESTS_PROCESS", f"{os.getpid()}-{time.time_ns()}")
    folder = Path(tempfile.gettempdir()) / f"forked-{tests}"
    process = None
    with contextlib.suppress(FileExistsError):
        (folder / "programs").mkdir(parents=True)
        program = folder / "programs" / "distsms"
        program.write_text(CLIENT.format(python=sys.executable, address=str(folder / "socket")))
        program.chmod(0o755)
        words = [sys.executable, "-m", "tests.support.forked", str(folder), tests.partition("-")[0]]
        process = subprocess.Popen(words, cwd=ROOT, start_new_session=True)
        atexit.register(process.poll)  # while it is referred to, nothing warns that it still runs
    until = time.monotonic() + 60
    while not (folder / "socket").exists():
        ended = time.monotonic() > until or (process is not None and process.poll() is not None)
        assert not ended, "there is no server of forked programs"
        time.sleep(0.02)
    return folder


def serve(folder: Path, tests: int) -> None:
    """Fork a process for each request, until the process that began the tests has ended."""
    for name in PRELOADED:
        importlib.import_module(name)
    listener = socket.socket(socket.AF_UNIX)
    listener.bind(str(folder / "new"))
    listener.listen(64)
    # A signal that is handled also writes a byte, which ends the wait.
    awake, wake = socket.socketpair()
    wake.setblocking(False)
    signal.set_wakeup_fd(wake.fileno())
    signal.signal(signal.SIGCHLD, lambda number, frame: None)
    os.rename(folder / "new", folder / "socket")
    clients: dict[int, socket.socket] = {}
    selector = selectors.DefaultSelector()
    selector.register(listener, selectors.EVENT_READ)
    selector.register(awake, selectors.EVENT_READ)
    try:
        while os.path.exists(f"/proc/{tests}") or clients:
            for key, _ in selector.select(timeout=1):
                if key.fileobj is awake:
                    awake.recv(4096)
                else:
                    client, _ = listener.accept()
                    clients[_fork(client)] = client
            _answer_ended(clients)
    finally:
        subprocess.run(["rm", "-rf", str(folder)], check=False)


def _fork(client: socket.socket) -> int:
    """Fork a process for a client's command, and tell the client its number."""
    head, ancillary, _, _ = client.recvmsg(4, socket.CMSG_SPACE(3 * array.array("i").itemsize))
    files = array.array("i")
    files.frombytes(ancillary[0][2])
    length, text = int.from_bytes(head, "big"), b""
    while len(text) < length:
        text += client.recv(length - len(text))
    child = os.fork()
    if child == 0:
        signal.set_wakeup_fd(-1)
        signal.signal(signal.SIGCHLD, signal.SIG_DFL)
        _command(*json.loads(text), files)
    for file in files:
        os.close(file)
    client.sendall(f"{child}\n".encode())
    return child


def _answer_ended(clients: dict[int, socket.socket]) -> None:
    """Tell the clients whose processes have ended their exit codes; minus the number of the signal that ended one."""
    while clients:
        child, status = os.waitpid(-1, os.WNOHANG)
        if child == 0:
            return
        with clients.pop(child) as client, contextlib.suppress(BrokenPipeError):  # the client has been killed
            client.sendall(f"{os.waitstatus_to_exitcode(status)}\n".encode())


def _command(words: list[str], folder: str, environment: dict[str, str], files: Any) -> None:
    """Run the command in the forked process, and end it."""
    from distsms.cli.main import THREADS, main

    for number, file in enumerate(files):
        os.dup2(file, number)
        os.close(file)
    os.setsid()
    sys.stdin = open(0, closefd=False)  # noqa: SIM115 - those of the server may be of another kind
    sys.stdout, sys.stderr = open(1, "w", closefd=False), open(2, "w", buffering=1, closefd=False)  # noqa: SIM115
    code: Any = 1
    try:
        os.chdir(folder)
        threads = {name: "1" for name in THREADS}
        os.environ.clear()
        os.environ.update(threads | environment)
        sys.argv = ["distsms", *words]
        code = main(words)
    except SystemExit as end:
        code = end.code
    except BaseException:
        sys.excepthook(*sys.exc_info())
    finally:
        # The interpreter would do this when it ends, but a forked process skips it.
        atexit._run_exitfuncs()
        if petsc := sys.modules.get("petsc4py.PETSc"):
            petsc._finalize()
        if "mpi4py.MPI" in sys.modules and (mpi := sys.modules["mpi4py.MPI"]).Is_initialized():
            mpi.Finalize()
        if isinstance(code, str):
            print(code, file=sys.stderr)
            code = 1
        for stream in (sys.stdout, sys.stderr):
            try:
                stream.flush()
            except (OSError, ValueError):
                code = code or 120
        os._exit(code or 0)


if __name__ == "__main__":
    serve(Path(sys.argv[1]), int(sys.argv[2]))
