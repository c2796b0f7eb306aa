"""Commands that the launcher runs on this host, before and while workers run."""

from __future__ import annotations

import os
import signal
import subprocess
from collections.abc import Callable

from farandole.control.agent.event_loop import Loop, Timer
from farandole.control.agent.process_tree import die_with_parent
from farandole.control.agent.protocol import Task, TaskEnded

_NOT_STARTED = 127
_LONGEST_OUTPUT = 64 * 1024


class _Running:
    def __init__(self, number: int, output: int, timer: Timer, ended: Callable[[TaskEnded], None]) -> None:
        self.number = number
        self.output = output
        self.timer = timer
        self.ended = ended


class Tasks:
    """Running tasks by process id. The agent reaps all children, and reports which have ended."""

    def __init__(self, loop: Loop) -> None:
        self._loop = loop
        self._running: dict[int, _Running] = {}

    def start(self, task: Task, ended: Callable[[TaskEnded], None]) -> None:
        """Start a task; `ended` is called at its end, or at once if it cannot be started."""
        given, output = _private_file(), _private_file()
        os.write(given, task.input)
        os.lseek(given, 0, os.SEEK_SET)
        try:
            process = subprocess.Popen(
                task.command,
                stdin=given,
                stdout=output,
                stderr=output,
                env={**os.environ, **task.environment},
                cwd=task.directory,
                start_new_session=True,
                preexec_fn=die_with_parent(os.getpid()),
            )
        except (OSError, subprocess.SubprocessError, ValueError) as error:
            os.close(output)
            ended(TaskEnded(task.number, _NOT_STARTED, str(error).encode()))
            return
        finally:
            os.close(given)
        process.returncode = 0  # Reaped with all other children; Popen must not wait for it.
        timer = self._loop.call_later(task.seconds, lambda: os.killpg(process.pid, signal.SIGKILL))
        self._running[process.pid] = _Running(task.number, output, timer, ended)

    def ended(self, pid: int, code: int) -> None:
        """Record that a child has ended; no-op if it is not a task."""
        if pid not in self._running:
            return
        running = self._running.pop(pid)
        running.timer.cancel()
        start = max(0, os.fstat(running.output).st_size - _LONGEST_OUTPUT)
        last = os.pread(running.output, _LONGEST_OUTPUT, start)
        os.close(running.output)
        running.ended(TaskEnded(running.number, code, last))


def _private_file() -> int:
    """Return an unnamed file, so that a task never waits for a reader of its output."""
    return os.memfd_create("farandole-task", os.MFD_CLOEXEC)
