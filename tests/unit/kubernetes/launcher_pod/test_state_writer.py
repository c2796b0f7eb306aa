"""The failover state is written in a separate thread, and messages that follow from it wait."""

from __future__ import annotations

import asyncio
import threading
import time
from collections.abc import Awaitable, Callable, Mapping

from farandole.control.kubernetes.launcher_pod.state_objects import NotWritten
from farandole.control.kubernetes.launcher_pod.state_writer import StateWriter
from farandole.control.launcher.supervise.failover_files import LAUNCHER, STATE

_LONG = 30.0


class SlowFailover:
    """Stands in for the state at the API server: each writing waits until it is allowed, or refused."""

    def __init__(self) -> None:
        self.written: list[dict[str, bytes]] = []
        self.begun = 0
        self.away = False
        self._allowed = threading.Semaphore(0)

    def write(self, parts: Mapping[str, bytes]) -> None:
        """Write when that is allowed."""
        self.begun += 1
        if self.away:
            raise NotWritten("away")
        if not self._allowed.acquire(timeout=_LONG):
            raise NotWritten("the test has forgotten it")
        self.written.append(dict(parts))

    def allow(self, count: int = 1) -> None:
        """Let this number of writes through."""
        self._allowed.release(count)


async def until(fact: Callable[[], object]) -> None:
    """Wait for a fact."""
    deadline = time.monotonic() + _LONG
    while not fact():
        assert time.monotonic() < deadline
        await asyncio.sleep(0.002)


def run(test: Callable[[SlowFailover, StateWriter, list[object]], Awaitable[None]], patience: float = _LONG) -> None:
    """Run a test with a writer, and a list of what was said and told."""

    async def with_writer() -> None:
        failover = SlowFailover()
        writer = StateWriter(failover, patience, rest=0.01)  # type: ignore[arg-type]
        said: list[object] = []
        writer.watch(said.append)
        try:
            await test(failover, writer, said)
        finally:
            failover.allow(100)
            await writer.close()

    asyncio.run(with_writer())


def test_messages_wait_until_state_is_written() -> None:
    async def test(failover: SlowFailover, writer: StateWriter, said: list[object]) -> None:
        writer.gate.send(lambda: said.append("before"))
        assert writer.save(LAUNCHER, b"1")
        writer.gate.send(lambda: said.append("after 1"))
        await until(lambda: failover.begun)
        assert writer.save(STATE, b"2")
        writer.gate.send(lambda: said.append("after 2"))
        assert said == ["before"]

        failover.allow()
        await until(lambda: len(said) > 1)
        assert said == ["before", "after 1"]
        assert failover.written == [{LAUNCHER: b"1"}]

        failover.allow()
        await until(lambda: len(said) > 2)
        assert failover.written[1:] == [{STATE: b"2"}]

    run(test)


def test_newest_state_wins() -> None:
    async def test(failover: SlowFailover, writer: StateWriter, said: list[object]) -> None:
        writer.save(LAUNCHER, b"first")
        await until(lambda: failover.begun)
        for number in range(50):
            writer.save(LAUNCHER, b"%d" % number)
        writer.save(STATE, b"members")
        writer.gate.send(lambda: said.append("all"))
        failover.allow(2)
        await until(lambda: said)
        assert failover.written == [{LAUNCHER: b"first"}, {LAUNCHER: b"49", STATE: b"members"}]

    run(test)


def test_agents_learn_of_outage_and_its_end_before_delayed_messages() -> None:
    async def test(failover: SlowFailover, writer: StateWriter, said: list[object]) -> None:
        failover.away = True
        assert writer.save(LAUNCHER, b"1")
        writer.gate.send(lambda: said.append("order"))
        await until(lambda: len(said) == 2)
        assert said == [False, "order"], "agents hear first that there can be no successor"
        assert writer.trouble == "away"
        assert not writer.save(LAUNCHER, b"2")
        writer.gate.send(lambda: said.append("at once"))
        assert said[2:] == ["at once"]

        failover.away = False
        failover.allow()
        await until(lambda: len(said) > 3)
        assert said[3:] == [True], "without anything new to be written: agents wait for a successor again"
        assert failover.written == [{LAUNCHER: b"2"}]
        assert writer.save(LAUNCHER, b"3")
        writer.gate.send(lambda: said.append("behind the gate"))
        assert len(said) == 4
        failover.allow()
        await until(lambda: len(said) == 5)

    run(test, patience=0.05)


def test_short_outage_delays_messages_silently() -> None:
    async def test(failover: SlowFailover, writer: StateWriter, said: list[object]) -> None:
        failover.away = True
        writer.save(LAUNCHER, b"1")
        writer.gate.send(lambda: said.append("order"))
        await until(lambda: failover.begun > 3)
        failover.allow()
        failover.away = False
        await until(lambda: said)
        assert said == ["order"]
        assert failover.written == [{LAUNCHER: b"1"}]

    run(test)


def test_stored_state_is_refreshed() -> None:
    async def test() -> None:
        failover = SlowFailover()
        failover.allow(100)
        writer = StateWriter(failover, refresh=0.01)  # type: ignore[arg-type]
        try:
            writer.save(STATE, b"members")
            await until(lambda: failover.written[-3:] == [{}, {}, {}])
            assert {STATE: b"members"} in failover.written
            assert writer.gate.is_open
        finally:
            await writer.close()

    asyncio.run(test())


def test_ending_launcher_waits_until_successor_could_take_over() -> None:
    async def test(failover: SlowFailover, writer: StateWriter, said: list[object]) -> None:
        assert await writer.can_be_followed(0.0)
        failover.away = True
        writer.save(LAUNCHER, b"1")
        assert await writer.can_be_followed(0.0), "nobody knows of what is behind the gate"
        await until(lambda: said == [False])
        assert not await writer.can_be_followed(0.01)
        waiting = asyncio.create_task(writer.can_be_followed(_LONG))
        await asyncio.sleep(0.1)
        assert not waiting.done()
        failover.away = False
        failover.allow()
        assert await waiting
        assert said == [False, True], "agents have been told before"

    run(test, patience=0.05)
