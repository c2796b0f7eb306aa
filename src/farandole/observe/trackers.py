"""The activity of a worker's engine, as scalars for TensorBoard, MLflow and others, written by the program."""

from __future__ import annotations

import time
from collections.abc import Callable
from typing import Any

from farandole.worker.core import basics


class Reporter:
    """Writes how fast the worker trains and what it waits for, at most every few seconds.

    Call `report` once a step, on rank 0 or on all ranks with a writer each. No tracker is imported: any function that
    accepts a name, a value and a step can be used.

    | scalar | means |
    |---|---|
    | `farandole/steps_per_second` | training steps since the last report |
    | `farandole/waiting_ratio` | part of that time that this program waited for results of collectives |
    | `farandole/bytes_per_second` | size of the tensors of all collectives done |
    | `farandole/world_size`, `farandole/generation` | of the current world |

    Args:
        write: a function such as `SummaryWriter.add_scalar` of PyTorch or tensorboardX, `tf.summary.scalar`,
            `mlflow.log_metric`, or `lambda name, value, step: run.log({name: value}, step=step)` for Weights & Biases.
        seconds: the shortest time between two reports.
        clock: a function that returns the time in seconds; tests replace it.

    Example:
        >>> from torch.utils.tensorboard import SummaryWriter  # doctest: +SKIP
        >>> reporter = Reporter(SummaryWriter().add_scalar)  # doctest: +SKIP
        >>> reporter.report(step)  # doctest: +SKIP
    """

    def __init__(
        self,
        write: Callable[[str, float, int], object],
        seconds: float = 10.0,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self._write = write
        self._seconds = seconds
        self._clock = clock
        self._last: tuple[float, dict[str, float]] | None = None
        self._generation = 0

    def report(self, step: int) -> bool:
        """Write the scalars if this is due; return whether they were written. The first call only starts the counts.

        Args:
            step: the number of the step, with which the scalars are written.

        Raises:
            ValueError: not initialized.
        """
        now = self._clock()
        if self._last is not None and now - self._last[0] < self._seconds:
            return False
        session = basics.current()
        counts = _counts(session.engine.stats(), session.steps)
        before, self._last = self._last, (now, counts)
        world = session.world
        if before is None or self._generation != world.generation:
            self._generation = world.generation  # The counts of a world start at zero.
            return False
        took = now - before[0]
        steps, blocked, size = (max(0.0, counts[name] - before[1][name]) / took for name in counts)
        scalars = {
            "steps_per_second": steps,
            "waiting_ratio": min(1.0, blocked),
            "bytes_per_second": size,
            "world_size": world.size,
            "generation": world.generation,
        }
        for name, value in scalars.items():
            self._write(f"farandole/{name}", value, step)
        return True


def _counts(stats: dict[str, Any], steps: int) -> dict[str, float]:
    moved = sum(operation["bytes"] for operation in stats["operations"].values())
    return {"steps": steps, "blocked": stats["blocked_seconds"], "bytes": moved}
