"""Lends the session's engine to a plugin library, which carries out a framework's ops with it."""

from __future__ import annotations

import ctypes

from farandole.worker.core import binding
from farandole.worker.core.session import Session


class LentEngine:
    """Lends the engine of each session to a library, as a companion of sessions
    (`farandole.worker.core.basics.accompany`).

    Attributes:
        library: a library with functions `<prefix>_attach`, `<prefix>_detach` and `<prefix>_abi_version`.
    """

    def __init__(self, library: ctypes.CDLL, prefix: str) -> None:
        """Lend engines to this library."""
        self.library = library
        self._attach = getattr(library, f"{prefix}_attach")
        self._detach = getattr(library, f"{prefix}_detach")
        self._version = getattr(library, f"{prefix}_abi_version")
        self._is_attached = False

    def fits(self) -> bool:
        """Return whether the library was built for this version of the native interface."""
        version: int = self._version()
        return version == binding.ABI_VERSION

    def opened(self, session: Session) -> None:
        """Attach the engine of a world to the library."""
        world = session.world
        pointer = ctypes.c_void_p(session.engine.native_pointer)
        self._attach(pointer, world.rank, world.local_rank, world.local_size)
        self._is_attached = True

    def closing(self, session: Session) -> None:
        """Detach the engine. This completes the requests in flight."""
        if self._is_attached:
            self._detach()
            self._is_attached = False

    def closed(self) -> None:
        """Do nothing: the engine is already detached."""

    def forgotten(self) -> None:
        """Drop the engine in a forked child; the library itself notices that it has no engine there."""
        self._is_attached = False
