"""The possible next steps of the model's workers, network and launcher, without faults; see `model`."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

import joined_decisions
from model_roster import end_of, happen, joining, require, start_worker
from model_state import (
    AHEAD,
    BETWEEN,
    DEAD,
    FAILING,
    FORMING,
    IN_WORLD,
    MIDDLE,
    PREPARING,
    SHARING,
    STARTING,
    STEPPING,
    WAITING,
    Accusations,
    Notice,
    Step,
    System,
    Worker,
    World,
    accuse,
    change,
)
from msgspec.structs import replace

from farandole.control.roster.events import (
    Continued,
    Joined,
    JoinedTogether,
    Left,
    Lost,
    Notify,
    Promised,
    Refuse,
    Show,
    Suspected,
)


def steps(system: System) -> Iterator[Step]:
    """Return all possible next steps, except faults and the end of holds."""
    for worker in system.workers:
        yield from _network_steps(system, worker)
        if worker.runs():
            yield from _worker_steps(system, worker)
    together = [worker for worker in system.workers if worker.sent and isinstance(worker.sent[0], Joined)]
    if len(together) > 1:
        yield "the roster reads all joins together", lambda: _deliver_together(system, together)
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
    joining[:] = [message]
    try:
        return happen(replace(system, unanswered=system.unanswered | {number}), message)
    finally:
        joining.clear()


def _deliver_together(system: System, workers: Sequence[Worker]) -> System:
    for worker in workers:
        require(worker.number not in system.unanswered, f"worker {worker.number} joins twice")
        system = change(system, worker.number, sent=worker.sent[1:])
    joining[:] = [worker.sent[0] for worker in workers]
    try:
        unanswered = system.unanswered.union(worker.number for worker in workers)
        return happen(replace(system, unanswered=unanswered), JoinedTogether(tuple(joining)))
    finally:
        joining.clear()


def _hang_up(system: System, number: int) -> System:
    return happen(replace(system, unanswered=system.unanswered - {number}), Lost(number))


def _launcher_steps(system: System) -> Iterator[Step]:
    for number in system.tell_finished:
        if system.slots is not None and number in system.goodbyes and system.workers[number].sent:
            continue  # The launcher waits for the last messages of a worker that ends by itself.
        yield (
            f"the end of {number} is told",
            lambda number=number: happen(
                replace(system, tell_finished=system.tell_finished - {number}),
                end_of(system, number),
            ),
        )
    for number in system.tell_suspected:
        yield (
            f"the stop of {number} is told",
            lambda number=number: happen(
                replace(system, tell_suspected=system.tell_suspected - {number}),
                Suspected((number,), "was stopped", stopped=True),
            ),
        )
    for number in system.state.stopped:
        if system.workers[number].runs() or number in system.tell_suspected:  # In the latter case, it stopped again.
            yield f"{number} runs again, as is told", lambda number=number: happen(system, Continued(number))
    if system.slots is not None:
        yield from joined_decisions.steps(system)
    elif system.state.promised:
        yield "the promised worker is started", lambda: happen(start_worker(system), Promised(False))
        yield "no worker is promised any more", lambda: happen(system, Promised(False))
    for number in system.to_kill:
        yield (
            f"{number} is killed by order",
            lambda number=number: kill(replace(system, to_kill=system.to_kill - {number}), number),
        )


def kill(system: System, number: int) -> System:
    """End a process. Messages that it has sent are still read."""
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


def ended_well(system: System, number: int) -> System:
    """Record that a worker ends with exit code 0, where that matters."""
    return system if system.slots is None else replace(system, ended_well=system.ended_well | {number})


def says_goodbye(system: System, number: int) -> System:
    """Record that the other members of a worker's world see it leave, where that matters."""
    return system if system.slots is None else replace(system, goodbyes=system.goodbyes | {number})


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


def _join(system: System, worker: Worker, *, arriving: bool = False, accused: Accusations = ()) -> System:
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
    # A worker that takes steps without the state is a newcomer again when its world ends.
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
        return kill(ended_well(system, number), number)
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
        return _abandon(system, worker, (accuse(content.rank),))
    return system


def _abandon(system: System, worker: Worker, accused: Accusations) -> System:
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
    """Return the steps that a worker takes together with all others of its world."""
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
    """Enter a world, and learn how far its members are."""
    if furthest == AHEAD and worker.where == MIDDLE:
        # Its step counts, and the world is to change: it learns this from the members that are ahead.
        return _abandon(system, replace(worker, phase=SHARING, where=AHEAD), ())
    phase = STEPPING if furthest == MIDDLE else SHARING
    return change(system, worker.number, phase=phase)


def _share(system: System, worker: Worker) -> System:
    return change(system, worker.number, phase=STEPPING, trained=True, where=BETWEEN)


def _vote(system: System) -> Iterator[Step]:
    """Let a step count once all members of a world agree; each member learns of it separately."""
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
        return replace(system, counted=True)  # Training continues step by step.
    for each in members:
        # Before a world is abandoned, members without the state get it.
        system = change(system, each.number, trained=True)
    return replace(system, voted=world.generation, counted=True)


def _step_counts(system: System, worker: Worker) -> System:
    if system.last:
        left = Left(worker.number, worker.world.generation)
        sent = (*worker.sent, left) if worker.connected else worker.sent
        system = says_goodbye(ended_well(system, worker.number), worker.number)
        return kill(change(system, worker.number, sent=sent), worker.number)
    worker = replace(worker, phase=SHARING, where=AHEAD)
    return _abandon(system, worker, ())


def _breaks(system: System, worker: Worker) -> Iterator[Step]:
    """Return the ways in which a worker may lose its world."""
    for accused in sorted(_losses(system, worker), key=repr):
        text = ", ".join(f"{each.rank} {each.how}" for each in accused)
        yield (
            f"{worker.number} abandons {worker.world.generation} ({text})",
            lambda accused=accused: _abandon(system, worker, accused),
        )


def _losses(system: System, worker: Worker) -> set[Accusations]:
    losses: set[Accusations] = set()
    forming = worker.phase == FORMING
    for rank, number in enumerate(worker.world.members):
        other = system.workers[number]
        cut = frozenset((number, worker.number)) in system.cut
        itself = accuse(rank, forming=True) if forming else None
        if other.phase == DEAD:
            losses.add((itself or accuse(rank, certain=True, left=number in system.goodbyes),))
        elif other.stopped or cut:
            losses.add((itself or accuse(rank),))
        elif other.phase == FAILING and itself:
            losses.add((itself,))
        elif _has_turned(other, worker.world):
            # It sends the others the reason; a worker that is not connected yet sees only that it gives up.
            passed_on = tuple(accuse(each.rank, each.certain, forming, each.left) for each in other.accused)
            losses.add(passed_on if other.world == worker.world else ())
            if itself:
                losses.add((itself,))
    return losses


def _has_turned(worker: Worker, world: World) -> bool:
    if worker.world.generation == world.generation:
        return worker.phase not in IN_WORLD
    return worker.world.generation > world.generation
