"""Processes that end with the one that has started them, however that ends."""

from __future__ import annotations

import contextlib
import ctypes
import signal
import socket
import subprocess

_PR_SET_PDEATHSIG = 1
_libc = ctypes.CDLL(None, use_errno=True)
STOP_SECONDS = 10.0


def die_with_parent() -> None:
    """Have the kernel kill this process when its parent ends. Run in the child, before it becomes the program."""
    _libc.prctl(_PR_SET_PDEATHSIG, signal.SIGKILL)


def stop(process: subprocess.Popen[bytes], seconds: float = STOP_SECONDS) -> None:
    """Ask a process to end, and kill it if it does not. No-op when it has ended."""
    process.terminate()
    with contextlib.suppress(subprocess.TimeoutExpired):
        process.wait(seconds)
    process.kill()
    process.wait(seconds)


def free_ports(count: int) -> list[int]:
    """Return a number of ports of this machine that are free now."""
    sockets = [socket.create_server(("127.0.0.1", 0)) for _ in range(count)]
    try:
        return [each.getsockname()[1] for each in sockets]
    finally:
        for each in sockets:
            each.close()
