"""Worlds of real worker processes, which are reused by many tests and run one function after the other.

A *nursery* process imports the framework once and forks a worker whenever one is needed, so that a worker costs
milliseconds. A worker runs the functions that it receives and returns their results; it ends when its connection
closes.

The parent acts as the launcher: it serves the roster, in a thread, and sets the workers' environment.
"""

from __future__ import annotations

import asyncio
import contextlib
import faulthandler
import importlib
import os
import secrets
import select
import signal
import socket
import subprocess
import sys
import threading
import time
import traceback
from collections.abc import Callable, Iterable, Mapping, Sequence
from multiprocessing.connection import Connection
from pathlib import Path
from typing import TYPE_CHECKING, Any

import cloudpickle

if TYPE_CHECKING:
    from mpi_seats import Seats

# Most of a test's time, for a machine that has something else to do.
ANSWER_SECONDS = 100.0
# Then a worker is killed that was to end by itself.
END_SECONDS = 20.0
# The seconds for which a worker may be silent before it counts as lost. By default it is less, and least in elastic
# worlds, 1 s. A busy machine may well hold up a healthy worker for that: a test would find a worker too few, or a world
# too many. A test that stops one to see it lost says so, to the roster, or by another deadline.
SILENCE_SECONDS = 20.0
# When one worker has failed, the others may wait for it in vain.
STRAGGLER_SECONDS = 5.0


class WorkerGone(Exception):
    """The worker's process has ended."""


class WorkerFailed(AssertionError):
    """The function raised in a worker; the text is the worker's traceback."""


class Nursery:
    """The process that forks workers.

    Args:
        modules: the modules that are imported before the fork. Every optimizer and process group of torch imports
            _dynamo.
        variables: the environment variables during these imports.
    """

    def __init__(
        self,
        modules: Sequence[str] = ("torch._dynamo", "farandole.torch"),
        variables: Mapping[str, str] | None = None,
    ) -> None:
        ours, theirs = socket.socketpair()
        path = os.pathsep.join(filter(None, sys.path))
        environment = {**os.environ, "OMP_NUM_THREADS": "1", "PYTHONPATH": path, **(variables or {})}
        self._process = subprocess.Popen(
            [sys.executable, __file__, str(theirs.fileno()), *modules], pass_fds=[theirs.fileno()], env=environment
        )
        theirs.close()
        self._socket = ours

    def fork(self, environment: Mapping[str, str], descriptors: Mapping[str, int] | None = None) -> Worker:
        """Return a new worker with these variables, and with descriptors, whose numbers are in variables."""
        ours, theirs = socket.socketpair()
        given = dict(descriptors or {})
        with theirs:
            payload = cloudpickle.dumps((dict(environment), list(given)))
            passed = [theirs.fileno(), *given.values()]
            socket.send_fds(self._socket, [len(payload).to_bytes(4, "little")], passed)
            self._socket.sendall(payload)
        pid = int.from_bytes(_read(self._socket, 4), "little")
        return Worker(Connection(ours.detach()), pid)

    def close(self) -> None:
        """End the nursery; its workers end with their connections."""
        self._socket.close()
        self._process.wait(ANSWER_SECONDS)


class Worker:
    """One worker process."""

    def __init__(self, connection: Connection, pid: int) -> None:
        self._connection = connection
        self.pid = pid
        self._pidfd = os.pidfd_open(pid)

    def send(self, function: Callable[..., Any], arguments: tuple[Any, ...]) -> None:
        """Start a function on the worker."""
        self._connection.send_bytes(cloudpickle.dumps((function, arguments)))

    def has_answered(self) -> bool:
        """Return whether `receive` would return, or raise, at once."""
        return self._connection.poll(0)

    def receive(self, timeout: float = ANSWER_SECONDS) -> Any:
        """Return the function's result, or raise its exception."""
        try:
            if not self._connection.poll(timeout):
                self.kill(signal.SIGUSR1)  # It prints where its threads are.
                raise TimeoutError(f"worker {self.pid} did not answer within {timeout} s")
            value, error, text = cloudpickle.loads(self._connection.recv_bytes())
        except (EOFError, ConnectionResetError) as closed:
            raise WorkerGone(f"worker {self.pid} has ended") from closed
        if text is not None:
            raise WorkerFailed(f"in worker {self.pid}:\n{text}") from error
        return value

    def kill(self, number: int = signal.SIGKILL) -> None:
        """Send the worker a signal; no-op if it has ended."""
        with contextlib.suppress(ProcessLookupError):
            signal.pidfd_send_signal(self._pidfd, number)

    def dismiss(self) -> None:
        """Make the worker end when it is idle."""
        self._connection.close()

    def close(self) -> None:
        """Make the worker end, and wait until it has ended."""
        self.dismiss()
        if not self.wait(END_SECONDS):
            self.kill()
            self.wait(ANSWER_SECONDS)
        os.close(self._pidfd)

    def wait(self, seconds: float | None = None) -> bool:
        """Wait until the worker's process has ended, and return whether it has."""
        poll = select.poll()  # Long tests have more descriptors than select() can take.
        poll.register(self._pidfd, select.POLLIN)
        return bool(poll.poll(None if seconds is None else seconds * 1000))


