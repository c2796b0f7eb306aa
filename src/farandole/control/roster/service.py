"""The roster's service for workers: their messages become events, and the roster's actions become messages.

Everything runs in one asyncio loop, which owns all state; nothing here may be called from another thread.
"""

from __future__ import annotations

import asyncio
import time
from collections import deque
from collections.abc import Callable

from farandole.base.wire import clock
from farandole.base.wire.errors import BadMessage, WireError
from farandole.base.wire.frames import FRAME_LIMIT
from farandole.base.wire.handshake import HANDSHAKE_SECONDS
from farandole.base.wire.rendezvous import (
    Accepted,
    Call,
    Changed,
    Coming,
    Ending,
    Failure,
    FetchCall,
    FromRoster,
    FromWorker,
    Holds,
    Join,
    Leave,
    Leaving,
    Listen,
    Measures,
    Placed,
    Probe,
    Probed,
    Progress,
    Relay,
    ReportedValue,
    RequestRefused,
    Result,
    Revoked,
    ScheduledBatch,
)
from farandole.base.wire.world_table import LatestTable
from farandole.control.roster import elastic
from farandole.control.roster.arrivals import MANY
from farandole.control.roster.connections import Connections
from farandole.control.roster.decide import RosterState, decide, joins_needed
from farandole.control.roster.events import (
    Action,
    Announce,
    EndOverdue,
    Event,
    Hold,
    HoldOver,
    Joined,
    JoinedTogether,
    Lost,
    Notify,
    Refuse,
    Revoke,
    Show,
)
from farandole.control.roster.exit_deadlines import ExitDeadlines
from farandole.control.roster.listener import Client, Listener
from farandole.control.roster.membership import accusations
from farandole.control.roster.timeouts import HoldTimer
from farandole.control.roster.translate import event_of, joined, notices_so_far, place_on_arrival, table_of

COLLECT_SECONDS = 0.005
"""Seconds for which joins are collected while a job certainly waits for many more workers. Each decision takes the
longer the more workers there are, so there must not be one for each of them."""

Report = Failure | Progress | Measures | ReportedValue


def _has_intact_world(state: RosterState) -> bool:
    """Return whether no member of the latest world is known to have abandoned it."""
    if not isinstance(state, elastic.ElasticState):
        return False
    return bool(state.members) and not state.lost and state.waiting.keys().isdisjoint(state.ranks.keys())


def _answer_with(call: bytes | None) -> FromRoster:
    if call is None:
        return RequestRefused("this job runs a command, not a function: there is no call to fetch")
    return Call(call)


def _taken(worker: int, holder: int, process: int) -> str:
    return (
        f"process {holder} is in the world as worker {worker} already, and so process {process} cannot be: one of them "
        "has the environment of the other. Call init() in one process of each worker only"
    )


