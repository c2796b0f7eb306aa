"""The checkpoints that a loop of steps writes: what it trains, and how far it has come."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from farandole.base.wire.rendezvous import World
from farandole.worker.elastic.checkpoint.checkpoint_base import CheckpointBase

_PROGRESS = "farandole"
"""Under this name, a checkpoint holds how far the training has come."""
_LAST_CHECKPOINT_SECONDS = 120.0
"""For which the end of the loop waits for a checkpoint that is being written."""


class LoopCheckpoints:
    """Checkpoints of one loop, or none if the user wants none.

    Args:
        checkpoint: writes and reads them; None for none.
        things: what is trained, by name. `load` puts into them what it reads.
    """

    def __init__(self, checkpoint: CheckpointBase | None = None, things: Mapping[str, Any] | None = None) -> None:
        self._checkpoint = checkpoint
        self._things = dict(things or {})
        self._last_step = 0
        """The step of the newest checkpoint that this loop has begun to write, or has read; 0: none."""

    def is_due(self, step: int) -> bool:
        """Return whether one is to be written after a step."""
        return self._checkpoint is not None and self._checkpoint.due(step)

    def lacks(self, step: int) -> bool:
        """Return whether checkpoints are wanted, and the newest one is not of this step."""
        if self._checkpoint is None or step == self._last_step:
            return False
        # So that the last one is not skipped because another one is still being written.
        self.wait()
        return True

    def save(self, progress: bytes, step: int, epoch: int, world: World) -> None:
        """Begin to write one, on all ranks of a world."""
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
        """Read the last one, if there is one and it is wanted; return the progress that was saved with it."""
        if self._checkpoint is None or not self._checkpoint.resume:
            return None
        into = {**self._things, _PROGRESS: b""}
        step = self._checkpoint.load(into)
        if step is None:
            return None
        self._last_step = step
        return bytes(into[_PROGRESS])

    def wait(self) -> None:
        """Wait for one that is being written, at most two minutes."""
        if self._checkpoint is not None:
            self._checkpoint.wait(_LAST_CHECKPOINT_SECONDS)
