"""Ops without tensors, which return facts about the world in which a graph runs."""

from __future__ import annotations

from typing import Any

from farandole.tensorflow import ops


def join() -> Any:
    """Announce that this rank has no more data, wait until all ranks have done so, and return the last of them."""
    return ops.join()


def size_op(process_set_id: int = 0, name: str | None = None) -> Any:
    """Return the number of ranks in a process set, at the time when the op runs."""
    return ops.size(process_set_id)


def process_set_included_op(process_set_id: int = 0, name: str | None = None) -> Any:
    """Return 1 if this rank is in a process set when the op runs, else 0."""
    return ops.process_set_included(process_set_id)


def local_size_op(name: str | None = None) -> Any:
    """Return the number of workers on this host, at the time when the op runs."""
    return ops.local_size()


def rank_op(name: str | None = None) -> Any:
    """Return the rank, at the time when the op runs."""
    return ops.rank()


def local_rank_op(name: str | None = None) -> Any:
    """Return the rank on this host, at the time when the op runs."""
    return ops.local_rank()
