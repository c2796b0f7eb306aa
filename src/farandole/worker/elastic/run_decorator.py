"""`hvd.elastic.run`: calls a training function in one world after another, as Horovod's scripts expect.

A worker leaves the function in one of three ways, which may differ between the ranks of a world:

- *interrupted* (`HostsUpdatedInterrupt`), at a commit or a check: it keeps its current values;
- *broken* (`HorovodInternalError`), in a collective whose world others had left: it goes back to its last commit;
- *finished*.

As commits are not collectives, these need not be the same commit: a rank that learns of a change is at most one
collective ahead, but it may have committed several times since. So a worker cannot assume that the others have the same
state. In every new world, they first exchange their progress in one small collective. Only if all were interrupted, at
the same count of checks, by workers that only leave, do they have the same state. Otherwise all get the state of rank
0: survivors keep their order and come first, so it is the state of the oldest worker, and it is complete: a commit, or
the point of the interrupt.

A worker that has finished waits for the others in the same collective. Otherwise it might have ended, or be
doing something else, when the others enter the next world.

A script may have several such functions, one after another, so workers also exchange which one they are in. A newcomer
begins with the first one, which the others may have finished. It skips functions up to the one that the others are in,
where they wait for it. Until then it makes no collectives, because no other worker would take part in them.
"""

from __future__ import annotations

import functools
from collections import Counter
from collections.abc import Callable, Sequence
from typing import Any, Concatenate, ParamSpec, Protocol, TypeVar, cast
from weakref import WeakKeyDictionary

import msgspec

from farandole.base.wire.rendezvous import World
from farandole.errors import (
    EvictedError,
    FarandoleError,
    HorovodInternalError,
    HostsUpdatedInterrupt,
    InvalidRequestError,
    MismatchError,
    NotInitializedError,
    StateLostError,
)
from farandole.worker.core.basics import current, session_if_any
from farandole.worker.core.request import Names
from farandole.worker.core.session import Session
from farandole.worker.core.user_log import tell_user
from farandole.worker.core.worlds import goodbye
from farandole.worker.elastic import world_changes
from farandole.worker.elastic.state import State

__all__ = ["HorovodInternalError", "HostsUpdatedInterrupt", "JobWorlds", "Worlds", "run", "run_in"]

P = ParamSpec("P")
R = TypeVar("R")
StateType = TypeVar("StateType", bound=State)

# Errors that would occur again in the next world, because the script would reach the same point.
_INCURABLE = (MismatchError, NotInitializedError)
# The form in which the report of a worker's end names one of them.
_OF_MISMATCH = f"{MismatchError.__module__}.{MismatchError.__qualname__}"


class Worlds(Protocol):
    """The worlds of a job, as a training function needs them."""

    def go_on(self) -> bool:
        """Return whether another world follows when this one ends."""

    def enter(self) -> bool:
        """Enter a world, if this worker has only previewed it; blocks. Return whether its rank or size differ from the
        preview.
        """

    def enter_next(self) -> object:
        """Leave this world and enter the next one; blocks."""

    def inherits(self) -> bool:
        """Return whether a state was trained before this worker joined, even if no worker has it now."""

    def lost(self) -> Sequence[str]:
        """Return the workers of the previous world that are not in this one, each with how it was lost."""

    def hold_state(self) -> None:
        """Record that this worker has the state from now on."""

    def exchange(self, payload: bytes) -> Sequence[bytes]:
        """Return every rank's payload, in rank order. A collective."""

    def done(self) -> Counter[str]:
        """Return the number of trainings that this worker has finished, by name; the caller adds to it."""

    def step_aside(self) -> None:
        """Keep this worker out of collectives until it enters again, because the others are in a later training."""


class _Progress:
    """A program's progress through its trainings."""

    def __init__(self) -> None:
        self.done: Counter[str] = Counter()
        self.aside: tuple[World, Names] | None = None
        """The world and its unnamed requests, while this worker has stepped aside."""


# The worlds end with their session. A decorated function is made before there is one, and several share it.
_progress: WeakKeyDictionary[Session, _Progress] = WeakKeyDictionary()


