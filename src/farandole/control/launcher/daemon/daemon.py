"""Runs the launcher of a job in its own session, so that the job outlives the client that started it.

The daemon's standard input is the connection to that client, whose first message is the job. From then on the daemon
has no terminal, pipe or file of its client except the ones that the client sends for showing the job, which it closes
when the client is gone. All later clients connect to a Unix socket in the job's directory (see `jobs`), and must be
processes of the same user.

When the daemon is killed, a successor starts (see `watchdog`), reads the files in the job's directory, and takes over
the agents, which wait for it: see `farandole.control.launcher.supervise.take_over`.
"""

from __future__ import annotations

import asyncio
import contextlib
import fcntl
import importlib
import os
import pickle
import signal
import socket
import sys
import time
import traceback
from pathlib import Path
from typing import Any

import msgspec

from farandole.base.display.wording import error_lines
from farandole.base.wire import clock
from farandole.base.wire.errors import BadMessage, ConnectionLost, WireError
from farandole.base.wire.frames import LENGTH_BYTES, Codec, frame_length
from farandole.base.wire.unix_socket import MOST_DESCRIPTORS
from farandole.base.wire.utf8_mode import ensure_utf8
from farandole.control.jobs.view import JobView
from farandole.control.launcher.background import Background
from farandole.control.launcher.daemon.client_connection import ClientConnection
from farandole.control.launcher.daemon.client_protocol import (
    MESSAGE_LIMIT,
    AskStatus,
    AskView,
    FromClient,
    FromDaemon,
    Hide,
    JobEnded,
    Launch,
    RequestRefused,
    Show,
    StatusIs,
    Stop,
    ViewIs,
)
from farandole.control.launcher.daemon.daemon_connection import DaemonConnection
from farandole.control.launcher.daemon.display import STREAMS, JobDisplay
from farandole.control.launcher.daemon.job_socket import JobSocket, Question, answer
from farandole.control.launcher.daemon.jobs import LIFE_SECONDS, JobDirectory, JobRecord, cannot_write
from farandole.control.launcher.daemon.launch_request import LaunchRequest
from farandole.control.launcher.daemon.log_file import LogFile
from farandole.control.launcher.daemon.output_sink import let_writes_be_interrupted
from farandole.control.launcher.daemon.watchdog import run_watched
from farandole.control.launcher.supervise.control import ControlledJob
from farandole.control.launcher.supervise.ending import READER_SECONDS
from farandole.control.launcher.supervise.failover_files import NothingLeft, NotTakenOver
from farandole.control.launcher.supervise.outcome import JobOutcome
from farandole.errors import SpecError

# Modules that a successor needs and a first daemon loads only once it knows its job.
_ELASTIC = "farandole.control.launcher.start.elastic"

LAUNCH_REQUEST_SECONDS = 30.0
LAST_WORD_SECONDS = 2.0


