"""The roster's service: messages and ends of connections that arrive at the same moment."""

from __future__ import annotations

import asyncio
from collections.abc import Callable

import pytest
from checked_channel import CheckedChannel
from membership import after, started

from farandole.base.wire.encoding import decode
from farandole.base.wire.frames import Codec
from farandole.base.wire.rendezvous import (
    Absent,
    Coming,
    FetchCall,
    FromRoster,
    FromWorker,
    Join,
    Leaving,
    Listen,
    Placed,
    Relay,
    Relayed,
    World,
)
from farandole.base.wire.world_table import LatestTable, TableChange, WorldTable
from farandole.control.roster import fixed
from farandole.control.roster.decide import RosterState
from farandole.control.roster.events import Expected, Finished, Hold, Joined
from farandole.control.roster.listener import Client
from farandole.control.roster.service import RosterService
from farandole.control.roster.timeouts import HoldTimer


def answers(state: RosterState, *, lost: int | None = None, leaving: int | None = None) -> list[list[FromRoster]]:
    """Let two workers join, and return what each of them is sent.

    Args:
        state: the state of the roster.
        lost: the worker whose connection closes before the roster decides.
        leaving: the worker that asks to leave before it joins.
    """

    async def run() -> list[list[FromRoster]]:
        service = RosterService(state, b"s" * 32)
        channels = [CheckedChannel() for _ in range(2)]
        clients = [Client(worker, channel, Codec[FromWorker](FromWorker)) for worker, channel in enumerate(channels)]
        if leaving is not None:
            await service.heard(clients[leaving], Leaving("it got SIGTERM"))
        for client in clients:
            await service.heard(client, Join("c", 30.0))
        if lost is not None:
            service.closed(clients[lost])
        while service.state.generation == 0 or not channels[-1].sent:
            await asyncio.sleep(0)
        await service.close()
        return [channel.sent for channel in channels]

    return asyncio.run(asyncio.wait_for(run(), 60))


def test_worker_whose_connection_closes_before_its_held_join_is_handled_is_not_in_the_world() -> None:
    class SlowChannel(CheckedChannel):
        def __init__(self) -> None:
            super().__init__()
            self.is_asked = asyncio.Event()
            self.may_send = asyncio.Event()

        async def send(self, payload: bytes) -> None:
            self.is_asked.set()
            await self.may_send.wait()
            await super().send(payload)

    async def run() -> RosterState:
        service = RosterService(started(0, 1, 2), b"s" * 32)
        slow = SlowChannel()
        codec: Codec[FromWorker] = Codec(FromWorker)
        asking, closing, staying = Client(0, slow, codec), Client(1, CheckedChannel(), codec), Client(2, slow, codec)
        service.pause()
        await service.heard(asking, FetchCall())
        for client in (closing, staying):
            await service.heard(client, Join("c", 30.0))
        service.resume()
        await slow.is_asked.wait()
        service.closed(closing)
        slow.may_send.set()
        await service.heard(asking, Join("c", 30.0))
        await asyncio.sleep(0)  # The roster decides on all joins of a turn at once.
        await service.close()
        return service.state

    assert asyncio.run(asyncio.wait_for(run(), 60)).members == (0, 2)


def test_bug_in_handling_a_held_message_costs_only_its_connection_and_is_told() -> None:
    class BrokenChannel(CheckedChannel):
        is_closed = False

        async def send(self, payload: bytes) -> None:
            raise KeyError("h7")

        def close(self) -> None:
            self.is_closed = True

    async def run() -> tuple[list[object], bool, tuple[int, ...]]:
        told: list[object] = []
        asyncio.get_running_loop().set_exception_handler(lambda _, context: told.append(context["exception"]))
        service = RosterService(started(0, 1), b"s" * 32)
        broken = BrokenChannel()
        codec: Codec[FromWorker] = Codec(FromWorker)
        service.pause()
        await service.heard(Client(0, broken, codec), FetchCall())
        clients = [Client(worker, CheckedChannel(), codec) for worker in range(2)]
        await service.heard(clients[0], Join("c", 30.0))
        service.resume()
        await service.heard(clients[1], Join("c", 30.0))
        await asyncio.sleep(0)  # The roster decides on all joins of a turn at once.
        await service.close()
        return told, broken.is_closed, service.state.members

    (error,), is_closed, members = asyncio.run(asyncio.wait_for(run(), 60))
    assert isinstance(error, KeyError)
    assert is_closed and members == (0, 1)


