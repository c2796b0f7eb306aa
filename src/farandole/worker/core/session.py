"""A worker's part in one world: its engine, its place, its groups and its calls in flight.

`Session.open` opens the engine, meets the others through the roster, forms the world and registers the static groups;
`Session.close` undoes that in reverse. Nothing here is global: see `farandole.worker.core.basics`.
"""

from __future__ import annotations

import ctypes
import json
import traceback
from collections.abc import Callable, Sequence
from functools import partial
from itertools import accumulate, chain
from typing import Any, TypeVar, cast

from farandole.base.request_kind import Kind
from farandole.base.settings.table import Settings
from farandole.base.wire.rendezvous import Accused, RendezvousError
from farandole.errors import FarandoleError, InvalidRequestError, StartError, lost_rank_behind
from farandole.worker.core import binding
from farandole.worker.core.affinity import core_of, threads_on
from farandole.worker.core.binding import NativeRequest
from farandole.worker.core.dropped_steps import DroppedSteps
from farandole.worker.core.engine import Engine
from farandole.worker.core.group import ProcessSet, check_process_set, global_process_set
from farandole.worker.core.handle import Call, HandleTable, Pending
from farandole.worker.core.join import JoinedWorld, JoinPlan, join_world
from farandole.worker.core.request import Names, make_request
from farandole.worker.core.retry import Retry
from farandole.worker.core.submission import Submission, SubmissionPool
from farandole.worker.core.tuning_files import use_kept
from farandole.worker.core.worlds import Notices, OwnFailures, Preemption, accusations, enter

Result = TypeVar("Result")

# Leaving takes one agreement round among live workers; a dead one is found by the failure deadline.
LEAVE_SECONDS = 5.0


