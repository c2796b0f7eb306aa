"""Reports to Ray Train from workers that are replaced one by one.

`ray.train.report` is a barrier of all workers of Ray Train. A worker that waits there takes no steps, and without steps
the replacement of a lost worker cannot join the world, so it never reaches the barrier: both would wait forever. So
nothing is reported while the world lacks a worker, or is known to have broken. If a worker is lost while others wait at
the barrier, their wait ends: Ray resets the barrier when it replaces that worker, and drops their reports.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from farandole.errors import FarandoleError
from farandole.worker.core import basics


def report(metrics: Mapping[str, Any], checkpoint: Any = None) -> bool:
    """Report to Ray Train from a training function with an elastic loop, as `ray.train.report` does.

    All workers must call it at the same steps. A report that is not accepted is lost: report the present state the next
    time.

    Args:
        metrics: the values to report.
        checkpoint: a `ray.train.Checkpoint` to store, or None.

    Returns:
        Whether Ray Train has accepted the report; False if a worker was lost and its replacement does not train yet.

    Raises:
        NotInitializedError: `init()` was not called.

    Example:
        >>> taken = farandole.ray.report({"loss": 0.25})  # doctest: +SKIP
    """
    import ray.train

    if not _is_whole(ray.train.get_context().get_world_size()):
        return False
    before = _reports()
    ray.train.report(dict(metrics), checkpoint=checkpoint)
    return before is None or _reports() != before


def _is_whole(workers: int) -> bool:
    """Return whether all workers of Ray Train are in a living world, as far as this worker knows."""
    session = basics.current()
    try:
        session.engine.check_health()
    except FarandoleError:
        return False
    return basics.size() == workers


def _reports() -> int | None:
    """Return the number of reports that Ray Train has accepted; None if this version of Ray does not provide it.

    Ray has no public way to report that it has dropped a report, but it resets this number.
    """
    try:
        from ray.train.v2._internal.execution.context import get_train_context

        return int(get_train_context().report_call_index)
    except (ImportError, AttributeError):
        return None
