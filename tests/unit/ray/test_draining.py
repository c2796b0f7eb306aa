"""Workers leave nodes that Ray drains: what the driver tells the actors, and what these do. Without Ray."""

from __future__ import annotations

import threading
import types
from collections.abc import Iterator
from typing import Any

import pytest

from farandole.ray import host_actors, use_ray
from farandole.ray.host_actors import Demand, HostActor, HostActors

SECONDS = 30.0


class Remote:
    """A fake actor, which keeps the calls that it gets."""

    def __init__(self) -> None:
        self.told: list[frozenset[str]] = []
        self.leave_if_on = types.SimpleNamespace(remote=self.told.append)


def test_actors_are_told_of_each_draining_node_once(monkeypatch: pytest.MonkeyPatch) -> None:
    draining: list[frozenset[str]] = [frozenset(), frozenset("a"), frozenset("a"), frozenset("ab"), frozenset("b")]
    monkeypatch.setattr(host_actors, "draining_nodes", lambda: draining.pop(0))
    monkeypatch.setattr(host_actors, "_ASK_SECONDS", 0.0)
    hosts, actor = HostActors(Demand(1, 1)), Remote()
    hosts._actors.append(actor)
    for _ in range(5):
        hosts.tend()
    assert actor.told == [frozenset("a"), frozenset("ab")]


class Dialer:
    """Stands for the process of a dialer, which ends when it is asked to leave."""

    made: list[Dialer]

    def __init__(self, *arguments: Any, **options: Any) -> None:
        self.left = threading.Event()
        self.made.append(self)
        began.set()

    def leave(self) -> None:
        self.left.set()

    def wait(self) -> None:
        assert self.left.wait(SECONDS)


began = threading.Event()


@pytest.fixture
def actor(monkeypatch: pytest.MonkeyPatch) -> Iterator[HostActor]:
    """An actor on the node `mine`, whose dialer has begun."""
    context = types.SimpleNamespace(get_node_id=lambda: "mine", gcs_address="10.0.0.1:6379")
    ray = types.SimpleNamespace(
        util=types.SimpleNamespace(get_node_ip_address=lambda: "10.0.0.1"),
        get_gpu_ids=list,
        get_runtime_context=lambda: context,
    )
    monkeypatch.setattr(host_actors, "use_ray", lambda: ray)
    monkeypatch.setattr(host_actors, "DialerProcess", Dialer)
    monkeypatch.setattr(host_actors, "_REST_SECONDS", 0.0)
    Dialer.made = []
    began.clear()
    made = HostActor("10.0.0.2:7", b"secret", {})
    assert began.wait(SECONDS)
    yield made
    made.leave_if_on(["mine"])


def test_actor_on_a_draining_node_lets_its_worker_leave_and_dials_no_more(actor: HostActor) -> None:
    actor.leave_if_on(["other"])
    assert not Dialer.made[0].left.is_set()
    (dialing,) = [each for each in threading.enumerate() if each.name == "farandole-dialer"]
    actor.leave_if_on(["mine", "other"])
    dialing.join(SECONDS)
    assert not dialing.is_alive() and len(Dialer.made) == 1


def test_version_of_ray_that_does_not_say_drains_no_node() -> None:
    assert use_ray.draining_nodes() == frozenset()
