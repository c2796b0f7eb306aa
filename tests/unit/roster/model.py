"""An executable model of an elastic job: the real `decide`, and the simplest workers, launcher and network around it.

A *system* is one state of all of them, as plain data. `steps` returns what may happen next, in any order; `faults` what
may go wrong. `explorer` goes through all systems that can be reached, and `simulate` takes one long random way.
Whatever happens, `act` and `check_rest` hold what must always be true; they raise `Violation`.

Time has no place here: who waits long enough (`HoldOver`) does so when nothing else can happen any more.
"""

from __future__ import annotations

import random
from collections import deque
from collections.abc import Callable, Iterator

import msgspec
from msgspec.structs import astuple, replace

from farandole.roster.elastic import Limits, State, decide
from farandole.roster.events import (
    Accusation,
    Announce,
    Drained,
    End,
    Event,
    Evict,
    Evicted,
    Expected,
    Failed,
    Finished,
    Hold,
    HoldOver,
    Joined,
    Left,
    Lost,
    Notify,
    Promised,
    Refuse,
    Resized,
    Revoke,
    Show,
    Suspected,
)

STARTING = "starting"  # its process runs; it has not arrived
PREPARING = "preparing"  # it has seen the world, and has not joined
WAITING = "waiting"  # its join has no answer that it has read
FORMING = "forming"  # it has read of its world, and is not connected yet
SHARING = "sharing"  # the state goes to those who do not have it
STEPPING = "stepping"  # in the middle of a step
FAILING = "failing"  # it has raised an exception, and its process ends some time
DEAD = "dead"
BETWEEN, MIDDLE, AHEAD = 0, 1, 2
"""Between two steps; in the middle of one; at the end of one of which others may not know yet that it counts."""

IN_WORLD = (FORMING, SHARING, STEPPING)

Accused = tuple[Accusation, ...]
Message = Joined | Left | Failed


class Violation(AssertionError):
    """Something has happened that never may."""


class World(msgspec.Struct, frozen=True, gc=False):
    """A world as its members know it. It comes with the announcement."""

    generation: int
    members: tuple[int, ...]


class Notice(msgspec.Struct, frozen=True, gc=False):
    """What the roster says by itself to the members of a world."""

    generation: int
    content: Notify | Revoke


class Worker(msgspec.Struct, frozen=True, gc=False):
    """One worker, and its connection to the roster: messages under way, in order."""

    number: int
    phase: str = STARTING
    world: World = World(0, ())
    trained: bool = False
    stopped: bool = False
    where: int = BETWEEN  # how far it was in its steps when it joined
    change: int = 0  # the generation of which it knows that it is to change
    accused: Accused = ()  # whom it lost when it turned away
    sent: tuple[Message, ...] = ()
    answers: tuple[object, ...] = ()
    connected: bool = True

    def runs(self) -> bool:
        """Say whether it can do anything."""
        return self.phase != DEAD and not self.stopped


class System(msgspec.Struct, frozen=True, gc=False):
    """All there is."""

    state: State
    workers: tuple[Worker, ...]
    cut: frozenset[frozenset[int]] = frozenset()
    voted: int = 0  # the latest world that is to change, or to end, as a step of it has counted
    counted: bool = False  # a step has counted, so there is state that can be lost
    last: bool = False  # the next step is the last one
    unanswered: frozenset[int] = frozenset()  # joins that the service holds
    tell_finished: frozenset[int] = frozenset()
    exits_badly: frozenset[int] = frozenset()  # said goodbye, and ended with another exit code than 0
    tell_suspected: frozenset[int] = frozenset()
    to_kill: frozenset[int] = frozenset()
    evicted: frozenset[int] = frozenset()
    excused: frozenset[int] = frozenset()  # whose state may be given up: asked to leave, or evicted
    faults_left: int = 0


Step = tuple[str, Callable[[], System]]


def beginning(size: int, limits: Limits, faults: int) -> System:
    """Return a job whose first workers were just started."""
    system = System(State(limits), (), faults_left=faults)
    for _ in range(size):
        system = start_worker(system)
    return system


def training(size: int, limits: Limits, faults: int) -> System:
    """Return a job whose first world trains."""
    system = beginning(size, limits, faults)
    while moving := [step for step in steps(system) if not is_plain_step(system, step[0])]:
        system = moving[0][1]()
    return system


