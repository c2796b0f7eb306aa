"""Starts a successor when a daemon is killed.

A daemon is the child of its watchdog, a process that only waits for the daemon's end, and so uses little memory and
rarely fails. The successor is forked from the watchdog, so it needs no search for its program, and little to load.
"""

from __future__ import annotations

import collections
import os
import select
import signal
import sys
import time
from collections.abc import Callable
from typing import NoReturn

# Seconds; after more deaths within this time, no other daemon is started.
MOST_SUCCESSORS = 5
WITHIN_SECONDS = 60.0
# Seconds: while a job starts, the processor is left to its daemon and its workers.
BEGIN_SECONDS = 10.0
# Seconds: if a daemon was killed because of lack of memory, a new process may not fit at first. A client waits longer.
FORK_SECONDS = 10.0
_REST_SECONDS = 0.1
# These signals are meant for the daemon, which gets them too when they are sent to a process group, or by name.
_NOT_OURS = (signal.SIGTERM, signal.SIGINT, signal.SIGHUP)


def run_watched(
    keep: Callable[[bool], None], alone: Callable[[], None], prepare: Callable[[], None], can_go_on: Callable[[], bool]
) -> None:
    """Run daemons; return in a daemon's process when it has ended, and never in the watchdog's.

    Args:
        keep: does a daemon's work, in its own process; its argument is whether it is the successor of a killed daemon.
        alone: releases the first daemon's resources in the watchdog.
        prepare: loads, in the watchdog, the modules of a successor; called when the first daemon has had time to begin.
        can_go_on: returns whether there is a job that a successor can continue.
    """
    successors: collections.deque[float] = collections.deque(maxlen=MOST_SUCCESSORS)
    handlers = {signum: signal.getsignal(signum) for signum in _NOT_OURS}
    follows = False
    while pid := _fork():
        alone()
        for signum in _NOT_OURS:
            signal.signal(signum, signal.SIG_IGN)
        if not follows and not _ends_within(pid, BEGIN_SECONDS):
            _prepare(prepare, pid)
        code = os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1])
        now = time.monotonic()
        too_often = len(successors) == MOST_SUCCESSORS and now - successors[0] < WITHIN_SECONDS
        if code >= 0 or too_often or not can_go_on():
            _end_like(code)
        successors.append(now)
        follows = True
    for signum, handler in handlers.items():
        signal.signal(signum, handler)
    keep(follows)


def _prepare(prepare: Callable[[], None], pid: int) -> None:
    """Load the modules of a successor; if the daemon ends by itself meanwhile, exit with its exit code.

    This may take long on a busy machine, and the client waits for the end of this process. A daemon that is killed
    meanwhile gets its successor afterwards.
    """

    def child_changed(signum: int, frame: object) -> None:
        how = os.waitid(os.P_PID, pid, os.WEXITED | os.WNOHANG | os.WNOWAIT)
        if how is not None and how.si_code == os.CLD_EXITED:
            sys.exit(how.si_status)

    before = signal.signal(signal.SIGCHLD, child_changed)
    try:
        child_changed(signal.SIGCHLD, None)  # It may have ended before the handler was installed.
        prepare()
    finally:
        signal.signal(signal.SIGCHLD, before)


def _fork() -> int:
    """Fork, with retries while there is no memory for another process.

    Raises:
        OSError: the retries have failed.
    """
    deadline = time.monotonic() + FORK_SECONDS
    while True:
        try:
            return os.fork()
        except OSError:
            if time.monotonic() > deadline:
                raise
        time.sleep(_REST_SECONDS)


def _ends_within(pid: int, seconds: float) -> bool:
    """Wait for the end of a process; return whether it has ended within `seconds`, or cannot be observed."""
    try:
        process = os.pidfd_open(pid)
    except (OSError, AttributeError):
        return True  # An old kernel, a sandbox, another libc.
    try:
        return bool(select.select([process], [], [], seconds)[0])
    finally:
        os.close(process)


def _end_like(code: int) -> NoReturn:
    if code < 0:
        if -code != signal.SIGKILL:
            signal.signal(-code, signal.SIG_DFL)
        os.kill(os.getpid(), -code)
    sys.exit(code)
