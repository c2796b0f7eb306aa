"""A job for tests of the rules of slots: events in, actions out, with a simulated clock."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import msgspec

from farandole.control.launcher.slots.job_events import (
    KILLED,
    EndJob,
    HostReady,
    HostsChanged,
    Say,
    SlotAction,
    SlotEvent,
    StartWorker,
    Tick,
    WorkerEnded,
)
from farandole.control.launcher.slots.job_state import JobState, SlotPolicy, Step, living
from farandole.control.launcher.slots.slot_rules import apply, settle
from farandole.control.launcher.slots.worker_rules import world_began
from farandole.control.roster.elastic import ElasticState, Limits
from farandole.control.roster.events import Resized
from farandole.control.roster.membership import ANY_SIZE


def beginning(min_size: int, max_size: int | None, timeout: float = Limits(1, 1).timeout, **policy: Any) -> JobState:
    """Return the state of a job without hosts."""
    limits = Limits(min_size, ANY_SIZE if max_size is None else max_size, timeout=timeout)
    return JobState(SlotPolicy(**policy), ElasticState(limits))


def with_roster(state: JobState, **changes: object) -> JobState:
    """Return a state in which the roster has decided something."""
    return replace(state, roster=msgspec.structs.replace(state.elastic_roster, **changes))


def world(state: JobState, members: tuple[int, ...], now: float) -> Step:
    """Return the step after the roster has announced a world to these workers."""
    after = with_roster(state, members=members, generation=state.generation + 1)
    return settle(world_began(after, state.world, now), now)


def finishing(state: JobState, is_so: bool, now: float) -> Step:
    """Return the step after the roster has reported that workers have, or have not, left gracefully."""
    exiting = frozenset(state.world[:1] or (0,)) if is_so else frozenset()
    return settle((with_roster(state, exiting=exiting), [], "the roster says so"), now)


def resized(state: JobState, event: Resized, now: float) -> Step:
    """Return the step after the user has requested another size."""
    limits = msgspec.structs.replace(state.limits, min_size=event.min_size, max_size=event.max_size)
    return apply(with_roster(state, limits=limits), event, now)


class Job:
    """A running policy, with a simulated clock."""

    def __init__(self, state: JobState, *hosts: tuple[str, int]) -> None:
        self.state = state
        self.now = 0.0
        self._over = False
        self.tell(HostsChanged(hosts))
        for label, _ in hosts:
            self.tell(HostReady(label))

    def tell(self, event: SlotEvent) -> list[SlotAction]:
        return self._take(apply(self.state, event, self.now))

    def begin_world(self, *members: int) -> list[SlotAction]:
        return self._take(world(self.state, members, self.now))

    def finish(self, is_so: bool = True) -> list[SlotAction]:
        return self._take(finishing(self.state, is_so, self.now))

    def resize(self, min_size: int, max_size: int) -> list[SlotAction]:
        return self._take(resized(self.state, Resized(min_size, max_size), self.now))

    def _take(self, step: Step) -> list[SlotAction]:
        if self._over:
            return []
        self.state, actions, _ = step
        self._over = bool(ended(actions))
        return actions

    def wait(self, seconds: float) -> list[SlotAction]:
        self.now += seconds
        return self.tell(Tick())

    def workers(self) -> list[int]:
        return sorted(living(self.state))

    def end(self, worker: int, how: str = KILLED, what: str = "") -> list[SlotAction]:
        return self.tell(WorkerEnded(worker, how, what))


def started(actions: list[SlotAction]) -> list[tuple[int, str, int]]:
    return [(each.worker, each.label, each.slot) for each in actions if isinstance(each, StartWorker)]


def ended(actions: list[SlotAction]) -> list[str]:
    return [each.why for each in actions if isinstance(each, EndJob)]


def said(actions: list[SlotAction]) -> str:
    return "\n".join(each.text for each in actions if isinstance(each, Say))
