"""Newcomers that get the state while the other ranks continue training.

A large state is sent in parts, between the steps. Meanwhile a newcomer is a *shadow* of rank 0: it takes the same steps
with the samples of that rank and gets the same reduced gradients, but its own gradients have weight zero. So the part
of the state that it has stays equal to the others'. If its world breaks before it has all of the state, it becomes a
newcomer again, and the others finish the step without it.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence

from farandole.errors import HorovodInternalError
from farandole.worker.core.session import Session
from farandole.worker.elastic.framework import Stream, Trained


class Shadows:
    """The shadows of each world, and the stream that sends them the state.

    Args:
        session: the session of their worlds.
        trained: the owner of the state.
        broken: a function that returns whether a call has failed because its world has ended.
    """

    def __init__(self, session: Session, trained: Trained, broken: Callable[[Exception], bool]) -> None:
        self._session = session
        self._trained = trained
        self._broken = broken
        self.count = 0
        """The number of ranks of this world, the last ones, that do not have the state yet."""
        self.include_this_rank = False
        self.has_lost_world = False
        """Whether this rank is a shadow whose world has ended."""
        self._stream: Stream | None = None
        self._step_began = time.monotonic()

    @property
    def are_served(self) -> bool:
        """Whether the state is being sent to shadows."""
        return self._stream is not None

    def give(self, sources: Sequence[int], receivers: Sequence[int], *, may_stream: bool) -> None:
        """Send newcomers the state at once, or make them shadows; send shadows the rest of it. A collective.

        Args:
            sources: ranks that have it.
            receivers: ranks that need it.
            may_stream: whether a large state may be sent later.

        Raises:
            HorovodInternalError: the world has broken.
        """
        if self._stream is None:
            self._stream = self._trained.transfer(sources, receivers, may_stream=may_stream)
            self._step_began = time.monotonic()
        else:
            self._stream.finish()
            self._stream = None
        self.count = 0 if self._stream is None else len(receivers)
        self.include_this_rank = self.count > 0 and self._session.world.rank in receivers

    def send_some(self, *, is_over: bool) -> bool:
        """Send shadows a part of the state, between two steps, if there are any.

        Args:
            is_over: whether no further step follows, in which it could be sent.

        Returns:
            Whether the rest must be sent now.
        """
        if self._stream is None:
            return False
        now = time.monotonic()
        seconds, self._step_began = now - self._step_began, now
        try:
            if not is_over and not self._stream.send_some(seconds):
                return False
            self._session.exchange("elastic.sent", b"")
        except HorovodInternalError as error:
            if not self._broken(error):
                raise
            self._drop_stream()
            # On a rank that is not a shadow, the next step begins in this world, as on ranks that have not noticed the
            # end yet.
            self.has_lost_world = self.include_this_rank
            return False
        return True

    def keep_up(self, meet: Callable[[], object]) -> None:
        """Follow the others when their step counts, and store the received part of the state, as long as their world is
        alive.

        Args:
            meet: a function that does the work of all ranks at that moment.
        """
        try:
            meet()
            if self._stream is not None:
                self._stream.take()
        except HorovodInternalError as error:
            if not self._broken(error):
                raise
            self.lose_world()

    def lose_world(self) -> None:
        """Record that the world of this shadow has ended."""
        self.has_lost_world = True

    def reformed(self) -> None:
        """Record that another world has followed: it has newcomers, and no shadows yet."""
        self._drop_stream()
        self.count = 0
        self.include_this_rank = self.has_lost_world = False

    def _drop_stream(self) -> None:
        if self._stream is not None:
            self._stream.abandon()
        self._stream = None
