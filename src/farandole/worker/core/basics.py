"""The functions that all front ends export, which act on the one session of this process.

This is the only place that holds a session; the front ends ask for it with `current()`.
"""

from __future__ import annotations

import atexit
import os
import sys
import threading
from collections.abc import Callable, Iterable, Sequence
from functools import partial
from types import TracebackType
from typing import Any, Protocol

import msgspec

from farandole.base.settings.table import Settings
from farandole.base.settings.values import LOG_LEVELS
from farandole.base.wire.rendezvous import World
from farandole.errors import (
    EvictedError,
    InvalidRequestError,
    JobOverError,
    NotInitializedError,
    ShutDownError,
)
from farandole.worker.core.group import ProcessSet, check_process_set, global_process_set
from farandole.worker.core.identity import (
    Identity,
    Publication,
    check_own_place,
    is_homogeneous_world,
    parentage,
    placement_in,
)
from farandole.worker.core.join import plan_join
from farandole.worker.core.own_frames import hide_own_frames
from farandole.worker.core.session import Session, check_distinct
from farandole.worker.core.worlds import goodbye

ExceptHook = Callable[[type[BaseException], BaseException, TracebackType | None], object]

# Seconds by which the ranks of a job may reach the end of the program one after another.
_EXIT_SECONDS = 2.0


class Companion(Protocol):
    """An object of a higher package that is notified when sessions begin and end. Its methods must not raise."""

    def opened(self, session: Session) -> None:
        """Called after a session has begun."""

    def closing(self, session: Session) -> None:
        """Called before the session ends. Its world is still alive, unless it has broken."""

    def closed(self) -> None:
        """Called after the session and its world have ended."""

    def forgotten(self) -> None:
        """Called in a forked child, to drop the session: its threads and files belong to the parent."""


class _Default:
    """The session of this process, and the companions that are notified when it begins and ends."""

    def __init__(self) -> None:
        self.session: Session | None = None
        self._publication = Publication()
        self._placement: tuple[str, ...] = ()
        self.companions: list[Companion] = []
        self.lock = threading.RLock()
        self._hook: partial[None] | None = None
        self._hook_of_threads: partial[None] | None = None
        self._exiting = threading.Event()

    def open(self, process_sets: Sequence[ProcessSet]) -> None:
        with self.lock:
            if self.session is not None:
                self.session.adopt_groups(process_sets)
                self.publish()
                return
            if parentage.resume():
                _adopt_known(process_sets)
                return
            self._placement = placement_in(os.environ)
            plan = plan_join(Settings.from_environment(), os.environ)
            if not plan.is_alone:
                check_own_place(os.environ)
            try:
                self.session = Session.open(plan, process_sets)
            except EvictedError as error:
                raise goodbye(error) from None
            self._install_hooks()
            atexit.register(self._close_at_exit)
            self.publish()
            for companion in self.companions:
                companion.opened(self.session)

    def identity(self) -> Identity | None:
        """Return the identity of this process, or of the worker that it belongs to; None before `init()`."""
        session = self.session
        if session is None:
            return parentage.in_use
        return Identity(os.getpid(), session.world, session.ranks_by_group(), session.settings, self._placement)

    def publish(self) -> None:
        """Publish the current world and process sets to processes that are started from now on."""
        identity = self.identity()
        if self.session is not None and identity is not None:
            self._publication.publish(identity)

    def reform(self, why: str, open: bool) -> None:
        with self.lock:
            session = self.session
            if session is None:
                raise parentage.refusal()
            accused = session.abandon_world(why)
            for companion in self.companions:
                companion.closing(session)
            for companion in self.companions:
                companion.closed()
            session.enter_next(accused, open=open)
            self.publish()
            for companion in self.companions:
                companion.opened(session)

    def close(self) -> None:
        with self.lock:
            session, self.session = self.session, None
            if session is None:
                _leave_worker()
                return
            self._publication.withdraw()
            atexit.unregister(self._close_at_exit)
            # Another hook may have been installed over this one, which then remains below it and does nothing.
            if self._hook is not None and sys.excepthook is self._hook:
                (sys.excepthook,) = self._hook.args
            for companion in self.companions:
                companion.closing(session)
            session.close()
            for companion in self.companions:
                companion.closed()

    def _close_at_exit(self) -> None:
        self._exiting.set()
        self.close()

    def forget(self) -> None:
        """In a forked child, drop all of the session but its facts about the world: the rest belongs to the parent."""
        self.lock = threading.RLock()
        identity = self.identity()
        if self.session is not None and identity is not None:
            self.session.forget()
            parentage.inherit(msgspec.structs.replace(identity, pid=os.getppid()))
        self.session = None
        parentage.look()
        for companion in self.companions:
            companion.forgotten()

    def _install_hooks(self) -> None:
        if sys.excepthook is not self._hook:
            # A new one: the last one may be below another hook, and would call itself through it.
            self._hook = sys.excepthook = partial(self._report, sys.excepthook)
        if self._hook_of_threads is None:
            self._hook_of_threads = threading.excepthook = partial(self._report_of_thread, threading.excepthook)

    def _report(
        self, earlier: ExceptHook, kind: type[BaseException], error: BaseException, trace: TracebackType | None
    ) -> None:
        """Notify the launcher and all workers of the error that ends this worker, and show it."""
        try:
            if self.session is not None:
                if self.session.settings.log_level != LOG_LEVELS["debug"]:
                    hide_own_frames(error)
                self.session.fail(error)
        finally:
            if isinstance(error, JobOverError):
                # This worker is not the reason, and the launcher has reported it.
                print(f"farandole: this worker ends with its job: {error}", file=sys.stderr, flush=True)
            else:
                earlier(kind, error, error.__traceback__ or trace)

    def _report_of_thread(
        self, earlier: Callable[[threading.ExceptHookArgs], object], end: threading.ExceptHookArgs
    ) -> None:
        """Show the error that ends a thread, unless the end of the program has broken a daemon thread's collective.

        Another rank's end breaks it, too, and may come a moment before this one's.
        """
        is_broken = isinstance(end.exc_value, (ShutDownError, NotInitializedError))
        if is_broken and end.thread is not None and end.thread.daemon and self._exiting.wait(_EXIT_SECONDS):
            return
        earlier(end)


