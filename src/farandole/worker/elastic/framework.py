"""The parts that the loop of steps needs from a framework: a reader of samples, and the trained state."""

from __future__ import annotations

from collections.abc import Collection, Sequence
from typing import Any, Protocol

from farandole.worker.core.retry import Gradients
from farandole.worker.elastic.batches import BatchPolicy
from farandole.worker.elastic.checkpoint.loop_checkpoints import LoopCheckpoints
from farandole.worker.elastic.ledger import Ledger


class Batch(Protocol):
    """One rank's samples of one step."""

    data: Any
    """The data of the batch; None if this rank has no samples."""
    samples: int
    total: int
    """The number of samples of all ranks."""
    shares: Sequence[Any]
    """The samples of each rank, as ranges of positions."""


class Loader(Protocol):
    """A source of samples, such as `farandole.torch.elastic.ElasticLoader`."""

    ledger: Ledger

    def counts(self, world_size: int) -> tuple[int, ...]:
        """Return the number of samples of each rank in a full step."""

    def next(self, world_size: int, rank: int) -> Any:
        """Return the batch of a rank in a world, or None at the end of the epoch."""

    def borrow(self, batch: Any) -> Any:
        """Return other ranks' data, for a step in which this rank has no samples."""

    def commit(self, batch: Any, lost: Collection[int] = ()) -> None:
        """Count the samples of a batch as used, except those of lost ranks."""

    def next_epoch(self) -> None:
        """Begin the next epoch."""


class AdaptableLoader(Loader, Protocol):
    """A loader whose batches can be adapted."""

    def take_counts_from(self, batches: BatchPolicy) -> None:
        """Use another policy from the next step on."""


class Stream(Protocol):
    """State that is being sent to newcomers while the world trains."""

    def send_some(self, seconds: float) -> bool:
        """Begin to send the next part of the state, between two steps; return whether nothing is left. A collective.

        Args:
            seconds: the approximate duration of a step.
        """

    def take(self) -> None:
        """Wait until the part in flight has arrived; newcomers store it. Called when a step counts, before the
        optimizer's step.
        """

    def finish(self) -> None:
        """Send the newcomers all parts in which their state still differs from the others'. A collective."""

    def abandon(self) -> None:
        """Stop sending, because the world has ended."""


class Trained(Protocol):
    """The trained state of a framework."""

    reduces_once: bool
    """Whether a step has exactly one reduction of gradients."""
    checkpoints: LoopCheckpoints
    """The checkpoints of the training."""

    def transfer(self, sources: Sequence[int], receivers: Sequence[int], *, may_stream: bool) -> Stream | None:
        """Send the receivers the state, which all sources have. A collective of the world.

        Args:
            sources: ranks that have it.
            receivers: ranks that need it.
            may_stream: whether the first source allows a part to be sent later.

        Returns:
            The stream that sends the rest; None if there is none.
        """

    def hand_over(self, gradients: Gradients | None, sources: Sequence[int], receivers: Sequence[int]) -> None:
        """Send the receivers the reduced gradients, which all sources have. A collective of the world.

        Args:
            gradients: the gradients of a step; None on ranks that neither send nor receive.
            sources: ranks that have them.
            receivers: ranks that need them.
        """

    def has_unused_gradients(self) -> bool:
        """Return whether the loop's body has computed gradients that no optimizer step has used."""

    def scale_rate(self, factor: float) -> None:
        """Multiply the learning rates."""
