"""The roster of an elastic job after a loss: its messages, their bytes, and the processor time of the real service.

    python -m benchmarks.roster 64 256 1024

All workers join, one of them is killed, and all others join again and get the next world. The service, its decisions
and its messages are those of a launcher; workers and connections are simulated: messages arrive as encoded bytes, and
what is sent is counted and dropped. Sockets, agents and the handshake are left out. Counts are exact. Times are medians
of several runs on this machine.
"""

from __future__ import annotations

import argparse
import asyncio
import secrets
import statistics
import time
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any

from farandole.base.wire.async_channel import AsyncChannel
from farandole.base.wire.encoding import encode
from farandole.base.wire.frames import LENGTH_BYTES, Codec
from farandole.base.wire.rendezvous import Accused, FromWorker, Join, Listen
from farandole.control.roster.elastic import ElasticState
from farandole.control.roster.events import Expected, Finished
from farandole.control.roster.listener import Client
from farandole.control.roster.membership import Limits
from farandole.control.roster.service import RosterService

RANKS_PER_HOST = 8


@dataclass
class Counts:
    """What a roster has received and sent in one phase, and the processor time that this took."""

    received: int = 0
    received_bytes: int = 0
    sent: int = 0
    sent_bytes: int = 0
    answers: int = 0
    """Number of the sent messages that announce a world."""
    seconds: float = 0.0


@dataclass
class Wire:
    """The simulated connections of all workers."""

    counts: Counts = field(default_factory=Counts)

    def take(self) -> Counts:
        """Return what was counted since the last call."""
        counts, self.counts = self.counts, Counts()
        return counts


class CountingChannel(AsyncChannel):
    """The roster's end of one simulated connection, which has no streams: it counts what is sent, and drops it."""

    def __init__(self, wire: Wire) -> None:
        self._wire = wire

    async def send(self, payload: bytes) -> None:
        self._wire.counts.answers += 1
        self.post(payload)

    def post(self, payload: bytes) -> None:
        self._wire.counts.sent += 1
        self._wire.counts.sent_bytes += LENGTH_BYTES + len(payload)

    def backlog(self) -> int:
        return 0

    def close(self) -> None:
        pass


class SimulatedJob:
    """A roster and its simulated workers, eight on a host.

    Args:
        size: number of workers.
        together: number of workers whose joins arrive in one turn of the roster's loop.
    """

    def __init__(self, size: int, together: int) -> None:
        self._size = size
        self._together = together
        self._encoding = 0.0
        """Processor time of the workers' side of the latest joins, in seconds."""
        self._wire = Wire()
        self._codec: Codec[FromWorker] = Codec(FromWorker)
        self._roster = RosterService(ElasticState(Limits(1, size)), secrets.token_bytes(32))
        self._clients = [Client(worker, CountingChannel(self._wire), self._codec) for worker in range(size)]

    async def begin(self) -> Counts:
        """Form the first world."""
        for worker in range(self._size):
            self._roster.tell(Expected(worker, f"node-{worker // RANKS_PER_HOST:05d}.cluster.internal"))
        await self._all_send(range(self._size), [Listen()] * self._size)
        self._wire.take()
        joins = [self._join(worker) for worker in range(self._size)]
        return await self._world(range(self._size), joins)

    async def lose(self, lost: int) -> Counts:
        """Kill a worker, and form the next world."""
        survivors = [worker for worker in range(self._size) if worker != lost]
        accused = (Accused(lost, "closed its connections", True),)
        joins = [self._join(worker, generation=1, trained=True, accused=accused, open=False) for worker in survivors]
        before = time.process_time()
        self._roster.tell(Finished(lost, "was killed by SIGKILL", True))
        spent = time.process_time() - before
        counts = await self._world(survivors, joins)
        counts.seconds += spent
        return counts

    async def close(self) -> None:
        """Cancel the timers of the roster."""
        await self._roster.close()

    def _join(self, worker: int, **fields: Any) -> Join:
        where = f"10.{worker >> 16}.{worker >> 8 & 255}.{worker & 255}"
        contact = f"v1;id={secrets.token_hex(16)};host=node-{worker // RANKS_PER_HOST:05d};"
        contact += f"unix=farandole-{secrets.token_hex(16)};tcp={where}:40123"
        return Join(contact, 30.0, **fields)

    async def _world(self, workers: Sequence[int], joins: Sequence[Join]) -> Counts:
        before = time.process_time()
        await self._all_send(workers, joins)
        while self._wire.counts.answers < len(workers):
            await asyncio.sleep(0)
        counts = self._wire.take()
        counts.seconds = time.process_time() - before - self._encoding
        return counts

    async def _all_send(self, workers: Sequence[int], messages: Sequence[Join] | Sequence[Listen]) -> None:
        began = time.process_time()
        payloads = [encode(message) for message in messages]
        self._encoding = time.process_time() - began
        for number, (worker, payload) in enumerate(zip(workers, payloads, strict=True), 1):
            self._wire.counts.received += 1
            self._wire.counts.received_bytes += LENGTH_BYTES + len(payload)
            await self._roster.heard(self._clients[worker], self._codec.decode(payload))
            if number % self._together == 0:
                await asyncio.sleep(0)


async def _run(size: int, together: int) -> tuple[Counts, Counts]:
    job = SimulatedJob(size, together)
    try:
        return await job.begin(), await job.lose(size // 2)
    finally:
        await job.close()


def measure(size: int, together: int, rounds: int) -> tuple[Counts, Counts]:
    """Return the counts of the first world and of the next one, with the median of the processor time."""
    runs = [asyncio.run(_run(size, together)) for _ in range(rounds)]
    for phase in range(2):
        runs[0][phase].seconds = statistics.median(run[phase].seconds for run in runs)
    return runs[0]


def main() -> None:
    """Print a table for the sizes that were given."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").partition("\n")[0])
    parser.add_argument("sizes", type=int, nargs="*", default=[64, 256, 1024])
    parser.add_argument("--rounds", type=int, default=5, help="number of runs of each row; times are their median")
    arguments = parser.parse_args()
    print("| workers | joins at once | world | messages to the roster | bytes | from it | bytes | CPU, ms |")
    print("|---:|---:|---|---:|---:|---:|---:|---:|")
    for size in arguments.sizes:
        for together in (1, RANKS_PER_HOST, size):
            for world, counts in zip(("first", "after a loss"), measure(size, together, arguments.rounds), strict=True):
                print(
                    f"| {size:,} | {together:,} | {world} | {counts.received:,} | {counts.received_bytes:,} | "
                    f"{counts.sent:,} | {counts.sent_bytes:,} | {counts.seconds * 1e3:.1f} |",
                    flush=True,
                )


if __name__ == "__main__":
    main()
