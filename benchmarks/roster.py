"""The roster of an elastic job after a loss: its messages, their bytes, and the processor time of the real service.

    python -m benchmarks.roster 64 256 1024

All workers join, one of them is killed, and all others join again and get the next world. The service, its decisions
and its messages are those of a launcher, and so is the choice of what agents are sent for their workers. Workers and
connections are simulated: messages arrive as encoded bytes, and what is sent is counted and dropped. Sockets, the
handshake and flow control are left out. Counts are exact. Times are medians of several runs on this machine, in which
nothing is relayed to agents.
"""

from __future__ import annotations

import argparse
import asyncio
import secrets
import statistics
import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass

from farandole.base.wire.async_channel import AsyncChannel
from farandole.base.wire.encoding import encode
from farandole.base.wire.frames import LENGTH_BYTES, Codec, frame
from farandole.base.wire.rendezvous import Accused, FromWorker, Join, Listen, Placed
from farandole.base.wire.world_table import LatestTable
from farandole.control.launcher.agents.relayed_links import KeptEnd, LatestEnd
from farandole.control.roster.elastic import ElasticState
from farandole.control.roster.events import Expected, Finished
from farandole.control.roster.listener import Client
from farandole.control.roster.membership import Limits
from farandole.control.roster.service import RosterService

RANKS_PER_HOST = 8
# An announcement of a world begins with this.
ANSWER = encode(Placed(0, 0, 0, 0, 0, b""))[: len(b"\x87\xa4type\xa5world")]


@dataclass
class Counts:
    """What a roster has received and sent until a world began, and the processor time that this took."""

    received: int = 0
    received_bytes: int = 0
    sent: int = 0
    sent_bytes: int = 0
    to_agents_bytes: int = 0
    answers: int = 0
    """Number of the sent messages that announce a world."""
    table: bytes = b""
    """The table in the latest of them."""
    seconds: float = 0.0


class SimulatedAgent:
    """The agent of one host: it counts what it is sent for its workers.

    Args:
        relays: whether to count what the launcher sends to this agent as well.
        latest: shared by all agents.

    Attributes:
        counts: where it counts.
    """

    def __init__(self, relays: bool, latest: LatestEnd) -> None:
        self.counts = Counts()
        self._relays = relays
        self._kept = KeptEnd(latest)

    def relay(self, worker: int, payload: bytes, shared: bytes) -> None:
        """Count a message of the roster to a worker, which is sent in two parts."""
        self.counts.sent += 1
        self.counts.sent_bytes += LENGTH_BYTES + len(payload) + len(shared)
        if self._relays:
            message = self._kept.message(worker, frame(payload + shared))
            self.counts.to_agents_bytes += LENGTH_BYTES + len(encode(message))


class SimulatedChannel(AsyncChannel):
    """The roster's end of the connection of one worker, which has no streams."""

    def __init__(self, worker: int, agent: SimulatedAgent) -> None:
        self._worker = worker
        self._agent = agent

    async def send(self, payload: bytes) -> None:
        self.post(payload)

    def post(self, payload: bytes, shared: bytes = b"") -> None:
        if payload.startswith(ANSWER):
            self._agent.counts.answers += 1
            self._agent.counts.table = shared
        self._agent.relay(self._worker, payload, shared)

    def backlog(self) -> int:
        return 0

    def close(self) -> None:
        pass


