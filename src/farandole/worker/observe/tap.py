"""Reads one engine's events continuously, in batches of limited size."""

from __future__ import annotations

import ctypes
from itertools import takewhile

from farandole.base.wire.clock import ClockOffset
from farandole.worker.core.binding import NativeEvent
from farandole.worker.core.engine import Engine
from farandole.worker.observe.engine_events import LAYOUT, names_in, times_in
from farandole.worker.observe.timeline_messages import Batch

# The number of events that the engine's ring holds.
RING_EVENTS = 1 << 14


class Tap:
    """Reads the events after a given moment."""

    def __init__(
        self,
        engine: Engine,
        clock: ClockOffset,
        *,
        generation: int,
        serial: int,
        start_ns: int,
        limit: int = RING_EVENTS,
    ) -> None:
        """Notify the engine that its events are read, so that on rank 0 it also records when each rank is ready.

        Args:
            engine: the engine that reports the events.
            clock: the offset of the roster's clock from this process's.
            generation: the generation of the engine.
            serial: the serial number of the timeline that the batches are for.
            start_ns: events before this time of the roster's clock are omitted.
            limit: maximum number of events in one batch; if there are more, the oldest are omitted.
        """
        self._engine = engine
        self._clock = clock
        self._generation = generation
        self._serial = serial
        self._start_ns = start_ns
        self._limit = limit
        self._cursor = 0
        self._started = False
        self._names: dict[int, str] = {}
        self._buffer = (NativeEvent * RING_EVENTS)()
        engine.read_events(0, (NativeEvent * 1)())

    def read(self) -> Batch | None:
        """Return the events since the last call, or None if there are none."""
        count, self._cursor = self._engine.read_events(self._cursor, self._buffer)
        events = ctypes.string_at(self._buffer, count * LAYOUT.size)
        skipped = 0 if self._started else self._before_start(events)
        if count == skipped:
            return None
        self._started = True
        skipped = max(skipped, count - self._limit)
        events = events[skipped * LAYOUT.size :]
        return Batch(
            self._generation,
            self._serial,
            self._cursor - count + skipped,
            self._clock.nanoseconds,
            events,
            {number: (self._name(number), self._engine.event_signature(number)) for number in names_in(events)},
        )

    def _before_start(self, events: bytes) -> int:
        start = self._start_ns - self._clock.nanoseconds
        return sum(1 for _ in takewhile(lambda time: time < start, times_in(events)))

    def _name(self, number: int) -> str:
        name = self._names.get(number)
        if name is None:
            name = self._names[number] = self._engine.event_name(number)
        return name