def test_worker_that_is_lost_right_after_its_join_keeps_no_other_worker_from_its_world() -> None:
    _, others = answers(started(0, 1), lost=0)
    assert [type(each) for each in others] == [Placed]


def test_worker_of_job_of_fixed_size_that_asks_to_leave_is_not_asked_to_leave() -> None:
    first, second = answers(fixed.FixedState((None, None)), leaving=0)
    assert [type(each) for each in (*first, *second)] == [Placed, Placed]


@pytest.mark.parametrize(
    "state",
    [
        pytest.param(lambda: started(*range(100), most=100), id="elastic"),
        pytest.param(lambda: fixed.FixedState((None,) * 100), id="fixed"),
    ],
)
def test_roster_of_many_workers_decides_once_on_those_that_join_within_a_moment(
    state: Callable[[], RosterState],
) -> None:
    reasons: list[str] = []

    async def run() -> None:
        service = RosterService(state(), b"s" * 32, log=reasons.append, collect_seconds=3600.0)
        channels = [CheckedChannel() for _ in range(100)]
        for worker, channel in enumerate(channels):
            await service.heard(Client(worker, channel, Codec[FromWorker](FromWorker)), Join("c", 30.0))
            await asyncio.sleep(0)
        while not channels[-1].sent:
            await asyncio.sleep(0)
        await service.close()

    asyncio.run(asyncio.wait_for(run(), 60))
    assert len(reasons) == 1
    assert "generation 1 begins" in reasons[0]


def test_survivors_that_join_one_by_one_wait_for_the_last_one_only() -> None:
    reasons: list[str] = []

    async def run() -> RosterState:
        begun = after(started(*range(100), most=100), *(Joined(worker, f"at {worker}") for worker in range(100)))
        service = RosterService(begun, b"s" * 32, log=reasons.append, collect_seconds=3600.0)
        service.tell(Finished(50, "was killed", failed=True))
        for worker in range(100):
            if worker != 50:
                client = Client(worker, CheckedChannel(), Codec[FromWorker](FromWorker))
                await service.heard(client, Join("c", 30.0, generation=1, trained=True))
                await asyncio.sleep(0)
        while service.state.generation == 1:
            await asyncio.sleep(0)
        await service.close()
        return service.state

    assert len(asyncio.run(asyncio.wait_for(run(), 60)).members) == 99
    assert len(reasons) == 2


def test_members_are_notified_of_the_workers_to_come_only_if_their_number_has_changed() -> None:
    async def run() -> list[list[int]]:
        service = RosterService(started(0, 1, 2), b"s" * 32)
        listening = [CheckedChannel() for _ in range(3)]
        clients = [Client(worker, channel, Codec[FromWorker](FromWorker)) for worker, channel in enumerate(listening)]
        for client in clients:
            await service.heard(client, Listen())
        seen: list[list[int]] = []

        async def join(*workers: int, generation: int) -> None:
            for worker in workers:
                await service.heard(clients[worker], Join("c", 30.0, generation=generation, trained=True))
            while service.state.generation == generation:
                await asyncio.sleep(0)
            seen.append([_coming(channel) for channel in listening])

        await join(0, 1, 2, generation=0)
        service.tell(Finished(2, "was killed", failed=True))
        await join(0, 1, generation=1)
        service.tell(Expected(3, "h3"))
        seen.append([_coming(channel) for channel in listening])
        # The connection of a worker is replaced: what it was told may have been lost.
        listening[0] = CheckedChannel()
        await service.heard(Client(0, listening[0], Codec[FromWorker](FromWorker)), Listen())
        seen.append([_coming(channel) for channel in listening])
        await service.close()
        return seen

    assert asyncio.run(asyncio.wait_for(run(), 60)) == [[1, 1, 1], [1, 1, 1], [2, 2, 1], [1, 2, 1]]


def _coming(channel: CheckedChannel) -> int:
    """Return how many notices of the number of workers to come were sent."""
    return sum(isinstance(each, Coming) for each in channel.sent)


def test_worker_that_joins_just_before_the_time_of_a_hold_is_over_restarts_it() -> None:
    over: list[tuple[str, int]] = []
    arrivals = 0

    async def run() -> None:
        def arrived() -> None:
            nonlocal arrivals
            arrivals += 1
            if arrivals == 1:
                timer.wait(Hold("start", "waits for 1 worker", 0.01, arrivals=2))

        timer = HoldTimer(lambda kind: over.append((kind, arrivals)), arrived)
        timer.wait(Hold("start", "waits for 2 workers", 0.01, arrivals=1))
        while not over:
            await asyncio.sleep(0.001)

    asyncio.run(asyncio.wait_for(run(), 60))
    assert over == [("start", 2)]


