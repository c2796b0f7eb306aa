"""Rules for hosts: new ones, reached ones, lost ones, and ones that are released after their workers have left."""

from __future__ import annotations

from dataclasses import replace

from farandole.base.display.wording import count
from farandole.control.launcher.slots.backoff import waiting_time
from farandole.control.launcher.slots.job_events import (
    DrainWorkers,
    EndHost,
    EndJob,
    HostLeaves,
    HostNoticed,
    HostNotReady,
    HostRemoved,
    HostsChanged,
    ReachHost,
    Say,
    SlotAction,
    StopWorkers,
)
from farandole.control.launcher.slots.job_state import (
    JobState,
    Site,
    Slot,
    Step,
    drain,
    living,
    site_of,
    with_site,
    with_slots,
)
from farandole.control.launcher.slots.phrases import named, others, who_leaves


def hosts_changed(state: JobState, event: HostsChanged, now: float) -> Step:
    """Record the current hosts."""
    wanted = dict(event.hosts)
    before = state
    sites = []
    for site in state.sites:
        if site.label in wanted:
            sites.append(_with_size(site, wanted[site.label]))
        else:
            sites.append(replace(site, gone=True))
    known = {site.label for site in sites}
    new = [Site(label, size, tuple(map(Slot, range(size)))) for label, size in event.hosts if label not in known]
    said = [f"{site.label} is gone" for site in sites if site.gone] + [f"{site.label} is new" for site in new]
    state = replace(state, sites=(*sites, *new))
    return state, _tell_who_leaves(before, state), f"hosts: {', '.join(said) or 'as before'}"


def _tell_who_leaves(before: JobState, state: JobState) -> list[SlotAction]:
    """Print which workers are to leave because their host, or their slot, no longer exists."""
    actions: list[SlotAction] = []
    for old, site in zip(before.sites, state.sites, strict=False):
        places = [slot for slot in site.slots if slot.worker is not None and not slot.draining]
        leaving = [slot.worker for slot in places if slot.worker is not None and (site.gone or slot.index >= site.size)]
        if leaving and (site.gone, site.size) != (old.gone, old.size):
            why = f"host {site.label} leaves the job" if site.gone else _why_they_leave(site)
            actions.append(Say(f"farandole: {why}; {who_leaves(state, leaving)}"))
    return actions


def _with_size(site: Site, size: int) -> Site:
    """Set a host's number of slots; surplus slots keep their workers until these have left."""
    # A host that was refused, or was leaving, and is listed again is treated as new.
    phase = "new" if site.gone and site.phase == "refused" else site.phase
    known = {slot.index: slot for slot in site.slots if slot.index < size or slot.worker is not None}
    slots = tuple(known.get(index, Slot(index)) for index in sorted({*known, *range(size)}))
    return replace(site, size=size, slots=slots, gone=False, phase=phase)


def host_not_ready(state: JobState, event: HostNotReady, now: float) -> Step:
    """Retry a host after longer and longer waits, or not at all if it was refused."""
    site = site_of(state, event.label)
    if site is None:
        return state, [], f"host {event.label}, which is gone, is not ready: {event.why}"
    if event.refused:
        state = with_site(state, event.label, phase="refused")
        said = Say(f"warning: host {event.label} is left out: {event.why}; the job continues without it")
        state, actions = _end_if_all_refused(state, event.why)
        return state, [said, *actions], f"host {event.label} is refused: {event.why}"
    wait = waiting_time(site.tries)
    state = with_site(state, event.label, phase="new", tries=site.tries + 1, not_before=now + wait)
    again = f"it is tried again in {wait:g} s" if wait else "it is tried again at once"
    said = Say(f"warning: host {event.label} cannot be used: {event.why}; {again}")
    return state, [said], f"host {event.label} is not ready; {again}"


def _end_if_all_refused(state: JobState, why: str) -> tuple[JobState, list[SlotAction]]:
    if living(state) or any(site.phase != "refused" for site in state.sites):
        return state, []
    return state, [EndJob(f"no host can take part: {why}", "farandole doctor -H HOSTS shows more")]


def host_leaves(state: JobState, event: HostLeaves) -> Step:
    """Release a host that was asked to leave."""
    site = site_of(state, event.label)
    if site is None or site.gone:
        return state, [], f"host {event.label} is already leaving"
    said = f"host {site.label} was asked to end; {who_leaves(state, site.workers)}"
    return with_site(state, site.label, gone=True), [Say(f"farandole: {said}")], said


