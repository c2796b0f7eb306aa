"""The options of requests in the engine's form (`farandole_option` in farandole.h): names and numbers.

This module does not know the individual options. Collectives declare theirs, and the engine's table reads them
(native/engine/options.h).
"""

from __future__ import annotations

import ctypes
import struct
from collections.abc import Callable, Mapping
from functools import cache
from typing import Any

from farandole.worker.core.binding import NativeOption, NativeRequest


class NativeOptions:
    """Options with their values. They never change, so many requests can point to the same ones.

    Attributes:
        array: the array of `NativeOption`.
        address: the address of its first byte.
        count: their number.
    """

    __slots__ = ("address", "array", "count")

    def __init__(self, array: ctypes.Array[NativeOption]) -> None:
        """Wrap an array that does not change."""
        self.array = array
        self.address = ctypes.addressof(array)
        self.count = len(array)


def native_options(options: Mapping[str, Any]) -> NativeOptions:
    """Return options, given by name, in native form. Values are numbers, or objects that `float` accepts.

    Example:
        >>> [(each.name, each.value) for each in native_options({"op": 1, "prescale": 0.5}).array]
        [(b'op', 1.0), (b'prescale', 0.5)]
    """
    return reader_of(tuple(options))(options)


@cache
def reader_of(names: tuple[str, ...]) -> Callable[[Mapping[str, Any]], NativeOptions]:
    """Return `native_options` for mappings with these names; other names in a mapping are ignored.

    The function is compiled, because it runs for every small tensor: a general one takes three times as long.
    """
    layout = _Layout(names)
    values = ", ".join(f"options[{name!r}]" for name in names)
    source = f"def read(options):\n    packed = _pack({values})\n    return _known(packed) or _make(packed)\n"
    scope: dict[str, Any] = {"_pack": layout.pack, "_known": layout.known.get, "_make": layout.make}
    exec(compile(source, "<farandole.worker.core.request_options>", "exec"), scope)
    read: Callable[[Mapping[str, Any]], NativeOptions] = scope["read"]
    return read


def options_of(request: NativeRequest) -> dict[str, float]:
    """Return the options of a request by name."""
    given = request.options[: request.option_count]
    return {option.name.decode(): option.value for option in given}


class _Layout:
    """The native options for certain names, cached by their values.

    Attributes:
        pack: a function that turns the values, one for each name, into bytes.
        known: options by the bytes of their values. Equal numbers, such as 0.0 and -0.0, may have different bytes.
    """

    # A factor may differ in each step.
    MOST = 1024

    def __init__(self, names: tuple[str, ...]) -> None:
        """Keep the names, which native options will point to."""
        self._names = [name.encode() for name in names]
        self._values = struct.Struct(f"@{len(names)}d")
        self.pack = self._values.pack
        self.known: dict[bytes, NativeOptions] = {}

    def make(self, packed: bytes) -> NativeOptions:
        """Return new options with these values, and keep them."""
        values = self._values.unpack(packed)
        array = (NativeOption * len(values))(*map(NativeOption, self._names, values))
        if len(self.known) >= self.MOST:
            self.known.clear()  # Requests that use them hold them.
        made = self.known[packed] = NativeOptions(array)
        return made
