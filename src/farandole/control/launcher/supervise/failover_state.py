"""What the launcher of an elastic job has to know to go on where another was killed.

Read by a process of the same installation, which belongs to the same user or job: so it is pickled. Its times are on
the monotonic clock of the machine that wrote it, and moved to the reader's if that is another one.
"""

from __future__ import annotations

import asyncio
import pickle
from collections.abc import Callable
from dataclasses import dataclass, field, replace

from farandole.base.wire.encoding import decode, encode
from farandole.control.launcher.discovery.host_set import HostSet
from farandole.control.launcher.failure.record import WorkerRecord
from farandole.control.launcher.host_setup.host_setup import JobHost
from farandole.control.launcher.job.host_list import Host
from farandole.control.launcher.plan.model import Identity, Plan
from farandole.control.launcher.slots.slot_state import State
from farandole.control.launcher.supervise.failover_files import LAUNCHER, ROSTER, FailoverStore
from farandole.control.launcher.supervise.job_history import SavedHistory
from farandole.control.launcher.supervise.moved_clock import ClockReading, moved_record, moved_slots
from farandole.control.launcher.supervise.outcome import Verdict
from farandole.control.launcher.supervise.workers import Worker
from farandole.control.roster.failover_state import RosterFailoverState

# Events come in bunches, and one writing will do for all of a bunch.
_WRITE_SECONDS = 0.02
# Of what each worker has written to standard error; only that of the first to fail is ever shown.
_TAIL_BYTES = 4 * 1024


@dataclass(frozen=True)
class SavedHost:
    """A host that could start workers."""

    host: Host
    local: bool
    plan: Plan
    token: str
    notice: str
    socket_names: tuple[str, ...]

    @classmethod
    def of(cls, job_host: JobHost) -> SavedHost:
        """Return what is left of it."""
        return cls(
            job_host.host, job_host.agent.local, job_host.plan, job_host.token, job_host.notice, job_host.socket_names
        )


@dataclass(frozen=True)
class SavedWorker:
    """A worker that was started, and may have ended."""

    record: WorkerRecord
    token: str
    """Of its host."""
    started_at: float
    told: bool
    was_member: bool
    stopped: bool
    over: bool
    """Everyone has been told of its end."""

    @classmethod
    def of(cls, worker: Worker) -> SavedWorker:
        """Return what is left of it."""
        record = replace(worker.record, stderr_tail=worker.record.stderr_tail[-_TAIL_BYTES:])
        return cls(
            record,
            worker.job_host.token,
            worker.started_at,
            worker.told,
            worker.was_member,
            worker.stopped,
            worker.over.is_set(),
        )


@dataclass(frozen=True)
class SavedEnd:
    """That a job was being ended."""

    verdict: Verdict
    stop_code: int | None
    since: float


@dataclass(frozen=True)
class FailoverState:
    """All of it but the roster's memory."""

    identity: Identity
    roster: str
    """host:port at which workers look for it."""
    hosts: HostSet
    slots: State
    job_hosts: tuple[SavedHost, ...]
    workers: tuple[SavedWorker, ...]
    ends: SavedEnd | None
    history: SavedHistory = field(default_factory=SavedHistory)
    clock: ClockReading = field(default_factory=ClockReading)
    """The one that its times are on, when this was written."""

    def on_clock(self, clock: ClockReading) -> FailoverState:
        """Return it with times on another clock."""
        seconds = self.clock.seconds_to(clock)
        if not seconds:
            return self
        return replace(
            self,
            slots=moved_slots(self.slots, seconds),
            workers=tuple(
                replace(each, record=moved_record(each.record, seconds), started_at=each.started_at + seconds)
                for each in self.workers
            ),
            ends=None if self.ends is None else replace(self.ends, since=self.ends.since + seconds),
            clock=clock,
        )


def read_failover_state(failover_files: FailoverStore | None) -> tuple[FailoverState, RosterFailoverState] | None:
    """Return what an earlier launcher of this job has left; None: there was none."""
    if failover_files is None or not failover_files.is_whole():
        return None
    launcher, roster = failover_files.left(LAUNCHER), failover_files.left(ROSTER)
    assert launcher is not None and roster is not None
    failover: FailoverState = pickle.loads(launcher)  # Our own, where nobody else can write.
    return failover.on_clock(ClockReading()), decode(roster, RosterFailoverState)


class FailoverWriter:
    """Writes down what a successor has to know, when that changes.

    Args:
        failover_files: where; None: nowhere, and when this launcher is killed its workers are ended.
        take: returns what it is now.
    """

    def __init__(self, failover_files: FailoverStore | None, take: Callable[[], FailoverState]) -> None:
        self._failover_files = failover_files
        self._take = take
        self._next_worker = -1
        self._timer: asyncio.TimerHandle | None = None
        self._untold: set[str] = set()
        """What could not be written down as it is now."""
        self._holds: Callable[[bool], None] = lambda holds: None

    def watch(self, holds: Callable[[bool], None]) -> None:
        """Call when it ceases to be true, as on a full disk, and when it is true again."""
        self._holds = holds
        if self._failover_files is not None:
            self._failover_files.watch(self._turned_out)
        if self._untold:
            holds(False)

    def _turned_out(self, written: bool) -> None:
        held = not self._untold
        self._untold = set() if written else {ROSTER, LAUNCHER}
        if held != written:
            self._holds(written)

    @property
    def exists(self) -> bool:
        """Whether there can be a successor."""
        return self._failover_files is not None

    @property
    def trouble(self) -> str:
        """Why something could not be written down the last time."""
        return self._failover_files.trouble if self._failover_files is not None else ""

    def changes(self, slots: State) -> None:
        """Record that things have changed; at once if a worker is about to be started, which must not be lost."""
        if self._failover_files is None:
            return
        if slots.next_worker != self._next_worker:
            self._next_worker = slots.next_worker
            self.write()
        elif self._timer is None:
            self._timer = asyncio.get_running_loop().call_later(_WRITE_SECONDS, self.write)

    def write(self) -> None:
        """Write it down now."""
        self.close()
        if self._failover_files is not None:
            self._keep(self._failover_files, LAUNCHER, pickle.dumps(self._take()))

    def remember(self, memory: RosterFailoverState) -> None:
        """Write down what the roster knows."""
        if self._failover_files is not None:
            self._keep(self._failover_files, ROSTER, encode(memory))

    def _keep(self, failover_files: FailoverStore, part: str, content: bytes) -> None:
        held = not self._untold
        if failover_files.keep(part, content):
            self._untold.discard(part)
        else:
            self._untold.add(part)
        if held == bool(self._untold):
            self._holds(not held)

    def close(self) -> None:
        """Write nothing more by itself."""
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None
