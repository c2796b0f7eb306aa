"""The options of requests as the engine takes them (`farandole_option` in farandole.h): names and numbers.

Nothing here knows which options there are. Collectives declare theirs, and the engine's table reads them
(native/engine/options.h).
"""

from __future__ import annotations

import ctypes
import struct
from collections.abc import Iterable, Mapping
from functools import cache, lru_cache
from typing import Any

from farandole.core.binding import NativeOption, NativeRequest


class NativeOptions:
    """Options with their values. They never change, so that many requests point to the same ones.

    Attributes:
        array: of `NativeOption`.
        address: where it begins.
        count: how many.
    """

    __slots__ = ("address", "array", "count")

    def __init__(self, array: ctypes.Array[NativeOption]) -> None:
        """Take an array that nobody changes."""
        self.array = array
        self.address = ctypes.addressof(array)
        self.count = len(array)


def native_options(options: Mapping[str, Any]) -> NativeOptions:
    """Return options by name as native ones. Values are numbers, or what `float` takes.

    Example:
        >>> [(each.name, each.value) for each in native_options({"op": 1, "prescale": 0.5}).array]
        [(b'op', 1.0), (b'prescale', 0.5)]
    """
    return Layout.of(tuple(options)).options(options.values())


def options_of(request: NativeRequest) -> dict[str, float]:
    """Return the options of a request by name."""
    given = request.options[: request.option_count]
    return {option.name.decode(): option.value for option in given}


class Layout:
    """Options of these names, whose values are yet to come."""

    def __init__(self, names: tuple[str, ...]) -> None:
        self._struct = struct.Struct("@" + "Pd" * len(names))
        self._arguments = [part for name in names for part in (_address_of(name), 0.0)]

    @classmethod
    @cache
    def of(cls, names: tuple[str, ...]) -> Layout:
        """Return the one of these names."""
        return cls(names)

    def options(self, values: Iterable[Any]) -> NativeOptions:
        """Return options with these values, one for each name."""
        arguments = self._arguments.copy()
        arguments[1::2] = values
        return _options_of(self._struct.pack(*arguments))


# By their bytes: numbers that are equal, as 0.0 and -0.0, may differ in these. Few are in use at a time.
@lru_cache(maxsize=1024)
def _options_of(packed: bytes) -> NativeOptions:
    count = len(packed) // ctypes.sizeof(NativeOption)
    return NativeOptions((NativeOption * count).from_buffer_copy(packed))


_names: dict[str, Any] = {}  # Memory that native options point to.


def _address_of(name: str) -> int:
    return ctypes.addressof(_names.setdefault(name, ctypes.create_string_buffer(name.encode())))
