"""A real Slurm cluster on this machine: a controller, nodes, and optionally accounting. For tests, and to try the
target `slurm` without your own cluster. Other machines reach only the daemons' ports, which take requests signed with a
key made for this cluster alone.

    python tools/slurm_cluster.py install              Debian's packages, as root; about a minute
    python tools/slurm_cluster.py start DIR [NODES]    starts it and prints `export SLURM_CONF=...`
    python tools/slurm_cluster.py stop DIR             cancels its jobs and ends every daemon that it started
    python tools/slurm_cluster.py kill DIR NODE        kill -9 of a node's daemon: what a lost node looks like
    python tools/slurm_cluster.py revive DIR NODE      brings it back
    python tools/slurm_cluster.py guard DIR PID        stops it and removes DIR when that process has ended

There are two partitions: `train`, and `urgent`, whose jobs take the nodes of those in `train`. Seen with Slurm 22.05.
"""

from __future__ import annotations

import argparse
import os
import secrets
import shutil
import signal
import socket
import subprocess
import sys
import time
from collections.abc import Callable, Mapping, Sequence
from contextlib import ExitStack, suppress
from dataclasses import dataclass
from pathlib import Path

PACKAGES = ("slurm-wlm", "slurmdbd", "munge", "mariadb-server")
PROGRAMS = ("slurmctld", "slurmd", "munged", "sbatch")
ACCOUNTING = ("slurmdbd", "mariadbd", "mariadb-install-db")

_PATIENCE = 600.0
"""Seconds that a daemon may take to answer."""

_DBD_CONF = """\
AuthType=auth/munge
AuthInfo=socket={folder}/munge/socket
DbdHost={host}
DbdAddr=127.0.0.1
DbdPort={dbd_port}
SlurmUser=root
StorageType=accounting_storage/mysql
StorageHost=localhost
StorageUser=root
StorageLoc=slurm_acct
PidFile={folder}/slurmdbd.pid
LogFile={folder}/log/slurmdbd.log
"""

_CONF = """\
ClusterName=here
SlurmctldHost={host}(127.0.0.1)
SlurmctldPort={ctld_port}
SlurmUser=root
SlurmdUser=root
AuthType=auth/munge
AuthInfo=socket={folder}/munge/socket,cred_expire=5
StateSaveLocation={folder}/state
SlurmdSpoolDir={folder}/spool/%n
SlurmctldPidFile={folder}/slurmctld.pid
SlurmdPidFile={folder}/slurmd.%n.pid
SlurmctldLogFile={folder}/log/slurmctld.log
SlurmdLogFile={folder}/log/slurmd.%n.log
ProctrackType=proctrack/linuxproc
TaskPlugin=task/none
MpiDefault=none
SelectType=select/cons_tres
SelectTypeParameters=CR_Core
SchedulerParameters=sched_min_interval=200000,sched_interval=2,bf_interval=2
JobAcctGatherType=jobacct_gather/linux
JobRequeue=1
PreemptType=preempt/partition_prio
PreemptMode=REQUEUE
KillWait=10
MinJobAge={min_job_age}
ReturnToService=2
SlurmdTimeout={node_timeout}
"""

_WITH_ACCOUNTING = """\
AccountingStorageType=accounting_storage/slurmdbd
AccountingStorageHost=127.0.0.1
AccountingStoragePort={dbd_port}
AccountingStoragePass={folder}/munge/socket
AccountingStoreFlags=job_comment
"""

_NODE = "NodeName=n{number} NodeHostname={host} NodeAddr=127.0.0.1 Port={port} CPUs=2 RealMemory=4000 State=UNKNOWN\n"
_PARTITIONS = """\
PartitionName=train Nodes=n[1-{nodes}] Default=YES MaxTime=INFINITE State=UP PriorityTier=1
PartitionName=urgent Nodes=n[1-{nodes}] MaxTime=INFINITE State=UP PriorityTier=10
PartitionName=short Nodes=n[1-{nodes}] MaxTime=10 State=UP PriorityTier=1
"""


def find_missing(*, accounting: bool = True) -> list[str]:
    """Return the programs of a cluster that this machine lacks; a cluster needs root, too."""
    wanted = (*PROGRAMS, *(ACCOUNTING if accounting else ()))
    path = f"{os.environ.get('PATH', '')}:/usr/sbin:/sbin"
    missing = [name for name in wanted if shutil.which(name, path=path) is None]
    return missing if os.geteuid() == 0 else [*missing, "root"]


def install() -> None:
    """Install Debian's packages."""
    env = {**os.environ, "DEBIAN_FRONTEND": "noninteractive"}
    for command in (
        ["update", "-qq"],
        ["install", "-y", "-qq", "--no-install-recommends", *PACKAGES],
    ):
        subprocess.run(["apt-get", *command], env=env, check=True, stdout=subprocess.DEVNULL)


