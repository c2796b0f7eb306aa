"""The facts with which the launcher of an elastic job continues after another one was killed.

They are read by a process of the same user or job, with the same installation, so everything except `JobState` is
pickled. Times are on the monotonic clock of the writer's machine; a reader on another machine converts them to its own
clock.
"""

from __future__ import annotations

import asyncio
import pickle
from collections.abc import Callable, Iterable
from dataclasses import dataclass, replace

from farandole.base.wire.encoding import decode, encode
from farandole.control.launcher.discovery.host_set import HostSet
from farandole.control.launcher.failure.record import WorkerRecord
from farandole.control.launcher.host_setup.host_setup import HostSetup, JobHost
from farandole.control.launcher.job.host_list import Host
from farandole.control.launcher.plan.model import Identity, LaunchPlan
from farandole.control.launcher.slots.job_state import JobState
from farandole.control.launcher.supervise.failover_files import LAUNCHER, PARTS, STATE, FailoverStore, NotTakenOver
from farandole.control.launcher.supervise.job_history import JobHistory, SavedHistory
from farandole.control.launcher.supervise.job_hosts import JobHosts
from farandole.control.launcher.supervise.moved_clock import ClockReading, moved_record, moved_state
from farandole.control.launcher.supervise.workers import Worker, Workers
from farandole.control.roster.membership import without_connections

# Changes with every change of the format or the content.
_FORMAT = b"farandole failover 4\n"
# Seconds: events come in bursts, and one write suffices for a burst.
_WRITE_SECONDS = 0.02
# Bytes of each worker's standard error; only that of the first worker to fail is ever shown.
_TAIL_BYTES = 4 * 1024


@dataclass(frozen=True)
class SavedHost:
    """A host that could start workers."""

    host: Host
    local: bool
    plan: LaunchPlan
    token: str
    notice: str
    socket_names: tuple[str, ...]

    @classmethod
    def of(cls, job_host: JobHost) -> SavedHost:
        """Return the saved form of a host."""
        return cls(
            job_host.host, job_host.agent.local, job_host.plan, job_host.token, job_host.notice, job_host.socket_names
        )


@dataclass(frozen=True)
class SavedWorker:
    """A worker that was started, and may have ended."""

    record: WorkerRecord
    token: str
    """Token of its host."""
    started_at: float
    told: bool
    was_member: bool
    stopped: bool
    over: bool
    """Whether its end was reported to all parts of the launcher."""

    @classmethod
    def of(cls, worker: Worker) -> SavedWorker:
        """Return the saved form of a worker."""
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
class LauncherFacts:
    """The launcher's facts that are not part of the decided state."""

    identity: Identity
    roster: str
    """host:port at which workers look for the roster."""
    hosts: HostSet
    job_hosts: tuple[SavedHost, ...]
    workers: tuple[SavedWorker, ...]
    history: SavedHistory
    witnesses: tuple[str, ...]
    """Names of hosts."""

    @classmethod
    def of(cls, setup: HostSetup, hosts: JobHosts, workers: Workers, history: JobHistory) -> LauncherFacts:
        """Return the current facts."""
        return cls(
            setup.identity,
            setup.roster,
            hosts.known,
            tuple(map(SavedHost.of, hosts.ready.values())),
            tuple(map(SavedWorker.of, workers.by_number.values())),
            history.saved(),
            tuple(hosts.witnesses.names),
        )


@dataclass(frozen=True)
class FailoverState(LauncherFacts):
    """All facts that a successor needs, except those that agents and workers report themselves."""

    state: JobState


def read_failover_state(store: FailoverStore | None) -> FailoverState | None:
    """Return the facts that an earlier launcher of this job has left; None if there was none.

    Raises:
        NotTakenOver: the facts cannot be read.
    """
    if store is None or not store.is_whole():
        return None
    try:
        here = ClockReading()
        clock, state = decode(_content(store, STATE), tuple[ClockReading, JobState])
        facts: LauncherFacts
        written_at, facts = pickle.loads(_content(store, LAUNCHER))  # Only this user can write it.
    except Exception as error:  # A file of another version may raise any error.
        raise NotTakenOver(
            f"the files of the killed launcher cannot be read: {error}",
            "was another version of farandole installed since? take the job over with the one that started it",
        ) from error
    seconds = written_at.seconds_to(here)
    workers = tuple(
        replace(each, record=moved_record(each.record, seconds), started_at=each.started_at + seconds)
        for each in facts.workers
    )
    moved = replace(facts, workers=workers)
    return FailoverState(**vars(moved), state=moved_state(state, clock.seconds_to(here)))


