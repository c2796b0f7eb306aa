"""Reduces gradients while the backward pass still runs.

Each parameter has an *entry*, in a *bundle* (see `entries`). A hook on the parameter counts backward passes; when every
entry of a bundle has seen enough of them, the bundle is *launched*. `finish` launches what no hook has, so that a
branch which one rank did not take stops nobody, and waits for all.

A dense CPU gradient has a *place* in the arena: it is copied there when it is launched and lives there from then on
(`param.grad` becomes a view); what is launched goes in *waves* (see `submit_batch`). Places are given at the end of an
entry's first step, when it is known that the parameter is trained and its gradient dense (see `arena_views`). Until
then, and on CUDA and with compression for ever, gradients take the general way (see `options`). Sparse gradients are
gathered, or made dense for the journey.

Where workers come and go, this rank's own gradients are kept until the step counts. When the world breaks, what was
reduced in it, or was to be, is reduced once more by those who are left, in the next one; unless somebody has all of it,
who then gives it to the others. The step counts on a rank that has all gradients, and every rank's *ballot*, which is
the last of them (see `ballot_bundle`).

Everything that belongs to one session (places, native requests) is made anew when the session changes.

A backward pass runs hooks in one thread for each device, so what entries of several devices share is under a lock.
"""

from __future__ import annotations

import threading
import weakref
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import contextmanager, suppress
from typing import Any, NamedTuple

import torch

from farandole.core.basics import current, is_initialized
from farandole.core.dtype import Average
from farandole.core.group import ProcessSet
from farandole.core.retry import Retry
from farandole.core.session import Session
from farandole.errors import FarandoleError, HorovodInternalError, MismatchError
from farandole.torch import arena_views as places
from farandole.torch.ballot_bundle import BallotBundle
from farandole.torch.compression import Compression, Feedback, Recipe
from farandole.torch.entries import Bundle, Entry
from farandole.torch.naming import Named
from farandole.torch.no_compile import no_compile
from farandole.torch.reduce_options import Journey, ReduceOptions
from farandole.torch.reduced import Reduced
from farandole.torch.submit_batch import SUBMIT_BATCH_BYTES, SubmitBatch

TOO_MANY_PASSES = (
    "Gradients were computed more than backward_passes_per_step times before call to step(). "
    "Increase backward_passes_per_step to accumulate gradients locally over more passes."
)


class _Flight(NamedTuple):
    """A call that has been begun."""

    number: int
    land: Callable[[Any], None]
    """Puts its result into the gradients."""
    bundle: Bundle | None = None
    """Whose it is; None for a wave, which tells its bundles apart by itself."""


