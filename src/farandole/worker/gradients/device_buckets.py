"""Gradients on devices that are reduced together: one request for each bucket, from flat memory of the device.

Each gradient on a device costs kernels and events, whatever its size, so bundles of one gradient are merged, in the
order in which a backward pass finishes gradients. The first bucket is small, so that the reduction begins early.

Buckets are determined by facts that are the same on all ranks: the gradients, their order, and which of them are
trained and dense. A step in which these change takes the general way, and new buckets are made at its end. When ranks
may have joined, there are no buckets for one step, in which all ranks see the same facts.
"""

from __future__ import annotations

from collections.abc import Collection, Hashable, Sequence
from typing import Protocol

from farandole.worker.gradients.buckets import Bucket, plan_buckets
from farandole.worker.gradients.entry import Bundle, Entry
from farandole.worker.gradients.flat_memory import FlatMemory


class MakeFlatMemory(Protocol):
    """A function that allocates the memory of a bucket."""

    def __call__(self, entries: Sequence[Entry], bucket: Bucket, *, keeps: bool) -> FlatMemory:
        """Allocate the memory, and move gradients into it.

        Args:
            entries: the entries of the gradients, in the order of the bucket's placements.
            bucket: the plan of the memory.
            keeps: whether the memory has a twin, which keeps this rank's own gradients.
        """


LIMITS = 1 << 20, 25 << 20
"""The largest sizes of the first and of each other bucket of one device and element type, in bytes."""


class _DeviceBucket(Bundle):
    """The bundle of a device bucket.

    Attributes:
        parts: the bundles that it replaces.
    """

    __slots__ = ("parts",)

    flat: FlatMemory

    def __init__(self, entries: Sequence[Entry], parts: Sequence[Bundle], flat: FlatMemory) -> None:
        super().__init__(entries)
        self.parts = parts
        self.flat = flat

    def put(self, share: float, keeps: bool) -> bool:
        if self.kept:  # It was launched before, in a world that has ended meanwhile.
            return not self.flat.is_outgrown
        if not self.flat.fits():
            return False
        self.flat.put(share)
        self.share, self.kept = share, keeps
        return True

    def _scale(self, factor: float) -> None:
        self.flat.scale(factor)


class DeviceBuckets:
    """Replaces a reducer's bundles by buckets, and restores the bundles."""

    def __init__(self, bundles: list[Bundle], make_memory: MakeFlatMemory | None) -> None:
        """Begin without buckets.

        Args:
            bundles: the reducer's bundles, which are changed here.
            make_memory: a function that allocates the memory of a bucket; None: buckets are not possible.
        """
        self._bundles = bundles
        self._make_memory = make_memory
        # All added bundles, in the order of the gradients in new buckets.
        self._given: list[Bundle] = []
        self._candidates: list[Bundle] = []
        self._buckets: list[_DeviceBucket] = []

    def add(self, bundles: Sequence[Bundle]) -> None:
        """Add bundles that may become parts of buckets."""
        if self._make_memory is not None:
            self._given += bundles
            self._candidates += bundles

    def drop(self) -> None:
        """Restore all bundles, because the session has ended, or newcomers may not know the buckets."""
        self._dissolve(self._buckets)
        self._candidates = list(self._given)

    def give(self, *, keeps: bool) -> list[Bundle]:
        """Make buckets of gradients that have turned out to be dense.

        Args:
            keeps: whether the buckets keep this rank's own gradients.

        Returns:
            The bundles that are new in the reducer's list.
        """
        outgrown = [bucket for bucket in self._buckets if bucket.flat.is_outgrown]
        parts = self._dissolve(outgrown) if outgrown else []
        if not self._candidates:
            return parts
        formed = self._form(keeps)
        return [*formed, *(part for part in parts if part in self._bundles)]

    def _form(self, keeps: bool) -> list[_DeviceBucket]:
        alone: dict[Hashable, list[Entry]] = {}
        formed: list[_DeviceBucket] = []
        candidates, self._candidates = self._candidates, []
        for bundle in candidates:
            entries = bundle.entries
            device = _shared_device(entries)
            if device is None:
                continue  # It is not checked again.
            if not all(entry.trained and entry.wants_view() for entry in entries):
                self._candidates.append(bundle)
            elif len(entries) == 1:
                alone.setdefault(device, []).extend(entries)
            else:
                formed += self._made(entries, (), keeps)
        for entries in alone.values():
            formed += self._made(entries, LIMITS, keeps)
        if formed:
            self._replace({part for bucket in formed for part in bucket.parts}, formed)
            self._buckets += formed
        return formed

    def _made(self, entries: Sequence[Entry], limits: Sequence[int], keeps: bool) -> list[_DeviceBucket]:
        assert self._make_memory is not None
        buckets = []
        for bucket in plan_buckets([entry.layout() for entry in entries], limits):
            inside = [entries[number] for number, _ in bucket.placements]
            parts = list({id(entry.bundle): entry.bundle for entry in inside}.values())
            buckets.append(_DeviceBucket(inside, parts, self._make_memory(inside, bucket, keeps=keeps)))
        return buckets

    def _dissolve(self, buckets: Sequence[_DeviceBucket]) -> list[Bundle]:
        parts = [part for bucket in buckets for part in bucket.parts]
        for part in parts:
            for entry in part.entries:
                entry.bundle = part
                entry.view = None
                entry.detach()
        self._replace(set(buckets), parts)
        self._buckets = [bucket for bucket in self._buckets if bucket not in buckets]
        candidates = {*self._candidates, *parts}
        self._candidates = [bundle for bundle in self._given if bundle in candidates]
        return parts

    def _replace(self, old: Collection[Bundle], new: Sequence[Bundle]) -> None:
        self._bundles[:] = [*(bundle for bundle in self._bundles if bundle not in old), *new]


def _shared_device(entries: Sequence[Entry]) -> Hashable | None:
    """Return the device on which all of these gradients can be stored as elements of one type, or None."""
    device, *others = {entry.device for entry in entries}
    dtype, *other_dtypes = {entry.dtype for entry in entries}
    if device is None or others or dtype is None or other_dtypes:
        return None
    return device if all(entry.layout().nbytes for entry in entries) else None
