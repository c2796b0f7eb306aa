"""The display of a job: on the descriptors that the attached client has sent or, without one, in the log."""

from __future__ import annotations

import asyncio
import contextlib
import os
from collections.abc import Callable

from farandole.control.agent.protocol import STDERR, STDOUT
from farandole.control.jobs.view import OutputLine
from farandole.control.launcher.daemon.client_connection import ClientConnection
from farandole.control.launcher.daemon.client_protocol import FromDaemon, Hidden, Show, TakenOver, Unread
from farandole.control.launcher.daemon.launch_request import look_behind
from farandole.control.launcher.daemon.log_file import LogFile
from farandole.control.launcher.daemon.output_sink import OutputSink, open_sinks
from farandole.control.launcher.daemon.recent_lines import RecentLines
from farandole.control.launcher.daemon.switched_line_writer import SwitchedLineWriter
from farandole.control.launcher.output.console import Console, OutputOptions
from farandole.control.launcher.output.line_writer import LineWriter
from farandole.control.launcher.output.terminal import Look

STREAMS = (STDOUT, STDERR)
# Seconds within which output in progress is finished, and the bottom rows are cleared, when a client leaves.
LEAVING_SECONDS = 0.5


class _AttachedClient:
    """A client that shows the job, or has shown it and may do so again."""

    def __init__(self, peer: ClientConnection) -> None:
        self.peer = peer
        self.sinks: set[OutputSink] = set()
        """The sinks on its descriptors that the writing threads have not left yet."""
        self.seen: int | None = None
        """Number of lines that the job had printed when the sinks were left; None while the client shows it."""
        self.then: FromDaemon | None = None
        """The message to send to it once all sinks are left."""

    def sever(self) -> None:
        """Release its descriptors at once."""
        for sink in self.sinks:
            sink.sever()


class JobDisplay:
    """Decides which client gets the job's output. Everything runs in the loop's thread, except in sinks.

    Args:
        log: gets the output while no client shows it.
        options: the look of the output.

    Attributes:
        console: the console, which writes to the sinks.
    """

    def __init__(self, log: LogFile, options: OutputOptions) -> None:
        self._loop = asyncio.get_running_loop()
        self._recent = RecentLines()
        log_sink = OutputSink(LineWriter(log, Look()), STREAMS)
        self._writers = {
            stream: SwitchedLineWriter(stream, log_sink, self._recent, self._lost_soon) for stream in STREAMS
        }
        self.console = Console(self._writers[STDOUT], self._writers[STDERR], options=options)
        reading, self._unread_pipe = os.pipe()
        os.close(reading)
        self._attached: _AttachedClient | None = None
        """The client that shows the job, or is stopped and may do so again."""
        self._clients: set[_AttachedClient] = set()
        """All clients whose sinks have not been left."""
        self._sinks: dict[int, OutputSink] | None = None
        """The sinks of the attached client; None while there is only the log."""

    @property
    def client(self) -> ClientConnection | None:
        """The connection to the client that shows the job, or is stopped and may do so again."""
        return None if self._attached is None else self._attached.peer

    @property
    def is_shown(self) -> bool:
        """Whether a client shows the job."""
        return self._sinks is not None

    def output_from(self, number: int) -> tuple[tuple[OutputLine, ...], int]:
        """Return the latest lines from this number on, and the number of the next line."""
        return self._recent.output_from(number)

    def show(self, peer: ClientConnection, message: Show) -> None:
        """Show the job on the descriptors that came with a message, and nowhere else.

        Raises:
            BadMessage: the message came without them.
        """
        descriptors = peer.take_descriptors(len(STREAMS))
        before = self._attached
        client = before if before is not None and before.peer is peer else _AttachedClient(peer)
        if before is not None and before is not client:
            self._leave(before, TakenOver())
        since = client.seen if message.again and client.seen is not None else 0
        client.seen = client.then = None
        looks = [look_behind(*each) for each in zip(descriptors, (message.out, message.err), strict=True)]
        sinks = open_sinks(descriptors, looks, self._unread_pipe, since, self._left_soon)
        client.sinks.update(sinks.values())
        self._clients.add(client)
        self._attached = client
        self._switch_to(sinks)

    def hide(self, peer: ClientConnection) -> None:
        """Stop showing the job to this client, and confirm it when that is done."""
        client = self._attached
        if client is None or client.peer is not peer:
            peer.post(Hidden())
        else:
            self._leave(client, Hidden())
            self._switch_to(None)

    def gone(self, peer: ClientConnection) -> None:
        """Handle the end of a client's connection."""
        client = self._attached
        if client is not None and client.peer is peer:
            self._attached = None
            self._switch_to(None)
            client.sever()

    def _switch_to(self, sinks: dict[int, OutputSink] | None) -> None:
        self._sinks = sinks
        for stream, line_writer in self._writers.items():
            line_writer.switch_to(None if sinks is None else sinks[stream])
            # A thread that waits for output would not notice.
            self.console.submit(stream, lambda line_writer: None)

    def _leave(self, client: _AttachedClient, then: FromDaemon) -> None:
        """Make the writing threads leave a client's sinks after the current line, and confirm that to the client."""
        if client.sinks:
            client.then = then
            self._loop.call_later(LEAVING_SECONDS, client.sever)
        else:
            client.peer.post(then)

    def _left(self, sink: OutputSink) -> None:
        """Handle that all output for a sink has been written."""
        for client in [each for each in self._clients if sink in each.sinks]:
            client.sinks.discard(sink)
            if client.seen is None:
                client.seen = self._recent.count
            if client.sinks:
                continue
            self._clients.discard(client)
            if client.then is not None:
                client.peer.post(client.then)
                client.then = None

    def _lost(self, sink: OutputSink) -> None:
        """Handle that a sink has no reader."""
        client = self._attached
        if client is None or self._sinks is None or sink not in self._sinks.values():
            return  # It was severed.
        self._switch_to(None)
        client.sever()
        client.peer.post(Unread())

    def _left_soon(self, sink: OutputSink) -> None:
        self._call_soon(lambda: self._left(sink))

    def _lost_soon(self, sink: OutputSink) -> None:
        self._call_soon(lambda: self._lost(sink))

    def _call_soon(self, callback: Callable[[], None]) -> None:
        """Call in the loop's thread; no-op at the very end."""
        with contextlib.suppress(RuntimeError):
            self._loop.call_soon_threadsafe(callback)
