"""The process that runs an attempt: how it passes orders on."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path

import pytest

from farandole.control.queue.attempt import Attempt, Request
from farandole.control.queue.model import Owner
from farandole.control.queue.runner import Runner

ME = Owner(os.geteuid(), os.getegid(), "me")
COUNTS = """\
import signal, sys
got = 0
def take(*_):
    global got
    got += 1
    if got == 2:
        sys.exit(0)
signal.signal(signal.SIGTERM, take)
print("ready", flush=True)
while True:
    signal.pause()
"""


@pytest.fixture
def child() -> Iterator[subprocess.Popen[bytes]]:
    with subprocess.Popen([sys.executable, "-c", COUNTS], stdout=subprocess.PIPE) as child:
        assert child.stdout is not None
        child.stdout.readline()
        yield child
        child.kill()


def test_a_job_that_is_to_end_at_once_is_told_twice(tmp_path: Path, child: subprocess.Popen[bytes]) -> None:
    attempt = Attempt(tmp_path, "a", 1)
    attempt.prepare(Request("a", 1, ("true",), {}, "/", False, "SIGTERM", 1.0), {"localhost": 1}, ME)
    attempt.order("kill")
    runner = Runner(attempt, attempt.request())
    os.kill(child.pid, signal.SIGSTOP)  # As a launcher that is busy: two signals of one kind are one until it looks.
    runner._obey(child)
    os.kill(child.pid, signal.SIGCONT)
    deadline = time.monotonic() + 5.0
    while child.poll() is None and time.monotonic() < deadline:
        time.sleep(0.1)
        runner._obey(child)
    assert child.returncode == 0
    os.close(runner._log)
