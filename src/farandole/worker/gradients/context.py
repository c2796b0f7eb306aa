"""The session and the world in which a step is taken, and how it continues when that world breaks."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager

from farandole.errors import HorovodInternalError
from farandole.worker.core.dtype import Average
from farandole.worker.core.retry import Retry
from farandole.worker.core.session import Session
from farandole.worker.gradients.reduce_options import ReduceOptions


class Context:
    """The world and options in which the present step began. The reducer sets it at the first gradient of a step.

    Attributes:
        options: the options of the reduction.
        session: the session; None before the first step.
        generation: the generation of the world in which the step began.
        times_made_alike: the session's `times_made_alike` when the step began.
        keeps: whether this rank's own gradients are kept until the step counts.
        has_next_world: whether another world may follow when this one breaks.
    """

    __slots__ = ("generation", "has_next_world", "keeps", "options", "session", "times_made_alike")

    def __init__(self, options: ReduceOptions) -> None:
        self.options = options
        self.session: Session | None = None
        self.generation = self.times_made_alike = 0
        self.keeps = False
        self.has_next_world = False

    @property
    def entered(self) -> Session:
        """Return the session of the current step."""
        assert self.session is not None
        return self.session

    @property
    def retry(self) -> Retry | None:
        """Return the object that repeats broken calls in the next world, if there is one."""
        return None if self.session is None else self.session.retry

    @property
    def step_retry(self) -> Retry | None:
        """Return the object that counts a step by these gradients; None if they are reduced among only some ranks."""
        return self.retry if self.options.process_set.process_set_id == 0 else None

    def share(self) -> float:
        """Return the factor of this rank's gradients that gives all samples of a step equal weight."""
        # Written out, without calls of other properties: this runs for each gradient of each step.
        retry = None if self.session is None else self.session.retry
        return 1.0 if retry is None or self.options.op != Average else retry.share

    @contextmanager
    def loss_left_to_finish(self) -> Iterator[None]:
        """Ignore a break of the world during a backward pass, if the end of the step handles it."""
        try:
            yield
        except HorovodInternalError as error:
            retry = self.retry
            if retry is None or not retry.broken(error):
                raise
