"""The roster: it takes the workers' messages and the launcher's news to `decide`, and has its actions carried out.

Everything runs in one asyncio loop, which owns all state; nothing here may be called from another thread.
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import Callable, Iterable

from farandole.base.wire import clock
from farandole.base.wire.errors import BadMessage, WireError
from farandole.base.wire.frames import FRAME_LIMIT
from farandole.base.wire.handshake import HANDSHAKE_SECONDS
from farandole.base.wire.rendezvous import (
    Accepted,
    Call,
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
    ScheduledBatch,
    Tell,
)
from farandole.control.roster import elastic, fixed
from farandole.control.roster.actions import Actions, StateHolders
from farandole.control.roster.connections import Connections
from farandole.control.roster.decide import State, decide
from farandole.control.roster.device_numbers import DeviceNumbers
from farandole.control.roster.elastic import Limits
from farandole.control.roster.events import (
    Drained,
    Event,
    Evicted,
    Expected,
    Finished,
    HoldOver,
    Joined,
    Lost,
    Place,
    Promised,
    Resized,
    Suspected,
)
from farandole.control.roster.exit_deadlines import ExitDeadlines
from farandole.control.roster.failover_state import RosterFailoverState, essence, without_connections
from farandole.control.roster.listener import Client, Listener
from farandole.control.roster.membership import accusations
from farandole.control.roster.timeouts import HoldTimer
from farandole.control.roster.translate import event_of, joined, notices_so_far
from farandole.control.roster.watcher import Watcher


def _first_state(places: tuple[Place | None, ...], limits: Limits | None) -> State:
    return fixed.State(places=places) if limits is None else elastic.State(limits)


def _world_lives(state: State) -> bool:
    """Return whether the latest world is one that no member has turned away from, as far as is known."""
    if isinstance(state, fixed.State):
        return False
    return bool(state.members) and not state.lost and not any(each in state.joined() for each in state.members)


def _answer_with(call: bytes | None) -> FromRoster:
    if call is None:
        return Refused("this job runs a command, not a function: there is no call to fetch")
    return Call(call)


class RosterService:
    """Serves one job's workers.

    Args:
        places: by rank; their number is the size of the world. All of them, or none: then the workers say, when they
            join, on what host they are.
        secret: what a client must prove to hold.
        on_failure: called with the worker and its report.
        on_progress: called with the worker and its `Progress`.
        on_measures: called with what a training has measured.
        log: takes the reason of every decision.
        call: the pickled call that workers may fetch, if there is one.
        elastic: how the size of the job may change; None: it has as many workers as there are places.
        watcher: is told of its worlds, if the job is elastic.
        memory: what the service before this one, which has died, has written down; its workers connect to this one by
            themselves, and are answered after `go_on`. Only of elastic jobs, as the next argument.
        remember: writes down what the next service would need, before anything is done that follows from it.
    """

    def __init__(
        self,
        places: tuple[Place | None, ...],
        secret: bytes,
        *,
        on_failure: Callable[[int, Failure], None] = lambda worker, failure: None,
        on_progress: Callable[[int, Progress], None] = lambda worker, progress: None,
        on_measures: Callable[[Measures], None] = lambda measures: None,
        log: Callable[[str], None] = lambda reason: None,
        call: bytes | None = None,
        elastic: Limits | None = None,
        watcher: Watcher | None = None,
        memory: RosterFailoverState | None = None,
        remember: Callable[[RosterFailoverState], None] | None = None,
        frame_limit: int = FRAME_LIMIT,
        handshake_seconds: float = HANDSHAKE_SECONDS,
    ) -> None:
        self.results: dict[int, bytes] = {}
        self._listener = Listener(secret, self._heard, self._closed, log, frame_limit, handshake_seconds)
        self._connections = Connections(log)
        self._state = _first_state(places, elastic) if memory is None else without_connections(memory.state)
        self._remember = remember
        self._watcher = watcher or Watcher()
        self._exit_deadlines = ExitDeadlines(
            lambda worker: self._watcher.evicts(worker, "it has failed, and does not end")
        )
        self._hold_timer = HoldTimer(lambda kind: self._happened(HoldOver(kind)))
        self._device_numbers = DeviceNumbers({} if memory is None else memory.device_numbers)
        self._holders = StateHolders() if memory is None else StateHolders(memory.state_held, memory.training)
        self._actions = Actions(
            self._connections,
            self._device_numbers,
            self._holders,
            self._hold_timer,
            self._watcher,
            self._write_down,
        )
        self._on_failure = on_failure
        self._on_progress = on_progress
        self._on_measures = on_measures
        self._scheduled_batch = ScheduledBatch(0)
        self._log = log
        self._call = call
        self._held: list[tuple[Client, FromWorker | None]] | None = None if memory is None else []
        """What came before `go_on`, in its order; None in place of a message: that connection has closed. None: nothing
        is held any more."""
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

    @property
    def stands_still(self) -> bool:
        """Whether a member of the world waits for the next one, before `go_on`."""
        return bool(self._held_joins())

    @property
    def known_to_have_ended(self) -> frozenset[int]:
        """The workers whose connections have closed, by what the members say that wait, before `go_on`."""
        assert isinstance(self._state, elastic.State)
        joins = self._held_joins()
        told = [each for join in joins for each in accusations(self._state, join)]
        ended = {self._state.members[each.rank] for each in told if each.certain and not (each.forming or each.left)}
        return frozenset(ended.difference(join.worker for join in joins))

    def _held_joins(self) -> list[Joined]:
        """Return the joins of members of the world that came before `go_on`, and wait."""
        found: dict[Client, Joined] = {}
        for client, message in self._held or ():
            if message is None:
                found.pop(client, None)
            elif isinstance(message, Join) and client.worker in self.world:
                found[client] = joined(client.worker, message)
        return list(found.values())

    def go_on(self) -> None:
        """Continue the job of the service that has died, and answer workers from now on.

        To be called when the watcher is ready.
        """
        assert isinstance(self._state, elastic.State)
        self._happened(
            Promised(self._state.promised)
        )  # This changes nothing, and has `decide` look at all that was written down.
        self._watcher.finishes(self.finishing)
        held, self._held = self._held or [], None
        self._catching_up = asyncio.get_running_loop().create_task(self._catch_up(held))

    def finished(self, worker: int, how: str, *, failed: bool = False) -> None:
        """Record that a worker's process has ended.

        Args:
            worker: whose.
            how: such as `exited with code 1`.
            failed: whether it ended otherwise than with exit code 0; only of elastic jobs.
        """
        self._device_numbers.leave(worker)
        self._exit_deadlines.ended(worker)
        self._happened(Finished(worker, how, failed))

    def expect(self, worker: int, host: str) -> None:
        """Record that a worker is about to be started on a host. Only of elastic jobs, as the next ones."""
        self._happened(Expected(worker, host))

    def suspect(self, workers: Iterable[int], how: str) -> None:
        """Record that workers are stopped, or on a host that is not heard of; they may live."""
        self._happened(Suspected(tuple(workers), how))

    def drain(self, workers: Iterable[int], why: str) -> None:
        """Have workers leave at the end of a step."""
        self._happened(Drained(tuple(workers), why))

    def evict(self, worker: int, why: str) -> None:
        """Exclude a worker from the job now."""
        self._happened(Evicted(worker, why))

    def resize(self, min_size: int, max_size: int) -> None:
        """Let the job be of another size from now on."""
        self._happened(Resized(min_size, max_size))

    def promise(self, coming: bool) -> None:
        """Record whether workers will be started soon: the last ones that hold the state stay for them."""
        if isinstance(self._state, elastic.State) and self._state.promised != coming:
            self._happened(Promised(coming))

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

    @property
    def generation(self) -> int:
        """The latest world's number; 0 before the first."""
        return self._state.generation

    @property
    def world(self) -> tuple[int, ...]:
        """The workers of the latest world, by rank; empty before the first."""
        return self._state.members if isinstance(self._state, elastic.State) else tuple(sorted(self._state.members))

    @property
    def finishing(self) -> bool:
        """Whether workers have left in good order, as far as is known: the job is about to end."""
        return isinstance(self._state, elastic.State) and self._state.finishing

    def has_left(self, worker: int) -> bool:
        """Return whether a worker whose end is not known yet has left its world in good order."""
        return isinstance(self._state, elastic.State) and worker in self._state.exiting

    @property
    def newcomers(self) -> tuple[int, ...]:
        """The workers that wait for a place in the world, the lowest number first."""
        return tuple(self._state.newcomers()) if isinstance(self._state, elastic.State) else ()

    async def silence(self, worker: int, seconds: float) -> None:
        """Wait until all that a dead worker sent has been read, at most so long.

        A connection stays open while a child of it lives that inherited the socket.
        """
        await self._listener.silence(worker, seconds)

    # --- what workers say --------------------------------------------------------------------------------------

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

    async def _catch_up(self, held: list[tuple[Client, FromWorker | None]]) -> None:
        """Do what was held, as if it came now."""
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

    async def _obey(self, client: Client, message: FromWorker) -> None:
        worker = client.worker
        if isinstance(message, Join):
            await self._join(client, message)
        elif isinstance(message, Leave):
            self._happened(event_of(worker, message))
        elif isinstance(message, Leaving):
            # Told to the launcher first: whether it starts another worker instead decides whether this one may leave.
            self._watcher.asks_to_leave(worker, message.why)
            self._happened(event_of(worker, message))
        elif isinstance(message, Failure):
            self._fail(worker, message)
        elif isinstance(message, Holds):
            if self._holders.note(message.training):
                self._write_down()
        elif isinstance(message, Progress):
            self._on_progress(worker, message)
        elif isinstance(message, Measures):
            self._on_measures(message)
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
        self._on_failure(worker, message)
        state = self._state
        if isinstance(state, elastic.State) and worker in state.hosts:
            self._exit_deadlines.begin(worker, state.limits.timeout)
        self._happened(event_of(worker, message))

    def _listen(self, client: Client) -> None:
        self._connections.listeners[client.worker] = client
        if not isinstance(self._state, elastic.State):
            return
        # Also 0: a worker that connects again may have heard another one from the roster before this one.
        client.post(self._scheduled_batch)
        if client.worker in self._state.members:
            for notice in notices_so_far(self._state):
                client.post(notice)

    # --- decisions ---------------------------------------------------------------------------------------------

    def _happened(self, event: Event) -> None:
        lived, generation, finishing = _world_lives(self._state), self.generation, self.finishing
        before = self._state
        self._state, actions, reason = decide(self._state, event)
        self._log(reason)
        if essence(self._state) != essence(before):
            self._write_down()
        # When the last of its members joins, one decision ends this world and announces the next one.
        if lived and (not _world_lives(self._state) or self.generation != generation):
            self._actions.turned_at = time.monotonic()
        for action in actions:
            self._actions.carry_out(action, self._state, reason)
        self._actions.tell_coming(self._state)
        if self.finishing != finishing:
            self._watcher.finishes(self.finishing)

    def _write_down(self) -> None:
        if self._remember is not None and isinstance(self._state, elastic.State):
            numbers = dict(self._device_numbers.taken)
            self._remember(RosterFailoverState(self._state, numbers, self._holders.any, self._holders.training))
