"""The progress of a training beyond the framework's own state; the same on all ranks that have the state.

Newcomers get it with the state, and it is saved with each checkpoint.
"""

from __future__ import annotations

import msgspec

from farandole.errors import StateLostError
from farandole.worker.core.session import Session
from farandole.worker.elastic.adaptive_batch import Adaptation
from farandole.worker.elastic.batch_adaptation import BatchAdaptation
from farandole.worker.elastic.batches import RatePolicy, based_on_first
from farandole.worker.elastic.framework import Loader, Trained
from farandole.worker.elastic.ledger import Ledger
from farandole.worker.elastic.recovery import Ballot, Recovery

_NOTHING = (0, None)


class _Record(msgspec.Struct, frozen=True):
    """The progress in the form that is sent and saved."""

    step: int
    calls: int
    ledger: Ledger
    first_batch: int
    """The samples of all ranks in a full step of the first world."""
    factor: float
    """The factor of the learning rates."""
    body_has_calls: bool
    """Whether the body of the loop makes calls that all ranks must make."""
    stop: bool
    """Whether this is the last step, because some rank has requested it."""
    first_epoch: int
    """The epoch in which the loop began."""
    adaptation: Adaptation | None = None
    """The adaptation of the batch, if it is adaptive."""


class Progress:
    """The progress of the training in one loop.

    Args:
        session: the session in whose worlds the training runs.
        loader: the loader, which has the ledger.
        trained: the model and all other trained state.
        recovery: the recovery, which counts calls.
        epochs: the number of epochs, in all worlds together.
        rate: the policy for the learning rate as the world changes.
        adaptation: the adaptation of the batch to the noise of the gradients; None: the batch is not adaptive.
    """

    def __init__(
        self,
        session: Session,
        loader: Loader,
        trained: Trained,
        recovery: Recovery,
        *,
        epochs: int,
        rate: RatePolicy,
        adaptation: BatchAdaptation | None = None,
    ) -> None:
        self._session = session
        self._loader = loader
        self._trained = trained
        self._recovery = recovery
        self._epochs = epochs
        self._rate = rate
        self._adaptation = adaptation
        self.step = 0
        """The number of steps that count, since the loop began."""
        self.body_has_calls = False
        """Whether all ranks know that the loop's body makes calls that all must make."""
        self.stop = False
        """Whether all ranks know that some rank has requested to end after this step."""
        self._first_epoch = loader.ledger.epoch
        self._first_batch = 0
        self._factor = 1.0
        self._scaled_for: tuple[int, Adaptation | None] = _NOTHING
        """The size of the world, and the adaptation, for which the factor was set."""

    @property
    def is_over(self) -> bool:
        """Whether this is the last step."""
        return self._loader.ledger.epoch >= self._first_epoch + self._epochs or self.stop

    def begin(self, *, is_lost: bool) -> None:
        """Begin with rank 0's state: initial, or from the last checkpoint, if there is one.

        A collective. The other ranks get it by `follow`.

        Args:
            is_lost: whether a trained state existed, and was lost.

        Raises:
            StateLostError: the trained state was lost, and there is no checkpoint.
        """
        world = self._session.world
        self._first_batch = sum(self._loader.counts(world.size))
        saved = self._trained.checkpoints.load() if world.rank == 0 else None
        found = any(self._session.exchange("elastic.checkpoint", b"" if saved is None else b"1"))
        if is_lost and not found:
            raise StateLostError.after(
                world.lost,
                "there is no checkpoint. Start the job again; with --checkpoint-dir DIR --resume auto it would go on.",
            )
        if saved is not None:
            self.follow(saved)

    def learn(self, outcome: Ballot) -> None:
        """Record the ranks' requests, when the step counts."""
        self.stop = outcome.stop
        self.body_has_calls = self.body_has_calls or outcome.calls

    def told(self) -> bytes:
        """Return the progress for a newcomer."""
        return msgspec.msgpack.encode(self._record())

    def kept(self) -> bytes:
        """Return the progress for a checkpoint."""
        # A training that continues from there has not been asked to stop.
        return msgspec.msgpack.encode(msgspec.structs.replace(self._record(), stop=False))

    def follow(self, text: bytes) -> None:
        """Adopt the progress of another rank, or of a checkpoint.

        Args:
            text: the result of `told` or `kept`.
        """
        record = msgspec.msgpack.decode(text, type=_Record)
        self.step, self._first_epoch = record.step, record.first_epoch
        self._first_batch, self._factor = record.first_batch, record.factor
        self._scaled_for = _NOTHING
        if self._adaptation is not None and record.adaptation is not None:
            self._adaptation.value = record.adaptation
        self.body_has_calls = record.body_has_calls
        self.stop = record.stop
        self._recovery.catch_up(record.calls)
        self._loader.ledger = record.ledger

    @property
    def factor(self) -> float:
        """The present factor of the learning rates."""
        return self._factor

    def scale_rate(self, size: int) -> None:
        """Set the learning rate for a world.

        Args:
            size: the number of ranks that contribute to its steps.
        """
        scaled_for = (size, self._adapted())
        if scaled_for == self._scaled_for:
            return
        policy = based_on_first(self._rate, self._first_batch)
        factor = policy.factor(sum(self._loader.counts(size)), size)
        if factor != self._factor:
            self._trained.scale_rate(factor / self._factor)
            self._factor = factor
        self._scaled_for = scaled_for

    def _adapted(self) -> Adaptation | None:
        return None if self._adaptation is None else self._adaptation.value

    def _record(self) -> _Record:
        return _Record(
            self.step,
            self._recovery.calls,
            self._loader.ledger,
            self._first_batch,
            self._factor,
            self.body_has_calls,
            self.stop,
            self._first_epoch,
            self._adapted(),
        )
