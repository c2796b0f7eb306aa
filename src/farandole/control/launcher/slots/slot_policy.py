"""Decides which slots get a worker, and when: a pure function on plain data.

A *slot* is room for one worker on a host. `slot_state` holds the known facts, `slot_events` the events and the actions;
`host_rules`, `failure_rules` and `worker_rules` each hold a part of the rules.
"""

from __future__ import annotations

import math
from dataclasses import replace

from farandole.control.launcher.slots.failure_rules import worker_ended
from farandole.control.launcher.slots.host_rules import (
    host_leaves,
    host_not_ready,
    host_noticed,
    host_removed,
    hosts_changed,
    let_go,
    reach,
)
from farandole.control.launcher.slots.phrases import named
from farandole.control.launcher.slots.slot_events import (
    Action,
    EndJob,
    Event,
    Finishing,
    HostLeaves,
    HostLost,
    HostNoticed,
    HostNotReady,
    HostReady,
    HostRemoved,
    HostsChanged,
    Progressed,
    Resized,
    StartWorker,
    WorkerEnded,
    WorkerLeaves,
    WorldBegan,
)
from farandole.control.launcher.slots.slot_state import Site, State, Step, with_site
from farandole.control.launcher.slots.worker_rules import (
    count_time,
    end_if_over,
    fill,
    shrink,
    worker_leaves,
    world_began,
)

Decision = tuple[State, tuple[Action, ...], str]


def decide(state: State, event: Event, now: float) -> Decision:
    """Return the next state, the actions, and one line with the reason.

    Example:
        >>> from farandole.control.launcher.slots.slot_state import SlotPolicy
        >>> state, actions, _ = decide(State(SlotPolicy(1, 2)), HostsChanged((("h1", 4),)), 0.0)
        >>> actions
        (ReachHost(label='h1'),)
        >>> state, actions, reason = decide(state, HostReady("h1"), 0.1)
        >>> actions
        (StartWorker(worker=0, label='h1', slot=0), StartWorker(worker=1, label='h1', slot=1))
        >>> reason
        'host h1 is ready; workers 0 and 1 start'
    """
    if state.ended:
        return state, (), "the job is ending"
    state, actions, reason = _note(state, event, now)
    if any(isinstance(action, EndJob) for action in actions):
        return replace(state, ended=True), tuple(actions), reason
    for settle in (end_if_over, let_go, shrink, reach, fill, count_time):
        state, more = settle(state, now)
        actions += more
        if any(isinstance(action, EndJob) for action in more):
            return replace(state, ended=True), tuple(actions), reason
    started = [action.worker for action in actions if isinstance(action, StartWorker)]
    return state, tuple(actions), f"{reason}; {named(started)} start{'s' * (len(started) == 1)}" if started else reason


def _note(state: State, event: Event, now: float) -> Step:
    if isinstance(event, HostsChanged):
        return hosts_changed(state, event, now)
    if isinstance(event, HostReady):
        state = with_site(state, event.label, phase="ready", tries=0)
        return state, [], f"host {event.label} is ready"
    if isinstance(event, HostLost):
        return with_site(state, event.label, phase="lost"), [], f"host {event.label} is lost"
    if isinstance(event, HostNotReady):
        return host_not_ready(state, event, now)
    if isinstance(event, HostLeaves):
        return host_leaves(state, event)
    if isinstance(event, HostRemoved):
        return host_removed(state, event)
    if isinstance(event, HostNoticed):
        return host_noticed(state, event, now)
    if isinstance(event, WorldBegan):
        return world_began(state, event, now)
    if isinstance(event, Progressed):
        return replace(state, progressed=True), [], "training continues"
    if isinstance(event, Finishing):
        words = "workers have finished, as far as is known" if event.finishing else "no worker has finished"
        return replace(state, finishing=event.finishing), [], words
    if isinstance(event, WorkerLeaves):
        return worker_leaves(state, event, now)
    if isinstance(event, WorkerEnded):
        return worker_ended(state, event, now)
    if isinstance(event, Resized):
        policy = replace(state.policy, min_size=event.min_size, max_size=event.max_size)
        most = "any number of" if event.max_size is None else event.max_size
        return replace(state, policy=policy), [], f"from {event.min_size} to {most} workers from now on"
    return state, [], "time has passed"


def next_due(state: State, now: float) -> float:
    """Return when the next `Tick` changes something; infinite if only other events do."""
    if state.ended:
        return math.inf
    times = [site.end_at for site in state.sites if site.end_at is not None]
    if not state.closing:
        times += [site.not_before for site in state.sites if site.phase == "new"]
        times += [site.barred_until for site in state.sites]
        times += [slot.not_before for site in state.sites for slot in site.slots if slot.worker is None]
    if state.short_since is not None:
        times.append(state.short_since + state.policy.timeout)
    return min((time for time in times if time > now), default=math.inf)


def describe(site: Site, now: float) -> str:
    """Return the condition of a host in a few words."""
    if site.gone:
        return "draining"
    if site.notice:
        return f"about to be reclaimed: {site.notice}"
    if site.barred_until > now:
        return "blacklisted" if math.isinf(site.barred_until) else f"in quarantine for {site.barred_until - now:.0f} s"
    if site.phase == "new":
        return f"tried again in {site.not_before - now:.0f} s" if site.not_before > now else "not needed yet"
    return {"reaching": "being reached", "refused": "left out"}.get(site.phase, site.phase)
