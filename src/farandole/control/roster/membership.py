"""The state of an elastic job's roster, and the changes that are made to it."""

from __future__ import annotations

from collections.abc import Iterable
from typing import TypeVar

import msgspec

from farandole.control.roster.events import Accusation, Action, Departure, Evict, Hold, Joined, Refuse

MAJORITY_SECONDS = 30.0
T = TypeVar("T")
ANY_SIZE = 1 << 16
"""Workers of the largest world; the size of a job without an upper limit."""


class Limits(msgspec.Struct, frozen=True):
    """Which sizes a job may have, and how long it waits."""

    min_size: int
    max_size: int
    """`ANY_SIZE`: as many as there are slots."""
    start_timeout: float = 30.0
    """Seconds after the latest arrival that a world which could begin waits for workers that were started and have not
    joined; and that the first one waits for them in any case."""
    timeout: float = 600.0
    """Seconds that a world waits for its members, and for `min_size` workers; and that a worker which has failed may
    take to end."""
    majority_timeout: float = MAJORITY_SECONDS
    """Seconds that the smaller part of a world waits for the larger one."""
    reset_limit: int | None = None
    """Worlds after the first one; None: any number."""

    @property
    def in_words(self) -> str:
        """Between which sizes the job goes on, for people."""
        most = "any number of" if self.max_size == ANY_SIZE else self.max_size
        return f"from {self.min_size} to {most} workers"


class State(msgspec.Struct, frozen=True, tag="elastic"):
    """The state of an elastic job's roster. Workers have numbers of their own, which are never used twice."""

    limits: Limits
    generation: int = 0
    """Of the latest world; 0 before the first, which is 1."""
    members: tuple[int, ...] = ()
    """Workers of that world, by rank."""
    waiting: tuple[Joined, ...] = ()
    """Every join that has no answer yet, in the order they came."""
    expected: frozenset[int] = frozenset()
    """Workers that were started, and have neither joined nor ended."""
    promised: bool = False
    """Whether more of them will be started soon."""
    hosts: dict[int, str] = {}
    """The roll, with what people call the host of each worker."""
    gone: frozenset[int] = frozenset()
    """Members that are certain to do nothing more in their world, or in any other: their process has ended, they said
    that they failed, or they joined and were refused."""
    done: frozenset[int] = frozenset()
    """Members that have left their world in good order."""
    exiting: frozenset[int] = frozenset()
    """Workers that have left in good order, in this world or before, and whose process has not ended: whether that was
    the end of their work, or `sys.exit(1)` in the middle of it, is not known yet."""
    finished: bool = False
    """Whether the process of a worker has ended well that had left in good order, or before there was any world."""
    suspects: dict[int, str] = {}
    """Members that are not heard of, and how that was noticed."""
    barred: frozenset[int] = frozenset()
    """Members that were counted out though they may live."""
    holders: frozenset[int] = frozenset()
    """Members that held the job's state when their world began."""
    leaving: frozenset[int] = frozenset()
    """Members that are to leave at the end of a step."""
    lost: tuple[Departure, ...] = ()
    """Members of that world that it has lost, the first one first."""
    notified: tuple[int, int] = (0, 0)
    """What its members have been told: newcomers that wait, members that are to leave."""
    device_numbers: dict[int, tuple[str, int]] = {}
    """By worker whose process has not ended: its host, and the number on that host that it was told first."""
    state_held: bool = False
    """Whether any worker has held the job's state."""
    training: int = 0
    """The latest training of the script whose state a worker has held; 0: trainings are not counted."""
    hold: Hold = Hold("")
    """What the job waits for."""
    ended: str = ""
    """Why there will be no other world."""

    @property
    def finishing(self) -> bool:
        """Whether workers have left in good order, as far as is known: the job is about to end."""
        return self.finished or bool(self.exiting)

    def active(self) -> list[int]:
        """Return the members that may be in the next world, by rank."""
        return [each for each in self.members if each not in self.gone | self.done | self.barred]

    def joined(self) -> dict[int, Joined]:
        """Return the joins that wait, by worker."""
        return {each.worker: each for each in self.waiting}

    def newcomers(self) -> list[int]:
        """Return the workers that wait and are not of the latest world, the lowest number first.

        A worker is told its number as its rank when it starts (HOROVOD_RANK). Whichever of two joins first, the lower
        one gets the lower rank, and survivors keep their order from then on.
        """
        return sorted(each.worker for each in self.waiting if each.worker not in self.members)

    def name(self, worker: int) -> str:
        """Return what people call a worker."""
        where = f" on {self.hosts[worker]}" if worker in self.hosts else ""
        if worker in self.members:
            return f"rank {self.members.index(worker)} (worker {worker}{where})"
        return f"worker {worker}{where}"


