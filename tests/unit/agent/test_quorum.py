"""Agents that ask witnesses about a silent launcher."""

from __future__ import annotations

import math
import socket
from collections.abc import Callable, Iterator

import pytest

from farandole.base.wire.frames import Codec, frame
from farandole.control.agent import event_loop, launcher_connection, quorum
from farandole.control.agent.event_loop import Loop
from farandole.control.agent.launcher_connection import LauncherConnection
from farandole.control.agent.protocol import Beat, ToAgent
from farandole.control.agent.quorum import Quorum, Witness
from farandole.control.agent.witness_messages import AskWitnesses, BeWitness, WitnessPlace

KEY = b"k" * 32
LONG = 60.0
IDENTITIES = (b"11111111", b"22222222", b"33333333")


class Clock:
    """A clock that a test puts forward, so that no test depends on how fast the machine is."""

    def __init__(self) -> None:
        self.now = 1000.0

    def monotonic(self) -> float:
        """Return the time, in seconds."""
        return self.now


class Bench:
    """Witnesses on this machine, and an agent that asks them.

    Attributes:
        silent: the witnesses that do not hear the launcher.
        excused: when the agent was told that most do not.
        answered: the witnesses that have answered its first questions.

    Args:
        clock: the clock of all of them.
    """

    def __init__(self, clock: Clock) -> None:
        self.clock = clock
        self.loop = Loop()
        self.silent: set[bytes] = set()
        self.excused: list[float] = []
        self.answered: list[tuple[bytes, ...]] = []
        self.witnesses = [self._witness(identity) for identity in IDENTITIES]

    def _witness(self, identity: bytes) -> Witness:
        return Witness(self.loop, BeWitness(1, KEY, identity, 5.0), lambda: identity not in self.silent)

    def order(self, key: bytes = KEY, seconds: float = LONG) -> AskWitnesses:
        places = [
            WitnessPlace(identity, ("127.0.0.1", "::1"), witness.port)
            for identity, witness in zip(IDENTITIES, self.witnesses, strict=True)
        ]
        return AskWitnesses(7, key, tuple(places), 2, seconds)

    def ask(self, order: AskWitnesses) -> Quorum:
        return Quorum(self.loop, order, lambda answered: self.answered.append(tuple(answered)), self.excused.append)

    def turn_for(self, seconds: float) -> None:
        """Let time pass, with everything that becomes due."""
        end = self.clock.now + seconds
        while self.clock.now < end:
            self.clock.now += 0.02
            self.loop.turn(0.0)

    def turn_until(self, fact: Callable[[], object]) -> None:
        """Let time pass until something is true."""
        end = self.clock.now + LONG
        while not fact():
            assert self.clock.now < end, "it did not come true"
            self.turn_for(0.02)


@pytest.fixture
def bench(monkeypatch: pytest.MonkeyPatch) -> Iterator[Bench]:
    """Yield a bench, and close its sockets."""
    clock = Clock()
    for module in (event_loop, launcher_connection, quorum):
        monkeypatch.setattr(module, "time", clock)
    bench = Bench(clock)
    yield bench
    for witness in bench.witnesses:
        witness.close()


def test_most_witnesses_that_hear_nothing_are_an_excuse(bench: Bench) -> None:
    bench.silent = {IDENTITIES[0], IDENTITIES[2]}
    before = bench.clock.now
    asking = bench.ask(bench.order())
    bench.turn_until(lambda: bench.excused and bench.answered)
    assert before <= bench.excused[0] <= bench.clock.now
    assert bench.answered == [IDENTITIES]
    asking.close()


def test_one_of_three_is_no_excuse(bench: Bench) -> None:
    bench.silent = {IDENTITIES[0]}
    asking = bench.ask(bench.order())
    bench.turn_until(lambda: bench.answered)
    for _ in range(3):
        asking.ask()
        bench.turn_for(0.1)
    assert bench.excused == []
    asking.close()


def test_a_witness_that_has_ended_does_not_answer(bench: Bench) -> None:
    order = bench.order()
    bench.witnesses[1].close()
    bench.silent = set(IDENTITIES)
    asking = bench.ask(order)
    bench.turn_until(lambda: bench.answered)
    assert bench.answered == [(IDENTITIES[0], IDENTITIES[2])]
    assert bench.excused
    asking.close()


def test_questions_of_others_are_not_answered(bench: Bench) -> None:
    bench.silent = set(IDENTITIES)
    other_key = bench.ask(bench.order(key=b"x" * 32))
    order = bench.order()
    swapped = tuple(
        WitnessPlace(identity, place.addresses, place.port)
        for identity, place in zip(reversed(IDENTITIES), order.witnesses, strict=True)
    )
    others_places = bench.ask(AskWitnesses(8, KEY, swapped, 2, LONG))
    bench.turn_until(lambda: len(bench.answered) == 2)
    # The place in the middle is right.
    assert bench.answered == [(), (IDENTITIES[1],)]
    assert bench.excused == []
    other_key.close()
    others_places.close()


