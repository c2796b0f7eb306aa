"""Text that is not UTF-8 arrives as it was, in MessagePack and JSON, and is shown escaped."""

from __future__ import annotations

import io
import json

import msgspec
import pytest

from farandole.base.wire import encoding, os_text
from farandole.base.wire.errors import BadMessage
from farandole.base.wire.frames import Codec
from farandole.base.wire.rendezvous import Failure, Hello, Result
from farandole.control.agent.protocol import Start

CAFE = b"caf\xe9".decode("utf-8", "surrogateescape")


class Nested(msgspec.Struct, frozen=True, tag="nested"):
    texts: dict[str, tuple[str, ...]]
    numbers: dict[int, str]
    content: bytes
    members: frozenset[int]
    nothing: str | None = None


NESTED = Nested({CAFE: (CAFE, "caf\u00e9", "")}, {3: CAFE}, b"caf\xe9\x00", frozenset({1, 2}))


def test_every_text_survives_encoding_at_any_depth() -> None:
    assert encoding.decode(encoding.encode(NESTED), Nested | Hello) == NESTED
    assert encoding.decode_json(encoding.encode_json(NESTED), Nested) == NESTED


def test_ordinary_values_are_ordinary_messagepack_and_json() -> None:
    plain = Nested({"a": ("caf\u00e9",)}, {}, b"\xff", frozenset())
    assert encoding.encode(plain) == msgspec.msgpack.encode(plain)
    assert encoding.encode_json(plain) == msgspec.json.encode(plain)


def test_worker_gets_the_original_bytes() -> None:
    codec: Codec[Start] = Codec(Start)
    start = codec.decode(codec.encode(Start(0, ("cat", CAFE), {CAFE: CAFE}, f"/{CAFE}")))
    assert list(map(os_text.as_bytes, (*start.command, start.directory))) == [b"cat", b"caf\xe9", b"/caf\xe9"]
    assert start.environment == {CAFE: CAFE}


def test_surrogate_without_byte_becomes_an_escape() -> None:
    """Such as in the text of an exception: its report must not fail."""
    codec: Codec[Failure | Result] = Codec(Failure | Result)
    sent = Failure("traceback", f"ValueError: \ud800 {CAFE}", None)
    received = codec.decode(codec.encode(sent))
    assert isinstance(received, Failure)
    assert received.exception == f"ValueError: \\ud800 {CAFE}"


@pytest.mark.parametrize(
    "payload",
    [
        b"\xc1",
        msgspec.msgpack.encode(msgspec.msgpack.Ext(1, b"\xc1")),
        msgspec.msgpack.encode(msgspec.msgpack.Ext(1, msgspec.msgpack.encode({b"type": 7}))),
        msgspec.msgpack.encode(msgspec.msgpack.Ext(5, b"")),
        msgspec.msgpack.encode({"type": "hello", "worker": msgspec.msgpack.Ext(5, b"")}),
    ],
)
def test_invalid_message_is_refused(payload: bytes) -> None:
    codec: Codec[Hello] = Codec(Hello)
    with pytest.raises(BadMessage):
        codec.decode(payload)


@pytest.mark.parametrize("text", ["{", '{"numbers": 3}', "[]", '{"type": "\\udcff"}', '{"type": "\udcff"}'])
def test_json_of_another_kind_is_refused(text: str) -> None:
    with pytest.raises(msgspec.DecodeError):
        encoding.decode_json(text, Nested)


def test_python_reads_the_same_json() -> None:
    assert json.loads(encoding.encode_json({"word": CAFE})) == {"word": CAFE}
    assert encoding.format_json({"word": CAFE}, indent=1) == '{\n "word": "caf\\udce9"\n}'
    assert encoding.format_json({"word": "caf\u00e9"}, indent=1) == '{\n "word": "caf\u00e9"\n}'


def test_bytes_are_shown_escaped() -> None:
    assert os_text.shown(f"caf\u00e9 {CAFE} \ud800") == "caf\u00e9 caf\\xe9 \\ud800"
    stream = io.TextIOWrapper(io.BytesIO(), encoding="utf-8")
    os_text.show_os_text(stream, io.StringIO(), None)
    stream.write(CAFE)
    stream.flush()
    assert stream.buffer.getvalue() == b"caf\\xe9"  # type: ignore[attr-defined]
