"""The state of an elastic job's roster, and functions that change it."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from functools import cached_property
from itertools import filterfalse
from typing import TypeVar

import msgspec

from farandole.base.wire.rendezvous import Accused
from farandole.control.roster.events import Action, Departure, Evict, Hold, Joined, Refuse, ranks, spans

MAJORITY_SECONDS = 30.0
T = TypeVar("T")
ANY_SIZE = 1 << 16
"""Number of workers in the largest possible world: the limit of a job without an upper limit."""
MOST_NAMES = 8
"""Maximum number of workers that a message names one by one."""


class Limits(msgspec.Struct, frozen=True):
    """The sizes that an elastic job may have, and its timeouts."""

    min_size: int
    max_size: int
    """`ANY_SIZE`: as many workers as there are slots."""
    start_timeout: float = 30.0
    """Seconds to wait, after the latest arrival, for workers that were started and have not joined, if the world could
    begin without them or is the first one."""
    timeout: float = 600.0
    """Seconds to wait for the members of a world, for `min_size` workers, and for the exit of a worker that failed."""
    majority_timeout: float = MAJORITY_SECONDS
    """Seconds that the smaller part of a partitioned world waits for the larger one."""
    reset_limit: int | None = None
    """Number of worlds allowed after the first one; None: no limit."""

    @property
    def in_words(self) -> str:
        """The range of sizes, for people."""
        most = "any number of" if self.max_size == ANY_SIZE else self.max_size
        return f"from {self.min_size} to {most} workers"


class ElasticState(msgspec.Struct, frozen=True, tag="elastic", dict=True):
    """The state of an elastic job's roster. Workers have numbers of their own, which are never reused."""

    limits: Limits
    generation: int = 0
    """Number of the latest world; 0: there was none. The first is 1."""
    members: tuple[int, ...] = ()
    """Workers of the latest world, by rank."""
    waiting: dict[int, Joined] = {}
    """The unanswered join of each waiting worker, in the order of their arrival."""
    expected: frozenset[int] = frozenset()
    """Workers that were started, and have neither joined nor ended."""
    promised: bool = False
    """Whether more workers will be started soon."""
    hosts: dict[int, str] = {}
    """The roll: the host's name for each worker that may join."""
    gone: frozenset[int] = frozenset()
    """Members that will certainly do nothing more in any world: their process has ended, they reported a failure, or
    their join was refused."""
    done: frozenset[int] = frozenset()
    """Members that have left their world gracefully."""
    exiting: frozenset[int] = frozenset()
    """Workers that have left this or an earlier world gracefully, and whose process has not ended. It is not known yet
    whether they have finished, or called `sys.exit(1)` in the middle of their work."""
    finished: bool = False
    """Whether a worker's process ended with exit code 0 after it left gracefully, or before there was any world."""
    suspects: dict[int, str] = {}
    """Silent members, each with a description of how its silence was noticed."""
    stopped: dict[int, str] = {}
    """Workers on the roll whose process is stopped, each with a description of it, until they run again."""
    barred: frozenset[int] = frozenset()
    """Members that were excluded while their process may still run."""
    holders: frozenset[int] = frozenset()
    """Members that held the job's state when their world began."""
    leaving: frozenset[int] = frozenset()
    """Members that are to leave at the end of a step."""
    lost: tuple[Departure, ...] = ()
    """Members that the latest world has lost, the first one first."""
    notified: tuple[int, int] = (0, 0)
    """The latest notice to the members: numbers of waiting newcomers and of members that are to leave."""
    device_numbers: dict[int, tuple[str, int]] = {}
    """Host and first assigned device number of each worker whose process has not ended."""
    state_held: bool = False
    """Whether any worker has held the job's state."""
    training: int = 0
    """Number of the script's latest training whose state a worker has held; 0: trainings are not counted."""
    hold: Hold = Hold("")
    """The reason why the job waits."""
    ended: str = ""
    """Why there will be no other world; "": the job has not ended."""

    @cached_property
    def ranks(self) -> dict[int, int]:
        """The rank of each member. `changed` passes it on, so it is made once for each world."""
        return {worker: rank for rank, worker in enumerate(self.members)}

    @cached_property
    def lost_workers(self) -> frozenset[int]:
        """The workers in `lost`."""
        return frozenset(each.worker for each in self.lost)

    @property
    def finishing(self) -> bool:
        """Whether workers have left gracefully, as far as is known: the job is about to end."""
        return self.finished or bool(self.exiting)

    def active(self) -> list[int]:
        """Return the members that may be in the next world, by rank."""
        out = self.gone | self.done | self.barred
        return [each for each in self.members if each not in out]

    def is_active(self, worker: int) -> bool:
        """Return whether a worker is a member that may be in the next world."""
        out = worker in self.gone or worker in self.done or worker in self.barred
        return not out and worker in self.ranks

    @property
    def has_active(self) -> bool:
        """Whether any member may be in the next world."""
        # The second condition alone would suffice; the first one is quick.
        if len(self.members) > len(self.gone) + len(self.done) + len(self.barred):
            return True
        return not (self.gone | self.done | self.barred).issuperset(self.members)

    @property
    def abandoned(self) -> bool:
        """Whether a member of the latest world is lost, or has joined again: there will be another world."""
        return bool(self.lost) or any(map(self.is_active, self.waiting))

    def newcomers(self) -> list[int]:
        """Return the waiting workers that are not in the latest world, the lowest number first.

        A worker starts with its number as its rank (HOROVOD_RANK). So of two newcomers, the lower number gets the lower
        rank, in whatever order they join. Survivors keep their order from then on.
        """
        return sorted(set(self.waiting).difference(self.ranks))

    def doubtful(self) -> list[int]:
        """Return the waiting workers that are stopped, but may have continued: their joins were read after the report.

        Such a join is older than the stop, or the worker runs again, and the report of that follows.
        """
        return [each for each in self.stopped if each in self.waiting and each not in self.suspects]

    def name(self, worker: int) -> str:
        """Return a description of a worker for people."""
        where = f" on {self.hosts[worker]}" if worker in self.hosts else ""
        rank = self.ranks.get(worker)
        return f"worker {worker}{where}" if rank is None else f"rank {rank} (worker {worker}{where})"


