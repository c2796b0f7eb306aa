"""The socket in a job's directory, to which commands of the job's user connect, and the answers of a running job."""

from __future__ import annotations

import asyncio
from collections.abc import Callable

import msgspec

from farandole.base.wire.errors import WireError
from farandole.control.jobs.view import OutputLine
from farandole.control.launcher.daemon.client_connection import ClientConnection
from farandole.control.launcher.daemon.client_protocol import (
    AddHosts,
    AskStatus,
    AskView,
    Done,
    FromClient,
    FromDaemon,
    HostsAre,
    HostsRequest,
    Kill,
    ListHosts,
    RemoveHost,
    Scale,
    ScheduleBatch,
    StatusIs,
    ViewIs,
)
from farandole.control.launcher.daemon.daemon_connection import check_peer
from farandole.control.launcher.daemon.jobs import JobDirectory
from farandole.control.launcher.job.host_list import parse_hosts, slots_of
from farandole.control.launcher.supervise.control import ControlledJob

Question = AskStatus | AskView | HostsRequest
OutputFrom = Callable[[int], tuple[tuple[OutputLine, ...], int]]
"""Returns the output from a line number on, and the number of the next line; see `RecentLines`."""


class JobSocket:
    """Accepts connections of this user. Everything is done in the loop's thread.

    Args:
        directory: the job's directory, which is locked.
        take: called with each connection and message; may raise BadMessage.
        gone: called with each connection that was closed.
        refused: called with the reason why a process was refused, such as that it belongs to another user.

    Raises:
        OSError: the socket cannot be created.
    """

    def __init__(
        self,
        directory: JobDirectory,
        take: Callable[[ClientConnection, FromClient], None],
        gone: Callable[[ClientConnection], None] = lambda peer: None,
        refused: Callable[[WireError], None] = lambda error: None,
    ) -> None:
        self._take = take
        self._on_gone = gone
        self._refused = refused
        self._peers: set[ClientConnection] = set()
        self._loop = asyncio.get_running_loop()
        self._listener = directory.listen()
        self._listener.setblocking(False)

    def start(self) -> None:
        """Start accepting connections."""
        self._loop.add_reader(self._listener, self._accept)

    def add(self, peer: ClientConnection) -> None:
        """Add a client that is already connected."""
        self._peers.add(peer)

    def gone(self, peer: ClientConnection) -> None:
        """Forget a connection that was closed."""
        self._peers.discard(peer)
        self._on_gone(peer)

    def stop(self) -> None:
        """Stop accepting connections; open ones stay."""
        self._loop.remove_reader(self._listener)
        self._listener.close()

    def close(self) -> None:
        """Stop, and close all connections."""
        self.stop()
        for peer in list(self._peers):
            peer.close()

    def _accept(self) -> None:
        try:
            sock, _ = self._listener.accept()
        except OSError:
            return  # It has closed again.
        try:
            check_peer(sock)
        except WireError as error:
            sock.close()
            self._refused(error)
            return
        self.add(ClientConnection(sock, self._take, self.gone))


def answer(job: ControlledJob, name: str, question: Question, output_from: OutputFrom | None = None) -> FromDaemon:
    """Return the answer of a running job to a command.

    Args:
        job: the running job.
        name: name of the job.
        question: the command's request.
        output_from: returns the job's output; None if there is none.

    Raises:
        SpecError: the request cannot be carried out.
    """
    if isinstance(question, AskStatus):
        return StatusIs(**job.status())
    if isinstance(question, AskView):
        lines, lines_next = ((), 0) if output_from is None else output_from(question.lines_from)
        return ViewIs(msgspec.structs.replace(job.view(), name=name, lines=lines, lines_next=lines_next))
    if isinstance(question, ListHosts):
        return HostsAre(tuple(job.list_hosts()))
    if isinstance(question, AddHosts):
        return Done(tuple(job.add_host(host, slots_of(host)) for host in parse_hosts(question.hosts)))
    if isinstance(question, RemoveHost):
        return Done((job.remove_host(question.name),))
    if isinstance(question, Kill):
        return Done((job.kill(question.rank, question.signal),))
    if isinstance(question, ScheduleBatch):
        return Done((job.schedule_batch(question.samples),))
    if isinstance(question, Scale):
        return Done((job.scale(question.workers),))
    return Done((job.drain_host(question.name),))
