"""Values as MessagePack and JSON, including text from the operating system that is not UTF-8.

Arguments, environment variables and paths are bytes. Python decodes bytes that are not UTF-8 as lone surrogates
(`surrogateescape`), which msgspec neither writes nor reads. This module encodes such text so that workers get the same
bytes:

- in MessagePack, the whole value is an extension of type `OS_TEXT`. In it, every string is written as its bytes, and
  values that are bytes as another extension;
- in JSON as escapes such as `\\udce9`, like Python's own `json`.

Both are rare, and have no cost otherwise.
"""

from __future__ import annotations

import functools
import json
from typing import Any, TypeVar

import msgspec

from farandole.base.wire.os_text import as_bytes

Value = TypeVar("Value")

OS_TEXT = 1
_BYTES = 2


# --- MessagePack ----------------------------------------------------------------------------------------------------


def encode(value: object) -> bytes:
    """Return a value as MessagePack."""
    try:
        return msgspec.msgpack.encode(value)
    except UnicodeEncodeError:
        plain = msgspec.to_builtins(value, builtin_types=(bytes,))
        within = msgspec.msgpack.encode(_texts_as_bytes(plain))
        return msgspec.msgpack.encode(msgspec.msgpack.Ext(OS_TEXT, within))


def decode(payload: bytes, kind: Any) -> Any:
    """Return the value of type `kind` that `encode` has written.

    Raises:
        msgspec.DecodeError: the payload is not such a value.
    """
    try:
        return _decode(payload, kind)
    except (RecursionError, UnicodeError, TypeError) as error:
        # Nesting that is too deep, text or a tag that is not UTF-8, a key that cannot be one: msgspec lets them pass.
        raise msgspec.DecodeError(str(error)) from error


def _decode(payload: bytes, kind: Any) -> Any:
    try:
        return _decoder(kind).decode(payload)
    except msgspec.ValidationError:
        plain = msgspec.msgpack.decode(payload, ext_hook=_within)
        return msgspec.convert(plain, kind, builtin_types=(bytes,))


@functools.lru_cache(maxsize=256)
def _decoder(kind: Any) -> msgspec.msgpack.Decoder[Any]:
    return msgspec.msgpack.Decoder(kind)


def _texts_as_bytes(value: Any) -> Any:
    if isinstance(value, str):
        return as_bytes(value)
    if isinstance(value, bytes):
        return msgspec.msgpack.Ext(_BYTES, value)
    if isinstance(value, dict):
        return {_texts_as_bytes(key): _texts_as_bytes(each) for key, each in value.items()}
    if isinstance(value, list | tuple):
        return list(map(_texts_as_bytes, value))
    return value


def _within(code: int, data: memoryview) -> Any:
    if code != OS_TEXT:
        raise msgspec.ValidationError(f"an extension of type {code} is not known")
    return _bytes_as_texts(msgspec.msgpack.decode(data))


def _bytes_as_texts(value: Any) -> Any:
    if isinstance(value, bytes):
        return value.decode("utf-8", "surrogateescape")
    if isinstance(value, msgspec.msgpack.Ext):
        return bytes(value.data)
    if isinstance(value, dict):
        return {_bytes_as_texts(key): _bytes_as_texts(each) for key, each in value.items()}
    if isinstance(value, list):
        return list(map(_bytes_as_texts, value))
    return value


# --- JSON -----------------------------------------------------------------------------------------------------------


def encode_json(value: object) -> bytes:
    """Return a value as JSON."""
    try:
        return msgspec.json.encode(value)
    except UnicodeEncodeError:
        return json.dumps(msgspec.to_builtins(value, str_keys=True), separators=(",", ":")).encode()


def format_json(value: object, indent: int = 2) -> str:
    """Return a value as indented JSON for people, without a line end after the last line."""
    try:
        return msgspec.json.format(msgspec.json.encode(value), indent=indent).decode()
    except UnicodeEncodeError:
        return json.dumps(msgspec.to_builtins(value, str_keys=True), indent=indent)


def decode_json(text: bytes | str, kind: type[Value]) -> Value:
    """Return the value of type `kind` that `encode_json` has written.

    Raises:
        msgspec.DecodeError: the text is not such a value.
    """
    try:
        return msgspec.json.decode(text, type=kind)
    except (msgspec.DecodeError, UnicodeError, RecursionError) as error:
        try:
            plain = json.loads(text)
        except (ValueError, RecursionError):
            raise msgspec.DecodeError(str(error)) from None
        try:
            return msgspec.convert(plain, kind, str_keys=True)
        except UnicodeError as no_text:  # A tag that is not UTF-8.
            raise msgspec.DecodeError(str(no_text)) from None
