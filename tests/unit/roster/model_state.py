"""The state of the model of an elastic job: workers, their connections, and what is known about each; see `model`."""

from __future__ import annotations

from collections.abc import Callable

import msgspec
from msgspec.structs import replace

from farandole.base.wire.rendezvous import Accused
from farandole.control.launcher.slots.job_state import JobState
from farandole.control.roster.elastic import ElasticState
from farandole.control.roster.events import (
    Failed,
    Joined,
    Left,
    Notify,
    Revoke,
)

STARTING = "starting"  # its process runs; it has not arrived
PREPARING = "preparing"  # it has seen the world, and has not joined
WAITING = "waiting"  # it has read no answer to its join
FORMING = "forming"  # it has read the announcement of its world, and is not connected yet
SHARING = "sharing"  # members without the state get it
STEPPING = "stepping"  # in the middle of a step
FAILING = "failing"  # it has raised an exception, and its process will end
DEAD = "dead"
BETWEEN, MIDDLE, AHEAD = 0, 1, 2
"""Between two steps; in the middle of a step; at the end of a step that counts, which others may not know yet."""

IN_WORLD = (FORMING, SHARING, STEPPING)

Accusations = tuple[Accused, ...]
Message = Joined | Left | Failed


class Violation(AssertionError):
    """An invariant of the model is violated."""


class World(msgspec.Struct, frozen=True, gc=False):
    """A world as its members know it from the announcement."""

    generation: int
    members: tuple[int, ...]


class Notice(msgspec.Struct, frozen=True, gc=False):
    """A notice of the roster to the members of a world."""

    generation: int
    content: Notify | Revoke


class Worker(msgspec.Struct, frozen=True, gc=False):
    """One worker, and its connection to the roster: messages under way, in order."""

    number: int
    phase: str = STARTING
    world: World = World(0, ())
    trained: bool = False
    stopped: bool = False
    where: int = BETWEEN  # its position in its step when it joined
    change: int = 0  # the generation that it knows is to change
    accused: Accusations = ()  # the members that it lost when it abandoned its world
    sent: tuple[Message, ...] = ()
    answers: tuple[object, ...] = ()
    connected: bool = True

    def runs(self) -> bool:
        """Return whether its process can run."""
        return self.phase != DEAD and not self.stopped


class System(msgspec.Struct, frozen=True, gc=False):
    """One state of the whole system."""

    state: ElasticState
    workers: tuple[Worker, ...]
    slots: JobState | None = None  # in a job with hosts: the state of the slots, without the roster's
    reaching: frozenset[str] = frozenset()  # hosts that are being contacted
    lost_hosts: frozenset[str] = frozenset()  # silent hosts whose worker may be alive
    ended_well: frozenset[int] = frozenset()  # ended with exit code 0
    goodbyes: frozenset[int] = frozenset()  # notified the other members that they leave, and ended
    cut: frozenset[frozenset[int]] = frozenset()
    voted: int = 0  # the latest world that is to change, or to end, because a step of it has counted
    counted: bool = False  # a step has counted, so there is state that can be lost
    last: bool = False  # the next step is the last one
    unanswered: frozenset[int] = frozenset()  # joins that the service holds
    tell_finished: frozenset[int] = frozenset()
    exits_badly: frozenset[int] = frozenset()  # left gracefully, and ended with an exit code other than 0
    done_early: frozenset[int] = frozenset()  # ended with exit code 0 without calling init()
    tell_suspected: frozenset[int] = frozenset()
    to_kill: frozenset[int] = frozenset()
    evicted: frozenset[int] = frozenset()
    excused: frozenset[int] = frozenset()  # asked to leave or evicted, so their state may be given up
    faults_left: int = 0


Step = tuple[str, Callable[[], System]]


def known_to(state: ElasticState) -> set[int]:
    """Return the workers that the roster has not forgotten."""
    return {*state.members, *state.hosts, *state.exiting}


def change(system: System, number: int, **fields: object) -> System:
    """Return the system with one worker changed."""
    workers = list(system.workers)
    workers[number] = replace(workers[number], **fields)
    return replace(system, workers=tuple(workers))


def accuse(rank: int, certain: bool = False, forming: bool = False, left: bool = False) -> Accused:
    """Return an accusation whose text depends only on its other fields."""
    how = "left" if left else "could not be reached" if forming else "died" if certain else "is silent"
    return Accused(rank, how, certain, forming, left)
