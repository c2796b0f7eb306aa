"""Entering the namespaces of another process.

A command is started as an ordinary child: its process id, signals and exit code are directly available to the caller,
without an intermediate `nsenter` process. So the PID namespace, which only children enter, is set during the start, and
`nsenter` enters the others and then executes the command.
"""

from __future__ import annotations

import contextlib
import ctypes
import os
import shlex
import subprocess
from collections.abc import Iterator, Sequence

from tests.hosts.errors import BedError

_CLONE_NEWPID = 0x20000000
_COMMAND_SECONDS = 30
# By path: the entered namespaces may have another PATH, or an empty one.
NSENTER = "/usr/bin/nsenter"

_libc = ctypes.CDLL(None, use_errno=True)


@contextlib.contextmanager
def children_in(process: int) -> Iterator[None]:
    """Make children that this thread starts meanwhile run in the PID namespace of a process."""
    _set_pid_namespace_of_children(process)
    try:
        yield
    finally:
        _set_pid_namespace_of_children(os.getpid())


def in_network(process: int, command: Sequence[str], lines: Sequence[str] = ()) -> None:
    """Run a command of this machine in the network of a process, with these lines as its standard input.

    Raises:
        BedError: the command failed.
    """
    done = subprocess.run(
        [NSENTER, f"--net=/proc/{process}/ns/net", "--", *command],
        input="".join(line + "\n" for line in lines),
        capture_output=True,
        text=True,
        timeout=_COMMAND_SECONDS,
        check=False,
    )
    if done.returncode:
        raise BedError(f"`{shlex.join(command)}` failed: {done.stderr.strip()}")


def _set_pid_namespace_of_children(process: int) -> None:
    # The kernel keeps this setting per thread, and lets a thread return to the namespace it is in itself.
    with open(f"/proc/{process}/ns/pid", "rb") as namespace:
        if _libc.setns(namespace.fileno(), _CLONE_NEWPID):
            raise OSError(ctypes.get_errno(), "setns")
