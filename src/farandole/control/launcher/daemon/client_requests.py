"""Requests of commands to a daemon, and their answers."""

from __future__ import annotations

import time
from collections.abc import Iterator
from contextlib import contextmanager

import msgspec

from farandole.base.wire.errors import ConnectionLost, WireError, WireTimeout
from farandole.control.jobs.view import JobView
from farandole.control.launcher.daemon.client_protocol import (
    AskStatus,
    AskView,
    FromDaemon,
    RequestRefused,
    StatusIs,
    Stop,
    ViewIs,
)
from farandole.control.launcher.daemon.daemon_connection import DaemonConnection
from farandole.control.launcher.daemon.jobs import JobDirectory
from farandole.errors import LaunchError, SpecError

ANSWER_SECONDS = 10.0
# Seconds: a table of jobs does not wait long for a job that is stuck.
_STATUS_SECONDS = 1.0
# Seconds after which workers have been killed, and those that cannot be killed are not waited for.
END_SECONDS = 60.0
_STOPPED_CODE = 143


def ask(directory: JobDirectory, request: msgspec.Struct) -> FromDaemon:
    """Return the answer to a request.

    Raises:
        SpecError: the job refuses.
        LaunchError: there is no answer.
    """
    with _link(directory) as link:
        link.send(request)
        answer = link.receive(time.monotonic() + ANSWER_SECONDS)
    if isinstance(answer, RequestRefused):
        raise SpecError(answer.message, answer.hint)
    return answer


def status_of(directory: JobDirectory) -> StatusIs | None:
    """Return the status of a job; None if there is no answer."""
    try:
        with _link(directory) as link:
            link.send(AskStatus())
            answer = link.receive(time.monotonic() + _STATUS_SECONDS)
    except LaunchError:
        return None
    return answer if isinstance(answer, StatusIs) else None


def view_of(directory: JobDirectory, lines_from: int) -> JobView:
    """Return the visible state of a job.

    Raises:
        LaunchError: there is no answer.
    """
    answer = ask(directory, AskView(lines_from))
    if not isinstance(answer, ViewIs):
        raise LaunchError(f"the launcher of job {directory.name} has not sent its state")
    return answer.view


def stop(directory: JobDirectory) -> None:
    """End a job with its grace period, or at once if that was requested before; wait until it has ended.

    Raises:
        LaunchError: the job does not end.
    """
    with _link(directory) as link:
        link.send(Stop(_STOPPED_CODE, "farandole stop"))
        deadline = time.monotonic() + END_SECONDS
        while True:
            try:
                link.receive(deadline)
            except WireTimeout:
                raise
            except ConnectionLost:
                return  # The connection ends with the job.


@contextmanager
def _link(directory: JobDirectory) -> Iterator[DaemonConnection]:
    """Yield a connection to a daemon.

    Raises:
        LaunchError: there is no daemon, or the connection breaks, or there is no answer in time.
    """
    try:
        link = DaemonConnection(directory.connect())
        try:
            yield link
        finally:
            link.close()
    except WireError as error:
        raise LaunchError(f"the launcher of job {directory.name} does not answer: {error}") from None
    except OSError as error:
        name = directory.name
        if directory.can_be_taken_over():
            raise LaunchError(
                f"the launcher of job {name} was killed; farandole run --attach {name} takes it over"
            ) from None
        raise LaunchError(f"the launcher of job {name} cannot be reached: {error}") from None
