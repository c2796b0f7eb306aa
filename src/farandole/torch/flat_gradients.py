"""Gradients on a GPU that lie in one flat tensor, and travel as one request."""

from __future__ import annotations

from collections.abc import Sequence
from sys import getrefcount
from typing import Any

import torch

from farandole.torch.collectives import allreduce_call
from farandole.torch.collectives.tensors import FRONT, RAW_STREAMS, current_stream
from farandole.torch.gradient_entry import GradientEntry
from farandole.worker.core.session import Session
from farandole.worker.gradients.buckets import Bucket
from farandole.worker.gradients.general_call import GeneralCall
from farandole.worker.gradients.reduce_options import ReduceOptions
from farandole.worker.gradients.views import View


class FlatGradients:
    """Implements `worker.gradients.flat_memory.FlatMemory` for tensors of PyTorch.

    Nothing here waits for the GPU. Gradients may come in several streams: the one in which the last of them comes waits
    for the others, and all else happens in that one.
    """

    def __init__(
        self, entries: Sequence[GradientEntry], bucket: Bucket, options: ReduceOptions, compression: Any
    ) -> None:
        """Move gradients into a new tensor, as `MakeFlatMemory` says.

        Args:
            entries: the entries; each has a gradient.
            bucket: the plan of the tensor.
            options: the options of the reduction.
            compression: a `Compressor` that does the same to each element.
        """
        self.is_outgrown = False
        self._entries = entries
        self._bucket = bucket
        self._options = options
        self._compression = compression
        self._device = entries[0].parameter.device
        # In which gradients of this step have come, by their addresses.
        self._streams: dict[int, Any] = {}
        self._allocate()
        self._move_in()

    def came(self) -> None:
        device = self._device
        address = RAW_STREAMS[device.type](device.index)
        if address not in self._streams:
            self._streams[address] = current_stream(device)

    def fits(self) -> bool:
        device = self._device
        fits = all(
            entry.trained
            and not entry.travels_sparse
            and entry.kind == (entry.parameter.dtype, entry.parameter.shape)
            and entry.parameter.device == device
            for entry in self._entries
        )
        self.is_outgrown = not fits
        return fits

    def call(self, session: Session, share: float) -> GeneralCall:
        self._leave_what_is_kept()
        self._move_in()
        flat = self._flat
        if share == 0.0:
            flat.zero_()  # What does not count may be anything, also not a number.
        elif share != 1.0:
            flat.mul_(share)
        sent, context = self._compression.compress(flat)
        options = self._options
        name = f"allreduce.{self._entries[0].name}"
        how = [sent], [sent], [name], options.op, options.prescale, options.postscale, options.group(session)

        def store(_: Any) -> None:
            if sent is not flat:
                flat.copy_(self._compression.decompress(sent, context))
            # Both may have been made in another stream.
            for tensor in (sent, flat):
                tensor.record_stream(current_stream(self._device))
            for entry in self._entries:
                entry.take_back()
            FRONT.note_writes([entry.in_view for entry in self._entries if entry.in_view is not None])

        return GeneralCall(allreduce_call(session, *how), store)

    def _leave_what_is_kept(self) -> None:
        """Give memory of its own to what the user has kept of earlier gradients."""
        if any(entry.is_in_use() for entry in self._entries):
            # Aliases cannot get other memory, so the bucket does. Gradients that were added up in the old one are
            # copied from there.
            self._flat.record_stream(current_stream(self._device))
            self._allocate()
            return
        for entry in self._entries:
            # Two references are ours: the attribute and the argument.
            if getrefcount(entry.in_view) > 2 and entry.parameter.grad is not entry.in_view:
                assert entry.in_view is not None
                entry.in_view.data = entry.in_view.clone()

    def _allocate(self) -> None:
        """Make a new tensor, of which each entry gets its view. The space between views is zero, and stays zero."""
        dtype = self._entries[0].parameter.dtype
        count = self._bucket.size // dtype.itemsize
        all_in_order = True
        flat = torch.zeros(count, dtype=dtype, device=self._device)
        for entry, (_, offset) in zip(self._entries, self._bucket.placements, strict=True):
            entry.view = View(flat, offset, entry.layout().nbytes)
            entry.kind = entry.parameter.dtype, entry.parameter.shape
            all_in_order &= entry.look_into_view().is_contiguous()
        # Ranks whose parameters have other strides would add up elements that do not belong together: they differ in
        # the shape, so that they get an error.
        self._flat = flat if all_in_order else flat.unsqueeze(0)

    @torch.no_grad()
    def _move_in(self) -> None:
        """Copy gradients that do not lie in their views; zeros where there are none."""
        came_in_others = self._join_streams()
        views, gradients, empty = [], [], []
        for entry in self._entries:
            in_view, gradient = _in_place(entry), entry.parameter.grad
            if gradient is in_view:
                continue
            if gradient is None and entry.sparse_dim is None:
                entry.absent = True
                empty.append(in_view)
            else:
                views.append(in_view)
                gradients.append(entry.dense())
        if views:
            torch._foreach_copy_(views, gradients)
        if empty:
            torch._foreach_zero_(empty)
        if came_in_others:
            for gradient in gradients:
                gradient.record_stream(current_stream(self._device))
        for entry in self._entries:
            entry.parameter.grad = entry.in_view

    def _join_streams(self) -> bool:
        """Let the current stream wait for those in which gradients came; return whether there are others."""
        device = self._device
        streams, self._streams = self._streams, {}
        streams.pop(RAW_STREAMS[device.type](device.index), None)
        for stream in streams.values():
            current_stream(device).wait_stream(stream)
        return bool(streams)


def _in_place(entry: GradientEntry) -> torch.Tensor:
    """Return an entry's `in_view`: a new one, if the last one has got other memory."""
    in_view = entry.in_view
    assert in_view is not None
    return in_view if in_view.data_ptr() == entry.address else entry.look_into_view()
