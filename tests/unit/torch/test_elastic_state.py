"""`TorchState`: models, optimizers, samplers and the rest, committed and given back in place."""

from __future__ import annotations

import copy
from collections import deque
from collections.abc import Iterator
from typing import Any

import pytest
import torch
from kinds_of_state import check_same, plain_kinds, torch_kinds

import farandole.torch as hvd
from farandole.torch.elastic.state import (
    ModelStateHandler,
    OptimizerStateHandler,
    SamplerStateHandler,
    StatefulHandler,
    StateHandler,
    TorchState,
    get_handler_registry,
    set_handler_registry,
)
from farandole.worker.elastic import world_changes
from farandole.worker.elastic.world_changes import Change


@pytest.fixture(autouse=True)
def world() -> Iterator[None]:
    hvd.init()
    yield
    hvd.shutdown()


class Training:
    """A model that can be trained a step at a time."""

    def __init__(self, kind: Any = torch.optim.Adam, distributed: bool = True) -> None:
        self.model = torch.nn.Sequential(torch.nn.Linear(3, 4), torch.nn.BatchNorm1d(4), torch.nn.Linear(4, 1))
        self.original = kind(self.model.parameters(), lr=0.1)
        self.optimizer = self.original
        if distributed:
            self.optimizer = hvd.DistributedOptimizer(self.original, self.model.named_parameters())

    def step(self) -> None:
        self.optimizer.zero_grad()
        self.model(torch.randn(5, 3)).pow(2).mean().backward()
        self.optimizer.step()

    def all(self) -> Any:
        """Return all that the training has."""
        return copy.deepcopy((self.model.state_dict(), self.optimizer.state_dict()))


def same(one: Any, other: Any) -> bool:
    if isinstance(one, torch.Tensor):
        return torch.equal(one, other)
    if isinstance(one, dict):
        return one.keys() == other.keys() and all(same(one[key], other[key]) for key in one)
    if isinstance(one, list | tuple):
        return len(one) == len(other) and all(map(same, one, other))
    return bool(one == other)


@pytest.mark.parametrize("kind", [torch.optim.Adam, torch.optim.Adagrad, torch.optim.SGD])
@pytest.mark.parametrize("distributed", [True, False])
def test_restore_goes_back_to_the_last_commit(kind: Any, distributed: bool) -> None:
    training = Training(kind, distributed)
    state = TorchState(training.model, training.optimizer, epoch=0)
    for _ in range(2):
        training.step()
    state.epoch = 1
    state.commit()
    committed = training.all()
    for _ in range(2):  # Twice: the first one's next steps must not change what is committed.
        training.step()
        state.epoch = 9
        assert not same(training.all(), committed)
        state.restore()
        assert same(training.all(), committed) and state.epoch == 1


def test_restore_goes_back_to_no_state_at_all() -> None:
    training = Training()
    state = TorchState(training.model, training.optimizer)
    before = training.all()
    training.step()
    state.restore()
    assert same(training.all(), before) and not training.optimizer.state


def test_restore_keeps_objects_that_others_hold() -> None:
    """A schedule of the wrapped optimizer, for example, and any other owner of its groups."""
    training = Training(torch.optim.SGD)
    state = TorchState(training.model, training.optimizer)
    (group,) = groups = training.original.param_groups
    training.step()
    group["lr"] = 0.5
    state.restore()
    assert training.optimizer.param_groups is groups and groups[0] is group
    assert group["lr"] == 0.1
    assert state.model is training.model and state.optimizer is training.optimizer


def test_restore_keeps_states_of_another_type_than_their_parameters() -> None:
    parameter = torch.nn.Parameter(torch.ones(2, dtype=torch.bfloat16))
    optimizer = torch.optim.SGD([parameter], lr=0.1)
    optimizer.state[parameter]["master"] = torch.full((2,), 1.0001)
    state = TorchState(optimizer=optimizer)
    optimizer.state[parameter]["master"].zero_()
    state.restore()
    assert torch.equal(optimizer.state[parameter]["master"], torch.full((2,), 1.0001))


def test_restore_keeps_types_and_containers() -> None:
    parameter = torch.nn.Parameter(torch.ones(2, dtype=torch.bfloat16))
    optimizer = torch.optim.SGD([parameter], lr=0.1)
    optimizer.state[parameter] = torch_kinds()
    optimizer.param_groups[0]["history"] = deque([1.0], maxlen=2)
    state = TorchState(optimizer=optimizer, more=plain_kinds())
    state.commit()
    optimizer.state[parameter].clear()
    state.more.clear()
    for _ in range(2):
        state.restore()
        check_same(optimizer.state[parameter], torch_kinds())
        check_same(optimizer.param_groups[0]["history"], deque([1.0], maxlen=2))
        check_same(state.more, plain_kinds())
    again = optimizer.state[parameter]
    assert again["again"] is again["Q"][0]


def test_restore_keeps_hooks_and_defaults_of_the_optimizer() -> None:
    """What PyTorch's loader does beside its casts: hooks see and change plain values, and old states are converted."""
    parameter = torch.nn.Parameter(torch.ones(2))
    optimizer = torch.optim.Adam([parameter], lr=0.1)
    optimizer.state[parameter] = {"step": 3.0, "exp_avg": torch.ones(2), "exp_avg_sq": torch.ones(2)}
    state = TorchState(optimizer=optimizer)
    seen = []
    optimizer.register_load_state_dict_pre_hook(lambda _, given: seen.append(given["state"][0]["step"]))
    optimizer.register_load_state_dict_post_hook(lambda loaded: seen.append(loaded.state[parameter]["step"]))
    state.restore()
    assert seen == [3.0, torch.tensor(3.0)]
    assert isinstance(optimizer.state[parameter]["step"], torch.Tensor)
    assert "__setstate__" not in vars(optimizer)


