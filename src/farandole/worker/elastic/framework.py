"""The parts that the loop of steps needs from a framework: a reader of samples, and the state that is trained."""

from __future__ import annotations

from collections.abc import Collection, Sequence
from typing import Any, Protocol

from farandole.worker.core.retry import Gradients
from farandole.worker.elastic.checkpoint.loop_checkpoints import LoopCheckpoints
from farandole.worker.elastic.ledger import Ledger


class Batch(Protocol):
    """One rank's share of one step."""

    data: Any
    """The data of the batch; None if this rank has no samples."""
    samples: int
    total: int
    """The number of samples of all ranks."""
    shares: Sequence[Any]
    """Each rank's samples, as ranges of positions."""


class Loader(Protocol):
    """A source of samples, such as `farandole.torch.elastic.ElasticLoader`."""

    ledger: Ledger

    def counts(self, world_size: int) -> tuple[int, ...]:
        """Return the number of samples of each rank in a full step."""

    def next(self, world_size: int, rank: int) -> Any:
        """Return the batch of a rank in a world, or None at the end of the epoch."""

    def borrow(self, batch: Any) -> Any:
        """Return data of other ranks for a step in which this rank has no samples; None: not available."""

    def commit(self, batch: Any, lost: Collection[int] = ()) -> None:
        """Count the samples of a batch as used, except those of lost ranks."""

    def next_epoch(self) -> None:
        """Begin the next epoch."""


class Stream(Protocol):
    """State on its way to newcomers, in a world that trains."""

    def send_some(self, seconds: float) -> bool:
        """Begin to send a part of the rest, as it is between two steps; return whether nothing is left. A collective.

        Args:
            seconds: the approximate duration of a step.
        """

    def take(self) -> None:
        """Wait for the part in flight; newcomers store it. Called when a step counts, before the optimizer's step."""

    def finish(self) -> None:
        """Send the newcomers everything in which their state still differs from the others'. A collective."""

    def abandon(self) -> None:
        """Do nothing more: the world has ended."""


class Trained(Protocol):
    """The state that is trained, in terms of a framework."""

    reduces_once: bool
    """Whether a step has exactly one reduction of gradients."""
    checkpoints: LoopCheckpoints
    """The checkpoints of the training."""

    def transfer(self, sources: Sequence[int], receivers: Sequence[int], *, may_stream: bool) -> Stream | None:
        """Give the receivers the state that each of the sources has. A collective of the world.

        Args:
            sources: ranks that hold it.
            receivers: ranks that are to get it.
            may_stream: whether the first of the sources allows that a part is sent later.

        Returns:
            The stream that sends the rest; None if there is none.
        """

    def hand_over(self, gradients: Gradients | None, sources: Sequence[int], receivers: Sequence[int]) -> None:
        """Give the receivers the reduced gradients that each of the sources has. A collective of the world.

        Args:
            gradients: the gradients of a step; None on ranks that neither send nor receive.
            sources: ranks that have them.
            receivers: ranks that are to get them.
        """

    def step_without_samples(self) -> None:
        """Take part in a step with gradients of zero."""

    def has_unused_gradients(self) -> bool:
        """Return whether the body has computed gradients without making a step with them."""

    def scale_rate(self, factor: float) -> None:
        """Multiply the learning rates."""