class SimulatedJob:
    """A roster and its simulated workers, eight on a host.

    Args:
        size: number of workers.
        together: number of workers whose joins arrive in one turn of the roster's loop.
        relays: whether to count what the launcher sends to agents as well.
    """

    def __init__(self, size: int, together: int, relays: bool) -> None:
        self._size = size
        self._together = together
        self._counts = Counts()
        self._codec: Codec[FromWorker] = Codec(FromWorker)
        self._roster = RosterService(ElasticState(Limits(1, size)), secrets.token_bytes(32))
        latest = LatestEnd()
        self._agents = [SimulatedAgent(relays, latest) for _ in range(0, size, RANKS_PER_HOST)]
        self._clients = [
            Client(worker, SimulatedChannel(worker, self._agents[worker // RANKS_PER_HOST]), self._codec)
            for worker in range(size)
        ]
        self._contacts = [_contact(worker) for worker in range(size)]
        self._known = LatestTable()
        """The table of the first world, which all workers keep."""

    async def begin(self) -> Counts:
        """Start the workers, and form the first world."""
        for worker in range(self._size):
            self._roster.tell(Expected(worker, f"node-{worker // RANKS_PER_HOST:05d}.cluster.internal"))
        for client in self._clients:
            await self._roster.heard(client, Listen())
        joins = [(worker, encode(Join(self._contacts[worker], 30.0))) for worker in range(self._size)]
        with self._counting() as counts:
            await self._form(joins)
        self._known.read(counts.table)
        return counts

    async def lose(self, lost: int) -> Counts:
        """Kill a worker, and form the next world."""
        accused = (Accused(lost, "its process ended without saying goodbye", True),)
        joins = [
            (worker, encode(Join(contact, 30.0, "", "", 1, True, accused, open=False, table=self._known.digest)))
            for worker, contact in enumerate(self._contacts)
            if worker != lost
        ]
        with self._counting() as counts:
            self._roster.tell(Finished(lost, "was killed by SIGKILL", True))
            await self._form(joins)
        return counts

    async def close(self) -> None:
        """Cancel the timers of the roster."""
        await self._roster.close()

    @contextmanager
    def _counting(self) -> Iterator[Counts]:
        self._counts = Counts()
        for agent in self._agents:
            agent.counts = self._counts
        began = time.process_time()
        yield self._counts
        self._counts.seconds = time.process_time() - began

    async def _form(self, joins: Sequence[tuple[int, bytes]]) -> None:
        """Let workers join, and wait until all of them have an answer."""
        counts = self._counts
        for number, (worker, payload) in enumerate(joins, 1):
            counts.received += 1
            counts.received_bytes += LENGTH_BYTES + len(payload)
            await self._roster.heard(self._clients[worker], self._codec.decode(payload))
            if number % self._together == 0:
                await asyncio.sleep(0)
        while counts.answers < len(joins):
            await asyncio.sleep(0)


def _contact(worker: int) -> str:
    address = f"10.{worker >> 16}.{worker >> 8 & 255}.{worker & 255}"
    return f"v1;id={secrets.token_hex(16)};unix=farandole-{secrets.token_hex(16)};tcp={address}:40123"


async def _run(size: int, together: int, relays: bool) -> tuple[Counts, Counts]:
    job = SimulatedJob(size, together, relays)
    try:
        return await job.begin(), await job.lose(size // 2)
    finally:
        await job.close()


def measure(size: int, together: int, rounds: int) -> tuple[Counts, Counts]:
    """Return the counts of the first world and of the next one, with the median of the processor time."""
    counted = asyncio.run(_run(size, together, relays=True))
    timed = [asyncio.run(_run(size, together, relays=False)) for _ in range(rounds)]
    for phase in range(2):
        counted[phase].seconds = statistics.median(run[phase].seconds for run in timed)
    return counted


def main() -> None:
    """Print a table for the sizes that were given."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").partition("\n")[0])
    parser.add_argument("sizes", type=int, nargs="*", default=[64, 256, 1024])
    parser.add_argument("--rounds", type=int, default=5, help="number of timed runs of each row")
    arguments = parser.parse_args()
    print(
        "| workers | joins at once | world | messages to the roster | bytes | from it | bytes | to agents | CPU, ms |"
    )
    print("|---:|---:|---|---:|---:|---:|---:|---:|---:|")
    for size in arguments.sizes:
        for together in (1, RANKS_PER_HOST, size):
            for world, counts in zip(("first", "after a loss"), measure(size, together, arguments.rounds), strict=True):
                print(
                    f"| {size:,} | {together:,} | {world} | {counts.received:,} | {counts.received_bytes:,} | "
                    f"{counts.sent:,} | {counts.sent_bytes:,} | {counts.to_agents_bytes:,} | "
                    f"{counts.seconds * 1e3:.1f} |",
                    flush=True,
                )


if __name__ == "__main__":
    main()