_default = _Default()
os.register_at_fork(after_in_child=_default.forget)


def init(comm: Sequence[int] | None = None, process_sets: Sequence[ProcessSet] | str | None = None) -> None:
    """Enter the world that a launcher made for this process; without a launcher, a world of one.

    In a process that a worker has started by `multiprocessing`, no world is entered: `rank()` and other queries return
    the worker's values there, and collectives are refused, as `farandole.worker.core.identity` describes.

    The launcher is `farandole run`, or mpirun, srun, jsrun or torchrun, or a user who has set FARANDOLE_RANK and
    others. The environment is read now. When already initialized, only registers process sets that are new.

    Args:
        comm: None. A list of all ranks is accepted, and a communicator of mpi4py that has all workers in the order of
            their ranks; for a subset of them, use process sets.
        process_sets: sets to register at once, the same on all ranks. The word "dynamic" is accepted and changes
            nothing: sets can always be added.

    Raises:
        ValueError: duplicate process sets, or different ones on different ranks.
        FarandoleError: the world could not be made; the message says what to do.

    Example:
        >>> import farandole.torch as hvd
        >>> hvd.init()
    """
    if isinstance(process_sets, str):
        if process_sets.lower() != "dynamic":
            raise _not_process_sets(process_sets)
        process_sets = None
    is_list = process_sets is None or isinstance(process_sets, Sequence)
    if not is_list or not all(isinstance(each, ProcessSet) for each in process_sets or ()):
        raise _not_process_sets(process_sets)
    _default.open(list(process_sets or ()))
    if comm is not None:
        _check_comm(comm)


def _not_process_sets(given: object) -> InvalidRequestError:
    return InvalidRequestError(f"process_sets={given!r} is not valid: pass a list of ProcessSet, or 'dynamic'.")


def shutdown() -> None:
    """Leave the world. Requests of other ranks that still needed this one fail there. No-op if not initialized."""
    _default.close()


def reform(why: str, open: bool = True) -> None:
    """Leave the world, and enter the next one by `Session.enter_next`. For `farandole.worker.elastic`.

    Raises:
        NotInitializedError: there is no world to leave.
    """
    _default.reform(why, open)


def is_initialized() -> bool:
    """Return whether `init()` has been called, and `shutdown()` has not been called since, here or in the worker that
    this process belongs to. It stays True when a worker is lost.
    """
    return _default.session is not None or parentage.in_use is not None


def session_if_any() -> Session | None:
    """Return the session of this process; None if there is none, as in processes that a worker has started."""
    return _default.session


def has_step_loop() -> bool:
    """Return whether a loop of `steps` has been created in this session: steps count as a whole from then on."""
    session = session_if_any()
    return session is not None and session.trainings > 0


def identity() -> Identity:
    """Return the identity of this process or, in one that a worker has started, the worker's identity at that moment.

    Raises:
        NotInitializedError: there is no world.
    """
    found = _default.identity()
    if found is None:
        raise parentage.refusal()
    return found


def accompany(companion: Companion) -> None:
    """Notify an object of the present session, if there is one, and of all later ones."""
    with _default.lock:
        _default.companions.append(companion)
        if _default.session is not None:
            companion.opened(_default.session)


def current() -> Session:
    """Return the session of this process.

    Raises:
        NotInitializedError: there is none.
        ValueError: this process is not a worker, but one that a worker has started; the message says what to do.
    """
    session = _default.session
    if session is None:
        raise parentage.refusal()
    return session


