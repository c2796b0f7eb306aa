"""Reduces the gradients of a training step while its backward passes are still running.

Each gradient has an *entry*, in a *bundle* (see `entry`). The front end calls `on_gradient` for each gradient of each
backward pass; when every entry of a bundle has seen enough passes, the bundle is *launched*. `finish` launches the
bundles that no backward pass has completed, so that a branch that one rank did not take does not block other ranks, and
waits for all.

A dense gradient in host memory has a *view* of the arena: it is copied there when it is launched and remains there.
Launched bundles are sent in *submit batches* (see `submit_batch`). An entry gets its view at the end of its first step,
when it is known that it has gradients and that they are dense (see `arena_views`). Until then, and with compression
always, gradients take the *general way*: the front end makes a call for them (see `gradient_front_end`). Sparse
gradients are gathered, or made dense for the reduction. Gradients on a GPU also take the general way, and after their
first step several of them together (see `device_buckets`).

In elastic jobs, this rank's own gradients are kept until the step counts. When the world breaks, the survivors reduce
all gradients of the step again in the next world, unless some rank has all reduced gradients, and sends them to the
others. The step counts on a rank that has all gradients, and every rank's *ballot*, which is the last of them (see
`step_ballot`).

Everything that belongs to one session (views, native requests) is recreated when the session changes.

A backward pass may finish gradients in several threads, so data that entries of several threads share is protected by a
lock.
"""

from __future__ import annotations

import threading
from collections.abc import Iterable, Sequence
from contextlib import suppress
from typing import Protocol

from farandole.errors import FarandoleError, InvalidRequestError
from farandole.worker.core.basics import current, session_if_any
from farandole.worker.core.retry import Retry
from farandole.worker.core.session import Session
from farandole.worker.gradients.arena_views import ArenaViews
from farandole.worker.gradients.calls_in_flight import CallsInFlight
from farandole.worker.gradients.context import Context
from farandole.worker.gradients.device_buckets import DeviceBuckets, MakeFlatMemory
from farandole.worker.gradients.entry import Bundle, Entry
from farandole.worker.gradients.general_call import GeneralCall
from farandole.worker.gradients.gradient_front_end import GradientFrontEnd
from farandole.worker.gradients.last_reduced import LastReduced
from farandole.worker.gradients.reduce_options import ReduceOptions
from farandole.worker.gradients.step_ballot import StepBallot
from farandole.worker.gradients.submit_batch import BatchQueue
from farandole.worker.gradients.watching import Watching

TOO_MANY_PASSES = (
    "Gradients were computed more than backward_passes_per_step times before call to step(). "
    "Increase backward_passes_per_step to accumulate gradients locally over more passes."
)


class GradientObserver(Protocol):
    """An observer of gradients before and after they are reduced."""

    def computed(self, entry: Entry) -> None:
        """Called with a gradient that a backward pass has computed, before it is sent. In any thread."""

    def reduced(self, entries: Iterable[Entry]) -> None:
        """Called with the reduced gradients of a step."""


