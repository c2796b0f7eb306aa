"""The options of requests as the engine takes them (`farandole_option` in farandole.h): names and numbers.

Nothing here knows which options there are. Collectives declare theirs, and the engine's table reads them
(native/engine/options.h).
"""

from __future__ import annotations

import ctypes
import struct
from collections.abc import Mapping
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
    # On the way of every small tensor: as few calls as can be.
    names = tuple(options)
    layout = _layouts.get(names)
    if layout is None:
        layout = _layouts.setdefault(names, _Layout(names))
    packed = layout.pack(*options.values())
    return layout.known.get(packed) or layout.make(packed)


def options_of(request: NativeRequest) -> dict[str, float]:
    """Return the options of a request by name."""
    given = request.options[: request.option_count]
    return {option.name.decode(): option.value for option in given}


class _Layout:
    """Options of these names, with values that have been in use.

    Attributes:
        pack: makes bytes of the values, one for each name.
        known: options by the bytes of their values. Numbers that are equal, as 0.0 and -0.0, may differ in these.
    """

    # A factor may be another one in each step.
    MOST = 1024

    def __init__(self, names: tuple[str, ...]) -> None:
        """Take the names, which native options will point to."""
        self._names = [name.encode() for name in names]
        self._values = struct.Struct(f"@{len(names)}d")
        self.pack = self._values.pack
        self.known: dict[bytes, NativeOptions] = {}

    def make(self, packed: bytes) -> NativeOptions:
        """Return new options with these values, and keep them."""
        values = self._values.unpack(packed)
        array = (NativeOption * len(values))(*map(NativeOption, self._names, values))
        if len(self.known) >= self.MOST:
            self.known.clear()  # Whatever uses them holds them.
        made = self.known[packed] = NativeOptions(array)
        return made


_layouts: dict[tuple[str, ...], _Layout] = {}
