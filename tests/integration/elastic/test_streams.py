"""State that goes to newcomers while the others train, a parameter between any two steps.

Until then a newcomer takes the steps as a shadow. The replay takes the same steps in one process, without farandole,
and has to come to the same parameters.
"""

from __future__ import annotations

import os
import signal
from collections import Counter
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from elastic_worlds import ElasticJob
from fake_gpu_device import DEVICE, FakeGpu
from worlds import ANSWER_SECONDS, WorkerFailed, WorkerGone, wait_until

SAMPLES = 30
# Six parameters of the model and two beside it, one before each step, and one more where an epoch begins.
SHADOWED_STEPS = 5
STREAMING = {"FARANDOLE_ELASTIC_STATE_AT_ONCE": "0"}


# --- the training ----------------------------------------------------------------------------------------------------


class OfAllTogether(torch.optim.SGD):
    """Its step of a parameter follows from the others too."""

    def step(self, closure: Any = None) -> Any:
        weights = [parameter for group in self.param_groups for parameter in group["params"]]
        norm = torch.stack([weight.detach().norm() for weight in weights]).sum()
        result = super().step(closure)
        with torch.no_grad():
            for weight in weights:
                weight.mul_(1 - 0.001 / (1 + norm))
        return result


class Mean:
    """An average of all weights, which is state as well, and shares no memory with anything."""

    def __init__(self, model: Any) -> None:
        self.model, self.value = model, 0.0

    def update(self) -> None:
        self.value = 0.9 * self.value + sum(float(each.detach().sum()) for each in self.model.parameters())

    def state_dict(self) -> dict[str, float]:
        return {"value": self.value}

    def load_state_dict(self, state: dict[str, float]) -> None:
        self.value = state["value"]


def make_model() -> Any:
    """Return a model, the same in all processes; two of its places have the same weights."""
    import torch

    torch.manual_seed(7)
    middle = torch.nn.Linear(5, 5)
    model = torch.nn.Sequential(torch.nn.Linear(3, 5), torch.nn.Tanh(), middle, torch.nn.Tanh(), middle)
    return torch.nn.Sequential(model, torch.nn.Linear(5, 1)).double()


def make_optimizer(name: str, model: Any) -> Any:
    import torch

    if name == "of all together":
        return OfAllTogether(model.parameters(), lr=0.05)
    return torch.optim.AdamW(model.parameters(), lr=0.01)


def sample(index: int) -> Any:
    import torch

    inputs = torch.sin((index + 1) * torch.tensor([1.0, 2.0, 3.0], dtype=torch.float64))
    return inputs, torch.tensor([index / SAMPLES], dtype=torch.float64), index


