"""Elastic jobs of a program that is connected by Ray Client.

The nodes of the cluster cannot reach such a program, so the launcher runs in an actor on the cluster, and the program
collects the values that workers report. The actor owns the job's other actors and its resources: with it, everything
ends, also if the connection is lost.
"""

from __future__ import annotations

import queue
from collections.abc import Callable, Sequence
from typing import Any, Generic, TypeVar

from farandole.ray.use_ray import use_ray

State = TypeVar("State")
Result = TypeVar("Result")
Callbacks = Sequence[Callable[[Any], Any]]

# Seconds between two collections of values, while the call is being made.
_PERIOD_SECONDS = 0.2


def is_connected() -> bool:
    """Return whether this program is connected to a cluster by Ray Client."""
    return bool(use_ray().util.client.ray.is_connected())


class Driver(Generic[State]):
    """An actor that makes calls on the cluster for this program.

    Args:
        state: the first argument of all calls, which the actor keeps.
    """

    def __init__(self, state: State) -> None:
        # One call is made while values are collected.
        actor = use_ray().remote(num_cpus=0, max_concurrency=2)(DriverActor)
        self._actor = actor.remote(state)

    def call(self, function: Callable[[State, Callbacks], Result], callbacks: Callbacks = ()) -> Result:
        """Return `function(state, callbacks)`, computed in the actor; callbacks are called here.

        If this is interrupted, or a callback fails, the actor is ended, and what it has started.
        """
        ray = use_ray()
        try:
            result = self._actor.call.remote(function)
            is_done = False
            while not is_done:
                # Before values are taken: all that have come until then are passed on.
                is_done = bool(ray.wait([result], timeout=_PERIOD_SECONDS)[0])
                for value in ray.get(self._actor.take_values.remote()):
                    for callback in callbacks:
                        callback(value)
            returned: Result = ray.get(result)
            return returned
        except ray.exceptions.RayTaskError as error:
            # As it would be without Ray Client.
            raise (error.cause if isinstance(error.cause, Exception) else error) from None
        except BaseException:
            self.end()
            raise

    def end(self) -> None:
        """End the actor, and what it has started."""
        use_ray().kill(self._actor)


class DriverActor:
    """The actor of a `Driver`.

    Args:
        state: the first argument of all calls.
    """

    def __init__(self, state: Any) -> None:
        self._state = state
        self._values: queue.SimpleQueue[Any] = queue.SimpleQueue()

    def call(self, function: Callable[[Any, Callbacks], Any]) -> Any:
        """Return `function(state, callbacks)`; the callback keeps values until they are taken."""
        return function(self._state, [self._values.put])

    def take_values(self) -> list[Any]:
        """Return the values that have come since the last call."""
        return [self._values.get() for _ in range(self._values.qsize())]