class JobDaemon:
    """One job and its clients. Everything runs in the loop's thread.

    Args:
        request: the job to run.
        directory: the job's directory, which is locked.
        first: the connection to the client that started this process, if there is one.
        anew: the job to run if a previous daemon has left nothing to take over; None: in that case, the job has ended.
    """

    def __init__(
        self, request: LaunchRequest, directory: JobDirectory, first: socket.socket | None, anew: bytes | None = None
    ) -> None:
        self._request = request
        self._anew = anew
        self._directory = directory
        self._failover_files = directory.failover_files()
        self._follows = self._failover_files.is_whole()
        """Whether this is the successor of a daemon that was killed."""
        self._loop = asyncio.get_running_loop()
        self._log, self._socket = self._make_ready()
        self._display = JobDisplay(self._log, request.spec.output)
        self._console = self._display.console
        self._job: ControlledJob | None = None
        self._stops: list[Stop] = []
        """Orders that arrived before the job was taken over."""
        self._goes_on_without = False
        """Whether the job continues without this daemon, which could not take it over."""
        self._running: asyncio.Task[FromDaemon] | None = None
        if first is not None:
            self._socket.add(ClientConnection(first, self._take, self._socket.gone))

    def _make_ready(self) -> tuple[LogFile, JobSocket]:
        """Return the log of the output, and the socket for clients.

        Raises:
            SpecError: a file cannot be written; nothing was started.
            OSError: the same, for a daemon that takes a job over.
        """
        try:
            log = LogFile(self._directory.log)
            return log, JobSocket(
                self._directory,
                self._take,
                lambda peer: self._display.gone(peer),
                lambda error: self._console.say(f"warning: a client was refused: {error}"),
            )
        except OSError as error:
            if self._follows:
                raise  # As a refusal, it would make the client forget the job.
            raise cannot_write(self._directory.path, error) from None

    async def run(self) -> None:
        """Run the job to its end, and report the end to a client, or write it to the directory.

        Raises:
            SpecError: the job could not be found again; nothing was started.
        """
        self._let_go_of_the_client()
        self._write_record()
        self._socket.start()
        for signum in (signal.SIGTERM, signal.SIGINT):
            if signal.getsignal(signum) is not signal.SIG_IGN:
                self._loop.add_signal_handler(signum, self._stop, Stop(128 + signum, signum.name))
        self._loop.add_signal_handler(signal.SIGHUP, lambda: None)  # There is no terminal whose end would matter.
        self._running = self._loop.create_task(self._run_job())
        background = Background()
        background.spawn(self._show_life())
        await self._report_end(await self._running)
        await background.end()
        self._socket.stop()

    def _let_go_of_the_client(self) -> None:
        # Tracebacks of this process go to the log, like the output.
        for stream in STREAMS:
            os.dup2(self._log.fileno(), stream)
        os.chdir(self._request.machine.directory)

    async def _show_life(self) -> None:
        while True:
            # A file server may be slow, and agents on other hosts wait for heartbeats of this process meanwhile.
            await asyncio.to_thread(self._directory.show_life)
            await asyncio.sleep(LIFE_SECONDS)

    def _write_record(self) -> None:
        try:
            self._directory.write_record(self._record())
        except SpecError:
            if not self._follows:
                raise
            # The record of the previous daemon exists, and is wrong only about the process.

    def _record(self) -> JobRecord:
        before = self._directory.record()
        elastic = self._request.spec.elastic
        return JobRecord(
            self._directory.name,
            os.getpid(),
            socket.gethostname(),
            time.time() if before is None else before.started,
            self._request.spec.command,
            tuple(host.label for host in self._request.spec.hosts),
            clock.identity(),
            0.0 if elastic is None else elastic.search_timeout,
        )

    # --- the job ------------------------------------------------------------------------------------------------

    async def _run_job(self) -> FromDaemon:
        """Run the job, and return the last message for its client."""
        try:
            outcome = await self._launch_or_begin_anew()
        except NotTakenOver as error:
            self._goes_on_without = True
            return RequestRefused(error.message, error.hint)
        except SpecError as error:
            return RequestRefused(error.message, error.hint)
        except asyncio.CancelledError:
            return JobEnded(130, "error: interrupted before anything was started")
        except Exception:
            return JobEnded(1, f"error: the launcher failed:\n{traceback.format_exc()}")
        return JobEnded(outcome.exit_code, outcome.report, outcome.rank)

    async def _launch_or_begin_anew(self) -> JobOutcome:
        try:
            return await self._launch()
        except NothingLeft as error:
            if self._anew is None:
                await asyncio.to_thread(self._console.close, READER_SECONDS)
                raise
            self._console.say(f"note: {error.message}; it starts again")
        self._failover_files.clear()
        self._directory.write_launch_request(self._anew)
        self._request, self._follows = pickle.loads(self._anew), False
        return await self._launch()

    async def _launch(self) -> JobOutcome:
        request = self._request
        launch = _find(request.launch)
        observer = None if request.observe is None else request.observe(self._console)
        outcome: JobOutcome = await launch(
            request.spec,
            request.machine,
            self._console,
            started=self._started,
            verbose=request.verbose,
            observer=observer,
            failover_files=self._failover_files,
            name=self._directory.name,
        )
        return outcome

    def _started(self, job: ControlledJob) -> None:
        self._job = job
        for order in self._stops:
            self._loop.call_soon(self._stop, order)  # The job is about to begin.
        if self._follows:
            return
        name = self._directory.name
        self._console.say(f"farandole: job {name}; farandole run --attach {name} shows it again")

    def _stop(self, order: Stop) -> None:
        if self._job is not None:
            self._job.stop(order.code, order.why)
        elif self._follows:
            self._stops.append(order)  # There are workers, which would continue without a launcher.
        elif self._running is not None:
            self._running.cancel()

    async def _report_end(self, end: FromDaemon) -> None:
        if not self._goes_on_without:
            with contextlib.suppress(OSError):  # On a full disk, at least the client gets it.
                self._directory.write_ended(_as_ended(end))
            self._failover_files.clear()
            self._directory.forget_launch_request()
        client = self._display.client
        if client is None or not client.open:
            return
        shown = self._display.is_shown
        client.post(msgspec.structs.replace(end, shown=shown) if isinstance(end, JobEnded) else end)
        # A client stopped by Ctrl-Z has not seen the last lines, and will look for them here.
        if await client.all_sent(LAST_WORD_SECONDS) and shown and not self._goes_on_without:
            self._directory.remove()

    # --- clients -----------------------------------------------------------------------------------------------

    def _take(self, peer: ClientConnection, message: FromClient) -> None:
        if isinstance(message, Show):
            self._display.show(peer, message)
        elif isinstance(message, Hide):
            self._display.hide(peer)
        elif isinstance(message, Stop):
            self._stop(message)
        elif isinstance(message, Launch):
            raise BadMessage("a daemon runs only one job")
        else:
            peer.post(self._answer(message))

    def _answer(self, question: Question) -> FromDaemon:
        name = self._directory.name
        if self._job is not None:
            try:
                return answer(self._job, name, question, self._display.output_from)
            except SpecError as error:
                return RequestRefused(error.message, error.hint)
        if isinstance(question, AskStatus):
            return StatusIs(0, 0, "it is being started")
        if isinstance(question, AskView):
            lines, lines_next = self._display.output_from(question.lines_from)
            return ViewIs(JobView(state="it is being started", name=name, lines=lines, lines_next=lines_next))
        what = "the job is being started, and cannot be changed yet"
        return RequestRefused(what, "try again soon")