@pytest.mark.parametrize("lost", [False, True])
def test_sender_learns_that_worker_whose_connection_is_lost_is_absent(lost: bool) -> None:
    """The service may have many messages to read before it reads the end of the connection."""

    async def run() -> tuple[list[FromRoster], list[FromRoster]]:
        service = RosterService(started(0, 1), b"s" * 32)
        channels = [CheckedChannel() for _ in range(2)]
        clients = [Client(worker, channel, Codec[FromWorker](FromWorker)) for worker, channel in enumerate(channels)]
        for client in clients:
            await service.heard(client, Listen())
        for channel in channels:
            channel.sent.clear()
        channels[0].is_lost = lost
        await service.heard(clients[1], Relay(0, b"hello"))
        await service.close()
        return channels[0].sent, channels[1].sent

    received, answered = asyncio.run(asyncio.wait_for(run(), 60))
    assert (received, answered) == (([], [Absent(0)]) if lost else ([Relayed(1, b"hello")], []))


@pytest.mark.parametrize("replaced", [False, True])
def test_survivors_get_the_change_of_a_table_that_they_have(replaced: bool) -> None:
    async def run() -> None:
        service = RosterService(started(0, 1, 2, most=4), b"s" * 32)
        workers = [_TableReader(worker) for worker in range(4)]
        first = await _world(service, workers[:3])
        assert all(world.contacts == ("at 0", "at 1", "at 2") for world in first)
        service.tell(Finished(1, "was killed by SIGKILL", failed=True))
        service.tell(Expected(3, "h0"))
        if replaced:
            service = RosterService(service.state, b"s" * 32)
        # Another process in the place of worker 2's has no table.
        workers[2] = _TableReader(2)
        worlds = await _world(service, [workers[0], workers[2], workers[3]], generation=1)
        assert [(world.rank, world.generation) for world in worlds] == [(0, 2), (1, 2), (2, 2)]
        assert {(world.contacts, world.workers, world.previous) for world in worlds} == {
            (("at 0", "at 2", "at 3"), (0, 2, 3), (0, 2, -1))
        }
        assert [worker.has_read_a_change for worker in workers] == [not replaced, False, False, False]
        await service.close()

    asyncio.run(asyncio.wait_for(run(), 60))


class _TableReader:
    """A worker that keeps the table of its world."""

    def __init__(self, worker: int) -> None:
        self.channel = CheckedChannel()
        self.table = LatestTable()
        self.has_read_a_change = False
        self.client = Client(worker, self.channel, Codec[FromWorker](FromWorker))

    async def join(self, service: RosterService, generation: int) -> None:
        old = generation if self.client.worker in service.state.members else 0
        join = Join(f"at {self.client.worker}", 30.0, generation=old, trained=old > 0, table=self.table.digest)
        await service.heard(self.client, join)

    def read(self) -> World:
        (placed,) = self.channel.sent
        self.channel.sent.clear()
        assert isinstance(placed, Placed)
        self.has_read_a_change |= isinstance(decode(placed.table, WorldTable | TableChange), TableChange)
        return placed.world(self.table)


async def _world(service: RosterService, workers: list[_TableReader], generation: int = 0) -> list[World]:
    """Let workers join, and return the world as each of them sees it."""
    for worker in workers:
        await worker.join(service, generation)
    while not all(worker.channel.sent for worker in workers):
        await asyncio.sleep(0)
    return [worker.read() for worker in workers]


@pytest.mark.parametrize("generations", [1, 2])
def test_answers_share_one_table(generations: int) -> None:
    sent: list[tuple[bytes, bytes]] = []

    class Channel(CheckedChannel):
        def post(self, payload: bytes, shared: bytes = b"") -> None:
            sent.append((payload, shared))
            super().post(payload, shared)

    async def run() -> None:
        service = RosterService(started(0, 1, 2), b"s" * 32)
        workers = [_TableReader(worker) for worker in range(3)]
        for worker in workers:
            worker.channel = worker.client.channel = Channel()
        for generation in range(generations):
            sent.clear()
            await _world(service, workers, generation)
        await service.close()

    asyncio.run(asyncio.wait_for(run(), 60))
    assert len(sent) == 3
    assert all(shared is sent[0][1] for _, shared in sent)
    assert max(len(payload) for payload, _ in sent) < 100
