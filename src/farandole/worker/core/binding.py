"""The C ABI (native/capi/farandole.h) in ctypes: every struct and function, and the search for the library.

Nothing is loaded when this module is imported, only by `load()`.
"""

from __future__ import annotations

import ctypes
from ctypes import (
    CFUNCTYPE,
    POINTER,
    Structure,
    c_char_p,
    c_double,
    c_int,
    c_int32,
    c_int64,
    c_size_t,
    c_uint32,
    c_uint64,
    c_void_p,
)
from functools import cache
from pathlib import Path
from typing import Any

from farandole.base.request_kind import Kind
from farandole.errors import LibraryError

ABI_VERSION = 15
KINDS = len(Kind)
LIBRARY_NAME = "libfarandole.so"


class NativeSetting(Structure):
    """`farandole_setting`."""

    _fields_ = (
        ("name", c_char_p),
        ("value", c_char_p),
    )


class NativeWorld(Structure):
    """`farandole_world`."""

    _fields_ = (
        ("generation", c_uint64),
        ("rank", c_int32),
        ("size", c_int32),
        ("contacts", POINTER(c_char_p)),
        ("secret", c_char_p),
        ("secret_bytes", c_size_t),
        ("timeout_seconds", c_double),
    )


# `farandole_callback` gets the context, the handle, the status, the sentence for it and the rank that it names. ctypes
# takes Python's lock around each call. The object must live until the request is done.
Callback = CFUNCTYPE(None, c_void_p, c_uint64, c_int, c_char_p, c_int32)


class NativeOption(Structure):
    """`farandole_option`."""

    _fields_ = (
        ("name", c_char_p),
        ("value", c_double),
    )


class NativeRequest(Structure):
    """`farandole_request`."""

    _fields_ = (
        ("kind", c_uint32),
        ("dtype", c_uint32),
        ("group", c_uint32),
        ("ndim", c_uint32),
        ("shape", POINTER(c_int64)),
        ("name", c_char_p),
        ("input", c_void_p),
        ("output", c_void_p),
        ("options", POINTER(NativeOption)),
        ("option_count", c_size_t),
        ("splits", POINTER(c_int64)),
        ("residual", c_void_p),
        ("opaque_type", c_char_p),
        ("opaque_bytes", c_size_t),
        ("callback", Callback),
        ("callback_context", c_void_p),
        ("device", c_int32),
        ("in_turn", c_uint32),
        ("stream", c_void_p),
    )


class NativeKindRow(Structure):
    """`farandole_kind_row`."""

    _fields_ = (
        ("name", c_char_p),
        ("has", c_uint32),
        ("rows", c_uint32),
    )


class NativeKindStats(Structure):
    """`farandole_kind_stats`."""

    _fields_ = (
        ("requests", c_uint64),
        ("buckets", c_uint64),
        ("bytes", c_uint64),
        ("waiting_ns", c_uint64),
        ("negotiating_ns", c_uint64),
        ("moving_ns", c_uint64),
        ("copied_in", c_uint64),
        ("copied_out", c_uint64),
    )


class NativeStats(Structure):
    """`farandole_stats`."""

    _fields_ = (
        ("rounds", c_uint64),
        ("sleeps", c_uint64),
        ("kinds", NativeKindStats * KINDS),
    )


class NativeEvent(Structure):
    """`farandole_event`."""

    _fields_ = (
        ("time_ns", c_int64),
        ("bytes", c_uint64),
        ("phase", c_uint32),
        ("kind", c_uint32),
        ("group", c_uint32),
        ("algorithm", c_uint32),
        ("bucket", c_uint32),
        ("name", c_uint32),
        ("rank", c_int32),
    )


_Engine = c_void_p
_Handles = POINTER(c_uint64)

# name -> (result, arguments). Functions that may block, or that do much work: Python's lock is released around them.
_BLOCKING: dict[str, tuple[Any, tuple[Any, ...]]] = {
    "farandole_engine_create": (c_int, (c_uint32, POINTER(NativeSetting), c_size_t, POINTER(_Engine))),
    "farandole_engine_destroy": (None, (_Engine,)),
    "farandole_engine_form": (c_int, (_Engine, POINTER(NativeWorld))),
    "farandole_engine_leave": (c_int, (_Engine, c_double)),
    "farandole_engine_revoke": (c_int, (_Engine, c_uint64, c_int32, c_int32, c_char_p)),
    "farandole_wait": (c_int, (_Engine, c_uint64, c_double)),
    "farandole_wait_all": (c_int, (_Engine, _Handles, c_size_t, c_double)),
    "farandole_wait_on": (c_int, (_Engine, _Handles, c_size_t, c_int32, c_void_p, c_double)),
    "farandole_run": (c_int, (_Engine, POINTER(NativeRequest), c_size_t, _Handles, c_double)),
    "farandole_run_and_release": (c_int, (_Engine, POINTER(NativeRequest), c_size_t, _Handles, c_double)),
    "farandole_arena_alloc": (c_void_p, (_Engine, c_size_t)),
    "farandole_read_events": (
        c_size_t,
        (_Engine, POINTER(c_uint64), POINTER(NativeEvent), c_size_t, POINTER(c_uint64)),
    ),
    "farandole_wait_stall_query": (c_int, (_Engine, c_double, POINTER(c_uint64))),
}

