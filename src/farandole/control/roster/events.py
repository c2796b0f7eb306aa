"""Events and actions of membership, and the places where workers run.

A large job has thousands of places and joins. They are immutable, so they are in no reference cycle, and the garbage
collector need not look at them (`gc=False`).
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Sequence

import msgspec

from farandole.base.wire.rendezvous import Accused


class Place(msgspec.Struct, frozen=True, gc=False):
    """The host of a rank, and its local and cross ranks and sizes."""

    hostname: str
    local_rank: int
    """Rank among the workers of its host."""
    local_size: int
    cross_rank: int
    """Rank among the workers with the same local rank on all hosts."""
    cross_size: int


# --- events ------------------------------------------------------------------------------------------------------


class Joined(msgspec.Struct, frozen=True, gc=False):
    """A worker asks to join the next world, and will do nothing more in its present one."""

    worker: int
    contact: str
    host: str = ""
    """Identifier of its host, equal for workers of one host. Used, like `hostname`, only if places are not planned."""
    hostname: str = ""
    """The host's name for people."""
    generation: int = 0
    """Number of the world that it was in or could not form; 0: none."""
    trained: bool = False
    """Whether it holds the job's state, so that others may get it from this worker."""
    accused: tuple[Accused, ...] = ()
    """The members that it lost in that world."""
    arriving: bool = False
    """Whether it only asks for a preview of the world, if there is one already."""
    open: bool = True
    """Whether newcomers may be in the next world; false in the middle of a step."""
    timeout: float = 0.0
    """Seconds that it waits after the latest arrival, in a job of fixed size. An elastic job has `Limits`."""


class JoinedTogether(msgspec.Struct, frozen=True):
    """Several workers ask to join the next world. The roster makes one decision for all of them."""

    joins: tuple[Joined, ...]
    """The workers that join, in the order of their arrival."""


class Left(msgspec.Struct, frozen=True):
    """A worker has left a world gracefully."""

    worker: int
    generation: int


class LeftTogether(msgspec.Struct, frozen=True):
    """Several workers have left a world gracefully. The roster makes one decision for all of them."""

    goodbyes: tuple[Left, ...]


class HoldsState(msgspec.Struct, frozen=True):
    """A worker holds the job's state."""

    worker: int
    training: int = 0
    """Number of the script's training, from 1; 0: trainings are not counted."""


class Lost(msgspec.Struct, frozen=True):
    """The connection of a waiting worker closed. Its process may still run, and may reconnect."""

    worker: int


class Failed(msgspec.Struct, frozen=True):
    """A worker reports that it is about to end with an error."""

    worker: int
    exception: str


class Finished(msgspec.Struct, frozen=True):
    """A worker's process has ended."""

    worker: int
    how: str
    """How it ended, such as `exited with code 1`."""
    failed: bool = False
    """Whether its exit code was not 0. Set only in elastic jobs."""


class FinishedTogether(msgspec.Struct, frozen=True):
    """The processes of several workers have ended. The roster makes one decision for all of them."""

    ends: tuple[Finished, ...]


class Expected(msgspec.Struct, frozen=True):
    """A worker is about to be started, or has been. This and all following events occur only in elastic jobs."""

    worker: int
    host: str
    """The host's name for people."""


class Suspected(msgspec.Struct, frozen=True):
    """Workers are silent: they are stopped, or their host does not respond. They may be alive."""

    workers: tuple[int, ...]
    how: str
    stopped: bool = False
    """Whether their processes are stopped. In that case `Continued` follows if they run again."""


class Continued(msgspec.Struct, frozen=True):
    """A worker whose process was stopped runs again."""

    worker: int


class EndOverdue(msgspec.Struct, frozen=True):
    """A worker has reported a failure, and its process has not ended by its deadline."""

    worker: int


class Leaves(msgspec.Struct, frozen=True):
    """A worker will leave at the end of its step, for example because it got SIGTERM."""

    worker: int
    why: str


class Drained(msgspec.Struct, frozen=True):
    """Workers are to leave at the end of a step."""

    workers: tuple[int, ...]
    why: str


class Evicted(msgspec.Struct, frozen=True):
    """A worker is to be excluded from the job immediately."""

    worker: int
    why: str


class Resized(msgspec.Struct, frozen=True):
    """The limits of the job's size have changed."""

    min_size: int
    max_size: int
    """`ANY_SIZE`: as many workers as there are slots."""


class Promised(msgspec.Struct, frozen=True):
    """The launcher will, or will not, start workers soon."""

    coming: bool
    """Whether there are free slots for workers, or hosts that are being contacted."""


class HoldOver(msgspec.Struct, frozen=True):
    """The time of a hold is over."""

    kind: str
    """Kind of the `Hold`."""


Event = (
    Joined
    | JoinedTogether
    | Left
    | LeftTogether
    | HoldsState
    | Lost
    | Failed
    | Finished
    | FinishedTogether
    | Expected
    | Suspected
    | Continued
    | EndOverdue
    | Leaves
    | Drained
    | Evicted
    | Resized
    | Promised
    | HoldOver
)


# --- actions -----------------------------------------------------------------------------------------------------


HAS_FINISHED = "has finished"
HAS_LEFT = "has left"
"""Said of a worker that has left gracefully, whose process has not ended: its exit code will show if it has
finished."""


