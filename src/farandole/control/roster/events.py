"""Events and actions of membership: what happens to workers, and what is to be done about it; and where workers run."""

from __future__ import annotations

from collections.abc import Iterable, Sequence

import msgspec


class Place(msgspec.Struct, frozen=True):
    """Where a rank runs, and the field's usual numbers for it."""

    hostname: str
    local_rank: int
    local_size: int
    cross_rank: int
    cross_size: int


class Accusation(msgspec.Struct, frozen=True):
    """A worker's report that it has lost another one of its world."""

    rank: int
    how: str
    """Such as `closed its connections`."""
    certain: bool
    """Whether that is the end of its process; otherwise it is only not heard of."""
    forming: bool = False
    """Whether the two could not be connected at all."""
    left: bool = False
    """Whether it has left their world in good order."""


# --- events ------------------------------------------------------------------------------------------------------


class Joined(msgspec.Struct, frozen=True):
    """A worker asks for a place in the next world, and will do nothing more in the one it was in."""

    worker: int
    contact: str
    host: str = ""
    """Equal for two workers if they are on the same host. Read only where places are not given, as the next one."""
    hostname: str = ""
    """What people call that host."""
    generation: int = 0
    """Of the world that it was in, or that it could not form; 0: none."""
    trained: bool = False
    """Whether it holds the job's state, so that others may get it from there."""
    accused: tuple[Accusation, ...] = ()
    """The workers that it lost in that world."""
    arriving: bool = False
    """Whether it only wants to know what the world is like, if there is one already."""
    open: bool = True
    """Whether newcomers may come into the next world: a member that is in the middle of a step says no."""
    timeout: float = 0.0
    """Seconds that it waits after the latest arrival. Only of jobs of a fixed size: an elastic one has `Limits`."""


class Left(msgspec.Struct, frozen=True):
    """A worker has left a world in good order."""

    worker: int
    generation: int


class HoldsState(msgspec.Struct, frozen=True):
    """A worker holds the job's state."""

    worker: int
    training: int = 0
    """Of which of the script's trainings, from 1 on; 0: trainings are not counted."""


class Lost(msgspec.Struct, frozen=True):
    """The connection on which a worker waited closed. Its process may live, and may come back."""

    worker: int


class Failed(msgspec.Struct, frozen=True):
    """A worker reports that it is about to end with an error."""

    worker: int
    exception: str


class Finished(msgspec.Struct, frozen=True):
    """A worker's process has ended."""

    worker: int
    how: str
    """Such as `exited with code 1`."""
    failed: bool = False
    """It ended otherwise than with exit code 0. Only of elastic jobs."""


class Expected(msgspec.Struct, frozen=True):
    """A worker is about to be started, or has been. Only of elastic jobs, as all that follow."""

    worker: int
    host: str
    """What people call the host."""


class Suspected(msgspec.Struct, frozen=True):
    """Workers are not heard of: stopped, or on a host that is. They may live."""

    workers: tuple[int, ...]
    how: str


class EndOverdue(msgspec.Struct, frozen=True):
    """A worker has reported its failure, and its process has not ended in the time that it had for that."""

    worker: int


class Leaves(msgspec.Struct, frozen=True):
    """A worker is about to leave at the end of a step, such as after SIGTERM."""

    worker: int
    why: str


class Drained(msgspec.Struct, frozen=True):
    """Workers are to leave at the end of a step."""

    workers: tuple[int, ...]
    why: str


class Evicted(msgspec.Struct, frozen=True):
    """A worker is to be excluded from the job now, whatever it does."""

    worker: int
    why: str


class Resized(msgspec.Struct, frozen=True):
    """The job may be of another size from now on."""

    min_size: int
    max_size: int
    """`ANY_SIZE`: as many as there are slots."""


class Promised(msgspec.Struct, frozen=True):
    """Whether workers will be started soon: there are free slots for them, or hosts that are being reached."""

    coming: bool


class HoldOver(msgspec.Struct, frozen=True):
    """The roster has waited for as long as it wanted to."""

    kind: str
    """Of the `Hold`."""


Event = (
    Joined
    | Left
    | HoldsState
    | Lost
    | Failed
    | Finished
    | Expected
    | Suspected
    | EndOverdue
    | Leaves
    | Drained
    | Evicted
    | Resized
    | Promised
    | HoldOver
)


# --- actions -----------------------------------------------------------------------------------------------------


