"""Run by Python at its start in all processes of tests: frameworks import less, so that a process starts sooner.

What is left out changes no result. An optimizer of torch imports the compiler, for more than a second, only so that
the compiler leaves the optimizer alone: that can wait until something imports the compiler. TensorFlow and Keras import
scikit-learn, SciPy, Matplotlib and JAX where they find them, for converters and wrappers that no test uses.
"""

from __future__ import annotations

import sys
from collections.abc import Callable, Sequence
from importlib.machinery import ModuleSpec, PathFinder
from types import ModuleType
from typing import Any

OPTIONAL = {"jax", "matplotlib", "sklearn"}
# Where torch keeps what the compiler has made of a function; it imports the compiler if there is nothing.
DISABLED = "__dynamo_disable"
IMPORTERS = ("keras.src.", "tensorflow.lite.", "tf_keras.src.")


class Finder:
    """Finds modules that are not imported by these importers, or whose import changes another one."""

    # Functions of torch that have not imported the compiler; None once something else has.
    _left_alone: list[Any] | None = None

    def find_spec(self, name: str, path: Sequence[str] | None, target: ModuleType | None = None) -> ModuleSpec | None:
        if name in OPTIONAL and _importer().startswith(IMPORTERS):
            raise ModuleNotFoundError(f"No module named {name!r}", name=name)
        if name == "torch._dynamo":
            self._leave_to_compiler()
        if name == "torch._compile" and (spec := PathFinder.find_spec(name, path, target)) is not None:
            loader: Any = spec.loader
            run = loader.exec_module

            def exec_module(module: Any) -> None:
                run(module)
                self._left_alone = []
                module._disable_dynamo = self._leave_alone(module._disable_dynamo)

            loader.exec_module = exec_module
            return spec
        return None

    def _leave_alone(self, disable: Callable[..., Any]) -> Callable[..., Any]:
        def mark(function: Any = None, recursive: bool = True) -> Any:
            if function is not None and self._left_alone is not None:
                setattr(function, DISABLED, function)
                self._left_alone.append(function)
            return disable(function, recursive)

        return mark

    def _leave_to_compiler(self) -> None:
        for function in self._left_alone or []:
            delattr(function, DISABLED)
        self._left_alone = None


def _importer() -> str:
    """Return the name of the module whose import statement is being run."""
    frame = sys._getframe(2)
    while frame.f_back is not None and frame.f_globals.get("__name__", "").startswith("importlib"):
        frame = frame.f_back
    return str(frame.f_globals.get("__name__", ""))


sys.meta_path.insert(0, Finder())
