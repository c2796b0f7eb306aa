"""The import hook: which `tensorflow` an import gives depends on whose code imports it.

The user's own modules get `tensorflow.compat.v1`, with all that is new in TensorFlow 2 switched off. Installed
packages, including Keras and farandole, get TensorFlow itself, which they need. A finder in `sys.meta_path` does not
know which module imports; `builtins.__import__`, which each import statement calls, does.
"""

from __future__ import annotations

import builtins
import functools
import importlib
import importlib.util
import logging
import os
import sys
import sysconfig
from collections.abc import Mapping, Sequence
from types import ModuleType
from typing import Any

from farandole.base.tensorflow1.removed import REMOVED, advice

_MARK = "_farandole_tensorflow1"
# With Keras 2, a script's `import keras` gives that as well.
_HOOKED = ("tensorflow", "keras")
# Python's own modules.
_BELOW = tuple(os.path.join(sysconfig.get_path(name), "") for name in ("stdlib", "platstdlib"))


def install() -> None:
    """Install the hook in this process, and replace TensorFlow in user modules that have already imported it.

    If tf_keras is installed, TensorFlow uses it as its Keras: only tf_keras has `tf.layers`, `tf.nn.rnn_cell` and
    sessions.
    """
    if getattr(builtins.__import__, _MARK, False):
        return
    if importlib.util.find_spec("tf_keras") is not None:
        os.environ.setdefault("TF_USE_LEGACY_KERAS", "1")
    plain = builtins.__import__

    @functools.wraps(plain)
    def imported(
        name: str,
        globals: Mapping[str, Any] | None = None,
        locals: Mapping[str, Any] | None = None,
        fromlist: Sequence[str] | None = (),
        level: int = 0,
    ) -> Any:
        if level == 0 and name.partition(".")[0] in _HOOKED and is_users_own(globals or {}):
            return _version_1(name, fromlist or ()) or plain(name, globals, locals, fromlist or (), level)
        return plain(name, globals, locals, fromlist or (), level)

    setattr(imported, _MARK, True)
    builtins.__import__ = imported
    if (there := sys.modules.get("tensorflow")) is not None:
        _rebind(there)


def is_users_own(importing: Mapping[str, Any]) -> bool:
    """Return whether a module belongs to the user rather than to an installed package.

    Args:
        importing: the module's globals.

    Example:
        >>> is_users_own({"__name__": "__main__", "__file__": "/home/me/old.py"})
        True
        >>> is_users_own(vars(logging))
        False
    """
    file = importing.get("__file__")
    if not isinstance(file, str):
        return importing.get("__name__") == "__main__"
    path = os.path.abspath(file)
    is_installed = {"site-packages", "dist-packages"} & set(path.split(os.sep)) or path.startswith(_BELOW)
    return not is_installed and str(importing.get("__name__")).partition(".")[0] not in ("farandole", "horovod")


# --- what the user's modules get -------------------------------------------------------------------------------------


class _Advising(type):
    def __getattr__(cls, name: str) -> Any:
        raise AttributeError(advice("estimator"))


class Estimator(metaclass=_Advising):
    """The remaining part of `tf.estimator`: constants that models use without an estimator."""

    class ModeKeys:
        """The purpose of a model: training, evaluation or prediction."""

        TRAIN, EVAL, PREDICT = "train", "eval", "infer"


class TensorFlow1(ModuleType):
    """`tensorflow` as the user's modules see it: the names of `tensorflow.compat.v1`, and errors for removed names."""

    def __init__(self, version_1: ModuleType) -> None:
        """Create the module.

        Args:
            version_1: `tensorflow.compat.v1`.
        """
        super().__init__("tensorflow", version_1.__doc__)
        self.__dict__["_version_1"] = version_1
        self.__dict__["__file__"] = version_1.__file__
        self.__dict__["__path__"] = list(getattr(sys.modules["tensorflow"], "__path__", []))

    def __getattr__(self, name: str) -> Any:
        if name == "layers" and not _has_keras_2():
            raise AttributeError(advice(name))
        if name == "estimator":
            return Estimator
        try:
            return getattr(self.__dict__["_version_1"], name)
        except AttributeError:
            # A part of TensorFlow that is not in its API, such as tensorflow.python.
            if (module := sys.modules.get(f"tensorflow.{name}")) is not None:
                return module
            raise AttributeError(advice(name)) from None

    def __dir__(self) -> list[str]:
        return dir(self.__dict__["_version_1"])


def _has_keras_2() -> bool:
    return os.environ.get("TF_USE_LEGACY_KERAS") in ("1", "true", "True") and bool(importlib.util.find_spec("tf_keras"))


@functools.cache
def version_1() -> TensorFlow1:
    """Return TensorFlow for the user's modules. The first call switches off the behaviour of TensorFlow 2.

    Raises:
        ModuleNotFoundError: TensorFlow is not installed.
    """
    if importlib.util.find_spec("tensorflow") is None:
        raise ModuleNotFoundError(
            "FARANDOLE_TF1 (--tf1) is for scripts for TensorFlow 1, and TensorFlow is not installed here. "
            "Run: pip install 'farandole[tensorflow]' tf_keras",
            name="tensorflow",
        )
    found = importlib.import_module("tensorflow.compat.v1")
    logger = logging.getLogger("tensorflow")
    level = logger.level
    logger.setLevel(logging.ERROR)  # It warns that this behaviour cannot be switched off in future versions.
    try:
        found.disable_v2_behavior()
    finally:
        logger.setLevel(level)
    return TensorFlow1(found)


def _version_1(name: str, names: Sequence[str]) -> Any:
    """Return the result of a user's import statement; None: TensorFlow's own module.

    Args:
        name: name of the module, such as tensorflow.keras.
        names: names that are imported from it.

    Raises:
        ModuleNotFoundError: the name was removed from TensorFlow.
    """
    root, *parts = name.split(".")
    if root == "keras" and not _has_keras_2():
        return None
    top: Any = version_1() if root == "tensorflow" else version_1().keras
    asked = (parts[:1] or names) if root == "tensorflow" else ()
    gone = next((each for each in asked if each in REMOVED and not hasattr(top, each)), None)
    if gone is not None:
        raise ModuleNotFoundError(advice(gone), name=f"tensorflow.{gone}")
    found = top
    for part in parts:
        found = getattr(found, part, None) if found is not None else None
    if not names:
        if found is None:
            importlib.import_module(name)
        return top
    return found if found is not None and all(each == "*" or hasattr(found, each) for each in names) else None


def _rebind(tensorflow: ModuleType) -> None:
    """Replace TensorFlow in all user modules that have imported it already."""
    for module in list(sys.modules.values()):
        names = getattr(module, "__dict__", None)
        if names is None or not is_users_own(names):
            continue
        for name, value in list(names.items()):
            if value is tensorflow:
                names[name] = version_1()