class JobWorlds:
    """The worlds of this process's session."""

    def go_on(self) -> bool:
        """Return whether there is a world, and a roster that makes further ones."""
        return world_changes.is_elastic()

    def enter(self) -> bool:
        """Enter a world, if `init()` has only previewed it. Return whether its rank or size differ from the preview."""
        progress = self._progress()
        if progress.aside is not None:
            session, (world, names) = current(), progress.aside
            session.world, session.names, progress.aside = world, names, None
        before = current().world
        world = world_changes.arrive() if world_changes.is_elastic() else before
        return (world.rank, world.size) != (before.rank, before.size)

    def enter_next(self) -> object:
        """Leave this world and enter the next one; blocks."""
        return world_changes.reform()

    def inherits(self) -> bool:
        """Return whether a state was trained before this worker joined, even if no worker has it now."""
        session = current()
        # A worker that took part knows it by itself, and also that another training has not begun yet.
        return not session.trained and (session.world.state_lost or any(rank >= 0 for rank in session.world.previous))

    def lost(self) -> Sequence[str]:
        """Return the workers of the previous world that are not in this one, each with how it was lost."""
        return current().world.lost

    def hold_state(self) -> None:
        """Make the roster place this worker before workers without a state."""
        world_changes.trained()

    def exchange(self, payload: bytes) -> Sequence[bytes]:
        """Return every rank's payload, in rank order. A collective."""
        return current().exchange("elastic.run", payload)

    def done(self) -> Counter[str]:
        """Return the number of trainings that this worker has finished, by name; the caller adds to it."""
        return self._progress().done

    def step_aside(self) -> None:
        """Treat this worker as newly arrived: broadcasts keep its own value, and other collectives are refused."""
        session = current()
        self._progress().aside = session.world, session.names
        # The others count no requests meanwhile.
        session.world, session.names = msgspec.structs.replace(session.world, generation=0), Names()

    def _progress(self) -> _Progress:
        return _progress.setdefault(current(), _Progress())


def run(func: Callable[Concatenate[StateType, P], R]) -> Callable[Concatenate[StateType, P], R | None]:
    """Return a training function that continues when workers are lost, join or leave.

    The function is called again in each new world, after the reset callbacks of the state and its `sync`; it continues
    from the state. It returns when it has returned on all workers. A worker that joins after that returns None, with
    the state of the others. In a worker that must leave it raises SystemExit. If the job is not elastic, it is
    called once, and errors are raised to the caller.

    Collectives before this call would match the others' in the middle of their training: leave them to `sync`.

    A script may have several, one after another. In a newcomer, those that the others have finished return None
    without calling the function, so the later ones' states must contain what it needs from them.

    Args:
        func: a function that takes a `State` as its first argument.

    Raises:
        ValueError: it is not a function; when it is called: its first argument is not a state.

    Example:
        >>> @hvd.elastic.run
        ... def train(state):
        ...     for state.epoch in range(state.epoch, epochs):
        ...         ...
        ...         state.commit()
        >>> train(hvd.elastic.TorchState(model, optimizer, epoch=0))
    """
    return run_in(JobWorlds(), func)


def run_in(
    worlds: Worlds, func: Callable[Concatenate[StateType, P], R]
) -> Callable[Concatenate[StateType, P], R | None]:
    """Do the same as `run`, in given worlds."""
    if not callable(func):
        raise InvalidRequestError(f"hvd.elastic.run takes a training function, but got {func!r}.")

    @functools.wraps(func)
    def wrapper(state: StateType, *args: P.args, **kwargs: P.kwargs) -> R | None:
        if not hasattr(state, "sync"):
            raise InvalidRequestError(
                f"the first argument of a function of hvd.elastic.run is its state, such as TorchState(...), not "
                f"{state!r}."
            )
        _tell_who_writes_checkpoints()
        train = functools.partial(func, state, *args, **kwargs)
        if worlds.go_on():
            name = getattr(func, "__qualname__", type(func).__name__)
            trained: R | None = _until_evicted(_Training(state, train, worlds, name).run)
            return trained
        state.sync()
        return train()

    # `Concatenate` cannot express that the first argument may also be passed by name.
    return cast("Callable[Concatenate[StateType, P], R | None]", wrapper)


def _tell_who_writes_checkpoints() -> None:
    session = session_if_any()
    if session is not None and session.settings.checkpoint_dir is not None and session.settings.rank == 0:
        tell_user(
            "warning",
            "--checkpoint-dir is for loops over hvd.elastic.steps: nothing is written there for @hvd.elastic.run. Save "
            "checkpoints in the script, and load the last one before its training function",
        )


def _until_evicted(training: Callable[[], Any]) -> Any:
    try:
        return training()
    except EvictedError as error:
        # Not a failure: the others continue with the script after its training.
        raise goodbye(error) from None


class _Standing(msgspec.Struct, frozen=True, array_like=True):
    """The facts that a worker sends to the others of a new world."""

    training: str = ""
    """The worker's training: its name, and the number of trainings with this name that it has finished."""
    done: int = 0
    """The number of trainings that the worker has finished."""
    has_state: bool = False
    """Whether it has been synchronized with the others once, so that it has the trained state, if there is one."""
    has_begun: bool = False
    """Whether it knows that a trained state has existed."""
    saw_beginning: bool = False
    """Whether it was in a world in which no worker knew of a trained state. Such a worker has missed nothing: without
    it, none could finish the function's first collective."""
    may_keep: bool = False
    """Whether it was interrupted, and only because workers leave."""
    finished: bool = False
    checks: int = 0
    """The number of its checks for changes since it was synchronized with the others."""


