"""The plugin library: finds it, makes TensorFlow load it, and lends it the engine of the session.

It is written for TensorFlow's C interface, whose layout has been the same since 2.17, and needs no compiler on the
user's machine. If it cannot be loaded, `why_not` returns the reason, and `ops` uses slower Python functions.
"""

from __future__ import annotations

import ctypes
import warnings
from functools import cache
from pathlib import Path
from typing import Any

import tensorflow as tf

from farandole.base.settings.table import Settings
from farandole.worker.collectives.all_collectives import COLLECTIVES
from farandole.worker.collectives.declaration import Collective, Form
from farandole.worker.core import basics, binding
from farandole.worker.core.lent_engine import LentEngine
from farandole.worker.core.session import Session

LIBRARY_NAME = "libfarandole_tensorflow.so"
OLDEST = (2, 17)


def op_name(collective: Collective, form: Form) -> str:
    """Return the name under which the plugin registers the op.

    Example:
        >>> op_name(COLLECTIVES["allgather"], Form(grouped=True))
        'FarandoleGroupedAllgather'
    """
    return f"Farandole{'Grouped' * form.grouped}{collective.name.capitalize()}"


# Ops that other ranks wait for must neither be merged nor removed, so they are stateful; but they do not depend on each
# other's order, and tf.function would otherwise run them one after another. One whose result is not used in a
# tf.function is omitted from its graph, on all ranks.
_UNORDERED = (
    *(op_name(collective, form) for collective in COLLECTIVES.values() for form in collective.forms()),
    *("FarandoleLocalRank", "FarandoleLocalSize", "FarandoleProcessSetIncluded", "FarandoleRank", "FarandoleSize"),
)


class _Unusable(Exception):
    """The plugin cannot be used; the message says why."""


class Plugin(LentEngine):
    """The loaded library, which counts unnamed calls by itself; a companion of each session.

    Attributes:
        ops: the Python functions of its ops, which TensorFlow has generated.
    """

    def __init__(self, path: Path) -> None:
        """Load the library.

        Raises:
            _Unusable: TensorFlow cannot load it, or it belongs to another version of farandole.
        """
        _check_version()
        binding.load(Settings.from_environment().library)  # The plugin uses the libfarandole that is loaded already.
        try:
            self.ops: Any = tf.load_op_library(str(path))
            super().__init__(ctypes.CDLL(str(path)), "farandole_tensorflow")
        except (OSError, tf.errors.OpError) as error:
            raise _Unusable(f"{path} cannot be loaded into TensorFlow {tf.__version__}: {error}") from error
        self.library.farandole_tensorflow_error.restype = ctypes.c_char_p
        refused = self.library.farandole_tensorflow_error().decode()
        if refused:
            raise _Unusable(f"TensorFlow {tf.__version__} has refused the ops: {refused}")
        if not self.fits():
            raise _Unusable(f"{path} belongs to another version of farandole. Reinstall farandole.")
        _leave_unordered()

    def opened(self, session: Session) -> None:
        """Attach the engine of a world to the library."""
        super().opened(session)
        session.names.follow(self)

    def restarted(self, group: int) -> None:
        """Count unnamed calls from 0 again in a process set."""
        self.library.farandole_tensorflow_restart_names_of(group)

    def restarted_all(self, restarts: int) -> None:
        """Count unnamed calls from 0 again everywhere."""
        self.library.farandole_tensorflow_restart_names(restarts)


def loaded() -> Plugin | None:
    """Return the plugin, loaded by the first call, or None if it cannot be used."""
    return _load()[0]


def why_not() -> str:
    """Return why the plugin cannot be used, in a sentence; "" if it can."""
    return _load()[1]


@cache
def _load() -> tuple[Plugin | None, str]:
    """Load the plugin, and make it follow the sessions of this process."""
    try:
        plugin = Plugin(Path(binding.__file__).parent / "lib" / LIBRARY_NAME)
    except _Unusable as error:
        return None, str(error)
    basics.accompany(plugin)
    return plugin, ""


def _check_version() -> None:
    version = tuple(int(part) for part in tf.__version__.split(".")[:2])
    if version < OLDEST:
        raise _Unusable(f"TensorFlow {tf.__version__} is older than {'.'.join(map(str, OLDEST))}.")


def _leave_unordered() -> None:
    """Make tf.function run collectives in parallel."""
    from tensorflow.python.framework import auto_control_deps

    try:
        auto_control_deps.ASYNC_STATEFUL_OPS = frozenset({*auto_control_deps.ASYNC_STATEFUL_OPS, *_UNORDERED})
    except AttributeError:
        warnings.warn(
            f"farandole does not know this TensorFlow, {tf.__version__}: collectives in a tf.function run one after "
            "another, which is slow. Tell us which version that is.",
            RuntimeWarning,
            stacklevel=2,
        )
