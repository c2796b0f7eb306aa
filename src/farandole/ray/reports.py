"""`horovod.ray.ray_logger`: values from workers to the callbacks of the driver."""

from __future__ import annotations

from typing import Any

from farandole.worker.core.value_reports import report

_queue: Any = None


def use_queue(queue: Any) -> None:
    """Put values into a queue of the user's, an object with `put`, instead of giving them to the launcher."""
    global _queue
    _queue = queue


def log(info: Any) -> None:
    """Give a value to the callbacks of the driver's `run`. Without a job that takes it, a warning is given once."""
    if _queue is not None:
        _queue.put(info)
    else:
        report(info)
