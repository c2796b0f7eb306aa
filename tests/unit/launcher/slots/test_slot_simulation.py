"""The rules of slots in random simulations of hosts and workers."""

from __future__ import annotations

import math
import random

import pytest
from slot_jobs import beginning, finishing, resized, world

from farandole.control.launcher.slots.job_events import (
    FAILED,
    FINISHED,
    KILLED,
    SUCCEEDED,
    DrainWorkers,
    EndHost,
    EndJob,
    HostLost,
    HostNoticed,
    HostNotReady,
    HostReady,
    HostsChanged,
    Progressed,
    ReachHost,
    SlotAction,
    SlotEvent,
    StartWorker,
    StopWorkers,
    Tick,
    WorkerEnded,
)
from farandole.control.launcher.slots.job_state import JobState, Step, at_work, living
from farandole.control.launcher.slots.slot_rules import apply, next_due
from farandole.control.roster.events import Leaves, Resized
from farandole.control.roster.membership import ANY_SIZE


@pytest.mark.parametrize("seed", range(150))
def test_rules_hold_in_random_simulations(seed: int) -> None:
    dice = random.Random(seed)
    state = beginning(
        dice.randint(1, 3),
        dice.choice([None, 3, 6]),
        spares=dice.randint(0, 2),
        grace=dice.choice([0, 5]),
        timeout=dice.choice([60, math.inf]),
        blacklist=dice.random() < 0.2,
        cooldown=dice.choice([None, (5, 20)]),
    )
    simulation = _Simulation(state, dice)
    for _ in range(300):
        simulation.step()
        if simulation.over:
            break
    simulation.finish()
    assert simulation.over, "the job ends"


class _Simulation:
    """Hosts and workers that do what they like, and what no policy may do."""

    def __init__(self, state: JobState, dice: random.Random) -> None:
        self.state = state
        self.dice = dice
        self.now = 0.0
        self.over = False
        self.running: dict[int, tuple[str, int]] = {}
        self.reaching: set[str] = set()
        self.begun = -1

    def step(self) -> None:
        """Let something happen."""
        kinds = [
            self.lose,
            self.hosts,
            self.time,
            self.time,
            self.end,
            self.end,
            self.world,
            self.answer,
            self.answer,
            self.size,
            self.notice,
            self.ask,
            self.finishing,
        ]
        self.dice.choice(kinds)()

    def hosts(self) -> None:
        labels = self.dice.sample(["a", "b", "c", "d"], self.dice.randint(0, 4))
        self.tell(HostsChanged(tuple((label, self.dice.randint(0, 3)) for label in labels)))

    def time(self) -> None:
        due = next_due(self.state, self.now)
        self.now = due if self.dice.random() < 0.7 and due < math.inf else self.now + self.dice.random() * 50
        self.tell(Tick())

    def end(self) -> None:
        if self.running:
            worker = self.dice.choice(sorted(self.running))
            how = self.dice.choices([KILLED, FAILED, SUCCEEDED], [10, 3, 0.2])[0]
            del self.running[worker]
            self.tell(WorkerEnded(worker, how, self.dice.choice(["x", "y", "z"])))

    def world(self) -> None:
        if self.running:
            members = sorted(self.running)[: self.dice.randint(1, 6)]
            self.follow(world(self.state, tuple(members), self.now))
            self.tell(Progressed())

    def answer(self) -> None:
        if self.reaching:
            label = self.dice.choice(sorted(self.reaching))
            self.reaching.discard(label)
            good = self.dice.random() < 0.8
            self.tell(HostReady(label) if good else HostNotReady(label, "?", self.dice.random() < 0.2))

    def lose(self) -> None:
        ready = [site.label for site in self.state.sites if site.phase == "ready"]
        if ready:
            label = self.dice.choice(ready)
            self.tell(HostLost(label))
            for worker in [worker for worker, (on, _) in self.running.items() if on == label]:
                del self.running[worker]
                self.tell(WorkerEnded(worker, KILLED))
            if any(site.label == label and site.phase == "lost" for site in self.state.sites):
                self.tell(HostNotReady(label, "?"))

    def notice(self) -> None:
        if self.state.sites:
            label = self.dice.choice(self.state.sites).label
            self.tell(HostNoticed(label, self.dice.choice(["", "soon"])))

    def ask(self) -> None:
        if self.running:
            self.tell(Leaves(self.dice.choice(sorted(self.running)), "it got SIGTERM"))

    def finishing(self) -> None:
        if self.running:
            self.follow(finishing(self.state, self.dice.random() < 0.3, self.now))

    def size(self) -> None:
        least = self.dice.randint(1, 3)
        self.follow(resized(self.state, Resized(least, self.dice.choice([ANY_SIZE, least, 5])), self.now))

    def finish(self) -> None:
        """Let all that run finish, and no host come any more."""
        for _ in range(100):
            if self.over:
                return
            if not self.running:
                self.tell(HostsChanged((("last", 3),)))
                self.now += 1000
                self.tell(Tick())
                self.reaching and self.answer()
                continue
            worker = min(self.running)
            self.follow(world(self.state, tuple(sorted(self.running)[:2]), self.now))
            del self.running[worker]
            self.tell(WorkerEnded(worker, FINISHED))

    def tell(self, event: SlotEvent) -> None:
        self.follow(apply(self.state, event, self.now))

    def follow(self, step: Step) -> None:
        if self.over:
            return
        before = {site.label: site for site in self.state.sites}
        self.state, actions, _ = step
        assert next_due(self.state, self.now) > self.now
        for action in actions:
            self.check(action, before)
        assert {worker: (site.label, slot.index) for worker, (site, slot) in living(self.state).items()} == self.running

    def check(self, action: SlotAction, before: dict[str, object]) -> None:
        """Do what an action says, and see that it may be done."""
        if isinstance(action, ReachHost):
            assert action.label not in self.reaching
            self.reaching.add(action.label)
        elif isinstance(action, StartWorker):
            site = next(site for site in self.state.sites if site.label == action.label)
            assert action.worker > self.begun, "no number is used twice"
            assert (action.label, action.slot) not in self.running.values(), "one worker in a slot"
            assert site.phase == "ready" and site.barred_until <= self.now and not site.closed
            assert action.slot < site.size
            self.begun = action.worker
            self.running[action.worker] = (action.label, action.slot)
            here = at_work(self.state).values()
            staying = sum(not (site.closed or slot.draining or slot.left) for site, slot in here)
            # One is started though there is no room if nobody else stays.
            assert len(here) <= self.state.most or staying == 1, "no more workers than may be"
            assert not self.state.closing
        elif isinstance(action, DrainWorkers | StopWorkers):
            assert action.workers and set(action.workers) <= self.running.keys()
        elif isinstance(action, EndHost):
            assert all(label != action.label for label, _ in self.running.values())
            self.reaching.discard(action.label)
        elif isinstance(action, EndJob):
            self.over = True
