"""Runs a shell command, and ends all its processes when the process that started it requests that, or dies.

A program with the arguments `FD GRACE COMMAND`. It runs the command in its own session, with this process's standard
streams and environment, and exits with the command's exit code in the form that shells use. `FD` is the reading end of
a pipe. When the last writer closes the pipe, or is killed, every process below this one gets SIGTERM, and after `GRACE`
seconds SIGKILL.

This process adopts orphans of the command, so it also finds children with their own session, or whose parent has died.
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
    """Run the command given by the arguments; return its exit code."""
    control, grace, command = int(sys.argv[1]), float(sys.argv[2]), sys.argv[3]
    become_subreaper()
    shell = subprocess.Popen(command, shell=True, start_new_session=True, preexec_fn=die_with_parent(os.getpid()))
    threading.Thread(target=_end_on_order, args=(control, grace), daemon=True).start()
    return _wait(shell.pid)


def _wait(shell: int) -> int:
    """Wait for the shell, and reap adopted processes that end meanwhile, so that none stays a zombie."""
    while True:
        pid, status = os.wait()
        if pid == shell:
            _kill_session(shell)
            code = os.waitstatus_to_exitcode(status)
            return 128 - code if code < 0 else code


def _kill_session(shell: int) -> None:
    """Kill the processes that the command has left behind in its session, so that its output ends."""
    try:
        os.killpg(shell, signal.SIGKILL)
    except ProcessLookupError:
        return  # Nothing was left.


def _end_on_order(control: int, grace: float) -> None:
    os.read(control, 1)  # Blocks until no process can write any more.
    own = os.getpid()
    send(descendants(own), signal.SIGTERM)
    deadline = time.monotonic() + grace
    while descendants(own) and time.monotonic() < deadline:
        time.sleep(_LOOK_SECONDS)
    send(descendants(own), signal.SIGKILL)
