"""An engine's events in the form that ranks send: the layout of the C ABI, and the names that the events use."""

from __future__ import annotations

import struct
from enum import IntEnum
from typing import NamedTuple

NOTHING = 2**32 - 1
"""The value of an event's field for bucket, name or algorithm if it has none."""


class Phase(IntEnum):
    """The kind of an event (`enum farandole_phase`)."""

    SUBMITTED = 0
    AGREED = 1
    STARTED = 2
    MOVED = 4
    DONE = 6
    FAILED = 7
    WOKE = 8
    RANK_READY = 9
    ROUND = 10


class Event(NamedTuple):
    """`farandole_event`."""

    time_ns: int
    bytes: int
    phase: int
    kind: int
    group: int
    algorithm: int
    bucket: int
    name: int
    rank: int


LAYOUT = struct.Struct("<qQ6Ii4x")
_TIME_WORD, _TIME_WORDS = 0, LAYOUT.size // 8
_NAME_WORD, _NAME_WORDS = 9, LAYOUT.size // 4


def unpack(events: bytes) -> list[Event]:
    """Return the events in `events`, in order."""
    return [Event._make(fields) for fields in LAYOUT.iter_unpack(events)]


def times_in(events: bytes) -> list[int]:
    """Return the time of each event."""
    return memoryview(events).cast("q")[_TIME_WORD::_TIME_WORDS].tolist()


def names_in(events: bytes) -> set[int]:
    """Return the numbers of the names that the events use."""
    return set(memoryview(events).cast("I")[_NAME_WORD::_NAME_WORDS].tolist()) - {NOTHING}
