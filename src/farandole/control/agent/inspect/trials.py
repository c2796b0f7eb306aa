"""Tries the kernel features that farandole needs. No trial leaves anything behind."""

from __future__ import annotations

import ctypes
import mmap
import os
import socket
from collections.abc import Callable

_PR_SET_CHILD_SUBREAPER = 36
_PR_GET_CHILD_SUBREAPER = 37
_PAGE = mmap.PAGESIZE
_STA_UNSYNC = 0x40
_MICROSECONDS = 1e6


def try_all() -> dict[str, str]:
    """Return, for each tried feature, "" if it works, otherwise the kernel's error."""
    return {name: _outcome(trial) for name, trial in _TRIALS.items()}


def _outcome(trial: Callable[[], None]) -> str:
    try:
        trial()
    except (OSError, AttributeError, ValueError) as error:
        return str(error)
    return ""


def _shared_memory() -> None:
    descriptor = os.memfd_create("farandole-doctor", os.MFD_CLOEXEC)
    try:
        os.truncate(descriptor, _PAGE)
        with mmap.mmap(descriptor, _PAGE) as memory:
            memory[:1] = b"x"
    finally:
        os.close(descriptor)


def _passing_descriptors() -> None:
    left, right = socket.socketpair(socket.AF_UNIX, socket.SOCK_STREAM)
    with left, right:
        for end in (left, right):
            end.settimeout(1.0)
        descriptor = os.memfd_create("farandole-doctor", os.MFD_CLOEXEC)
        try:
            socket.send_fds(left, [b"x"], [descriptor])
        finally:
            os.close(descriptor)
        received = socket.recv_fds(right, 1, 1)[1]
    for descriptor in received:
        os.close(descriptor)
    if not received:
        raise OSError("the descriptor did not arrive")


def _abstract_socket() -> None:
    with socket.socket(socket.AF_UNIX, socket.SOCK_STREAM) as listener:
        listener.bind("")  # The kernel chooses an abstract name.
        listener.listen(1)
        with socket.socket(socket.AF_UNIX, socket.SOCK_STREAM) as caller:
            caller.settimeout(1.0)
            caller.connect(listener.getsockname())


def _process_descriptor() -> None:
    os.close(os.pidfd_open(os.getpid()))


def _subreaper() -> None:
    libc = ctypes.CDLL(None, use_errno=True)
    before = ctypes.c_int(0)
    libc.prctl(_PR_GET_CHILD_SUBREAPER, ctypes.byref(before), 0, 0, 0)
    if libc.prctl(_PR_SET_CHILD_SUBREAPER, 1, 0, 0, 0) != 0:
        number = ctypes.get_errno()
        raise OSError(number, os.strerror(number))
    libc.prctl(_PR_SET_CHILD_SUBREAPER, before.value, 0, 0, 0)


_TRIALS: dict[str, Callable[[], None]] = {
    "memfd": _shared_memory,
    "passing descriptors": _passing_descriptors,
    "abstract Unix sockets": _abstract_socket,
    "pidfd": _process_descriptor,
    "subreaper": _subreaper,
}


class _Timex(ctypes.Structure):
    """The beginning of `struct timex`; the kernel also writes to the rest, which is padding here."""

    _fields_ = (
        ("modes", ctypes.c_uint),
        ("offset", ctypes.c_long),
        ("frequency", ctypes.c_long),
        ("max_error", ctypes.c_long),
        ("estimated_error", ctypes.c_long),
        ("status", ctypes.c_int),
        ("rest", ctypes.c_char * 256),
    )


def kernel_time() -> tuple[bool, float] | None:
    """Return whether the kernel's clock is synchronised, and its possible error in seconds; None if unknown."""
    told = _Timex()
    if ctypes.CDLL(None, use_errno=True).adjtimex(ctypes.byref(told)) < 0:
        return None
    return not told.status & _STA_UNSYNC, told.max_error / _MICROSECONDS
