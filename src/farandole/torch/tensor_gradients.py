"""PyTorch's part of the gradient reducer: hooks, ends of backward passes, and the general way of a gradient.

On the general way, a gradient is sent from its own memory, by a call made for it. This is how gradients without a view
of the arena are sent: compressed ones, sparse ones, those on another device, and all in the first step. After it, those
on a GPU are sent together (see `flat_gradients`).
"""

from __future__ import annotations

import weakref
from collections.abc import Callable, Sequence
from functools import partial
from typing import Any

import torch

from farandole.errors import InvalidRequestError
from farandole.torch.collectives import allreduce_call, compressed_call
from farandole.torch.collectives.calls import call_of_several, gather_member
from farandole.torch.compression import Compression, Feedback, PowerSGD, Recipe
from farandole.torch.flat_gradients import FlatGradients
from farandole.torch.gradient_entry import GradientEntry
from farandole.torch.no_compile import no_compile
from farandole.torch.sparse_rows import pack, unpack
from farandole.worker.core.dtype import Adasum, Average, Sum
from farandole.worker.core.session import Session
from farandole.worker.gradients.buckets import Bucket
from farandole.worker.gradients.entry import Bundle, Entry
from farandole.worker.gradients.general_call import GeneralCall
from farandole.worker.gradients.gradient_front_end import GradientReceiver
from farandole.worker.gradients.reduce_options import ReduceOptions
from farandole.worker.gradients.reducer import Reducer


class TensorGradients:
    """Implements `worker.gradients.gradient_front_end.GradientFrontEnd` for tensors of PyTorch.

    Attributes:
        compression: the compression before the reduction, which is undone after it.
        feedback: a compression that is a part of the reduction, with its residuals; None without one.
    """

    def __init__(self, options: ReduceOptions, compression: Any) -> None:
        """Create the adapter.

        Args:
            options: the options of the reduction.
            compression: a `Compressor` or a `Recipe`, for which a memory is created unless it has one.
        """
        self._options = options
        # A recipe is a part of the reduction, and needs a memory; its inputs are not changed before.
        self.feedback = compression.with_feedback() if isinstance(compression, (Recipe, Feedback)) else None
        self.compression = compression if self.feedback is None else Compression.none

    @property
    def uses_views(self) -> bool:
        return self.compression is Compression.none and self.feedback is None

    @property
    def uses_buckets(self) -> bool:
        """Return whether gradients may be reduced together on a GPU.

        They may if the compression treats all elements alike, or packs them by itself.
        """
        if self.feedback is not None:
            return isinstance(self.feedback.recipe, PowerSGD)
        elementwise = Compression.none, Compression.fp16, Compression.bf16
        return self.compression in elementwise and self._options.op != Adasum

    def flat_memory(self, entries: Sequence[Entry], bucket: Bucket, *, keeps: bool) -> FlatGradients:
        """Return the memory of a bucket, as `MakeFlatMemory` describes."""
        tensors = [entry for entry in entries if isinstance(entry, GradientEntry)]
        return FlatGradients(tensors, bucket, self._options, self.feedback or self.compression, keeps=keeps)

    def watch(self, entry: Entry, reducer: weakref.ref[GradientReceiver]) -> Callable[[], None]:
        assert isinstance(entry, GradientEntry)
        take_over(entry.parameter)
        hook = _Hook(entry, reducer)
        hook.remove = entry.parameter.register_post_accumulate_grad_hook(hook).remove
        return hook.remove

    def at_end_of_backward(self, callback: Callable[[], None]) -> bool:
        try:
            torch.autograd.Variable._execution_engine.queue_callback(partial(_call, callback))
        except RuntimeError:
            return False
        return True

    def dense_call(self, session: Session, entries: Sequence[Entry]) -> GeneralCall:
        tensors = [entry for entry in entries if isinstance(entry, GradientEntry)]
        pairs = [self.compression.compress(entry.dense()) for entry in tensors]
        sent = [tensor.contiguous() for tensor, _ in pairs]
        names = [f"allreduce.{entry.name}" for entry in entries]
        options = self._options
        how = sent, sent, names, options.op, options.prescale, options.postscale, options.group(session)
        if self.feedback is None:
            call = allreduce_call(session, *how)
        else:
            call = compressed_call(session, self.feedback, *how)

        def store(_: Any) -> None:
            for entry, tensor, (_, context) in zip(tensors, sent, pairs, strict=True):
                entry.store(self.compression.decompress(tensor, context))

        return GeneralCall(call, store)

    def sparse_call(self, session: Session, entry: Entry) -> GeneralCall:
        """Gather all ranks' rows; the reader adds those with the same index."""
        assert isinstance(entry, GradientEntry)
        options = self._options
        if options.op not in (Average, Sum):
            raise InvalidRequestError(
                f"the gradient of {entry.name} is sparse, for which there are op=hvd.Average and op=hvd.Sum only; pass "
                "sparse_as_dense=True to DistributedOptimizer."
            )
        parameter = entry.parameter
        gradient = parameter.grad
        if gradient is None:
            assert entry.sparse_dim is not None
            gradient = _nothing_stored(parameter, entry.sparse_dim)
        dtype, sparse_dim = gradient.dtype, gradient.sparse_dim()
        entry.sparse_dim = sparse_dim
        divisor = len(options.process_set.ranks) if options.op == Average else 1
        member = gather_member(session, options.group(session), f"allreduce.{entry.name}", pack(gradient))

        def store(results: Any) -> None:
            ((rows, _),) = results
            parameter.grad = unpack(rows, parameter.shape, dtype, sparse_dim).div_(divisor)

        return GeneralCall(call_of_several(session, [member]), store)

    def forget_residuals(self) -> None:
        if self.feedback is not None:
            self.feedback.forget()

    def present(self, bundles: Sequence[Bundle]) -> list[tuple[Any, torch.Tensor]]:
        entries: Any = (entry for bundle in bundles for entry in bundle.entries)
        gradients = [(entry, entry.parameter.grad) for entry in entries]
        for entry, gradient in gradients:
            entry.references = 3 if gradient is entry.in_view else 2
        return [(entry, gradient) for entry, gradient in gradients if gradient is not None]

    def versions(self, gradients: Sequence[tuple[Any, torch.Tensor]]) -> list[int]:
        """Return PyTorch's counts of writes, which do not include those through `.data`."""
        return [gradient._version for _, gradient in gradients]


