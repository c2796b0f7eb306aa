"""Runs a job's decision function for each event, and when its timers expire."""

from __future__ import annotations

import asyncio
import math
import time
from collections import deque
from collections.abc import Callable, Iterator, Sequence
from typing import TypeVar

from farandole.control.launcher.slots.decide import decide
from farandole.control.launcher.slots.job_events import Action, EndedTogether, Event, Tick, WorkerEnded
from farandole.control.launcher.slots.job_state import JobState
from farandole.control.launcher.slots.slot_rules import next_due
from farandole.control.roster.events import Left, LeftTogether

T = TypeVar("T", Left, WorkerEnded)


class Decisions:
    """The owner of a job's state.

    Attributes:
        state: the state after the last decision.

    Args:
        state: the initial state, or the state that another launcher has left.
        carry_out: called with the previous state, with the event, and with the actions of the decision.
        log: called with every reason.
    """

    def __init__(
        self,
        state: JobState,
        carry_out: Callable[[JobState, Event, Sequence[Action]], None],
        log: Callable[[str], None],
    ) -> None:
        self.state = state
        self._carry_out = carry_out
        self._log = log
        self._events: deque[Event] = deque()
        self._deciding = False
        self._soon: asyncio.Handle | None = None
        """The scheduled decision on the events that may wait."""
        self._timer: asyncio.TimerHandle | None = None

    def happened(self, event: Event, *, soon: bool = False) -> None:
        """Decide on an event, and carry the decision out. Events that occur meanwhile are queued.

        Args:
            event: what has happened.
            soon: whether the decision may wait until the end of this turn of the loop, or until the next event that may
                not wait. In a large job, many workers leave or end at the same time; each decision takes the longer the
                more workers there are, so there must not be one for each of them.
        """
        self._events.append(event)
        if not soon:
            self._decide()
        elif self._soon is None:
            self._soon = asyncio.get_running_loop().call_soon(self._decide)

    def _decide(self) -> None:
        """Decide on the events in the queue, in their order."""
        if self._deciding:
            return
        self._cancel_soon()
        self._deciding = True
        try:
            while self._events:
                before, event = self.state, self._next_event()
                self.state, actions, reasons = decide(before, event, time.monotonic())
                for reason in reasons:
                    self._log(reason)
                self._carry_out(before, event, actions)
        finally:
            self._deciding = False
        self._set_timer()

    def _next_event(self) -> Event:
        """Take the next event from the queue; of successive goodbyes or ends of workers, all as one event."""
        event = self._events.popleft()
        if isinstance(event, Left):
            goodbyes = (event, *self._successive(Left))
            return LeftTogether(goodbyes) if len(goodbyes) > 1 else event
        if isinstance(event, WorkerEnded):
            ends = (event, *self._successive(WorkerEnded))
            return EndedTogether(ends) if len(ends) > 1 else event
        return event

    def _successive(self, kind: type[T]) -> Iterator[T]:
        while self._events and isinstance(event := self._events[0], kind):
            self._events.popleft()
            yield event

    def close(self) -> None:
        """Stop deciding on events that may wait, and when timers expire."""
        self._cancel_soon()
        self._cancel_timer()

    def _cancel_soon(self) -> None:
        if self._soon is not None:
            self._soon.cancel()
            self._soon = None

    def _cancel_timer(self) -> None:
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None

    def _set_timer(self) -> None:
        self._cancel_timer()
        now = time.monotonic()
        due = next_due(self.state, now)
        if due < math.inf:
            # A little late: at exactly that time, the deadline would not have passed.
            self._timer = asyncio.get_running_loop().call_later(due - now + 0.001, self.happened, Tick())