def receive_all(workers: Iterable[Worker], seconds: float = ANSWER_SECONDS) -> list[Any]:
    """Return the results of all workers' functions; raise the first failure after all have answered.

    Workers that time out may have waited for one that failed, so its failure takes precedence.
    """
    results, failures = [], []
    for worker in workers:
        try:
            results.append(worker.receive(STRAGGLER_SECONDS if failures else seconds))
        except Exception as error:
            failures.append(error)
    if failures:
        raise next((error for error in failures if isinstance(error, WorkerFailed)), failures[0])
    return results


def ship(function: Callable[..., Any]) -> None:
    """Make functions of a test module be pickled as code, for workers that cannot import the module."""
    cloudpickle.register_pickle_by_value(sys.modules[function.__module__])


class World:
    """Workers that share a roster. `init` is not called automatically; see `run`.

    Args:
        nursery: the nursery that forks the workers.
        size: the number of workers.
        environment: variables for all workers.
        of_rank: variables for each rank.
        seats: the workers' places in an MPI job, which ends with the world.
    """

    def __init__(
        self,
        nursery: Nursery,
        size: int,
        environment: Mapping[str, str] | None = None,
        of_rank: Callable[[int], Mapping[str, str]] = lambda rank: {},
        seats: Seats | None = None,
    ) -> None:
        self.size = size
        self._seats = seats
        secret = secrets.token_bytes(32)
        self._roster = _RosterThread(size, secret)
        shared = {
            "FARANDOLE_ROSTER": self._roster.address,
            "FARANDOLE_SECRET": secret.hex(),
            "FARANDOLE_LISTEN": "127.0.0.1",
            "FARANDOLE_FAILURE_DEADLINE": str(SILENCE_SECONDS),
            **(environment or {}),
        }
        # After a failure the workers are no longer in step with each other; make another world.
        self.broken = False
        self.workers = []
        for rank in range(size):
            variables = {**shared, **of_rank(rank), "FARANDOLE_RANK": str(rank)}
            if seats is None:
                self.workers.append(nursery.fork(variables))
            else:
                seat = seats.seats[rank]
                self.workers.append(nursery.fork({**seat.environment, **variables}, {"PMI_FD": seat.descriptor}))

    def run(
        self,
        function: Callable[..., Any],
        *arguments: Any,
        ranks: Iterable[int] | None = None,
        seconds: float = ANSWER_SECONDS,
    ) -> list[Any]:
        """Run a function on all workers (or some) at once, and return the results in rank order."""
        ranks = range(self.size) if ranks is None else list(ranks)
        self.start(function, *arguments, ranks=ranks)
        return self.collect(ranks, seconds)

    def start(self, function: Callable[..., Any], *arguments: Any, ranks: Iterable[int] | None = None) -> None:
        """Start a function on workers; `collect` returns the results."""
        ship(function)
        for rank in range(self.size) if ranks is None else ranks:
            self.workers[rank].send(function, arguments)

    def collect(self, ranks: Iterable[int] | None = None, seconds: float = ANSWER_SECONDS) -> list[Any]:
        """Return the results of started functions; raise the first failure after all have answered."""
        workers = self.workers if ranks is None else [self.workers[rank] for rank in ranks]
        try:
            return receive_all(workers, seconds)
        except Exception:
            self.broken = True
            raise

    def failures(self) -> list[tuple[int, Any]]:
        """Return the failures that workers reported to the roster: pairs of rank and report."""
        self._roster.settle()
        return self._roster.failures

    def progress(self) -> list[tuple[int, Any]]:
        """Return the progress that workers reported: pairs of rank and report."""
        return self._roster.progress

    def __enter__(self) -> World:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def close(self) -> None:
        """End the workers and the roster."""
        for worker in self.workers:
            if self.broken:
                worker.kill()
            worker.dismiss()
        for worker in self.workers:
            worker.close()
        if self._seats is not None:
            self._seats.close()
        self._roster.close()


