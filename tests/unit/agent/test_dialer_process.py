"""Dialers that are children of another program's process."""

from __future__ import annotations

import subprocess
import sys
from typing import Any

import pytest

from farandole.control.agent.dialer_process import DialerProcess


def test_dialer_that_ends_before_it_reads_the_secret_is_told_by_its_exit_code(monkeypatch: pytest.MonkeyPatch) -> None:
    start = subprocess.Popen

    def ended(*args: Any, **options: Any) -> subprocess.Popen[bytes]:
        process = start(*args, **options)
        process.wait()
        return process

    monkeypatch.setattr(subprocess, "Popen", ended)
    monkeypatch.setattr(sys, "executable", "/bin/false")
    dialer = DialerProcess("127.0.0.1:1", b"secret", "a")
    assert dialer.wait() == 1
    dialer.end()
