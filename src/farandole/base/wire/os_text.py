"""Text from the operating system: arguments, environment variables and paths, which are bytes.

Python decodes bytes that are not UTF-8 as lone surrogates (`surrogateescape`). `as_bytes` returns the original bytes.
For people, such a byte is written as `\\xe9`: by `shown`, and by the error handler `SHOWN` for streams.
"""

from __future__ import annotations

import codecs
import io
from collections.abc import Callable

SHOWN = "farandole.shown"
_GIVEN = "farandole.given"


def as_bytes(text: str) -> bytes:
    """Return the bytes of a text from, or for, the operating system: UTF-8, with the original bytes of surrogates.

    Surrogates that do not represent a byte become escapes. A program may make them, as in the text of an exception.
    """
    return text.encode("utf-8", _GIVEN)


def shown(text: str) -> str:
    r"""Return text for people, in which bytes that are not UTF-8 are escaped.

    Example:
        >>> shown(b"caf\xe9".decode("utf-8", "surrogateescape"))
        'caf\\xe9'
    """
    return text.encode("utf-8", SHOWN).decode()


def show_os_text(*streams: object) -> None:
    """Make text streams escape bytes that are not UTF-8 instead of refusing them. Other streams are not changed."""
    for stream in streams:
        if isinstance(stream, io.TextIOWrapper):
            stream.reconfigure(errors=SHOWN)


def _encode_surrogates(error: UnicodeError, byte: Callable[[int], bytes]) -> tuple[bytes, int]:
    """Encode the text of an encoding error: surrogates that represent a byte by `byte`, others as escapes."""
    assert isinstance(error, UnicodeEncodeError)
    pieces = [
        byte(ord(each) & 0xFF) if "\udc80" <= each <= "\udcff" else each.encode("ascii", "backslashreplace")
        for each in error.object[error.start : error.end]
    ]
    return b"".join(pieces), error.end


codecs.register_error(SHOWN, lambda error: _encode_surrogates(error, lambda byte: b"\\x%02x" % byte))
codecs.register_error(_GIVEN, lambda error: _encode_surrogates(error, lambda byte: bytes([byte])))
