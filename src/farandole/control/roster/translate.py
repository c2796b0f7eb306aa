"""Translation between the messages of `wire.rendezvous` and the roster's events and actions."""

from __future__ import annotations

import msgspec

from farandole.base.wire.encoding import encode
from farandole.base.wire.rendezvous import (
    Changed,
    Coming,
    Failure,
    Holds,
    Join,
    Leave,
    Leaving,
    Placed,
    Revoked,
)
from farandole.base.wire.world_table import WorldTable
from farandole.control.roster.events import Announce, Event, Failed, HoldsState, Joined, Leaves, Left, Show
from farandole.control.roster.membership import ElasticState


def event_of(worker: int, message: Join | Leave | Leaving | Failure | Holds) -> Event:
    """Return the event of a worker's message."""
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
    """Return the event of a join."""
    return Joined(
        worker,
        message.contact,
        message.host,
        message.hostname,
        message.generation,
        message.trained,
        message.accused,
        message.arriving,
        message.open,
        message.timeout,
    )


def table_of(action: Announce, *, state_held: bool) -> WorldTable:
    """Return the table of an announced world.

    Args:
        action: the announcement.
        state_held: whether any worker has held the job's state.
    """
    hostnames = tuple(each.hostname for each in action.places)
    state_lost = state_held and all(rank < 0 for rank in action.previous)
    lost = tuple(f"rank {each.rank} (worker {each.worker}) {each.how}" for each in action.lost)
    return WorldTable(
        action.generation, action.contacts, hostnames, action.workers, action.previous, lost, state_lost=state_lost
    )


def place_on_arrival(state: ElasticState, action: Show) -> Placed:
    """Return the answer to an arriving worker: a preview of the world with this worker as the last rank.

    Args:
        state: state of the roster.
        action: the answer to the worker.
    """
    hosts = [state.hosts.get(each, "") for each in (*state.members, action.worker)]
    workers = (*state.members, action.worker)
    return Placed(
        rank=len(hosts) - 1,
        local_rank=action.device_number,
        local_size=max(hosts.count(hosts[-1]), action.device_number + 1),
        cross_rank=0,
        cross_size=len(set(hosts)),
        table=encode(WorldTable(0, (), tuple(hosts), workers, training=state.training)),
    )


def notices_so_far(state: ElasticState) -> list[msgspec.Struct]:
    """Return all notices that are valid now for a member of the world, including withdrawals of earlier ones.

    A member that reconnects may have got a notice from the previous roster, which died before it could withdraw it.
    """
    notices: list[msgspec.Struct] = [
        Revoked(state.generation, departure.rank, departure.how, departure.worker in state.gone)
        for departure in state.lost
    ]
    notices.append(Changed(state.generation, *state.notified, "the world is about to change"))
    notices.append(Coming(len(state.expected)))
    return notices