def start_worker(system: System) -> System:
    """Start one more worker."""
    number = len(system.workers)
    system = replace(system, workers=(*system.workers, Worker(number)))
    return happen(system, Expected(number, f"h{number}"))


# --- the roster's service -------------------------------------------------------------------------------------------


_decisions: dict[tuple[int, Event], tuple[State, tuple[object, ...]]] = {}
_states: dict[object, State] = {}


def the_one(state: State) -> State:
    """Return one object for all equal states, so that they are told apart quickly."""
    fields = astuple(state)
    return _states.setdefault(
        tuple(frozenset(each.items()) if isinstance(each, dict) else each for each in fields), state
    )


def happen(system: System, event: Event) -> System:
    """Let the roster decide, and do what it says."""
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
    """Free what was remembered of earlier explorations."""
    _decisions.clear()
    _states.clear()


def act(system: System, before: State, action: object) -> System:
    """Do what the roster says, as its service would."""
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


def known_to(state: State) -> set[int]:
    """Return the workers that the roster has not forgotten."""
    return {*state.members, *state.hosts, *state.exiting}


def _without_words(action: Notify | Revoke) -> Notify | Revoke:
    """Return of a notice what its readers act on, so that systems which differ in nothing else are one."""
    if isinstance(action, Notify):
        return Notify((), int(action.added + action.removed > 0), 0, "")
    return Revoke((), action.generation, action.rank, "", False)


def _answer(system: System, number: int, content: object) -> System:
    require(number in system.unanswered, f"worker {number} gets an answer to no join")
    return _send(replace(system, unanswered=system.unanswered - {number}), number, content)


def _send(system: System, number: int, content: object) -> System:
    worker = system.workers[number]
    if not worker.connected or worker.phase == DEAD:
        return system
    return change(system, number, answers=(*worker.answers, content))


# --- what must always be true ---------------------------------------------------------------------------------------


def require(truth: bool, otherwise: str) -> None:
    if not truth:
        raise Violation(otherwise)


def check_state(system: System) -> None:
    """Check that the roster knows nothing but what it needs."""
    state = system.state
    alive = {each.number for each in system.workers if each.phase != DEAD or each.number in system.tell_finished}
    members = set(state.members)
    require(set(state.hosts) <= alive, "the roll has a worker that has ended")
    require(state.expected <= set(state.hosts), "a worker is expected that is not on the roll")
    require(set(state.joined()) <= set(state.hosts), "a worker waits that is not on the roll")
    marked = state.gone | state.done | set(state.suspects) | state.barred | state.holders | state.leaving
    require(marked <= members, "something is kept of a worker that is no member")
    require(state.exiting <= alive, "a worker is about to exit that has ended")
    require(set(state.joined()) <= system.unanswered, "a join is held that was answered")
    forgotten = system.unanswered.difference(state.joined())
    require(all(system.workers[each].phase == DEAD for each in forgotten), "a join is forgotten")


def check_announcement(system: System, before: State, action: Announce) -> None:
    """Check a new world."""
    workers, limits = action.workers, system.state.limits
    joined = {each.worker: each for each in (*before.waiting, *_latest_joins(system))}
    require(action.generation == before.generation + 1, "generations do not grow by one")
    require(len(set(workers)) == len(workers) > 0, "a worker has two places, or nobody has one")
    require(not set(workers) & system.evicted, "an evicted worker is in a world")
    told_dead = {each.number for each in system.workers if each.phase == DEAD} - system.tell_finished
    require(not set(workers) & told_dead, "a dead worker is in a world")
    trained = [worker for worker in workers if joined[worker].trained]
    require(list(workers[: len(trained)]) == trained, "those who hold the state are not first")
    require(set(trained) <= set(before.members), "somebody brings an old state")
    survivors = [worker for worker in before.members if worker in trained]
    require(trained == survivors, "survivors are not in their old order")
    middle = any(not joined[worker].open for worker in workers)
    require(not middle or set(workers) == set(trained), "somebody comes in in the middle of a step")
    handing_over = not before.leaving.isdisjoint(workers)
    require(middle or len(workers) <= limits.max_size + handing_over, "a world is too large")
    enough = len(workers) + (len(system.state.waiting) if middle else 0) >= limits.min_size
    require(enough or system.state.finishing, "a world is too small")
    if system.counted and not trained:
        members = [system.workers[number] for number in before.members]
        left = [each for each in members if each.trained and each.phase not in (FAILING, DEAD) and each.connected]
        names = {each.number for each in left} - system.excused
        require(not names, f"the state is lost, though {names} have it")


