"""Visits all reachable systems of the `model`, reduced to what their future depends on.

Two systems that differ only in data that nothing depends on any more are treated as one. That loses no violation: the
same reduced systems follow from a system and from its reduced form, and nothing is dropped that the checks of the model
read. `test_model` checks the former at every system of smaller jobs, which it visits without any reduction. Only the
order of steps that change nothing is left out (`without_noise`), and systems are compared exactly, not by digests.
"""

from __future__ import annotations

from array import array
from collections import deque
from collections.abc import Callable, Iterator
from typing import Any

from model import KINDS, faults, hold_over, is_plain_step
from model_roster import check_rest, require, the_one
from model_state import DEAD, IN_WORLD, STEPPING, Step, System, Violation, Worker, World, accuse, change, known_to
from model_workers import deliver, read, steps
from msgspec.structs import astuple, replace

from farandole.control.roster.elastic import ElasticState
from farandole.control.roster.events import Hold, Joined


class Explorer:
    """Visits all reachable systems, breadth first.

    Args:
        first: the initial system.
        kinds: kinds of the faults.
        prompt: whether messages between the roster and running workers arrive immediately.
        most: number of systems after which to stop; None: no limit.
        forgets: whether systems are reduced to what their future depends on.

    Attributes:
        systems: number of systems visited.
        transitions: number of transitions between them.
        rests: number of systems in which nothing happens any more.
    """

    def __init__(
        self,
        first: System,
        kinds: tuple[str, ...] = KINDS,
        *,
        prompt: bool = False,
        most: int | None = None,
        forgets: bool = True,
    ) -> None:
        self.systems = self.transitions = self.rests = 0
        self._first = first
        self._kinds = kinds
        self._prompt = prompt
        self._most = most
        self._forgets = forgets
        self.essence = Essence()
        self.keys = Keys()
        self._came: dict[bytes, bytes] = {}
        """Key of the system from which each system was first reached, by the key of the latter."""

    def run(self) -> None:
        """Explore.

        Raises:
            Violation: an invariant is violated; the message has the path to it.
        """
        first = self.keys.key(self._first)
        self._came[first] = b""
        queue = deque([first])
        while queue:
            key = queue.popleft()
            self.systems += 1
            for name, following in self.following(self.keys.system(key), key):
                self.transitions += 1
                after = self.keys.key(self._take(key, name, following))
                if after not in self._came:
                    self._came[after] = key
                    queue.append(after)
            if self._most is not None and self.systems >= self._most:
                return

    def following(self, system: System, key: bytes) -> list[Step]:
        """Return all possible steps of a system, and check the system if it is at rest."""
        own = list(steps(system))
        if all(is_plain_step(system, name) for name, _ in own):
            waits = list(hold_over(system))
            if not waits:
                self.rests += 1
                self._take(key, "nothing more happens", lambda: _at_rest(system))
            own += waits
        return own + list(faults(system, self._kinds))

    def after(self, following: Callable[[], System]) -> System:
        """Return the system that a step leads to."""
        system = hurry(following()) if self._prompt else following()
        return self.essence.of(system) if self._forgets else system

    def _take(self, key: bytes, name: str, following: Callable[[], System]) -> System:
        try:
            after = self.after(following)
            require(after.state.generation <= 30, "one world follows the other for ever")
            return after
        except (AssertionError, LookupError, ValueError) as error:
            raise Violation(f"{error!r}\n  " + "\n  ".join([*self._way(key), name])) from error

    def _way(self, key: bytes) -> list[str]:
        way: list[str] = []
        while before := self._came[key]:
            ways = self.following(self.keys.system(before), before)
            way.append(next(name for name, following in ways if self.keys.key(self.after(following)) == key))
            key = before
        return way[::-1]


def _at_rest(system: System) -> System:
    check_rest(system)
    return system


def hurry(system: System) -> System:
    """Deliver all messages between the roster and running workers."""
    while True:
        step = next((step for worker in system.workers for step in _messages(system, worker)), None)
        if step is None:
            return system
        system = step()


def _messages(system: System, worker: Worker) -> Iterator[Callable[[], System]]:
    if worker.runs() and worker.sent:
        yield lambda: deliver(system, worker)
    elif worker.runs() and worker.answers:
        yield lambda: read(system, worker)