class Reducer:
    """Reduces the gradients of an optimizer over a process set.

    Attributes:
        observer: an observer of the gradients, or None.
        passes: the number of backward passes for each step.
        step_is_lost: whether the world has broken, and the gradients of the step were not kept, so that the optimizer
            must skip it.
    """

    _fired = False  # Also of a reducer whose creation failed, for `__del__`.

    def __init__(
        self,
        front_end: GradientFrontEnd,
        bundles: Iterable[Sequence[Entry]],
        options: ReduceOptions,
        *,
        passes: int,
        make_memory: MakeFlatMemory | None = None,
    ) -> None:
        """Create a reducer, and watch the gradients.

        Args:
            front_end: the front end of the framework that computes the gradients.
            bundles: the entries; those of one inner sequence are reduced together.
            options: the options of the reduction.
            passes: the number of backward passes for each step.
            make_memory: a function that allocates the memory of device buckets; None: there are none.
        """
        self.passes = passes
        self.step_is_lost = False
        self.observer: GradientObserver | None = None
        self._front_end = front_end
        self._context = Context(options)
        self._lock = threading.Lock()
        self._bundles: list[Bundle] = []
        self._views = ArenaViews(self._context)
        self._buckets = DeviceBuckets(self._bundles, make_memory)
        self._calls = CallsInFlight()
        self._queue = BatchQueue(self._context, self._calls, front_end.at_end_of_backward)
        self._reduced = LastReduced(self._bundles, front_end)
        self._ballot = StepBallot(self._context, self._bundles, self._queue, self._reduced)
        self._watching = Watching(front_end, self)
        self.add(bundles)

    def __del__(self) -> None:
        # A step has begun, for which nothing may wait here. The session keeps this reducer until another one does.
        session = self._context.session if self._fired else None
        if session is not None:
            self._watching.end()
            session.dropped.drop(self)

    # --- calls of the optimizer -------------------------------------------------------------------------------------

    @property
    def pending(self) -> bool:
        """Return whether gradients have come since the last `finish`."""
        if not self._fired or session_if_any() is None:
            return False
        session = current()
        # A step continues in the next world only if broken calls are retried.
        goes_on = session.retry is not None or session.world.generation == self._context.generation
        return session is self._context.session and goes_on

    @property
    def names(self) -> set[str]:
        """Return the names of the gradients."""
        return {entry.name for bundle in self._bundles for entry in bundle.entries}

    def add(self, bundles: Iterable[Sequence[Entry]]) -> None:
        """Add gradients, as `__init__` does. Frozen ones take part once they are trained."""
        added = [Bundle(entries) for entries in bundles]
        self._bundles += added
        self._buckets.add(added)
        entries = [entry for bundle in added for entry in bundle.entries]
        self._views.add(entries)
        self._reset_counts(added)
        self._watching.add(entries)

    def set_passes(self, passes: int) -> None:
        """Change the number of backward passes for each step, from the next step on."""
        self.passes = passes
        if not self._fired:
            self._reset_counts(self._bundles)

    def finish(self, steps: bool = True) -> None:
        """Launch the bundles that are not launched yet, and wait for all. Every entry then has its reduced gradient.

        Args:
            steps: whether the optimizer's step follows at once; otherwise the gradients may be changed before it.

        Raises:
            HorovodInternalError: a gradient could not be reduced; all others were waited for.
            InvalidRequestError: another reducer has taken over.
        """
        if self._watching.has_ended:
            raise InvalidRequestError(
                "a later DistributedOptimizer reduces the gradients of parameters of this one: use that one, or make "
                "this one again."
            )
        if not self._active():
            return
        if not steps:
            self._ballot.expect_changes()
        retry = self._context.step_retry if self._bundles else None
        if retry is None:
            self._finish_in_this_world()
        else:
            try:
                self._finish_in_some_world(retry)
            finally:
                self._reset()
        if self.observer is not None and not self.step_is_lost:
            self.observer.reduced(entry for bundle in self._bundles for entry in bundle.entries)
        self._watching.watch_trained()
        if self.step_is_lost:
            return  # The present gradients may differ between ranks.
        in_buckets = self._buckets.give(keeps=self._context.keeps)
        self._reset_counts(in_buckets)
        in_arena = self._front_end.uses_views and self._views.give(self._context.entered)
        self._ballot.first_in_views = bool(in_buckets) or in_arena

    def reset(self) -> None:
        """Reset the passes seen so far and the residuals of compression. Reductions in flight are waited for.

        Their outcome does not matter: the world may have broken, and the next one may have begun already. Reductions
        that have not begun begin if others have, because other ranks may have begun them.
        """
        session = self._context.session
        if session is not None and session is session_if_any():
            with suppress(FarandoleError):
                if session.world.generation == self._context.generation:
                    if any(bundle.launched for bundle in self._bundles):
                        self._launch_rest()
                    self._queue.submit()
            self._calls.wait(session)
        self._reset()
        self._front_end.forget_residuals()

    def hand_over(self) -> None:
        """End, because another reducer watches the same gradients. A step that has begun is waited for, and lost."""
        if not self._watching.has_ended:
            self._watching.end()
            if self.pending:
                self.reset()

    # --- one step --------------------------------------------------------------------------------------------------

    def on_gradient(self, entry: Entry) -> None:
        """Record that a backward pass has finished this entry's gradient. The front end calls it, in any thread."""
        if self.observer is not None:
            self.observer.computed(entry)
        if not self._active():
            return
        if entry.missing_passes == 0:
            raise AssertionError(TOO_MANY_PASSES)
        self._fired = True
        entry.missing_passes -= 1
        if entry.missing_passes:
            return
        bundle = entry.bundle
        with self._lock:
            bundle.missing -= 1
            complete = bundle.missing == 0
        if not complete:
            if bundle.flat is not None:
                bundle.flat.came()
        else:
            with self._context.loss_left_to_finish():
                self._launch(bundle)
                self._ballot.cast_early()
                self._queue.submit_in_time()

    def _launch(self, bundle: Bundle) -> None:
        context = self._context
        if bundle.submission is not None and bundle.put(context.share(), context.keeps):
            self._queue.add(bundle)
            return
        session = context.entered
        bundle.generation = session.world.generation
        if bundle.flat is not None and bundle.put(context.share(), context.keeps):
            bundle.weight(context.share())
            self._begin(bundle, bundle.flat.call(session))
            return
        self._keep(bundle)
        # A parameter that is frozen (not trained) takes no part.
        entries = [entry for entry in bundle.entries if entry.trained]
        self._ballot.on_general_way = self._ballot.on_general_way or bool(entries)
        sparse = [entry for entry in entries if entry.travels_sparse]
        dense = [entry for entry in entries if entry not in sparse]
        if dense:
            self._begin(bundle, self._front_end.dense_call(session, dense))
        for entry in sparse:
            self._begin(bundle, self._front_end.sparse_call(session, entry))

    def _keep(self, bundle: Bundle) -> None:
        """Save this rank's own gradients, which the reduced ones will overwrite, and weight them."""
        context = self._context
        if context.retry is None:
            return
        share = context.share()
        for entry in bundle.entries:
            if context.keeps and not bundle.kept:
                entry.keep()
            entry.weight(share)
        bundle.kept = context.keeps

    def _begin(self, bundle: Bundle, general: GeneralCall) -> None:
        self._calls.begin(self._context.entered, general.call, general.store, bundle)
        bundle.launched = True

    def _launch_rest(self) -> None:
        for bundle in self._bundles:
            if not bundle.launched:
                self._launch(bundle)
        self._ballot.cast()

    def _run_out(self) -> Exception | None:
        """Launch the bundles that are not launched yet, and wait for all; return the first error."""
        error: Exception | None = None
        for begin in (self._launch_rest, self._queue.submit):
            try:
                begin()
            except Exception as this:
                error = error or this
        failure = self._calls.finish(self._context.entered)
        return error or failure

    # --- one step in several worlds --------------------------------------------------------------------------------

    def _finish_in_this_world(self) -> None:
        error = self._run_out()
        self._reset()
        if error is not None:
            raise error

    def _finish_in_some_world(self, retry: Retry) -> None:
        """Finish the reduction, in this world or the next ones, and count the step."""
        while True:
            error = self._run_out()
            if error is not None and not retry.broken(error):
                raise error
            if error is None and self._are_of_this_world():
                self._reduced.keep(examine=self._ballot.first_in_views and self._context.has_next_world)
                retry.count(self._ballot.outcome(), self._reduced)
                return
            if retry.recover(self._reduced):
                return
            if not self._context.keeps:
                self.step_is_lost = True
                retry.give_out_again()
                return
            self._take_up_again()

    def _are_of_this_world(self) -> bool:
        """Return whether all gradients were reduced in the current world, rather than some in an earlier one."""
        generation = self._context.entered.world.generation
        return all(bundle.generation == generation for bundle in self._all_bundles())

    def _all_bundles(self) -> list[Bundle]:
        return self._bundles if self._ballot.bundle is None else [*self._bundles, self._ballot.bundle]

    def _take_up_again(self) -> None:
        """Mark the bundles that were not reduced in the current world to be launched again."""
        generation = self._context.entered.world.generation
        self._front_end.forget_residuals()
        for bundle in self._all_bundles():
            if not bundle.broken and bundle.generation == generation:
                continue
            bundle.launched = bundle.broken = False
            for entry in bundle.entries:
                if entry.kept is not None:
                    entry.restore()

    # --- counting --------------------------------------------------------------------------------------------------

    def _reset(self) -> None:
        self._fired = False
        self._calls.forget()
        self._queue.take()
        self._reset_counts(self._all_bundles())
        if self._ballot.on_general_way:
            # The results on the general way are new tensors in each step, as large as the model. All ranks have them by
            # now, so they need not be kept.
            self._reduced.forget()
            self._ballot.on_general_way = False

    def _reset_counts(self, bundles: Iterable[Bundle]) -> None:
        for bundle in bundles:
            bundle.reset(self.passes)

    # --- one session -----------------------------------------------------------------------------------------------

    def _active(self) -> bool:
        """Prepare for the current session and world; return whether there are other ranks to reduce with."""
        session = current()
        context = self._context
        has_next_world = session.retry is not None and session.notices is not None
        context.has_next_world = has_next_world
        keeps = has_next_world and session.settings.elastic_keep_gradients
        changed = (
            session is not context.session
            or keeps != context.keeps
            or session.world.generation != context.generation
            or session.times_made_alike != context.times_made_alike
        )
        if changed:
            self._follow(session, keeps)
        if not self._fired and session.dropped:
            with self._lock:
                session.dropped.finish(self)
        return session.world.size > 1 or session.notices is not None

    def _follow(self, session: Session, keeps: bool) -> None:
        """Prepare for another session, or for another world of this one."""
        context, generation = self._context, session.world.generation
        with self._lock:
            if session is not context.session or keeps != context.keeps:
                context.keeps = keeps
                self._enter(session)
            elif generation != context.generation and session.retry is None:
                self.reset()
                self._buckets.drop()
            elif session.times_made_alike != context.times_made_alike:
                self._buckets.drop()
            context.generation, context.times_made_alike = generation, session.times_made_alike

    def _enter(self, session: Session) -> None:
        self._buckets.drop()
        self._reset()
        self._views.drop([entry for bundle in self._bundles for entry in bundle.entries])
        self._ballot.bundle = None
        self._reduced.forget()
        # The ranks of this world may be others, and some may have failed in the middle of a step: residuals would not
        # fit together.
        self._front_end.forget_residuals()
        self._context.session = session
        session.dropped.watch(self)
