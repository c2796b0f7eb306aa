"""farandole: turns a single-process training script into a distributed one.

Importing this package imports no other module; its attributes are imported when they are first used.
"""

from __future__ import annotations

import importlib
import importlib.util
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from farandole.control.jobs.handle import submit as submit
    from farandole.control.launcher.function import run as run
    from farandole.worker.core.basics import count_step as count_step
    from farandole.worker.core.basics import stats as stats
    from farandole.worker.core.value_reports import report as report
    from farandole.worker.observe.observer import start_timeline as start_timeline
    from farandole.worker.observe.observer import stop_timeline as stop_timeline

__all__ = ["__version__", "count_step", "report", "run", "start_timeline", "stats", "stop_timeline", "submit"]

_HOMES = {
    "count_step": "farandole.worker.core.basics",
    "report": "farandole.worker.core.value_reports",
    "run": "farandole.control.launcher.function",
    "start_timeline": "farandole.worker.observe.observer",
    "stats": "farandole.worker.core.basics",
    "stop_timeline": "farandole.worker.observe.observer",
    "submit": "farandole.control.jobs.handle",
}


def __getattr__(name: str) -> Any:
    if name == "__version__":
        from farandole.base.installed import own_version

        value: Any = own_version()
    elif name in _HOMES:
        value = getattr(importlib.import_module(_HOMES[name]), name)
    else:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}{_what_to_import(name)}")
    globals()[name] = value
    return value


def _what_to_import(name: str) -> str:
    if name.startswith("_"):
        return ""
    if importlib.util.find_spec(f"{__name__}.{name}") is not None:
        return f": write `import {__name__}.{name}` first"
    return (
        ": functions for training, such as init(), are in the module of your framework, which is farandole.torch, "
        ".tensorflow, .keras, .jax, .numpy or .mxnet: write, for example, `import farandole.torch as hvd`"
    )


def __dir__() -> list[str]:
    return sorted({*globals(), *__all__})
