"""Has the policy of the slots decide, event by event, and when its time has come."""

from __future__ import annotations

import asyncio
import math
import time
from collections import deque
from collections.abc import Callable

from farandole.control.launcher.slots import slot_events as events
from farandole.control.launcher.slots.slot_policy import decide, next_due
from farandole.control.launcher.slots.slot_state import SlotPolicy, State


class Decider:
    """Keeps the state of the slots.

    Args:
        policy: of the slots.
        decided: called when `state` has changed, before the actions that follow from it.
        act: called with each action.
        settled: called when nothing is left to decide, and all actions were carried out.
        log: takes the reason of every decision.
    """

    def __init__(
        self,
        policy: SlotPolicy,
        decided: Callable[[], None],
        act: Callable[[events.Action], None],
        settled: Callable[[], None],
        log: Callable[[str], None],
    ) -> None:
        self.state = State(policy)
        self._decided = decided
        self._act = act
        self._settled = settled
        self._log = log
        self._loop = asyncio.get_running_loop()
        self._events: deque[events.Event] = deque()
        self._deciding = False
        self._timer: asyncio.TimerHandle | None = None

    def happened(self, event: events.Event) -> None:
        """Decide. What happens while the actions are carried out waits for its turn."""
        self._events.append(event)
        if self._deciding:
            return
        self._deciding = True
        try:
            while self._events:
                self.state, actions, reason = decide(self.state, self._events.popleft(), time.monotonic())
                self._log(reason)
                self._decided()
                for action in actions:
                    self._act(action)
        finally:
            self._deciding = False
        self._settled()
        self._set_timer()

    def close(self) -> None:
        """Decide no more by itself, because time has passed."""
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None

    def _set_timer(self) -> None:
        self.close()
        now = time.monotonic()
        due = next_due(self.state, now)
        if due < math.inf:
            # A little late: at exactly that time it would not be past yet.
            self._timer = self._loop.call_later(due - now + 0.001, self.happened, events.Tick())