def test_strangers_get_no_answer_and_do_no_harm(bench: Bench) -> None:
    bench.silent = set(IDENTITIES)
    stranger = socket.socket(socket.AF_INET, socket.SOCK_DGRAM)
    stranger.settimeout(0.0)
    for size in (0, 1, 24, 56, 57, 1400):
        stranger.sendto(b"a" * size, ("127.0.0.1", bench.witnesses[0].port))
    asking = bench.ask(bench.order())
    bench.turn_until(lambda: bench.excused)
    with pytest.raises(BlockingIOError):
        stranger.recv(2000)
    stranger.close()
    asking.close()


# --- the connection to a silent launcher -----------------------------------------------------------------------------


class Owner:
    """Hears heartbeats, and notes that there is no launcher."""

    def __init__(self, loop: Loop, end: int) -> None:
        self.is_alone = False
        self.connection = LauncherConnection(loop, self, end, end)

    def carry_out(self, message: ToAgent) -> None:
        """Do as the agent does."""
        assert isinstance(message, Beat)
        self.connection.expect(message)

    def wants_to_wait(self) -> bool:
        """There are workers."""
        return True

    def waits(self) -> None:
        """Nothing is to be done."""

    def taken_over(self, seconds: float) -> None:
        """Nothing is to be done."""

    def alone(self) -> None:
        """Note it."""
        self.is_alone = True


@pytest.fixture
def ends() -> Iterator[tuple[socket.socket, socket.socket]]:
    """Yield the launcher's and the agent's end of a connection."""
    ours, theirs = socket.socketpair()
    theirs.setblocking(False)
    yield ours, theirs
    ours.close()


Ends = tuple[socket.socket, socket.socket]
WITHIN = 1.75


def connect(bench: Bench, end: socket.socket) -> tuple[LauncherConnection, Owner]:
    owner = Owner(bench.loop, end.detach())
    return owner.connection, owner


def test_an_agent_waits_while_witnesses_hear_nothing_either(bench: Bench, ends: Ends) -> None:
    bench.silent = set(IDENTITIES)
    connection, owner = connect(bench, ends[1])
    connection.ask_witnesses(bench.order())
    connection.expect(Beat(WITHIN))
    bench.turn_for(10 * WITHIN)
    assert not owner.is_alone
    # The launcher is back for most of them: only this host is cut off now.
    bench.silent = set()
    bench.turn_until(lambda: owner.is_alone)


def test_no_excuse_lasts_for_ever(bench: Bench, ends: Ends) -> None:
    bench.silent = set(IDENTITIES)
    connection, owner = connect(bench, ends[1])
    connection.ask_witnesses(bench.order(seconds=3 * WITHIN))
    connection.expect(Beat(WITHIN))
    began = bench.clock.now
    bench.turn_until(lambda: owner.is_alone)
    assert 3 * WITHIN < bench.clock.now - began < 5 * WITHIN


def test_a_numbered_heartbeat_is_confirmed(bench: Bench, ends: Ends) -> None:
    connection, _ = connect(bench, ends[1])
    connection.expect(Beat(LONG))
    connection.expect(Beat(LONG, number=12))
    received = b""
    while not received.endswith(Codec[Beat](Beat).encode(Beat(number=12))):
        received += ends[0].recv(4096)
    connection.give_up()


def confirmed(bench: Bench, launcher: socket.socket, number: int) -> bool:
    """Return whether a numbered heartbeat is confirmed, by what the agent sends within a moment."""
    launcher.sendall(frame(Codec[ToAgent](ToAgent).encode(Beat(LONG, number))))
    bench.turn_for(0.02)
    launcher.setblocking(False)
    received = b""
    try:
        received = launcher.recv(1 << 16)
    except BlockingIOError:
        pass
    return Codec[Beat](Beat).encode(Beat(number=number)) in received


def test_a_witness_votes_again_only_when_it_has_heard_the_launcher_for_long_enough(bench: Bench, ends: Ends) -> None:
    connection, _ = connect(bench, ends[1])
    connection.be_witness(BeWitness(1, KEY, IDENTITIES[0], WITHIN))
    assert confirmed(bench, ends[0], 1)
    assert connection.is_steady
    bench.clock.now += 1.5 * WITHIN
    assert not connection.is_steady
    back_at = bench.clock.now
    assert not confirmed(bench, ends[0], 2)
    number = 2
    while not confirmed(bench, ends[0], number := number + 1):
        pass
    assert 1.5 * 1.5 * WITHIN <= bench.clock.now - back_at < 1.5 * 1.5 * WITHIN + 0.1
    connection.give_up()


def test_a_launcher_that_announces_its_silence_is_trusted_at_once_when_it_is_back(bench: Bench, ends: Ends) -> None:
    connection, _ = connect(bench, ends[1])
    connection.be_witness(BeWitness(1, KEY, IDENTITIES[0], WITHIN))
    connection.expect(Beat(math.inf))
    bench.clock.now += 1.5 * WITHIN
    assert confirmed(bench, ends[0], 1)
    connection.give_up()