@dataclass(frozen=True)
class Cluster:
    """A cluster with all its files in one folder."""

    folder: Path

    @property
    def environ(self) -> dict[str, str]:
        """Return the variables by which Slurm's commands find the cluster."""
        path = f"{os.environ.get('PATH', '')}:/usr/sbin:/sbin"
        return {**os.environ, "SLURM_CONF": str(self.folder / "slurm.conf"), "PATH": path}

    @classmethod
    def start(
        cls,
        folder: Path,
        nodes: int = 2,
        *,
        accounting: bool = True,
        min_job_age: int = 30,
        node_timeout: int = 10,
    ) -> Cluster:
        """Start every daemon. Return when all nodes are idle."""
        cluster = cls(folder.resolve())
        for name in ("state", "spool", "log", "munge", "db"):
            (cluster.folder / name).mkdir(parents=True, exist_ok=True)
        cluster.folder.chmod(0o755)
        (cluster.folder / "munge").chmod(0o755)
        ctld_port, dbd_port, *ports = _free_ports(2 + nodes)
        values: dict[str, object] = {
            "folder": cluster.folder,
            "host": socket.gethostname().partition(".")[0],
            "ctld_port": ctld_port,
            "dbd_port": dbd_port,
            "min_job_age": min_job_age,
            "node_timeout": node_timeout,
            "nodes": nodes,
        }
        cluster._start_munge()
        database = cluster._start_accounting(values) if accounting else None
        node_lines = [
            _NODE.format(number=n, port=port, **values) for n, port in enumerate(ports, start=1)
        ]
        conf = _CONF + (_WITH_ACCOUNTING if accounting else "")
        text = conf.format(**values) + "".join(node_lines) + _PARTITIONS.format(**values)
        (cluster.folder / "slurm.conf").write_text(text)
        if accounting:
            cluster.run("sacctmgr", "-i", "add", "cluster", "here", check=False)
        cluster.run("slurmctld")
        _wait(
            lambda: cluster.run("scontrol", "ping", check=False).returncode == 0,
            "slurmctld",
            database,
        )
        for number in range(1, nodes + 1):
            cluster.revive(f"n{number}")
        _wait(cluster.is_idle, "idle nodes")
        dead = [
            f"n{number}" for number in range(1, nodes + 1) if not cluster.has_daemon(f"n{number}")
        ]
        if dead:
            raise RuntimeError(
                f"no daemon runs for {', '.join(dead)}; {cluster.folder}/log says why"
            )
        return cluster

    def run(
        self, *command: str, check: bool = True, env: Mapping[str, str] = {}
    ) -> subprocess.CompletedProcess[str]:
        """Run one of Slurm's commands."""
        environ = {**self.environ, **env}
        result = subprocess.run(command, env=environ, check=False, capture_output=True, text=True)
        if check and result.returncode:
            raise RuntimeError(
                f"{' '.join(command)} ended with {result.returncode}: {result.stdout}{result.stderr}"
            )
        return result

    def is_idle(self) -> bool:
        """Return whether every node waits for work."""
        return set(self.run("sinfo", "-h", "-N", "-o", "%T", check=False).stdout.split()) == {
            "idle"
        }

    def has_daemon(self, node: str) -> bool:
        """Return whether a node's daemon runs. Slurm also calls a node idle when another node's daemon has its port."""
        try:
            return _runs(self._pid(f"slurmd.{node}.pid"))
        except (OSError, ValueError):
            return False

    def kill(self, node: str) -> None:
        """Kill a node's daemon with kill -9."""
        os.kill(self._pid(f"slurmd.{node}.pid"), signal.SIGKILL)

    def revive(self, node: str) -> None:
        """Start a node's daemon."""
        self.run("slurmd", "-N", node)

    def stop(self) -> None:
        """Stop everything that was started, the jobs first."""
        self.run("scancel", "--user=root", check=False)
        with suppress(TimeoutError):
            _wait(
                lambda: not self.run("squeue", "-h", check=False).stdout.strip(),
                "the end of all jobs",
            )
        files = [
            *(path.name for path in self.folder.glob("slurmd.*.pid")),
            "slurmctld.pid",
            "slurmdbd.pid",
        ]
        for name in (*files, "munge/pid", "db/pid"):
            with suppress(OSError, ValueError):
                pid = self._pid(name)
                os.kill(pid, signal.SIGTERM)
                with suppress(TimeoutError):
                    _wait(lambda pid=pid: not _runs(pid), name)

    def guard(self, pid: int) -> None:
        """Stop the cluster when a process has ended, however it ended, and remove the folder."""
        with suppress(ProcessLookupError):
            while True:
                os.kill(pid, 0)
                time.sleep(1)
        self.stop()
        shutil.rmtree(self.folder, ignore_errors=True)

    def _pid(self, name: str) -> int:
        return int((self.folder / name).read_text())

    def _start_munge(self) -> None:
        munge = self.folder / "munge"
        (munge / "key").write_bytes(secrets.token_bytes(64))
        (munge / "key").chmod(0o400)
        options = {
            "key-file": "key",
            "socket": "socket",
            "pid-file": "pid",
            "log-file": "log",
            "seed-file": "seed",
        }
        self.run(
            "munged", "--force", *(f"--{name}={munge / file}" for name, file in options.items())
        )

    def _start_accounting(self, values: Mapping[str, object]) -> subprocess.Popen[bytes]:
        """Return the process of the database."""
        database = self.folder / "db"
        # A MariaDB that starts removes the temporary tables of all others in its folder for them,
        # /tmp.
        own = {"TMPDIR": str(database / "tmp")}
        (database / "tmp").mkdir()
        # The kernel's requests for asynchronous access are few, and other databases of this machine
        # take them, too.
        synchronous = "--innodb-use-native-aio=0"
        make = [
            "--user=root",
            f"--datadir={database}/data",
            "--auth-root-authentication-method=normal",
        ]
        self.run("mariadb-install-db", *make, synchronous, env=own)
        with (self.folder / "log" / "db.log").open("wb") as log:
            process = subprocess.Popen(
                [
                    "mariadbd", "--no-defaults", "--user=root", f"--datadir={database}/data",
                    f"--socket={database}/socket", f"--pid-file={database}/pid", "--skip-networking",
                    "--innodb-buffer-pool-size=64M", "--innodb-log-file-size=16M", synchronous,
                ],
                env={**self.environ, **own}, stdout=log, stderr=log, start_new_session=True,
            )  # fmt: skip
        ping = ("mariadb-admin", f"--socket={database}/socket", "-u", "root", "ping")
        _wait(lambda: self.run(*ping, check=False).returncode == 0, "the database", process)
        conf = self.folder / "slurmdbd.conf"
        conf.write_text(_DBD_CONF.format(**values))
        conf.chmod(0o600)
        self.run("slurmdbd", env={"MYSQL_UNIX_PORT": f"{database}/socket", "SLURM_CONF": str(conf)})
        _wait(lambda: _answers(int(str(values["dbd_port"]))), "slurmdbd", process)
        return process