def test_restore_after_sync_goes_back_to_the_synced_state() -> None:
    training = Training()
    sampler = hvd.elastic.ElasticSampler(range(8))
    state = TorchState(training.model, training.optimizer, sampler=sampler, epoch=0)
    training.step()
    sampler.record_batch(0, 2)
    state.epoch = 3
    state.sync()
    synced = training.all()
    training.step()
    sampler.record_batch(1, 2)
    state.epoch = 4
    state.restore()
    assert same(training.all(), synced) and (state.epoch, sampler.processed_num, len(sampler)) == (3, 2, 6)


def test_schedules_are_committed_and_restored() -> None:
    training = Training(torch.optim.SGD)
    scheduler = torch.optim.lr_scheduler.ExponentialLR(training.optimizer, 0.5)
    state = TorchState(training.model, training.optimizer, scheduler=scheduler)
    training.step()
    scheduler.step()
    state.commit()
    training.step()
    scheduler.step()
    state.restore()
    assert (scheduler.last_epoch, training.optimizer.param_groups[0]["lr"]) == (1, 0.05)
    assert state.scheduler is scheduler and scheduler.optimizer is training.optimizer


def test_several_models_are_restored_by_keyword() -> None:
    models = [torch.nn.Linear(1, 1) for _ in range(2)]
    state = TorchState(generator=models[0], critic=models[1])
    assert state.model is None and state.optimizer is None
    before = [copy.deepcopy(model.state_dict()) for model in models]
    with torch.no_grad():
        for model in models:
            model.weight.add_(1)
    state.sync()
    state.restore()
    assert not any(same(model.state_dict(), old) for model, old in zip(models, before, strict=True))


# --- setting attributes ----------------------------------------------------------------------------------------------


def test_a_model_that_is_set_counts_as_committed() -> None:
    state = TorchState(torch.nn.Linear(1, 1))
    model = torch.nn.Linear(2, 2)
    before = copy.deepcopy(model.state_dict())
    state.model = model
    with torch.no_grad():
        model.weight.add_(1)
    state.restore()
    assert state.model is model and same(model.state_dict(), before)


def test_attributes_may_change_their_kind() -> None:
    state = TorchState(epoch=0)
    state.model = model = torch.nn.Linear(1, 1)
    state.commit()
    with torch.no_grad():
        model.weight.add_(1)
    state.restore()
    weight = model.weight.item()
    state.model = None
    state.commit()
    state.model = "another"
    state.restore()
    assert state.model is None and model.weight.item() == weight


def test_names_of_methods_are_refused_as_attributes() -> None:
    with pytest.raises(ValueError, match="'restore'"):
        TorchState(restore=1)


# --- handlers --------------------------------------------------------------------------------------------------------


class Counter:
    def __init__(self) -> None:
        self.count = 0


class CounterHandler(StateHandler):
    def __init__(self, value: Counter) -> None:
        super().__init__(value)
        self.save()

    def save(self) -> None:
        self.saved = self.value.count

    def restore(self) -> None:
        self.value.count = self.saved

    def sync(self) -> None:
        self.value.count = hvd.broadcast_object(self.value.count)


def test_registered_handler_commits_and_restores_its_kind_of_object() -> None:
    registry = get_handler_registry()
    kinds = [handler for _, handler in registry]
    assert kinds == [ModelStateHandler, OptimizerStateHandler, SamplerStateHandler, StatefulHandler]
    set_handler_registry([*registry, (Counter, CounterHandler)])
    try:
        counter = Counter()
        state = TorchState(counter=counter)
    finally:
        set_handler_registry(registry)
    counter.count = 3
    state.commit()
    counter.count = 4
    state.on_reset()
    state.restore()
    assert state.counter is counter and counter.count == 3


def test_handler_without_methods_raises_not_implemented() -> None:
    handler = StateHandler(1)
    for method in (handler.save, handler.restore, handler.sync):
        with pytest.raises(NotImplementedError):
            method()


# --- new worlds ------------------------------------------------------------------------------------------------------


def test_reset_shares_out_the_remaining_samples_again(monkeypatch: pytest.MonkeyPatch) -> None:
    sampler = hvd.elastic.ElasticSampler(range(8))
    state = TorchState(sampler=sampler)
    lengths: list[int] = []
    state.register_reset_callbacks([lambda: lengths.append(len(sampler))])
    monkeypatch.setattr("farandole.torch.elastic.sampler.size", lambda: 2)
    sampler.record_batch(0, 2)
    state.on_reset()
    assert lengths == [3]


def test_commit_raises_when_the_world_is_about_to_change(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(world_changes, "is_elastic", lambda: True)
    monkeypatch.setattr(world_changes, "pending_change", lambda: Change(1, 0, "one waits"))
    monkeypatch.setattr(world_changes, "coming", lambda: 0)
    with pytest.raises(hvd.elastic.HostsUpdatedInterrupt):
        TorchState(epoch=0).commit()
