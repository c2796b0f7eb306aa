"""Carries out a plan: has the agent start the workers, listens, and ends the job when it is over.

Everything here runs in one asyncio loop, the roster too. The console's threads only call back through the loop.

When a worker fails, the others are ended: SIGTERM, `GRACE_SECONDS`, SIGKILL. A worker that fails only because it lost
another is not a reason to end that other one before it could end by itself and say why: it gets `BLAMED_SECONDS`.
"""

from __future__ import annotations

import asyncio
import os
import signal
import sys
import time
from collections.abc import Callable, Coroutine
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from farandole.agent.messages import (
    STDERR,
    STDOUT,
    WINDOW,
    Closed,
    Credit,
    End,
    Ended,
    Exited,
    FromAgent,
    NotStarted,
    Output,
    Start,
    Started,
)
from farandole.agent.processes import carrying, send
from farandole.core.rendezvous import Failure
from farandole.core.wire import LARGEST_FRAME, AsyncChannel, Codec, WireError
from farandole.launcher.errors import SpecError
from farandole.launcher.failure import WorkerRecord, first_failure, how_it_ended, signal_name
from farandole.launcher.output import Console, WorkerStream, open_log
from farandole.launcher.plan import Plan, count
from farandole.launcher.report import as_shell, exit_code, render_failure
from farandole.roster.service import RosterService

GRACE_SECONDS = 5.0
BLAMED_SECONDS = 1.0
# How long the last words of a dead worker may be on their way through its roster connection.
LAST_WORDS_SECONDS = 0.2
# An agent that has been told to end all, and is silent for so long, is stuck itself.
STUCK_SECONDS = 20.0
# An interrupted job does not wait longer than this for a reader of its output who does not read.
READER_SECONDS = 2.0


@dataclass(frozen=True)
class Outcome:
    """How a job ended."""

    exit_code: int
    report: str = ""
    """For people; "" when all went well or the user ended it."""
    rank: int | None = None
    """The rank that failed first."""
    results: tuple[bytes | None, ...] = ()
    """By rank: what workers of `farandole.run` sent back."""


class Observer:
    """Hears what becomes of the workers while they run; this one keeps it to itself. Called in the loop's thread."""

    def worker_failed(self, rank: int, code: int) -> None:
        """A worker ended otherwise than with exit code 0; `code` is as a shell gives it."""

    def ends_others(self, rank: int) -> None:
        """The other workers are ended, because this one has failed."""


class Agent:
    """The launcher's end of an agent."""

    def __init__(self, process: asyncio.subprocess.Process) -> None:
        assert process.stdin is not None and process.stdout is not None
        self._process = process
        self._channel = AsyncChannel(process.stdout, process.stdin, LARGEST_FRAME)
        self._codec: Codec[FromAgent] = Codec(FromAgent)

    @classmethod
    async def start(cls) -> Agent:
        """Start an agent on this host, in a session of its own so that Ctrl-C reaches the launcher only."""
        process = await asyncio.create_subprocess_exec(
            sys.executable,
            "-m",
            "farandole.agent",
            stdin=asyncio.subprocess.PIPE,
            stdout=asyncio.subprocess.PIPE,
            start_new_session=True,
            cwd="/",  # python -m looks for modules here first; nothing of the user's may be taken for ours.
            env=_own_environment(),
        )
        return cls(process)

    def tell(self, message: Start | Credit | End) -> None:
        """Send an order."""
        self._channel.post(self._codec.encode(message))

    async def listen(self) -> FromAgent:
        """Wait for the next message."""
        return self._codec.decode(await self._channel.receive())

    def kill(self) -> None:
        """Kill the agent; the kernel kills its workers with it."""
        if self._process.returncode is None:
            self._process.kill()

    async def exited(self) -> int:
        """Wait until its process has ended and return its exit code."""
        return await self._process.wait()


def _own_environment() -> dict[str, str]:
    """Return an environment in which any directory will do to import what is imported here."""
    package = str(Path(__file__).resolve().parents[2])
    listed = [os.path.abspath(entry) for entry in os.environ.get("PYTHONPATH", "").split(os.pathsep) if entry]
    return {**os.environ, "PYTHONPATH": os.pathsep.join([package, *listed])}


