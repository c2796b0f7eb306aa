"""Frames and messages: no socket is opened here."""

from __future__ import annotations

import msgspec
import pytest

from farandole.base.wire.errors import BadMessage
from farandole.base.wire.frames import Codec, FrameReader, frame


class Ping(msgspec.Struct, tag="ping"):
    number: int


class Pong(msgspec.Struct, tag="pong"):
    text: str


@pytest.mark.parametrize("step", [1, 2, 3, 5, 1000])
def test_frames_survive_any_fragmentation(step: int) -> None:
    payloads = [b"", b"a", b"bc" * 100, b"\x00" * 7]
    stream = b"".join(frame(payload) for payload in payloads)
    reader = FrameReader()
    received = []
    for start in range(0, len(stream), step):
        received += reader.feed(stream[start : start + step])
    assert received == payloads


def test_frame_over_the_limit_is_refused_from_its_header() -> None:
    reader = FrameReader(limit=10)
    assert reader.feed(frame(b"x" * 10)) == [b"x" * 10]
    with pytest.raises(BadMessage, match="11 bytes was announced; at most 10"):
        reader.feed((11).to_bytes(4, "little"))


def test_codec_takes_only_its_own_messages() -> None:
    codec: Codec[Ping | Pong] = Codec(Ping | Pong)
    assert codec.decode(codec.encode(Pong("hi"))) == Pong("hi")
    other: Codec[Ping] = Codec(Ping)
    for payload in (codec.encode(Pong("hi")), b"", b"\xc1rubbish", msgspec.msgpack.encode({"type": "ping"})):
        with pytest.raises(BadMessage):
            other.decode(payload)
