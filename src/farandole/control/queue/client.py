"""The place `queue`: a `JobService` that sends its requests to the queue's daemon."""

from __future__ import annotations

import os
import secrets
import socket
import time
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

import msgspec

from farandole.base.wire.channel import Channel
from farandole.base.wire.encoding import decode, encode, format_json
from farandole.base.wire.errors import WireError
from farandole.control.agent.command_check import check_script
from farandole.control.jobs.errors import Unreachable
from farandole.control.jobs.log_lines import of_rank
from farandole.control.jobs.spec import JobSpec, to_dict
from farandole.control.jobs.status import JobStatus, from_dict
from farandole.control.queue import protocol
from farandole.control.queue.address import DATABASE, VARIABLE, connect_socket, connection_error, find
from farandole.control.queue.protocol import LOG_BYTES, MESSAGE_LIMIT, QueueAnswer, QueueRequest

TOKEN_VARIABLE = "FARANDOLE_QUEUE_TOKEN"
ANSWER_SECONDS = 20.0
# A daemon that was killed is restarted within this time, by systemd for example. Every request can be repeated.
RETRY_SECONDS = 10.0
_RETRY_EVERY = 0.2
POLL_SECONDS = 0.3


class QueueClient:
    """The jobs of a queue.

    Args:
        state: the queue's state directory.
        environment: the environment of this process, which jobs start with.
        retry: seconds for which requests are repeated while the daemon does not answer.
    """

    def __init__(self, state: Path, environment: Mapping[str, str], retry: float = RETRY_SECONDS) -> None:
        self.state = state
        self._environment = environment
        self._retry = retry

    def submit(self, spec: JobSpec) -> str:
        """Submit a job; when this returns, the queue has written it to disk."""
        directory = _directory(spec)
        check_script(spec.command, directory)
        environment = {name: value for name, value in self._environment.items() if name != TOKEN_VARIABLE}
        name: str = self.ask(protocol.Submit(to_dict(spec), environment, directory, secrets.token_hex(16)))
        return name

    def preview(self, spec: JobSpec) -> str:
        """Return the job as JSON, in the form that `farandole submit -f` reads."""
        directory = _directory(spec)
        check_script(spec.command, directory)
        return format_json(to_dict(msgspec.structs.replace(spec, working_directory=directory))) + "\n"

    def jobs(self) -> Sequence[JobStatus]:
        """Return all jobs of the queue, oldest first."""
        return [from_dict(each) for each in self.ask(protocol.AskJobs())]

    def status(self, name: str) -> JobStatus:
        """Return the status of a job, with its events."""
        return from_dict(self.ask(protocol.AskJob(name)))

    def cluster(self) -> Mapping[str, Any]:
        """Return the queue's hosts, its settings, and the number of jobs in each state."""
        told: Mapping[str, Any] = self.ask(protocol.AskQueue())
        return told

    def logs(self, name: str, follow: bool = False, rank: int | None = None) -> Iterator[str]:
        """Yield the output of the workers of all attempts of a job."""
        return of_rank(self._lines(name, follow), rank)

    def _lines(self, name: str, follow: bool) -> Iterator[str]:
        attempt, offset, rest = 1, 0, b""
        was_short = False
        while True:
            piece = msgspec.convert(self.ask(protocol.ReadLog(name, attempt, offset)), protocol.LogPiece)
            *lines, rest = (rest + piece.data).split(b"\n")
            for line in lines:
                yield line.decode(errors="replace") + "\n"
            place = max(1, piece.attempt), piece.offset  # 0 is a waiting job that has had no attempt.
            moved = place != (attempt, offset)
            # A job that prints all the time never has an empty piece: two pieces that are not full are the end.
            is_short = 0 < len(piece.data) < LOG_BYTES
            ends = piece.is_over or not (follow or (moved and not (is_short and was_short)))
            was_short = is_short and piece.attempt == attempt
            if rest and (ends or piece.attempt > attempt):
                # This attempt has no more output: it may have been killed in the middle of a line.
                yield rest.decode(errors="replace") + "\n"
                rest = b""
            if ends:
                return
            attempt, offset = place
            if not moved:
                time.sleep(POLL_SECONDS)

    def scale(self, name: str, workers: int) -> None:
        """Change the number of workers of an elastic job."""
        self._change("scale", name, workers)

    def cancel(self, name: str) -> None:
        """Cancel a job with its grace period; a second request ends it at once."""
        self._change("cancel", name)

    def suspend(self, name: str) -> None:
        """Withdraw a job's slots until it is resumed."""
        self._change("suspend", name)

    def resume(self, name: str) -> None:
        """Let a suspended job wait for slots again."""
        self._change("resume", name)

    def _change(self, verb: str, name: str, workers: int = 0) -> None:
        self.ask(protocol.ChangeJob(verb, name, workers, secrets.token_hex(16)))

    def ask(self, what: protocol.Ask) -> Any:
        """Return the answer to a request.

        Raises:
            JobError: the request was refused, or there was no answer.
        """
        deadline = time.monotonic() + self._retry
        request = encode(QueueRequest(what, self._environment.get(TOKEN_VARIABLE, "")))
        may_be_taken = False
        while True:
            try:
                with connect_socket(self.state, ANSWER_SECONDS) as sock:
                    may_be_taken = isinstance(what, (protocol.Submit, protocol.ChangeJob))
                    return _exchange(sock, request)
            except (OSError, WireError) as error:
                if isinstance(error, FileNotFoundError) and not (self.state / DATABASE).exists():
                    raise Unreachable(
                        f"there is no queue in {self.state}",
                        "start one: farandole queue start --hosts h1:4,h2:4. Without a queue: --on local",
                    ) from None
                if isinstance(error, PermissionError) or time.monotonic() > deadline:
                    raise _unreachable(self.state, error, may_be_taken) from None
            time.sleep(_RETRY_EVERY)


def _exchange(sock: socket.socket, request: bytes) -> Any:
    channel = Channel.over(sock, MESSAGE_LIMIT)
    deadline = time.monotonic() + ANSWER_SECONDS
    channel.send(request, deadline)
    return decode(channel.receive(deadline), QueueAnswer).unpack()


def _unreachable(state: Path, error: Exception, may_be_taken: bool = False) -> Unreachable:
    why = error.strerror if isinstance(error, OSError) and error.strerror else str(error)
    if may_be_taken:
        return Unreachable(
            f"the queue in {state} has not answered: {why}; the request may or may not have been carried out",
            "when it answers again, check before you repeat the request: farandole jobs",
        )
    return Unreachable(
        f"the queue in {state} does not answer: {why}",
        "start it: farandole queue start; its log is in that directory. Without a queue: --on local",
    )


def _directory(spec: JobSpec) -> str:
    """Return the working directory of a job: where it was submitted, unless it names a folder."""
    return spec.working_directory or os.getcwd()


def connect(environment: Mapping[str, str]) -> QueueClient:
    """Return the service of the queue that exists.

    Raises:
        Unreachable: there is no queue.
    """
    state = find(environment)
    if state is None:
        raise Unreachable(
            "there is no queue on this machine",
            f"start one: farandole queue start --hosts h1:4,h2:4, or set {VARIABLE} to its directory",
        )
    return QueueClient(state, environment)


def unreachable(environment: Mapping[str, str]) -> Unreachable | None:
    """Return why the default queue (one that was not named) does not answer now; None if it answers or was named."""
    state = find(environment)
    if state is None or environment.get(VARIABLE):
        return None
    error = connection_error(state)
    return None if error is None else _unreachable(state, error)
