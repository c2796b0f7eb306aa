"""Run by Python at its start in all processes of tests: frameworks import less, so that a process starts faster.

The omitted imports change no result. A torch optimizer imports the compiler, which takes more than a second, only to
exclude itself from compilation: this can wait until the compiler is imported otherwise. TensorFlow and Keras import
scikit-learn, SciPy, Matplotlib and JAX if they are installed, for converters and wrappers that no test uses.
"""

from __future__ import annotations

import sys
from collections.abc import Callable, Sequence
from importlib.machinery import ModuleSpec, PathFinder
from types import ModuleType
from typing import Any

OPTIONAL = {"jax", "matplotlib", "sklearn"}
IMPORTERS = ("keras.src.", "tensorflow.lite.", "tf_keras.src.")
# Where torch keeps what the compiler has made of a function; it imports the compiler if there is nothing.
DISABLED = "__dynamo_disable"


class Finder:
    """Hides modules from certain importers, and changes modules when they are imported."""

    # What puts functions of torch back that do not import the compiler; None once something has imported it.
    _undo: list[Callable[[], None]] | None = []  # noqa: RUF012 there is one finder

    def find_spec(self, name: str, path: Sequence[str] | None, target: ModuleType | None = None) -> ModuleSpec | None:
        if name in OPTIONAL and _importer().startswith(IMPORTERS):
            raise ModuleNotFoundError(f"No module named {name!r}", name=name)
        if name == "torch._dynamo":
            for undo in self._undo or []:
                undo()
            self._undo = None
        if name == "torch._compile":
            return self._with_other(name, path, "_disable_dynamo", self._leave_alone)
        if name == "torch.optim.optimizer":
            return self._with_other(name, path, "_use_grad_for_differentiable", self._without_compiler)
        return None

    def _with_other(
        self, name: str, path: Sequence[str] | None, attribute: str, change: Callable[[Any], Any]
    ) -> ModuleSpec | None:
        """Return a module's spec that changes one of its functions as soon as the module has been executed."""
        spec = PathFinder.find_spec(name, path)
        if spec is not None:
            loader: Any = spec.loader
            run = loader.exec_module

            def exec_module(module: Any) -> None:
                run(module)
                if hasattr(module, attribute):
                    setattr(module, attribute, change(getattr(module, attribute)))

            loader.exec_module = exec_module
        return spec

    def _leave_alone(self, disable: Callable[..., Any]) -> Callable[..., Any]:
        def mark(function: Any = None, recursive: bool = True) -> Any:
            if function is not None and self._undo is not None:
                setattr(function, DISABLED, function)
                self._undo.append(lambda: delattr(function, DISABLED))
            return disable(function, recursive)

        return mark

    def _without_compiler(self, decorate: Callable[[Any], Any]) -> Callable[[Any], Any]:
        def with_gradients(step: Any) -> Any:
            decorated = decorate(step)
            code = decorated.__code__
            if self._undo is not None and code.co_freevars == ("func",):
                decorated.__code__ = _with_gradients(None).__code__
                self._undo.append(lambda: setattr(decorated, "__code__", code))
            return decorated

        return with_gradients


def _with_gradients(func: Any) -> Any:
    """Decorate as torch's own decorator does, without excluding the compiler; runs in torch's module."""

    def _use_grad(*args: Any, **kwargs: Any) -> Any:
        before = torch.is_grad_enabled()  # type: ignore[name-defined] # noqa: F821
        try:
            torch.set_grad_enabled(args[0].defaults["differentiable"])  # type: ignore[name-defined] # noqa: F821
            return func(*args, **kwargs)
        finally:
            torch.set_grad_enabled(before)  # type: ignore[name-defined] # noqa: F821

    return _use_grad


def _importer() -> str:
    """Return the name of the module whose import statement is being executed."""
    frame = sys._getframe(2)
    while frame.f_back is not None and frame.f_globals.get("__name__", "").startswith("importlib"):
        frame = frame.f_back
    return str(frame.f_globals.get("__name__", ""))


sys.meta_path.insert(0, Finder())
