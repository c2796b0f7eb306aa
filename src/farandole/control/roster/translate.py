"""Between the messages of `wire.rendezvous` and the events and actions of the roster."""

from __future__ import annotations

import msgspec

from farandole.base.wire.rendezvous import Changed, Coming, Failure, Holds, Join, Leave, Leaving, Revoked, World
from farandole.control.roster.events import Accusation, Announce, Event, Failed, HoldsState, Joined, Leaves, Left, Show
from farandole.control.roster.membership import State


def event_of(worker: int, message: Join | Leave | Leaving | Failure | Holds) -> Event:
    """Return the event that a worker's message stands for."""
    if isinstance(message, Join):
        return joined(worker, message)
    if isinstance(message, Leave):
        return Left(worker, message.generation)
    if isinstance(message, Leaving):
        return Leaves(worker, message.why)
    if isinstance(message, Holds):
        return HoldsState(worker, message.training)
    return Failed(worker, message.exception)


def joined(worker: int, message: Join) -> Joined:
    """Return the event that a join stands for."""
    accused = tuple(Accusation(each.rank, each.how, each.certain, each.forming, each.left) for each in message.accused)
    return Joined(
        worker,
        message.contact,
        message.host,
        message.hostname,
        message.generation,
        message.trained,
        accused,
        message.arriving,
        message.open,
        message.timeout,
    )


def world_of(rank: int, action: Announce, *, state_held: bool) -> World:
    """Return the world that is announced, as one of its ranks sees it.

    Args:
        rank: that rank.
        action: the announcement.
        state_held: whether some worker has held the job's state.
    """
    place = action.places[rank]
    return World(
        generation=action.generation,
        rank=rank,
        size=len(action.places),
        contacts=action.contacts,
        local_rank=place.local_rank,
        local_size=place.local_size,
        cross_rank=place.cross_rank,
        cross_size=place.cross_size,
        hostnames=tuple(each.hostname for each in action.places),
        workers=action.workers,
        previous=action.previous,
        state_lost=state_held and all(rank < 0 for rank in action.previous),
        lost=tuple(f"rank {each.rank} (worker {each.worker}) {each.how}" for each in action.lost),
    )


def world_on_arrival(state: State, action: Show) -> World:
    """Return the world that a worker which arrives would be in, as its last rank.

    Args:
        state: of the roster.
        action: the answer to that worker.
    """
    hosts = [state.hosts.get(each, "") for each in (*state.members, action.worker)]
    return World(
        generation=0,
        rank=len(hosts) - 1,
        size=len(hosts),
        contacts=(),
        local_rank=action.device_number,
        local_size=max(hosts.count(hosts[-1]), action.device_number + 1),
        cross_rank=0,
        cross_size=len(set(hosts)),
        hostnames=tuple(hosts),
        workers=(*state.members, action.worker),
        training=state.training,
    )


def notices_so_far(state: State) -> list[msgspec.Struct]:
    """Return all notices that count now for a member of the world, those that take something back among them.

    A member that connects again may have heard a notice of the roster before this one, which died before it could take
    that back.
    """
    notices: list[msgspec.Struct] = [
        Revoked(state.generation, departure.rank, departure.how, departure.worker in state.gone)
        for departure in state.lost
    ]
    notices.append(Changed(state.generation, *state.notified, "the world is to change"))
    notices.append(Coming(len(state.expected)))
    return notices
