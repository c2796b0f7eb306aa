"""Run a shell command, and end all its processes when the process that asked for it says so or dies.

A program with the arguments `FD GRACE COMMAND`. It runs the command in a session of its own, with this process's
standard streams and environment, and ends with its exit code as a shell gives it. `FD` is the reading end of a pipe.
When the last writer closes the pipe, or is killed, every process below this one gets SIGTERM, and after `GRACE` seconds
SIGKILL.

This process adopts what the command leaves behind, so that a child that has begun a session of its own, or whose parent
has died, is found as well.
"""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import threading
import time

from farandole.control.agent.process_tree import become_subreaper, descendants, die_with_parent, send

_LOOK_SECONDS = 0.02


def main() -> int:
    """Run the command that the arguments name; return its exit code."""
    control, grace, command = int(sys.argv[1]), float(sys.argv[2]), sys.argv[3]
    become_subreaper()
    shell = subprocess.Popen(command, shell=True, start_new_session=True, preexec_fn=die_with_parent(os.getpid()))
    threading.Thread(target=_end_on_order, args=(control, grace), daemon=True).start()
    return _wait(shell.pid)


def _wait(shell: int) -> int:
    """Wait for the shell. Adopted processes that end meanwhile are waited for as well, so that none stays a zombie."""
    while True:
        pid, status = os.wait()
        if pid == shell:
            _kill_session(shell)
            code = os.waitstatus_to_exitcode(status)
            return 128 - code if code < 0 else code


def _kill_session(shell: int) -> None:
    """Kill what the command has left in its session, so that its output ends."""
    try:
        os.killpg(shell, signal.SIGKILL)
    except ProcessLookupError:
        return  # Nothing was left.


def _end_on_order(control: int, grace: float) -> None:
    os.read(control, 1)  # Blocks until nobody can write any more.
    own = os.getpid()
    send(descendants(own), signal.SIGTERM)
    deadline = time.monotonic() + grace
    while descendants(own) and time.monotonic() < deadline:
        time.sleep(_LOOK_SECONDS)
    send(descendants(own), signal.SIGKILL)
