"""Waits for Ray's actors, without Ray."""

from __future__ import annotations

import sys
import threading
import types
from typing import Any

import pytest

from farandole.control.roster.fixed import FixedState
from farandole.errors import SpecError
from farandole.ray import RayExecutor, roster_thread
from farandole.ray.fixed_workers import FixedWorkers
from farandole.ray.host_actors import Demand
from farandole.ray.settings import RaySettings


class GetTimeoutError(TimeoutError):
    """As in Ray, where it is a TimeoutError, too."""


class Method:
    """A method of an actor, whose calls are never answered if it is the one that hangs."""

    def __init__(self, value: Any) -> None:
        self._value = value

    def remote(self, *_: Any) -> Any:
        return self._value


class Ray(types.ModuleType):
    """As much of Ray as a job of fixed size needs.

    Args:
        hangs: the method of actors that does not answer.
    """

    HANGS = object()

    def __init__(self, hangs: str) -> None:
        super().__init__("ray")
        self.waited: list[float] = []
        self.killed = 0
        self._answers = {"node_id": "n", "listen_on": None, "serve_roster": ("h:1", "h:2"), "update_env_vars": None}
        self._answers |= {"get_gpu_ids": [], "start_executable": None, hangs: self.HANGS}
        self.util = types.SimpleNamespace(remove_placement_group=lambda group: None)

    def remote(self, **_: Any) -> Any:
        def made(cls: type) -> Any:
            made = types.SimpleNamespace(**{name: Method(value) for name, value in self._answers.items()})
            return types.SimpleNamespace(options=lambda **_: types.SimpleNamespace(remote=lambda *_: made))

        return made

    def get(self, references: list[Any], timeout: float | None = None) -> list[Any]:
        if self.HANGS in references:
            assert timeout is not None, "this wait has no end"
            self.waited.append(timeout)
            raise GetTimeoutError
        return references

    def kill(self, worker: Any) -> None:
        self.killed += 1


@pytest.fixture
def placed(monkeypatch: pytest.MonkeyPatch) -> None:
    """Placement groups are there at once."""
    plan = FixedWorkers._place

    def place(self: FixedWorkers) -> Any:
        group = types.SimpleNamespace(wait=lambda seconds: True)
        util = types.SimpleNamespace(get_current_placement_group=lambda: None, placement_group=lambda *_, **__: group)
        monkeypatch.setitem(sys.modules, "ray.util", util)
        return plan(self)

    monkeypatch.setattr(FixedWorkers, "_place", place)
    monkeypatch.setattr("farandole.ray.fixed_workers.in_group", lambda group, bundle: None)


@pytest.mark.parametrize("method", ["node_id", "listen_on", "serve_roster", "get_gpu_ids", "update_env_vars"])
@pytest.mark.parametrize(("given", "waited"), [(30, 300), (900, 900)])
def test_actor_that_does_not_answer_ends_start_with_reason(
    placed: None, monkeypatch: pytest.MonkeyPatch, method: str, given: float, waited: float
) -> None:
    ray = Ray(method)
    monkeypatch.setitem(sys.modules, "ray", ray)
    executor = RayExecutor(RaySettings(timeout_s=given), num_workers=2, use_gpu=True)
    with pytest.raises(TimeoutError, match=f"actors of 2 workers have not answered within {waited} s"):
        executor.start()
    assert ray.waited == [waited] and ray.killed == 2


def test_roster_that_cannot_be_served_ends_wait_for_it(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(roster_thread, "_SECONDS", 0.01)
    over = threading.Event()
    monkeypatch.setattr(roster_thread.asyncio, "run", lambda serving: (serving.close(), over.wait(60)))
    try:
        with pytest.raises(TimeoutError):
            roster_thread.RosterThread(FixedState(()), b"secret", "127.0.0.1")
    finally:
        over.set()


def test_limits_that_contradict_each_other_are_refused_before_anything_is_reserved() -> None:
    with pytest.raises(SpecError, match="max_workers=2 is below min_workers=3"):
        Demand(3, 2).limits(1)
    with pytest.raises(SpecError, match="min_workers=0 is not a number of workers"):
        RayExecutor(RaySettings(), min_workers=0)