class GradientReducer:
    """Reduces the gradients of some parameters over a process set.

    Attributes:
        passes: backward passes for each step.
        step_is_lost: the world has broken, and the gradients of the step were not kept: it is not to be made.
    """

    def __init__(
        self,
        bundles: Iterable[Sequence[Named]],
        *,
        passes: int,
        op: int,
        prescale: float,
        postscale: float,
        compression: Any,
        process_set: ProcessSet,
        sparse_as_dense: bool,
    ) -> None:
        """Hook into the parameters.

        Args:
            bundles: parameters with their names; those of one inner list are reduced together.
            passes: backward passes for each step.
            op: the reduction.
            prescale: multiplied in before the reduction.
            postscale: multiplied in after it.
            compression: a `Compressor` or a `Recipe`, which gets a memory of its own unless it comes with one.
            process_set: which ranks take part.
            sparse_as_dense: let sparse gradients travel dense; otherwise they are gathered.
        """
        self.passes = passes
        # A recipe is a part of the reduction, and needs a memory; what it reduces is not changed before.
        feedback = compression.with_feedback() if isinstance(compression, (Recipe, Feedback)) else None
        compression = compression if feedback is None else Compression.none
        self._options = ReduceOptions(op, prescale, postscale, process_set, compression, feedback)
        self._sparse_as_dense = sparse_as_dense
        self._session: Session | None = None
        self._generation = 0
        """Of the world that the step now under way began in."""
        self._keeps = False
        """Whether this rank's own gradients are kept until the step counts."""
        self.step_is_lost = False
        self._ballot: BallotBundle | None = None
        self._goes_on = False
        """When the world breaks, there may be a next one."""
        self._are_changed = False
        """Somebody changes reduced gradients, now and then, before the next step's are reduced."""
        self._examines = False
        """This is the first step in which gradients have places."""
        self._leaves_places = False
        """Some gradients of this step go the general way."""
        self._fired = False
        self._lock = threading.Lock()
        self._bundles: list[Bundle] = []
        self._reduced = Reduced(self._bundles)
        self._flights: list[_Flight] = []
        # Launched and not submitted yet.
        self._wave: list[Bundle] = []
        self._wave_bytes = 0
        # The backward pass that runs now will submit it.
        self._wave_has_end = False
        self._unhooked: list[Entry] = []
        self._unplaced: list[Entry] = []
        self._hooks: list[Any] = []
        self.add(bundles)
        # The hooks hold the entries, and the parameters the hooks; without this the places would outlive the optimizer.
        weakref.finalize(self, _remove, self._hooks).atexit = False

    # --- what the optimizer asks -------------------------------------------------------------------------------

    @property
    def pending(self) -> bool:
        """Say whether gradients have come since the last `finish`."""
        if not self._fired or not is_initialized():
            return False
        session = current()
        # A step goes on in the next world only if somebody sees to that.
        goes_on = session.retry is not None or session.world.generation == self._generation
        return session is self._session and goes_on

    def add(self, bundles: Iterable[Sequence[Named]]) -> None:
        """Take more parameters in; see `__init__`. Frozen ones take part once they are trained."""
        added = [Bundle(named, sparse_as_dense=self._sparse_as_dense) for named in bundles]
        self._bundles += added
        entries = [entry for bundle in added for entry in bundle.entries]
        self._unhooked += entries
        self._unplaced += entries
        self._reset_counts(added)
        self._hook_trained()

    def set_passes(self, passes: int) -> None:
        """Change the number of backward passes for each step, from the next step on."""
        self.passes = passes
        if not self._fired:
            self._reset_counts(self._bundles)

    @no_compile
    def finish(self, steps: bool = True) -> None:
        """Launch what is not launched yet, and wait for all. Every parameter then has its reduced gradient.

        Args:
            steps: the optimizer takes its step at once; otherwise the gradients may be changed before it does.

        Raises:
            HorovodInternalError: a gradient could not be reduced; all others were waited for.
        """
        if not self._active():
            return
        self._are_changed = self._are_changed or not steps
        again = self._again()
        if again is None:
            self._finish_once()
            return
        try:
            self._finish_in_some_world(again)
        finally:
            self._reset()
        self._prepare_next_step()

    def _finish_once(self) -> None:
        error = self._run_out()
        self._reset()
        if error is not None:
            raise error
        self._prepare_next_step()

    def _run_out(self) -> Exception | None:
        """Launch what is not launched yet, and wait for all; return the first error."""
        error: Exception | None = None
        for begin in (self._launch_rest, self._submit_wave):
            try:
                begin()
            except Exception as this:
                error = error or this
        for flight in self._flights:
            failure = self._land(flight)
            error = error or failure
        self._flights = []
        return error

    def _prepare_next_step(self) -> None:
        self._hook_trained()
        self._examines = self._give_places()

    # --- one step in several worlds ----------------------------------------------------------------------------

    def _finish_in_some_world(self, again: Retry) -> None:
        """Finish, in this world or the next ones, and have the step count."""
        while True:
            error = self._run_out()
            if error is not None and not again.broken(error):
                raise error
            if error is None and self._are_of_this_world():
                self._let_count(again)
                return
            if again.recover(self._reduced):
                return
            if not self._keeps:
                self.step_is_lost = True
                again.give_out_again()
                return
            self._take_up_again()

    def _again(self) -> Retry | None:
        """Return who lets a step count by these gradients: not those of some ranks only, nor none."""
        if self._session is None or not self._bundles or self._options.process_set.process_set_id != 0:
            return None
        return self._session.retry

    def _are_of_this_world(self) -> bool:
        """Say whether all gradients were reduced in the world of now, and not some in another one before."""
        assert self._session is not None
        generation = self._session.world.generation
        return all(bundle.generation == generation for bundle in self._all_bundles())

    def _all_bundles(self) -> list[Bundle]:
        return self._bundles if self._ballot is None else [*self._bundles, self._ballot]

    def _let_count(self, again: Retry) -> None:
        assert self._ballot is not None
        self._reduced.keep(examine=self._examines)
        again.count(self._ballot.outcome, self._reduced)

    def _take_up_again(self) -> None:
        """Let what was not reduced in the world of now be launched once more."""
        assert self._session is not None
        generation = self._session.world.generation
        if self._options.feedback is not None:
            self._options.feedback.forget()  # What it holds was being written when the world broke.
        for bundle in self._all_bundles():
            if not bundle.broken and bundle.generation == generation:
                continue
            bundle.launched = bundle.broken = False
            for entry in bundle.entries:
                if entry.kept is not None:
                    entry.parameter.grad = entry.kept.clone()

    def _keep(self, bundle: Bundle) -> None:
        """Keep this rank's own gradients, which are about to be reduced where they are, and weight them."""
        assert self._session is not None
        again = self._session.retry
        bundle.generation = self._session.world.generation
        if again is None:
            return
        for entry in bundle.entries:
            gradient = entry.parameter.grad
            if gradient is None:
                continue
            if self._keeps and not bundle.kept:
                entry.kept = gradient.detach().clone()
            entry.parameter.grad = _weighted(gradient, self._share())
        bundle.kept = self._keeps

    def reset(self) -> None:
        """Forget the passes seen so far, and what compression has not sent. Reductions in flight are waited for.

        What became of them does not matter: the world may have broken, and the next one be there already.
        """
        session = self._session
        if session is not None and is_initialized() and session is current():
            with suppress(FarandoleError):
                if session.world.generation == self._generation:
                    self._submit_wave()
            for flight in self._flights:
                with suppress(FarandoleError):
                    session.handles.synchronize(flight.number)
        self._reset()
        if self._options.feedback is not None:
            self._options.feedback.forget()

    # --- one step ----------------------------------------------------------------------------------------------

    @no_compile
    def on_gradient(self, entry: Entry) -> None:
        """Note that a backward pass has finished this entry's gradient. Called by the hook, in autograd's thread."""
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
        if complete:
            self._launch_now(bundle)

    def _launch_now(self, bundle: Bundle) -> None:
        with self._left_to_the_end_of_the_step():
            self._launch(bundle)
            self._cast_early()
            self._submit_wave_in_time()

    @contextmanager
    def _left_to_the_end_of_the_step(self) -> Iterator[None]:
        """Let a backward pass go on when the world breaks, where the end of the step sees to it."""
        try:
            yield
        except HorovodInternalError as error:
            again = None if self._session is None else self._session.retry
            if again is None or not again.broken(error):
                raise

    def _launch_rest(self) -> None:
        for bundle in self._bundles:
            if not bundle.launched:
                self._launch(bundle)
        self._cast()

    def _launch(self, bundle: Bundle) -> None:
        session = self._session
        assert session is not None
        if bundle.submission is not None and self._put_all_in_place(bundle):
            self._join_wave(bundle)
            return
        self._keep(bundle)
        # A parameter that was frozen takes no part.
        entries = [entry for entry in bundle.entries if entry.parameter.requires_grad]
        sparse = [entry for entry in entries if entry.travels_sparse]
        dense = [entry for entry in entries if entry not in sparse]
        if dense:
            self._fly(session, bundle, self._options.dense(session, dense))
        for entry in sparse:
            self._fly(session, bundle, self._options.sparse(session, entry))

    def _fly(self, session: Session, bundle: Bundle, journey: Journey) -> None:
        number = session.handles.begin(journey.call)
        bundle.launched = self._leaves_places = True
        self._flights.append(_Flight(number, journey.land, bundle))

    def _land(self, flight: _Flight) -> Exception | None:
        """Wait for a flight and put its result into the gradients; return why there is none."""
        assert self._session is not None
        try:
            flight.land(self._session.handles.synchronize(flight.number))
        except Exception as error:
            if flight.bundle is not None:
                flight.bundle.broken = True
            return _explained(error, flight.bundle)
        return None

    # --- the ballot --------------------------------------------------------------------------------------------

    def _cast(self) -> None:
        """Let the ballot go with what is launched last."""
        again = self._again()
        if again is None:
            return
        assert self._session is not None
        if self._ballot is None:
            self._ballot = self._make_ballot()
        if not self._ballot.launched:
            self._ballot.fill_in(self._session, again.ballot(self._has_to_meet()))
            self._join_wave(self._ballot)

    def _make_ballot(self) -> BallotBundle:
        first = self._bundles[0].entries[0]
        return BallotBundle(f"elastic.ballot.{first.name}", first.parameter.dtype, self._options)

    def _has_to_meet(self) -> bool:
        """Say whether this rank could not give its reduced gradients to others once it has gone on."""
        if not self._goes_on:
            return False
        self._are_changed = self._are_changed or not self._reduced.are_intact()
        return self._are_changed or self._examines or self._leaves_places or not self._keeps

    def _cast_early(self) -> None:
        """Do so before the end of the step, if nothing else will be launched."""
        if not all(map(_has_begun, self._bundles)):
            return
        again = self._again()
        if again is not None and again.launched():
            self._cast()

    # --- waves -------------------------------------------------------------------------------------------------

    def _join_wave(self, bundle: Bundle) -> None:
        bundle.launched = True
        with self._lock:
            self._wave.append(bundle)
            self._wave_bytes += bundle.nbytes

    def _submit_wave_in_time(self) -> None:
        """Submit the wave if it is worth it; otherwise see to it that the end of the backward pass does."""
        if self._wave_bytes >= SUBMIT_BATCH_BYTES:
            self._submit_wave()
        elif self._wave and not self._wave_has_end:
            self._wave_has_end = _at_end_of_backward(self._submit_last_wave)
            if not self._wave_has_end:
                self._submit_wave()

    def _submit_last_wave(self) -> None:
        with self._left_to_the_end_of_the_step():
            self._submit_wave()

    @no_compile
    def _submit_wave(self) -> None:
        """Submit what has been launched and waits for more."""
        session = self._session
        with self._lock:
            bundles = self._take_wave()
        if not bundles or session is None:
            return
        for bundle in bundles:
            bundle.generation = session.world.generation
            places.weight(bundle, self._share())
        try:
            number = session.handles.begin(SubmitBatch(session.engine, bundles))
        except Exception:
            for bundle in bundles:
                bundle.launched = False
            raise
        self._flights.append(_Flight(number, self._land_wave))

    def _take_wave(self) -> list[Bundle]:
        bundles, self._wave = self._wave, []
        self._wave_bytes, self._wave_has_end = 0, False
        return bundles

    def _land_wave(self, outcomes: Sequence[tuple[Bundle, Exception | None]]) -> None:
        for bundle, error in outcomes:
            if error is None:
                places.take_back(bundle.entries)
            else:
                bundle.broken = True
        for bundle, error in outcomes:
            if error is not None:
                raise _explained(error, bundle)

    # --- gradients in their places -----------------------------------------------------------------------------

    def _put_all_in_place(self, bundle: Bundle) -> bool:
        """Put a bundle's gradients where they travel from; say whether they can."""
        if bundle.kept:
            return all(entry.kept is None for entry in bundle.entries)
        bundle.share = self._share()
        bundle.kept = self._keeps
        if all(places.put(entry, bundle.share) for entry in bundle.entries):
            return True
        bundle.kept = False
        return False

    def _share(self) -> float:
        assert self._session is not None
        again = self._session.retry
        return 1.0 if again is None or self._options.op != Average else again.share

    # --- counting ----------------------------------------------------------------------------------------------

    def _reset(self) -> None:
        self._fired = False
        self._flights = []
        self._take_wave()
        self._reset_counts(self._all_bundles())
        if self._leaves_places:
            # They are new in each step, and as large as the model; and all ranks have them by now.
            self._reduced.forget()
            self._leaves_places = False

    def _reset_counts(self, bundles: Iterable[Bundle]) -> None:
        for bundle in bundles:
            bundle.launched = bundle.broken = bundle.kept = False
            bundle.missing = len(bundle.entries)
            for entry in bundle.entries:
                entry.missing_passes = self.passes
                entry.absent = False
                entry.kept = None

    def _hook_trained(self) -> None:
        """Hook into those parameters that were frozen when this last looked."""
        self._hooks += [_hook(weakref.ref(self), entry) for entry in self._unhooked if entry.parameter.requires_grad]
        self._unhooked = [entry for entry in self._unhooked if not entry.parameter.requires_grad]

    # --- one session -------------------------------------------------------------------------------------------

    def _active(self) -> bool:
        """Say whether there is anybody to reduce with, after making this ready for the current session and world."""
        session = current()
        goes_on = session.retry is not None and session.notices is not None
        self._goes_on = goes_on
        keeps = goes_on and session.settings.elastic_keep_gradients
        generation = session.world.generation
        if session is not self._session or keeps != self._keeps or generation != self._generation:
            with self._lock:
                if session is not self._session or keeps != self._keeps:
                    self._keeps = keeps
                    self._enter(session)
                elif generation != self._generation and session.retry is None:
                    self.reset()
                self._generation = generation
        return session.world.size > 1 or session.notices is not None

    def _enter(self, session: Session) -> None:
        self._reset()
        self._unplaced = [entry for bundle in self._bundles for entry in bundle.entries]
        for entry in self._unplaced:
            entry.place = entry.local = None
        for bundle in self._bundles:
            bundle.submission = None
        self._ballot = None
        self._reduced.forget()
        if self._options.feedback is not None:
            # Other ranks may be in this world, and may have failed in the middle of the last one.
            self._options.feedback.forget()
        self._session = session

    def _give_places(self) -> bool:
        """Give those gradients a place that turned out to be dense, and prepare the requests of their bundles.

        Returns:
            Whether there were any.
        """
        session = self._session
        entries = [entry for entry in self._unplaced if places.is_wanted(entry, self._options)]
        if not entries or session is None:
            return False
        places.give(session, entries, self._options, keeps=self._keeps)
        self._unplaced = [entry for entry in self._unplaced if entry.place is None]
        return True


