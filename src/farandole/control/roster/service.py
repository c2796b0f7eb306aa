"""The workers' side of the roster: their messages become events, and what is decided about them becomes messages.

Everything runs in one asyncio loop, which owns all state; nothing here may be called from another thread.
"""

from __future__ import annotations

import asyncio
import time
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
    Probe,
    Probed,
    Progress,
    Refused,
    Result,
    Revoked,
    ScheduledBatch,
    Tell,
)
from farandole.control.roster import elastic
from farandole.control.roster.connections import Connections
from farandole.control.roster.decide import State, decide
from farandole.control.roster.events import (
    Action,
    Announce,
    EndOverdue,
    Event,
    Hold,
    HoldOver,
    Joined,
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
from farandole.control.roster.translate import event_of, joined, notices_so_far, world_of, world_on_arrival

Report = Failure | Progress | Measures


def _world_lives(state: State) -> bool:
    """Return whether the latest world is one that no member has turned away from, as far as is known."""
    if not isinstance(state, elastic.State):
        return False
    return bool(state.members) and not state.lost and not any(each in state.joined() for each in state.members)


def _answer_with(call: bytes | None) -> FromRoster:
    if call is None:
        return Refused("this job runs a command, not a function: there is no call to fetch")
    return Call(call)


class RosterService:
    """Serves one job's workers.

    Attributes:
        state: as it was decided last.
        results: by worker, what it has sent back of its call.

    Args:
        state: before anything has happened.
        secret: what a client must prove to hold.
        happened: called with what happens to workers; it decides, and has `obey` called. None: nothing else than the
            roster decides in this job, and it is decided here.
        reported: called with a worker and what it says of itself.
        log: takes a line about every decision that is made here, and every connection that is closed from here.
        call: the pickled call that workers may fetch, if there is one.
    """

    def __init__(
        self,
        state: State,
        secret: bytes,
        *,
        happened: Callable[[Event], None] | None = None,
        reported: Callable[[int, Report], None] = lambda worker, report: None,
        log: Callable[[str], None] = lambda reason: None,
        call: bytes | None = None,
        frame_limit: int = FRAME_LIMIT,
        handshake_seconds: float = HANDSHAKE_SECONDS,
    ) -> None:
        self.state = state
        self.results: dict[int, bytes] = {}
        self._happened = happened or self._decide
        self._reported = reported
        self._log = log
        self._call = call
        self._listener = Listener(secret, self._heard, self._closed, log, frame_limit, handshake_seconds)
        self._connections = Connections(log)
        self._exit_deadlines = ExitDeadlines(lambda worker: self._happened(EndOverdue(worker)))
        self._hold_timer = HoldTimer(lambda kind: self._happened(HoldOver(kind)))
        self._scheduled_batch = ScheduledBatch(0)
        self._turned_at = time.monotonic()
        """Since when there is no world, on the monotonic clock."""
        self._told_coming: tuple[tuple[int, ...], int] = ((), 0)
        """How many workers are to come, as it was told last, and which workers it was told."""
        self._held: list[tuple[Client, FromWorker | None]] | None = None
        """What came between `hold_back` and `go_on`, in its order; None in place of a message: that connection has
        closed. None: nothing is held back."""
        self._catching_up: asyncio.Task[None] | None = None

    async def start(self, host: str = "127.0.0.1", port: int = 0) -> str:
        """Listen on that address only, and return `host:port`. May be called for several addresses.

        Args:
            host: an address of this machine, in numbers.
            port: 0 is any that is free.

        Raises:
            OSError: it cannot be listened on.
        """
        return await self._listener.open(host, port)

    async def close(self) -> None:
        """Stop listening, and close all connections."""
        self._hold_timer.close()
        self._exit_deadlines.close()
        if self._catching_up is not None:
            self._catching_up.cancel()
        await self._listener.close()
        await self._connections.close()

    def process_ended(self, worker: int) -> None:
        """Do not wait any more for the end of a worker that has reported its failure."""
        self._exit_deadlines.ended(worker)

    def schedule_batch(self, samples: int) -> None:
        """Let all workers know the batch that was chosen for them; 0: they choose by themselves.

        It is not kept for the next service: whoever chooses sees that the job does not follow, and says it again.
        """
        self._scheduled_batch = ScheduledBatch(samples)
        self._connections.notify(list(self._connections.listeners), self._scheduled_batch)

    @property
    def scheduled_batch(self) -> int:
        """The batch that was chosen for the workers; 0: they choose by themselves."""
        return self._scheduled_batch.samples

    def ending(self) -> None:
        """Let all workers know that the job is being ended."""
        self._connections.notify(list(self._connections.listeners), Ending())

    async def silence(self, worker: int, seconds: float) -> None:
        """Wait until all that a dead worker sent has been read, for that many seconds at most.

        A connection stays open while a child of it lives that inherited the socket.
        """
        await self._listener.silence(worker, seconds)

    # --- the service of a roster that has died -------------------------------------------------------------------

    def hold_back(self) -> None:
        """Answer no worker before `go_on`: they connect by themselves to the service that follows another."""
        self._held = []

    def go_on(self) -> None:
        """Answer workers from now on, those first that have come meanwhile."""
        held, self._held = self._held or [], None
        self._catching_up = asyncio.get_running_loop().create_task(self._catch_up(held))

    @property
    def stands_still(self) -> bool:
        """Whether a member of the world waits for the next one, before `go_on`."""
        return bool(self._held_joins())

    @property
    def known_to_have_ended(self) -> frozenset[int]:
        """The workers whose connections have closed, by what the members say that wait, before `go_on`."""
        assert isinstance(self.state, elastic.State)
        joins = self._held_joins()
        told = [each for join in joins for each in accusations(self.state, join)]
        ended = {self.state.members[each.rank] for each in told if each.certain and not (each.forming or each.left)}
        return frozenset(ended.difference(join.worker for join in joins))

    def _held_joins(self) -> list[Joined]:
        """Return the joins of members of the world that came before `go_on`, and wait."""
        found: dict[Client, Joined] = {}
        for client, message in self._held or ():
            if message is None:
                found.pop(client, None)
            elif isinstance(message, Join) and client.worker in self.state.members:
                found[client] = joined(client.worker, message)
        return list(found.values())

    async def _catch_up(self, held: list[tuple[Client, FromWorker | None]]) -> None:
        """Handle what was held back, as if it came now."""
        for client, message in held:
            if message is None:
                self._closed(client)
                continue
            try:
                await self._obey(client, message)
            except WireError as error:
                self._log(f"hung up on worker {client.worker}: {error}")
                client.channel.close()
        self._catching_up = None

    # --- what workers say ----------------------------------------------------------------------------------------

    def _closed(self, client: Client) -> None:
        if self._held is not None:
            self._held.append((client, None))
        elif self._connections.forget(client):
            self._happened(Lost(client.worker))

    async def _heard(self, client: Client, message: FromWorker) -> None:
        if self._held is not None:
            self._held.append((client, message))
            return
        if self._catching_up is not None:
            await asyncio.shield(self._catching_up)
        await self._obey(client, message)

    async def _obey(self, client: Client, message: FromWorker) -> None:
        worker = client.worker
        if isinstance(message, Join):
            await self._join(client, message)
        elif isinstance(message, Leave | Leaving | Holds):
            self._happened(event_of(worker, message))
        elif isinstance(message, Failure):
            self._fail(worker, message)
        elif isinstance(message, Progress | Measures):
            self._reported(worker, message)
        elif isinstance(message, FetchCall):
            await client.send(_answer_with(self._call))
        elif isinstance(message, Result):
            self.results[worker] = message.payload
            await client.send(Accepted())
        elif isinstance(message, Listen):
            self._listen(client)
        elif isinstance(message, Tell):
            self._connections.pass_on(client, message)
        elif isinstance(message, Probe):
            client.post(Probed(message.sent_ns, time.monotonic_ns(), clock.identity()))
        else:
            raise BadMessage(f"worker {worker} said hello twice")

    async def _join(self, client: Client, message: Join) -> None:
        worker = client.worker
        older = self._connections.waiting.get(worker)
        if older is not None and message.again:
            # The worker has lost that connection; here its end may be noticed much later.
            self._closed(older)
        elif older is not None:
            twice = f"worker {worker} joined twice: do two processes, or two engines, use the same FARANDOLE_RANK?"
            await client.send(Refused(twice))
            return
        self._connections.waiting[worker] = client
        self._happened(event_of(worker, message))

    def _fail(self, worker: int, message: Failure) -> None:
        self._reported(worker, message)
        state = self.state
        if isinstance(state, elastic.State) and worker in state.hosts:
            self._exit_deadlines.begin(worker, state.limits.timeout)
        self._happened(event_of(worker, message))

    def _listen(self, client: Client) -> None:
        self._connections.listeners[client.worker] = client
        if not isinstance(self.state, elastic.State):
            return
        # Also 0: a worker that connects again may have heard another one from the roster before this one.
        client.post(self._scheduled_batch)
        if client.worker in self.state.members:
            for notice in notices_so_far(self.state):
                client.post(notice)

    # --- what is decided -----------------------------------------------------------------------------------------

    def _decide(self, event: Event) -> None:
        state, actions, reason = decide(self.state, event)
        self._log(reason)
        self.decided(state)
        for action in actions:
            self.carry_out(action)
        self.tell_coming()

    def decided(self, state: State) -> None:
        """Have another state, before the actions that follow from it."""
        before, self.state = self.state, state
        # When the last of its members joins, one decision ends this world and announces the next one.
        if _world_lives(before) and (not _world_lives(state) or state.generation != before.generation):
            self._turned_at = time.monotonic()

    @property
    def seconds_without_world(self) -> float:
        """Seconds since the world before the latest one was turned away from, or since this service began."""
        return time.monotonic() - self._turned_at

    def carry_out(self, action: Action) -> None:
        """Send workers what was decided about them, or begin to wait; what else is decided is passed over."""
        state = self.state
        if isinstance(action, Announce):
            for rank, worker in enumerate(action.workers or range(len(action.places))):
                self._connections.reply(worker, world_of(rank, action, state_held=state.state_held))
        elif isinstance(action, Refuse):
            self._connections.reply(action.worker, Refused(action.reason, action.rank, action.evicted))
        elif isinstance(action, Show):
            assert isinstance(state, elastic.State)
            self._connections.reply(action.worker, world_on_arrival(state, action))
        elif isinstance(action, Notify):
            change = Changed(action.generation, action.added, action.removed, action.reason)
            self._connections.notify(action.workers, change)
        elif isinstance(action, Revoke):
            loss = Revoked(action.generation, action.rank, action.how, action.certain)
            self._connections.notify(action.workers, loss)
        elif isinstance(action, Hold):
            self._hold_timer.wait(action)

    def tell_coming(self) -> None:
        """Tell the members of the world how many workers have been started and are not here yet, if that is news.

        After the actions of a decision: a worker that has come is counted among those that wait before it is taken from
        those that are to come.
        """
        state = self.state
        if isinstance(state, elastic.State) and (now := (state.members, len(state.expected))) != self._told_coming:
            self._told_coming = now
            self._connections.notify(state.members, Coming(len(state.expected)))