def host_removed(state: JobState, event: HostRemoved) -> Step:
    """End everything that runs on a host, and release it."""
    site = site_of(state, event.label)
    if site is None:
        return state, [], f"host {event.label} is already gone"
    here = site.workers
    with_whom = f", with {named(here)}" if here else ""
    said = f"host {site.label} is removed{with_whom}; {others(state, here, 'continues', 'continue')}"
    state = with_slots(state, {worker: {"draining": True} for worker in here})
    actions: list[SlotAction] = [Say(f"farandole: {said}")]
    if here:
        actions.append(StopWorkers(here, "was removed with its host"))
    return with_site(state, site.label, gone=True, end_at=None), actions, said


def host_noticed(state: JobState, event: HostNoticed, now: float) -> Step:
    """Keep a host that is about to be reclaimed free of workers until the notice is withdrawn."""
    site = site_of(state, event.label)
    if site is None or bool(site.notice) == bool(event.notice):
        return state, [], f"host {event.label}: {event.notice or 'no notice'}, as before"
    state = with_site(state, event.label, notice=event.notice, noticed_at=now)
    if event.notice:
        why = f"host {event.label} is about to be reclaimed ({event.notice})"
        said = f"{why}; {who_leaves(state, site.workers)}; no workers are started there meanwhile"
    else:
        after = f"the notice was withdrawn after {now - site.noticed_at:.0f} s"
        said = f"host {event.label} stays ({after}); workers can start there again if the job needs them"
    return state, [Say(f"farandole: {said}")], said


# --- consequences -----------------------------------------------------------------------------------------------


def let_go(state: JobState, now: float) -> tuple[JobState, list[SlotAction]]:
    """Let workers leave hosts that are to have none, and removed slots; then release removed hosts."""
    actions: list[SlotAction] = []
    shrinking = [site for site in state.sites if site.closed or site.has_removed_slots or site.end_at is not None]
    for site in shrinking:
        leaving = [slot for slot in site.slots if slot.worker is not None and (site.closed or slot.index >= site.size)]
        fresh = tuple(slot.worker for slot in leaving if slot.worker is not None and not slot.draining)
        if fresh:
            actions.append(DrainWorkers(fresh, _why_they_leave(site)))
            state = drain(state, fresh, now)
        late = tuple(slot.worker for slot in site.slots if slot.worker is not None and (slot.draining or slot.left))
        if late and site.end_at is not None and site.end_at <= now and not fresh:
            actions.append(StopWorkers(late, f"did not leave within {state.policy.grace:g} s"))
            state = with_site(state, site.label, end_at=None)
        if site.gone and not any(slot.worker is not None for slot in site.slots):
            actions += [EndHost(site.label)] if site.phase in ("ready", "reaching", "lost") else []
            state = replace(state, sites=tuple(each for each in state.sites if each.label != site.label))
    return _without_empty_slots(state) if shrinking else state, actions


def _without_empty_slots(state: JobState) -> JobState:
    """Remove slots that are gone and empty."""
    kept = [
        tuple(slot for slot in site.slots if slot.index < site.size or slot.worker is not None) for site in state.sites
    ]
    if all(len(slots) == len(site.slots) for site, slots in zip(state.sites, kept, strict=True)):
        return state
    sites = zip(state.sites, kept, strict=True)
    return replace(state, sites=tuple(replace(site, slots=slots) for site, slots in sites))


def _why_they_leave(site: Site) -> str:
    if site.gone:
        return f"host {site.label} is gone"
    if site.notice:
        return f"host {site.label} is about to be reclaimed"
    slots = f"only {count(site.size, 'slot')}" if site.size else "no slots"
    return f"host {site.label} has {slots} now"


def reach(state: JobState, now: float) -> tuple[JobState, list[SlotAction]]:
    """Start to reach hosts while the job may need them."""
    if state.closing:
        return state, []
    actions: list[SlotAction] = []
    room = sum(
        site.size
        for site in state.sites
        if site.phase in ("ready", "reaching") and not site.closed and site.barred_until <= now
    )
    for site in state.sites:
        if room >= state.most:
            break
        if site.phase == "new" and site.not_before <= now and not site.gone and site.barred_until <= now and site.size:
            actions.append(ReachHost(site.label))
            state = with_site(state, site.label, phase="reaching")
            room += 0 if site.closed else site.size
    return state, actions
