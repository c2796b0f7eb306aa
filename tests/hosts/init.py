"""Process 1 of a host: creates the host around itself, starts its sshd, and determines its lifetime.

It runs as a separate program, in new namespaces, with one end of a socket to the bed as its standard input:

    bed -> init   the blueprint, as JSON (see `host.blueprint`)
    init -> bed   the id by which the bed's side knows this process
    init -> bed   "ready", or what failed
    bed -> init   nothing; the end of the conversation is the end of the host

When the bed's process ends, however it ends, its end of the socket closes; then this process ends, and the kernel ends
all other processes of the host, and removes its mounts and its wires.
"""

from __future__ import annotations

import contextlib
import ctypes
import json
import os
import signal
import socket
import subprocess
from typing import Any

_MS_RDONLY = 1
_MS_REMOUNT = 32
_MS_BIND = 4096
_MS_REC = 16384
_SPACE_FOR_BLUEPRINT = 1 << 20

_libc = ctypes.CDLL(None, use_errno=True)


def main() -> None:
    """Create the host, and run until the bed closes its end of the socket."""
    conversation = socket.socket(socket.AF_UNIX, socket.SOCK_SEQPACKET, fileno=0)
    blueprint = json.loads(conversation.recv(_SPACE_FOR_BLUEPRINT))
    # /proc is still the one of the bed's PID namespace.
    conversation.send(os.readlink("/proc/self").encode())
    try:
        _become_host(blueprint)
    except (OSError, RuntimeError, subprocess.SubprocessError) as error:
        conversation.send(str(error).encode())
        return
    # A process that ends on this host without a parent does not become a zombie. Not before sshd has started: it would
    # inherit this.
    signal.signal(signal.SIGCHLD, signal.SIG_IGN)
    conversation.send(b"ready")
    while conversation.recv(1):
        pass


def _become_host(blueprint: dict[str, Any]) -> None:
    socket.sethostname(blueprint["name"])
    _hide_the_machine(blueprint["private"], blueprint["kept"])
    for path, (text, mode) in blueprint["files"].items():
        _write(path, text, mode)
    for path, text in blueprint["replaced"].items():
        _replace(path, text)
    os.chdir("/root")
    if blueprint["daemon"]:
        _start_daemon(blueprint["daemon"])


def _hide_the_machine(private: dict[str, int], kept: list[str]) -> None:
    """Mount an empty file system over each private folder, and the kept content in it, read-only."""
    # What is opened now is found again when it is hidden.
    handles = {path: os.open(path, os.O_PATH) for path in kept}
    cgroups = os.open("/sys/fs/cgroup", os.O_PATH)
    for folder, mode in private.items():
        _mount("tmpfs", folder, "tmpfs", options=f"mode={mode:o}")
    for path, handle in handles.items():
        _bind_read_only(handle, path)
    # The devices that /sys lists are those of the network it was mounted in.
    _mount("sysfs", "/sys", "sysfs")
    _mount(f"/proc/self/fd/{cgroups}", "/sys/fs/cgroup", flags=_MS_BIND | _MS_REC)
    _mount("proc", "/proc", "proc")


def _bind_read_only(handle: int, path: str) -> None:
    source = f"/proc/self/fd/{handle}"
    if os.path.isdir(source):
        os.makedirs(path, exist_ok=True)
    else:
        os.makedirs(os.path.dirname(path), exist_ok=True)
        open(path, "w").close()
    _mount(source, path, flags=_MS_BIND | _MS_REC)
    _mount("none", path, flags=_MS_BIND | _MS_REMOUNT | _MS_RDONLY)


def _write(path: str, text: str, mode: int) -> None:
    os.makedirs(os.path.dirname(path), mode=0o700, exist_ok=True)
    with open(path, "w", opener=lambda name, flags: os.open(name, flags, mode)) as file:
        file.write(text)


def _replace(path: str, text: str) -> None:
    """Replace a file on the host if the machine has it; do nothing if it lacks it."""
    if not os.path.lexists(path):
        return
    target = os.path.realpath(path)
    own = f"/run/bed{path}"
    _write(own, text, os.stat(target).st_mode & 0o777 if os.path.exists(target) else 0o644)
    if not os.path.exists(target):
        # A link into a private folder, as /etc/resolv.conf often is.
        _write(target, "", 0o644)
    _mount(own, target, flags=_MS_BIND)


def _start_daemon(command: list[str]) -> None:
    """Run a program that goes into the background when it is ready."""
    done = subprocess.run(command, stdin=subprocess.DEVNULL, capture_output=True, text=True, timeout=20, check=False)
    if done.returncode:
        raise RuntimeError(f"{command[0]} did not start: {done.stderr.strip()}")


def _mount(source: str, target: str, kind: str | None = None, flags: int = 0, options: str | None = None) -> None:
    words = [None if word is None else word.encode() for word in (source, target, kind, options)]
    if _libc.mount(words[0], words[1], words[2], ctypes.c_ulong(flags), words[3]):
        raise OSError(ctypes.get_errno(), f"cannot mount {source}: {os.strerror(ctypes.get_errno())}", target)


if __name__ == "__main__":
    # The bed may have gone before there was a message.
    with contextlib.suppress(BrokenPipeError):
        main()