class Session:
    """A worker's part in a world.

    Attributes:
        settings: the settings that it was opened with.
        world: the place of this worker, and the other workers.
        engine: the native engine.
        handles: calls in flight, by the users' handles.
        names: names for unnamed requests.
        pool: submissions that can be reused.
        roster: the connection to the roster, or None in a world that needs none.
        steps: the number of training steps that were counted.
        on_step: called at the end of each step; None: steps are not measured.
        notices: the roster's notices about the world, in an elastic job; otherwise None.
        own_failures: the failures of the engine.
        retry: the object that repeats broken calls in the next world; None: they fail.
        trained: whether this worker holds the job's state, which others may get from it.
        trainings: the number of training loops that this process has created.
        times_made_alike: the number of times that the ranks of a training loop have synchronized their counters,
            because there may be ranks that know nothing of earlier steps. It changes between the same two steps on all
            ranks.
        dropped: the steps of optimizers that were dropped in the middle of one.
    """

    def __init__(self, settings: Settings, engine: Engine, met: JoinedWorld) -> None:
        """Store the objects that `open` made."""
        self.settings = settings
        self.engine = engine
        self.world = met.world
        self.handles = HandleTable()
        self.names = Names()
        self.pool = SubmissionPool()
        self.repeats: dict[Any, Any] = {}
        self.roster = met.roster
        self._own_roster = met.own_roster
        self.steps = 0
        self.on_step: Callable[[], None] | None = None
        self.notices = Notices(engine) if settings.elastic and met.roster is not None else None
        self.own_failures = OwnFailures()
        self.retry: Retry | None = None
        self.trained = False
        self.trainings = 0
        self.times_made_alike = 0
        self.dropped = DroppedSteps()
        self._preemption: Preemption | None = None
        self._failed = False
        # By id. Several objects may stand for one group: init() may be given the same ranks again.
        self._groups: dict[int, list[ProcessSet]] = {}

    @classmethod
    def open(cls, way: JoinPlan, process_sets: Sequence[ProcessSet]) -> Session:
        """Enter a world.

        Args:
            way: how to meet the other workers, if there are any, and how the engine works.
            process_sets: groups to register at once, the same on all ranks.

        Raises:
            StartError, WorkerLostError: the world could not be made.
            LibraryError: the native library is missing.
            MismatchError: the ranks passed different process sets.
        """
        check_distinct(process_sets)
        settings = way.settings
        if settings.elastic and process_sets:
            raise InvalidRequestError(
                "init(process_sets=...) cannot be used in an elastic job: a new worker would register "
                "them alone. Call add_process_set() on all ranks when the world has changed, as in a reset callback."
            )
        if settings.elastic and settings.backend == "mpi":
            raise InvalidRequestError(
                "FARANDOLE_BACKEND=mpi cannot be used in an elastic job: an MPI world has a fixed "
                "set of processes and does not outlive one of them. Unset it, or start a job of a fixed size."
            )
        engine = Engine(binding.load(settings.library), settings)
        session = cls(settings, engine, join_world(way, engine.contact))
        try:
            if session.notices is not None:
                session._enter_first(session.notices)
            else:
                session._form()
                session._check_same_sets(process_sets)
            for process_set in process_sets:
                session.add_group(process_set)
        except BaseException:
            session.close()
            raise
        return session

    def _form(self) -> None:
        """Form the only world of this session."""
        settings, world = self.settings, self.world
        use_kept(settings, world, self.engine)
        with threads_on(core_of(settings.thread_affinity, world.local_rank)):
            self.engine.form(
                world.generation, world.rank, world.size, world.contacts, settings.secret, settings.start_timeout
            )
        global_process_set.bind_world(world.size, world.rank)

    def _enter_first(self, notices: Notices) -> None:
        assert self.roster is not None
        try:
            self.roster.listen(notices.heard)  # before, so that losses are heard of while the first world is formed
        except RendezvousError as error:
            raise StartError(str(error)) from error
        self._enter(notices, (), arriving=True)
        self._preemption = Preemption(self.roster, notices, self.settings.grace)

    def _enter(
        self, notices: Notices, accused: Sequence[Accused], *, arriving: bool = False, open: bool = True
    ) -> None:
        assert self.roster is not None
        core = core_of(self.settings.thread_affinity, self.world.local_rank)
        with threads_on(core):
            self.world = enter(
                self.engine,
                self.roster,
                self.settings,
                generation=0 if arriving else self.world.generation,
                trained=self.trained,
                accused=accused,
                arriving=arriving,
                open=open,
            )
        notices.entered(self.world.generation)
        global_process_set.bind_world(self.world.size, self.world.rank)

    def abandon_world(self, why: str) -> list[Accused]:
        """Abandon the world, which ends for all its workers if it is alive; return the workers that it has lost.

        All process sets except the world's own are unregistered, and unnamed requests count from 0 again. Requests in
        flight fail.

        Args:
            why: the reason that the others get if the world is alive.

        Raises:
            StartError: there will be no next world, or this worker is not fit for it.
        """
        if self.notices is None:
            raise StartError(
                "this job cannot go on in another world: its number of workers is fixed. Start it "
                "as an elastic job, such as with farandole run --min-np N."
            )
        self.notices.abandon_world()
        self.own_failures.end_world(self.engine.cause(), self.world.rank)
        accused = accusations(self.engine) if self.world.generation else []
        try:
            self.engine.revoke(-1, why)
        except FarandoleError:
            pass  # It has ended already, which is the reason; or there was none yet.
        for process_set in chain.from_iterable(self._groups.values()):
            process_set.unbind()
        self._groups.clear()
        self.names.enter_world()
        return accused

    def enter_next(self, accused: Sequence[Accused], *, open: bool = True) -> None:
        """Enter the next world, after `abandon_world`. The engine, its arena and the contents of the arena are kept.

        Args:
            accused: the result of `abandon_world`.
            open: whether newcomers may enter it; false in the middle of a step.

        Raises:
            EvictedError: this worker has been removed from the job.
            StartError: there is no next world.
        """
        assert self.notices is not None
        self._enter(self.notices, accused, open=open)

    def close(self) -> None:
        """Leave the world, gracefully if it is still alive. Calls in flight fail, here and on the other ranks."""
        try:
            self.engine.leave(LEAVE_SECONDS)
            if self.roster is not None and not self._failed:
                self.roster.leave(self.world.generation)
        except (FarandoleError, RendezvousError):
            pass  # The world had ended before, or the roster has gone: then there is nothing to leave.
        if self._preemption is not None:
            self._preemption.close()
        if self.roster is not None:
            self.roster.close()
        if self._own_roster is not None:
            self._own_roster.close()
        self.handles.clear()
        self.repeats.clear()
        self.dropped.clear()
        for process_set in (*chain.from_iterable(self._groups.values()), global_process_set):
            process_set.unbind()

    def forget(self) -> None:
        """In a forked child, close everything that keeps a process of the parent alive."""
        if self._own_roster is not None:
            self._own_roster.forget()

    def fail(self, error: BaseException) -> None:
        """Notify the roster and all workers that this one ends with `error`; their requests fail at once, with its
        name.
        """
        self._failed = True
        first_line = "".join(traceback.format_exception_only(type(error), error)).strip().splitlines()[0]
        try:
            self.engine.revoke(self.world.rank, f"rank {self.world.rank} raised {first_line}")
        except FarandoleError:
            pass  # The world had ended before.
        if self.roster is not None:
            text = "".join(traceback.format_exception(type(error), error, error.__traceback__))
            try:
                self.roster.report_failure(text, first_line, lost_rank_behind(error))
            except RendezvousError:
                pass  # The launcher has gone; Python prints the traceback anyway.

    @property
    def only_arrived(self) -> bool:
        """Whether this worker is new in a job that trains already, and in no world yet."""
        return self.notices is not None and self.world.generation == 0

    # --- calls -------------------------------------------------------------------------------------------------

    def carry_out(
        self,
        how: Callable[[HandleTable, Call], Any],
        operation: str,
        name: str | None,
        process_set: ProcessSet,
        make: Callable[..., Call],
        *details: Any,
        scope: str = "",
        recurs: bool = False,
    ) -> Any:
        """Do the same as `carry_out_once`, but repeat a synchronous call of all ranks if its world breaks."""
        call = partial(
            self.carry_out_once, how, operation, name, process_set, make, *details, scope=scope, recurs=recurs
        )
        if self.retry is None or how is not HandleTable.run or process_set.process_set_id != 0:
            return call()
        return self.retry.run(call)

    def carry_out_once(
        self,
        how: Callable[[HandleTable, Call], Any],
        operation: str,
        name: str | None,
        process_set: ProcessSet,
        make: Callable[..., Call],
        *details: Any,
        scope: str = "",
        recurs: bool = False,
    ) -> Any:
        """Create a call under its full name, and run or begin it.

        Args:
            how: `HandleTable.run` or `HandleTable.begin`, whose result is returned.
            operation: the prefix of the name by which ranks' calls match; unnamed calls are counted by it.
            name: the user's name of the call.
            process_set: the ranks that take part.
            make: a function from (session, group, full name, *details) to the call.
            details: the arguments of `make`.
            scope: the prefix of the full name, as `FrontEnd.scope` describes.
            recurs: whether the name recurs if the user has given none, as `Names` describes; `make` then returns a
                `Pending`, or a call without requests.
        """
        group = process_set.process_set_id
        if group is None:
            group = self.group_of(process_set, operation)  # This raises.
        if self.notices is not None and self.only_arrived and operation != "broadcast":
            raise InvalidRequestError(
                f"{operation}: this worker is new in a job that already trains, and is in no world before "
                "its own training begins. Only broadcasts may come before that, as their results are replaced by the "
                "others' state; move other collectives into the training function."
            )
        counted = scope + operation if scope else operation
        own_name, numbers, number, call = name, None, 0, None
        if own_name is None:
            numbers = self.names.numbers(counted, group)
            number = numbers.take()
            own_name = self.names.name(number, recurs)
        try:
            call = make(self, group, f"{counted}.{own_name}", *details)
            if recurs and numbers is not None and isinstance(call, Pending):  # The others have no requests.
                call.make_in_turn()
            return how(self.handles, call)
        except Exception:
            if numbers is not None and (call is None or not call.begun()):
                numbers.give_back(number)
            raise

    def run(self, request: NativeRequest, finish: Callable[[int], Result]) -> Result:
        """Submit one request, wait for it, and return what `finish` makes from its handle."""
        call = Pending(self.engine, Submission((request,)), lambda handles: finish(handles[0]))
        return cast(Result, self.handles.run(call))

    # --- groups ------------------------------------------------------------------------------------------------

    def add_group(self, process_set: ProcessSet) -> None:
        """Register a process set; all ranks of the world must do so, members or not, in the same order.

        Raises:
            ValueError: a set of the same ranks is registered, or a rank is not in the world.
            MismatchError: the ranks passed different sets.
        """
        self._check_new(process_set)
        name = "add_process_set." + self.names.next("add_process_set", 0)
        request = make_request(Kind.ADD_GROUP, name, shape=process_set.ranks)
        _, (identifier,) = self.run(request, self.engine.result)
        self._groups[identifier] = [process_set]
        self.names.restart(identifier)
        process_set.bind(identifier, self.world.rank)

    def remove_group(self, process_set: ProcessSet) -> bool:
        """Remove a process set; all ranks of the world must do so. False if it is not registered, or is the world's
        own.
        """
        identifier = process_set.process_set_id
        if identifier is None or identifier not in self._groups:
            return False
        for known in self._groups.pop(identifier):
            known.unbind()
        name = "remove_process_set." + self.names.next("remove_process_set", 0)
        self.run(make_request(Kind.REMOVE_GROUP, name, shape=(identifier,)), self.engine.result)
        return True

    def adopt_groups(self, process_sets: Sequence[ProcessSet]) -> None:
        """Register new sets, and assign known ones their ids."""
        check_distinct(process_sets)
        for process_set in process_sets:
            identifier = self._registered(process_set.ranks)
            if identifier is None:
                self.add_group(process_set)
            elif identifier != process_set.process_set_id:
                process_set.bind(identifier, self.world.rank)
                self._groups.setdefault(identifier, []).append(process_set)

    def group_of(self, process_set: ProcessSet, operation: str) -> int:
        """Return the native group of a process set.

        Raises:
            ValueError: it is not registered, or no process set.
        """
        check_process_set(process_set, operation)
        identifier = process_set.process_set_id
        if identifier is None:
            kind = operation.removeprefix("grouped_").capitalize()
            raise InvalidRequestError(
                f"{kind}: Process set provided does not exist, or has not been registered. "
                "Pass it to init() or add_process_set() on all ranks first."
            )
        return identifier

    def ranks_by_group(self) -> dict[int, list[int]]:
        """Return the ranks of every registered set, by its id."""
        groups = {identifier: list(known[0].ranks) for identifier, known in self._groups.items()}
        return {0: list(range(self.world.size)), **groups}

    def _registered(self, ranks: Sequence[int]) -> int | None:
        return next((identifier for identifier, known in self.ranks_by_group().items() if known == list(ranks)), None)

    def _check_new(self, process_set: ProcessSet) -> None:
        size = self.world.size
        outside = [rank for rank in process_set.ranks if not 0 <= rank < size]
        if outside or not process_set.ranks:
            raise InvalidRequestError(
                f"a process set needs ranks from 0 to {size - 1} in this world of {size}, but got {process_set.ranks}."
            )
        known = self._registered(process_set.ranks)
        if known is not None:
            raise InvalidRequestError(
                f"Attempted to add a duplicate process set: {process_set} has the ranks of the one with id {known}."
            )

    def _check_same_sets(self, process_sets: Sequence[ProcessSet]) -> None:
        """Compare all ranks' static sets before any is registered: if one were missing on a rank, the others would wait
        forever.
        """
        mine = json.dumps([process_set.ranks for process_set in process_sets]).encode()
        everyone = self.exchange("init.process_sets", mine)
        different = [rank for rank, theirs in enumerate(everyone) if theirs != mine]
        if different:
            other = different[0]
            raise InvalidRequestError(
                "init() got different process sets on different ranks: "
                f"rank {self.world.rank} passed {mine.decode()}, rank {other} passed {everyone[other].decode()}. "
                "Pass the same ones in the same order everywhere."
            )

    def exchange(self, name: str, payload: bytes) -> list[bytes]:
        """Return every rank's payload, in rank order."""

        def finish(handle: int, _: bytes = payload) -> list[bytes]:
            # `payload` is held: the engine reads it until now.
            address, sizes = self.engine.result(handle)
            everything = ctypes.string_at(address, sum(sizes)) if sum(sizes) else b""
            return [everything[end - size : end] for end, size in zip(accumulate(sizes), sizes, strict=True)]

        request = make_request(Kind.ALLGATHER, name, shape=(len(payload),), input=_address_of(payload))
        return self.run(request, finish)


def check_distinct(process_sets: Sequence[ProcessSet]) -> None:
    """Raise ValueError if two of the sets have the same ranks."""
    for index, process_set in enumerate(process_sets):
        if any(process_set.ranks == earlier.ranks for earlier in process_sets[:index]):
            raise InvalidRequestError(
                f"farandole could not be initialized because process_sets entry number {index} is a duplicate: "
                f"{process_set}. Pass each set of ranks once."
            )


def _address_of(payload: bytes) -> int | None:
    # The caller keeps `payload` until the request is done; the engine only reads it.
    return ctypes.cast(ctypes.c_char_p(payload), ctypes.c_void_p).value if payload else None