def learn(folder: str, options: dict[str, Any]) -> dict[str, Any]:
    """Train until there is a file `stop`, and die where the options say so. Run by a worker."""
    import time
    from pathlib import Path

    import torch

    import farandole.torch as hvd
    from farandole.torch.elastic import stream
    from farandole.worker.core.basics import current
    from farandole.worker.elastic import pieces as transfer

    torch.set_num_threads(1)
    stream._LEAST_BYTES = stream._BYTES_PER_SECOND = 1
    device = options.get("device", "cpu")
    if device == DEVICE:
        FakeGpu.of_environment().load_for_farandole()
    hvd.init()
    session = current()
    worker = session.settings.rank
    model, beside = make_model().to(device), torch.nn.Linear(4, 3).to(device)
    with torch.no_grad():
        for parameter in [*model.parameters(), *beside.parameters()]:
            parameter.mul_(1 + 4 * worker)  # A worker that gets no state has wrong values.
    optimizer = hvd.DistributedOptimizer(make_optimizer(options["optimizer"], model), model.named_parameters())
    schedule = torch.optim.lr_scheduler.ExponentialLR(optimizer, 0.98)
    mean = Mean(model)
    things = {"model": model, "beside": beside, "optimizer": optimizer, "schedule": schedule, "mean": mean}
    loader = hvd.elastic.ElasticLoader([sample(index) for index in range(SAMPLES)], global_batch_size=8, seed=4)
    loop = hvd.elastic.steps(loader, epochs=10**6, **things)
    used: dict[int, tuple[int, list[int]]] = {}
    seen = {"shadow": 0, "sent again": 0}
    dies, when = options.get("deaths", {}).get(worker, ("", 0))
    calls: Counter[str] = Counter()

    def here(phase: str) -> None:
        calls[phase] += 1
        if (phase, calls[phase]) == (dies, when):
            os.kill(os.getpid(), signal.SIGKILL)

    def around(owner: Any, name: str, before: str, after: str) -> None:
        call = getattr(owner, name)

        def guarded(*arguments: Any, **more: Any) -> Any:
            here(before)
            result = call(*arguments, **more)
            here(after)
            return result

        setattr(owner, name, guarded)

    for name in ("send_some", "take", "finish"):
        around(stream.Stream, name, f"before {name}", f"after {name}")
    move, commit = transfer._move, loader.commit

    def count(session: Any, pieces: Any, numbers: Any, *others: Any) -> None:
        # All numbers are a range: then nothing was compared.
        seen["sent again"] += 0 if isinstance(numbers, range) else len(numbers)
        move(session, pieces, numbers, *others)

    def write_down(batch: Any, lost: Any = ()) -> None:
        shares = [share for rank, share in enumerate(batch.shares) if rank not in lost]
        if loop._worlds.has_state:
            ledger = loader.ledger
            used[loop.step] = ledger.epoch, [index for share in shares for index in ledger.indices(share)]
        commit(batch, lost)

    transfer._move, loader.commit = count, write_down
    calling = False
    for x, y, _ in loop:
        # On all ranks from the same step on. Behind the reduction it would not be: there one of them may have lost that
        # world already, if it has got the result of it from the others.
        calling = calling or hvd.size() == options.get("calls from size")
        seen["shadow"] += not loop._worlds.has_state
        here("begin" if loop._worlds.has_state else "shadow")
        if options.get("body fails") == worker and seen["shadow"] == 2:
            raise ValueError("the test wants it")
        optimizer.zero_grad()
        torch.nn.functional.mse_loss(model(x.to(device)), y.to(device)).backward()
        if options.get("clip"):
            optimizer.synchronize()
            torch.nn.utils.clip_grad_norm_(model.parameters(), 0.05)
            with optimizer.skip_synchronize():
                optimizer.step()
        else:
            optimizer.step()
        schedule.step()
        mean.update()
        if calling:
            value = hvd.allreduce(torch.tensor([float(loop._worlds.has_state)]), name="call")
            assert value == 1.0, "a worker without the state took part"
        if loop.step == 3:
            Path(folder, "go").touch()
        if loop._worlds.has_state and loop.step > 3:
            Path(folder, f"in-{worker}").touch()
        if Path(folder, "stop").exists() and loop._worlds.has_state:
            loop.stop()
        time.sleep(0.002)
    result = {
        "step": loop.step,
        "size": hvd.size(),
        "used": used,
        "parameters": [parameter.detach().cpu().clone() for parameter in model.parameters()],
        "state": repr([_plain(thing.state_dict()) for thing in things.values()]),
        **seen,
    }
    hvd.shutdown()
    return result


def _plain(value: Any) -> Any:
    if isinstance(value, torch.Tensor):
        return value.detach().cpu().double().numpy().tobytes().hex()
    if isinstance(value, dict):
        return {key: _plain(each) for key, each in value.items()}
    return value


def replay(steps: dict[int, tuple[int, list[int]]], options: dict[str, Any]) -> list[Any]:
    """Return the parameters after these steps, taken by one process."""
    model = make_model()
    optimizer = make_optimizer(options["optimizer"], model)
    schedule = torch.optim.lr_scheduler.ExponentialLR(optimizer, 0.98)
    for number in sorted(steps):
        optimizer.zero_grad()
        chosen = [sample(index) for index in steps[number][1]]
        x, y = torch.stack([each[0] for each in chosen]), torch.stack([each[1] for each in chosen])
        torch.nn.functional.mse_loss(model(x), y).backward()
        if options.get("clip"):
            torch.nn.utils.clip_grad_norm_(model.parameters(), 0.05)
        optimizer.step()
        schedule.step()
    return [parameter.detach().clone() for parameter in model.parameters()]


