"""Gradients on a GPU that are stored in one flat tensor, and reduced by one request."""

from __future__ import annotations

from collections.abc import Sequence
from sys import getrefcount
from typing import Any

import torch

from farandole.torch.collectives import allreduce_call, compressed_call
from farandole.torch.collectives.tensors import FRONT, RAW_STREAMS, current_stream
from farandole.torch.compression import Feedback
from farandole.torch.gradient_entry import GradientEntry
from farandole.worker.core.session import Session
from farandole.worker.gradients.buckets import Bucket
from farandole.worker.gradients.general_call import GeneralCall
from farandole.worker.gradients.reduce_options import ReduceOptions
from farandole.worker.gradients.views import View


class FlatGradients:
    """Implements `worker.gradients.flat_memory.FlatMemory` for tensors of PyTorch.

    Nothing here waits for the GPU. Gradients may be computed in several streams: the stream of the last one waits for
    the others, and everything else happens in it.
    """

    def __init__(
        self,
        entries: Sequence[GradientEntry],
        bucket: Bucket,
        options: ReduceOptions,
        compression: Any,
        *,
        keeps: bool,
    ) -> None:
        """Move gradients into a new tensor, as `MakeFlatMemory` describes.

        Args:
            entries: the entries; each has a gradient.
            bucket: the plan of the tensor.
            options: the options of the reduction.
            compression: a `Compressor` that treats all elements alike, or the memory of one that packs gradients by
                itself.
            keeps: whether there is a twin.
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
        self._twin = torch.zeros_like(self._flat) if keeps else None
        if self._twin is not None:
            for entry in entries:
                entry.look_into_twin(self._twin)
        self._move_in([entry.in_view for entry in entries])

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

    @torch.no_grad()
    def put(self, share: float) -> None:
        self._leave_what_is_kept()
        for entry in self._entries:
            _put_in_place(entry)
        self._move_in([entry.in_view if self._twin is None else entry.in_own_view for entry in self._entries])
        if share == 0.0:
            self._source.zero_()
        elif share != 1.0:
            self._source.mul_(share)

    @torch.no_grad()
    def scale(self, factor: float) -> None:
        self._source.mul_(factor)

    def call(self, session: Session) -> GeneralCall:
        if isinstance(self._compression, Feedback):
            return self._call_of_pieces(session, self._compression)
        source, flat, options = self._source, self._flat, self._options
        sent, context = self._compression.compress(source)
        # A compressed tensor is not this rank's own gradient.
        output = flat if sent is source else sent
        name = f"allreduce.{self._entries[0].name}"
        how = [sent], [output], [name], options.op, options.prescale, options.postscale, options.group(session)

        def store(_: Any) -> None:
            if output is not flat:
                flat.copy_(self._compression.decompress(output, context))
            self._take_back(source, output, flat)

        return GeneralCall(allreduce_call(session, *how), store)

    def _call_of_pieces(self, session: Session, compression: Feedback) -> GeneralCall:
        """Make a call for a compression that depends on each gradient's rows and columns."""
        options = self._options
        views = [entry.in_view for entry in self._entries if entry.in_view is not None]
        own = views if self._twin is None else [entry.in_own_view for entry in self._entries]
        sent = [piece.contiguous() for piece in own if piece is not None]
        outputs = [
            view if view.is_contiguous() else torch.empty_like(view, memory_format=torch.contiguous_format)
            for view in views
        ]
        names = [f"allreduce.{entry.name}" for entry in self._entries]
        how = sent, outputs, names, options.op, options.prescale, options.postscale, options.group(session)

        def store(_: Any) -> None:
            for view, output in zip(views, outputs, strict=True):
                if output is not view:
                    view.copy_(output)
            self._take_back(self._source, self._flat)

        return GeneralCall(compressed_call(session, compression, *how), store)

    def _take_back(self, *used: torch.Tensor) -> None:
        """Set the entries' reduced gradients. The tensors in `used` may have been created in another stream."""
        for tensor in used:
            tensor.record_stream(current_stream(self._device))
        for entry in self._entries:
            entry.take_back()
        FRONT.note_writes([entry.in_view for entry in self._entries if entry.in_view is not None])

    def checksum(self) -> int:
        return int(self._flat.view(torch.int64).sum())

    @property
    def _source(self) -> torch.Tensor:
        """The memory from which this rank's own gradients are sent."""
        return self._flat if self._twin is None else self._twin

    def _leave_what_is_kept(self) -> None:
        """Move earlier gradients that the user has kept to other memory."""
        if any(entry.is_in_use() for entry in self._entries):
            # Aliases cannot get other memory, so the bucket does. Gradients that were added up in the old one are
            # copied from there.
            self._flat.record_stream(current_stream(self._device))
            self._allocate()
            return
        for entry in self._entries:
            if getrefcount(entry.in_view) > entry.references and entry.parameter.grad is not entry.in_view:
                assert entry.in_view is not None
                entry.in_view.data = entry.in_view.clone()

    def _allocate(self) -> None:
        """Allocate a new tensor, in which each entry gets its view. The space between views is always zero."""
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
    def _move_in(self, places: Sequence[torch.Tensor | None]) -> None:
        """Copy gradients that are not in their places; zeros for absent ones."""
        came_in_others = self._join_streams()
        filled, gradients, empty = [], [], []
        for entry, place in zip(self._entries, places, strict=True):
            assert place is not None
            gradient = entry.parameter.grad
            if gradient is place:
                continue
            if gradient is None and entry.sparse_dim is None:
                entry.absent = True
                empty.append(place)
            else:
                filled.append(place)
                gradients.append(entry.dense())
        if filled:
            torch._foreach_copy_(filled, gradients)
        if empty:
            torch._foreach_zero_(empty)
        if came_in_others:
            for gradient in gradients:
                gradient.record_stream(current_stream(self._device))
        for entry in self._entries:
            entry.parameter.grad = entry.in_view

    def _join_streams(self) -> bool:
        """Make the current stream wait for those in which gradients were computed; return whether there are others."""
        device = self._device
        streams, self._streams = self._streams, {}
        streams.pop(RAW_STREAMS[device.type](device.index), None)
        for stream in streams.values():
            current_stream(device).wait_stream(stream)
        return bool(streams)


def _put_in_place(entry: GradientEntry) -> None:
    """Create an entry's `in_view` again, if its memory has been replaced."""
    assert entry.in_view is not None
    if entry.in_view.data_ptr() != entry.address:
        entry.look_into_view()
