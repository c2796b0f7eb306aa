"""Serves the clients' requests: the kernel identifies the user, and the daemon's only thread handles every request."""

from __future__ import annotations

import asyncio
import contextlib
import os
import socket
import time
import traceback
from collections.abc import Callable
from pathlib import Path
from typing import Any

import msgspec

from farandole.base.display.standard_output import log_line
from farandole.base.wire.async_channel import AsyncChannel
from farandole.base.wire.encoding import encode
from farandole.base.wire.errors import WireError
from farandole.base.wire.frames import Codec
from farandole.base.wire.unix_socket import user_behind
from farandole.control.jobs.errors import JobError, NotAllowed, Refused
from farandole.control.jobs.status import to_dict
from farandole.control.queue import hosts as queue_hosts
from farandole.control.queue import protocol as ask
from farandole.control.queue import requests
from farandole.control.queue.access import Access, check_can_run
from farandole.control.queue.executor import Executor
from farandole.control.queue.model import Phase, QueueHost
from farandole.control.queue.protocol import LOG_BYTES, MESSAGE_LIMIT, LogPiece, QueueAnswer, QueueRequest, refusal
from farandole.control.queue.requests import Requester
from farandole.control.queue.settings import changed
from farandole.control.queue.state import QueueState
from farandole.control.queue.store import QueueStore, StoreError

REQUEST_SECONDS = 10.0


