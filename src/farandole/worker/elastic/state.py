"""The state of a training, as Horovod's scripts use it: an object that is kept the same on all workers.

A state has a *committed* copy and its current values. `save` makes the current values the committed ones, `restore`
returns to them, and `sync` broadcasts rank 0's values, current and committed. `commit` is `save` and then a check for
messages of the roster: unlike Horovod's, it is not a collective, and sends no message.
"""

from __future__ import annotations

import copy
import time
from collections.abc import Callable, Iterable, Mapping
from typing import TYPE_CHECKING, Any

from farandole.errors import HostsUpdatedInterrupt, InvalidRequestError
from farandole.worker.elastic import world_changes

# The values of Horovod's HostUpdateResult: no_update, removed, added, mixed.
_REMOVED = 1


# Workers that are started at the same time arrive one after another. The first waits this many seconds for the next, so
# that all of them join in one change: each change costs scripts a call of their training function, and counts as a
# reset.
GATHER_SECONDS = 10.0
# Seconds that a worker waits for a change that has been announced.
PROMISE_SECONDS = 60.0
_LOOK_SECONDS = 0.01


class HostMessages:
    """The changes of the world that this worker has not followed yet; for Horovod's scripts, a queue.

    Horovod announces a change as soon as it has found other hosts, and makes all workers wait until these are ready.
    Here they train until the newcomers have arrived. But some scripts wait until the queue is not empty, sometimes for
    a few seconds only. For them it is not empty as soon as workers have been started. Since they then expect to enter
    another world at the next commit, that commit waits for the newcomers.
    """

    def __init__(self) -> None:
        self._told: list[tuple[Any, int]] = []
        self._promised = False
        """Whether the script has been told that newcomers have been started."""
        self._gathering_since: float | None = None
        """The time at which the first of several newcomers arrived."""

    def put(self, message: tuple[Any, int]) -> None:
        """Record a change that was not reported by the roster: its time and its description."""
        self._told.append(message)

    def empty(self) -> bool:
        """Return whether there is no change to follow at the next commit."""
        if self._told or _pending_change() is not None:
            return False
        self._promised = _coming() > 0
        return not self._promised

    def take(self) -> HostsUpdatedInterrupt | None:
        """Return the interrupt that makes this worker enter the next world, if it should.

        A message of the roster is kept until a new world has followed, so none is lost between two worlds.
        """
        if self._promised:
            self._wait_for_newcomers()
        change = _pending_change()
        told, self._told = self._told, []
        if not told and (change is None or self._others_follow(change)):
            return None
        self._gathering_since = None
        only_removed = change is None or change.added == 0
        return HostsUpdatedInterrupt(only_removed and all(result == _REMOVED for _, result in told))

    def _wait_for_newcomers(self) -> None:
        self._promised = False
        end = time.monotonic() + PROMISE_SECONDS
        # A worker that must leave does not wait, and in a broken world the next collective shows what to do.
        while time.monotonic() < end and _coming() > 0 and not world_changes.is_broken():
            change = _pending_change()
            if change is not None and change.removed:
                return
            time.sleep(_LOOK_SECONDS)

    def _others_follow(self, change: world_changes.Change) -> bool:
        """Return whether newcomers should wait for others that are about to arrive."""
        if change.removed or _coming() == 0:
            return False
        now = time.monotonic()
        if self._gathering_since is None:
            self._gathering_since = now
        return now < self._gathering_since + GATHER_SECONDS


def _coming() -> int:
    return world_changes.coming() if world_changes.is_elastic() else 0


def _pending_change() -> world_changes.Change | None:
    # A state can be used without a world.
    return world_changes.pending_change() if world_changes.is_elastic() else None


class Kept:
    """An object with a committed value and a current one; subclasses define `save`, `restore` and `sync`."""

    def save(self) -> None:
        """Make the current value the committed one."""
        raise NotImplementedError

    def restore(self) -> None:
        """Return to the committed value."""
        raise NotImplementedError

    def sync(self) -> None:
        """Broadcast rank 0's current value to all workers. A collective."""
        raise NotImplementedError

    def reset(self) -> None:
        """Adapt values that depend on the world; does nothing unless a subclass has such values."""