Outcome = tuple[State, list[Action], str]


# --- what becomes of single workers ---------------------------------------------------------------------------------


def missing(state: State) -> list[int]:
    joined = state.joined()
    return [worker for worker in state.active() if worker not in joined and worker not in state.suspects]


def accusations(state: State, event: Joined) -> list[Accusation]:
    """Return the losses that a member reports of the latest world; those of older worlds do not count any more."""
    if event.worker not in state.members or event.generation != state.generation:
        return []
    others = set(range(len(state.members))) - {state.members.index(event.worker)}
    return [accusation for accusation in event.accused if accusation.rank in others]


def bar(state: State, worker: int, why: str) -> tuple[State, list[Action]]:
    """Count a worker out for good, though it may live."""
    lost = departures(state, worker, why)
    fenced = worker in state.joined() or worker not in state.members
    state, actions = dismiss(state, worker, f"it was counted out: {why}")
    state = changed(state, lost=lost, barred=state.barred if fenced else state.barred | {worker})
    return state, [*actions, Evict(worker, why)]


def dismiss(state: State, worker: int, why: str) -> tuple[State, list[Action]]:
    """Keep this worker out of all later worlds."""
    if worker not in state.joined():
        return strike(state, worker), []
    gone = state.gone | ({worker} & set(state.members))
    return changed(strike(state, worker), gone=gone), [Refuse(worker, why, evicted=True)]


def strike(state: State, worker: int) -> State:
    """Take a worker from the roll."""
    return changed(
        without_join(state, worker),
        hosts=without(state.hosts, worker),
        expected=state.expected - {worker},
        leaving=state.leaving - {worker},
        suspects=without(state.suspects, worker),
    )


def departures(state: State, worker: int, how: str) -> tuple[Departure, ...]:
    """Return the losses of the world, and this worker among them if it is a member."""
    if worker not in state.members or worker in state.done or any(each.worker == worker for each in state.lost):
        return state.lost
    return (*state.lost, Departure(state.members.index(worker), worker, how))


def without_join(state: State, worker: int) -> State:
    return changed(state, waiting=tuple(joined for joined in state.waiting if joined.worker != worker))


def without(by_worker: dict[int, T], worker: int) -> dict[int, T]:
    return {each: text for each, text in by_worker.items() if each != worker}


def changed(state: State, **changes: object) -> State:
    return msgspec.structs.replace(state, **changes)


def free_device_number(state: State, worker: int) -> int:
    """Return the first device number that no other living worker of a worker's host has.

    A program chooses its device once. So no two living workers of a host have the same number, whatever local ranks
    they have in their worlds.
    """
    host = state.hosts.get(worker, "")
    taken = {number for other, (where, number) in state.device_numbers.items() if where == host and other != worker}
    return next(number for number in range(len(taken) + 1) if number not in taken)


def without_connections(state: State) -> State:
    """Return what is left of a state when all connections are gone: nobody waits, nobody was told, no clock runs.

    That is what the next roster needs when the process of this one is killed. Workers connect to that one by
    themselves, and repeat the requests that have no answer.
    """
    return changed(state, waiting=(), notified=(0, 0), hold=Hold(""))


def names(state: State, workers: Iterable[int]) -> str:
    return ", ".join(state.name(worker) for worker in sorted(workers))