def _find(name: str) -> Any:
    module, _, function = name.partition(":")
    return getattr(importlib.import_module(module), function)


def _as_ended(end: FromDaemon) -> JobEnded:
    """Return the end in the form that is stored for later clients."""
    if isinstance(end, JobEnded):
        return end
    assert isinstance(end, RequestRefused)
    return JobEnded(2, error_lines(end.message, end.hint))


def _receive(sock: socket.socket) -> tuple[Launch, int]:
    """Return the first message of the client that started this process, and the lock; no more bytes are read.

    Raises:
        WireError: there is no such message.
        OSError: it did not arrive in time.
    """
    sock.settimeout(LAUNCH_REQUEST_SECONDS)
    header, descriptors, _, _ = socket.recv_fds(sock, LENGTH_BYTES, MOST_DESCRIPTORS, socket.MSG_CMSG_CLOEXEC)
    length = frame_length(header, MESSAGE_LIMIT)
    payload = bytearray()
    while len(payload) < length:
        if not (piece := sock.recv(length - len(payload))):
            raise ConnectionLost("the client is gone")
        payload += piece
    message: FromClient = Codec[FromClient](FromClient).decode(bytes(payload))
    if not isinstance(message, Launch):
        raise BadMessage("the first message is not a launch")
    if len(descriptors) != 1:
        raise BadMessage("the job's directory is not locked")
    return message, descriptors[0]


async def _serve(directory: JobDirectory, first: socket.socket | None, anew: bytes | None) -> None:
    await JobDaemon(pickle.loads(directory.launch_request()), directory, first, anew).run()


def _write_launch_request(directory: JobDirectory, request: bytes) -> None:
    """Store the launch request for a successor, which runs the job as it was begun.

    Raises:
        SpecError: it cannot be stored.
    """
    if request and not directory.failover_files().is_whole():
        directory.write_launch_request(request)


def _refuse(client: socket.socket, directory: JobDirectory, error: SpecError) -> None:
    """Inform the client that the job cannot be run, and remove the job's directory."""
    directory.remove()
    with contextlib.suppress(WireError):
        DaemonConnection(client).send(RequestRefused(error.message, error.hint))


def main() -> None:
    """Run the job that the client at the other end of standard input requests."""
    ensure_utf8()
    let_writes_be_interrupted()
    nowhere = os.open(os.devnull, os.O_RDWR)
    first = socket.socket(fileno=os.dup(0))
    os.dup2(nowhere, 0)
    try:
        message, claim = _receive(first)
    except OSError:  # The client is gone; nothing has been started.
        sys.exit(1)
    directory = JobDirectory(Path(message.directory))
    try:
        _write_launch_request(directory, message.request)
    except SpecError as error:
        _refuse(first, directory, error)
        sys.exit(1)

    def keep(follows: bool) -> None:
        try:
            asyncio.run(_serve(directory, None if follows else first, None if follows else message.request or None))
        except SpecError as error:
            _refuse(first, directory, error)
        # The watchdog holds the lock too, and may take a moment to end.
        fcntl.flock(claim, fcntl.LOCK_UN)

    def let_go() -> None:
        first.close()
        for stream in STREAMS:
            os.dup2(nowhere, stream)

    def prepare() -> None:
        importlib.import_module(_ELASTIC)

    run_watched(keep, let_go, prepare, directory.can_be_continued)
