"""A roster for which the test acts as the launcher: it sends events, and receives decisions."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from typing import Any

from farandole.control.roster import elastic
from farandole.control.roster.decide import RosterState, decide
from farandole.control.roster.events import (
    Action,
    Drained,
    Event,
    Evicted,
    Expected,
    Finished,
    Promised,
    Suspected,
)
from farandole.control.roster.membership import without_connections
from farandole.control.roster.service import RosterService


class ScriptedRoster(RosterService):
    """A roster that makes its own decisions about events that the test sends.

    Args:
        state: the initial state, or the state that the previous roster has saved.
        secret: the secret that workers must prove to have.
        obey: called with each action, after the workers have been notified.
        remember: called with the state that the next roster needs, before any action that results from it.
        follows: whether there was a previous roster; then this one is paused until `resume`.
    """

    def __init__(
        self,
        state: RosterState,
        secret: bytes,
        *,
        obey: Callable[[Action], None] = lambda action: None,
        remember: Callable[[elastic.ElasticState], None] = lambda state: None,
        follows: bool = False,
        **options: Any,
    ) -> None:
        super().__init__(state, secret, happened=self.happens, **options)
        self._obey_action = obey
        self._remember = remember
        if follows:
            self.pause()

    def happens(self, event: Event) -> None:
        state, actions, reason = decide(self.state, event)
        self._log(reason)
        if isinstance(state, elastic.ElasticState) and without_connections(state) != without_connections(self._elastic):
            self._remember(without_connections(state))
        self.decided(state)
        for action in actions:
            self.carry_out(action)
            self._obey_action(action)
        self.notify_coming()

    @property
    def _elastic(self) -> elastic.ElasticState:
        assert isinstance(self.state, elastic.ElasticState)
        return self.state

    def resume(self) -> None:
        """Continue where the previous roster was lost."""
        self.happens(Promised(self._elastic.promised))
        super().resume()

    def expect(self, worker: int, host: str) -> None:
        self.happens(Expected(worker, host))

    def finished(self, worker: int, how: str, *, failed: bool = False) -> None:
        self.process_ended(worker)
        self.happens(Finished(worker, how, failed))

    def suspect(self, workers: Iterable[int], how: str) -> None:
        self.happens(Suspected(tuple(workers), how))

    def drain(self, workers: Iterable[int], why: str) -> None:
        self.happens(Drained(tuple(workers), why))

    def evict(self, worker: int, why: str) -> None:
        self.happens(Evicted(worker, why))

    def promise(self, coming: bool) -> None:
        if self._elastic.promised != coming:
            self.happens(Promised(coming))

    @property
    def world(self) -> tuple[int, ...]:
        return self._elastic.members

    @property
    def newcomers(self) -> list[int]:
        return self._elastic.newcomers()
