"""Groups of workers, under the name that users know: process sets."""

from __future__ import annotations

import operator
from collections.abc import Iterable
from typing import Any

from farandole.errors import InvalidRequestError
from farandole.worker.core.identity import Identity, parentage


class ProcessSet:
    """An ordered subset of the world in which collectives run.

    It has no effect until all ranks register it, by `init(process_sets=[...])` or `add_process_set`.

    Attributes:
        process_set_id: None until registered. The world's own set has 0.
        ranks: sorted ranks in the world.
        mpi_comm: always None here; scripts for Horovod read it.

    Example:
        >>> str(ProcessSet([2, 0]))
        'ProcessSet(process_set_id=None, ranks=[0, 2], mpi_comm=None)'
    """

    def __init__(self, ranks_or_comm: Iterable[int]) -> None:
        """Create the set of these ranks, without registering it.

        Raises:
            ValueError: the ranks are not whole numbers (an MPI communicator, for example), or one is listed twice.
        """
        self.process_set_id: int | None = None
        self.mpi_comm: Any = None
        self.ranks = _sorted_ranks(ranks_or_comm)
        self._world_rank: int | None = None

    def size(self) -> int | None:
        """Return the number of workers in the set; None until registered."""
        return len(self.ranks) if self._registered else None

    def rank(self) -> int:
        """Return this worker's rank within the set.

        Raises:
            ValueError: the set is not registered, or this worker is not in it.
        """
        if not self._registered:
            raise InvalidRequestError(f"{self} is not registered; pass it to init() or add_process_set() first.")
        if self._world_rank not in self.ranks:
            raise InvalidRequestError("Process is not part of provided process set.")
        return self.ranks.index(self._world_rank)

    def included(self) -> bool | None:
        """Return whether this worker is in the set; None until registered."""
        return self._world_rank in self.ranks if self._registered else None

    def bind(self, process_set_id: int, world_rank: int) -> None:
        """Record that the set is registered under this id. For the session."""
        self.process_set_id = process_set_id
        self._world_rank = world_rank

    def unbind(self) -> None:
        """Record that the set is not registered any more. It can be registered again. For the session."""
        self.process_set_id = None
        self._world_rank = None

    def __deepcopy__(self, _: dict[int, Any]) -> ProcessSet:
        """Return the set itself: a copy of an object that contains it, such as a module, keeps the same workers."""
        return self

    def __reduce__(self) -> Any:
        """Pickle only the ranks: another process registers the set again, or has it from the worker."""
        return ProcessSet, (self.ranks,)

    @property
    def _registered(self) -> bool:
        if self._world_rank is None and parentage.in_use is not None:
            self._adopt(parentage.in_use)
        return self._world_rank is not None

    def _adopt(self, worker: Identity) -> None:
        """In a process that a worker has started, register the set if the worker has one with these ranks."""
        identifier = worker.identifier_of(self.ranks)
        if identifier is not None:
            self.bind(identifier, worker.world.rank)

    def __str__(self) -> str:
        return f"ProcessSet(process_set_id={self.process_set_id}, ranks={self.ranks}, mpi_comm={self.mpi_comm})"

    __repr__ = __str__


class WorldSet(ProcessSet):
    """The set of all workers. It has id 0 even before `init()`, when its ranks are not known yet."""

    def __init__(self) -> None:
        super().__init__([])
        self.process_set_id = 0

    @property
    def ranks(self) -> list[int]:
        """All ranks; empty before `init()`."""
        return self._ranks if self._registered else []

    @ranks.setter
    def ranks(self, ranks: list[int]) -> None:
        self._ranks = ranks

    def _adopt(self, worker: Identity) -> None:
        self.bind_world(worker.world.size, worker.world.rank)

    def bind_world(self, size: int, world_rank: int) -> None:
        """Record the world that this process has entered."""
        self.ranks = list(range(size))
        self.bind(0, world_rank)

    def __reduce__(self) -> str:
        """Pickle only the name: each process has its own world set."""
        return "global_process_set"

    def unbind(self) -> None:
        """Record that there is no world any more."""
        super().unbind()
        self.ranks = []
        self.process_set_id = 0


def check_process_set(given: Any, function: str) -> None:
    """Raise ValueError if the argument `process_set` of a function is something else, such as a list of ranks."""
    if not isinstance(given, ProcessSet):
        raise InvalidRequestError(
            f"{function}: process_set is {given!r}, but should be a ProcessSet. Register one on all ranks, such as "
            "even = hvd.add_process_set([0, 2]), and pass it."
        )


def _sorted_ranks(ranks: Iterable[int]) -> list[int]:
    try:
        numbers = sorted(operator.index(rank) for rank in ranks)
    except TypeError:
        raise InvalidRequestError(
            f"a ProcessSet is made of ranks, but got {ranks!r}. Pass a list such as [0, 2]; MPI communicators cannot "
            "be used."
        ) from None
    repeated = {rank for rank in numbers if numbers.count(rank) > 1}
    if repeated:
        raise InvalidRequestError(
            f"a ProcessSet cannot have a rank twice: {numbers} repeats {sorted(repeated)}. List each rank once."
        )
    return numbers


# There is one session in a process, and this is its world.
global_process_set = WorldSet()
"""The process set of all ranks, which is the default of all functions."""
