"""Who is in the world: a pure function, and the plain data it works on.

The world has a fixed size. Every worker that joins waits until all have joined; then the next generation is announced
to all of them. A worker whose process has exited is *gone* for good, and from then on nobody can be waited for.

Where the ranks run is given, by a launcher that planned it, or found out: each worker says on what host it is.
"""

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


class State(msgspec.Struct, frozen=True):
    """All that the roster knows. Workers are numbered as their first ranks."""

    places: tuple[Place | None, ...]
    """By rank: all of them given, or none."""
    generation: int = 0
    """Of the latest world; 0 before the first, which is 1."""
    members: frozenset[int] = frozenset()
    """Who is in that world and has not left it."""
    waiting: tuple[Joined, ...] = ()
    """Every join that has no answer yet, in the order they came."""
    gone: tuple[tuple[int, str], ...] = ()
    """Worker, and how it ended, of every process that has exited; first first."""

    @property
    def size(self) -> int:
        """Workers in a complete world."""
        return len(self.places)


# --- events ------------------------------------------------------------------------------------------------------


class Joined(msgspec.Struct, frozen=True):
    """A worker asks for a place in the next world."""

    worker: int
    contact: str
    host: str = ""
    """Equal for two workers if they are on the same host. Read only where places are not given, as the next one."""
    hostname: str = ""
    """What people call that host."""


class Left(msgspec.Struct, frozen=True):
    """A worker has left a world in good order."""

    worker: int
    generation: int


class Lost(msgspec.Struct, frozen=True):
    """The connection on which a worker waited closed. Its process may live, and may come back."""

    worker: int


class Failed(msgspec.Struct, frozen=True):
    """A worker says that it is about to end with an error."""

    worker: int
    exception: str


class Finished(msgspec.Struct, frozen=True):
    """A worker's process has ended."""

    worker: int
    how: str
    """Such as `exited with code 1`."""


class TimedOut(msgspec.Struct, frozen=True):
    """A join has waited for as long as it wanted to."""

    worker: int
    seconds: float


Event = Joined | Left | Lost | Failed | Finished | TimedOut


# --- actions -----------------------------------------------------------------------------------------------------


class Announce(msgspec.Struct, frozen=True):
    """Tell every worker in `contacts` its place in the new world. Both are by rank."""

    generation: int
    contacts: tuple[str, ...]
    places: tuple[Place, ...]


class Refuse(msgspec.Struct, frozen=True):
    """Answer a worker's join with an error."""

    worker: int
    reason: str
    rank: int | None = None
    """The rank that is to blame."""


Action = Announce | Refuse
Decision = tuple[State, tuple[Action, ...], str]


def decide(state: State, event: Event) -> Decision:
    """Return the next state, what to do, and the one line that says why.

    Example:
        >>> alone = State(places=(Place("here", 0, 1, 0, 1),))
        >>> state, actions, reason = decide(alone, Joined(0, "unix:a"))
        >>> actions[0].generation, actions[0].contacts
        (1, ('unix:a',))
        >>> reason
        'rank 0 joined; all 1 are here: generation 1 begins'
    """
    if isinstance(event, Joined):
        return _joined(state, event)
    if isinstance(event, Left):
        return _left(state, event)
    if isinstance(event, Lost):
        return _lost(state, event)
    if isinstance(event, Failed):
        return state, (), f"rank {event.worker} reports that it failed: {event.exception}"
    if isinstance(event, Finished):
        return _finished(state, event)
    return _timed_out(state, event)


def _joined(state: State, event: Joined) -> Decision:
    worker = event.worker
    if not 0 <= worker < state.size:
        why = f"worker {worker} is not one of the {state.size} workers of this job: is its FARANDOLE_RANK wrong?"
        return state, (Refuse(worker, why),), why
    assert all(waiting.worker != worker for waiting in state.waiting), (
        "the service takes one join of a worker at a time"
    )
    if state.gone:
        rank, how = state.gone[0]
        why = _cannot_complete(rank, how)
        return state, (Refuse(worker, why, rank),), f"rank {worker} joined, but {why}"
    waiting = (*state.waiting, event)
    if len(waiting) < state.size:
        # Whoever joins has turned its back on the old world, whether it said so or not.
        next_state = msgspec.structs.replace(state, waiting=waiting, members=state.members - {worker})
        return next_state, (), f"rank {worker} joined; {len(waiting)} of {state.size} are here"
    generation = state.generation + 1
    by_rank = sorted(waiting, key=lambda joined: joined.worker)
    contacts = tuple(joined.contact for joined in by_rank)
    places = tuple(place for place in state.places if place is not None) or find_places(by_rank)
    next_state = msgspec.structs.replace(state, generation=generation, members=frozenset(range(state.size)), waiting=())
    why = f"rank {worker} joined; all {state.size} are here: generation {generation} begins"
    return next_state, (Announce(generation, contacts, places),), why


def _left(state: State, event: Left) -> Decision:
    if event.generation != state.generation or event.worker not in state.members:
        return state, (), f"rank {event.worker} left generation {event.generation}, which is over for it"
    next_state = msgspec.structs.replace(state, members=state.members - {event.worker})
    return next_state, (), f"rank {event.worker} left generation {event.generation}"


def _lost(state: State, event: Lost) -> Decision:
    waiting = tuple(joined for joined in state.waiting if joined.worker != event.worker)
    next_state = msgspec.structs.replace(state, waiting=waiting)
    return next_state, (), f"rank {event.worker} closed its connection and waits no more"


def _finished(state: State, event: Finished) -> Decision:
    why = _cannot_complete(event.worker, event.how)
    others = [joined.worker for joined in state.waiting if joined.worker != event.worker]
    next_state = msgspec.structs.replace(
        state,
        waiting=(),
        members=state.members - {event.worker},
        gone=(*state.gone, (event.worker, event.how)),
    )
    refusals = tuple(Refuse(worker, why, event.worker) for worker in others)
    reason = f"rank {event.worker} {event.how}"
    return next_state, refusals, f"{reason}; {ranks(others)} waited for it" if others else reason


def _timed_out(state: State, event: TimedOut) -> Decision:
    here = [joined.worker for joined in state.waiting]
    if event.worker not in here:
        return state, (), f"rank {event.worker} needed no more time"
    missing = [rank for rank in range(state.size) if rank not in here]
    why = (
        f"{len(missing)} of {state.size} workers did not join within {event.seconds:g} s: {ranks(missing)}. See what "
        "they printed last: do they call init(), or do they need longer to start? --start-timeout (or "
        "FARANDOLE_START_TIMEOUT) gives more time."
    )
    # All at once: the first to give up would leave a world that the others can only wait for in vain.
    return msgspec.structs.replace(state, waiting=()), tuple(Refuse(worker, why) for worker in here), why


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
    """Number those that have come before: two containers may have one name, and are two hosts all the same."""
    return [
        f"{name} ({names[: index + 1].count(name)})" if name in names[:index] else name
        for index, name in enumerate(names)
    ]


def _cannot_complete(rank: int, how: str) -> str:
    return f"the world of workers cannot be completed: rank {rank} {how} before it joined"


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
