"""The roster's service in the model of an elastic job, and its invariants; see `model`."""

from __future__ import annotations

import joined_decisions
from model_state import (
    DEAD,
    FAILING,
    STEPPING,
    WAITING,
    Notice,
    System,
    Violation,
    Worker,
    World,
    change,
    known_to,
)
from msgspec.structs import astuple, replace

from farandole.control.roster.elastic import ElasticState, decide
from farandole.control.roster.events import (
    Announce,
    End,
    Event,
    Evict,
    Expected,
    Finished,
    Hold,
    Joined,
    Notify,
    Refuse,
    Revoke,
    Show,
)
from farandole.control.roster.membership import missing, missing_at_least


def start_worker(system: System) -> System:
    """Start one more worker, as the launcher of a job without hosts."""
    number = len(system.workers)
    system = replace(system, workers=(*system.workers, Worker(number)))
    return happen(system, Expected(number, f"h{number}"))


_decisions: dict[tuple[int, Event], tuple[ElasticState, tuple[object, ...]]] = {}
_states: dict[object, ElasticState] = {}


def the_one(state: ElasticState) -> ElasticState:
    """Return one object for all equal states, so that they can be compared by identity."""
    fields = astuple(state)
    return _states.setdefault(
        tuple(frozenset(each.items()) if isinstance(each, dict) else each for each in fields), state
    )


def happen(system: System, event: Event) -> System:
    """Let the roster decide about an event (with the slots, if the job has any), and carry out its actions."""
    if system.slots is not None:
        return joined_decisions.happen(system, event)
    key = (id(system.state), event)
    if key not in _decisions:
        state, actions, _ = decide(system.state, event)
        _decisions[key] = (the_one(state), actions)
    before = system.state
    state, actions = _decisions[key]
    system = replace(system, state=state)
    for action in actions:
        system = act(system, before, action)
    check_state(system)
    return system


def forget_decisions() -> None:
    """Clear the caches of earlier explorations."""
    _decisions.clear()
    joined_decisions.forget()
    _states.clear()


def end_of(system: System, number: int) -> Event:
    """Return the event that a worker's process has ended."""
    if system.slots is not None:
        return joined_decisions.end_of(system, number)
    # In a job without hosts, the exit code matters only for workers that end before there is a world.
    early = not system.state.generation and number not in system.done_early
    return Finished(number, "ended", number in system.exits_badly or early)


def act(system: System, before: ElasticState, action: object) -> System:
    """Carry out an action of the roster, as its service would."""
    if isinstance(action, Announce):
        check_announcement(system, before, action)
        system = replace(system, counted=system.counted and _keeps_state(system, action))
        world = World(action.generation, action.workers)
        for worker in action.workers:
            system = _answer(system, worker, world)
    elif isinstance(action, Refuse):
        system = _answer(system, action.worker, Refuse(action.worker, ""))
    elif isinstance(action, Show):
        system = _answer(system, action.worker, action)
    elif isinstance(action, Notify | Revoke):
        notice = Notice(system.state.generation, _without_words(action))
        for worker in action.workers:
            system = _send(system, worker, notice)
    elif isinstance(action, Evict):
        require(action.worker not in system.evicted, f"worker {action.worker} is evicted twice")
        require(action.worker in known_to(before), f"worker {action.worker} is evicted, and was forgotten")
        system = replace(
            system,
            evicted=system.evicted | {action.worker},
            to_kill=system.to_kill | {action.worker},
        )
    elif isinstance(action, End):
        system = replace(system, to_kill=frozenset(each.number for each in system.workers if each.phase != DEAD))
    else:
        assert isinstance(action, Hold)
    return system


def _without_words(action: Notify | Revoke) -> Notify | Revoke:
    """Return a notice reduced to what its receivers act on, so that more systems are equal."""
    if isinstance(action, Notify):
        return Notify((), 0, int(action.added + action.removed > 0), 0, "")
    return Revoke((), action.generation, action.rank, "", False)


def _answer(system: System, number: int, content: object) -> System:
    require(number in system.unanswered, f"worker {number} gets an answer without a join")
    return _send(replace(system, unanswered=system.unanswered - {number}), number, content)


def _send(system: System, number: int, content: object) -> System:
    worker = system.workers[number]
    if not worker.connected or worker.phase == DEAD:
        return system
    return change(system, number, answers=(*worker.answers, content))


# --- invariants -----------------------------------------------------------------------------------------------------


