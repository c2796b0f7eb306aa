"""Messages of every kind as builtin values, with all fields, and an element in each container."""

from __future__ import annotations

import typing
from typing import Any

import msgspec
from msgspec import inspect

_DEPTH = 8
_PLAIN: dict[type, Any] = {str: "text", bytes: b"\0\xff", int: 3, float: 0.5, bool: True, type(None): None}
_OF_INFO: dict[type, type] = {
    inspect.StrType: str,
    inspect.BytesType: bytes,
    inspect.IntType: int,
    inspect.FloatType: float,
    inspect.BoolType: bool,
}


def structs_of(union: Any) -> tuple[type[msgspec.Struct], ...]:
    """Return the structs of a union, or a single struct."""
    return typing.get_args(union) or (union,)


def of_struct(kind: type[msgspec.Struct], depth: int = 0) -> Any:
    """Return a message as builtin values, before it is encoded."""
    config = kind.__struct_config__
    hints = typing.get_type_hints(kind)
    made = {field.encode_name: _of(hints[field.name], depth + 1) for field in msgspec.structs.fields(kind)}
    if config.tag is not None:
        made = {str(config.tag_field): config.tag, **made}
    return list(made.values()) if config.array_like else made


def _of(kind: Any, depth: int) -> Any:
    if kind in _PLAIN:
        return _PLAIN[kind]
    if kind is Any or depth > _DEPTH:
        return None
    return _of_info(inspect.type_info(kind), depth)


def _of_info(info: Any, depth: int) -> Any:
    if isinstance(info, inspect.StructType):
        return of_struct(info.cls, depth)
    if isinstance(info, inspect.UnionType):
        return _of_info(next(each for each in info.types if not isinstance(each, inspect.NoneType)), depth)
    if isinstance(info, inspect.DictType):
        return {_of_info(info.key_type, depth + 1): _of_info(info.value_type, depth + 1)}
    if isinstance(info, inspect.TupleType):
        return [_of_info(each, depth + 1) for each in info.item_types]
    if isinstance(info, inspect.CollectionType):
        return [_of_info(info.item_type, depth + 1)]
    if isinstance(info, inspect.EnumType):
        return next(iter(info.cls)).value
    if isinstance(info, inspect.LiteralType):
        return info.values[0]
    return _PLAIN.get(_OF_INFO.get(type(info), type(None)))