# Functions that are done within microseconds. They keep Python's lock: giving it up there would let another thread
# take it for a whole switch interval (5 ms), a thousand times what the call costs.
_QUICK: dict[str, tuple[Any, tuple[Any, ...]]] = {
    "farandole_version": (c_char_p, ()),
    "farandole_abi_version": (c_uint32, ()),
    "farandole_last_error": (c_char_p, ()),
    "farandole_last_lost_rank": (c_int32, ()),
    "farandole_kind_row_of": (POINTER(NativeKindRow), (c_uint32,)),
    "farandole_algorithms": (c_char_p, ()),
    "farandole_log_copy_to": (None, (c_int,)),
    "farandole_backends": (c_char_p, ()),
    "farandole_probe_backend": (c_char_p, (c_char_p, c_char_p)),
    "farandole_setting_names": (c_char_p, ()),
    "farandole_options": (c_char_p, ()),
    "farandole_choose_for": (c_char_p, (c_uint32, c_uint32, c_uint64, c_int32, c_int32, c_int32)),
    "farandole_choose": (c_char_p, (_Engine, c_uint32, c_uint32, c_uint32, c_uint64)),
    "farandole_keep_knobs": (c_int, (_Engine, c_char_p)),
    "farandole_tuning": (c_char_p, (_Engine,)),
    "farandole_engine_contact": (c_char_p, (_Engine,)),
    "farandole_engine_health": (c_int, (_Engine,)),
    "farandole_engine_cause": (c_int, (_Engine, POINTER(c_int32), POINTER(c_int32))),
    "farandole_engine_links": (c_char_p, (_Engine,)),
    "farandole_engine_routes": (c_char_p, (_Engine,)),
    "farandole_group_ranks": (c_size_t, (_Engine, c_uint32, POINTER(c_int32), c_size_t)),
    "farandole_submit": (c_int, (_Engine, POINTER(NativeRequest), c_size_t, _Handles)),
    "farandole_poll": (c_int, (_Engine, c_uint64)),
    "farandole_result": (
        c_int,
        (_Engine, c_uint64, POINTER(c_void_p), POINTER(POINTER(c_int64)), POINTER(c_size_t)),
    ),
    "farandole_take": (c_int, (_Engine, c_uint64, c_void_p, c_int32, c_void_p)),
    "farandole_clear": (c_int, (_Engine, c_void_p, c_size_t, c_int32, c_void_p)),
    "farandole_release_all": (c_int, (_Engine, _Handles, c_size_t)),
    "farandole_arena_free": (None, (_Engine, c_void_p)),
    "farandole_get_stats": (c_int, (_Engine, POINTER(NativeStats))),
    "farandole_event_name": (c_char_p, (_Engine, c_uint32)),
    "farandole_event_signature": (c_char_p, (_Engine, c_uint32)),
    "farandole_answer_stall_query": (c_int, (_Engine, c_uint64, c_char_p)),
}

FUNCTIONS = frozenset(_BLOCKING) | frozenset(_QUICK)


class Library:
    """The loaded library; its functions are attributes under their C names."""

    def __init__(self, path: Path) -> None:
        self.path = path
        with_lock, without_lock = _open(path)
        for handle, functions in ((without_lock, _BLOCKING), (with_lock, _QUICK)):
            for name, (result, arguments) in functions.items():
                setattr(self, name, _declare(handle, path, name, result, arguments))
        # Small calls use these with arguments of the C types: to check and convert them takes longer than the calls.
        self.unchecked = {
            name: (without_lock if name in _BLOCKING else with_lock)[name]
            for name in ("farandole_run_and_release", "farandole_submit", "farandole_wait_all", "farandole_release_all")
        }

    def __getattr__(self, name: str) -> Any:
        raise AttributeError(f"{self.path} has no function {name}")


def library_path(configured: str | None) -> Path:
    """Return the path of the library: the configured one, or the one beside this package."""
    return Path(configured) if configured else Path(__file__).parent / "lib" / LIBRARY_NAME


def load(configured: str | None = None) -> Library:
    """Load the native library, once per process and path.

    Args:
        configured: the setting `library`; None: the library that came with this package.

    Raises:
        LibraryError: it is missing, cannot be loaded, or is of another version.
    """
    return _load(library_path(configured).absolute())


@cache
def _load(path: Path) -> Library:
    library = Library(path)
    found = library.farandole_abi_version()
    if found != ABI_VERSION:
        raise LibraryError(
            f"{path} has version {found} of the C interface, this package needs {ABI_VERSION}. Build both from the "
            "same source, or reinstall farandole; if FARANDOLE_LIBRARY is set, unset it."
        )
    return library


def _open(path: Path) -> tuple[ctypes.PyDLL, ctypes.CDLL]:
    if not path.exists():
        raise LibraryError(
            f"farandole's native library is not at {path}. In a source tree, build it with `make setup`; otherwise "
            "install the wheel again, or set FARANDOLE_LIBRARY to the path of libfarandole.so."
        )
    try:
        return ctypes.PyDLL(str(path)), ctypes.CDLL(str(path))
    except OSError as error:
        raise LibraryError(
            f"farandole's native library cannot be loaded: {error}. Check that it was built for this kind of machine."
        ) from error


def _declare(handle: ctypes.CDLL, path: Path, name: str, result: Any, arguments: tuple[Any, ...]) -> Any:
    try:
        function = getattr(handle, name)
    except AttributeError:
        raise LibraryError(
            f"{path} lacks {name}: it is not the library of this version. Rebuild or reinstall it."
        ) from None
    function.restype = result
    function.argtypes = arguments
    return function