def _free_ports(count: int) -> list[int]:
    """Return distinct ports on which nothing listens. They are below the range of outgoing connections on Linux (32768
    and up), so that none takes the port of a node while its daemon is down; jobs use 20000 and up."""
    with ExitStack() as held:
        ports: list[int] = []
        while len(ports) < count:
            listener, port = held.enter_context(socket.socket()), 10000 + secrets.randbelow(10000)
            with suppress(OSError):
                listener.bind(("127.0.0.1", port))
                ports.append(port)
        return ports


def _runs(pid: int) -> bool:
    """Return whether a process runs. A zombie does not run."""
    try:
        return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0] != "Z"
    except OSError:
        return False


def _answers(port: int) -> bool:
    with suppress(OSError), socket.create_connection(("127.0.0.1", port), timeout=1):
        return True
    return False


def _wait(
    condition: Callable[[], bool], what: str, database: subprocess.Popen[bytes] | None = None
) -> None:
    deadline = time.monotonic() + _PATIENCE
    while not condition():
        if database is not None and database.poll() is not None:
            raise RuntimeError(
                f"the database ended with {database.returncode} before {what} came up"
            )
        if time.monotonic() > deadline:
            raise TimeoutError(f"gave up waiting for {what}")
        time.sleep(0.2)


def main(arguments: Sequence[str]) -> int:
    """Run the command line."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("command", choices=["install", "start", "stop", "kill", "revive", "guard"])
    parser.add_argument("folder", nargs="?", type=Path)
    parser.add_argument("what", nargs="?", help="how many nodes, the name of one, or a process")
    parser.add_argument(
        "--forgetful",
        action="store_true",
        help="no accounting, and finished jobs are forgotten soon",
    )
    parser.add_argument(
        "--patient",
        action="store_true",
        help="a node may be silent for a minute, rather than ten seconds, before it is lost",
    )
    parser.add_argument(
        "--until", metavar="PID", help="stop and remove it when that process has ended"
    )
    given = parser.parse_args(arguments)
    if given.command == "install":
        install()
        return 0
    if given.folder is None:
        parser.error("name a folder")
    if given.command == "start":
        missing = find_missing(accounting=not given.forgetful)
        if missing:
            parser.error(f"not here: {', '.join(missing)}; `install` installs the packages")
        kept = 2 if given.forgetful else 30
        cluster = Cluster.start(
            given.folder,
            int(given.what or 2),
            accounting=not given.forgetful,
            min_job_age=kept,
            node_timeout=60 if given.patient else 10,
        )
        if given.until:
            guard = [sys.executable, __file__, "guard", str(cluster.folder), given.until]
            subprocess.Popen(
                guard, start_new_session=True, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL
            )
        print(f"export SLURM_CONF={cluster.environ['SLURM_CONF']}")
        return 0
    cluster = Cluster(given.folder.resolve())
    if given.command == "stop":
        cluster.stop()
    elif given.what is None:
        parser.error("name a node: n1")
    elif given.command == "guard":
        cluster.guard(int(given.what))
    elif given.command == "kill":
        cluster.kill(given.what)
    else:
        cluster.revive(given.what)
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
