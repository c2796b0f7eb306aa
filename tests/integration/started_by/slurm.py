"""A Slurm of one machine, started and stopped by a test: munged, slurmctld and slurmd, all on loopback.

Everything they write is below one folder. The machine stands for two nodes, so that a job can span "hosts".
"""

from __future__ import annotations

import contextlib
import os
import secrets
import shutil
import signal
import socket
import subprocess
import time
from pathlib import Path

NODES = ("one", "two")
CORES = 4
START_SECONDS = 60.0
END_SECONDS = 20.0

PACKAGES = ("munge", "slurmctld", "slurmd", "slurm-client")
_PROGRAMS = ("munged", "slurmctld", "slurmd", "srun", "sbatch", "sinfo")
_SYSTEM = "/usr/sbin:/usr/bin:/sbin:/bin"

_CONFIGURATION = """\
ClusterName=farandole
SlurmctldHost=localhost(127.0.0.1)
SlurmctldPort={controller_port}
SlurmUser=root
SlurmdUser=root
AuthType=auth/munge
AuthInfo=socket={folder}/munge.socket
CredType=cred/munge
StateSaveLocation={folder}/state
SlurmdSpoolDir={folder}/spool.%n
SlurmctldPidFile={folder}/slurmctld.pid
SlurmdPidFile={folder}/slurmd.%n.pid
SlurmctldLogFile={folder}/slurmctld.log
SlurmdLogFile={folder}/slurmd.%n.log
MailProg=/bin/true
MpiDefault=none
ProctrackType=proctrack/linuxproc
TaskPlugin=task/none
SelectType=select/cons_tres
SelectTypeParameters=CR_Core
ReturnToService=2
# The machine may have fewer cores than are asked for.
SlurmdParameters=config_overrides
{nodes}
PartitionName=all Nodes={names} Default=YES MaxTime=INFINITE State=UP
"""


def missing() -> str:
    """Say why there can be no Slurm here; "" if there can."""
    if os.geteuid() != 0:
        return "only root may start slurmd"
    absent = [name for name in _PROGRAMS if shutil.which(name, path=_SYSTEM) is None]
    return f"not installed: {', '.join(absent)}; apt-get install {' '.join(PACKAGES)}" if absent else ""


class Slurm:
    """The running daemons.

    Attributes:
        environment: with these variables, srun and its like find them.
    """

    def __init__(self, folder: Path) -> None:
        """Start them, and wait until jobs are taken.

        Args:
            folder: new and empty; its path must be short enough for the name of a socket.
        """
        self._folder = folder
        self._daemons: list[subprocess.Popen[bytes]] = []
        ports = _free_ports(1 + len(NODES))
        nodes = [
            f"NodeName={name} NodeHostname=localhost NodeAddr=127.0.0.1 Port={port} CPUs={CORES} State=UNKNOWN"
            for name, port in zip(NODES, ports[1:], strict=True)
        ]
        self._configuration = folder / "slurm.conf"
        self._configuration.write_text(
            _CONFIGURATION.format(
                folder=folder, controller_port=ports[0], nodes="\n".join(nodes), names=",".join(NODES)
            )
        )
        self.environment = {"SLURM_CONF": str(self._configuration), "PATH": f"{os.environ['PATH']}:{_SYSTEM}"}
        try:
            self._start_daemons()
        except BaseException:
            self.close()
            raise

    def _start_daemons(self) -> None:
        for name in ("state", *(f"spool.{node}" for node in NODES)):
            (self._folder / name).mkdir()
        key = self._folder / "munge.key"
        key.touch(0o600)
        key.write_bytes(secrets.token_bytes(128))
        files = [
            f"--{what}={self._folder}/munge.{ending}"
            for what, ending in (
                ("socket", "socket"),
                ("key-file", "key"),
                ("pid-file", "pid"),
                ("log-file", "log"),
                ("seed-file", "seed"),
            )
        ]
        # --force: it dislikes folders of others above its own, and /tmp is one.
        self._start("munged", "--foreground", "--force", "--num-threads=2", *files)
        self._until((self._folder / "munge.socket").exists, "munged has a socket")
        self._start("slurmctld", "-D", "-i")
        for node in NODES:
            self._start("slurmd", "-D", "-N", node)
        self._until(lambda: self._states() == ["idle"] * len(NODES), "all nodes are idle")

    def _start(self, program: str, *arguments: str) -> None:
        path = shutil.which(program, path=_SYSTEM)
        assert path is not None
        with (self._folder / f"{program}.out").open("ab") as output:
            self._daemons.append(
                subprocess.Popen(
                    [path, *arguments],
                    stdin=subprocess.DEVNULL,
                    stdout=output,
                    stderr=output,
                    env=os.environ | self.environment,
                    start_new_session=True,
                )
            )

    def _states(self) -> list[str]:
        told = subprocess.run(
            ["sinfo", "--noheader", "--Node", "--format=%T"],
            env=os.environ | self.environment,
            capture_output=True,
            text=True,
            timeout=30,
            check=False,
        )
        return told.stdout.split()

    def _until(self, fact: object, what: str) -> None:
        assert callable(fact)
        deadline = time.monotonic() + START_SECONDS
        while not fact():
            if time.monotonic() > deadline or any(daemon.poll() is not None for daemon in self._daemons):
                raise RuntimeError(f"waited in vain until {what}:\n{self.logs()}")
            time.sleep(0.05)

    def logs(self) -> str:
        """Return the end of what the daemons wrote."""
        texts = []
        for path in sorted([*self._folder.glob("*.log"), *self._folder.glob("*.out")]):
            texts.append(f"--- {path.name}\n" + "\n".join(path.read_text(errors="replace").splitlines()[-20:]))
        return "\n".join(texts)

    def close(self) -> None:
        """Stop them, the last first."""
        for daemon in reversed(self._daemons):
            daemon.terminate()
            try:
                daemon.wait(END_SECONDS)
            except subprocess.TimeoutExpired:
                with contextlib.suppress(ProcessLookupError):
                    os.killpg(daemon.pid, signal.SIGKILL)
                daemon.wait()


def _free_ports(count: int) -> list[int]:
    with contextlib.ExitStack() as stack:
        probes = [stack.enter_context(socket.create_server(("127.0.0.1", 0))) for _ in range(count)]
        return [probe.getsockname()[1] for probe in probes]
