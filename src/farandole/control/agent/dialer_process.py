"""Starts a dialer (`farandole.control.agent.dial`) as a child of a process that another program controls, such as a
worker process of Ray or Spark.

The child gets the secret over its standard input, and ends with its parent: when this pipe is closed, for whatever
reason, it ends its agent and all workers.
"""

from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import Mapping, Sequence

from farandole.base.installed import own_environment

# Seconds that a dialer and its agent have to end.
_END_SECONDS = 10.0


class DialerProcess:
    """A dialer that lives at most as long as this process.

    Args:
        launcher: host:port of the launcher's reception.
        secret: the secret of the job.
        name: the name of this host in the job. A second dialer of the same name waits until the first has ended.
        slots: number of workers that fit here.
        devices: the GPUs that these workers may use, as for CUDA_VISIBLE_DEVICES.
        patience: seconds for which to look for the launcher.
        environment: variables for the dialer and its workers, in addition to those of this process.
        directory: the directory in which workers run; None: that of this process.
    """

    def __init__(
        self,
        launcher: str,
        secret: bytes,
        name: str,
        slots: int = 1,
        *,
        devices: Sequence[str] = (),
        patience: float = 60.0,
        environment: Mapping[str, str] | None = None,
        directory: str | None = None,
    ) -> None:
        options = ["--launcher", launcher, "--name", name, "--slots", str(slots), "--patience", f"{patience:g}"]
        options += ["--devices", ",".join(devices)] if devices else []
        self._process = subprocess.Popen(
            [sys.executable, "-m", "farandole.control.agent.dial", "--child", *options],
            stdin=subprocess.PIPE,
            env={**own_environment(), **(environment or {})},
            cwd=directory or os.getcwd(),
            bufsize=0,
        )
        assert self._process.stdin is not None
        try:
            self._process.stdin.write(secret.hex().encode() + b"\n")
        except BrokenPipeError:
            pass  # It has ended already; `wait` returns its exit code.

    @property
    def pid(self) -> int:
        """The process id of the dialer."""
        return self._process.pid

    def wait(self, seconds: float | None = None) -> int | None:
        """Return the exit code of the dialer, which is 0 if its agent has succeeded; None if it is still running.

        Args:
            seconds: seconds to wait for its end; None: no limit.
        """
        try:
            return self._process.wait(seconds)
        except subprocess.TimeoutExpired:
            return None

    def leave(self) -> None:
        """Let the workers leave the job, those of an elastic one at the end of a step; the dialer ends after them."""
        self._process.terminate()

    def end(self) -> None:
        """End the dialer, its agent and its workers. No-op if they have ended."""
        assert self._process.stdin is not None
        self._process.stdin.close()
        if self.wait(_END_SECONDS) is None:
            self._process.kill()
            self._process.wait()