Outcome = tuple[ElasticState, list[Action], str]


# --- changes to single workers --------------------------------------------------------------------------------------


def missing(state: ElasticState) -> list[int]:
    """Return the members that have not joined again and are not suspects, by rank."""
    absent = filterfalse(state.waiting.__contains__, state.members)
    return [worker for worker in absent if state.is_active(worker) and worker not in state.suspects]


def missing_at_least(state: ElasticState) -> int:
    """Return a number of members that are certainly `missing`, in a time that does not grow with their number.

    It is their exact number unless other workers than members wait, or a worker is in several of these collections.
    """
    out = len(state.gone) + len(state.done) + len(state.barred)
    return len(state.members) - out - len(state.suspects) - len(state.waiting)


def accusations(state: ElasticState, event: Joined) -> Iterator[tuple[int, Accused]]:
    """Yield the other members of the latest world whose loss a member reports, each with the report.

    Reports about older worlds are left out.
    """
    if event.generation != state.generation or event.worker not in state.ranks:
        return
    for accusation in event.accused:
        if 0 <= accusation.rank < len(state.members):
            worker = state.members[accusation.rank]
            if worker != event.worker:
                yield worker, accusation


def exclude(state: ElasticState, worker: int, why: str) -> tuple[ElasticState, list[Action]]:
    """Exclude a worker from the job for good, although its process may still run."""
    lost = departures(state, worker, why)
    fenced = worker in state.waiting or worker not in state.ranks
    state, actions = dismiss(state, worker, f"it was excluded: {why}")
    state = changed(state, lost=lost, barred=state.barred if fenced else state.barred | {worker})
    return state, [*actions, Evict(worker, why)]


def dismiss(state: ElasticState, worker: int, why: str) -> tuple[ElasticState, list[Action]]:
    """Keep a worker out of all later worlds, and refuse its join if it waits."""
    if worker not in state.waiting:
        return remove_from_roll(state, worker), []
    return changed(remove_from_roll(state, worker), gone=with_gone(state, worker)), [Refuse(worker, why, evicted=True)]


