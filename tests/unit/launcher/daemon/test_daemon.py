"""A daemon whose job cannot be stored."""

from __future__ import annotations

import os
import pickle
import resource
import socket
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import pytest

from farandole.base.wire import clock
from farandole.control.launcher.daemon import daemon
from farandole.control.launcher.daemon.client_protocol import Launch, RequestRefused
from farandole.control.launcher.daemon.daemon_connection import DaemonConnection
from farandole.control.launcher.daemon.jobs import JobDirectory, JobRecord
from farandole.control.launcher.daemon.launch_request import LaunchRequest
from farandole.control.launcher.job.machine import Machine
from farandole.control.launcher.job.spec import LaunchSpec
from farandole.control.launcher.supervise.failover_files import LAUNCHER, STATE

HINT = "free disk space there, or set XDG_CACHE_HOME to a directory of your own with enough space"
REQUEST = LaunchRequest(LaunchSpec(("no-such-program",), 1), Machine("here", 1, 0, "/", {}))


@pytest.fixture
def directory(tmp_path: Path) -> JobDirectory:
    return JobDirectory(tmp_path / "job")


def keep(directory: JobDirectory, request: bytes, before: Callable[[], None] = lambda: None) -> DaemonConnection:
    """Have a daemon start, as a client does; return the connection to it when it has ended."""
    lock = directory.claim()
    assert lock is not None
    ours, theirs = socket.socketpair()
    link = DaemonConnection(ours)
    command = [sys.executable, "-m", "farandole.control.launcher.daemon", directory.name]
    with theirs:
        process = subprocess.Popen(command, stdin=theirs, stderr=subprocess.PIPE, preexec_fn=before)
    link.send(Launch(request, os.fspath(directory.path)), [lock])
    os.close(lock)
    _, said = process.communicate(timeout=60)
    assert said == b""
    return link


def takes_nothing() -> None:
    """Have a disk as if it were full, for this process and those it starts."""
    resource.setrlimit(resource.RLIMIT_FSIZE, (0, 0))


def test_failed_write_of_launch_request_is_an_error(directory: JobDirectory) -> None:
    link = keep(directory, pickle.dumps(REQUEST), takes_nothing)
    assert link.receive() == RequestRefused(
        f"{directory.path / 'launch-request'} cannot be written: File too large", HINT
    )
    link.close()
    assert not directory.path.exists()


@pytest.mark.parametrize("name", ["output.log", "socket"])
def test_failed_creation_of_files_is_an_error(name: str, directory: JobDirectory) -> None:
    directory.path.mkdir()
    (directory.path / name).mkdir()
    link = keep(directory, pickle.dumps(REQUEST))
    assert link.receive() == RequestRefused(f"{directory.path} cannot be written: Is a directory", HINT)
    link.close()
    assert not directory.path.exists()


def test_failed_write_of_record_is_an_error(directory: JobDirectory) -> None:
    directory.path.mkdir()
    (directory.path / ".job.json").mkdir()
    link = keep(directory, pickle.dumps(REQUEST))
    assert link.receive() == RequestRefused(f"{directory.path / 'job.json'} cannot be written: Is a directory", HINT)
    link.close()
    assert not directory.path.exists()


def test_successor_runs_stored_launch_request(directory: JobDirectory) -> None:
    lock = directory.claim()
    assert lock is not None
    directory.write_launch_request(b"before")
    directory.write_record(JobRecord("job", 1, "here", 1.0, ("x",), clock=clock.identity()))
    for part in (STATE, LAUNCHER):
        directory.failover_files().save(part, b"x")
    (directory.path / ".launch-request").mkdir()
    daemon._write_launch_request(directory, b"the same by another client")
    assert directory.launch_request() == b"before"
    os.close(lock)
