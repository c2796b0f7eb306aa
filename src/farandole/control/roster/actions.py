"""Carrying out what `decide` has decided: messages to workers, calls of the launcher, and the timer of a hold.

`StateHolders` is what the roster knows of the job's state, which the workers have and the roster never sees.
"""

from __future__ import annotations

import time
from collections.abc import Callable

from farandole.base.wire.rendezvous import Changed, Coming, Refused, Revoked
from farandole.control.roster import elastic
from farandole.control.roster.connections import Connections
from farandole.control.roster.decide import State
from farandole.control.roster.device_numbers import DeviceNumbers
from farandole.control.roster.events import Action, Announce, End, Evict, Hold, Notify, Refuse, Revoke, Show
from farandole.control.roster.timeouts import HoldTimer
from farandole.control.roster.translate import world_of, world_on_arrival
from farandole.control.roster.watcher import Watcher, WorldChange


class StateHolders:
    """Whether any worker has held the job's state, and of which training of the script.

    Attributes:
        any: whether one has.
        training: the latest one, from 1 on; 0: trainings are not counted.
    """

    def __init__(self, any: bool = False, training: int = 0) -> None:
        """Begin with what is known already."""
        self.any = any
        self.training = training

    def note(self, training: int) -> bool:
        """Record that a worker holds the state of a training; return whether that is new."""
        known = self.any, self.training
        self.any, self.training = True, max(self.training, training)
        return known != (self.any, self.training)


class Actions:
    """Carries out the actions of one roster.

    Args:
        connections: to the workers.
        device_numbers: which numbers workers have been told.
        holders: what is known of the job's state.
        timer: of what the job waits for.
        watcher: tells the launcher.
        persist: writes down what the next roster would need. Called before a worker is told anything that follows.

    Attributes:
        turned_at: since when there is no world, on the monotonic clock.
    """

    def __init__(
        self,
        connections: Connections,
        device_numbers: DeviceNumbers,
        holders: StateHolders,
        timer: HoldTimer,
        watcher: Watcher,
        persist: Callable[[], None],
    ) -> None:
        self.turned_at = time.monotonic()
        self._connections = connections
        self._device_numbers = device_numbers
        self._holders = holders
        self._timer = timer
        self._watcher = watcher
        self._persist = persist
        self._told_coming: tuple[tuple[int, ...], int] = ((), 0)
        """How many workers are to come, as it was told last, and which workers it was told."""

    def carry_out(self, action: Action, state: State, reason: str) -> None:
        """Carry out one action of a decision.

        Args:
            action: what is to be done.
            state: after that decision.
            reason: of the decision, in one line.
        """
        if isinstance(action, Announce):
            self._announce(action, state, reason)
        elif isinstance(action, Refuse):
            evicted = isinstance(state, elastic.State) and not state.ended
            self._connections.reply(action.worker, Refused(action.reason, action.rank, evicted))
        elif isinstance(action, Show):
            self._show(action.worker, state)
        elif isinstance(action, Notify):
            change = Changed(state.generation, action.added, action.removed, action.reason)
            self._connections.notify(action.workers, change)
        elif isinstance(action, Revoke):
            loss = Revoked(action.generation, action.rank, action.how, action.certain)
            self._connections.notify(action.workers, loss)
        elif isinstance(action, Evict):
            self._watcher.evicts(action.worker, action.why)
        elif isinstance(action, Hold):
            self._timer.wait(action)
            self._watcher.waits(action)
        elif isinstance(action, End):
            self._watcher.ends(action.reason)

    def tell_coming(self, state: State) -> None:
        """Tell the members of the world how many workers have been started and are not here yet, if that is news.

        After the actions of a decision: a worker that has come is counted among those that wait before it is taken from
        those that are to come.
        """
        if isinstance(state, elastic.State) and (now := (state.members, len(state.expected))) != self._told_coming:
            self._told_coming = now
            self._connections.notify(state.members, Coming(len(state.expected)))

    def _announce(self, action: Announce, state: State, reason: str) -> None:
        workers = action.workers or tuple(range(len(action.places)))
        for worker, place in zip(workers, action.places, strict=True):
            self._device_numbers.told(worker, place.hostname, place.local_rank)
        self._persist()
        for rank, worker in enumerate(workers):
            self._connections.reply(worker, world_of(rank, action, state_held=self._holders.any))
        if isinstance(state, elastic.State):
            seconds = time.monotonic() - self.turned_at
            self._watcher.world_begins(
                WorldChange(action.generation, workers, action.previous, action.lost, seconds, reason, action.finished)
            )

    def _show(self, worker: int, state: State) -> None:
        assert isinstance(state, elastic.State)
        number = self._device_numbers.take(worker, state.hosts.get(worker, ""))
        self._persist()
        self._connections.reply(worker, world_on_arrival(state, worker, number, training=self._holders.training))
