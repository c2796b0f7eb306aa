"""Messages between the observers of one world, which the roster passes on.

Rank 0 records. It tells the others `On`, and they send a `Batch` whenever something has happened; when it tells them
`Off` they send what is left, and `Final`. A rank that has just come says `Here`. A rank whose user asked for a timeline
sends `Ask`, and hears by `Answer` whether rank 0 could open the file.

Every message names the generation it belongs to: what comes late from an earlier world is dropped.
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
    """The time at which it began, by the roster's clock."""


class Off(msgspec.Struct, frozen=True, tag="off"):
    """From rank 0: send what is left, then `Final`."""

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
    """Number of the first event, of all that this engine recorded: a gap to the batch before is what was lost."""
    offset_ns: int
    """The difference that turns the events' times into the roster's time."""
    events: bytes
    """Events, in the layout that `engine_events` unpacks."""
    names: dict[int, tuple[str, str]]
    """For each name's number in the events: the request's name, and type and shape of its tensor."""


Message = Here | On | Off | Final | Ask | Answer | Batch

LAST_SERIAL = 2**62
"""In the `Final` of a rank that leaves."""

CODEC: Codec[Message] = Codec(Message)
