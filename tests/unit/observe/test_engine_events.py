"""The layout of events, which Python reads without the binding's help."""

from __future__ import annotations

import ctypes

from farandole.worker.core.binding import NativeEvent
from farandole.worker.observe.engine_events import LAYOUT, NOTHING, Event, names_in, times_in, unpack

EVENTS = [
    Event(2**40, 2**33, 0, 1, 2, 3, 4, 5, -1),
    Event(-7, 0, 9, 0, 0, NOTHING, NOTHING, NOTHING, 3),
    Event(2**40, 1, 6, 0, 0, NOTHING, NOTHING, 2**20, -1),
]


def native(events: list[Event]) -> bytes:
    array = (NativeEvent * len(events))()
    for into, event in zip(array, events, strict=True):
        for field, value in zip((name for name, _ in NativeEvent._fields_), event, strict=True):
            setattr(into, field, value)
    return ctypes.string_at(array, ctypes.sizeof(array))


def test_the_layout_is_that_of_the_binding() -> None:
    assert LAYOUT.size == ctypes.sizeof(NativeEvent)
    assert [name for name, _ in NativeEvent._fields_] == list(Event._fields)
    assert unpack(native(EVENTS)) == EVENTS


def test_times_and_names_without_unpacking() -> None:
    assert times_in(native(EVENTS)) == [2**40, -7, 2**40]
    assert names_in(native(EVENTS)) == {5, 2**20}
    assert times_in(b"") == [] and names_in(b"") == set()
