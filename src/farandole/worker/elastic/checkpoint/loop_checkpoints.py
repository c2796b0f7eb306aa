"""The checkpoints that a loop of steps writes: the trained objects, and the progress."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from farandole.base.wire.rendezvous import World
from farandole.worker.elastic.checkpoint.checkpoint_base import CheckpointBase

_PROGRESS = "farandole"
"""The name of the training's progress in a checkpoint."""
_LAST_CHECKPOINT_SECONDS = 120.0
"""Seconds that the end of the loop waits for a checkpoint that is being written."""


class LoopCheckpoints:
    """Checkpoints of one loop, if the user wants any.

    Args:
        checkpoint: the object that writes and reads them; None: no checkpoints.
        things: the trained objects, by name. `load` restores them.
    """

    def __init__(self, checkpoint: CheckpointBase | None = None, things: Mapping[str, Any] | None = None) -> None:
        self._checkpoint = checkpoint
        self._things = dict(things or {})
        self._last_step = 0
        """The step of the newest checkpoint that this loop has begun to write, or has read; 0: none."""

    def is_due(self, step: int) -> bool:
        """Return whether a checkpoint is due after a step."""
        return self._checkpoint is not None and self._checkpoint.due(step)

    def lacks(self, step: int) -> bool:
        """Return whether the user wants checkpoints and the newest one is not of this step."""
        if self._checkpoint is None or step == self._last_step:
            return False
        # So that the last checkpoint is not skipped because another one is still being written.
        self.wait()
        return True

    def save(self, progress: bytes, step: int, epoch: int, world: World) -> None:
        """Begin to write a checkpoint, on all ranks of a world."""
        if self._checkpoint is not None:
            begun = self._checkpoint.save(
                {**self._things, _PROGRESS: progress},
                step,
                rank=world.rank,
                size=world.size,
                generation=world.generation,
                epoch=epoch,
            )
            self._last_step = step if begun else self._last_step

    def load(self) -> bytes | None:
        """Read the last checkpoint, if there is one and the user wants to resume; return the progress saved with it."""
        if self._checkpoint is None or not self._checkpoint.resume:
            return None
        into = {**self._things, _PROGRESS: b""}
        step = self._checkpoint.load(into)
        if step is None:
            return None
        self._last_step = step
        return bytes(into[_PROGRESS])

    def wait(self) -> None:
        """Wait at most two minutes for a checkpoint that is being written."""
        if self._checkpoint is not None:
            self._checkpoint.wait(_LAST_CHECKPOINT_SECONDS)
