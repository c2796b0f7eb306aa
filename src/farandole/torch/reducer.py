"""Reduces gradients while the backward pass still runs.

Each parameter has a *slot*; the slots that are submitted together form a *bundle* (one parameter, unless the user asked
for groups). A hook on the parameter counts backward passes; when every slot of a bundle has seen enough of them, the
bundle is *launched*. `finish` launches what no hook has, so that a branch which one rank did not take stops nobody, and
waits for all.

A CPU gradient is copied to its place in the arena when it is launched and lives there from then on (`param.grad`
becomes a view). CUDA gradients and compressed ones take the general way of `farandole.torch.collectives`.

Everything that belongs to one session (places, native requests) is made anew when the session changes.
"""

from __future__ import annotations

import weakref
from collections.abc import Callable, Sequence
from typing import Any

import torch

from farandole.core.basics import current, is_initialized
from farandole.core.binding import NativeRequest
from farandole.core.dtype import Kind
from farandole.core.errors import InvalidRequestError
from farandole.core.group import ProcessSet
from farandole.core.handle import Pending
from farandole.core.request import make_request
from farandole.core.session import Session
from farandole.torch import buckets
from farandole.torch.collectives import allreduce_call, native_dtype
from farandole.torch.compression import Compression

TOO_MANY_PASSES = (
    "Gradients were computed more than backward_passes_per_step times before call to step(). "
    "Increase backward_passes_per_step to accumulate gradients locally over more passes."
)


class Slot:
    """One parameter and the way of its gradient."""

    __slots__ = ("bundle", "missing_passes", "name", "parameter", "place")

    def __init__(self, parameter: torch.nn.Parameter, name: str) -> None:
        self.parameter = parameter
        self.name = name
        self.place: torch.Tensor | None = None
        self.missing_passes = 0
        self.bundle: Bundle


class Bundle:
    """The slots that are submitted together."""

    __slots__ = ("contexts", "keep", "missing", "number", "requests", "sent", "slots")

    def __init__(self, slots: Sequence[Slot]) -> None:
        self.slots = slots
        self.missing = 0
        self.number: int | None = None
        # For bundles whose gradients all have a place: made once, used in every step.
        self.requests: Any = None
        self.keep: Callable[[Sequence[int]], None] = _nothing
        # For the others: what travels, and what the compression needs to undo it.
        self.sent: list[torch.Tensor] = []
        self.contexts: list[Any] = []