def report_failure(error: BaseException) -> None:
    """Notify the launcher and all workers that this process is about to end with `error`. No-op without a session."""
    session = _default.session
    if session is not None:
        session.fail(error)


def count_step() -> None:
    """Count a training step of this worker, for the steps per second in the launcher's status line.

    `DistributedOptimizer.step()` calls this itself: it is for scripts that reduce gradients in another way, on all
    ranks or on some. No-op without a session.

    Example:
        >>> import farandole
        >>> farandole.count_step()
    """
    session = _default.session
    if session is not None:
        session.steps += 1
        if session.on_step is not None:
            session.on_step()


def _world() -> World:
    session = _default.session
    return identity().world if session is None else session.world


def rank() -> int:
    """Return this worker's rank in the world; in a process that a worker has started, the worker's.

    Raises:
        ValueError: before `init()`; the next functions as well.
    """
    return _world().rank


def size() -> int:
    """Return the number of workers in the world."""
    return _world().size


def local_rank() -> int:
    """Return this worker's rank among the workers of its host."""
    return _world().local_rank


def local_size() -> int:
    """Return the number of workers on this host."""
    return _world().local_size


def cross_rank() -> int:
    """Return this worker's rank among the workers that have the same local rank."""
    return _world().cross_rank


def cross_size() -> int:
    """Return the number of workers that have this one's local rank."""
    return _world().cross_size


def is_homogeneous() -> bool:
    """Return whether every host has the same number of workers."""
    return is_homogeneous_world(_world())


def add_process_set(process_set: ProcessSet | Iterable[int]) -> ProcessSet:
    """Register a process set, or the ranks of one; all ranks of the world must do so, in the same order.

    Returns:
        The set, with its id.

    Raises:
        ValueError: a set of the same ranks is registered, or a rank is not in the world.
        HorovodInternalError: the ranks passed different sets.
    """
    process_set = process_set if isinstance(process_set, ProcessSet) else ProcessSet(process_set)
    if _default.session is None and parentage.in_use is not None:
        _adopt_known([process_set])
        return process_set
    current().add_group(process_set)
    _default.publish()
    return process_set


def _leave_worker() -> None:
    """In a process that a worker has started, stop answering queries with the worker's values."""
    if parentage.in_use is not None:
        parentage.leave()
        global_process_set.unbind()


def _adopt_known(process_sets: Sequence[ProcessSet]) -> None:
    """Register process sets in a process that a worker has started, because the script runs there again.

    Raises:
        ValueError: the worker has not registered them.
    """
    check_distinct(process_sets)
    if not all(process_set.included() is not None for process_set in process_sets):
        raise parentage.refusal()


def remove_process_set(process_set: ProcessSet) -> bool:
    """Remove a process set; all ranks of the world must do so. It can be added again.

    Returns:
        False if it was not registered or is the world's own.

    Raises:
        ValueError: the argument is not a process set.
    """
    check_process_set(process_set, "remove_process_set")
    # This is known without a world: only a registered set has an id, and the world's own has 0.
    if not process_set.process_set_id or not current().remove_group(process_set):
        return False
    _default.publish()
    return True


def stats() -> dict[str, Any]:
    """Return the counts of this worker's engine since the world was formed, as plain data.

    Returns:
        operations: for each operation by its name ("allreduce", "allgather", ...): requests, buckets, bytes: the
                numbers of those done. A bucket is a group of tensors that were sent together. waiting_seconds: the
                seconds from the call until the last rank had called, summed over requests. negotiating_seconds: the
                seconds from then until this worker learned of it, summed over requests. moving_seconds: the seconds of
                moving and reducing data, summed over buckets. copied_in_bytes, copied_out_bytes: for allreduces only:
                bytes of tensors copied into the engine's memory and out of it. Tensors that are compressed or sent by
                MPI are not counted.
        rounds: the number of agreements reached.
        sleeps: the number of times that the engine had nothing to do.
        blocked_seconds: the seconds that this process's threads spent waiting in `synchronize` and similar calls.

    Example:
        >>> stats()["operations"]["allreduce"]["requests"]  # doctest: +SKIP
        320
    """
    return current().engine.stats()


def _check_comm(comm: Any) -> None:
    everyone = list(range(size()))
    if hasattr(comm, "Get_rank") and hasattr(comm, "Get_size"):
        place = comm.Get_rank(), comm.Get_size()
        if place == (rank(), size()):
            return
        told = f"a communicator in which this worker is {place[0]} of {place[1]}, but here it is {rank()} of {size()}"
    elif isinstance(comm, (list, tuple, range)) and sorted(comm) == everyone:
        return
    else:
        told = repr(comm)
    shutdown()
    raise InvalidRequestError(
        f"init(comm=...) takes all ranks of the world ({everyone}), a communicator of all workers in their order, or "
        f"None, not {told}. For collectives among some of them use process sets."
    )
