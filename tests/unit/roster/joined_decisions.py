"""The decisions of a job with hosts in the `model`: the real `decide` over roster and slots, one worker on each host.

The slots replace every worker that ends, so the model's launcher starts none by itself. Its clock stops until nothing
else can happen: then everything that is due at some time happens at once (`time_passes`).
"""

from __future__ import annotations

import dataclasses
from collections.abc import Iterator

import model_roster
from model_state import DEAD, FAILING, Step, System, Worker, change
from msgspec.structs import replace

from farandole.control.launcher.slots import decide as joined
from farandole.control.launcher.slots.job_events import (
    FAILED,
    KILLED,
    SUCCEEDED,
    EndHost,
    EndJob,
    Event,
    HostLost,
    HostNotReady,
    HostReady,
    HostRemoved,
    HostsChanged,
    ReachHost,
    Say,
    StartWorker,
    StopWorkers,
    Tick,
    WorkerEnded,
)
from farandole.control.launcher.slots.job_state import JobState, SlotPolicy, living
from farandole.control.launcher.slots.slot_rules import next_due
from farandole.control.launcher.slots.worker_rules import will_start
from farandole.control.roster.elastic import ElasticState, Limits
from farandole.control.roster.events import Evict, Leaves, Refuse

LATER = 1e6
_NO_ROSTER = ElasticState(Limits(1, 1))
_slots: dict[object, JobState] = {}
_decisions: dict[object, tuple[ElasticState, JobState, tuple[object, ...]]] = {}


def beginning(size: int, limits: Limits, faults: int, **policy: int) -> System:
    """Return a job that has contacted `size` hosts, and has just started a worker on each."""
    slots = the_one(JobState(SlotPolicy(**{"first_size": size, **policy}), _NO_ROSTER))
    system = System(ElasticState(limits), (), slots, faults_left=faults)
    return add_hosts(system, size)


def add_hosts(system: System, count: int) -> System:
    """Add hosts with one slot each, which are contacted immediately if they are needed."""
    known = [(site.label, site.size) for site in _of(system).sites if not site.gone]
    first = _of(system).next_worker + len(known) + len(system.lost_hosts)
    new = [(f"h{first + index}", 1) for index in range(count)]
    return happen(system, HostsChanged((*known, *new)))


def the_one(slots: JobState) -> JobState:
    """Return one object for all states that are equal apart from the roster."""
    fields = (getattr(slots, each.name) for each in dataclasses.fields(slots) if each.name != "roster")
    key = tuple(frozenset(each.items()) if isinstance(each, dict) else each for each in fields)
    return _slots.setdefault(key, dataclasses.replace(slots, roster=_NO_ROSTER))


def forget() -> None:
    """Free what was remembered of earlier explorations."""
    _slots.clear()
    _decisions.clear()


def happen(system: System, event: Event, now: float = 0.0) -> System:
    """Let roster and slots decide about an event, and carry out their actions."""
    before = system.state
    key = (id(before), id(system.slots), event, now)
    if key not in _decisions:
        job, actions, reasons = joined.decide(dataclasses.replace(_of(system), roster=before), event, now)
        model_roster.require(all(reasons), "a decision has no reason")
        _decisions[key] = (model_roster.the_one(job.elastic_roster), the_one(job), actions)
    state, slots, actions = _decisions[key]
    system = replace(system, state=state, slots=slots)
    for action in actions:
        system = _act(system, before, action)
    model_roster.check_state(system)
    _check_slots(system)
    return system


def _act(system: System, before: ElasticState, action: object) -> System:
    if isinstance(action, StartWorker):
        model_roster.require(action.worker == len(system.workers), "a number is used twice, or left out")
        model_roster.require(action.label not in system.lost_hosts, "a worker is started on a host that is lost")
        return replace(system, workers=(*system.workers, Worker(action.worker)))
    if isinstance(action, StopWorkers):
        stopped = frozenset(action.workers)
        return replace(system, to_kill=system.to_kill | stopped, excused=system.excused | stopped)
    if isinstance(action, ReachHost):
        return replace(system, reaching=system.reaching | {action.label})
    if isinstance(action, EndHost):
        return replace(system, reaching=system.reaching - {action.label})
    if isinstance(action, EndJob):
        enough = before.generation or len(system.done_early) >= before.limits.min_size
        model_roster.require(action.why or enough, "the job ends well after too few workers")
        alive = frozenset(each.number for each in system.workers if each.phase != DEAD)
        return replace(system, to_kill=alive, reaching=frozenset())
    if isinstance(action, Evict) or (isinstance(action, Refuse) and action.evicted):
        _check_exclusion(system, action.worker)
    return system if isinstance(action, Say) else model_roster.act(system, before, action)


def end_of(system: System, number: int) -> WorkerEnded:
    """Return the event that a worker's process has ended."""
    how = FAILED if number in system.exits_badly else SUCCEEDED if number in system.ended_well else KILLED
    return WorkerEnded(number, how, "boom", "ended")


