"""What follows from an event: one pure function for each kind of job."""

from __future__ import annotations

from farandole.control.roster import elastic, fixed
from farandole.control.roster.events import Action, Event

State = fixed.State | elastic.State
Decision = tuple[State, tuple[Action, ...], str]


def decide(state: State, event: Event) -> Decision:
    """Return the next state, what to do, and the one line that says why."""
    if isinstance(state, fixed.State):
        return fixed.decide(state, event)
    return elastic.decide(state, event)
