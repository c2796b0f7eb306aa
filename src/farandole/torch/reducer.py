"""Reduces gradients while the backward pass still runs.

Each parameter has a *slot*, in a *bundle* (see `slots`). A hook on the parameter counts backward passes; when every
slot of a bundle has seen enough of them, the bundle is *launched*. `finish` launches what no hook has, so that a branch
which one rank did not take stops nobody, and waits for all.

A dense CPU gradient has a *place* in the arena: it is copied there when it is launched and lives there from then on
(`param.grad` becomes a view); what is launched goes in *waves* (see `wave`). Places are given at the end of a slot's
first step, when it is known that the parameter is trained and its gradient dense. Until then, and on CUDA and with
compression for ever, gradients take the general way of `farandole.torch.collectives`. Sparse gradients are gathered
(see `sparse_rows`), or made dense for the journey.

Everything that belongs to one session (places, native requests) is made anew when the session changes.

A backward pass runs hooks in one thread for each device, so what slots of several devices share is under a lock.
"""

from __future__ import annotations

import threading
import weakref
from collections.abc import Callable, Iterable, Sequence
from typing import Any, NamedTuple

import torch

from farandole.core.basics import current, is_initialized
from farandole.core.binding import NativeRequest
from farandole.core.dtype import Average, Kind, Sum
from farandole.core.errors import InvalidRequestError, MismatchError
from farandole.core.group import ProcessSet
from farandole.core.handle import Call
from farandole.core.request import make_request
from farandole.core.session import Session
from farandole.core.submission import Submission
from farandole.torch import buckets
from farandole.torch.collectives import allreduce_call, compressed_call, native_dtype
from farandole.torch.collectives.allgather import gather_member
from farandole.torch.collectives.call import call_of_several
from farandole.torch.compression import Compression, Feedback, Recipe
from farandole.torch.naming import Named
from farandole.torch.slots import Bundle, Slot
from farandole.torch.sparse_rows import pack, unpack
from farandole.torch.uncompiled import uncompiled
from farandole.torch.wave import WAVE_BYTES, Wave

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
        self._op, self._prescale, self._postscale = op, prescale, postscale
        # A recipe is a part of the reduction, and needs a memory; what it reduces is not changed before.
        self._feedback = compression.with_feedback() if isinstance(compression, (Recipe, Feedback)) else None
        self._compression = compression if self._feedback is None else Compression.none
        self._process_set = process_set
        self._sparse_as_dense = sparse_as_dense
        self._session: Session | None = None
        self._fired = False
        self._lock = threading.Lock()
        self._bundles: list[Bundle] = []
        self._flights: list[_Flight] = []
        # Launched and not submitted yet.
        self._wave: list[Bundle] = []
        self._wave_bytes = 0
        # The backward pass that runs now will submit it.
        self._wave_has_end = False
        self._unhooked: list[Slot] = []
        self._unplaced: list[Slot] = []
        self._hooks: list[Any] = []
        self.add(bundles)
        # The hooks hold the slots, and the parameters the hooks; without this the places would outlive the optimizer.
        weakref.finalize(self, _remove, self._hooks).atexit = False

    # --- what the optimizer asks -------------------------------------------------------------------------------

    @property
    def pending(self) -> bool:
        """Say whether gradients have come since the last `finish`."""
        return self._fired and is_initialized() and self._session is current()

    def add(self, bundles: Iterable[Sequence[Named]]) -> None:
        """Take more parameters in; see `__init__`. Frozen ones take part once they are trained."""
        added = [Bundle(named) for named in bundles]
        self._bundles += added
        slots = [slot for bundle in added for slot in bundle.slots]
        self._unhooked += slots
        self._unplaced += slots
        self._reset_counts(added)
        self._hook_trained()

    def set_passes(self, passes: int) -> None:
        """Change the number of backward passes for each step, from the next step on."""
        self.passes = passes
        if not self._fired:
            self._reset_counts(self._bundles)

    @uncompiled
    def finish(self) -> None:
        """Launch what is not launched yet, and wait for all. Every parameter then has its reduced gradient.

        Raises:
            HorovodInternalError: a gradient could not be reduced; all others were waited for.
        """
        if not self._active():
            return
        error: Exception | None = None
        for begin in (self._launch_rest, self._submit_wave):
            try:
                begin()
            except Exception as this:
                error = error or this
        for flight in self._flights:
            failure = self._land(flight)
            error = error or failure
        self._reset()
        if error is not None:
            raise error
        self._hook_trained()
        self._give_places()

    def reset(self) -> None:
        """Forget the passes seen so far, and what compression has not sent. Reductions in flight are waited for."""
        if self._session is not None and is_initialized() and self._session is current():
            self._submit_wave()
            for flight in self._flights:
                self._session.handles.synchronize(flight.number)
        self._reset()
        if self._feedback is not None:
            self._feedback.forget()

    # --- one step ----------------------------------------------------------------------------------------------

    @uncompiled
    def on_gradient(self, slot: Slot) -> None:
        """Note that a backward pass has finished this slot's gradient. Called by the hook, in autograd's thread."""
        if not self._active():
            return
        if slot.missing_passes == 0:
            raise AssertionError(TOO_MANY_PASSES)
        self._fired = True
        slot.missing_passes -= 1
        if slot.missing_passes:
            return
        bundle = slot.bundle
        with self._lock:
            bundle.missing -= 1
            complete = bundle.missing == 0
        if complete:
            self._launch(bundle)
            self._submit_wave_in_time()

    def _launch_rest(self) -> None:
        for bundle in self._bundles:
            if not bundle.launched:
                self._launch(bundle)

    def _launch(self, bundle: Bundle) -> None:
        session = self._session
        assert session is not None
        if bundle.submission is not None and all(map(self._put_in_place, bundle.slots)):
            self._join_wave(bundle)
            return
        # A parameter that was frozen takes no part.
        slots = [slot for slot in bundle.slots if slot.parameter.requires_grad]
        sparse = [slot for slot in slots if self._travels_sparse(slot)]
        dense = [slot for slot in slots if slot not in sparse]
        if dense:
            self._launch_dense(session, bundle, dense)
        for slot in sparse:
            self._launch_sparse(session, bundle, slot)

    def _fly(self, bundle: Bundle, call: Call, land: Callable[[Any], None]) -> None:
        assert self._session is not None
        number = self._session.handles.begin(call)
        bundle.launched = True
        self._flights.append(_Flight(number, land, bundle))

    def _land(self, flight: _Flight) -> Exception | None:
        """Wait for a flight and put its result into the gradients; return why there is none."""
        assert self._session is not None
        try:
            flight.land(self._session.handles.synchronize(flight.number))
        except Exception as error:
            return _explained(error, flight.bundle)
        return None

    # --- waves -------------------------------------------------------------------------------------------------

    def _join_wave(self, bundle: Bundle) -> None:
        bundle.launched = True
        with self._lock:
            self._wave.append(bundle)
            self._wave_bytes += bundle.nbytes

    def _submit_wave_in_time(self) -> None:
        """Submit the wave if it is worth it; otherwise see to it that the end of the backward pass does."""
        if self._wave_bytes >= WAVE_BYTES:
            self._submit_wave()
        elif self._wave and not self._wave_has_end:
            self._wave_has_end = _at_end_of_backward(self._submit_wave)
            if not self._wave_has_end:
                self._submit_wave()

    @uncompiled
    def _submit_wave(self) -> None:
        """Submit what has been launched and waits for more."""
        session = self._session
        with self._lock:
            bundles = self._take_wave()
        if not bundles or session is None:
            return
        try:
            number = session.handles.begin(Wave(session.engine, bundles))
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
                self._return_placed(bundle.slots)
        for bundle, error in outcomes:
            if error is not None:
                raise _explained(error, bundle)

    # --- gradients in their places -----------------------------------------------------------------------------

    def _put_in_place(self, slot: Slot) -> bool:
        """Put a gradient into its place, zeros if there is none; say whether it can travel from there."""
        parameter, place = slot.parameter, slot.place
        assert place is not None
        if not parameter.requires_grad:
            return False
        gradient = parameter.grad
        if gradient is None and slot.sparse_dim is None:
            slot.absent = True
            parameter.grad = place.zero_()
        elif gradient is None or gradient.is_sparse:
            if self._travels_sparse(slot):
                return False
            parameter.grad = place.copy_(self._dense(slot))
        elif gradient is not place:
            slot.sparse_dim = None
            # After create_graph=True a gradient requires gradients; what is reduced does not.
            parameter.grad = place.copy_(gradient.detach() if gradient.requires_grad else gradient)
        return True

    def _return_placed(self, slots: Sequence[Slot]) -> None:
        for slot in slots:
            assert slot.place is not None
            # Somebody may have put another tensor there meanwhile.
            if slot.parameter.grad is not slot.place or slot.sparse_dim is not None:
                self._store(slot, slot.place)

    # --- gradients that travel from where they are -------------------------------------------------------------

    def _launch_dense(self, session: Session, bundle: Bundle, slots: Sequence[Slot]) -> None:
        pairs = [self._compression.compress(self._dense(slot)) for slot in slots]
        sent = [tensor.contiguous() for tensor, _ in pairs]
        names = [f"allreduce.{slot.name}" for slot in slots]
        group = session.group_of(self._process_set, "DistributedOptimizer")
        how = sent, sent, names, self._op, self._prescale, self._postscale, group
        if self._feedback is None:
            call = allreduce_call(session, *how)
        else:
            call = compressed_call(session, self._feedback, *how)

        def land(_: Any) -> None:
            for slot, tensor, (_, context) in zip(slots, sent, pairs, strict=True):
                self._store(slot, self._compression.decompress(tensor, context))

        self._fly(bundle, call, land)

    def _dense(self, slot: Slot) -> torch.Tensor:
        """Return the slot's gradient, made dense; zeros if this rank has none."""
        parameter = slot.parameter
        gradient = parameter.grad
        if gradient is None:
            slot.absent = slot.sparse_dim is None
            gradient = torch.zeros_like(parameter, memory_format=torch.contiguous_format, requires_grad=False)
        elif gradient.is_sparse:
            slot.sparse_dim = gradient.sparse_dim()
            return gradient.detach().to_dense()
        else:
            slot.sparse_dim = None
            gradient = gradient.detach()
        # After create_graph=True a gradient requires gradients; what is reduced does not.
        parameter.grad = gradient
        return gradient

    def _store(self, slot: Slot, reduced: torch.Tensor) -> None:
        """Let a slot's gradient be the reduced one, sparse if it was sparse before."""
        parameter = slot.parameter
        if slot.sparse_dim is not None:
            parameter.grad = reduced.to_sparse(slot.sparse_dim)
        elif reduced is slot.place or parameter.grad is None:
            parameter.grad = reduced
        elif reduced is not parameter.grad:
            parameter.grad.copy_(reduced)

    # --- sparse gradients --------------------------------------------------------------------------------------

    def _travels_sparse(self, slot: Slot) -> bool:
        if self._sparse_as_dense:
            return False
        gradient = slot.parameter.grad
        return slot.sparse_dim is not None if gradient is None else gradient.is_sparse

    def _launch_sparse(self, session: Session, bundle: Bundle, slot: Slot) -> None:
        if self._op not in (Average, Sum):
            raise InvalidRequestError(
                f"the gradient of {slot.name} is sparse, for which there are op=hvd.Average and op=hvd.Sum only; pass "
                "sparse_as_dense=True to DistributedOptimizer."
            )
        parameter = slot.parameter
        gradient = parameter.grad
        if gradient is None:
            assert slot.sparse_dim is not None
            gradient = _nothing_stored(parameter, slot.sparse_dim)
        dtype, sparse_dim = gradient.dtype, gradient.sparse_dim()
        slot.sparse_dim = sparse_dim
        divisor = len(self._process_set.ranks) if self._op == Average else 1
        group = session.group_of(self._process_set, "DistributedOptimizer")
        call = call_of_several(session, [gather_member(session, group, f"allreduce.{slot.name}", pack(gradient))])

        def land(results: Any) -> None:
            ((rows, _),) = results
            parameter.grad = unpack(rows, parameter.shape, dtype, sparse_dim).div_(divisor)

        self._fly(bundle, call, land)

    # --- counting ----------------------------------------------------------------------------------------------

    def _reset(self) -> None:
        self._fired = False
        self._flights = []
        self._take_wave()
        self._reset_counts(self._bundles)

    def _reset_counts(self, bundles: Iterable[Bundle]) -> None:
        for bundle in bundles:
            bundle.launched = False
            bundle.missing = len(bundle.slots)
            for slot in bundle.slots:
                slot.missing_passes = self.passes
                slot.absent = False

    def _hook_trained(self) -> None:
        """Hook into those parameters that were frozen when this last looked."""
        self._hooks += [_hook(weakref.ref(self), slot) for slot in self._unhooked if slot.parameter.requires_grad]
        self._unhooked = [slot for slot in self._unhooked if not slot.parameter.requires_grad]

    # --- one session -------------------------------------------------------------------------------------------

    def _active(self) -> bool:
        """Say whether there is anybody to reduce with, after making this ready for the current session."""
        session = current()
        if session is not self._session:
            with self._lock:
                if session is not self._session:
                    self._enter(session)
        return session.world.size > 1

    def _enter(self, session: Session) -> None:
        self._reset()
        self._unplaced = [slot for bundle in self._bundles for slot in bundle.slots]
        for slot in self._unplaced:
            slot.place = None
        for bundle in self._bundles:
            bundle.submission = None
        if self._feedback is not None:
            self._feedback.forget()  # other ranks may be in this world, and may have failed in the middle of the last
        self._session = session

    def _give_places(self) -> None:
        """Give those gradients a place that turned out to be dense, and prepare the requests of their bundles."""
        session = self._session
        slots = [slot for slot in self._unplaced if self._wants_place(slot)]
        if not slots or session is None:
            return
        for slot, place in zip(
            slots, buckets.allocate(session.engine, [slot.parameter for slot in slots]), strict=True
        ):
            slot.place = place
            gradient = slot.parameter.grad
            if gradient is not None and not gradient.is_sparse:
                slot.parameter.grad = place.copy_(gradient)
        self._unplaced = [slot for slot in self._unplaced if slot.place is None]
        group = session.group_of(self._process_set, "DistributedOptimizer")
        for bundle in {id(slot.bundle): slot.bundle for slot in slots}.values():
            self._prepare_bundle(bundle, group)

    def _wants_place(self, slot: Slot) -> bool:
        parameter = slot.parameter
        return (
            parameter.grad is not None
            and parameter.device.type == "cpu"
            and self._compression is Compression.none
            and self._feedback is None
            and (self._sparse_as_dense or slot.sparse_dim is None)
        )

    def _prepare_bundle(self, bundle: Bundle, group: int) -> None:
        places = [slot.place for slot in bundle.slots]
        if any(place is None for place in places):
            return
        requests = [self._request(slot, group) for slot in bundle.slots]
        bundle.submission = Submission(requests)
        bundle.nbytes = sum(place.nbytes for place in places if place is not None)

    def _request(self, slot: Slot, group: int) -> NativeRequest:
        assert slot.place is not None
        address = slot.place.data_ptr()
        return make_request(
            Kind.ALLREDUCE,
            f"allreduce.{slot.name}",
            dtype=native_dtype(slot.place),
            op=self._op,
            group=group,
            shape=slot.place.shape,
            prescale=self._prescale,
            postscale=self._postscale,
            input=address,
            output=address,
        )


def _explained(error: Exception, bundle: Bundle | None) -> Exception:
    """Return the error, with what this rank alone knows about it."""
    absent = [] if bundle is None else [slot.name for slot in bundle.slots if slot.absent]
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


def _nothing_stored(parameter: torch.Tensor, sparse_dim: int) -> torch.Tensor:
    indices = torch.empty(sparse_dim, 0, dtype=torch.int64, device=parameter.device)
    values = torch.empty(0, *parameter.shape[sparse_dim:], dtype=parameter.dtype, device=parameter.device)
    return torch.sparse_coo_tensor(indices, values, parameter.shape, check_invariants=False)


def _hook(reducer: weakref.ref[GradientReducer], slot: Slot) -> Any:
    def on_gradient(_: torch.Tensor) -> None:
        alive = reducer()
        if alive is not None:
            alive.on_gradient(slot)

    return slot.parameter.register_post_accumulate_grad_hook(on_gradient)


def _remove(hooks: Sequence[Any]) -> None:
    for hook in hooks:
        hook.remove()
