"""One job of `python -m benchmarks queue` whose speed does not depend on the machine: its steps are sleep.

It goes through the loop of `steps` as a training does, with workers that come and go, and needs no framework, so that
it starts in a moment. Each worker sleeps for every sample of its part of a batch. A job that was suspended goes on at
the step it had reached: rank 0 keeps that in a file.

    farandole run -np 2 python -m benchmarks.sharing.timed_job --steps 100 [--kept FILE]
"""

from __future__ import annotations

import argparse
import pickle
import time
from collections.abc import Collection, Sequence
from pathlib import Path
from typing import Any, NamedTuple

from farandole.base.wire.rendezvous import World
from farandole.worker.core import basics
from farandole.worker.core.retry import Gradients
from farandole.worker.elastic.batches import KeepRate
from farandole.worker.elastic.checkpoint.loop_checkpoints import LoopCheckpoints
from farandole.worker.elastic.ledger import Ledger
from farandole.worker.elastic.step_loop import Loop


class Part(NamedTuple):
    """One rank's part of a step."""

    data: int | None
    samples: int
    total: int
    shares: Sequence[Any]


class Samples:
    """Counts samples, without having any: a `farandole.worker.elastic.framework.Loader`."""

    def __init__(self, batch: int, steps: int) -> None:
        self.ledger = Ledger(batch * steps, seed=1)
        self._batch = batch

    def counts(self, world_size: int) -> tuple[int, ...]:
        batch = self._batch
        return tuple(batch * (rank + 1) // world_size - batch * rank // world_size for rank in range(world_size))

    def next(self, world_size: int, rank: int) -> Part | None:
        if not self.ledger.left:
            return None
        shares = self.ledger.take(self.counts(world_size))
        samples = [sum(end - begin for begin, end in share) for share in shares]
        return Part(samples[rank] or None, samples[rank], sum(samples), shares)

    def borrow(self, batch: Part) -> int:
        return 0

    def commit(self, batch: Part, lost: Collection[int] = ()) -> None:
        self.ledger = self.ledger.commit(batch.shares, lost)

    def next_epoch(self) -> None:
        self.ledger = self.ledger.next_epoch()


class Kept(LoopCheckpoints):
    """The progress and the state of a job, in a file that rank 0 writes.

    Args:
        file: the file; None: nothing is kept.
        state: the trained arrays, by name; they are changed in place.
    """

    def __init__(self, file: Path | None, state: dict[str, Any]) -> None:
        super().__init__()
        self._file = file
        self._state = state

    def is_due(self, step: int) -> bool:
        return self._file is not None

    def save(self, progress: bytes, step: int, epoch: int, world: World) -> None:
        if self._file is not None and world.rank == 0:
            draft = self._file.with_suffix(".new")
            draft.write_bytes(pickle.dumps((progress, self._state)))
            draft.replace(self._file)

    def load(self) -> bytes | None:
        if self._file is None or not self._file.exists():
            return None
        progress, state = pickle.loads(self._file.read_bytes())
        self._state.update(state)
        return bytes(progress)


class Nothing:
    """Trains nothing, and keeps only the progress: a `farandole.worker.elastic.framework.Trained`."""

    reduces_once = False

    def __init__(self, checkpoints: LoopCheckpoints) -> None:
        self.checkpoints = checkpoints

    def transfer(self, sources: Sequence[int], receivers: Sequence[int], *, may_stream: bool) -> None:
        """Do nothing: there is no state."""

    def hand_over(self, gradients: Gradients | None, sources: Sequence[int], receivers: Sequence[int]) -> None:
        """Do nothing: there are no gradients."""

    def has_unused_gradients(self) -> bool:
        return False

    def scale_rate(self, factor: float) -> None:
        """Do nothing: there is no learning rate."""


class Pace:
    """Lets a worker take its time for the samples of its part of each step.

    Args:
        step: seconds of a step of one worker.
        batch: samples of all workers in a step.
    """

    def __init__(self, step: float, batch: int) -> None:
        self._step, self._batch = step, batch
        self._until = time.monotonic()
        self._size = 0

    def wait(self, samples: int) -> None:
        """Sleep for this many samples; print a line when the number of workers has changed."""
        # Measured from the end of the last step, so that the step's other costs are part of its time.
        self._until = max(self._until, time.monotonic() - 0.2 * self._step) + self._step * samples / self._batch
        world = basics.current().world
        if world.rank == 0 and world.size != self._size:
            self._size = world.size
            print(f"{time.time():.3f}: {self._size} workers", flush=True)
        time.sleep(max(0.0, self._until - time.monotonic()))


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Add the arguments of all jobs of the benchmark."""
    parser.add_argument("--steps", type=int, required=True)
    parser.add_argument("--batch", type=int, default=48, help="samples of all workers in a step")
    parser.add_argument("--step", type=float, default=0.5, metavar="S", help="seconds of a step of one worker")
    parser.add_argument("--kept", type=Path, help="file in which the job's progress is kept")


def main() -> None:
    """Take the steps."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    add_arguments(parser)
    given = parser.parse_args()
    basics.init()
    session = basics.current()
    pace = Pace(given.step, given.batch)
    for samples in Loop(Samples(given.batch, given.steps), Nothing(Kept(given.kept, {})), epochs=1, rate=KeepRate()):
        pace.wait(samples)
        if session.retry is not None:
            session.retry.run(lambda: session.exchange("step", b""))
        else:
            session.exchange("step", b"")


if __name__ == "__main__":
    main()
