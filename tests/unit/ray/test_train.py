"""What Ray Train's controller does for workers of farandole, without Ray."""

from __future__ import annotations

import importlib
import sys
import types
from collections.abc import Iterator, Sequence
from typing import Any

import pytest

from farandole.control.roster.elastic import ElasticState
from farandole.control.roster.events import Event, Evicted, Expected
from farandole.control.roster.fixed import FixedState
from farandole.errors import SpecError


class Roster:
    """Stands for the thread that serves a roster."""

    made: list[Roster]

    def __init__(self, state: Any, secret: bytes, host: str, **options: Any) -> None:
        self.state, self.evict, self.address = state, options.get("evict"), "10.0.0.1:7"
        self.events: list[Event] = []
        self.closed = False
        self.made.append(self)

    def tell(self, event: Event) -> None:
        self.events.append(event)

    def close(self) -> None:
        self.closed = True


class Worker:
    """A fake worker of Ray Train, which runs functions in this process with its own environment."""

    def __init__(self, rank: int, node: str, gpus: Sequence[int] = ()) -> None:
        self.distributed_context = types.SimpleNamespace(world_rank=rank)
        self.metadata = types.SimpleNamespace(node_id=node, hostname=f"host-{node}", gpu_ids=list(gpus))
        self.actor = f"actor {rank}"
        self.environment: dict[str, str] = {}

    def execute_async(self, fn: Any, *args: Any) -> Any:
        if fn.__name__ == "free_address":
            return "10.0.0.2:8"
        self.environment = dict(args[0])
        return None


class Group:
    """A replica group: what Ray Train calls a part of the workers."""

    def __init__(self, *workers: Worker) -> None:
        self._workers = workers

    def get_workers(self) -> list[Worker]:
        return list(self._workers)


class WholeGroup(Group):
    """All workers of Ray Train."""

    replaces: Any = ()

    def get_worker_group_context(self) -> None:
        pass

    def get_replica_groups(self) -> Any:
        return self.replaces


@pytest.fixture
def train(monkeypatch: pytest.MonkeyPatch) -> Iterator[Any]:
    """The module under test, with stand-ins for Ray."""
    killed: list[Any] = []
    util = types.SimpleNamespace(get_node_ip_address=lambda: "10.0.0.1")
    ray = types.SimpleNamespace(
        get=lambda what, timeout: what, util=util, kill=killed.append, killed=killed, __version__="2.60"
    )
    backend = types.SimpleNamespace(Backend=object, BackendConfig=object)
    for name, module in (("ray", ray), ("ray.train", types.SimpleNamespace()), ("ray.train.backend", backend)):
        monkeypatch.setitem(sys.modules, name, module)
    monkeypatch.delitem(sys.modules, "farandole.ray.train", raising=False)
    module = importlib.import_module("farandole.ray.train")
    Roster.made = []
    monkeypatch.setattr(module, "RosterThread", Roster)
    yield module
    sys.modules.pop("farandole.ray.train", None)


NAMES = ("FARANDOLE_RANK", "FARANDOLE_LOCAL_RANK", "CUDA_VISIBLE_DEVICES", "FARANDOLE_ELASTIC", "FARANDOLE_ROSTER")


def seen(worker: Worker) -> list[str | None]:
    return [worker.environment.get(name) for name in NAMES]


def test_workers_of_fixed_world_get_places_by_their_nodes(train: Any) -> None:
    config = train.FarandoleConfig()
    backend = config.backend_cls()
    workers = [Worker(1, "n", [1]), Worker(0, "n", [0]), Worker(2, "m", [0])]
    backend.on_start(WholeGroup(*workers), config)
    assert [seen(each) for each in workers] == [
        ["1", "1", "0,1", None, "10.0.0.1:7"],
        ["0", "0", "0,1", None, "10.0.0.1:7"],
        ["2", "0", "0", None, "10.0.0.1:7"],
    ]
    (roster,) = Roster.made
    assert isinstance(roster.state, FixedState) and roster.state.size == 3
    backend.on_start(WholeGroup(*workers), config)
    assert roster.closed and len(Roster.made) == 2, "a world of its own for each start"
    backend.on_shutdown(WholeGroup(*workers), config)
    assert Roster.made[1].closed


def test_replacement_is_a_newcomer_in_the_place_of_the_lost_worker(train: Any) -> None:
    config = train.FarandoleConfig(elastic=True)
    backend = config.backend_cls()
    first = [Worker(0, "n", [0]), Worker(1, "n", [1])]
    backend.on_start(WholeGroup(*first), config)
    (roster,) = Roster.made
    assert isinstance(roster.state, ElasticState)
    assert (roster.state.limits.min_size, roster.state.limits.max_size) == (1, 2)
    backend.on_shutdown(Group(first[0]), config)
    other = Worker(0, "m", [3])
    backend.on_start(Group(other), config)
    assert [seen(each) for each in (*first, other)] == [
        ["0", "0", "0,1", "1", "10.0.0.1:7"],
        ["1", "1", "0,1", "1", "10.0.0.1:7"],
        ["2", "0", "3", "1", "10.0.0.1:7"],
    ]
    why = "Ray Train has taken it to be lost, or it has failed"
    assert roster.events == [Expected(0, "host-n"), Expected(1, "host-n"), Evicted(0, why), Expected(2, "host-m")]
    assert not roster.closed and len(Roster.made) == 1
    backend.on_shutdown(WholeGroup(first[1], other), config)
    assert roster.closed


def test_worker_that_the_roster_excludes_is_killed(train: Any) -> None:
    config = train.FarandoleConfig(elastic=True)
    backend = config.backend_cls()
    backend.on_start(WholeGroup(Worker(0, "n"), Worker(1, "n")), config)
    Roster.made[0].evict(1)
    Roster.made[0].evict(9)
    assert sys.modules["ray"].killed == ["actor 1"]


def test_ray_that_cannot_replace_single_workers_is_refused(train: Any) -> None:
    config = train.FarandoleConfig(elastic=True)
    group = WholeGroup(Worker(0, "n"), Worker(1, "n"))
    group.replaces = None
    with pytest.raises(SpecError, match=r"Ray 2\.60 cannot replace single workers"):
        config.backend_cls().on_start(group, config)


def test_without_ray_train_the_next_step_is_told(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "ray.train.backend", None)
    monkeypatch.delitem(sys.modules, "farandole.ray.train", raising=False)
    with pytest.raises(SpecError, match=r"Ray Train is not installed \(hint: pip install 'farandole\[ray-train\]'\)"):
        importlib.import_module("farandole.ray.train")
