"""The messages of a client whose daemon is gone, and the signals that it remembers for the next daemon."""

from __future__ import annotations

import contextlib
import os
import signal
import socket
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest

from farandole.base.wire import clock
from farandole.base.wire.errors import ConnectionLost
from farandole.base.wire.frames import Codec, frame
from farandole.control.launcher.daemon.client import _Client
from farandole.control.launcher.daemon.client_protocol import JobEnded
from farandole.control.launcher.daemon.daemon_connection import DaemonConnection
from farandole.control.launcher.daemon.jobs import JobDirectory, JobRecord
from farandole.control.launcher.supervise.failover_files import LAUNCHER, STATE


@pytest.fixture
def directory(tmp_path: Path) -> JobDirectory:
    """The directory of a job whose daemon was killed, and whose workers wait for 60 s."""
    directory = JobDirectory(tmp_path / "owl")
    lock = directory.claim()
    assert lock is not None
    directory.write_record(JobRecord("owl", 1, "here", 1.0, ("x",), clock=clock.identity(), outlived=60.0))
    os.close(lock)
    return directory


def client(directory: JobDirectory) -> _Client:
    return _Client(directory, "never", False, alarm=-1)


def test_job_that_can_be_taken_over_is_named(directory: JobDirectory) -> None:
    for part in (STATE, LAUNCHER):
        directory.failover_files().save(part, b"x")
    assert client(directory)._lost() == JobEnded(
        1,
        "error: the launcher of job owl has ended; the workers wait for another one\n"
        "hint: take the job over: farandole run --attach owl",
    )


def test_time_until_workers_end_is_reported(directory: JobDirectory) -> None:
    assert client(directory)._lost() == JobEnded(
        1,
        "error: the launcher of job owl has ended; the agents end the workers within 60 s\n"
        "hint: start the job again; its checkpoints are kept",
    )


def test_undelivered_signal_is_sent_to_next_daemon(directory: JobDirectory) -> None:
    here = client(directory)
    here._stop_signal(signal.SIGINT, None)  # There is none yet.
    with daemon(here) as killed:
        killed.close()  # That is not known yet.
        here._pass_on_early_signals()
        assert here._wait_while_connected() is None
    with daemon(here) as busy:
        here._pass_on_early_signals()
        busy.close()  # Without having read anything.
        assert here._wait_while_connected() is None
    with daemon(here) as quick:
        here._pass_on_early_signals()
        assert quick.recv(1000).count(b"Ctrl-C") == 1
        quick.close()
        assert here._wait_while_connected() is None
    with daemon(here) as last:
        here._pass_on_early_signals()  # Nothing: a second time would mean more.
        last.close()
        assert here._link is not None
        with pytest.raises(ConnectionLost):
            here._link.receive()
        assert not here._link.unread


def test_last_lines_are_shown_when_job_ends_just_before_it_is_shown_again(
    directory: JobDirectory, capfd: pytest.CaptureFixture[str]
) -> None:
    directory.log.write_text("two\n")
    directory.write_ended(JobEnded(7, "report"))
    here = client(directory)
    here._hidden = True

    def end() -> None:
        assert b"show" in ending.recv(1000)
        ending.sendall(frame(Codec[JobEnded](JobEnded).encode(JobEnded(7, "report", shown=False))))

    with daemon(here) as ending, ThreadPoolExecutor(1) as pool:
        ended = pool.submit(end)
        assert here._wait() == JobEnded(7, "report")
        ended.result(30)
    assert capfd.readouterr().out == "two\n"
    assert not directory.path.exists()


@contextlib.contextmanager
def daemon(client: _Client) -> Iterator[socket.socket]:
    """Yield the end of one to which a client is connected."""
    ours, theirs = socket.socketpair()
    with theirs:
        client._link = DaemonConnection(ours)
        yield theirs
    client._link.close()
