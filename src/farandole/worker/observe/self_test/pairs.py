"""The speed of the links: transfers between two workers, timed by the engine that receives them.

Timing begins after the workers have agreed on all transfers, which involves rank 0: otherwise a slow link to rank 0
would be attributed to others. So all transfers of a sample are requested at once. The first two, in both directions,
are the *meeting*, because one of the two workers may have learned of the agreement later than the other. The measured
time begins at its end.
"""

from __future__ import annotations

import math
import statistics
import time
from array import array
from collections.abc import Callable, Sequence
from dataclasses import dataclass

import msgspec

from farandole.base.request_kind import Kind
from farandole.base.self_test.report import Node, Pair, Whole
from farandole.worker.core import buffers
from farandole.worker.core.binding import NativeEvent
from farandole.worker.core.dtype import DType, Max, Sum
from farandole.worker.core.engine import Engine
from farandole.worker.observe.engine_events import Phase
from farandole.worker.observe.self_test.schedule import LARGEST_MESSAGE, messages, rounds

_HOPS = 20
"""Number of transfers of 4 bytes in one sample of the latency."""
_PROBE_BYTES = 256 << 10
_EVENTS = 4096

_ALLREDUCES = 50
_LARGEST_ALLREDUCE = 16 << 20


@dataclass(frozen=True)
class Effort:
    """The amount of work for each measured number."""

    samples: int
    seconds: float
    """The duration of one sample of a bandwidth."""
    total_seconds: float
    """Approximate duration of all samples together; with many rounds, samples are shorter."""

    def per_sample(self, rounds: int) -> float:
        """Return the seconds that one sample of a bandwidth may take."""
        return min(self.seconds, self.total_seconds / max(1, 2 * rounds * (self.samples + 1)))


THOROUGH = Effort(5, 0.05, 30.0)
QUICK = Effort(3, 0.02, 8.0)


