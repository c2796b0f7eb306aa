"""The votes of witnesses, alone and in a model of launcher, agents and networks that are cut."""

from __future__ import annotations

import heapq
import itertools
import random
from collections.abc import Callable, Iterator
from functools import partial

import pytest

from farandole.control.agent.launcher_connection import _RECOVERY
from farandole.control.agent.quorum import ASK_SECONDS
from farandole.control.launcher.agents.agent_client import BEAT_SECONDS, CONFIRMED_SECONDS
from farandole.control.launcher.agents.lease import LEASE_PART, SILENCE_PART, SPARE_SECONDS, Lease
from farandole.control.launcher.agents.reception import FENCED_SECONDS

TIMEOUT = 1.75
LIMIT = 600.0


def test_a_majority_is_held_from_the_vote_that_makes_it() -> None:
    lease = Lease("abc", 1.0, LIMIT, now=10.0)
    assert lease.held_for(10.5) == 0
    lease.confirm("a", 10.4, now=10.5)
    assert lease.held_for(10.6) == 0
    lease.confirm("b", 10.6, now=10.7)
    assert lease.held_for(11.3) == pytest.approx(0.6)
    assert lease.held_for(11.5) == 0, "the older one of the two votes is over"


def test_a_majority_that_is_renewed_in_time_is_not_interrupted() -> None:
    lease = Lease("abc", 1.0, LIMIT, now=0.0)
    for now in range(1, 20):
        for witness in ("a", "b", "c"[: now % 2]):
            lease.confirm(witness, now / 2 - 0.1, now / 2)
    assert lease.held_for(10.0) == pytest.approx(9.5)


def test_an_interruption_counts_although_the_majority_is_back() -> None:
    lease = Lease("a", 1.0, LIMIT, now=0.0)
    lease.confirm("a", 0.0, now=0.1)
    lease.confirm("a", 1.4, now=1.5)
    assert lease.held_for(2.0) == pytest.approx(0.5)


def test_a_late_confirmation_is_worth_what_is_left_of_it() -> None:
    lease = Lease("a", 1.0, LIMIT, now=0.0)
    lease.confirm("a", 0.0, now=5.0)
    assert lease.held_for(5.0) == 0


def test_a_new_witness_has_not_voted() -> None:
    lease = Lease("abc", 1.0, LIMIT, now=0.0)
    for witness in "abc":
        lease.confirm(witness, 1.0, now=1.0)
    lease.replace("c", "d", now=1.5)
    lease.confirm("c", 1.4, now=1.5)
    assert lease.held_for(1.9) == pytest.approx(0.9), "two of three are enough"
    lease.replace("b", "e", now=1.6)
    assert lease.held_for(1.7) == 0


def test_nobody_waits_for_ever() -> None:
    lease = Lease("abc", 1.0, LIMIT, now=0.0)
    assert lease.held_for(LIMIT) == 0
    assert lease.held_for(LIMIT + SPARE_SECONDS + 2.0) == pytest.approx(2.0)


# --- the model -------------------------------------------------------------------------------------------------------

LAUNCHER = "launcher"
# By sender and receiver: from when until when.
Cuts = dict[tuple[str, str], list[tuple[float, float]]]


class Agent:
    """What an agent knows. It ends its workers at `ended_at`."""

    def __init__(self) -> None:
        self.heard_at = 0.0
        self.steady_at = 0.0
        self.excused_at = 0.0
        self.ended_at: float | None = None
        self.rounds: dict[int, tuple[float, set[str]]] = {}


