"""One host: its addresses, its processes and its files."""

from __future__ import annotations

import contextlib
import json
import os
import socket
import subprocess
import sys
from collections.abc import Collection, Mapping, Sequence
from pathlib import Path
from typing import Any

from tests.hosts import init, ssh
from tests.hosts.errors import BedError
from tests.hosts.namespaces import NSENTER, children_in

# What users keep for themselves. Everything else is the machine's, on all hosts: Python, its packages, /usr.
PRIVATE_FOLDERS = {
    "/root": 0o700,
    "/home": 0o755,
    "/tmp": 0o1777,
    "/var/tmp": 0o1777,
    "/var/log": 0o755,
    "/run": 0o755,
    "/dev/shm": 0o1777,
}

_ROOT = Path(__file__).resolve().parents[2]
_LARGEST_MESSAGE = 4096
_BOOT_SECONDS = 30
_END_SECONDS = 30
_SYSTEM_PATH = "/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin"
_UNSHARE = ("unshare", "--mount", "--uts", "--ipc", "--net", "--pid", "--fork", "--kill-child")
# All but the PID namespace: nsenter's names of them, and the kernel's.
_ENTERED = {"mount": "mnt", "uts": "uts", "ipc": "ipc", "net": "net"}

Command = str | Sequence[str | os.PathLike[str]]


def blueprint(
    name: str,
    kept: Sequence[str],
    files: Mapping[str, tuple[str, int]],
    replaced: Mapping[str, str],
    daemon: Sequence[str],
) -> dict[str, Any]:
    """Return the description from which `init` creates a host.

    Args:
        name: the host's name.
        kept: the read-only content of private folders.
        files: files in private folders: text and mode by path.
        replaced: files that replace those of the machine: text by path.
        daemon: a command that goes into the background; empty for none.
    """
    return {
        "name": name,
        "private": PRIVATE_FOLDERS,
        "kept": list(kept),
        "files": dict(files),
        "replaced": dict(replaced),
        "daemon": list(daemon),
    }


def needed_inside(folders: Collection[str], wished: Collection[str] = ()) -> list[str]:
    """Return the parts of these folders that hosts and containers need: Python, its packages, this checkout."""
    library = os.environ.get("FARANDOLE_LIBRARY", "")
    needed = [*wished, sys.prefix, sys.base_prefix, str(_ROOT), library, *sys.path]
    needed += [os.path.realpath(path) for path in needed if path]
    kept: list[str] = []
    for path in sorted({os.path.abspath(path) for path in needed if path}):
        # A private folder as a whole is no part of Python, although it may be on sys.path.
        inside = any(path.startswith(folder + "/") for folder in folders)
        if inside and os.path.exists(path) and not any(path.startswith(folder + "/") for folder in kept):
            kept.append(path)
    return kept