class State(Kept):
    """The base of states. `sync` also commits the values that it broadcasts."""

    # The number of checks for the roster's messages since the workers were made alike: the progress of each in its
    # program.
    _checks = 0

    def __init__(self, bcast_object: Callable[[Any], Any], get_rank: Callable[[], int]) -> None:
        """Create a state.

        Args:
            bcast_object: a function that returns rank 0's object on every rank.
            get_rank: a function that returns this worker's rank.
        """
        self._bcast_object = bcast_object
        self._rank = get_rank
        self._host_messages = HostMessages()
        self._reset_callbacks: list[Callable[[], Any]] = []

    def register_reset_callbacks(self, callbacks: Iterable[Callable[[], Any]]) -> None:
        """Register functions to call in each new world, before `sync`, for example to adapt the learning rate."""
        self._reset_callbacks.extend(callbacks)

    def on_reset(self) -> None:
        """Adapt to a new world: call `reset`, then the callbacks."""
        self.reset()
        for callback in self._reset_callbacks:
            callback()

    def on_hosts_updated(self, timestamp: Any, update_res: int) -> None:
        """Make this worker enter the next world at its next commit, as if the roster had requested it.

        Args:
            timestamp: the time of the change, in seconds since 1970.
            update_res: Horovod's `HostUpdateResult`: 1 if workers only leave.
        """
        self._host_messages.put((timestamp, update_res))

    def commit(self) -> None:
        """Make the current values the committed ones; then check whether workers join or leave. Not a collective.

        Raises:
            HostsUpdatedInterrupt: workers join or leave.
        """
        self.save()
        world_changes.progress()
        self.check_host_updates()

    def check_host_updates(self) -> None:
        """Check whether workers join or leave. Not a collective: ranks may learn of it in different calls.

        The first ranks that learn of it leave this world, so that the others' next collective fails: these enter the
        same next world, and return to their last commit.

        Raises:
            HostsUpdatedInterrupt: workers join or leave.
        """
        self._checks += 1
        interrupt = self._host_messages.take()
        if interrupt is not None:
            raise interrupt


class ObjectState(State):
    """A state of Python objects, which are its attributes.

    Example:
        >>> state = ObjectState(lambda obj: obj, lambda: 0, epoch=0, losses=[])
        >>> state.losses.append(0.5)
        >>> state.restore()
        >>> state.losses
        []
    """

    _saved_state: dict[str, Any]

    if TYPE_CHECKING:
        # Its attributes are the user's.
        def __getattr__(self, name: str) -> Any: ...
        def __setattr__(self, name: str, value: Any) -> None: ...

    def __init__(self, bcast_object: Callable[[Any], Any], get_rank: Callable[[], int], **kwargs: Any) -> None:
        """Create a state.

        Args:
            bcast_object: a function that returns rank 0's object on every rank.
            get_rank: a function that returns this worker's rank.
            kwargs: the attributes with their initial values, which must be picklable.

        Raises:
            ValueError: an attribute has the name of a method.
        """
        check_names(self, kwargs)
        super().__init__(bcast_object, get_rank)
        self._saved_state = _copied(kwargs)
        self._set_attrs(kwargs)

    def save(self) -> None:
        """Make the current values the committed ones.

        They are copied, so that `restore` undoes later changes of a list; values that cannot be copied are stored
        themselves.
        """
        self._saved_state = _copied(self._current())

    def restore(self) -> None:
        """Return to the committed values."""
        self._set_attrs(_copied(self._saved_state))

    def sync(self) -> None:
        """Broadcast the values of rank 0 to all workers, and commit them. A collective."""
        if self._saved_state:
            values = self._bcast_object(self._current())
            self._saved_state = values
            self._set_attrs(values)
        self.save()

    def _current(self) -> dict[str, Any]:
        return {name: getattr(self, name) for name in self._saved_state}

    def _set_attrs(self, values: Mapping[str, Any]) -> None:
        for name, value in dict(values).items():
            setattr(self, name, value)


def check_names(state: State, names: Iterable[str]) -> None:
    """Raise ValueError if one of the names is that of a method of the state."""
    hidden = [name for name in names if hasattr(type(state), name)]
    if hidden:
        raise InvalidRequestError(
            f"a state cannot have an attribute {hidden[0]!r}: it has a method of that name. Choose another name."
        )


def _copied(values: Mapping[str, Any]) -> dict[str, Any]:
    return {name: _copy(value) for name, value in values.items()}


def _copy(value: Any) -> Any:
    try:
        return copy.deepcopy(value)
    except Exception:
        # Any class may refuse to be copied in its own way, such as a tensor in the middle of a graph.
        return value