def _latest_joins(system: System) -> list[Joined]:
    return [_joining[0]] if _joining else []


_joining: list[Joined] = []
"""The join that the roster is deciding on, if there is one."""


def _keeps_state(system: System, action: Announce) -> bool:
    return any(system.workers[worker].trained for worker in action.workers)


def check_rest(system: System) -> None:
    """Check a system in which nothing happens any more, and nobody waits for a time to be over."""
    state = system.state
    alive = [each for each in system.workers if each.runs()]
    if state.ended:
        require(not alive, f"the job has ended, and {[each.number for each in alive]} live on")
        return
    # A world that goes on without the roster is told of nobody; it does not break for that.
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
    require(members == set(state.members) or not members, "a world has gaps that nobody sees")
    # Who was stopped before it joined is believed to live, as it has joined.
    stopped = any(each.stopped and each.phase != DEAD for each in system.workers)
    require(bool(alive) or state.finishing or stopped, "nobody is left, and the job has not ended")


# --- what may happen ------------------------------------------------------------------------------------------------


def change(system: System, number: int, **fields: object) -> System:
    """Return the system with one worker changed."""
    workers = list(system.workers)
    workers[number] = replace(workers[number], **fields)
    return replace(system, workers=tuple(workers))


def steps(system: System) -> Iterator[Step]:
    """Return all that may happen next, but for faults and the end of patience."""
    for worker in system.workers:
        yield from _network_steps(system, worker)
        if worker.runs():
            yield from _worker_steps(system, worker)
    yield from _launcher_steps(system)
    yield from _vote(system)


def _network_steps(system: System, worker: Worker) -> Iterator[Step]:
    number = worker.number
    if worker.sent:
        yield f"the roster reads from {number}", lambda: deliver(system, worker)
    elif not worker.connected or worker.phase == DEAD:
        if number in system.unanswered:
            yield f"the roster sees {number} hang up", lambda: _hang_up(system, number)


def deliver(system: System, worker: Worker) -> System:
    message, number = worker.sent[0], worker.number
    system = change(system, number, sent=worker.sent[1:])
    if not isinstance(message, Joined):
        return happen(system, message)
    require(number not in system.unanswered, f"worker {number} joins twice")
    _joining[:] = [message]
    try:
        return happen(replace(system, unanswered=system.unanswered | {number}), message)
    finally:
        _joining.clear()


def _hang_up(system: System, number: int) -> System:
    return happen(replace(system, unanswered=system.unanswered - {number}), Lost(number))


def _launcher_steps(system: System) -> Iterator[Step]:
    for number in system.tell_finished:
        yield (
            f"the end of {number} is told",
            lambda number=number: happen(
                replace(system, tell_finished=system.tell_finished - {number}),
                Finished(number, "ended", number in system.exits_badly),
            ),
        )
    for number in system.tell_suspected:
        yield (
            f"the stop of {number} is told",
            lambda number=number: happen(
                replace(system, tell_suspected=system.tell_suspected - {number}), Suspected((number,), "was stopped")
            ),
        )
    if system.state.promised:
        yield "the promised worker is started", lambda: happen(start_worker(system), Promised(False))
        yield "no worker is promised any more", lambda: happen(system, Promised(False))
    for number in system.to_kill:
        yield (
            f"{number} is killed by order",
            lambda number=number: kill(replace(system, to_kill=system.to_kill - {number}), number),
        )


def kill(system: System, number: int) -> System:
    """End a process. What it has sent is still read."""
    worker = system.workers[number]
    if worker.phase == DEAD:
        return system
    dead = Worker(number, DEAD, sent=worker.sent, connected=worker.connected)
    workers = tuple(dead if each.number == number else each for each in system.workers)
    return replace(
        system,
        workers=workers,
        tell_finished=system.tell_finished | {number},
        tell_suspected=system.tell_suspected - {number},
        to_kill=system.to_kill - {number},
        cut=frozenset(pair for pair in system.cut if number not in pair),
    )


def _worker_steps(system: System, worker: Worker) -> Iterator[Step]:
    number = worker.number
    if worker.answers:
        yield f"{number} reads", lambda: read(system, worker)
    if worker.phase == STARTING:
        yield f"{number} arrives", lambda: _join(system, worker, arriving=True)
    elif worker.phase == PREPARING:
        yield f"{number} is prepared", lambda: _join(system, worker)
    elif worker.phase == WAITING and not worker.connected:
        yield f"{number} ends without an answer", lambda: kill(system, number)
    elif worker.phase == FAILING:
        yield f"{number} ends at last", lambda: kill(system, number)
    elif worker.phase in IN_WORLD:
        yield from _go_on(system, worker)
        yield from _breaks(system, worker)


