"""A job that other commands find by its name while its launcher runs.

No client shows it: the launcher itself answers, and the job's name ends with it. Such jobs are those of fixed size that
`farandole run --job` has started, and elastic jobs of a queue.
"""

from __future__ import annotations

import os
import socket
import time
from collections.abc import Sequence
from typing import Any, NoReturn

from farandole.base.wire import clock
from farandole.control.launcher.daemon.client_connection import ClientConnection
from farandole.control.launcher.daemon.client_protocol import FromClient, Hide, Launch, RequestRefused, Show, Stop
from farandole.control.launcher.daemon.job_socket import JobSocket, OutputFrom, answer
from farandole.control.launcher.daemon.jobs import JobDirectory, JobRecord, Jobs
from farandole.control.launcher.job.spec import LaunchSpec
from farandole.control.launcher.supervise.control import ControlledJob, HostRow
from farandole.control.launcher.supervise.job_view import SupervisedJob
from farandole.errors import SpecError


class NamedJob:
    """Answers commands about one job. Everything except `claim` runs in the loop's thread.

    Args:
        directory: the job's directory.
        claim: the descriptor that locks the directory; belongs to this object from now on.
    """

    def __init__(self, directory: JobDirectory, claim: int) -> None:
        self._directory = directory
        self._claim = claim
        self._socket: JobSocket | None = None

    @classmethod
    def claim(cls, jobs: Jobs, name: str) -> NamedJob:
        """Claim a name.

        Raises:
            SpecError: the name is not valid, or another job has it.
        """
        taken = jobs.start(name)
        if taken is None:
            raise SpecError(f"a job named {name} is already running", "choose another name: --job NAME")
        return cls(*taken)

    def serve(self, job: ControlledJob, spec: LaunchSpec, output_from: OutputFrom | None = None) -> None:
        """Let commands find the job, which has been started.

        Args:
            job: the job, which answers requests.
            spec: the spec of its launch.
            output_from: returns its output; None if there is none.

        Raises:
            SpecError: a file that commands need cannot be written.
        """

        def take(peer: ClientConnection, message: FromClient) -> None:
            if isinstance(message, Stop):
                job.stop(message.code, message.why)  # The client waits for the end of the connection.
                return
            try:
                if isinstance(message, Show | Hide | Launch):
                    raise SpecError(
                        f"job {name} is shown only where it was started",
                        f"the output of a job in a queue: farandole logs -f {name.rpartition('.')[0] or name}",
                    )
                peer.post(answer(job, name, message, output_from))
            except SpecError as error:
                peer.post(RequestRefused(error.message, error.hint))

        name = self._directory.name
        if self._socket is not None:
            self._socket.close()  # The socket of an earlier attempt to launch.
        self._socket = JobSocket(self._directory, take)
        self._socket.start()
        hosts = tuple(host.label for host in spec.hosts)
        self._directory.write_record(
            JobRecord(name, os.getpid(), socket.gethostname(), time.time(), spec.command, hosts, clock.identity())
        )

    def close(self) -> None:
        """Forget the job, which is over; the end of their connections informs clients that wait for it."""
        if self._socket is not None:
            self._socket.close()
        self._directory.remove()
        os.close(self._claim)


class FixedJob(SupervisedJob):
    """A job of fixed size, for requests: see `control.ControlledJob`."""

    def list_hosts(self) -> Sequence[HostRow]:
        """Return the hosts of the job, with the ranks there that have not ended."""
        workers = self._supervisor.workers.by_number.values()
        rows = []
        for name in dict.fromkeys(worker.host for worker in workers):
            here = [worker for worker in workers if worker.host == name]
            living = tuple(worker.number for worker in here if not worker.record.ended)
            rows.append(HostRow(name, len(here), living, "ready"))
        return rows

    def _refuse(self, *_: Any, **__: Any) -> NoReturn:
        raise SpecError("the job has a fixed size", "start it with --min-np to be able to change it")

    add_host = remove_host = drain_host = scale = schedule_batch = _refuse