def check(results: list[dict[str, Any]], options: dict[str, Any]) -> None:
    """Compare all that was seen with each other and with the replay."""
    steps: dict[int, tuple[int, list[int]]] = {}
    for result in results:
        for step, used in result["used"].items():
            assert steps.setdefault(step, used) == used
        assert result["state"] == results[0]["state"]
        assert result["step"] == results[0]["step"]
    assert sorted(steps) == list(range(results[0]["step"]))
    last = max(epoch for epoch, _ in steps.values())
    for epoch in range(last + 1):
        found = Counter(index for in_epoch, indices in steps.values() if in_epoch == epoch for index in indices)
        assert found == Counter(range(SAMPLES)) or (epoch == last and found <= Counter(range(SAMPLES)))
    for mine, theirs in zip(results[0]["parameters"], replay(steps, options), strict=True):
        torch.testing.assert_close(mine, theirs, rtol=1e-9, atol=1e-9)


class Play:
    """A job of two workers, to which others come."""

    def __init__(self, job: ElasticJob, folder: Path, options: dict[str, Any]) -> None:
        self.job, self.folder, self.options = job, folder, options
        self.workers = job.add(2)
        job.start(learn, str(folder), options)
        wait_until(lambda: (folder / "go").exists())

    def add(self, count: int = 1) -> list[int]:
        """Start workers."""
        added = self.job.add(count)
        self.job.start(learn, str(self.folder), self.options, workers=added)
        self.workers += added
        return added

    def wait_for(self, *workers: int) -> None:
        """Wait until workers take steps with the state."""
        wait_until(lambda: all((self.folder / f"in-{worker}").exists() for worker in workers))

    def end(self) -> list[dict[str, Any]]:
        """Stop the training; return what the workers print that were not to die."""
        (self.folder / "stop").touch()
        results = self.job.collect_survivors(self.workers, self.options.get("deaths", ()))
        check(results, self.options)
        return results


# --- nothing goes wrong ----------------------------------------------------------------------------------------------


@pytest.mark.parametrize("clip", [False, True])
def test_received_state_follows_the_steps_of_the_others(
    clip: bool, make_job: Callable[..., ElasticJob], tmp_path: Path
) -> None:
    play = Play(make_job(STREAMING), tmp_path, {"optimizer": "adam", "clip": clip})
    play.wait_for(*play.add())
    results = play.end()
    assert [result["shadow"] for result in results[:2]] == [0, 0]
    assert results[2]["shadow"] >= SHADOWED_STEPS
    assert [result["sent again"] for result in results] == [0, 0, 0]


def test_state_goes_from_gpu_to_gpu_while_the_others_train(
    fake_gpu: FakeGpu, make_job: Callable[..., ElasticJob], tmp_path: Path
) -> None:
    variables = {**fake_gpu.environment(), "NCCL_MULTI_RANK_GPU_ENABLE": "1"}
    play = Play(make_job({**STREAMING, **variables}), tmp_path, {"optimizer": "adam", "device": DEVICE})
    play.wait_for(*play.add())
    results = play.end()
    assert results[2]["shadow"] >= SHADOWED_STEPS
    assert [result["sent again"] for result in results] == [0, 0, 0]


def test_several_newcomers_join_at_once(make_job: Callable[..., ElasticJob], tmp_path: Path) -> None:
    play = Play(make_job(STREAMING), tmp_path, {"optimizer": "adam"})
    play.wait_for(*play.add(3))
    assert {result["size"] for result in play.end()} == {5}


def test_pieces_of_state_that_change_during_the_transfer_are_sent_again(
    make_job: Callable[..., ElasticJob], tmp_path: Path
) -> None:
    play = Play(make_job(STREAMING), tmp_path, {"optimizer": "of all together"})
    play.wait_for(*play.add())
    results = play.end()
    assert all(result["sent again"] > 0 for result in results)


def test_a_small_state_comes_at_once(make_job: Callable[..., ElasticJob], tmp_path: Path) -> None:
    play = Play(make_job(), tmp_path, {"optimizer": "adam"})
    play.wait_for(*play.add())
    assert {result["shadow"] for result in play.end()} == {0}


