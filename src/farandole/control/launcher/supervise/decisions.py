"""Runs a job's decision function for each event, and when its timers expire."""

from __future__ import annotations

import asyncio
import math
import time
from collections import deque
from collections.abc import Callable, Sequence

from farandole.control.launcher.slots.decide import decide
from farandole.control.launcher.slots.job_events import Action, Event, Tick
from farandole.control.launcher.slots.job_state import JobState
from farandole.control.launcher.slots.slot_rules import next_due


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
        self._timer: asyncio.TimerHandle | None = None

    def happened(self, event: Event) -> None:
        """Decide on an event, and carry the decision out. Events that occur meanwhile are queued."""
        self._events.append(event)
        if self._deciding:
            return
        self._deciding = True
        try:
            while self._events:
                before, event = self.state, self._events.popleft()
                self.state, actions, reasons = decide(before, event, time.monotonic())
                for reason in reasons:
                    self._log(reason)
                self._carry_out(before, event, actions)
        finally:
            self._deciding = False
        self._set_timer()

    def close(self) -> None:
        """Stop deciding when timers expire."""
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None

    def _set_timer(self) -> None:
        self.close()
        now = time.monotonic()
        due = next_due(self.state, now)
        if due < math.inf:
            # A little late: at exactly that time, the deadline would not have passed.
            self._timer = asyncio.get_running_loop().call_later(due - now + 0.001, self.happened, Tick())
