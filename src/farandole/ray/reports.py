"""`horovod.ray.ray_logger`, which passes values from workers to callbacks in the driver."""

from __future__ import annotations

from typing import Any

from farandole.worker.core.value_reports import report

_queue: Any = None


def use_queue(queue: Any) -> None:
    """Put values into the user's queue, an object with `put`, instead of sending them to the launcher."""
    global _queue
    _queue = queue


def log(info: Any) -> None:
    """Pass a value to the callbacks of the driver's `run`. If no job receives it, warn once."""
    if _queue is not None:
        _queue.put(info)
    else:
        report(info)
