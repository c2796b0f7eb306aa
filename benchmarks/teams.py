"""The live workers of one peer: they are started, given commands, and ended in any case.

Every wait has an end. A team that does not answer in time, or loses a worker, has failed; its owner
kills it, and what its processes started in their sessions with them.
"""

from __future__ import annotations

import contextlib
import json
import os
import selectors
import signal
import socket
import subprocess
import time
from collections.abc import Mapping, Sequence
from pathlib import Path
from types import ModuleType
from typing import Any

from benchmarks.peers.base import Launch, Setup

START_SECONDS = 90.0
ANSWER_SECONDS = 120.0
END_SECONDS = 10.0


class TeamFailed(Exception):
    """A team could not be started, or has failed; the text says why."""


class Unsupported(Exception):
    """The team's library cannot do this work."""


class Team:
    """The live workers of one peer on one topology."""

    def __init__(self, setup: Setup, module: ModuleType) -> None:
        """Start the workers and wait until all have joined.

        Raises:
            TeamFailed: a worker did not join in time, or ended.
        """
        self.name = f"{module.NAME} ({setup.topology})"
        self._log = setup.folder / "output"
        self._processes: list[subprocess.Popen[bytes]] = []
        self._connections: list[_Connection] = []
        with socket.socket(socket.AF_UNIX) as listener, self._log.open("wb") as log:
            listener.bind(str(setup.socket))
            listener.listen(setup.topology.size)
            try:
                for launch in module.launches(setup):
                    self._processes.append(_start(launch, log, setup.folder))
                self._connections = self._admit(listener, setup.topology.size)
            except BaseException:
                self.kill()
                raise

    def _admit(self, listener: socket.socket, size: int) -> list[_Connection]:
        deadline = time.monotonic() + START_SECONDS
        by_rank: dict[int, _Connection] = {}
        listener.settimeout(0.2)
        while len(by_rank) < size:
            try:
                connection = _Connection(listener.accept()[0])
                by_rank[connection.receive(deadline)["rank"]] = connection
            except TimeoutError:
                ended = [process.args for process in self._processes if process.poll() is not None]
                if ended or time.monotonic() > deadline:
                    why = "ended" if ended else f"did not join within {START_SECONDS:.0f} s"
                    raise TeamFailed(f"{self.name}: workers {why}. {self._last_words()}") from None
        return [by_rank[rank] for rank in range(size)]

    def prepare(self, slot: str, work: str, arguments: Mapping[str, Any]) -> str | None:
        """Let all workers prepare a work; return their note about it.

        Raises:
            Unsupported: the library cannot do this work.
            TeamFailed: a worker failed.
        """
        answers = self._tell({"do": "prepare", "slot": slot, "work": work, "with": dict(arguments)})
        if "unsupported" in answers[0]:
            raise Unsupported(answers[0]["unsupported"])
        return answers[0]["note"]  # type: ignore[no-any-return]

    def time(self, slot: str, calls: int) -> float:
        """Make `calls` calls, and return the seconds of one of them on the slowest worker."""
        return max(answer["seconds"] for answer in self._tell({"do": "time", "slot": slot, "calls": calls}))

    def ask(self, slot: str) -> list[Any]:
        """Return the value of one call on every worker."""
        return [answer["value"] for answer in self._tell({"do": "ask", "slot": slot})]

    def release(self, slot: str) -> None:
        """Let the workers drop a work, and free its memory."""
        self._tell({"do": "release", "slot": slot})

    def _tell(self, command: dict[str, Any]) -> list[dict[str, Any]]:
        deadline = time.monotonic() + ANSWER_SECONDS
        try:
            for connection in self._connections:
                connection.send(command)
            answers = _collect(self._connections, deadline)
        except TimeoutError:
            raise TeamFailed(f"{self.name}: no answer to {command} within {ANSWER_SECONDS:.0f} s") from None
        except OSError as error:
            raise TeamFailed(f"{self.name}: a worker has ended ({error}). {self._last_words()}") from error
        for answer in answers:
            if "error" in answer:
                raise TeamFailed(f"{self.name}: {answer['error'].strip().splitlines()[-1]}\n{answer['error']}")
        return answers

    def close(self) -> None:
        """Let the workers end, and kill those that do not."""
        for connection in self._connections:
            connection.close()
        deadline = time.monotonic() + END_SECONDS
        for process in self._processes:
            with contextlib.suppress(subprocess.TimeoutExpired):
                process.wait(max(0.0, deadline - time.monotonic()))
        self.kill()

    def kill(self) -> None:
        """End everything at once."""
        for connection in self._connections:
            connection.close()
        for number in (signal.SIGTERM, signal.SIGKILL):
            for process in self._processes:
                with contextlib.suppress(ProcessLookupError, PermissionError):
                    os.killpg(process.pid, number)
            for process in self._processes:
                with contextlib.suppress(subprocess.TimeoutExpired):
                    process.wait(2.0)

    def _last_words(self) -> str:
        lines = self._log.read_text(errors="replace").strip().splitlines()
        return "It printed:\n" + "\n".join(lines[-15:]) if lines else "It printed nothing."


class _Connection:
    """Lines of JSON to and from one worker."""

    def __init__(self, accepted: socket.socket) -> None:
        self.socket = accepted
        self._received = b""

    def send(self, message: dict[str, Any]) -> None:
        self.socket.sendall(json.dumps(message).encode() + b"\n")

    def receive(self, deadline: float) -> dict[str, Any]:
        while b"\n" not in self._received:
            self.socket.settimeout(max(0.01, deadline - time.monotonic()))
            piece = self.socket.recv(1 << 16)
            if not piece:
                raise ConnectionError("it closed the connection")
            self._received += piece
        line, _, self._received = self._received.partition(b"\n")
        return json.loads(line)  # type: ignore[no-any-return]

    def close(self) -> None:
        self.socket.close()


def _collect(connections: Sequence[_Connection], deadline: float) -> list[dict[str, Any]]:
    """Return one answer of each worker. Raise the first failure at once, since the others may wait for that worker."""
    answers: dict[int, dict[str, Any]] = {}
    with selectors.DefaultSelector() as selector:
        for rank, connection in enumerate(connections):
            selector.register(connection.socket, selectors.EVENT_READ, rank)
        while len(answers) < len(connections):
            ready = selector.select(deadline - time.monotonic())
            if not ready:
                raise TimeoutError
            for key, _ in ready:
                answer = connections[key.data].receive(deadline)
                if "error" in answer:
                    return [answer]
                answers[key.data] = answer
                selector.unregister(key.fileobj)
    return [answers[rank] for rank in range(len(connections))]


def _start(launch: Launch, log: Any, folder: Path) -> subprocess.Popen[bytes]:
    return subprocess.Popen(
        launch.command,
        env={**os.environ, **launch.environment},
        cwd=folder,
        stdin=subprocess.DEVNULL,
        stdout=log,
        stderr=subprocess.STDOUT,
        start_new_session=True,
    )