class Model:
    """A launcher and agents with three witnesses among them, on a network whose directions are cut for a while.

    Attributes:
        certain_at: when the launcher relied on the end of an agent's workers.

    Args:
        seed: of the delays.
        size: the number of agents.
        cuts: when which directions are cut.
        slowest: the longest delay, in seconds.
    """

    def __init__(self, seed: int, size: int, cuts: Cuts, slowest: float = 0.4) -> None:
        self.now = 0.0
        self.agents = {f"h{number}": Agent() for number in range(size)}
        self.witnesses = list(self.agents)[:3]
        self.certain_at: dict[str, float] = {}
        self._random = random.Random(seed)
        self._cuts = cuts
        self._slowest = slowest
        self._events: list[tuple[float, int, Callable[[], None]]] = []
        self._order = itertools.count()
        self._arrived: dict[tuple[str, str], float] = {}
        self._lease = Lease(self.witnesses, LEASE_PART * TIMEOUT, LIMIT, 0.0)
        self._heard = dict.fromkeys(self.agents, 0.0)
        self._lost: dict[str, float] = {}
        self._later(0.0, self._look)
        for name in self.agents:
            self._later(0.0, partial(self._beat, name))
            self._later(0.0, partial(self._live, name))

    def run(self, seconds: float) -> None:
        while self._events and self.now < seconds:
            self.now, _, event = heapq.heappop(self._events)
            event()

    def _later(self, seconds: float, event: Callable[[], None]) -> None:
        heapq.heappush(self._events, (self.now + seconds, next(self._order), event))

    def _is_cut(self, one: str, other: str, now: float) -> bool:
        return any(begin <= now < end for begin, end in self._cuts.get((one, other), ()))

    def _delay(self) -> float:
        return self._random.choice((0.001, 0.01, 0.1, 1.0)) * self._slowest

    def _stream(self, one: str, other: str, event: Callable[[], None]) -> None:
        """Send in order, like TCP: what is cut off is sent again, after pauses that double."""
        arrives, pause = self.now + self._delay(), 0.2
        while self._is_cut(one, other, arrives):
            arrives, pause = arrives + pause, 2 * pause
        self._arrived[one, other] = arrives = max(arrives, self._arrived.get((one, other), 0.0))
        self._later(arrives - self.now, event)

    def _datagram(self, one: str, other: str, event: Callable[[], None]) -> None:
        if not self._is_cut(one, other, self.now):
            self._later(self._delay(), event)

    # The launcher.

    def _beat(self, name: str) -> None:
        if name in self._lost:
            return
        sent_at = self.now

        def answered(votes: bool) -> None:
            self._heard[name] = self.now
            if votes:
                self._lease.confirm(name, sent_at, self.now)

        def heard() -> None:
            agent = self.agents[name]
            silence = self.now - agent.heard_at
            if silence >= SILENCE_PART * TIMEOUT:
                agent.steady_at = self.now + _RECOVERY * silence
            agent.heard_at = self.now
            if agent.ended_at is None:
                votes = name in self.witnesses and self.now >= agent.steady_at
                self._stream(name, LAUNCHER, partial(answered, votes))

        self._stream(LAUNCHER, name, heard)
        self._later(CONFIRMED_SECONDS if name in self.witnesses else BEAT_SECONDS, lambda: self._beat(name))

    def _look(self) -> None:
        held = self._lease.held_for(self.now)
        for name in self.agents:
            if name not in self._lost and min(self.now - self._heard[name], held) > TIMEOUT:
                self._lost[name] = self._heard[name]
            fence = TIMEOUT + FENCED_SECONDS
            if name in self._lost and min(self.now - self._lost[name], held) > fence:
                self.certain_at.setdefault(name, self.now)
        self._later(0.1, self._look)

    # An agent.

    def _live(self, name: str) -> None:
        agent = self.agents[name]
        if self.now - max(agent.heard_at, agent.excused_at) > TIMEOUT:
            agent.ended_at = self.now
            return
        if self.now - agent.heard_at > TIMEOUT / 2:
            self._ask(name)
        self._later(ASK_SECONDS, lambda: self._live(name))

    def _ask(self, name: str) -> None:
        agent, asked_at, silent = self.agents[name], self.now, set[str]()

        def answered(witness: str) -> None:
            silent.add(witness)
            if len(silent) >= 2:
                agent.excused_at = max(agent.excused_at, asked_at)

        def asked(witness: str) -> None:
            other = self.agents[witness]
            is_steady = self.now - other.heard_at < SILENCE_PART * TIMEOUT and self.now >= other.steady_at
            if other.ended_at is None and not is_steady:
                self._datagram(witness, name, lambda: answered(witness))

        for witness in self.witnesses:
            self._datagram(name, witness, partial(asked, witness))


def random_cuts(seed: int, names: list[str]) -> Cuts:
    """Return cuts of single directions, of hosts, and of the launcher."""
    rng = random.Random(seed)
    cuts: Cuts = {}
    for _ in range(rng.randrange(1, 7)):
        begin = rng.uniform(1, 25)
        cut = begin, begin + rng.choice((0.5, 1.5, 3.0, 8.0, 30.0))
        victim, others = rng.choice(names), rng.sample(names, rng.randrange(1, len(names) + 1))
        ways = rng.choice(("from", "to", "from and to"))
        for other in others:
            if "from" in ways:
                cuts.setdefault((victim, other), []).append(cut)
            if "to" in ways:
                cuts.setdefault((other, victim), []).append(cut)
    return cuts


def models() -> Iterator[Model]:
    """Yield models that have run."""
    for seed in range(100):
        size = 3 + seed % 3
        model = Model(seed, size, random_cuts(seed, [LAUNCHER, *(f"h{number}" for number in range(size))]))
        model.run(60.0)
        yield model


def lives_too_long(model: Model, name: str) -> bool:
    """Return whether workers lived on although the launcher was certain of their end."""
    ended_at = model.agents[name].ended_at
    return ended_at is None or ended_at > model.certain_at[name]


def test_no_worker_lives_when_its_launcher_is_certain_of_its_end() -> None:
    certain = [(model, name) for model in models() for name in model.certain_at]
    assert len(certain) > 20, "the cuts of this test do not lose hosts"
    assert not [name for model, name in certain if lives_too_long(model, name)]


@pytest.mark.parametrize(
    "wrong", [lambda lease, now: now if now < lease.ends_at else 0.0, lambda lease, now: float("inf")]
)
def test_the_model_notices_leases_that_are_wrong(
    monkeypatch: pytest.MonkeyPatch, wrong: Callable[[Lease, float], float]
) -> None:
    monkeypatch.setattr(Lease, "held_for", wrong)
    assert any(lives_too_long(model, name) for model in models() for name in model.certain_at)


def test_a_launcher_that_is_cut_off_loses_nobody() -> None:
    for seed in range(20):
        names = [f"h{number}" for number in range(5)]
        cut = [(5.0, 40.0)]
        cuts = {pair: cut for name in names for pair in ((LAUNCHER, name), (name, LAUNCHER))}
        model = Model(seed, 5, cuts, 0.1)
        model.run(150.0)
        assert not model.certain_at
        assert all(agent.ended_at is None for agent in model.agents.values()), seed


def test_a_host_that_is_cut_off_is_lost_soon() -> None:
    for seed in range(20):
        others = [LAUNCHER, "h1", "h2", "h3", "h4"]
        model = Model(seed, 5, {pair: [(5.0, 60.0)] for name in others for pair in ((name, "h0"), ("h0", name))}, 0.1)
        model.run(60.0)
        assert list(model.certain_at) == ["h0"]
        assert model.certain_at["h0"] < 5.0 + 2 * (TIMEOUT + FENCED_SECONDS)
        assert [name for name, agent in model.agents.items() if agent.ended_at is not None] == ["h0"]