class GradientReducer:
    """Reduces the gradients of some parameters over a process set.

    Attributes:
        passes: backward passes for each step.
    """

    def __init__(
        self,
        bundles: Sequence[Sequence[tuple[str, torch.nn.Parameter]]],
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
            compression: a `Compressor`.
            process_set: which ranks take part.
            sparse_as_dense: make sparse gradients dense; otherwise they are refused.
        """
        self.passes = passes
        self._op, self._prescale, self._postscale = op, prescale, postscale
        self._compression = compression
        self._process_set = process_set
        self._sparse_as_dense = sparse_as_dense
        self._bundles = [Bundle([Slot(parameter, name) for name, parameter in bundle]) for bundle in bundles]
        for bundle in self._bundles:
            for slot in bundle.slots:
                slot.bundle = bundle
        self._slots = [slot for bundle in self._bundles for slot in bundle.slots]
        self._session: Session | None = None
        self._fired = False
        self._reset()
        hooks = [_hook(weakref.ref(self), slot) for slot in self._slots]
        # The hooks hold the slots, and the parameters the hooks; without this the places would outlive the optimizer.
        weakref.finalize(self, _remove, hooks).atexit = False

    # --- what the optimizer asks -------------------------------------------------------------------------------

    @property
    def pending(self) -> bool:
        """Say whether gradients have come since the last `finish`."""
        return self._fired and is_initialized() and self._session is current()

    def set_passes(self, passes: int) -> None:
        """Change the number of backward passes for each step, from the next step on."""
        self.passes = passes
        self._reset()

    def finish(self) -> None:
        """Launch what is not launched yet, and wait for all. Every parameter then has its reduced gradient.

        Raises:
            HorovodInternalError: a gradient could not be reduced; all others were waited for.
        """
        if not self._active():
            return
        error: Exception | None = None
        try:
            for bundle in self._bundles:
                if bundle.number is None and any(slot.parameter.requires_grad for slot in bundle.slots):
                    self._launch(bundle)
        except Exception as this:
            error = this
        for bundle in self._bundles:
            try:
                self._complete(bundle)
            except Exception as this:
                error = error or this
        self._reset()
        if error is not None:
            raise error

    def reset(self) -> None:
        """Forget the passes seen so far. Reductions in flight are waited for."""
        if self._session is not None and is_initialized() and self._session is current():
            for bundle in self._bundles:
                if bundle.number is not None:
                    self._session.handles.synchronize(bundle.number)
        self._reset()

    # --- one step ----------------------------------------------------------------------------------------------

    def on_gradient(self, slot: Slot) -> None:
        """Note that a backward pass has finished this slot's gradient. Called by the hook, in autograd's thread."""
        if not self._active():
            return
        if slot.missing_passes == 0:
            raise AssertionError(TOO_MANY_PASSES)
        self._fired = True
        slot.missing_passes -= 1
        if slot.missing_passes == 0:
            bundle = slot.bundle
            bundle.missing -= 1
            if bundle.missing == 0:
                self._launch(bundle)

    def _launch(self, bundle: Bundle) -> None:
        session = self._session
        assert session is not None
        for slot in bundle.slots:
            self._prepare(slot)
        if bundle.requests is not None:
            handles = session.engine.submit(bundle.requests)
            bundle.number = session.handles.add(Pending(session.engine, handles, bundle.keep))
            return
        pairs = [self._compression.compress(slot.parameter.grad) for slot in bundle.slots]
        bundle.contexts = [context for _, context in pairs]
        bundle.sent = [tensor.contiguous() for tensor, _ in pairs]
        names = [f"allreduce.{slot.name}" for slot in bundle.slots]
        group = session.group_of(self._process_set, "DistributedOptimizer")
        call = allreduce_call(
            session, bundle.sent, bundle.sent, names, self._op, self._prescale, self._postscale, group
        )
        bundle.number = session.handles.add(call)

    def _prepare(self, slot: Slot) -> None:
        """Make the gradient dense and put it in its place; zeros if this rank has none."""
        parameter, place = slot.parameter, slot.place
        gradient = parameter.grad
        if gradient is None:
            if place is None:
                parameter.grad = torch.zeros_like(parameter, memory_format=torch.contiguous_format)
            else:
                parameter.grad = place.zero_()
            return
        if gradient.is_sparse:
            if not self._sparse_as_dense:
                raise InvalidRequestError(
                    f"the gradient of {slot.name} is sparse; pass sparse_as_dense=True to DistributedOptimizer."
                )
            gradient = parameter.grad = gradient.to_dense()
        if place is not None and gradient is not place:
            parameter.grad = place.copy_(gradient.detach())

    def _complete(self, bundle: Bundle) -> None:
        session = self._session
        if bundle.number is None or session is None:
            return
        session.handles.synchronize(bundle.number)
        if bundle.requests is None:
            for slot, sent, context in zip(bundle.slots, bundle.sent, bundle.contexts, strict=True):
                reduced = self._compression.decompress(sent, context)
                if reduced is not slot.parameter.grad:
                    assert slot.parameter.grad is not None
                    slot.parameter.grad.copy_(reduced)

    def _reset(self) -> None:
        self._fired = False
        for bundle in self._bundles:
            bundle.number = None
            bundle.sent, bundle.contexts = [], []
            bundle.missing = len(bundle.slots)
            for slot in bundle.slots:
                slot.missing_passes = self.passes

    # --- one session -------------------------------------------------------------------------------------------

    def _active(self) -> bool:
        """Say whether there is anybody to reduce with, after making this ready for the current session."""
        session = current()
        if session is not self._session:
            self._session = session
            self._reset()
            if session.world.size > 1:
                self._prepare_session(session)
        return session.world.size > 1

    def _prepare_session(self, session: Session) -> None:
        group = session.group_of(self._process_set, "DistributedOptimizer")
        placed = [slot for slot in self._slots if self._has_place(slot)]
        places = buckets.allocate(session.engine, [slot.parameter for slot in placed])
        for slot in self._slots:
            slot.place = None
        for slot, place in zip(placed, places, strict=True):
            slot.place = place
        for bundle in self._bundles:
            self._prepare_bundle(bundle, group)

    def _has_place(self, slot: Slot) -> bool:
        return slot.parameter.device.type == "cpu" and self._compression is Compression.none

    def _prepare_bundle(self, bundle: Bundle, group: int) -> None:
        places = [slot.place for slot in bundle.slots]
        if any(place is None for place in places):
            bundle.requests = None
            return
        requests = [self._request(slot, group) for slot in bundle.slots]
        bundle.requests = (NativeRequest * len(requests))(*requests)
        # A step that is never finished must not free the places under the engine: the call in flight holds them.
        bundle.keep = lambda _, places=places: None  # type: ignore[misc]

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


def _hook(reducer: weakref.ref[GradientReducer], slot: Slot) -> Any:
    def on_gradient(_: torch.Tensor) -> None:
        alive = reducer()
        if alive is not None:
            alive.on_gradient(slot)

    return slot.parameter.register_post_accumulate_grad_hook(on_gradient)


def _remove(hooks: Sequence[Any]) -> None:
    for hook in hooks:
        hook.remove()


def _nothing(_: Sequence[int]) -> None:
    """Be the result of a call that has none."""