class RosterService:
    """Serves one job's workers.

    Attributes:
        state: the roster's present state.
        results: the pickled result of each worker's call, by worker.

    Args:
        state: initial state of the roster.
        secret: the job's secret, which clients must prove to have.
        happened: called with every event; it decides, and calls `decided` and `carry_out`. None: the roster decides
            alone in this job, and this service calls `decide` itself.
        acted: called with every action of a decision that this service has made itself, after carrying it out.
        reported: called with a worker and its report about itself.
        log: called with a line about every decision made here, and every connection closed from this side.
        call: the pickled call that workers may fetch; None: there is none.
        frame_limit: length of the longest accepted message, in bytes.
        handshake_seconds: seconds within which a client must authenticate.
        collect_seconds: seconds for which joins are collected while a job waits for many workers.
    """

    def __init__(
        self,
        state: RosterState,
        secret: bytes,
        *,
        happened: Callable[[Event], None] | None = None,
        acted: Callable[[Action], None] = lambda action: None,
        reported: Callable[[int, Report], None] = lambda worker, report: None,
        log: Callable[[str], None] = lambda reason: None,
        call: bytes | None = None,
        frame_limit: int = FRAME_LIMIT,
        handshake_seconds: float = HANDSHAKE_SECONDS,
        collect_seconds: float = COLLECT_SECONDS,
    ) -> None:
        self.state = state
        self.results: dict[int, bytes] = {}
        self._decides = happened or self._decide
        self._acted = acted
        self._arrived: list[Joined] = []
        """Joins on which no decision has been made yet: one is made for all of them."""
        self._deciding: asyncio.Handle | None = None
        """The scheduled decision on them."""
        self._needed = 0
        """The number of workers that had to join before the first of them came."""
        self._collect_seconds = collect_seconds
        self._reported = reported
        self._log = log
        self._call = call
        self._listener = Listener(secret, self.heard, self.closed, log, frame_limit, handshake_seconds)
        self._connections = Connections(log)
        self._table = LatestTable()
        """The table of the latest world that this service has announced."""
        self._exit_deadlines = ExitDeadlines(lambda worker: self._happened(EndOverdue(worker)))
        self._hold_timer = HoldTimer(lambda kind: self._happened(HoldOver(kind)), self.decide_on_joins)
        self._scheduled_batch = ScheduledBatch(0)
        self._world_ended_at = time.monotonic()
        """Time on the monotonic clock when the latest world was abandoned."""
        self._notified_coming: tuple[tuple[int, ...], int] = ((), 0)
        """The members of the world that know how many workers are still to join, and that number."""
        self._coming: dict[int, int] = {}
        """The number in the latest `Coming` notice to each worker, on its present connection."""
        self._held: deque[tuple[Client, FromWorker | None]] | None = None
        """Messages that arrived between `pause` and `resume` and are not handled yet, in their order; None in place of
        a message: that connection has closed. None: the service is not paused, and has handled all of them."""
        self._catching_up: asyncio.Task[None] | None = None

    async def start(self, host: str = "127.0.0.1", port: int = 0) -> str:
        """Listen on one address, and return `host:port`. May be called for several addresses.

        Args:
            host: numeric address of this machine.
            port: port number; 0: any free port.

        Raises:
            OSError: the address cannot be listened on.
        """
        return await self._listener.open(host, port)

    async def close(self) -> None:
        """Stop listening, and close all connections."""
        self._take_arrived()
        self._hold_timer.close()
        self._exit_deadlines.close()
        if self._catching_up is not None:
            self._catching_up.cancel()
        await self._listener.close()
        await self._connections.close()

    def process_ended(self, worker: int) -> None:
        """Cancel the exit deadline of a worker whose process has ended."""
        self._exit_deadlines.ended(worker)

    def schedule_batch(self, samples: int) -> None:
        """Notify all workers of the batch size that was chosen for them.

        The size is not passed to a successor of this service: the scheduler notices that the job does not use it, and
        repeats it.

        Args:
            samples: number of samples; 0: the workers choose.
        """
        self._scheduled_batch = ScheduledBatch(samples)
        self._connections.notify(list(self._connections.listeners), self._scheduled_batch)

    @property
    def scheduled_batch(self) -> int:
        """The batch size that was chosen for the workers, in samples; 0: the workers choose."""
        return self._scheduled_batch.samples

    def ending(self) -> None:
        """Notify all workers that the job is being ended."""
        self._connections.notify(list(self._connections.listeners), Ending())

    async def wait_until_read(self, worker: int, seconds: float) -> None:
        """Wait until everything that a dead worker sent has been read, for `seconds` at most.

        The limit is needed because a connection stays open while a child process that inherited its socket lives.
        """
        await self._listener.wait_until_read(worker, seconds)

    # --- the service of a roster that has died -------------------------------------------------------------------

    def pause(self) -> None:
        """Answer no worker until `resume`. Workers connect by themselves to a service that replaces a lost one."""
        self._held = deque()

    def resume(self) -> None:
        """Answer workers from now on, beginning with the messages that arrived since `pause`."""
        self._catching_up = asyncio.get_running_loop().create_task(self._catch_up())

    @property
    def members_wait(self) -> bool:
        """Whether a member of the world has asked for the next one since `pause`."""
        return bool(self._held_joins())

    @property
    def known_to_have_ended(self) -> frozenset[int]:
        """The workers that have certainly ended, according to the joins that arrived since `pause`."""
        assert isinstance(self.state, elastic.ElasticState)
        joins = self._held_joins()
        told = [each for join in joins for each in accusations(self.state, join)]
        ended = {worker for worker, each in told if each.certain and not (each.forming or each.left)}
        return frozenset(ended.difference(join.worker for join in joins))

    def _held_joins(self) -> list[Joined]:
        """Return the joins of members of the world that arrived since `pause` and are unanswered."""
        found: dict[Client, Joined] = {}
        for client, message in self._held or ():
            if message is None:
                found.pop(client, None)
            elif isinstance(message, Join) and client.worker in self.state.members:
                found[client] = joined(client.worker, message)
        return list(found.values())

    async def _catch_up(self) -> None:
        """Handle the messages that arrived while the service was paused."""
        while self._held:
            client, message = self._held.popleft()
            try:
                if message is None:
                    self._forget(client)
                else:
                    await self._handle(client, message)
            except WireError as error:
                self._log(f"closed a connection of worker {client.worker}: {error}")
                client.channel.close()
            except Exception as error:
                # A bug. It costs this connection, as when the service is not paused: other workers wait for answers.
                asyncio.get_running_loop().call_exception_handler({"message": "a held message", "exception": error})
                client.channel.close()
        self._held = self._catching_up = None

    # --- messages of workers -------------------------------------------------------------------------------------

    def closed(self, client: Client) -> None:
        """Handle the end of a worker's connection."""
        if self._held is not None:
            # Also while the service catches up: older messages of this worker may not be handled yet.
            self._held.append((client, None))
            return
        self._forget(client)

    def _forget(self, client: Client) -> None:
        # A join that it sent just before is decided on first: its answer needs the connection, even if it is closed.
        self.decide_on_joins()
        if self._connections.listeners.get(client.worker) is client:
            self._coming.pop(client.worker, None)
        if self._connections.forget(client):
            self._happened(Lost(client.worker))

    async def heard(self, client: Client, message: FromWorker) -> None:
        """Handle a worker's message, which its connection has received."""
        if self._catching_up is not None:
            await asyncio.shield(self._catching_up)
        elif self._held is not None:
            self._held.append((client, message))
            return
        await self._handle(client, message)

    async def _handle(self, client: Client, message: FromWorker) -> None:
        worker = client.worker
        other = self._connections.other_process(client) if worker in self.state.members else 0
        if other and isinstance(message, Join | Listen | Leave | Leaving | Holds | Failure):
            # Its place is taken, so it has nothing to say about the world.
            if isinstance(message, Join):
                await client.send(RequestRefused(_taken(worker, other, client.process)))
        elif isinstance(message, Join):
            await self._join(client, message)
        elif isinstance(message, Leave | Leaving | Holds):
            self._happened(event_of(worker, message))
        elif isinstance(message, Failure):
            self._fail(worker, message)
        elif isinstance(message, Progress | Measures | ReportedValue):
            self._reported(worker, message)
        elif isinstance(message, FetchCall):
            await client.send(_answer_with(self._call))
        elif isinstance(message, Result):
            self.results[worker] = message.payload
            await client.send(Accepted())
        elif isinstance(message, Listen):
            self._listen(client)
        elif isinstance(message, Relay):
            self._connections.pass_on(client, message)
        elif isinstance(message, Probe):
            client.post(Probed(message.sent_ns, time.monotonic_ns(), clock.identity()))
        else:
            raise BadMessage(f"worker {worker} said hello twice")

    async def _join(self, client: Client, message: Join) -> None:
        worker = client.worker
        older = self._connections.waiting.get(worker)
        if older is not None and message.again:
            # The worker has lost that connection; on this side, it may seem open for much longer.
            self._forget(older)
        elif older is not None:
            twice = f"worker {worker} joined twice: do two processes, or two engines, use the same FARANDOLE_RANK?"
            await client.send(RequestRefused(twice))
            return
        client.table = message.table
        self._connections.join(client)
        self._arrived.append(joined(worker, message))
        self._schedule_decision()

    def _schedule_decision(self) -> None:
        """Decide at the end of this turn of the loop or, in a job that waits for many workers, a moment later."""
        loop = asyncio.get_running_loop()
        if self._deciding is None:
            self._needed = joins_needed(self.state)
            if self._needed > MANY:
                self._deciding = loop.call_later(self._collect_seconds, self.decide_on_joins)
            else:
                self._deciding = loop.call_soon(self.decide_on_joins)
        elif len(self._arrived) == self._needed:
            self._deciding.cancel()
            self._deciding = loop.call_soon(self.decide_on_joins)

    def _fail(self, worker: int, message: Failure) -> None:
        self._reported(worker, message)
        state = self.state
        if isinstance(state, elastic.ElasticState) and worker in state.hosts:
            self._exit_deadlines.begin(worker, state.limits.timeout)
        self._happened(event_of(worker, message))

    def _listen(self, client: Client) -> None:
        self._connections.listeners[client.worker] = client
        self._coming.pop(client.worker, None)
        if not isinstance(self.state, elastic.ElasticState):
            return
        # Also sent if it is 0: a worker that reconnects may have got another batch size from the previous roster.
        client.post(self._scheduled_batch)
        if client.worker in self.state.members:
            for notice in notices_so_far(self.state):
                client.post(notice)
            self._coming[client.worker] = len(self.state.expected)

    # --- decisions -----------------------------------------------------------------------------------------------

    def tell(self, event: Event) -> None:
        """Make a decision about an event that is not a worker's message."""
        self._happened(event)

    def _happened(self, event: Event) -> None:
        self.decide_on_joins()
        self._decides(event)

    def decide_on_joins(self) -> None:
        """Decide on the joins that are being collected. Called before a decision on an event that came after them."""
        joins = self._take_arrived()
        if joins:
            self._decides(joins[0] if len(joins) == 1 else JoinedTogether(joins))

    def _take_arrived(self) -> tuple[Joined, ...]:
        """Return the joins on which no decision has been made, and cancel the scheduled one."""
        if self._deciding is not None:
            self._deciding.cancel()
            self._deciding = None
        joins, self._arrived = tuple(self._arrived), []
        return joins

    def _decide(self, event: Event) -> None:
        state, actions, reason = decide(self.state, event)
        self._log(reason)
        self.decided(state)
        for action in actions:
            self.carry_out(action)
            self._acted(action)
        self.notify_coming()

    def decided(self, state: RosterState) -> None:
        """Replace the state. Called before the actions that belong to it are carried out."""
        before, self.state = self.state, state
        # When the last of its members joins, one decision ends this world and announces the next one.
        if _has_intact_world(before) and (not _has_intact_world(state) or state.generation != before.generation):
            self._world_ended_at = time.monotonic()

    @property
    def seconds_without_world(self) -> float:
        """Seconds since the latest world was abandoned, or since this service began."""
        return time.monotonic() - self._world_ended_at

    def carry_out(self, action: Action) -> None:
        """Send workers the messages of an action, or start its timer. Actions for the launcher are ignored."""
        state = self.state
        if isinstance(action, Announce):
            self._announce(action)
        elif isinstance(action, Refuse):
            self._connections.reply(action.worker, RequestRefused(action.reason, action.rank, action.evicted))
        elif isinstance(action, Show):
            assert isinstance(state, elastic.ElasticState)
            self._connections.reply(action.worker, place_on_arrival(state, action))
        elif isinstance(action, Notify):
            change = Changed(action.generation, action.added, action.removed, action.reason)
            self._connections.notify(action.workers, change)
        elif isinstance(action, Revoke):
            loss = Revoked(action.generation, action.rank, action.how, action.certain)
            self._connections.notify(action.workers, loss)
        elif isinstance(action, Hold):
            self._hold_timer.wait(action)

    def _announce(self, action: Announce) -> None:
        """Answer the workers of a new world: those that have the table of the world before only get what has changed.

        All of them share these two encodings, so the work and the memory grow with the number of workers, not with its
        square.
        """
        before = self._table.digest
        whole, change = self._table.replace(table_of(action, state_held=self.state.state_held))
        for rank, place in enumerate(action.places):
            worker = action.workers[rank] if action.workers else rank
            table = change if self._connections.waiting[worker].table == before else whole
            placed = Placed(rank, place.local_rank, place.local_size, place.cross_rank, place.cross_size, table)
            self._connections.reply(worker, placed)

    def notify_coming(self) -> None:
        """Notify the members of the world of the number of workers that are still to join, if it changed.

        Called after the actions of a decision: a worker that joins is announced as waiting before it is no longer
        counted as coming.
        """
        state = self.state
        if (
            isinstance(state, elastic.ElasticState)
            and (now := (state.members, len(state.expected))) != self._notified_coming
        ):
            self._notified_coming = now
            number = len(state.expected)
            uninformed = [worker for worker in state.members if self._coming.get(worker) != number]
            self._connections.notify(uninformed, Coming(number))
            self._coming.update((worker, number) for worker in uninformed if worker in self._connections.listeners)