def _join(system: System, worker: Worker, *, arriving: bool = False, accused: Accused = ()) -> System:
    if not worker.connected:
        return kill(system, worker.number)  # It gets an error, and ends with it.
    joined = Joined(
        worker.number,
        "",
        generation=worker.world.generation,
        trained=worker.trained,
        accused=accused,
        arriving=arriving,
        open=not _in_the_middle(worker),
    )
    return change(system, worker.number, phase=WAITING, accused=accused, sent=(*worker.sent, joined))


def _in_the_middle(worker: Worker) -> bool:
    # Who takes steps without the state is a newcomer again when its world ends.
    stepping = worker.phase == STEPPING and worker.trained
    return stepping or (worker.phase == FORMING and worker.where == MIDDLE)


def read(system: System, worker: Worker) -> System:
    content, number = worker.answers[0], worker.number
    system = change(system, number, answers=worker.answers[1:])
    worker = system.workers[number]
    if worker.phase == FAILING:
        return system
    if isinstance(content, World):
        return change(system, number, phase=FORMING, world=content, accused=())
    if isinstance(content, Refuse):
        return kill(system, number)
    if isinstance(content, Show):
        return change(system, number, phase=PREPARING)
    assert isinstance(content, Notice)
    return _heed(system, worker, content)


def _heed(system: System, worker: Worker, notice: Notice) -> System:
    content = notice.content
    if isinstance(content, Notify):
        wanted = notice.generation if content.added or content.removed else 0
        return change(system, worker.number, change=wanted)
    if worker.world.generation == content.generation and worker.phase in (SHARING, STEPPING):
        return _turn_away(system, worker, (accuse(content.rank),))
    return system


def _turn_away(system: System, worker: Worker, accused: Accused) -> System:
    where = MIDDLE if worker.phase == STEPPING else worker.where
    where = where if worker.trained else BETWEEN
    system = _join(system, worker, accused=accused)
    return system if system.workers[worker.number].phase == DEAD else change(system, worker.number, where=where)


def _together(system: System, worker: Worker) -> list[Worker]:
    """Return the members of a worker's world that are still in it, itself included."""
    members = [system.workers[number] for number in worker.world.members]
    return [each for each in members if each.world == worker.world and each.phase in IN_WORLD]


def _can_talk(system: System, members: list[Worker]) -> bool:
    numbers = {each.number for each in members}
    return all(each.runs() for each in members) and not any(pair <= numbers for pair in system.cut)


def _go_on(system: System, worker: Worker) -> Iterator[Step]:
    """What a worker does with all others of its world."""
    number, members = worker.number, _together(system, worker)
    complete = len(members) == len(worker.world.members) and _can_talk(system, members)
    if worker.phase == FORMING and complete:
        yield f"{number} forms", lambda: _form(system, worker, max(each.where for each in members))
    elif worker.phase == SHARING and complete and all(each.phase != FORMING for each in members):
        yield f"{number} has the state", lambda: _share(system, worker)
        others_hold_it = system.state.generation == worker.world.generation and system.state.holders
        if not worker.trained and others_hold_it:
            yield (
                f"{number} takes steps without the state",
                lambda: change(system, number, phase=STEPPING, where=BETWEEN),
            )
    elif (
        worker.phase == STEPPING and not worker.trained and complete and all(each.phase == STEPPING for each in members)
    ):
        yield f"{number} has the state at last", lambda: change(system, number, trained=True)
    elif worker.phase == STEPPING and worker.world.generation == system.voted:
        yield f"{number} hears that the step counts", lambda: _step_counts(system, worker)


def _form(system: System, worker: Worker, furthest: int) -> System:
    """Enter a world, and find out how far its members are."""
    if furthest == AHEAD and worker.where == MIDDLE:
        # Its step counts, and the world is to change: it learns so from those who are ahead.
        return _turn_away(system, replace(worker, phase=SHARING, where=AHEAD), ())
    phase = STEPPING if furthest == MIDDLE else SHARING
    return change(system, worker.number, phase=phase)


def _share(system: System, worker: Worker) -> System:
    return change(system, worker.number, phase=STEPPING, trained=True, where=BETWEEN)