def steps(system: System) -> Iterator[Step]:
    """Return the possible next steps of hosts."""
    for label in sorted(system.reaching):
        after = replace(system, reaching=system.reaching - {label})
        yield f"{label} is ready", lambda after=after, label=label: happen(after, HostReady(label))
    for label in sorted(system.lost_hosts):
        yield f"{label} has certainly ended", lambda label=label: _host_is_gone(system, label)


def faults_of(system: System, worker: Worker, kinds: tuple[str, ...]) -> Iterator[Step]:
    """Return the possible faults of a worker that are caused by the launcher or its host."""
    number, place = worker.number, living(_of(system)).get(worker.number)
    if "drain" in kinds:
        # Its state must not be lost: there is a slot for a worker that gets it.
        yield f"{number} gets SIGTERM", lambda: happen(system, Leaves(number, "it got SIGTERM"))
    if place is not None and place[0].phase == "ready":
        label = place[0].label
        if "evict" in kinds:
            asked = replace(system, excused=system.excused | {number})
            yield f"{label} is removed", lambda: happen(asked, HostRemoved(label))
        if "host" in kinds:
            yield f"{label} is lost", lambda: _lose_host(system, label, number)


def time_passes(system: System) -> Iterator[Step]:
    """Return the step in which time passes, when nothing else can happen."""
    job = dataclasses.replace(_of(system), roster=system.state)
    if next_due(job, 0.0) < LATER:
        after = happen(system, Tick(), LATER)
        if after != system:
            yield "time passes", lambda: after


def _lose_host(system: System, label: str, number: int) -> System:
    alive = system.workers[number].phase != DEAD
    system = replace(system, lost_hosts=system.lost_hosts | {label})
    system = change(system, number, stopped=True) if alive else system
    return happen(system, HostLost(label, "silent", (number,) if alive else ()))


def _host_is_gone(system: System, label: str) -> System:
    from model_workers import kill

    numbers = [worker for worker, (site, _) in living(_of(system)).items() if site.label == label]
    for number in numbers:
        system = kill(system, number)
        if number in system.tell_finished:
            system = replace(system, tell_finished=system.tell_finished - {number})
            system = happen(system, end_of(system, number))
    system = replace(system, lost_hosts=system.lost_hosts - {label})
    return happen(system, HostNotReady(label, "silent"))


def _of(system: System) -> JobState:
    assert system.slots is not None
    return system.slots


# --- what must always be true ---------------------------------------------------------------------------------------


def _check_slots(system: System) -> None:
    """Check that slots and roster agree on which workers there are."""
    job, state = _of(system), system.state
    here = set(living(job))
    untold = {each.number for each in system.workers if each.phase != DEAD or each.number in system.tell_finished}
    model_roster.require(here == untold, f"workers {here} have slots, and {untold} have not ended")
    model_roster.require(set(state.hosts) <= here, "the roll has a worker without a slot")
    model_roster.require(not (state.ended and job.end is None), "the roster has ended the job, and the slots have not")
    ranks = {worker: rank for rank, worker in enumerate(state.members) if worker in here}
    model_roster.require(job.ranks.items() >= ranks.items(), "the slots do not know the members of the world")
    model_roster.require(set(job.ranks) <= here and set(job.joined_at) <= here, "data of an ended worker is kept")


def _check_exclusion(system: System, number: int) -> None:
    """Check that the last worker that holds the state is not given up while others can still get it.

    A worker is given up once. If it is still alive later, and the worker that held the state then is lost, the state is
    lost as well: the excluded worker is about to be killed.
    """
    job = dataclasses.replace(_of(system), roster=system.state)
    if not system.counted or job.end is not None or number in system.excused | system.evicted:
        return
    if system.tell_finished:
        return  # The launcher does not know of these ends yet.
    staying = [each for each in system.workers if each.phase not in (DEAD, FAILING) and not _is_refused(each)]
    holders = [each.number for each in staying if each.trained and each.number not in system.evicted]
    model_roster.require(holders != [number] or not will_start(job, 0.0), "the last worker with the state is excluded")


def _is_refused(worker: Worker) -> bool:
    return any(isinstance(answer, Refuse) for answer in worker.answers)


def check_rest(system: System) -> None:
    """Check the invariants of a job in which nothing happens any more."""
    alive = [each.number for each in system.workers if each.runs()]
    if _of(system).end is not None:
        model_roster.require(not alive, f"the job has ended, and {alive} live on")
        return
    model_roster.require(bool(alive) or _somebody_is_stopped(system), "no worker is left, and the job has not ended")
    job = dataclasses.replace(_of(system), roster=system.state)
    full = len(living(job)) + len(job.early) >= min(_places(system), job.most)
    model_roster.require(full or job.closing, "a slot stays free that could have a worker")


def _places(system: System) -> int:
    return sum(site.phase == "ready" and not site.closed for site in _of(system).sites)


def _somebody_is_stopped(system: System) -> bool:
    return any(each.stopped and each.phase not in (DEAD, FAILING) for each in system.workers)
