"""What a roster leaves to the one that follows it when its process is killed.

Workers come back by themselves: they connect again, and ask again what has had no answer. So nothing that hangs on a
connection or a clock has to be known, and what has to be is small: who is in the world, and who may come into the next.
"""

from __future__ import annotations

import msgspec

from farandole.roster import elastic, fixed
from farandole.roster.decide import State
from farandole.roster.events import Hold
from farandole.roster.membership import changed


class RosterFailoverState(msgspec.Struct, frozen=True):
    """All that a roster has to know to go on where another has died."""

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