def _content(store: FailoverStore, part: str) -> bytes:
    content = store.left(part)
    assert content is not None
    if not content.startswith(_FORMAT):
        raise ValueError(f"it has the format of another version, not {_FORMAT.decode().strip()!r}")
    return content[len(_FORMAT) :]


class FailoverWriter:
    """Writes the facts that a successor needs when they change.

    Args:
        store: the storage; None writes nothing, and the workers end when this launcher is killed.
        take: returns the current facts.
        followed: called with False if a successor cannot continue from the written facts, as on a full disk, and with
            True once it can again.
    """

    def __init__(
        self, store: FailoverStore | None, take: Callable[[], LauncherFacts], followed: Callable[[bool], None]
    ) -> None:
        self._store = store
        self._take = take
        self._followed = followed
        self._decided: tuple[JobState, tuple[str, ...]] | None = None
        """The last decided state, and the hosts that could start workers then."""
        self._is_saved = True
        """Whether that state is written."""
        self._timer: asyncio.TimerHandle | None = None
        self._untold: set[str] = set()
        """The parts whose current content could not be written."""
        if store is not None:
            store.watch(self._turned_out)

    def _turned_out(self, written: bool) -> None:
        held = not self._untold
        self._untold = set() if written else set(PARTS)
        if held != written:
            self._followed(written)

    @property
    def trouble(self) -> str:
        """The error of the last failed write."""
        return self._store.trouble if self._store is not None else ""

    def decided(self, state: JobState, hosts: Iterable[str], *, later: bool = False) -> None:
        """Write a decided state.

        Args:
            state: the state of the job.
            hosts: hosts that can start workers: a successor must know a host before a worker is started there.
            later: whether it is written soon instead of at once. Only for a decision from which no action follows, on a
                fact that a successor learns from others if it is lost: workers and agents cannot know whether the
                launcher was killed just before or just after it.
        """
        if self._store is None:
            return
        before, now = self._decided, (_essence(state), tuple(hosts))
        if now == before:
            if not later:
                self._save_decided(self._store)
            return
        if before is None or before[1] != now[1]:
            # A launcher's facts never say more about the end of a worker than a state that is older.
            self._save_decided(self._store)
            self._decided = now
            self.write()
            return
        self._decided = now
        self._is_saved = False
        if not later:
            self._save_decided(self._store)
        self.changes()

    def changes(self) -> None:
        """Write soon, after changes from which no actions follow."""
        if self._store is not None and self._timer is None:
            self._timer = asyncio.get_running_loop().call_later(_WRITE_SECONDS, self._write_soon)

    def write(self) -> None:
        """Write everything now."""
        self._is_saved = self._decided is None
        self._write_launcher()
        if self._store is not None:
            self._save_decided(self._store)

    def _write_soon(self) -> None:
        if self._store is not None:
            self._save_decided(self._store)
        self._write_launcher()

    def _write_launcher(self) -> None:
        self.close()
        if self._store is not None:
            self._save(self._store, LAUNCHER, pickle.dumps((ClockReading(), self._take())))

    def _save_decided(self, store: FailoverStore) -> None:
        if self._is_saved or self._decided is None:
            return
        self._is_saved = True
        self._save(store, STATE, encode((ClockReading(), self._decided[0])))

    def _save(self, store: FailoverStore, part: str, content: bytes) -> None:
        held = not self._untold
        if store.save(part, _FORMAT + content):
            self._untold.discard(part)
        else:
            self._untold.add(part)
        if held == bool(self._untold):
            self._followed(not held)

    def close(self) -> None:
        """Stop the delayed writes."""
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None


def _essence(state: JobState) -> JobState:
    """Return the part of a state that must be written: without facts about connections and timers."""
    return replace(state, roster=without_connections(state.elastic_roster))
