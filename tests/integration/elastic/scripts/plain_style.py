"""A training by the loop of `steps`, without a framework: it starts in a fraction of a second, and trains a number.

Every step is written down as in `steps_style.py`. It ends when there is a file `stop` in the current directory.
Arguments: megabytes that are sent with the state (0), and seconds of each step.
"""

from __future__ import annotations

import hashlib
import json
import os
import sys
import time
from collections.abc import Collection, Sequence
from typing import Any, NamedTuple

from farandole.worker.core import basics
from farandole.worker.elastic.batches import KeepRate
from farandole.worker.elastic.checkpoint.loop_checkpoints import LoopCheckpoints
from farandole.worker.elastic.ledger import Ledger
from farandole.worker.elastic.step_loop import Loop

SAMPLES, BATCH = 101, 12
PAUSE_SECONDS = float(sys.argv[2]) if len(sys.argv) > 2 else 0.02
WORKER = int(os.environ["FARANDOLE_WORKER"])


class Part(NamedTuple):
    """One rank's part of a step."""

    data: list[int] | None
    samples: int
    total: int
    shares: Sequence[Any]


class Indices:
    """Gives the indices of samples. See `farandole.worker.elastic.framework.Loader`."""

    def __init__(self, book: Book) -> None:
        self.ledger = Ledger(SAMPLES, seed=5)
        self._book = book

    def counts(self, world_size: int) -> tuple[int, ...]:
        return tuple(BATCH * (rank + 1) // world_size - BATCH * rank // world_size for rank in range(world_size))

    def next(self, world_size: int, rank: int) -> Part | None:
        if not self.ledger.left:
            return None
        shares = self.ledger.take(self.counts(world_size))
        data = self.ledger.indices(shares[rank])
        total = sum(end - begin for share in shares for begin, end in share)
        return Part(data or None, len(data), total, shares)

    def borrow(self, batch: Part) -> list[int]:
        return []

    def commit(self, batch: Part, lost: Collection[int] = ()) -> None:
        kept = [share for rank, share in enumerate(batch.shares) if rank not in lost]
        used = [index for share in kept for index in self.ledger.indices(share)]
        self._book.step(self.ledger.epoch, used)
        self.ledger = self.ledger.commit(batch.shares, lost)

    def next_epoch(self) -> None:
        self.ledger = self.ledger.next_epoch()


class Number:
    """What is trained. See `farandole.worker.elastic.framework.Trained`."""

    reduces_once = False

    def __init__(self) -> None:
        self.checkpoints = LoopCheckpoints()
        self.value = 0
        self.ballast = bytes(int(sys.argv[1]) << 20 if len(sys.argv) > 1 else 0)

    def transfer(self, sources: Sequence[int], receivers: Sequence[int], *, may_stream: bool) -> None:
        session = basics.current()
        rank = session.world.rank
        state = json.dumps(self.value).encode().ljust(1000) + self.ballast if rank == sources[0] else b""
        everyone = session.exchange("state", state)
        if rank in receivers:
            self.value = json.loads(everyone[sources[0]][:1000])

    def hand_over(self, *_: object) -> None:
        """It has no gradients."""

    def has_unused_gradients(self) -> bool:
        return False

    def scale_rate(self, factor: float) -> None:
        """It has none."""

    def learn(self, indices: Sequence[int]) -> None:
        """Take in what all ranks have."""
        session = basics.current()
        own = str(sum(index + 1 for index in indices)).encode()
        everyone = session.retry.run(lambda: session.exchange("learn", own)) if session.retry else [own]
        self.value = (self.value * 31 + sum(map(int, everyone))) % (1 << 61)


class Book:
    """What this worker has seen."""

    def __init__(self) -> None:
        self._file = open(f"worker-{WORKER}.book", "a", buffering=1)
        self.loop: Loop | None = None
        self._write(pid=os.getpid())

    def step(self, epoch: int, used: list[int]) -> None:
        """Write down a step."""
        assert self.loop is not None
        facts = {"epoch": epoch, "used": used, "size": basics.size(), "rank": basics.rank(), "at": time.time()}
        self._write(step=self.loop.step, **facts)

    def end(self, number: Number) -> None:
        """Write down how it has ended."""
        assert self.loop is not None
        digest = hashlib.sha256(str(number.value).encode()).hexdigest()
        self._write(end=self.loop.step, digest=digest, size=basics.size())

    def _write(self, **facts: Any) -> None:
        self._file.write(json.dumps({"worker": WORKER, **facts}) + "\n")


def main() -> None:
    """Train."""
    book = Book()
    basics.init()
    number = Number()
    book.loop = loop = Loop(Indices(book), number, epochs=10**9, rate=KeepRate())
    for indices in loop:
        number.learn(indices)
        if os.path.exists("stop"):
            loop.stop()
        time.sleep(PAUSE_SECONDS)
    book.end(number)


if __name__ == "__main__":
    main()
