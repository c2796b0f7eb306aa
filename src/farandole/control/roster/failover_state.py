"""What the next roster needs to know when the process of this one is killed.

Workers connect to it again by themselves, and repeat the requests that have no answer. So nothing that belongs to a
connection or a timer has to be kept. What has to be is small: which workers are in the world, and which may come into
the next one.
"""

from __future__ import annotations

import msgspec

from farandole.control.roster import elastic, fixed
from farandole.control.roster.decide import State
from farandole.control.roster.events import Hold
from farandole.control.roster.membership import changed


class RosterFailoverState(msgspec.Struct, frozen=True):
    """All that a roster needs to continue a job whose roster has died."""

    state: elastic.State
    device_numbers: dict[int, tuple[str, int]]
    """By living worker: its host, and its number there; see `seats`."""
    state_held: bool
    """Some worker has held the job's state."""
    training: int
    """Of which of the script's trainings; see `Holds`."""


def without_connections(state: elastic.State) -> elastic.State:
    """Return what is left of a state when all connections are gone: nobody waits, nobody was told, no clock runs."""
    return changed(state, waiting=(), notified=(0, 0), hold=Hold(""))


def essence(state: State) -> State:
    """Return what of a state is worth being written down again when it changes."""
    return state if isinstance(state, fixed.State) else without_connections(state)
