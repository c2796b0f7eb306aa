"""A job of fixed size that other commands find by its name, for as long as its launcher runs.

An elastic job has a daemon. This job has none: the launcher itself answers, and when it ends, so does the job.
"""

from __future__ import annotations

import asyncio
import os
import socket
import time

import msgspec

from farandole.base.wire import clock
from farandole.base.wire.errors import WireError
from farandole.control.launcher.daemon.client_connection import ClientConnection
from farandole.control.launcher.daemon.client_protocol import (
    AskStatus,
    AskView,
    Done,
    FromClient,
    FromDaemon,
    HostsAre,
    Kill,
    ListHosts,
    Refused,
    StatusIs,
    Stop,
    ViewIs,
)
from farandole.control.launcher.daemon.daemon_connection import check_peer
from farandole.control.launcher.daemon.jobs import JobDirectory, JobRecord, Jobs
from farandole.control.launcher.job.spec import LaunchSpec
from farandole.control.launcher.supervise.control import HostRow
from farandole.control.launcher.supervise.job_view import view_of
from farandole.control.launcher.supervise.supervisor import Supervisor
from farandole.errors import SpecError


class NamedJob:
    """Answers commands about one job of fixed size. Everything but `claim` is done in the loop's thread.

    Args:
        directory: where the job is found.
        claim: a descriptor that locks the directory; belongs to this object now.
    """

    def __init__(self, directory: JobDirectory, claim: int) -> None:
        self._directory = directory
        self._claim = claim
        self._listener: socket.socket | None = None
        self._job: Supervisor | None = None
        self._peers: set[ClientConnection] = set()

    @classmethod
    def claim(cls, jobs: Jobs, name: str) -> NamedJob:
        """Take a name.

        Raises:
            SpecError: that is no name, or another job has it.
        """
        taken = jobs.start(name)
        if taken is None:
            raise SpecError(f"a job named {name} runs already", "choose another name: --job NAME")
        return cls(*taken)

    def serve(self, job: Supervisor, spec: LaunchSpec) -> None:
        """Let commands find the job, which has been started.

        Raises:
            SpecError: the disk does not take what they need.
        """
        self._job = job
        self._listener = self._directory.listen()
        self._listener.setblocking(False)
        asyncio.get_running_loop().add_reader(self._listener, self._accept)
        hosts = tuple(host.label for host in spec.hosts)
        name, host = self._directory.name, socket.gethostname()
        self._directory.write_record(
            JobRecord(name, os.getpid(), host, time.time(), spec.command, hosts, clock.identity())
        )

    def close(self) -> None:
        """Forget the job, which is over; who waits for its end hears of it."""
        if self._listener is not None:
            asyncio.get_running_loop().remove_reader(self._listener)
            self._listener.close()
        for peer in list(self._peers):
            peer.close()
        self._directory.remove()
        os.close(self._claim)

    def _accept(self) -> None:
        assert self._listener is not None
        try:
            sock, _ = self._listener.accept()
        except OSError:
            return  # It has gone again.
        try:
            check_peer(sock)
        except WireError:
            sock.close()
            return
        self._peers.add(ClientConnection(sock, self._take, self._peers.discard))

    def _take(self, peer: ClientConnection, message: FromClient) -> None:
        assert self._job is not None
        if isinstance(message, Stop):
            self._job.stop(message.code, message.why)  # The client waits until the connection is closed.
            return
        try:
            peer.post(self._answer(self._job, message))
        except SpecError as error:
            peer.post(Refused(error.message, error.hint))

    def _answer(self, job: Supervisor, message: FromClient) -> FromDaemon:
        if isinstance(message, AskStatus):
            return StatusIs(len(job.workers.world), 1, "", job.status.steps_per_second, job.measures)
        if isinstance(message, AskView):
            # What its workers print goes only to the terminal.
            return ViewIs(msgspec.structs.replace(view_of(job), name=self._directory.name))
        if isinstance(message, ListHosts):
            return HostsAre(tuple(_rows(job)))
        if isinstance(message, Kill):
            return Done((job.kill(message.rank, message.signal),))
        raise SpecError(
            f"job {self._directory.name} has a fixed size, and is shown only where it was started",
            "a job that is started with --min-np can be changed, and shown elsewhere",
        )


def _rows(job: Supervisor) -> list[HostRow]:
    """Return the hosts of a job with the ranks there that have not ended."""
    names = dict.fromkeys(worker.host for worker in job.workers.by_number.values())
    rows = []
    for name in names:
        here = [worker for worker in job.workers.by_number.values() if worker.host == name]
        living = tuple(worker.number for worker in here if not worker.record.ended)
        rows.append(HostRow(name, len(here), living, "ready"))
    return rows