class Departure(msgspec.Struct, frozen=True):
    """The loss of a member of a world."""

    rank: int
    worker: int
    how: str
    """How it was lost, such as `exited with code 1`."""


class Announce(msgspec.Struct, frozen=True):
    """Announce a new world to all its members. Sequences are indexed by rank."""

    generation: int
    contacts: tuple[str, ...]
    places: tuple[Place, ...]
    workers: tuple[int, ...] = ()
    """Worker numbers; empty: equal to the ranks."""
    previous: tuple[int, ...] = ()
    """Each member's rank in the previous world; -1: it was not a member, or does not hold the job's state."""
    lost: tuple[Departure, ...] = ()
    """Members of the previous world that were lost."""
    finished: tuple[Departure, ...] = ()
    """Members of the previous world that left it gracefully."""


class Refuse(msgspec.Struct, frozen=True):
    """Answer a worker's join with an error."""

    worker: int
    reason: str
    rank: int | None = None
    """The rank that caused the refusal."""
    evicted: bool = False
    """Whether the job continues without this worker."""


class Notify(msgspec.Struct, frozen=True):
    """Notify the members of a world that it is to change at the end of a step."""

    workers: tuple[int, ...]
    generation: int
    added: int
    """Number of newcomers that wait."""
    removed: int
    """Number of members that are to leave."""
    reason: str


class Show(msgspec.Struct, frozen=True):
    """Answer an arriving worker with a preview of the world."""

    worker: int
    device_number: int
    """Device number of the worker on its host, by which its program chooses a device."""


class Revoke(msgspec.Struct, frozen=True):
    """Notify the members of a world that one of them is lost, which they may not have noticed."""

    workers: tuple[int, ...]
    generation: int
    rank: int
    how: str
    certain: bool
    """Whether its process has ended: members must not report a mere suspicion back as a certain loss."""


class Evict(msgspec.Struct, frozen=True):
    """Kill a worker that is excluded from the job and may still run."""

    worker: int
    why: str


class Hold(msgspec.Struct, frozen=True):
    """Report what the job waits for, and start a timer. When the time is over, `HoldOver` happens."""

    kind: str
    """One of the kinds of `next_world`, such as "minimum"; "": the job waits for nothing."""
    reason: str = ""
    seconds: float = 0.0
    arrivals: int = 0
    """A number that changes with every arrival of a worker. The time restarts when it changes."""


class End(msgspec.Struct, frozen=True):
    """End the job: there will be no other world."""

    reason: str


Action = Announce | Refuse | Show | Notify | Revoke | Evict | Hold | End


def find_places(hosts: Sequence[tuple[str, str]]) -> tuple[Place, ...]:
    """Return the place of each worker of a complete world.

    Args:
        hosts: the host of each worker, by rank: its identifier, equal for workers that share it, and its name.

    Returns:
        Places by rank.

    Example:
        >>> find_places([("x1", "earth"), ("x2", "mars"), ("x1", "earth")])[2]
        Place(hostname='earth', local_rank=1, local_size=2, cross_rank=0, cross_size=1)
    """
    ranks_on: dict[str, list[int]] = {}
    for rank, (host, _) in enumerate(hosts):
        ranks_on.setdefault(host, []).append(rank)
    names = _distinct_names([hosts[there[0]][1] for there in ranks_on.values()])
    # The number of hosts that have a worker of each local rank.
    across = Counter(local_rank for there in ranks_on.values() for local_rank in range(len(there)))
    before: Counter[int] = Counter()
    places: dict[int, Place] = {}
    for name, there in zip(names, ranks_on.values(), strict=True):
        for local_rank, rank in enumerate(there):
            places[rank] = Place(name, local_rank, len(there), before[local_rank], across[local_rank])
            before[local_rank] += 1
    return tuple(places[rank] for rank in range(len(hosts)))


def _distinct_names(names: Sequence[str]) -> list[str]:
    """Number repeated names: two hosts, such as containers, may have the same name."""
    seen: Counter[str] = Counter()
    distinct = []
    for name in names:
        seen[name] += 1
        distinct.append(name if seen[name] == 1 else f"{name} ({seen[name]})")
    return distinct


def workers_by_how(ends: Iterable[Finished]) -> dict[str, list[int]]:
    """Return the workers whose processes have ended, by how they ended."""
    workers: dict[str, list[int]] = {}
    for each in ends:
        workers.setdefault(each.how, []).append(each.worker)
    return workers


def ranks(numbers: Iterable[int]) -> str:
    """Return ranks as text for people.

    Example:
        >>> ranks([3, 0, 1, 2, 7])
        'ranks 0-3, 7'
        >>> ranks([5])
        'rank 5'
    """
    ordered = sorted(numbers)
    return f"{'rank' if len(ordered) == 1 else 'ranks'} {spans(ordered)}"


def spans(ordered: Sequence[int]) -> str:
    """Return ascending numbers as text for people, with consecutive ones as a range.

    Example:
        >>> spans([0, 1, 2, 7])
        '0-2, 7'
    """
    runs: list[tuple[int, int]] = []
    for number in ordered:
        if runs and runs[-1][1] == number - 1:
            runs[-1] = (runs[-1][0], number)
        else:
            runs.append((number, number))
    return ", ".join(str(a) if a == b else f"{a}-{b}" for a, b in runs)