class _RosterThread:
    """The roster service in a thread with a separate event loop."""

    def __init__(self, size: int, secret: bytes) -> None:
        from farandole.control.roster import fixed
        from farandole.control.roster.events import Place
        from farandole.control.roster.service import RosterService

        self._loop = asyncio.new_event_loop()
        self._thread = threading.Thread(target=self._loop.run_forever, name="roster")
        self._thread.start()
        places = tuple(Place("localhost", rank, size, 0, 1) for rank in range(size))
        self.failures: list[tuple[int, Any]] = []
        self.progress: list[tuple[int, Any]] = []
        self._service = self._call(self._make(RosterService, fixed.FixedState(places), secret))
        self.address: str = self._call(self._service.start())

    def settle(self) -> None:
        """Wait until arrived messages are read, for some turns of the loop."""
        for _ in range(10):
            self._call(asyncio.sleep(0.01))

    def close(self) -> None:
        self._call(self._service.close())
        self._loop.call_soon_threadsafe(self._loop.stop)
        self._thread.join(ANSWER_SECONDS)
        self._loop.close()

    def _call(self, coroutine: Any) -> Any:
        return asyncio.run_coroutine_threadsafe(coroutine, self._loop).result(ANSWER_SECONDS)

    async def _make(self, kind: Any, places: Any, secret: bytes) -> Any:
        # It makes an asyncio.Event, which wants to be born in its loop.
        return kind(places, secret, reported=self._reported)

    def _reported(self, worker: int, report: Any) -> None:
        from farandole.base.wire.rendezvous import Failure, Progress

        if isinstance(report, Failure):
            self.failures.append((worker, report))
        elif isinstance(report, Progress):
            self.progress.append((worker, report))


def wait_until(fact: Callable[[], bool], seconds: float = ANSWER_SECONDS) -> None:
    """Wait until `fact()` is true; fail after a time limit."""
    deadline = time.monotonic() + seconds
    while not fact():
        assert time.monotonic() < deadline, f"{fact} did not hold within {seconds} s"
        time.sleep(0.002)


# --- in the nursery and its workers ----------------------------------------------------------------------------


def _read(connection: socket.socket, count: int) -> bytes:
    data = b""
    while len(data) < count:
        piece = connection.recv(count - len(data))
        if not piece:
            raise EOFError
        data += piece
    return data


def _nursery(connection: socket.socket, modules: Sequence[str]) -> None:
    from farandole.worker.core import basics

    # What every worker would spend seconds on.
    for name in ("farandole.numpy", *modules):
        importlib.import_module(name)
    signal.signal(signal.SIGCHLD, signal.SIG_IGN)
    while True:
        header, descriptors, _, _ = socket.recv_fds(connection, 4, 4)
        if not header:
            os._exit(0)  # as below
        environment, names = cloudpickle.loads(_read(connection, int.from_bytes(header, "little")))
        pid = os.fork()
        if pid == 0:
            connection.close()
            os.environ.update(environment)
            os.environ.update({name: str(number) for name, number in zip(names, descriptors[1:], strict=True)})
            _work(Connection(descriptors[0]))
            basics.shutdown()
            os._exit(0)  # The framework takes most of a second to take itself apart.
        for descriptor in descriptors:
            os.close(descriptor)
        connection.sendall(pid.to_bytes(4, "little"))


def _work(connection: Connection) -> None:
    signal.signal(signal.SIGCHLD, signal.SIG_DFL)
    faulthandler.register(signal.SIGUSR1)
    faulthandler.enable()
    while True:
        try:
            function, arguments = cloudpickle.loads(connection.recv_bytes())
        except (EOFError, ConnectionResetError):
            return
        try:
            answer: tuple[Any, ...] = function(*arguments), None, None
        except Exception as error:
            answer = None, _sendable(error), traceback.format_exc()
        connection.send_bytes(cloudpickle.dumps(answer))


def _sendable(error: Exception) -> Exception | None:
    try:
        cloudpickle.loads(cloudpickle.dumps(error))
    except Exception:
        return None
    return error


if __name__ == "__main__":
    sys.path.insert(0, str(Path(__file__).parent))
    _nursery(socket.socket(fileno=int(sys.argv[1])), sys.argv[2:])


def run_initialized(world: World, front_end: str, body: Callable[..., Any], *arguments: Any) -> list[Any]:
    """Run a function of a front end's module in all workers, between the module's init and shutdown."""
    return world.run(_between_init_and_shutdown, front_end, body, *arguments)


def _between_init_and_shutdown(front_end: str, body: Callable[..., Any], *arguments: Any) -> Any:
    hvd = importlib.import_module(front_end)
    hvd.init()
    try:
        return body(hvd, *arguments)
    finally:
        hvd.shutdown()
