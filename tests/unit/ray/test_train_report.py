"""Reports to Ray Train while its workers are replaced, without Ray."""

from __future__ import annotations

import sys
import types
from typing import Any

import pytest

import farandole.ray
from farandole.errors import NotInitializedError, WorkerLostError
from farandole.worker.core import basics

CONTEXT = "ray.train.v2._internal.execution.context"


class Train:
    """Stands for `ray.train` in a worker of two, whose world has some size."""

    def __init__(self, size: int) -> None:
        self.size = size
        self.drops = self.is_broken = False
        self.report_call_index = 0
        self.taken: list[tuple[dict[str, Any], Any]] = []

    def get_context(self) -> Any:
        return types.SimpleNamespace(get_world_size=lambda: 2)

    def report(self, metrics: dict[str, Any], checkpoint: Any = None) -> None:
        if not self.drops:
            self.report_call_index += 1
            self.taken.append((metrics, checkpoint))

    def check_health(self) -> None:
        if self.is_broken:
            raise WorkerLostError("rank 1 was lost")


@pytest.fixture
def train(monkeypatch: pytest.MonkeyPatch) -> Train:
    made = Train(2)
    modules = {"ray": types.SimpleNamespace(train=made), "ray.train": made}
    modules[CONTEXT] = types.SimpleNamespace(get_train_context=lambda: made)
    for name, module in modules.items():
        monkeypatch.setitem(sys.modules, name, module)
    monkeypatch.setattr(basics, "current", lambda: types.SimpleNamespace(engine=made))
    monkeypatch.setattr(basics, "size", lambda: made.size)
    return made


def test_report_of_a_whole_world_is_taken(train: Train) -> None:
    assert farandole.ray.report({"loss": 0.5}, "checkpoint")
    assert train.taken == [({"loss": 0.5}, "checkpoint")]


def test_nothing_is_reported_while_a_worker_is_missing(train: Train) -> None:
    train.size = 1
    assert not farandole.ray.report({"loss": 0.5})
    train.size, train.is_broken = 2, True
    assert not farandole.ray.report({"loss": 0.5}), "its loss is known, though there is no next world yet"
    assert train.taken == []


def test_report_that_ray_drops_is_not_taken(train: Train) -> None:
    train.drops = True
    assert not farandole.ray.report({"loss": 0.5})


def test_ray_that_does_not_tell_is_believed(train: Train, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delitem(sys.modules, CONTEXT)
    assert farandole.ray.report({"loss": 0.5})


def test_worker_without_world_is_told_to_call_init(train: Train, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.undo()
    monkeypatch.setitem(sys.modules, "ray", types.SimpleNamespace(train=train))
    monkeypatch.setitem(sys.modules, "ray.train", train)
    with pytest.raises(NotInitializedError):
        farandole.ray.report({"loss": 0.5})