def remove_from_roll(state: ElasticState, *workers: int) -> ElasticState:
    """Remove workers from the roll, and everything that is known about them as candidates."""
    return changed(
        state,
        waiting=without(state.waiting, *workers),
        hosts=without(state.hosts, *workers),
        expected=state.expected.difference(workers),
        leaving=state.leaving.difference(workers),
        suspects=without(state.suspects, *workers),
        stopped=without(state.stopped, *workers),
    )


def continued(state: ElasticState, worker: int) -> ElasticState:
    """Drop the suspicion of a stopped worker, and the loss that followed from it.

    If no other member has abandoned the world for it, which a world of one worker shows, the world goes on.
    """
    return changed(
        state,
        stopped=without(state.stopped, worker),
        suspects=without(state.suspects, worker),
        lost=tuple(departure for departure in state.lost if departure.worker != worker),
    )


def with_gone(state: ElasticState, worker: int) -> frozenset[int]:
    """Return the members that are gone, with a worker added to them if it is a member."""
    return state.gone | {worker} if worker in state.ranks else state.gone


def departures(state: ElasticState, worker: int, how: str) -> tuple[Departure, ...]:
    """Return the losses of the world, with a worker added to them if it is a member."""
    if worker not in state.ranks or worker in state.done or worker in state.lost_workers:
        return state.lost
    return (*state.lost, Departure(state.ranks[worker], worker, how))


def without_join(state: ElasticState, worker: int) -> ElasticState:
    return changed(state, waiting=without(state.waiting, worker)) if worker in state.waiting else state


def without(by_worker: dict[int, T], *workers: int) -> dict[int, T]:
    removed = [worker for worker in workers if worker in by_worker]
    if not removed:
        return by_worker
    rest = by_worker.copy()
    for worker in removed:
        del rest[worker]
    return rest


def changed(state: ElasticState, **changes: object) -> ElasticState:
    result = msgspec.structs.replace(state, **changes)
    if "members" not in changes:
        result.__dict__["ranks"] = state.ranks
    return result


def free_device_number(state: ElasticState, worker: int) -> int:
    """Return the lowest device number that no other live worker on a worker's host has.

    A program chooses its device once. So no two live workers of a host have the same number, whatever their local ranks
    are.
    """
    host = state.hosts.get(worker, "")
    taken = {number for other, (where, number) in state.device_numbers.items() if where == host and other != worker}
    return next(number for number in range(len(taken) + 1) if number not in taken)


def without_connections(state: ElasticState) -> ElasticState:
    """Return a state without everything that is tied to connections: joins, notices, stopped processes and the hold.

    If the roster's process is killed, its successor begins with this state. Workers reconnect by themselves, and repeat
    their unanswered requests. Agents report again which processes are stopped.
    """
    for worker in state.stopped:
        state = continued(state, worker)
    return changed(state, waiting={}, notified=(0, 0), hold=Hold(""))


def names(state: ElasticState, workers: Iterable[int]) -> str:
    """Return a description of workers for people, in the order of their numbers; of many, their number and ranks.

    Example:
        >>> state = ElasticState(Limits(1, 99), members=tuple(range(100, 120)), hosts={120: "earth"})
        >>> names(state, [119, 120])
        'rank 19 (worker 119), worker 120 on earth'
        >>> names(state, [*range(100, 110), 119, 120, 121])
        '13 workers (ranks 0-9, 19; new workers 120-121)'
    """
    ordered = sorted(workers)
    if len(ordered) <= MOST_NAMES:
        return ", ".join(state.name(worker) for worker in ordered)
    members = [state.ranks[worker] for worker in ordered if worker in state.ranks]
    others = [worker for worker in ordered if worker not in state.ranks]
    groups = [ranks(members)] if members else []
    if others:
        groups.append(f"{'new ' if state.members else ''}workers {spans(others)}")
    return f"{len(ordered)} workers ({'; '.join(groups)})"
