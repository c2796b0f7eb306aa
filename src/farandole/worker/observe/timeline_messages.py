"""Messages between the observers of one world, which the roster relays.

Rank 0 records. It sends the others `On`, and they send a `Batch` whenever there are new events; when it sends `Off`,
they send the remaining events, and `Final`. A rank that has just joined sends `Here`. A rank whose user has started a
timeline sends `Ask`, and `Answer` tells it whether rank 0 could open the file.

Every message has the generation that it belongs to: late messages of an earlier world are dropped.
"""

from __future__ import annotations

import msgspec

from farandole.base.wire.frames import Codec


class Here(msgspec.Struct, frozen=True, tag="here"):
    """To rank 0: the sender listens from now on."""

    generation: int


class On(msgspec.Struct, frozen=True, tag="on"):
    """From rank 0: record."""

    generation: int
    serial: int
    """Counts the timelines of this generation."""
    start_ns: int
    """The time at which the timeline began, by the roster's clock."""


class Off(msgspec.Struct, frozen=True, tag="off"):
    """From rank 0: send the remaining events, then `Final`."""

    generation: int
    serial: int


class Final(msgspec.Struct, frozen=True, tag="final"):
    """To rank 0: the sender sends no more batches of that timeline, or of an earlier one."""

    generation: int
    serial: int


class Ask(msgspec.Struct, frozen=True, tag="ask"):
    """To rank 0: the sender's user has called `start_timeline` for the `calls`th time in this generation."""

    generation: int
    calls: int


class Answer(msgspec.Struct, frozen=True, tag="answer"):
    """From rank 0: it is recording, or the reason why it cannot."""

    generation: int
    calls: int
    error: str


class Batch(msgspec.Struct, frozen=True, tag="batch"):
    """The events of an engine over some time."""

    generation: int
    serial: int
    first: int
    """Number of the first event among all that this engine has recorded: a gap after the previous batch shows lost
    events."""
    offset_ns: int
    """The offset that converts the events' times to the roster's clock."""
    events: bytes
    """Events, in the layout that `engine_events` unpacks."""
    names: dict[int, tuple[str, str]]
    """By the number of a name in the events: the request's name, and the type and shape of its tensor."""


Message = Here | On | Off | Final | Ask | Answer | Batch

LAST_SERIAL = 2**62
"""The serial number in the `Final` of a rank that leaves."""

CODEC: Codec[Message] = Codec(Message)