class Supervisor:
    """One job from start to end.

    Args:
        plan: what to start.
        inherited: the environment that the workers' own is laid over.
        service: the roster, already listening.
        console: where output and words to the user go.
        job: the job's id, which every process of it carries in its environment.
        log: takes what only a curious user wants to know.
        observer: hears of failures at once.
    """

    def __init__(
        self,
        plan: Plan,
        inherited: dict[str, str],
        service: RosterService,
        console: Console,
        job: str,
        log: Callable[[str], None],
        observer: Observer,
    ) -> None:
        self._plan = plan
        self._inherited = inherited
        self._service = service
        self._console = console
        self._job = job
        self._log = log
        self._observer = observer
        self._records = [WorkerRecord(rank) for rank in range(plan.size)]
        self._agent: Agent | None = None
        self._loop = asyncio.get_running_loop()
        self._tasks: set[asyncio.Task[None]] = set()
        self._streams: dict[tuple[int, int], WorkerStream] = {}
        self._unwritten = 0
        """Bytes that the agent sent and the console has not written yet."""
        self._owed: dict[tuple[int, int], int] = {}
        """Bytes written, for which the agent got no credit yet."""
        self._ended = asyncio.Condition()
        """Notified when a worker has ended."""
        self._ending_since: float | None = None
        self._kill_at = 0.0
        self._heard_at = 0.0
        self._stop_code: int | None = None

    # --- called from outside, in the loop's thread --------------------------------------------------------------

    def stop(self, code: int, why: str) -> None:
        """End the job because the user wants it; a second time: at once. `code` becomes the exit code."""
        if self._stop_code is None:
            self._stop_code = code
            self._console.say(f"farandole: {why}: ending {count(self._plan.size, 'worker')}; once more to kill them")
            self._end(GRACE_SECONDS)
        else:
            self._end(0)

    def failure_reported(self, rank: int, failure: Failure) -> None:
        """Take note of what a worker says about its own failure. Only the first of each counts."""
        if not 0 <= rank < len(self._records) or self._records[rank].report_time is not None:
            return
        record = self._records[rank]
        record.report_time = time.monotonic()
        record.exception = failure.exception
        record.traceback = failure.traceback
        record.consequence_of = failure.consequence_of if failure.consequence_of != rank else None

    async def run(self) -> Outcome:
        """Start everything, and return when nothing of the job is left."""
        self._open_streams()
        self._agent = await Agent.start()
        for order in self._orders():
            self._agent.tell(order)
        if self._ending_since is not None:
            self._agent.tell(End(max(0.0, self._kill_at - time.monotonic())))
        try:
            survivors = await self._listen(self._agent)
        finally:
            for task in self._tasks:
                task.cancel()
            await asyncio.gather(*self._tasks, return_exceptions=True)
        return await self._outcome(survivors)

    # --- starting -----------------------------------------------------------------------------------------------

    def _orders(self) -> list[Start]:
        return [
            Start(
                worker.rank,
                self._plan.command,
                {**self._inherited, **self._plan.environment, **worker.environment},
                self._plan.directory,
            )
            for host in self._plan.hosts
            for worker in host.workers
        ]

    def _open_streams(self) -> None:
        directory = self._plan.output_dir
        for rank in range(self._plan.size):
            for stream in (STDOUT, STDERR):
                file = None
                if directory is not None:
                    try:
                        file = open_log(Path(directory), rank, self._plan.size, stream)
                    except OSError as error:
                        raise SpecError(f"the output directory cannot be used: {error}") from None
                self._streams[rank, stream] = WorkerStream(
                    self._console,
                    rank,
                    stream,
                    file=file,
                    prefixes_in_file=self._plan.prefixes_in_files,
                    timestamps=self._plan.timestamps,
                    written=self._written_callback(rank, stream),
                )

    # --- listening ------------------------------------------------------------------------------------------------

    async def _listen(self, agent: Agent) -> tuple[int, ...]:
        """Take messages until the agent has ended all; return the processes that it could not end."""
        try:
            while not isinstance(message := await agent.listen(), Ended):
                self._heard_at = time.monotonic()
                self._take(message)
        except WireError:
            return await self._sweep(await agent.exited())
        # Its pipe is closed by its exit; waiting for that makes sure that nothing of us is left either.
        await agent.exited()
        return message.survivors

    def _take(self, message: FromAgent) -> None:
        if isinstance(message, Output):
            self._unwritten += len(message.data)
            if message.stream == STDERR:
                self._records[message.rank].heard(message.data)
            self._streams[message.rank, message.stream].write(message.data)
        elif isinstance(message, Closed):
            self._streams[message.rank, message.stream].close()
        elif isinstance(message, Started):
            self._log(f"rank {message.rank} runs as process {message.pid}")
        elif isinstance(message, NotStarted | Exited):
            record = self._records[message.rank]
            record.exit_time = time.monotonic()
            if isinstance(message, Exited):
                record.exit_code = message.code
            else:
                record.not_started = message.reason
            if record.failed:
                self._observer.worker_failed(record.rank, as_shell(record))
            self._spawn(self._worker_ended(record))

    async def _worker_ended(self, record: WorkerRecord) -> None:
        await self._service.silence(record.rank, LAST_WORDS_SECONDS)
        self._service.finished(record.rank, how_it_ended(record))
        async with self._ended:
            self._ended.notify_all()
        if record.failed and self._ending_since is None:
            await self._blamed_ends(record)
            self._observer.ends_others(record.rank)
            self._end(GRACE_SECONDS)
        elif all(each.ended for each in self._records):
            self._end(GRACE_SECONDS)  # What workers left running must go too.

    async def _blamed_ends(self, record: WorkerRecord) -> None:
        """Wait a little for the end of the worker that this one says it lost."""
        blamed = record.consequence_of
        if blamed is None or not 0 <= blamed < len(self._records):
            return
        try:
            async with self._ended:
                await asyncio.wait_for(self._ended.wait_for(lambda: self._records[blamed].ended), BLAMED_SECONDS)
        except (TimeoutError, asyncio.TimeoutError):
            return

    def _written_callback(self, rank: int, stream: int) -> Callable[[int], None]:
        def written(written_bytes: int) -> None:
            try:
                self._loop.call_soon_threadsafe(self._credit, rank, stream, written_bytes)
            except RuntimeError:
                pass  # The loop is closed: nobody needs credit any more.

        return written

    def _credit(self, rank: int, stream: int, written_bytes: int) -> None:
        self._unwritten -= written_bytes
        self._heard_at = time.monotonic()
        owed = self._owed.get((rank, stream), 0) + written_bytes
        # Not for every line: a quarter of the window is soon enough to keep the worker going.
        if owed >= WINDOW // 4 and self._agent is not None:
            self._agent.tell(Credit(rank, stream, owed))
            owed = 0
        self._owed[rank, stream] = owed

    # --- ending -----------------------------------------------------------------------------------------------------

    def _end(self, grace: float) -> None:
        now = time.monotonic()
        if self._ending_since is None:
            self._ending_since = self._heard_at = now
            self._kill_at = now + grace
            self._spawn(self._watch_for_stuck_end())
        self._kill_at = min(self._kill_at, now + grace)
        if self._agent is not None:
            self._agent.tell(End(grace))

    async def _watch_for_stuck_end(self) -> None:
        # Not before the end: a launcher that has nothing to do sleeps.
        while True:
            await asyncio.sleep(0.25)
            if self._agent is None:
                continue
            now = time.monotonic()
            reader_stuck = self._unwritten > 0
            if reader_stuck and self._stop_code is None:
                continue  # As any program, the launcher waits for the reader of its output.
            patience = READER_SECONDS if reader_stuck else STUCK_SECONDS
            if now > max(self._kill_at, self._heard_at) + patience:
                self._agent.kill()

    async def _sweep(self, agent_code: int) -> tuple[int, ...]:
        """The agent is dead: kill what it can no longer kill, found by the job's id in the environment."""
        how = signal_name(-agent_code) if agent_code < 0 else f"exit code {agent_code}"
        if self._ending_since is None:
            self._ending_since = time.monotonic()
            self._console.say(f"error: the agent that watches over the workers died ({how}); killing the workers")
        self._stop_code = self._stop_code or 1
        deadline = time.monotonic() + STUCK_SECONDS
        while left := carrying(f"FARANDOLE_JOB={self._job}"):
            send(left, signal.SIGKILL)
            if time.monotonic() > deadline:
                return tuple(left)
            await asyncio.sleep(0.02)
        return ()

    async def _outcome(self, survivors: tuple[int, ...]) -> Outcome:
        for pid in survivors:
            self._console.say(f"warning: process {pid} survived SIGKILL; see: ps -o pid,stat,cmd {pid}")
        if self._stop_code is not None:
            return Outcome(self._stop_code)
        assert self._ending_since is not None
        results = tuple(self._service.results.get(record.rank) for record in self._records)
        first = first_failure(self._records, self._ending_since)
        if first is None:
            return Outcome(0, results=results)
        report = render_failure(self._plan, self._records, first, self._ending_since)
        return Outcome(exit_code(first, self._ending_since), report, first.rank, results)

    def _spawn(self, work: Coroutine[Any, Any, None]) -> None:
        task = self._loop.create_task(work)
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)