class Host:
    """A host, which exists from `switch_on` until `kill`.

    Attributes:
        name: its name, which all hosts of the bed resolve.
        number: its number in the bed, from 1.
        addresses: its address by network; each device has the name of its network.
        pid: the id of the host's process 1 outside of the host.
    """

    def __init__(self, name: str, number: int, addresses: Mapping[str, str]) -> None:
        """Define the host; `switch_on` creates it."""
        self.name = name
        self.number = number
        self.addresses = dict(addresses)
        self.pid = 0
        self._conversation: socket.socket | None = None
        self._namespaces: subprocess.Popen[bytes] | None = None
        self._started: list[subprocess.Popen[Any]] = []

    @property
    def address(self) -> str:
        """Its address on the first network."""
        return next(iter(self.addresses.values()))

    def switch_on(self, plan: Mapping[str, Any]) -> None:
        """Begin to create the host from its blueprint; its network has only loopback at first."""
        self._conversation, far_end = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
        self._conversation.settimeout(_BOOT_SECONDS)
        with far_end:
            self._namespaces = subprocess.Popen(
                [*_UNSHARE, sys.executable, "-I", "-S", init.__file__],
                stdin=far_end,
                # Ctrl-C is for those who use the hosts.
                start_new_session=True,
            )
        self._conversation.send(json.dumps(plan).encode())

    def await_namespaces(self) -> None:
        """Wait until the host's network can be connected.

        Raises:
            BedError: the machine does not allow it.
        """
        self.pid = int(self._hear() or "0")
        if not self.pid:
            raise BedError(f"{self.name} has no namespaces; run as root, outside of containers that forbid them")

    def await_ready(self) -> None:
        """Wait until the host is ready.

        Raises:
            BedError: the host failed to start.
        """
        said = self._hear()
        if said != "ready":
            raise BedError(f"{self.name} did not start: {said or 'its process 1 ended'}")

    def start(
        self,
        command: Command,
        *,
        environment: Mapping[str, str] | None = None,
        folder: str = "/root",
        **options: Any,
    ) -> subprocess.Popen[str]:
        """Start a command as from a login session on the host, and return its process.

        It is an ordinary child process: `pid` is its id outside of the host, and signals and exit code are those of the
        command. Processes that are still running when the bed ends are killed.

        Args:
            command: the command's words, or a line for bash.
            environment: additions and changes to the environment of the session.
            folder: the working directory.
            options: arguments of `subprocess.Popen`.
        """
        words = ["bash", "-c", command] if isinstance(command, str) else [os.fspath(word) for word in command]
        namespaces = [f"--{kind}=/proc/{self.pid}/ns/{file}" for kind, file in _ENTERED.items()]
        with children_in(self.pid):
            process = subprocess.Popen(
                [NSENTER, *namespaces, "--", "env", f"--chdir={folder}", *words],
                env={**session_environment(), **(environment or {})},
                **{"text": True, **options},
            )
        self._started.append(process)
        return process

    def run(
        self, command: Command, *, input: str | None = None, timeout: float = 60, **options: Any
    ) -> subprocess.CompletedProcess[str]:
        """Run a command like `start`, and return its exit code and output.

        Raises:
            BedError: the command did not end in time.
        """
        stdin = subprocess.DEVNULL if input is None else subprocess.PIPE
        streams = {"stdin": stdin, "stdout": subprocess.PIPE, "stderr": subprocess.PIPE}
        process = self.start(command, **streams, **options)
        try:
            out, err = process.communicate(input, timeout)
        except subprocess.TimeoutExpired as late:
            printed = b"".join(part for part in (late.stdout, late.stderr) if part).decode(errors="replace")
            raise BedError(
                f"{command!r} did not end on {self.name} within {timeout} s; it printed: {printed}"
            ) from None
        return subprocess.CompletedProcess(command, process.returncode, out, err)

    def path(self, path: str) -> Path:
        """Return the path of a host's file outside of the host. Writing to it changes the host's file."""
        return Path(f"/proc/{self.pid}/root{path}")

    def kill(self) -> None:
        """Kill all processes on the host, and so the host."""
        if self._namespaces is None or self._conversation is None or self._namespaces.poll() is not None:
            return
        # The end of the conversation is the end of process 1, and that of all others.
        self._conversation.shutdown(socket.SHUT_RDWR)
        # The namespace ends when all its processes have been waited for, and those started from here have us as parent.
        for process in self._started:
            process.wait(_END_SECONDS)
        self._namespaces.wait(_END_SECONDS)

    def close(self) -> None:
        """Kill the host, and wait for the processes that were started on it."""
        self.kill()
        if self._conversation is not None:
            self._conversation.close()
        for process in self._started:
            for stream in (process.stdin, process.stdout, process.stderr):
                if stream is not None:
                    with contextlib.suppress(BrokenPipeError):
                        stream.close()

    def _hear(self) -> str:
        assert self._conversation is not None, "only a host that was switched on speaks"
        try:
            return self._conversation.recv(_LARGEST_MESSAGE).decode()
        except TimeoutError:
            raise BedError(f"{self.name} is still not ready after {_BOOT_SECONDS} s") from None


def session_environment() -> dict[str, str]:
    """Return the environment of a login session on a host, with the tests' Python first on PATH."""
    passed_on = {name: os.environ[name] for name in (*ssh.FORWARDED, "TERM", "LANG") if name in os.environ}
    path = f"{Path(sys.executable).parent}:{_SYSTEM_PATH}"
    return {"HOME": "/root", "USER": "root", "LOGNAME": "root", "SHELL": "/bin/bash", "PATH": path, **passed_on}
