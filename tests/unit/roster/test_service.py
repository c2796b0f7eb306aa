"""The roster's service: messages and ends of connections that arrive at the same moment."""

from __future__ import annotations

import asyncio

from checked_channel import CheckedChannel
from membership import started

from farandole.base.wire.frames import Codec
from farandole.base.wire.rendezvous import FetchCall, FromRoster, FromWorker, Join, Leaving, Placed
from farandole.control.roster import fixed
from farandole.control.roster.decide import RosterState
from farandole.control.roster.listener import Client
from farandole.control.roster.service import RosterService


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


def test_worker_that_is_lost_right_after_its_join_keeps_no_other_worker_from_its_world() -> None:
    _, others = answers(started(0, 1), lost=0)
    assert [type(each) for each in others] == [Placed]


def test_worker_of_job_of_fixed_size_that_asks_to_leave_is_not_asked_to_leave() -> None:
    first, second = answers(fixed.FixedState((None, None)), leaving=0)
    assert [type(each) for each in (*first, *second)] == [Placed, Placed]
