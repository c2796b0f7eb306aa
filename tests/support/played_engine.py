"""A simulated engine of a worker of `played_jobs`, and the fabric that connects the engines of one world."""

from __future__ import annotations

import ctypes
from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any

from farandole.errors import HorovodInternalError, StartError, WorkerLostError
from farandole.worker.core.engine import Cause

if TYPE_CHECKING:
    from played_jobs import Job, Worker

# The first collective of a world.
FORMING = ("form", 0)


class Fabric:
    """The connections between the workers of one world."""

    def __init__(self, job: Job, generation: int, workers: Sequence[int]) -> None:
        self.generation = generation
        self.workers = tuple(workers)
        self.begun: dict[tuple[str, int], dict[int, bytes]] = {}
        self.ended: dict[int, Cause] = {}
        """The ranks that know that the world has ended, with the cause."""
        self._job = job
        self._is_over = False
        for rank, worker in enumerate(workers):
            if job.workers[worker].killed or job.workers[worker].over:
                self.end(rank, rank, "is not there")

    def end(self, by: int, rank: int | None, how: str, certain: bool = True, has_failed: bool = False) -> None:
        """End the world; each rank that is linked to the one that ends it detects this later. Only the first end has an
        effect.
        """
        if self._is_over:
            return
        self._is_over = True
        cause = Cause(rank, how, certain, has_failed)
        for other in self.linked() if by in self.linked() else ():
            self._job.later(lambda other=other: self.notice(other, cause))  # type: ignore[misc]

    def notice(self, rank: int, cause: Cause) -> None:
        """Notify a rank of the end."""
        self.ended.setdefault(rank, cause)

    def linked(self) -> list[int]:
        """Return the ranks that have begun to form the world."""
        return list(self.begun.get(FORMING, ()))

    def complete(self, key: tuple[str, int]) -> bool:
        """Return whether all ranks have begun a collective."""
        return len(self.begun.get(key, ())) == len(self.workers)


class Engine:
    """A simulated engine of a worker.

    Attributes:
        forming: whether it is about to form a world.
    """

    contact = ""

    def __init__(self, worker: Worker) -> None:
        self._worker = worker
        self._fabric: Fabric | None = None
        self._rank = 0
        self._counts: dict[str, int] = {}
        self.forming = False

    def keep(self, knobs: Mapping[str, int]) -> None:
        """Ignore the results of autotuning."""

    def form(self, generation: int, rank: int, size: int, *_: Any) -> None:
        """Enter a world, once all of its ranks have begun to form it."""
        self._fabric, self._rank, self._counts = self._worker.job.worlds[generation], rank, {}
        self.forming = True
        try:
            self.collective("form", b"")
        except HorovodInternalError:
            cause = self._fabric.ended[rank]
            self._fabric.end(rank, None, "could not be formed")
            if cause.rank is None:
                raise StartError("the world could not be formed") from None
            raise WorkerLostError("somebody is not there", cause.rank) from None
        finally:
            self.forming = False

    def run_out_of_time(self) -> None:
        """End the world that is being formed, because ranks are missing that have not begun to form it."""
        assert self._fabric is not None
        missing = [rank for rank in range(len(self._fabric.workers)) if rank not in self._fabric.linked()]
        self._fabric.notice(self._rank, Cause(missing[0] if missing else None, "did not come", certain=False))

    def cause(self) -> Cause | None:
        """Return why the world has ended, if this rank knows that it has."""
        return None if self._fabric is None else self._fabric.ended.get(self._rank)

    def revoke(self, rank: int, why: str, certain: bool = True, *, generation: int | None = None) -> None:
        """End a world for all ranks: the current one, or one that is being, or will be, formed."""
        fabric = self._fabric if generation is None else self._worker.job.worlds[generation]
        if fabric is None or (self._fabric is not None and fabric.generation < self._fabric.generation):
            return
        cause, own_rank = Cause(rank if rank >= 0 else None, why, certain), fabric.workers.index(self._worker.number)
        fabric.end(own_rank, *cause)
        fabric.notice(own_rank, cause)

    def fail(self) -> None:
        """End the world because of an error in this engine, as one of NCCL is."""
        if self._fabric is not None and not self.forming:
            cause = Cause(self._rank, "has failed", certain=False, has_failed=True)
            self._fabric.end(self._rank, *cause)
            self._fabric.notice(self._rank, cause)

    def leave(self, seconds: float) -> None:
        """Leave gracefully."""
        if self._fabric is not None:
            self._fabric.end(self._rank, self._rank, "left")
            self._fabric.notice(self._rank, Cause(None, "left", certain=True))

    def run(self, submission: Any) -> None:
        """Run an allreduce of bytes, whose result is the maximum."""
        (request,) = submission.requests
        size = request.shape[0]
        everyone = self.collective("run", ctypes.string_at(request.input, size))
        ctypes.memmove(request.output, bytes(map(max, zip(*everyone, strict=True))), size)

    def collective(self, name: str, payload: bytes) -> list[bytes]:
        """Return the payloads of all ranks."""
        return self.wait(self.begin(name, payload))

    def begin(self, name: str, payload: bytes) -> tuple[Fabric, tuple[str, int]]:
        """Begin a collective; all ranks begin those of one name in the same order."""
        self._worker.pause()
        fabric = self._fabric
        if fabric is None or self._rank in fabric.ended:
            raise HorovodInternalError("the world is over")
        key = name, self._counts.get(name, 0)
        self._counts[name] = key[1] + 1
        fabric.begun.setdefault(key, {})[self._rank] = payload
        return fabric, key

    def wait(self, begun: tuple[Fabric, tuple[str, int]]) -> list[bytes]:
        """Return the result of a collective."""
        fabric, key = begun
        if fabric is not self._fabric:
            raise HorovodInternalError("that world is over")
        self._worker.pause(lambda: fabric.complete(key) or self._rank in fabric.ended, str(key))
        has_ended = self._rank in fabric.ended and self._worker.job.random.random() < 0.5
        if has_ended or not fabric.complete(key):
            raise HorovodInternalError("the world is over")
        return [payload for _, payload in sorted(fabric.begun[key].items())]