def take_over(parameter: torch.Tensor) -> None:
    """End the reducer of an earlier optimizer that watches a parameter, if there is one."""
    for hook in list((parameter._post_accumulate_grad_hooks or {}).values()):
        if isinstance(hook, _Hook):
            hook.hand_over()


class _Hook:
    """The hook of a parameter, which notifies one reducer: that of the latest optimizer.

    An earlier optimizer may exist for a while after it was replaced, as a scheduler's references to it are a cycle.
    """

    remove: Callable[[], None]

    def __init__(self, entry: GradientEntry, reducer: weakref.ref[GradientReceiver]) -> None:
        self._entry = entry
        self._reducer = reducer

    def __call__(self, _: torch.Tensor) -> None:
        reducer = self._reducer()
        if reducer is not None:
            reducer.on_gradient(self._entry)

    def hand_over(self) -> None:
        """Leave the parameter to another reducer."""
        self.remove()
        reducer = self._reducer()
        if reducer is not None:
            reducer.hand_over()


class GradientReducer(Reducer):
    """Reduces the gradients of parameters."""

    on_gradient = no_compile(Reducer.on_gradient)
    finish = no_compile(Reducer.finish)

    @no_compile
    def has_changed(self) -> bool:
        """Return whether a gradient has changed since it was sent, so that each rank may have another result."""
        entries: Any = (entry for bundle in self._bundles if bundle.launched for entry in bundle.entries)
        return any(entry.has_changed() for entry in entries)

    def _launch(self, bundle: Bundle) -> None:
        super()._launch(bundle)
        entries: Any = bundle.entries
        for entry in entries:
            entry.note_version()

    def reset(self) -> None:
        """Do the same as `Reducer.reset`. Gradients that were not in flight stay as they are."""
        entries: Any = [entry for bundle in self._bundles if not bundle.launched for entry in bundle.entries]
        gradients: list[torch.Tensor | None] = []
        for entry in entries:
            gradient = entry.parameter.grad
            gradients.append(gradient.clone() if gradient is not None and gradient is entry.in_view else gradient)
            entry.parameter.grad = None
        super().reset()
        for entry, gradient in zip(entries, gradients, strict=True):
            entry.parameter.grad = gradient


@no_compile
def _call(callback: Callable[[], None]) -> None:
    callback()


def _nothing_stored(parameter: torch.Tensor, sparse_dim: int) -> torch.Tensor:
    indices = torch.empty(sparse_dim, 0, dtype=torch.int64, device=parameter.device)
    values = torch.empty(0, *parameter.shape[sparse_dim:], dtype=parameter.dtype, device=parameter.device)
    return torch.sparse_coo_tensor(indices, values, parameter.shape, check_invariants=False)