class Keys:
    """An exact encoding of systems as a few bytes, small enough for many millions of systems.

    The states of the roster, of a worker and of all the rest are few, so each of them gets a number.
    """

    def __init__(self) -> None:
        self._numbers: dict[object, int] = {}
        self._parts: list[Any] = []

    def key(self, system: System) -> bytes:
        """Return the key of a system."""
        state, workers, slots, *rest = astuple(system)
        # Equal states are one object; comparing identities is much faster than comparing states.
        numbers = [self._number(id(each), each) for each in (state, slots)]
        numbers.append(self._number(tuple(rest), rest))
        numbers += [self._number(worker, worker) for worker in workers]
        return array("I", numbers).tobytes()

    def system(self, key: bytes) -> System:
        """Return the system that has this key."""
        state, slots, rest, *workers = (self._parts[number] for number in array("I", key))
        return System(state, tuple(workers), slots, *rest)

    def _number(self, key: object, part: object) -> int:
        number = self._numbers.setdefault(key, len(self._parts))
        if number == len(self._parts):
            self._parts.append(part)
        return number


# --- reduction ------------------------------------------------------------------------------------------------------


class Essence:
    """Reduces systems to what their future depends on."""

    def __init__(self) -> None:
        self._states: dict[object, ElasticState] = {}

    def of(self, system: System) -> System:
        """Return the reduced form of a system."""
        system = without_noise(system)
        dead = {each.number for each in system.workers if each.phase == DEAD}
        # Members of a world may still have to learn that a step of it has counted; nothing else depends on it.
        voted = any(each.phase == STEPPING and each.world.generation == system.voted for each in system.workers)
        return replace(
            system,
            state=self._state(system),
            workers=tuple(_worker(system, worker) for worker in system.workers),
            voted=system.voted if voted else 0,
            # A dead worker has no state that could be lost. `act` checks that it is not evicted once it is forgotten.
            excused=system.excused - dead,
            evicted=system.evicted - (dead - known_to(system.state)),
        )

    def _state(self, system: System) -> ElasticState:
        """Drop texts for people, and the order of joins: the next world has its workers by rank and by number."""
        state = system.state
        key = id(state)
        if key not in self._states:
            joins = [_join(state, each) for each in state.waiting.values()]
            self._states[key] = the_one(
                replace(
                    state,
                    waiting={each.worker: each for each in sorted(joins, key=lambda each: each.worker)},
                    suspects=dict.fromkeys(sorted(state.suspects), ""),
                    stopped=dict.fromkeys(sorted(state.stopped), ""),
                    lost=tuple(sorted((replace(each, how="") for each in state.lost), key=lambda each: each.rank)),
                    hold=Hold(state.hold.kind),
                    device_numbers={},
                    ended="ended" if state.ended else "",
                )
            )
        return self._states[key]


def without_noise(system: System) -> System:
    """Drop pending reports about dead or stopped workers that the roster has forgotten.

    A worker that is neither a member nor on the roll never is again, so such a report changes nothing.
    """
    known = known_to(system.state)
    for worker in system.workers:
        if worker.phase == DEAD and worker.sent and worker.number not in known | system.unanswered:
            system = change(system, worker.number, sent=())
    if system.slots is not None or (system.tell_finished <= known and system.tell_suspected <= known):
        return system
    return replace(system, tell_finished=system.tell_finished & known, tell_suspected=system.tell_suspected & known)


def _worker(system: System, worker: Worker) -> Worker:
    """Drop a worker's data about a world that it has left, unless others are still in it."""
    if worker.phase == DEAD:
        return worker
    inside = worker.phase in IN_WORLD
    if not inside and not any(_may_be_in(each, worker.world) for each in system.workers):
        worker = replace(worker, world=World(worker.world.generation, ()), accused=())
    if worker.change and not (inside and worker.change == worker.world.generation):
        worker = replace(worker, change=0)
    return worker


def _may_be_in(worker: Worker, world: World) -> bool:
    """Return whether a worker is in a world, or will be once it has read the announcement."""
    return (worker.phase in IN_WORLD and worker.world == world) or world in worker.answers


def _join(state: ElasticState, joined: Joined) -> Joined:
    """Drop the data of a join that is read only on its arrival."""
    now = joined.generation == state.generation and joined.worker in state.members
    accused = {accuse(each.rank, forming=True) for each in joined.accused if each.forming and now}
    return replace(
        joined,
        generation=joined.generation if now else 0,
        accused=tuple(sorted(accused, key=lambda each: each.rank)),
        arriving=False,
    )