def test_a_shadow_has_the_state_when_the_training_ends(make_job: Callable[..., ElasticJob], tmp_path: Path) -> None:
    play = Play(make_job(STREAMING), tmp_path, {"optimizer": "adam"})
    play.add()
    wait_until(lambda: len(play.job.service.world) == 3)
    assert len(play.end()) == 3


def test_more_newcomers_do_not_restart_the_transfer_of_state(
    make_job: Callable[..., ElasticJob], tmp_path: Path
) -> None:
    play = Play(make_job(STREAMING), tmp_path, {"optimizer": "adam"})
    first = play.add()
    wait_until(lambda: len(play.job.service.world) == 3)
    second = play.add()
    play.wait_for(*first, *second)
    play.end()


def test_a_worker_leaves_as_soon_as_its_state_is_handed_over(
    make_job: Callable[..., ElasticJob], tmp_path: Path
) -> None:
    play = Play(make_job(STREAMING), tmp_path, {"optimizer": "adam"})
    (added,) = play.add()
    wait_until(lambda: len(play.job.service.world) == 3)
    play.job.tell(play.job.service.drain, [0, 1], "the test wants it")
    for worker in (0, 1):
        with pytest.raises((WorkerGone, WorkerFailed)):
            play.job.workers[worker].receive()
        play.workers.remove(worker)
    play.wait_for(added)
    (tmp_path / "stop").touch()
    (result,) = play.job.collect([added])
    assert result["size"] == 1


# --- workers are lost ------------------------------------------------------------------------------------------------

DEATHS = {
    "the newcomer, as a shadow": {2: ("shadow", 3)},
    "the newcomer, before it gets a part": {2: ("before send_some", 3)},
    "the newcomer, when it has got a part": {2: ("after take", 2)},
    "the newcomer, before it has all": {2: ("before finish", 1)},
    "the newcomer, when it has all": {2: ("after finish", 1)},
    "rank 0, before it sends a part": {0: ("before send_some", 2)},
    "rank 0, when it has sent a part": {0: ("after send_some", 3)},
    "rank 0, before all is sent": {0: ("before finish", 1)},
    "rank 0, when all is sent": {0: ("after finish", 1)},
    "rank 1, when it has sent a part": {1: ("after send_some", 2)},
    "rank 1, before all is sent": {1: ("before finish", 1)},
    "rank 1, when all is sent": {1: ("after finish", 1)},
    "rank 1 in the middle, and the newcomer later": {1: ("after send_some", 2), 2: ("after take", 5)},
}


@pytest.mark.parametrize("name", DEATHS)
def test_survivors_continue_whichever_worker_is_lost(
    name: str, make_job: Callable[..., ElasticJob], tmp_path: Path
) -> None:
    options = {"optimizer": "adam", "clip": True, "deaths": DEATHS[name]}
    play = Play(make_job(STREAMING), tmp_path, options)
    play.add()
    for worker in DEATHS[name]:
        assert play.job.workers[worker].wait(ANSWER_SECONDS)
    # A worker that comes then has nothing to wait for.
    (last,) = play.add()
    play.wait_for(last, *(worker for worker in (0, 1, 2) if worker not in DEATHS[name]))
    assert {result["size"] for result in play.end()} == {4 - len(DEATHS[name])}


def test_a_body_that_fails_on_a_shadow_fails_there(make_job: Callable[..., ElasticJob], tmp_path: Path) -> None:
    play = Play(make_job(STREAMING), tmp_path, {"optimizer": "adam", "body fails": 2})
    (added,) = play.add()
    with pytest.raises(WorkerFailed, match="the test wants it"):
        play.job.workers[added].receive()
    play.job.kill(added)
    play.workers.remove(added)
    play.wait_for(*play.add())
    play.end()


def test_a_new_collective_before_the_state_has_arrived_is_refused(
    make_job: Callable[..., ElasticJob], tmp_path: Path
) -> None:
    play = Play(make_job(STREAMING), tmp_path, {"optimizer": "adam", "calls from size": 3})
    (added,) = play.add()
    with pytest.raises(WorkerFailed, match="made a collective for the first time while this worker was still getting"):
        play.job.workers[added].receive()
    play.job.kill(added)
    play.workers.remove(added)
    play.wait_for(*play.add())
    # From then on it is known that there are some, and the state comes at once.
    assert {result["shadow"] for result in play.end()} == {0}
