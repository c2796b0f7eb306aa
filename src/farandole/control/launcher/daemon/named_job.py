"""A job that other commands find by its name, for as long as its launcher runs.

It has no client that shows it: the launcher itself answers, and when it ends, so does the job's name. Such jobs are
those of fixed size that `farandole run --job` has started, and elastic jobs of a queue.
"""

from __future__ import annotations

import os
import socket
import time
from collections.abc import Sequence
from typing import Any, NoReturn

from farandole.base.wire import clock
from farandole.control.jobs.view import JobView
from farandole.control.launcher.daemon.client_connection import ClientConnection
from farandole.control.launcher.daemon.client_protocol import FromClient, Hide, Launch, Refused, Show, Stop
from farandole.control.launcher.daemon.job_socket import JobSocket, OutputFrom, answer
from farandole.control.launcher.daemon.jobs import JobDirectory, JobRecord, Jobs
from farandole.control.launcher.job.spec import LaunchSpec
from farandole.control.launcher.supervise.control import HostRow, Job, Status
from farandole.control.launcher.supervise.job_view import view_of
from farandole.control.launcher.supervise.supervisor import Supervisor
from farandole.errors import SpecError


class NamedJob:
    """Answers commands about one job. Everything but `claim` is done in the loop's thread.

    Args:
        directory: where the job is found.
        claim: a descriptor that locks the directory; belongs to this object now.
    """

    def __init__(self, directory: JobDirectory, claim: int) -> None:
        self._directory = directory
        self._claim = claim
        self._socket: JobSocket | None = None

    @classmethod
    def claim(cls, jobs: Jobs, name: str) -> NamedJob:
        """Take a name.

        Raises:
            SpecError: it is not a valid name, or another job has it.
        """
        taken = jobs.start(name)
        if taken is None:
            raise SpecError(f"a job named {name} runs already", "choose another name: --job NAME")
        return cls(*taken)

    def serve(self, job: Job, spec: LaunchSpec, output_from: OutputFrom | None = None) -> None:
        """Let commands find the job, which has been started.

        Args:
            job: that answers.
            spec: of its launch.
            output_from: what is known of its output; None: nothing.

        Raises:
            SpecError: the disk does not take what they need.
        """

        def take(peer: ClientConnection, message: FromClient) -> None:
            if isinstance(message, Stop):
                job.stop(message.code, message.why)  # The client waits until the connection is closed.
                return
            try:
                if isinstance(message, Show | Hide | Launch):
                    raise SpecError(
                        f"job {name} is shown only where it was started",
                        f"the output of a job in a queue: farandole logs -f {name.rpartition('.')[0] or name}",
                    )
                peer.post(answer(job, name, message, output_from))
            except SpecError as error:
                peer.post(Refused(error.message, error.hint))

        name = self._directory.name
        if self._socket is not None:
            self._socket.close()  # Of a launch that was tried before.
        self._socket = JobSocket(self._directory, take)
        self._socket.start()
        hosts = tuple(host.label for host in spec.hosts)
        self._directory.write_record(
            JobRecord(name, os.getpid(), socket.gethostname(), time.time(), spec.command, hosts, clock.identity())
        )

    def close(self) -> None:
        """Forget the job, which is over; clients that wait for its end are told by the end of their connections."""
        if self._socket is not None:
            self._socket.close()
        self._directory.remove()
        os.close(self._claim)


class FixedJob:
    """A job of fixed size, as commands ask it: see `control.Job`.

    Args:
        supervisor: of the job.
    """

    def __init__(self, supervisor: Supervisor) -> None:
        self._supervisor = supervisor
        self.stop = supervisor.stop
        self.kill = supervisor.kill

    def status(self) -> Status:
        """Return how the job is."""
        return {
            "size": len(self._supervisor.state.world),
            "generation": 1,
            "waits_for": "",
            "steps_per_second": self._supervisor.status.steps_per_second,
            "measures": self._supervisor.measures.latest,
            "scheduled_batch": 0,
        }

    def view(self) -> JobView:
        """Return all that can be seen of the job, but what its workers print."""
        return view_of(self._supervisor)

    def list_hosts(self) -> Sequence[HostRow]:
        """Return the hosts of the job with the ranks there that have not ended."""
        workers = self._supervisor.workers.by_number.values()
        rows = []
        for name in dict.fromkeys(worker.host for worker in workers):
            here = [worker for worker in workers if worker.host == name]
            living = tuple(worker.number for worker in here if not worker.record.ended)
            rows.append(HostRow(name, len(here), living, "ready"))
        return rows

    def _refuse(self, *_: Any, **__: Any) -> NoReturn:
        raise SpecError("the job has a fixed size", "a job that is started with --min-np can be changed")

    add_host = remove_host = drain_host = scale = schedule_batch = _refuse
