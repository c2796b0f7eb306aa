"""A job as the rules of slots see it: events in, actions out, on a clock of its own."""

from __future__ import annotations

from farandole.control.launcher.slots.slot_events import (
    KILLED,
    Action,
    EndJob,
    Event,
    HostReady,
    HostsChanged,
    Say,
    StartWorker,
    Tick,
    WorkerEnded,
)
from farandole.control.launcher.slots.slot_policy import decide
from farandole.control.launcher.slots.slot_state import SlotPolicy, State, living


class Job:
    """A policy at work, on a clock of its own."""

    def __init__(self, policy: SlotPolicy, *hosts: tuple[str, int]) -> None:
        self.state = State(policy)
        self.now = 0.0
        self.tell(HostsChanged(hosts))
        for label, _ in hosts:
            self.tell(HostReady(label))

    def tell(self, event: Event) -> list[Action]:
        self.state, actions, reason = decide(self.state, event, self.now)
        assert reason
        return list(actions)

    def wait(self, seconds: float) -> list[Action]:
        self.now += seconds
        return self.tell(Tick())

    def workers(self) -> list[int]:
        return sorted(living(self.state))

    def end(self, worker: int, how: str = KILLED, what: str = "") -> list[Action]:
        return self.tell(WorkerEnded(worker, how, what))


def started(actions: list[Action]) -> list[tuple[int, str, int]]:
    return [(each.worker, each.label, each.slot) for each in actions if isinstance(each, StartWorker)]


def ended(actions: list[Action]) -> list[str]:
    return [each.why for each in actions if isinstance(each, EndJob)]


def said(actions: list[Action]) -> str:
    return "\n".join(each.text for each in actions if isinstance(each, Say))