class _Training:
    """One worker's run of a training function in one world after another, until all have finished."""

    def __init__(self, state: State, train: Callable[[], Any], worlds: Worlds, name: str) -> None:
        self._state = state
        self._train = train
        self._worlds = worlds
        self._name = name
        self._done = worlds.done()
        self._standing = _Standing(training=f"{name} {self._done[name]}", done=self._done.total())
        self._has_entered = False
        self._result: Any = None

    def run(self) -> Any:
        """Return the result of the function, or None if it was not called."""
        try:
            return self._run()
        finally:
            # Also if it has failed: the script may catch the error on all workers, and continue with the next training.
            self._done[self._name] += 1

    def _run(self) -> Any:
        # Values that the script has loaded since it made the state must not be lost when the first world breaks.
        self._state.save()
        cause: FarandoleError | None = None
        while True:
            try:
                if not self._has_entered:
                    self._enter()
                if cause is not None:
                    self._turn(cause)
                    cause = None  # Its traceback holds a whole step's tensors.
                if self._train_on():
                    return self._result
            except _INCURABLE:
                raise
            except (HorovodInternalError, HostsUpdatedInterrupt) as reason:
                cause = reason

    def _enter(self) -> None:
        is_another = self._worlds.enter()
        self._has_entered = True
        if is_another:
            self._state.on_reset()

    def _train_on(self) -> bool:
        """Call the function, unless all have already finished; return whether the training is over for this worker."""
        standings = self._exchange()
        furthest = max(standings, key=lambda standing: standing.done)
        if self._standing.training != furthest.training:
            self._worlds.step_aside()
            return True
        if any(standing.training != furthest.training for standing in standings):
            return False  # The others reach this point by their own program.
        if self._is_over(standings):
            return True
        self._make_alike(standings)
        self._note(has_state=True, has_begun=True, may_keep=False)
        self._result = self._train()
        if not self._worlds.go_on():
            return True  # A function may well end with hvd.shutdown().
        self._state.save()
        self._note(finished=True)
        return False

    def _is_over(self, standings: Sequence[_Standing]) -> bool:
        """Return whether all workers with the trained state have finished; late newcomers get their state."""
        trained = [standing for standing in standings if standing.has_state]
        if not trained or not all(standing.finished for standing in trained):
            return False
        if len(trained) < len(standings):
            self._state.sync()
        return True

    def _turn(self, cause: FarandoleError) -> None:
        """Enter the next world, with a complete state."""
        try:
            self._worlds.enter_next()
        except FarandoleError as failure:
            # The worker that was lost first is the cause, not this one: see `lost_rank_behind`.
            raise failure from cause
        self._share_mismatch(cause)
        # After the change of worlds: no data of the old world is in flight any more, into a gradient for example.
        if not isinstance(cause, HostsUpdatedInterrupt):
            self._state.restore()
        self._note(may_keep=isinstance(cause, HostsUpdatedInterrupt) and cause.skip_sync)
        self._state.on_reset()

    def _share_mismatch(self, cause: FarandoleError) -> None:
        """Fail with the error of workers that ended because of a mismatch.

        All ranks get this error, but one may first learn that another one, which has ended by it, is lost. It would
        continue, and might not reach the mismatch again. Newcomers then find that the state is lost, which ends the
        job.
        """
        for departure in self._worlds.lost():
            if _OF_MISMATCH in departure:
                raise MismatchError(
                    f"other workers ended with an error that another world would not cure: {departure}"
                ) from cause

    def _exchange(self) -> list[_Standing]:
        self._note(has_begun=self._standing.has_begun or self._worlds.inherits(), checks=self._state._checks)
        payloads = self._worlds.exchange(msgspec.json.encode(self._standing))
        return [msgspec.json.decode(payload, type=_Standing) for payload in payloads]

    def _note(self, **changes: Any) -> None:
        self._standing = msgspec.structs.replace(self._standing, **changes)

    def _make_alike(self, standings: Sequence[_Standing]) -> None:
        has_begun = any(standing.has_begun for standing in standings)
        # The roster places workers that hold the state first.
        is_there = standings[0].has_state or any(standing.saw_beginning for standing in standings)
        if has_begun and not is_there:
            raise StateLostError.after(
                self._worlds.lost(),
                "nobody else had got it. Start the job again; it would go on where it was if the script saved "
                "checkpoints, and loaded the last one before its training function.",
            )
        self._note(finished=False, has_begun=has_begun, saw_beginning=not has_begun)
        if all(standing.may_keep for standing in standings) and len({standing.checks for standing in standings}) == 1:
            self._state.save()  # With the changes of the reset callbacks.
        else:
            self._state.sync()
        self._worlds.hold_state()
        self._state._checks = 0
