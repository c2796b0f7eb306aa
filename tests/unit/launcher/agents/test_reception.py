"""The hosts for which a launcher waits that takes a job over."""

from __future__ import annotations

import asyncio
import sys

import pytest

from farandole.base.installed import own_version
from farandole.base.wire.dialing import Bridged, Hello, Leave, Order, Surroundings
from farandole.base.wire.errors import WireError
from farandole.base.wire.frames import Codec
from farandole.control.launcher.agents import reception
from farandole.control.launcher.agents.agent_lost import AgentLost
from farandole.control.launcher.agents.arrival import OWN_PYTHON, check
from farandole.control.launcher.agents.reception import Reception
from farandole.control.launcher.job.host_list import Host
from farandole.errors import SpecError


class FakeArrival:
    """A host that has dialed, and stays."""

    stands = True

    def __init__(self, name: str, lives: bool) -> None:
        self.hello = Hello(name, 1, "any", lives)


def test_new_host_does_not_end_wait_for_hosts_that_lost_launcher(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    # A new pod dials the launcher at once; the others may have to notice first that the one before is gone.
    monkeypatch.setattr(reception, "LATE_ARRIVAL_SECONDS", 0.0)

    async def take_over() -> object:
        one = Reception([7707], lambda: b"s" * 32, 60.0)
        await one._arrived(FakeArrival("new", lives=False))  # type: ignore[arg-type]
        waiting = asyncio.create_task(one._awaited("old", lambda: False))
        await asyncio.sleep(0.1)
        assert not waiting.done()
        old = FakeArrival("old", lives=True)
        await one._arrived(old)  # type: ignore[arg-type]
        assert await asyncio.wait_for(waiting, 60) is old
        return await asyncio.wait_for(one._awaited("another", lambda: False), 60)

    assert asyncio.run(take_over()) is None, "when one has come, the others do not come much later"


def test_no_host_is_given_up_before_any_finds_launcher(monkeypatch: pytest.MonkeyPatch) -> None:
    # A name may lead to the launcher before for minutes; agents and their workers outlive that.
    monkeypatch.setattr(reception, "FIRST_ARRIVAL_SECONDS", 0.05)
    monkeypatch.setattr(reception, "TELL_SECONDS", 0.0)
    told: list[str] = []

    async def take_over() -> object:
        one = Reception([7707], lambda: b"s" * 32, 60.0)
        one._say = told.append
        waiting = asyncio.create_task(one._awaited("old", lambda: False))
        await asyncio.sleep(0.2)
        assert not waiting.done()
        await one._arrived(FakeArrival("new", lives=False))  # type: ignore[arg-type]
        return await asyncio.wait_for(waiting, 60)

    assert asyncio.run(take_over()) is None, "others would have found it, too"
    assert len(told) == 1 and "no host of the job has dialed yet" in told[0] and "for up to 60 s" in told[0]


def test_agent_beyond_its_patience_is_not_waited_for(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(reception, "FENCED_SECONDS", 0.0)

    async def take_over() -> object:
        return await asyncio.wait_for(Reception([7707], lambda: b"s" * 32, 0.05)._awaited("old", lambda: False), 60)

    assert asyncio.run(take_over()) is None


def test_host_without_workers_is_not_waited_for_while_others_stand_still(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    # The launcher and a worker pod were killed at the same moment: the other workers wait for the roster.
    monkeypatch.setattr(reception, "MISSED_ARRIVAL_SECONDS", 0.0)
    ended: set[str] = set()

    async def take_over() -> object:
        one = Reception([7707], lambda: b"s" * 32, 600.0)
        waiting = {name: asyncio.create_task(one._awaited(name, lambda name=name: name in ended)) for name in "ab"}
        ended.add("a")
        await asyncio.sleep(0.2)
        assert not waiting["a"].done(), "no host has found this launcher"
        await one._arrived(FakeArrival("other", lives=True))  # type: ignore[arg-type]
        assert await asyncio.wait_for(waiting["a"], 60) is None
        assert not waiting["b"].done(), "its workers may live"
        b = FakeArrival("b", lives=True)
        await one._arrived(b)  # type: ignore[arg-type]
        return await asyncio.wait_for(waiting["b"], 60) is b

    assert asyncio.run(take_over())


class SlowChannel:
    """A connection to a host that does not answer."""

    async def send(self, payload: bytes) -> None:
        pass

    async def receive(self) -> bytes:
        return await asyncio.get_running_loop().create_future()


class SlowHost(FakeArrival):
    """A host that has dialed, and takes long to start its agent."""

    is_open = True

    def __init__(self, name: str) -> None:
        super().__init__(name, lives=False)
        self.channel = SlowChannel()
        self.writer = FakeWriter()


def test_host_is_there_while_it_starts_its_agent() -> None:
    # Otherwise discovery, which asks once a second, would take a slow host away again.
    async def begin() -> tuple[Host, ...]:
        one = Reception([7707], lambda: b"s" * 32)
        await one._arrived(SlowHost("slow"))  # type: ignore[arg-type]
        (host,) = one.hosts()
        beginning = asyncio.create_task(one.begin(host))
        await asyncio.sleep(0)
        there = one.hosts()
        beginning.cancel()
        await asyncio.gather(beginning, return_exceptions=True)
        assert one.hosts() == ()
        return there

    assert [host.name for host in asyncio.run(begin())] == ["slow"]


def test_host_that_is_no_longer_wanted_dials_again() -> None:
    async def begin() -> bool:
        one, slow = Reception([7707], lambda: b"s" * 32), SlowHost("slow")
        await one._arrived(slow)  # type: ignore[arg-type]
        beginning = asyncio.create_task(one.begin(one.hosts()[0]))
        await asyncio.sleep(0)
        beginning.cancel()
        await asyncio.gather(beginning, return_exceptions=True)
        return slow.writer.closed

    assert asyncio.run(begin())


def test_connection_of_host_without_its_agent_is_closed() -> None:
    class Without(SlowChannel):
        async def receive(self) -> bytes:
            return Codec[Bridged](Bridged).encode(Bridged(False))

    async def begin() -> bool:
        one, host = Reception([7707], lambda: b"s" * 32), SlowHost("empty")
        host.channel = Without()
        await one._arrived(host)  # type: ignore[arg-type]
        with pytest.raises(AgentLost, match="its agent has ended"):
            await one.begin(one.hosts()[0])
        return host.writer.closed and one.hosts() == ()

    assert asyncio.run(begin())


def test_first_free_port_of_a_range_is_used() -> None:
    taken = Reception([0], lambda: b"s" * 32)
    port = taken.listen()
    other = Reception([port, 0], lambda: b"s" * 32)
    assert other.listen() not in (port, 0)
    with pytest.raises(SpecError, match=f"hosts cannot dial port {port}: "):
        Reception([port], lambda: b"s" * 32).listen()
    taken.stop_listening()
    other.stop_listening()
    again = Reception([port], lambda: b"s" * 32)
    assert again.listen() == port
    again.stop_listening()


class FakeChannel:
    """Keeps what is sent."""

    def __init__(self) -> None:
        self.sent: list[object] = []

    async def send(self, payload: bytes) -> None:
        self.sent.append(Codec[Order](Order).decode(payload))


class FakeWriter:
    """Can be closed."""

    closed = False

    def close(self) -> None:
        self.closed = True


class FakeAttempt(FakeArrival):
    """An attempt of a task of another program."""

    def __init__(self, name: str, instance: str, version: str = OWN_PYTHON) -> None:
        own = Surroundings("/work", sys.executable, version)
        self.hello = Hello(name, 1, own_version(), False, instance, "machine", (), own)
        self.channel = FakeChannel()
        self.writer = FakeWriter()
        self.is_open = True


def test_second_attempt_of_a_task_waits_until_first_is_gone() -> None:
    async def dial() -> None:
        one = Reception([0], lambda: b"s" * 32)
        first, second, again = FakeAttempt("0", "x"), FakeAttempt("0", "y"), FakeAttempt("0", "x")
        for attempt in (first, second, again):
            await one._arrived(attempt)  # type: ignore[arg-type]
        assert second.channel.sent == [Leave("0 has already dialed, and is alive")] and second.writer.closed
        assert first.writer.closed and not again.writer.closed, "it has dialed again"
        assert one.hosts() == (Host("0", 1, "", "machine", (), directory="/work"),)
        again.is_open = False
        third = FakeAttempt("0", "y")
        await one._arrived(third)  # type: ignore[arg-type]
        assert not third.channel.sent and one.hosts()

    asyncio.run(dial())


def test_host_with_another_python_is_refused() -> None:
    with pytest.raises(WireError, match=r"task 3 has Python 2\.7, but the launcher has 3\."):
        check(FakeAttempt("task 3", "x", "2.7").hello)
    check(FakeAttempt("task 3", "x").hello)