def _has_begun(bundle: Bundle) -> bool:
    """Say whether a bundle is launched, or has nothing to launch."""
    return bundle.launched or not any(entry.parameter.requires_grad for entry in bundle.entries)


def _weighted(gradient: torch.Tensor, share: float) -> torch.Tensor:
    """Return a gradient multiplied; one that does not count may be anything."""
    if share == 0.0:
        return torch.zeros_like(gradient)
    return gradient if share == 1.0 else gradient.detach() * share


def _explained(error: Exception, bundle: Bundle | None) -> Exception:
    """Return the error, with what this rank alone knows about it."""
    absent = [] if bundle is None else [entry.name for entry in bundle.entries if entry.absent]
    if not absent or not isinstance(error, MismatchError):
        return error
    explained = MismatchError(
        f"{error} This rank has had no gradient of {', '.join(absent)} so far and took it for dense; if it is sparse "
        "elsewhere, pass sparse_as_dense=True to DistributedOptimizer."
    )
    explained.__cause__ = error
    return explained


def _at_end_of_backward(callback: Callable[[], None]) -> bool:
    """Let the backward pass that runs in this thread call back when it ends. False if none runs, or it cannot."""
    try:
        torch.autograd.Variable._execution_engine.queue_callback(callback)
    except RuntimeError:
        return False
    return True


def _hook(reducer: weakref.ref[GradientReducer], entry: Entry) -> Any:
    def on_gradient(_: torch.Tensor) -> None:
        alive = reducer()
        if alive is not None:
            alive.on_gradient(entry)

    return entry.parameter.register_post_accumulate_grad_hook(on_gradient)


def _remove(hooks: Sequence[Any]) -> None:
    for hook in hooks:
        hook.remove()