def _vote(system: System) -> Iterator[Step]:
    """A step counts as soon as all members of a world say so; each hears of it by itself."""
    seen = set()
    for worker in system.workers:
        if worker.phase != STEPPING or worker.world in seen or worker.world.generation == system.voted:
            continue
        seen.add(worker.world)
        ready = [each for each in _together(system, worker) if each.phase == STEPPING]
        if len(ready) == len(worker.world.members) and _can_talk(system, ready):
            yield f"a step of generation {worker.world.generation} counts", lambda ready=ready: _count(system, ready)


def _count(system: System, members: list[Worker]) -> System:
    world = members[0].world
    require(world.generation == system.state.generation, "a step counts in an old world")
    turned = any(each.change == world.generation for each in members)
    if not turned and not system.last:
        return replace(system, counted=True)  # And so on, step by step.
    for each in members:
        # Before a world is turned away from, those without the state get it.
        system = change(system, each.number, trained=True)
    return replace(system, voted=world.generation, counted=True)


def _step_counts(system: System, worker: Worker) -> System:
    if system.last:
        left = Left(worker.number, worker.world.generation)
        sent = (*worker.sent, left) if worker.connected else worker.sent
        return kill(change(system, worker.number, sent=sent), worker.number)
    worker = replace(worker, phase=SHARING, where=AHEAD)
    return _turn_away(system, worker, ())


def _breaks(system: System, worker: Worker) -> Iterator[Step]:
    """How a worker may lose its world."""
    for accused in sorted(_losses(system, worker), key=repr):
        text = ", ".join(f"{each.rank} {each.how}" for each in accused)
        yield (
            f"{worker.number} turns away from {worker.world.generation} ({text})",
            lambda accused=accused: _turn_away(system, worker, accused),
        )


def _losses(system: System, worker: Worker) -> set[Accused]:
    losses: set[Accused] = set()
    forming = worker.phase == FORMING
    for rank, number in enumerate(worker.world.members):
        other = system.workers[number]
        cut = frozenset((number, worker.number)) in system.cut
        itself = accuse(rank, forming=True) if forming else None
        if other.phase == DEAD:
            losses.add((itself or accuse(rank, certain=True),))
        elif other.stopped or cut:
            losses.add((itself or accuse(rank),))
        elif other.phase == FAILING and itself:
            losses.add((itself,))
        elif _has_turned(other, worker.world):
            # It tells the others why; who is not connected yet sees only that it gives up.
            passed_on = tuple(accuse(each.rank, each.certain, forming) for each in other.accused)
            losses.add(passed_on if other.world == worker.world else ())
            if itself:
                losses.add((itself,))
    return losses


def accuse(rank: int, certain: bool = False, forming: bool = False) -> Accusation:
    """Accuse a member in words that say no more than the rest of the accusation."""
    how = "could not be reached" if forming else "died" if certain else "is silent"
    return Accusation(rank, how, certain, forming)


def _has_turned(worker: Worker, world: World) -> bool:
    if worker.world.generation == world.generation:
        return worker.phase not in IN_WORLD
    return worker.world.generation > world.generation


# --- what may go wrong ----------------------------------------------------------------------------------------------


KINDS = ("kill", "fail", "exit", "stop", "continue", "cut", "drain", "newcomer", "evict", "hang up", "last", "shrink")
LASTING = 10
"""So many of them, from the first, leave a job that can go on as before."""


def faults(system: System, kinds: tuple[str, ...] = KINDS) -> Iterator[Step]:
    """Return all that may go wrong, or be asked for, now."""
    if not system.faults_left or system.state.ended:
        return
    system = replace(system, faults_left=system.faults_left - 1)
    for worker in system.workers:
        if worker.phase != DEAD:
            yield from _faults_of(system, worker, kinds)
    if "newcomer" in kinds:
        yield "a newcomer is started", lambda: start_worker(system)
    if "promise" in kinds and not system.state.promised:
        yield "a worker is promised", lambda: happen(system, Promised(True))
    if "last" in kinds and not system.last and system.counted:
        yield "the last step begins", lambda: replace(system, last=True)
    limits = system.state.limits
    if "shrink" in kinds and limits.max_size > 1:
        smaller = Resized(min(limits.min_size, limits.max_size - 1), limits.max_size - 1)
        yield "the job is made smaller", lambda: happen(system, smaller)


