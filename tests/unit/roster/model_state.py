"""What the model of an elastic job consists of: workers, their connections, and what is known of each; see `model`."""

from __future__ import annotations

from collections.abc import Callable

import msgspec
from msgspec.structs import replace

from farandole.control.launcher.slots.job_state import JobState
from farandole.control.roster.elastic import State
from farandole.control.roster.events import (
    Accusation,
    Failed,
    Joined,
    Left,
    Notify,
    Revoke,
)

STARTING = "starting"  # its process runs; it has not arrived
PREPARING = "preparing"  # it has seen the world, and has not joined
WAITING = "waiting"  # its join has no answer that it has read
FORMING = "forming"  # it has read of its world, and is not connected yet
SHARING = "sharing"  # the state goes to those who do not have it
STEPPING = "stepping"  # in the middle of a step
FAILING = "failing"  # it has raised an exception, and its process ends some time
DEAD = "dead"
BETWEEN, MIDDLE, AHEAD = 0, 1, 2
"""Between two steps; in the middle of one; at the end of one of which others may not know yet that it counts."""

IN_WORLD = (FORMING, SHARING, STEPPING)

Accused = tuple[Accusation, ...]
Message = Joined | Left | Failed


class Violation(AssertionError):
    """Something has happened that never may."""


class World(msgspec.Struct, frozen=True, gc=False):
    """A world as its members know it. It comes with the announcement."""

    generation: int
    members: tuple[int, ...]


class Notice(msgspec.Struct, frozen=True, gc=False):
    """What the roster says by itself to the members of a world."""

    generation: int
    content: Notify | Revoke


class Worker(msgspec.Struct, frozen=True, gc=False):
    """One worker, and its connection to the roster: messages under way, in order."""

    number: int
    phase: str = STARTING
    world: World = World(0, ())
    trained: bool = False
    stopped: bool = False
    where: int = BETWEEN  # how far it was in its steps when it joined
    change: int = 0  # the generation of which it knows that it is to change
    accused: Accused = ()  # whom it lost when it turned away
    sent: tuple[Message, ...] = ()
    answers: tuple[object, ...] = ()
    connected: bool = True

    def runs(self) -> bool:
        """Return whether it can do anything."""
        return self.phase != DEAD and not self.stopped


class System(msgspec.Struct, frozen=True, gc=False):
    """All there is."""

    state: State
    workers: tuple[Worker, ...]
    slots: JobState | None = None  # of a job with hosts: all that is decided on but the roster, which is `state`
    reaching: frozenset[str] = frozenset()  # hosts that are being reached
    lost_hosts: frozenset[str] = frozenset()  # hosts of which nothing is heard, whose worker may live
    ended_well: frozenset[int] = frozenset()  # ended with exit code 0
    goodbyes: frozenset[int] = frozenset()  # said to the others of their world that they leave it, and ended
    cut: frozenset[frozenset[int]] = frozenset()
    voted: int = 0  # the latest world that is to change, or to end, as a step of it has counted
    counted: bool = False  # a step has counted, so there is state that can be lost
    last: bool = False  # the next step is the last one
    unanswered: frozenset[int] = frozenset()  # joins that the service holds
    tell_finished: frozenset[int] = frozenset()
    exits_badly: frozenset[int] = frozenset()  # said goodbye, and ended with another exit code than 0
    done_early: frozenset[int] = frozenset()  # ended with exit code 0 without calling init()
    tell_suspected: frozenset[int] = frozenset()
    to_kill: frozenset[int] = frozenset()
    evicted: frozenset[int] = frozenset()
    excused: frozenset[int] = frozenset()  # whose state may be given up: asked to leave, or evicted
    faults_left: int = 0


Step = tuple[str, Callable[[], System]]


def known_to(state: State) -> set[int]:
    """Return the workers that the roster has not forgotten."""
    return {*state.members, *state.hosts, *state.exiting}


def change(system: System, number: int, **fields: object) -> System:
    """Return the system with one worker changed."""
    workers = list(system.workers)
    workers[number] = replace(workers[number], **fields)
    return replace(system, workers=tuple(workers))


def accuse(rank: int, certain: bool = False, forming: bool = False, left: bool = False) -> Accusation:
    """Accuse a member in words that say no more than the rest of the accusation."""
    how = "left" if left else "could not be reached" if forming else "died" if certain else "is silent"
    return Accusation(rank, how, certain, forming, left)
