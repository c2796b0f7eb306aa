"""The plugin library: finds it, registers its handlers with XLA, and lends it the engine of the session.

It is written for the C interface of XLA's FFI, and needs no compiler on the user's machine.
"""

from __future__ import annotations

import ctypes
import time
from functools import cache
from pathlib import Path

import jax
import jax.numpy as jnp

from farandole.base.settings.table import Settings
from farandole.errors import LibraryError
from farandole.worker.core import basics, binding
from farandole.worker.core.lent_engine import LentEngine
from farandole.worker.core.session import Session

LIBRARY_NAME = "libfarandole_jax.so"
# The name of the handlers in XLA's programs.
TARGET = "farandole_collective"
OLDEST = (0, 10)
# JAX's backends for which programs with collectives have been made.
used_backends: set[str] = set()
# How long a worker that leaves waits for the programs that it has called. They may compute for long before their last
# collective; if another worker does not take part in that, both have said so every minute until then.
_END_SECONDS = 600.0


class _Unfinished:
    """Keeps a worker in its world until the programs that it has called have ended.

    JAX computes in the background: a script can reach its end, and have dropped all arrays, while its last steps are
    still running. Other ranks wait for the collectives in them.
    """

    def opened(self, session: Session) -> None:
        """Do nothing: no program needs this world yet."""

    def closing(self, session: Session) -> None:
        """Wait for the programs. If a rank was lost, or the world was abandoned, they fail at once."""
        if session.world.size == 1:
            return
        devices = [device for backend in sorted(used_backends) for device in jax.local_devices(backend=backend)]
        # A device executes its work in order, so a copy that is made now is ready when everything else has ended.
        last = [jnp.copy(jax.device_put(0.0, device)) for device in devices]
        deadline = time.monotonic() + _END_SECONDS
        while not all(each.is_ready() for each in last) and time.monotonic() < deadline:
            time.sleep(0.001)

    def closed(self) -> None:
        """Do nothing."""

    def forgotten(self) -> None:
        """Do nothing."""


class _Alone:
    """Makes JAX drop programs that were compiled for a worker that was alone, when it enters a larger world.

    Such programs have no collectives. Without this, they would fail when they run; with it, JAX compiles them again.
    Programs that the user has compiled ahead of time are not dropped, and fail.

    Attributes:
        is_assumed: whether JAX may still have a program that assumes that the worker is alone.
    """

    is_assumed = False

    def opened(self, session: Session) -> None:
        """Drop such programs, if the worker is not alone."""
        if self.is_assumed and session.world.size > 1:
            jax.clear_caches()
            self.is_assumed = False

    def closing(self, session: Session) -> None:
        """Do nothing: without a world, such programs fail by themselves."""

    def closed(self) -> None:
        """Do nothing."""

    def forgotten(self) -> None:
        """Do nothing."""


alone = _Alone()


def require() -> None:
    """Register the handlers with XLA, if this was not done yet.

    Raises:
        LibraryError: collectives in compiled functions cannot be used; the message says why.
    """
    reason = why_not()
    if reason:
        raise LibraryError(f"farandole's collectives cannot be used inside of functions that JAX compiles: {reason}")


@cache
def why_not() -> str:
    """Return why the plugin cannot be used, in a sentence; "" if it can. The first call loads the plugin."""
    version = tuple(int(part) for part in jax.__version__.split(".")[:2])
    if version < OLDEST:
        return f"JAX {jax.__version__} is older than {'.'.join(map(str, OLDEST))}."
    binding.load(Settings.from_environment().library)  # The plugin uses the libfarandole that is loaded already.
    path = Path(binding.__file__).parent / "lib" / LIBRARY_NAME
    try:
        lent = LentEngine(ctypes.CDLL(str(path)), "farandole_jax")
    except (OSError, AttributeError) as error:
        return f"{path} cannot be loaded: {error}"
    if not lent.fits():
        return f"{path} belongs to another version of farandole. Reinstall farandole."
    library = lent.library
    handlers = {"cpu": library.farandole_jax_execute, "CUDA": library.farandole_jax_execute_on_device}
    try:
        for platform, execute in handlers.items():
            stages = {"instantiate": library.farandole_jax_instantiate, "execute": execute}
            capsules = {stage: jax.ffi.pycapsule(handler) for stage, handler in stages.items()}
            jax.ffi.register_ffi_target(TARGET, capsules, platform=platform)
    except Exception as error:  # Of which type, depends on XLA's version.
        return f"JAX {jax.__version__} has not taken the handlers: {error}"
    basics.accompany(_Unfinished())  # Before the engine is taken back.
    basics.accompany(lent)
    basics.accompany(alone)
    return ""
