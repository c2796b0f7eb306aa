"""An executable model of an elastic job: the real `decide`, and the simplest workers, launcher and network around it.

A *system* is one state of all of them, as plain data (`model_state`). `steps` returns the possible next steps in any
order (`model_workers`); `faults` returns the possible faults. `explorer` visits all reachable systems, and `simulate`
takes one long random path. `act` and `check_rest` check the invariants (`model_roster`); they raise `Violation`.

The model has no clock. A hold is over (`HoldOver`) when nothing else can happen any more.
"""

from __future__ import annotations

import random
from collections import deque
from collections.abc import Callable, Iterator

import joined_decisions
from model_roster import check_rest, happen, start_worker
from model_state import (
    DEAD,
    FAILING,
    IN_WORLD,
    SHARING,
    STARTING,
    STEPPING,
    Step,
    System,
    Violation,
    Worker,
    accuse,
    change,
)
from model_workers import ended_well, kill, says_goodbye, steps
from msgspec.structs import replace

from farandole.control.roster.elastic import ElasticState, Limits
from farandole.control.roster.events import (
    Drained,
    Evicted,
    Failed,
    HoldOver,
    Left,
    Promised,
    Resized,
)


def beginning(size: int, limits: Limits, faults: int) -> System:
    """Return a job whose first workers have just been started."""
    system = System(ElasticState(limits), (), faults_left=faults)
    for _ in range(size):
        system = start_worker(system)
    return system


def training(size: int, limits: Limits, faults: int, begin: Callable[[int, Limits, int], System] = beginning) -> System:
    """Return a job whose first world trains."""
    system = begin(size, limits, faults)
    while moving := [step for step in steps(system) if not is_plain_step(system, step[0])]:
        system = moving[0][1]()
    return system


# --- faults ---------------------------------------------------------------------------------------------------------


KINDS = ("kill", "fail", "exit", "stop", "continue", "cut", "drain", "newcomer", "evict", "hang up", "last", "shrink")
JOINED_KINDS = (*KINDS, "return", "host")
"""Kinds of faults of a job with hosts."""
LASTING = 10
"""The first kinds in `KINDS` after which the job can continue as before: their number."""


def faults(system: System, kinds: tuple[str, ...] = KINDS) -> Iterator[Step]:
    """Return all faults and requests that may happen now."""
    if not system.faults_left or system.state.ended or (system.slots is not None and system.slots.end is not None):
        return
    system = replace(system, faults_left=system.faults_left - 1)
    for worker in system.workers:
        if worker.phase != DEAD:
            yield from _faults_of(system, worker, kinds)
    if "newcomer" in kinds and system.slots is not None:
        yield "a host comes", lambda: joined_decisions.add_hosts(system, 1)
    elif "newcomer" in kinds:
        yield "a newcomer is started", lambda: start_worker(system)
    if "promise" in kinds and system.slots is None and not system.state.promised:
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
    if "return" in kinds and worker.runs() and worker.phase == STARTING:
        early = ended_well(replace(system, done_early=system.done_early | {number}), number)
        yield f"{number} returns without calling init()", lambda: kill(early, number)
    if system.slots is not None:
        yield from joined_decisions.faults_of(system, worker, kinds)
    elif "drain" in kinds:
        asked = replace(system, excused=system.excused | {number})
        yield f"{number} is drained", lambda: happen(asked, Drained((number,), "its host is needed"))
    if "evict" in kinds and system.slots is None:
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
    """Let a worker notify its world and the roster that it ends with an exception."""
    members = worker.world.members
    itself = (accuse(members.index(worker.number), certain=True),) if worker.phase in IN_WORLD else ()
    sent = (*worker.sent, Failed(worker.number, "boom")) if worker.connected else worker.sent
    return change(system, worker.number, phase=FAILING, accused=itself or worker.accused, sent=sent)


def _exit(system: System, worker: Worker) -> System:
    """Let a worker end like one that has finished, but with another exit code."""
    left = Left(worker.number, worker.world.generation)
    sent = (*worker.sent, left) if worker.connected else worker.sent
    system = says_goodbye(replace(system, exits_badly=system.exits_badly | {worker.number}), worker.number)
    return kill(change(system, worker.number, sent=sent), worker.number)


def _lose_roster(system: System, worker: Worker) -> System:
    """Break a connection; messages under way are lost."""
    return change(system, worker.number, connected=False, sent=(), answers=())


def hold_over(system: System) -> Iterator[Step]:
    """Return the end of the roster's hold, when nothing else can happen."""
    kind = system.state.hold.kind
    if kind:
        yield f"the hold is over: {kind}", lambda: happen(system, HoldOver(kind))
    if system.slots is not None:
        yield from joined_decisions.time_passes(system)


# --- one random path --------------------------------------------------------------------------------------------------


def is_plain_step(system: System, name: str) -> bool:
    """Return whether a step is just one more step of a continuing training."""
    if not name.startswith("a step"):
        return False
    generation = system.state.generation
    return system.counted and not system.last and not any(each.change == generation for each in system.workers)


def simulate(seed: int, size: int, count: int, limits: Limits) -> System:
    """Take one random path with `count` faults, until nothing happens any more.

    Raises:
        Violation: an invariant is violated; the message has the last steps.
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
    """Take one step, and return its name; "": nothing can happen any more."""
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
        waits = list(hold_over(system))
        if not waits:
            return system, ""
        name, following = waits[0]
    return following(), name
