"""Commands that the launcher has run to their end on this host, before there are workers."""

from __future__ import annotations

import os
import signal
import subprocess
import tempfile
from collections.abc import Callable

from farandole.agent.loop import Loop, Timer
from farandole.agent.messages import FromAgent, Task, TaskEnded
from farandole.agent.processes import die_with_parent

_NOT_STARTED = 127
_LONGEST_OUTPUT = 64 * 1024


class Tasks:
    """The running ones, by process id. Who reaps children says which have ended."""

    def __init__(self, loop: Loop, say: Callable[[FromAgent], None]) -> None:
        self._loop = loop
        self._say = say
        self._running: dict[int, tuple[Task, int, Timer]] = {}

    def start(self, task: Task) -> None:
        """Begin a task; its end is told by itself."""
        output = _private_file()
        with tempfile.TemporaryFile() as given:
            given.write(task.input)
            given.seek(0)
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
                self._say(TaskEnded(task.number, _NOT_STARTED, str(error).encode()))
                return
        process.returncode = 0  # Reaped with all other children; Popen must not wait for it.
        timer = self._loop.call_later(task.seconds, lambda: os.killpg(process.pid, signal.SIGKILL))
        self._running[process.pid] = task, output, timer

    def ended(self, pid: int, code: int) -> None:
        """Take note that a child has ended; no-op when it is no task."""
        if pid not in self._running:
            return
        task, output, timer = self._running.pop(pid)
        timer.cancel()
        start = max(0, os.fstat(output).st_size - _LONGEST_OUTPUT)
        self._say(TaskEnded(task.number, code, os.pread(output, _LONGEST_OUTPUT, start)))
        os.close(output)


def _private_file() -> int:
    """Return a file without a name: what a task writes does not wait for a reader."""
    return os.memfd_create("farandole-task", os.MFD_CLOEXEC)
