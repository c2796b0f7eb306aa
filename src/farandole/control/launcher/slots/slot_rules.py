"""The slot rules: which slots get a worker, and when. Pure functions on plain data.

A *slot* is room for one worker on a host. The rules are in `host_rules`, `failure_rules` and `worker_rules`; `decide`
combines them with the roster's rules.
"""

from __future__ import annotations

import math
from dataclasses import replace

from farandole.control.launcher.slots.failure_rules import workers_ended
from farandole.control.launcher.slots.failure_run import end_if_failing
from farandole.control.launcher.slots.host_rules import (
    host_leaves,
    host_not_ready,
    host_noticed,
    host_removed,
    hosts_changed,
    let_go,
    reach,
)
from farandole.control.launcher.slots.job_events import (
    EndedTogether,
    EndJob,
    HostLeaves,
    HostLost,
    HostNoticed,
    HostNotReady,
    HostReady,
    HostRemoved,
    HostsChanged,
    Progressed,
    SlotEvent,
    StartWorker,
    WorkerEnded,
)
from farandole.control.launcher.slots.job_state import FailureRun, JobState, Site, Step, with_site
from farandole.control.launcher.slots.phrases import named
from farandole.control.launcher.slots.worker_rules import count_time, end_if_over, fill, shrink, worker_leaves
from farandole.control.roster import fixed
from farandole.control.roster.events import Leaves, Resized


def apply(state: JobState, event: SlotEvent, now: float) -> Step:
    """Return the next state, the actions, and the reason in one line.

    Example:
        >>> from farandole.control.launcher.slots.job_state import SlotPolicy
        >>> from farandole.control.roster.elastic import Limits, ElasticState
        >>> state = JobState(SlotPolicy(), ElasticState(Limits(1, 2)))
        >>> state, actions, _ = apply(state, HostsChanged((("h1", 4),)), 0.0)
        >>> actions
        [ReachHost(label='h1')]
        >>> state, actions, reason = apply(state, HostReady("h1"), 0.1)
        >>> actions
        [StartWorker(worker=0, label='h1', slot=0), StartWorker(worker=1, label='h1', slot=1)]
        >>> reason
        'host h1 is ready; workers 0 and 1 start'
    """
    return settle(note(state, event, now), now)


def settle(step: Step, now: float) -> Step:
    """Return a step extended by everything that follows from its state at this time."""
    state, actions, reason = step
    if any(isinstance(action, EndJob) for action in actions):
        return step
    for follow in (end_if_over, let_go, shrink, reach, fill, end_if_failing, count_time):
        state, more = follow(state, now)
        actions = [*actions, *more]
        if any(isinstance(action, EndJob) for action in more):
            return state, actions, reason
    started = [action.worker for action in actions if isinstance(action, StartWorker)]
    starts = f"{named(started)} start{'s' * (len(started) == 1)}" if started else ""
    return state, actions, "; ".join(filter(None, (reason, starts)))


def note(state: JobState, event: SlotEvent, now: float) -> Step:
    """Return the state after an event, with only the direct actions: `settle` adds what follows from the new state."""
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
    if isinstance(event, Progressed):
        return replace(state, progressed=True), [], "training continues"
    if isinstance(event, Leaves):
        return worker_leaves(state, event, now)
    if isinstance(event, WorkerEnded):
        return workers_ended(state, (event,), now)
    if isinstance(event, EndedTogether):
        return workers_ended(state, event.ends, now)
    if isinstance(event, Resized):
        # The roster has the new size, and gives the reason. Earlier failures left another number of workers.
        return replace(state, failure_run=FailureRun()), [], ""
    return state, [], "time has passed"


def next_due(state: JobState, now: float) -> float:
    """Return the time at which the next `Tick` has an effect; infinity if only other events have one."""
    if state.end is not None:
        return math.inf
    if isinstance(state.roster, fixed.FixedState):
        return min((blame.until for blame in state.blames if blame.until > now), default=math.inf)
    times = [site.end_at for site in state.sites if site.end_at is not None]
    if not state.closing:
        times += [site.not_before for site in state.sites if site.phase == "new"]
        times += [site.barred_until for site in state.sites]
        times += [slot.not_before for site in state.sites for slot in site.slots if slot.worker is None]
    if state.short_since is not None:
        times.append(state.short_since + state.limits.timeout)
    if state.failure_run.since is not None:
        times.append(state.failure_run.since + state.limits.timeout)
    return min((time for time in times if time > now), default=math.inf)


def describe(site: Site, now: float) -> str:
    """Return a few words about the state of a host."""
    if site.gone:
        return "draining"
    if site.notice:
        return f"about to be reclaimed: {site.notice}"
    if site.barred_until > now:
        return "blacklisted" if math.isinf(site.barred_until) else f"in quarantine for {site.barred_until - now:.0f} s"
    if site.phase == "new":
        return f"tried again in {site.not_before - now:.0f} s" if site.not_before > now else "not needed yet"
    return {"reaching": "being reached", "refused": "left out"}.get(site.phase, site.phase)
