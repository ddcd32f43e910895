"""A SLURM cluster of two nodes on this machine: real daemons with their files in a directory of the test.

It needs the programs of Debian's slurm-wlm and munge (`scripts/setup --slurm`). It needs neither root nor a running
daemon, and does not touch SLURM's installation on this system.
"""

from __future__ import annotations

import contextlib
import os
import shutil
import socket
import subprocess
import time
from pathlib import Path

PROGRAMS = ("munged", "slurmctld", "slurmd", "sbatch", "scontrol", "squeue")
NODES, CPUS = 2, 4
CONFIGURATION = """\
ClusterName=distsms
SlurmctldHost={host}(127.0.0.1)
SlurmctldPort={controller_port}
SlurmUser={user}
SlurmdUser={user}
AuthType=auth/munge
AuthInfo=socket={home}/munge/socket,cred_expire=10
CredType=cred/munge
MpiDefault=none
ProctrackType=proctrack/linuxproc
TaskPlugin=task/none
SwitchType=switch/none
JobAcctGatherType=jobacct_gather/none
AccountingStorageType=accounting_storage/none
JobCompType=jobcomp/none
SelectType=select/cons_tres
SelectTypeParameters=CR_CPU
SchedulerType=sched/backfill
SchedulerParameters=sched_interval=1,bf_interval=1,sched_min_interval=0
SlurmdParameters=config_overrides
ReturnToService=2
JobRequeue=1
KillWait=5
MessageTimeout=60
TmpFS={home}
StateSaveLocation={home}/state
SlurmdSpoolDir={home}/spool/%n
SlurmctldPidFile={home}/slurmctld.pid
SlurmdPidFile={home}/slurmd-%n.pid
SlurmctldLogFile={home}/slurmctld.log
SlurmdLogFile={home}/slurmd-%n.log
NodeName=n[1-{nodes}] NodeHostname={host} NodeAddr=127.0.0.1 Port=[{node_ports}] CPUs={cpus} RealMemory={memory}
PartitionName=main Nodes=ALL Default=YES MaxTime=INFINITE State=UP
"""


def missing() -> list[str]:
    """Return the programs that are not installed."""
    path = os.environ["PATH"] + ":/usr/sbin:/sbin"
    return [program for program in PROGRAMS if shutil.which(program, path=path) is None]


class CannotStart(Exception):
    """A daemon has ended by itself, since this machine lacks something; the message has its output."""