def _faults_of(system: System, worker: Worker, kinds: tuple[str, ...]) -> Iterator[Step]:
    number = worker.number
    if "kill" in kinds:
        yield f"{number} is killed", lambda: kill(system, number)
    if "fail" in kinds and worker.runs() and worker.phase != FAILING:
        yield f"{number} raises", lambda: _fail(system, worker)
    if "exit" in kinds and worker.runs() and worker.phase in (SHARING, STEPPING):
        yield f"{number} calls sys.exit(1)", lambda: _exit(system, worker)
    if "stop" in kinds and not worker.stopped:
        told = replace(system, tell_suspected=system.tell_suspected | {number})
        yield f"{number} is stopped", lambda: change(told, number, stopped=True)
    if "continue" in kinds and worker.stopped:
        yield f"{number} is continued", lambda: change(system, number, stopped=False)
    if "drain" in kinds:
        asked = replace(system, excused=system.excused | {number})
        yield f"{number} is drained", lambda: happen(asked, Drained((number,), "its host is needed"))
    if "evict" in kinds:
        excused = replace(system, excused=system.excused | {number})
        yield f"{number} is evicted", lambda: happen(excused, Evicted(number, "its host was removed"))
    if "hang up" in kinds and worker.connected:
        yield f"{number} loses the roster", lambda: _lose_roster(system, worker)
    if "cut" in kinds:
        for other in system.workers[:number]:
            pair = frozenset((number, other.number))
            if other.phase != DEAD and pair not in system.cut:
                yield f"{number} and {other.number} are cut", lambda pair=pair: replace(system, cut=system.cut | {pair})


def _fail(system: System, worker: Worker) -> System:
    """Let a worker tell the others of its world, and the roster, that it ends with an exception."""
    members = worker.world.members
    itself = (accuse(members.index(worker.number), certain=True),) if worker.phase in IN_WORLD else ()
    sent = (*worker.sent, Failed(worker.number, "boom")) if worker.connected else worker.sent
    return change(system, worker.number, phase=FAILING, accused=itself or worker.accused, sent=sent)


def _exit(system: System, worker: Worker) -> System:
    """Let a worker end as one that has finished does, but for its exit code."""
    left = Left(worker.number, worker.world.generation)
    sent = (*worker.sent, left) if worker.connected else worker.sent
    system = replace(system, exits_badly=system.exits_badly | {worker.number})
    return kill(change(system, worker.number, sent=sent), worker.number)


def _lose_roster(system: System, worker: Worker) -> System:
    """Break a connection; what is under way is lost."""
    return change(system, worker.number, connected=False, sent=(), answers=())


def patience(system: System) -> Iterator[Step]:
    """Return the end of patience, when nothing else can happen."""
    kind = system.state.hold.kind
    if kind:
        yield f"patience is over: {kind}", lambda: happen(system, HoldOver(kind))


# --- one random way ---------------------------------------------------------------------------------------------------


def is_plain_step(system: System, name: str) -> bool:
    """Say whether this is but one more step of a training that goes on."""
    if not name.startswith("a step"):
        return False
    generation = system.state.generation
    return system.counted and not system.last and not any(each.change == generation for each in system.workers)


def simulate(seed: int, size: int, count: int, limits: Limits) -> System:
    """Take one random way with so many faults, and let everything come to rest.

    Raises:
        Violation: something happened that never may; it tells the last steps.
    """
    chance = random.Random(seed)
    system = beginning(size, limits, count)
    way: deque[str] = deque(maxlen=60)
    try:
        while True:
            system, name = _random_step(system, size, chance)
            way.append(name)
            if not name:
                check_rest(system)
                return system
    except (AssertionError, LookupError, ValueError) as error:
        raise Violation(f"seed {seed}: {error!r}\n  " + "\n  ".join(way)) from error


def _random_step(system: System, size: int, chance: random.Random) -> tuple[System, str]:
    """Take one step; "" if nothing is left to happen."""
    possible = list(steps(system))
    moving = [step for step in possible if not is_plain_step(system, step[0])]
    alive = sum(worker.runs() for worker in system.workers)
    kinds = ("newcomer",) if alive < size and chance.random() < 0.6 else KINDS[:LASTING]
    wrong = list(faults(system, kinds))
    if wrong and (chance.random() < 0.1 or not moving):
        name, following = chance.choice(wrong)
    elif moving:
        name, following = chance.choice(possible)
    else:
        waits = list(patience(system))
        if not waits:
            return system, ""
        name, following = waits[0]
    return following(), name
