"""Pickling calls for workers that cannot import the test's modules."""

from __future__ import annotations

import sys
from collections.abc import Callable, Mapping, Sequence
from importlib.machinery import PathFinder
from types import ModuleType
from typing import Any


def pickle_test_call(function: Callable[..., Any], args: Sequence[Any], kwargs: Mapping[str, Any]) -> bytes:
    """Return a call that a worker with this process's `sys.path` can make.

    The function's module is sent along if the worker could not import it: pytest can load test modules in its own ways.

    Raises:
        Exception: a part of the call cannot be pickled.
    """
    import cloudpickle  # type: ignore[import-untyped]

    call = function, tuple(args), dict(kwargs)
    module = sys.modules.get(getattr(function, "__module__", None) or "")
    if module is None or module.__name__ in cloudpickle.list_registry_pickle_by_value() or _can_be_imported(module):
        return bytes(cloudpickle.dumps(call))
    cloudpickle.register_pickle_by_value(module)
    try:
        return bytes(cloudpickle.dumps(call))
    finally:
        cloudpickle.unregister_pickle_by_value(module)


def _can_be_imported(module: ModuleType) -> bool:
    """Return whether `import` finds a module by its name, in `sys.path`."""
    if getattr(module, "__file__", None) is None or module.__name__ == "__main__":
        return True  # Python's own modules; and cloudpickle itself copies what __main__ defines.
    path, name, spec = None, "", None
    for part in module.__name__.split("."):
        name = f"{name}.{part}" if name else part
        spec = PathFinder.find_spec(name, path)
        if spec is None:
            return False
        path = spec.submodule_search_locations
    return spec is not None and spec.origin == module.__file__
