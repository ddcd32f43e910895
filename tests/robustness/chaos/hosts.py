"""Two hosts on one machine: network namespaces with a cable between them, which can be pulled. Needs root."""

from __future__ import annotations

import contextlib
import os
import shutil
import subprocess
from collections.abc import Iterator
from pathlib import Path

NAMES = "chaos1", "chaos2"
_ON = """#!/bin/bash
# on HOST COMMAND...: run a command on a host, with its own network, name and shared memory. mpirun calls it as ssh.
while [ "${1#-}" != "$1" ]; do shift; done
case $1 in 10.79.0.*) host=chaos${1##*.} ;; *) host=$1 ;; esac
shift
exec nsenter --net=/run/netns/$host unshare --uts --ipc --mount bash -c '
  hostname "$0" && mount --bind "$1" /etc/hosts && mount -t tmpfs tmpfs /dev/shm && shift && exec bash -c "$*"' \\
  "$host" HOSTS "$@"
"""


@contextlib.contextmanager
def two_hosts(folder: Path) -> Iterator[list[str]]:
    """Make the hosts; yield the words that start mpirun with a rank on each, none if this machine does not allow it."""
    if os.geteuid() or not all(map(shutil.which, ("ip", "nsenter", "unshare"))) or _ip("netns", "list"):
        yield []
        return
    try:
        yield _launcher(folder) if not any(_ip(*words.split()) for words in _plug()) else []
    finally:
        for name in NAMES:
            _ip("netns", "del", name)


def cut(off: bool) -> bool:
    """Pull the cable of the second host, or plug it in again; return whether that worked."""
    return not _ip("-n", NAMES[1], "link", "set", "eth0", "down" if off else "up")


def _plug() -> Iterator[str]:
    for name in NAMES:
        yield f"netns add {name}"
    yield f"link add eth0 netns {NAMES[0]} type veth peer name eth0 netns {NAMES[1]}"
    for number, name in enumerate(NAMES, start=1):
        yield f"-n {name} addr add 10.79.0.{number}/24 dev eth0"
        yield f"-n {name} link set eth0 up"
        yield f"-n {name} link set lo up"


def _launcher(folder: Path) -> list[str]:
    table, agent = folder / "hosts", folder / "on"
    lines = ["127.0.0.1 localhost", *(f"10.79.0.{number} {name}" for number, name in enumerate(NAMES, start=1))]
    table.write_text("\n".join(lines) + "\n")
    agent.write_text(_ON.replace("HOSTS", str(table)))
    agent.chmod(0o755)
    options = {
        "plm": "rsh",
        "plm_rsh_agent": str(agent),
        "oob_tcp_if_include": "eth0",
        "btl": "vader,self,tcp",
        "btl_tcp_if_include": "eth0",
    }
    words = [word for name, value in options.items() for word in ("--mca", name, value)]
    hosts = ",".join(f"{name}:1" for name in NAMES)
    return ["--host", hosts, *words]


def _ip(*words: str) -> int:
    return subprocess.run(["ip", *words], capture_output=True, check=False).returncode