class Links:
    """Measures the links of this worker.

    Args:
        engine: this worker's engine.
        rank: this worker's rank.
        nodes: the ends of links. A worker that is not among them is silent.
        effort: the number of repetitions and sizes.
    """

    def __init__(self, engine: Engine, rank: int, nodes: Sequence[Node], effort: Effort) -> None:
        self._engine = engine
        self._rank = rank
        self._nodes = nodes
        self._effort = effort
        self._cursor = 0
        self._events = (NativeEvent * _EVENTS)()
        self._large = buffers.zeros(LARGEST_MESSAGE)
        self._calls = 0

    def measure_all(self, tell: Callable[[str], None]) -> list[Pair]:
        """Measure every pair of nodes, and return them; the same list on all ranks."""
        plan = rounds(len(self._nodes))
        found: list[Pair] = []
        for done, pairs in enumerate(plan):
            tell(f"links: {done} of {len(plan)} rounds")
            found += self._round(pairs, self._effort.per_sample(len(plan)))
        return _shared(found)

    def measure_again(self, pairs: Sequence[tuple[int, int]]) -> list[Pair]:
        """Measure some pairs, each while all others are silent; the same list on all ranks."""
        found: list[Pair] = []
        for pair in pairs:
            found += self._round([pair], self._effort.per_sample(len(pairs)))
        return _shared(found)

    def _round(self, pairs: Sequence[tuple[int, int]], seconds: float) -> list[Pair]:
        """Measure the pairs of one round at the same time, and return this worker's results."""
        buffers.barrier()
        self._calls += 1
        for one, other in pairs:
            if self._rank in (self._nodes[one].rank, self._nodes[other].rank):
                return [self._pair(one, other, seconds)]
        return []

    def _pair(self, one: int, other: int, seconds: float) -> Pair:
        """Measure one link. Both ends return their results; the receiver has the bandwidth."""
        ends = self._nodes[one].rank, self._nodes[other].rank
        latency = statistics.median(self._latency(*ends, sample) for sample in range(self._effort.samples))
        there, back = (self._rate(*way, seconds) for way in (ends, ends[::-1]))
        route = self._engine.routes[ends[1]] if self._rank == ends[0] else ""
        return Pair(one, other, latency, there, back, route)

    def _latency(self, one: int, other: int, sample: int) -> float:
        """Return the one-way time of 4 bytes in microseconds."""
        small = bytearray(4)
        hops = [(small, *((one, other) if hop % 2 == 0 else (other, one))) for hop in range(_HOPS)]
        return self._timed(one, other, hops, f"latency.{sample}") / _HOPS * 1e6

    def _rate(self, source: int, destination: int, seconds: float) -> float:
        """Return bytes per second; 0 on the sender."""
        size, count = messages(self._rough_rate(source, destination, seconds), seconds)
        samples = range(self._effort.samples)
        return statistics.median(self._sample(source, destination, size, count, str(sample)) for sample in samples)

    def _rough_rate(self, source: int, destination: int, seconds: float) -> float:
        """Return the approximate rate in bytes per second, on both sides, from a short measurement."""
        size, rate = _PROBE_BYTES, array("d", [math.inf])
        # Even a slow link may take a few bytes at once, into its buffers. So the probe grows until it takes a
        # measurable time.
        while size <= LARGEST_MESSAGE and size / rate[0] < seconds / 4:
            rate[0] = self._sample(source, destination, size, 1, f"probe.{size}")
            buffers.transfer([(rate, destination, source)], name=self._name(f"rate.{source}.{size}"))
            size *= 4
        return rate[0]

    def _sample(self, source: int, destination: int, size: int, count: int, what: str) -> float:
        moves = [(self._large[:size], source, destination)] * count
        # The one that receives goes first, so that nothing is on its way when the clock starts.
        took = self._timed(destination, source, moves, f"{source}.{what}")
        return size * count / took if self._rank == destination else 0.0

    def _timed(self, first: int, second: int, moves: Sequence[tuple[object, int, int]], what: str) -> float:
        """Make two workers meet, carry out transfers, and return the seconds from the end of the meeting."""
        meeting = [(bytearray(4), first, second), (bytearray(4), second, first)]
        self._read_events()
        buffers.transfer([*meeting, *moves], name=self._name(what))
        ended = self._read_events()
        return max(1, ended[-1] - ended[1]) / 1e9

    def _name(self, what: str) -> str:
        # Each name has a number, and is used once: the engine's response cache would keep a name that comes again.
        return f"self_test.{self._calls}.{what}"

    def _read_events(self) -> list[int]:
        """Return the times at which transfers have ended since the last call."""
        ended, count = [], _EVENTS
        while count == _EVENTS:
            count, self._cursor = self._engine.read_events(self._cursor, self._events)
            for event in self._events[:count]:
                if event.phase == Phase.MOVED and event.kind == Kind.TRANSFER:
                    ended.append(event.time_ns)
        return ended


def _shared(found: Sequence[Pair]) -> list[Pair]:
    """Combine the workers' results; the same on all ranks."""
    payloads, _ = buffers.gather(bytearray(b"".join(msgspec.json.encode(pair) + b"\n" for pair in found)))
    known: dict[tuple[int, int], Pair] = {}
    for line in payloads.splitlines():
        pair = msgspec.json.decode(line, type=Pair)
        at = pair.one, pair.other
        known[at] = pair if at not in known else _both_sides(known[at], pair)
    return [known[at] for at in sorted(known)]


def _both_sides(one: Pair, other: Pair) -> Pair:
    latency = max(one.latency_us, other.latency_us)
    there, back = max(one.there, other.there), max(one.back, other.back)
    return Pair(one.one, one.other, latency, there, back, one.route or other.route)


def measure_whole(effort: Effort) -> Whole:
    """Measure allreduces among all workers."""

    def took(call: Callable[[], None]) -> float:
        started = time.perf_counter()
        call()
        return time.perf_counter() - started

    def repeat(size: int, times: int) -> float:
        data = buffers.zeros(size)
        buffers.barrier()
        seconds = [
            took(lambda: buffers.allreduce(data, DType.F32, Sum, name=f"self_test.{size}")) for _ in range(times)
        ]
        return statistics.median(seconds)

    # All ranks must do the same, so the slowest one says how much can be done.
    slowest = array("d", [repeat(_PROBE_BYTES, 3)])
    buffers.allreduce(slowest, op=Max)
    fits = int(_PROBE_BYTES * 4 * effort.seconds / slowest[0])
    size = min(_LARGEST_ALLREDUCE, max(_PROBE_BYTES, fits // _PROBE_BYTES * _PROBE_BYTES))
    return Whole(repeat(4, _ALLREDUCES) * 1e6, size, repeat(size, effort.samples))
