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
