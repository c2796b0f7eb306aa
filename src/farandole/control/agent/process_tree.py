"""Relations of processes in the kernel: parents and children, and processes that die with others. Linux only."""

from __future__ import annotations

import ctypes
import os
import signal
from collections.abc import Callable, Iterable

_PR_SET_PDEATHSIG = 1
_PR_SET_CHILD_SUBREAPER = 36

# Loaded before any fork: between fork and exec a child must not take the loader's locks.
_libc = ctypes.CDLL(None, use_errno=True)


def become_subreaper() -> None:
    """Adopt every descendant whose parent dies, so that none of them escapes.

    Raises:
        OSError: the kernel refuses.
    """
    if _libc.prctl(_PR_SET_CHILD_SUBREAPER, 1, 0, 0, 0) != 0:
        raise OSError(ctypes.get_errno(), "prctl(PR_SET_CHILD_SUBREAPER) failed")


def die_with_parent(parent: int, signum: int = signal.SIGKILL) -> Callable[[], None]:
    """Return a function for a child to call between fork and exec, so that it gets a signal when `parent` is killed.

    The thread that forks must live as long as the parent: the kernel sends the signal when that *thread* ends.
    """

    def arrange() -> None:
        _libc.prctl(_PR_SET_PDEATHSIG, signum, 0, 0, 0)
        if os.getppid() != parent:
            os._exit(128 + signal.SIGKILL)  # The parent died before the request took effect.

    return arrange


class ProcessTree:
    """A snapshot of parents and children."""

    def __init__(self) -> None:
        self._children: dict[int, list[int]] = {}
        self._dead: set[int] = set()
        for name in os.listdir("/proc"):
            entry = _parent_and_life(int(name)) if name.isdigit() else None
            if entry is None:
                continue
            parent, lives = entry
            self._children.setdefault(parent, []).append(int(name))
            if not lives:
                self._dead.add(int(name))

    def below(self, ancestor: int) -> list[int]:
        """Return the living (not zombie) processes below `ancestor`, in all sessions."""
        found = []
        todo = [ancestor]
        while todo:
            below = self._children.get(todo.pop(), [])
            todo += below
            found += [pid for pid in below if pid not in self._dead]
        return found


def descendants(ancestor: int) -> list[int]:
    """Return the living (not zombie) processes below `ancestor`, in all sessions."""
    return ProcessTree().below(ancestor)


def carrying(variable: str) -> list[int]:
    """Return the live processes that were started with `NAME=value` in their environment, except this process."""
    others = (int(name) for name in os.listdir("/proc") if name.isdigit() and int(name) != os.getpid())
    return [pid for pid in others if started_with(pid, variable)]


def started_with(pid: int, variable: str) -> bool:
    """Return whether a process had `NAME=value` in its environment when it was started."""
    try:
        with open(f"/proc/{pid}/environ", "rb") as file:
            return variable.encode() in file.read().split(b"\0")
    except OSError:
        return False  # It is gone, or belongs to another user.


def session_of(pid: int) -> int:
    """Return the session of a process: the id of its session leader; 0 if the process is gone."""
    try:
        return os.getsid(pid)
    except OSError:
        return 0


def is_stopped(pid: int) -> bool:
    """Return whether a process is stopped, by a signal or by a debugger."""
    fields = _stat(pid)
    return fields is not None and fields[0] in (b"T", b"t")


def send(pids: Iterable[int], signum: int) -> None:
    """Send a signal to each process, except those that are gone or belong to another user."""
    for pid in pids:
        try:
            os.kill(pid, signum)
        except (ProcessLookupError, PermissionError):
            continue


def _stat(pid: int) -> list[bytes] | None:
    """Return the fields of /proc/PID/stat after the command's name; None if the process is gone."""
    try:
        with open(f"/proc/{pid}/stat", "rb") as file:
            # The command name is in parentheses and may contain any characters, including parentheses.
            return file.read().rpartition(b")")[2].split()
    except OSError:
        return None


def _parent_and_life(pid: int) -> tuple[int, bool] | None:
    fields = _stat(pid)
    if fields is None:
        return None
    state, parent, threads = fields[0], int(fields[1]), int(fields[17])
    # A process whose main thread has ended looks like a zombie while its other threads are running.
    return parent, state not in (b"Z", b"X") or threads > 1
