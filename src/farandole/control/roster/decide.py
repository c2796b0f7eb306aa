"""The roster's decision about an event: one pure function for each kind of job."""

from __future__ import annotations

from farandole.control.roster import elastic, fixed
from farandole.control.roster.events import Action, Event

RosterState = fixed.FixedState | elastic.ElasticState
Decision = tuple[RosterState, tuple[Action, ...], str]


def decide(state: RosterState, event: Event) -> Decision:
    """Return the next state, the actions, and the reason in one line."""
    if isinstance(state, fixed.FixedState):
        return fixed.decide(state, event)
    return elastic.decide(state, event)


def joins_needed(state: RosterState) -> int:
    """Return a number of workers that certainly must join before the next world can begin; 0: perhaps none."""
    if isinstance(state, fixed.FixedState):
        return fixed.joins_needed(state)
    return elastic.joins_needed(state)