def require(truth: bool, otherwise: str) -> None:
    if not truth:
        raise Violation(otherwise)


def check_state(system: System) -> None:
    """Check that the roster has no stale data."""
    state = system.state
    alive = {each.number for each in system.workers if each.phase != DEAD or each.number in system.tell_finished}
    members = set(state.members)
    require(set(state.hosts) <= alive, "the roll has a worker that has ended")
    require(set(state.stopped) <= set(state.hosts), "a stopped worker is kept that is not on the roll")
    require(state.expected <= set(state.hosts), "a worker is expected that is not on the roll")
    require(set(state.waiting) <= set(state.hosts), "a worker waits that is not on the roll")
    marked = state.gone | state.done | set(state.suspects) | state.barred | state.holders | state.leaving
    require(marked <= members, "data of a worker that is not a member is kept")
    require(state.exiting <= alive, "a worker is about to exit that has ended")
    require(missing_at_least(state) <= len(missing(state)), "a worker counts as missing that is not")
    require(set(state.waiting) <= system.unanswered, "a join is held that was answered")
    forgotten = system.unanswered.difference(state.waiting)
    require(all(system.workers[each].phase == DEAD for each in forgotten), "a join is forgotten")


def check_announcement(system: System, before: ElasticState, action: Announce) -> None:
    """Check the invariants of a new world."""
    workers, limits = action.workers, system.state.limits
    joined = {**before.waiting, **{each.worker: each for each in joining}}
    require(action.generation == before.generation + 1, "generations do not grow by one")
    require(len(set(workers)) == len(workers) > 0, "a worker has two places, or no worker has one")
    require(not set(workers) & system.evicted, "an evicted worker is in a world")
    told_dead = {each.number for each in system.workers if each.phase == DEAD} - system.tell_finished
    require(not set(workers) & told_dead, "a dead worker is in a world")
    trained = [worker for worker in workers if joined[worker].trained]
    require(list(workers[: len(trained)]) == trained, "workers that hold the state are not first")
    require(set(trained) <= set(before.members), "a worker brings an old state")
    survivors = [worker for worker in before.members if worker in trained]
    require(trained == survivors, "survivors are not in their old order")
    middle = any(not joined[worker].open for worker in workers)
    require(not middle or set(workers) == set(trained), "a worker enters in the middle of a step")
    handing_over = not before.leaving.isdisjoint(workers)
    require(middle or len(workers) <= limits.max_size + handing_over, "a world is too large")
    enough = len(workers) + (len(system.state.waiting) if middle else 0) >= limits.min_size
    require(enough or system.state.finishing, "a world is too small")
    if system.counted and not trained:
        members = [system.workers[number] for number in before.members]
        left = [each for each in members if each.trained and each.phase not in (FAILING, DEAD) and each.connected]
        names = {each.number for each in left} - system.excused
        require(not names, f"the state is lost, though {names} have it")


joining: list[Joined] = []
"""The joins that the roster is deciding on, if there are any."""


def _keeps_state(system: System, action: Announce) -> bool:
    return any(system.workers[worker].trained for worker in action.workers)


def check_rest(system: System) -> None:
    """Check the invariants of a system in which nothing happens any more and no timer runs."""
    state = system.state
    if system.slots is not None:
        joined_decisions.check_rest(system)
        if system.slots.end is not None:
            return
    if state.ended:
        left = [each.number for each in system.workers if each.phase != DEAD]
        require(not left, f"the job has ended, and {left} live on")
        return
    alive = [each for each in system.workers if each.runs()]
    # A world that continues without the roster gets no notices, and does not break because of that.
    unheard = not any(system.workers[number].connected for number in state.members)
    for worker in alive:
        if worker.number in state.members and worker.phase == STEPPING:
            require(worker.world == World(state.generation, state.members), f"worker {worker.number} is in no world")
            stays = worker.number not in state.leaving or bool(state.expected) or unheard
            require(stays, f"worker {worker.number} was asked to leave, and has not")
        else:
            spare = worker.phase == WAITING and (len(state.members) >= state.limits.max_size or unheard)
            require(spare, f"worker {worker.number} is {worker.phase} for ever")
    members = {each.number for each in alive if each.phase == STEPPING}
    require(members == set(state.members) or not members, "a world has gaps that no member notices")
    # A worker that was stopped after it sent its join counts as alive.
    stopped = any(each.stopped and each.phase != DEAD for each in system.workers)
    require(bool(alive) or state.finishing or stopped, "no worker is left, and the job has not ended")