class Server:
    """A listener on the queue's socket.

    Args:
        state: the state of the queue.
        store: the queue's database.
        executor: the owner of the attempts' files.
        access: identifies users.
        wake: called when the next turn should come soon.
        stop: called to end the daemon.
    """

    def __init__(
        self,
        state: QueueState,
        store: QueueStore,
        executor: Executor,
        access: Access,
        wake: Callable[[], None],
        stop: Callable[[], None],
    ) -> None:
        self._state = state
        self._store = store
        self._executor = executor
        self._access = access
        self._wake = wake
        self._stop = stop
        self._codec: Codec[QueueRequest] = Codec(QueueRequest)
        self._server: asyncio.Server | None = None
        self._path: Path | None = None

    async def start(self, path: Path) -> None:
        """Start listening.

        Raises:
            OSError: the socket cannot be created.
        """
        draft = path.with_name(".socket")
        draft.unlink(missing_ok=True)
        sock = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
        directory = os.open(path.parent, os.O_PATH | os.O_DIRECTORY)
        try:
            sock.bind(f"/proc/self/fd/{directory}/.socket")  # The address of a Unix socket has 107 bytes at most.
        finally:
            os.close(directory)
        os.chmod(draft, 0o666)  # Every user may connect; each request is authorized here.
        self._server = await asyncio.start_unix_server(self._serve, sock=sock)
        draft.replace(path)  # Only once it is listened on.
        self._path = path

    async def close(self) -> None:
        """Stop listening."""
        if self._server is not None:
            self._server.close()

    async def _serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        channel = AsyncChannel(reader, writer, MESSAGE_LIMIT)
        with contextlib.suppress(WireError, OSError, TimeoutError, asyncio.TimeoutError):
            uid = user_behind(writer.get_extra_info("socket"))
            payload = await asyncio.wait_for(channel.receive(), REQUEST_SECONDS)
            answer = self._answer(self._codec.decode(payload), uid)
            await asyncio.wait_for(channel.send(encode(answer)), REQUEST_SECONDS)
        await channel.closed()

    def _answer(self, request: QueueRequest, uid: int) -> QueueAnswer:
        try:
            requester = self._access.identify(uid, request.token, self._state.settings)
            return QueueAnswer(self._do(request.ask, requester))
        except JobError as error:
            return refusal(error)
        except StoreError as error:
            return refusal(Refused(str(error), error.hint))
        except Exception as error:
            # The client must get an answer, and the daemon must survive: other users' jobs run.
            log_line(traceback.format_exc())
            wrong = f"internal error of the queue: {type(error).__name__}: {error}"
            return refusal(JobError(wrong, "see the queue's log"))

    def _do(self, what: ask.Ask, requester: Requester) -> Any:
        now = time.time()
        if isinstance(what, ask.AskJobs):
            return [to_dict(status) for status in self._state.statuses()]
        if isinstance(what, ask.AskJob):
            return to_dict(self._state.status(what.name, whole=True))
        if isinstance(what, ask.ReadLog):
            return self._read_log(what, requester)
        if isinstance(what, ask.AskQueue):
            return self._describe()
        self._wake()
        if isinstance(what, ask.Submit):
            check_can_run(requester.owner)
            return self._state.submit(what, requester, now)
        if isinstance(what, ask.ChangeJob):
            return self._state.change(what.verb, what.name, what.workers, requester, now, what.key)
        if not requester.is_admin:
            raise NotAllowed(
                f"{requester.owner.name} is not an administrator of this queue",
                "root and the users named in `admins` of its settings are",
            )
        return self._administer(what)

    def _administer(self, what: ask.Ask) -> Any:
        if isinstance(what, ask.Configure):
            return self._state.configure(
                changed(self._state.settings, what.texts, sum(host.slots for host in self._state.hosts))
            )
        if isinstance(what, ask.ChangeHosts):
            return self._change_hosts(what)
        if isinstance(what, ask.MakeToken):
            return self._access.revoke(what.user) if what.revoke else self._access.make_token(what.user)
        if isinstance(what, ask.Backup):
            return self._store.backup(Path(what.path))
        # A daemon that is killed, or restarted by systemd, leaves its socket behind, and clients wait for the next
        # daemon. After this request no client waits.
        if self._path is not None:
            self._path.unlink(missing_ok=True)
        return self._stop()

    def _change_hosts(self, what: ask.ChangeHosts) -> None:
        before = self._state.hosts
        if what.verb == "add":
            more = queue_hosts.parse_queue_hosts(",".join(what.hosts))
            self._state.set_hosts(queue_hosts.added(before, more))
        elif what.verb == "drain":
            self._state.set_hosts(queue_hosts.drained(before, what.hosts))
        elif what.verb == "remove":
            self._state.set_hosts(queue_hosts.removed(before, what.hosts))
        else:
            raise Refused(f"{what.verb!r} is not a change of hosts", "use add, drain or remove")

    def _describe(self) -> dict[str, Any]:
        state = self._state
        phases = [job.phase for job in state.jobs.values()]
        return {
            "hosts": [self._describe_host(host) for host in state.hosts],
            "settings": msgspec.to_builtins(state.settings),
            "jobs": {phase.value: phases.count(phase) for phase in Phase if phase in phases},
            "pid": os.getpid(),
        }

    def _describe_host(self, host: QueueHost) -> dict[str, Any]:
        jobs = [job for job in self._state.jobs.values() if job.held.get(host.name) and job.phase.has_attempt]
        return {
            "name": host.name,
            "slots": host.slots,
            "type": host.type,
            "used": sum(job.held[host.name] for job in jobs),
            "state": "draining" if host.draining else "up" if host.up else "does not answer",
            "jobs": [job.name for job in jobs],
        }

    def _read_log(self, what: ask.ReadLog, requester: Requester) -> dict[str, Any]:
        job = requests.find(what.name, self._state.jobs)
        requests.check_owner(job, requester, "read the log of")
        number = what.attempt or job.attempt
        if not number:
            return msgspec.structs.asdict(LogPiece(b"", 0, 0, job.phase.is_over))
        # Read before the log: all output until then is in the file.
        goes_on = job.attempt > number
        over = job.phase.is_over and not goes_on
        data = self._executor.attempt(job, number).read_log(what.offset, LOG_BYTES, job.owner)
        if data or not goes_on:
            return msgspec.structs.asdict(LogPiece(data, number, what.offset + len(data), over and not data))
        return msgspec.structs.asdict(LogPiece(b"", number + 1, 0, False))