class Departure(msgspec.Struct, frozen=True):
    """How a world lost one of its workers."""

    rank: int
    worker: int
    how: str


class Announce(msgspec.Struct, frozen=True):
    """Tell every worker of the new world its place in it. All is by rank."""

    generation: int
    contacts: tuple[str, ...]
    places: tuple[Place, ...]
    workers: tuple[int, ...] = ()
    """Empty: they are numbered as their ranks."""
    previous: tuple[int, ...] = ()
    """The rank that each had in the world before, or -1: it was not in it, or does not hold the job's state."""
    lost: tuple[Departure, ...] = ()
    """The workers that were in the world before, and are not in this one."""
    finished: tuple[Departure, ...] = ()
    """The workers that are not in this one because they have left the world before in good order."""


class Refuse(msgspec.Struct, frozen=True):
    """Answer a worker's join with an error."""

    worker: int
    reason: str
    rank: int | None = None
    """The rank that is to blame."""
    evicted: bool = False
    """Whether the job goes on without this worker."""


class Notify(msgspec.Struct, frozen=True):
    """Tell the members of the world that it is to change; they turn to that at the end of a step."""

    workers: tuple[int, ...]
    generation: int
    added: int
    """Newcomers that wait."""
    removed: int
    """Members that are to leave."""
    reason: str


class Show(msgspec.Struct, frozen=True):
    """Answer a worker that arrives with what the world is like."""

    worker: int
    device_number: int
    """The number of the worker on its host, by which its program chooses a device."""


class Revoke(msgspec.Struct, frozen=True):
    """Tell the members of the world that one of them is lost: they may not have noticed."""

    workers: tuple[int, ...]
    generation: int
    rank: int
    how: str
    certain: bool
    """Whether its process has ended; what is only suspected must not come back from them as certain."""


class Evict(msgspec.Struct, frozen=True):
    """End this worker, which may live and is excluded from the job."""

    worker: int
    why: str


class Hold(msgspec.Struct, frozen=True):
    """Tell the launcher what the job waits for, and raise `HoldOver` when that takes too long."""

    kind: str
    """One of `next_world`'s, such as "minimum"; "": it waits no more."""
    reason: str = ""
    seconds: float = 0.0
    arrivals: int = 0
    """A number that changes with every worker that comes. The time begins anew when it does."""


class End(msgspec.Struct, frozen=True):
    """There will be no other world: end the job."""

    reason: str


Action = Announce | Refuse | Show | Notify | Revoke | Evict | Hold | End


def find_places(workers: Sequence[Joined]) -> tuple[Place, ...]:
    """Return where each of the workers of a complete world runs, from what they said when they joined.

    Args:
        workers: by rank.

    Example:
        >>> joins = [Joined(0, "", "x1", "earth"), Joined(1, "", "x2", "mars"), Joined(2, "", "x1", "earth")]
        >>> find_places(joins)[2]
        Place(hostname='earth', local_rank=1, local_size=2, cross_rank=0, cross_size=1)
    """
    hosts: dict[str, list[Joined]] = {}
    for joined in workers:
        hosts.setdefault(joined.host, []).append(joined)
    names = _distinct_names([members[0].hostname for members in hosts.values()])
    places = {}
    for number, members in enumerate(hosts.values()):
        for local_rank, joined in enumerate(members):
            # The hosts that have a worker of this local rank.
            across = [index for index, others in enumerate(hosts.values()) if len(others) > local_rank]
            places[joined.worker] = Place(names[number], local_rank, len(members), across.index(number), len(across))
    return tuple(places[joined.worker] for joined in workers)


def _distinct_names(names: Sequence[str]) -> list[str]:
    """Number names that occur again: two containers may have one name, and are two hosts all the same."""
    return [
        f"{name} ({names[: index + 1].count(name)})" if name in names[:index] else name
        for index, name in enumerate(names)
    ]


def ranks(numbers: Iterable[int]) -> str:
    """Write ranks for people.

    Example:
        >>> ranks([3, 0, 1, 2, 7])
        'ranks 0-3, 7'
        >>> ranks([5])
        'rank 5'
    """
    ordered = sorted(numbers)
    runs: list[tuple[int, int]] = []
    for number in ordered:
        if runs and runs[-1][1] == number - 1:
            runs[-1] = (runs[-1][0], number)
        else:
            runs.append((number, number))
    text = ", ".join(str(a) if a == b else f"{a}-{b}" for a, b in runs)
    return f"{'rank' if len(ordered) == 1 else 'ranks'} {text}"