class Cluster:
    """A running SLURM, as a context manager. Raises CannotStart if SLURM cannot run on this machine.

    home : a new directory with a short path, since sockets with long paths are not allowed.
    """

    def __init__(self, home: Path) -> None:
        self.home, self._daemons = home, []
        self.env = {
            **os.environ,
            "PATH": os.environ["PATH"] + ":/usr/sbin:/sbin",
            "SLURM_CONF": str(home / "slurm.conf"),
            # Both nodes have the same /dev/shm, so Open MPI must not use shared memory.
            "OMPI_MCA_btl": "self,tcp",
            "PMIX_MCA_psec": "native",  # do not use the system's munge, whose daemon may not run
        }

    def __enter__(self) -> Cluster:
        try:
            self._start()
        except BaseException:
            self.close()
            raise
        return self

    def __exit__(self, *failure: object) -> None:
        self.close()

    def _start(self) -> None:
        home, host = self.home, socket.gethostname().split(".")[0]
        for folder in ("munge", "state", *(f"spool/n{node + 1}" for node in range(NODES))):
            (home / folder).mkdir(parents=True)
        home.chmod(0o755)
        (home / "munge").chmod(0o711)
        key = home / "munge" / "key"
        key.write_bytes(os.urandom(128))
        key.chmod(0o400)
        controller, *nodes = _free_ports(1 + NODES)
        (home / "slurm.conf").write_text(
            CONFIGURATION.format(
                host=host,
                home=home,
                user=_user(),
                controller_port=controller,
                nodes=NODES,
                node_ports=",".join(map(str, nodes)),
                cpus=CPUS,
                memory=64000,  # MB; SLURM does not check it
            )
        )
        munge = [
            f"--{name}={home}/munge/{name.split('-')[0]}"
            for name in ("socket", "key-file", "pid-file", "log-file", "seed-file")
        ]
        self._daemon("munged", "--foreground", "--force", *munge)
        self.wait(lambda: self._alive() and (home / "munge" / "socket").exists(), "munged")
        self._daemon("slurmctld", "-D", "-c")
        for node in range(NODES):
            self._daemon("slurmd", "-D", "-N", f"n{node + 1}")
        self.wait(
            lambda: (
                self._alive()
                and self.run("sinfo", "-h", "-N", "-t", "idle", "-o", "%N", check=False).count("n") >= NODES
            ),
            "nodes",
        )

    def _daemon(self, *words: str) -> None:
        with open(self.home / f"{words[0]}-{len(self._daemons)}.out", "w") as out:
            self._daemons.append(
                subprocess.Popen(words, env=self.env, stdout=out, stderr=subprocess.STDOUT, start_new_session=True)
            )

    def _alive(self) -> bool:
        """Return True if all daemons run; raise CannotStart if one has ended."""
        for number, daemon in enumerate(self._daemons):
            if daemon.poll() is not None:
                name = Path(daemon.args[0]).name
                output = (self.home / f"{name}-{number}.out").read_text().splitlines()
                errors = [line for line in output if "error" in line.lower()] or output[-3:]
                raise CannotStart(f"SLURM cannot start here: {' / '.join(errors)}")
        return True

    def run(self, *words: object, check: bool = True, cwd: Path | None = None) -> str:
        """Run a command of SLURM and return its standard output."""
        done = subprocess.run([*map(str, words)], env=self.env, cwd=cwd, capture_output=True, text=True, timeout=60)
        assert not check or done.returncode == 0, done.stderr
        return done.stdout.strip()

    def submit(self, script: Path, *words: object, cwd: Path) -> str:
        """Submit a script and return the number of the job."""
        return self.run("sbatch", "--parsable", *words, script, cwd=cwd)

    def state(self, job: str) -> dict[str, str]:
        """Return what SLURM reports about a job: JobState, ExitCode, Restarts, ..."""
        words = self.run("scontrol", "show", "job", "-o", job).splitlines()[0].split()
        return dict(word.split("=", 1) for word in words if "=" in word)

    def finished(self, job: str, seconds: float = 240) -> dict[str, str]:
        """Wait until a job has ended, with all tasks of an array, and return its `state`."""
        self.wait(lambda: not self.run("squeue", "-h", "-j", job, check=False), f"job {job}", seconds)
        return self.state(job)

    def wait(self, done, what: str, seconds: float = 60) -> None:
        """Wait until `done()` is true; fail with the logs of the daemons after `seconds`."""
        end = time.monotonic() + seconds
        while not done():
            if time.monotonic() > end:
                logs = "\n".join(f"== {log.name}\n{log.read_text()[-3000:]}" for log in self.home.glob("*.log"))
                raise AssertionError(f"{what}: not ready after {seconds} s\n{logs}")
            time.sleep(0.5)

    def close(self) -> None:
        """End all jobs and daemons."""
        with contextlib.suppress(Exception):
            self.run("scancel", "--signal=KILL", "-u", _user(), check=False)
            self.wait(lambda: not self.run("squeue", "-h", check=False), "the end of all jobs", 20)
        for daemon in reversed(self._daemons):
            daemon.terminate()
        for daemon in self._daemons:
            with contextlib.suppress(subprocess.TimeoutExpired):
                daemon.wait(10)
            daemon.kill()


def _user() -> str:
    import pwd

    return pwd.getpwuid(os.getuid()).pw_name


def _free_ports(count: int) -> list[int]:
    """Return ports that are free now."""
    sockets = [socket.socket() for _ in range(count)]
    for one in sockets:
        one.bind(("127.0.0.1", 0))
    ports = [one.getsockname()[1] for one in sockets]
    for one in sockets:
        one.close()
    return ports
