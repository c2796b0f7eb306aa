"""The loop of steps in worlds of real processes, compared with one process that takes the same steps alone.

Each worker writes down which samples each step has used; the replay computes the gradient of the mean over those, in
one process without farandole, and has to come to the same parameters.
"""

from __future__ import annotations

import os
import signal
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from elastic_worlds import ElasticJob
from worlds import Nursery, WorkerFailed, World, wait_until

SAMPLES = 22


# --- the training ----------------------------------------------------------------------------------------------------


def make_model(kind: str = "dense") -> Any:
    """Return a model, the same in all processes."""
    import torch

    torch.manual_seed(7)
    if kind == "sparse":
        return torch.nn.Sequential(
            torch.nn.Embedding(SAMPLES, 3, sparse=True), torch.nn.Flatten(), torch.nn.Linear(3, 1)
        ).double()
    model = torch.nn.Sequential(torch.nn.Linear(3, 5), torch.nn.Tanh(), torch.nn.Linear(5, 1))
    return model if kind == "float" else model.double()


def samples_of(kind: str = "dense") -> list[Any]:
    """Return all samples: input, target and number."""
    import torch

    numbers = torch.arange(SAMPLES)
    inputs = (
        numbers if kind == "sparse" else torch.sin(torch.outer(numbers + 1.0, torch.tensor([1.0, 2.0, 3.0]))).double()
    )
    targets = torch.arange(SAMPLES).double()[:, None] / SAMPLES
    if kind == "float":
        inputs, targets = inputs.float(), targets.float()
    return [(inputs[index], targets[index], index) for index in range(SAMPLES)]


def make_optimizer(name: str, parameters: Any) -> Any:
    import torch

    if name == "adam":
        return torch.optim.Adam(parameters, lr=0.01)
    if name == "old style":
        return _OldStyle(parameters, lr=0.05)
    return torch.optim.SGD(parameters, lr=0.05, momentum=0.0 if name == "sgd" else 0.9)


class _OldStyle(torch.optim.SGD):
    """Adds the decay to the gradients themselves, as optimizers did before PyTorch 1.5."""

    def step(self, closure: Any = None) -> Any:
        for group in self.param_groups:
            for parameter in group["params"]:
                parameter.grad.data.add_(parameter.data, alpha=0.1)
        return super().step(closure)


def parameters_of(model: Any) -> Any:
    return [parameter.detach().clone() for parameter in model.parameters()]


def train(options: dict[str, Any]) -> dict[str, Any]:
    """Train, and die where the options say so. Run by a worker."""
    import time

    import torch

    import farandole.torch as hvd
    from farandole.core.basics import current
    from farandole.elastic import world_changes

    torch.set_num_threads(1)
    hvd.init()
    worker = current().settings.rank
    kind = options.get("model", "dense")
    model = make_model(kind)
    if options.get("strangers", True):
        with torch.no_grad():
            for parameter in model.parameters():
                parameter.mul_(1.0 if worker == 0 else 5.0)  # Whoever gets no state goes wrong.
    death = options.get("deaths", {}).get(worker)
    loop: Any = None

    def die_at(phase: str) -> None:
        if death is not None and loop is not None and (loop.step, phase) == tuple(death):
            os.kill(os.getpid(), signal.SIGKILL)

    def will_have(size: int) -> bool:
        change = world_changes.pending_change()
        return change is not None and hvd.size() + change.added == size

    samples = samples_of(kind)

    class Dataset:
        def __len__(self) -> int:
            return len(samples)

        def __getitem__(self, index: int) -> Any:
            die_at("reading")
            return samples[index]

    plain = make_optimizer(options.get("optimizer", "sgd"), model.parameters())
    how = {"compression": getattr(hvd.Compression, options.get("compression", "none"))}
    for name in ("groups", "sparse_as_dense", "backward_passes_per_step"):
        how |= {name: options[name]} if name in options else {}
    optimizer = hvd.DistributedOptimizer(plain, model.named_parameters(), **how)
    things = {"model": model, "optimizer": optimizer}
    if options.get("schedule"):
        things["schedule"] = torch.optim.lr_scheduler.StepLR(optimizer, 2, 0.5)
    batch = options.get("batch", {"global_batch_size": 6})
    loader = hvd.elastic.ElasticLoader(Dataset(), **batch)
    rate = options.get("rate")
    loop = hvd.elastic.steps(loader, epochs=options.get("epochs", 2), rate=rate, **things)
    first = next(model.parameters())
    first.register_hook(lambda gradient: die_at("backward"))
    used: dict[int, list[int]] = {}
    rates: dict[int, float] = {}
    _write_down(loop, used, rates, optimizer)
    lagging = _Lagging(options["lag"], worker, loop, optimizer._reducer) if "lag" in options else None
    sums = []
    for x, y, _ in loop:
        while loop.step == options.get("waits_at") and not will_have(options["until"]):
            time.sleep(0.01)
        die_at("begin")
        optimizer.zero_grad(set_to_none=not options.get("zeroes in place"))
        loss = torch.nn.functional.mse_loss(model(x), y)
        for call in options.get("calls", ()):
            sums.append(_make(call, loss, loop.step))
        if options.get("stop") == (worker, loop.step):
            loop.stop()
        for share in _in_parts(loss, model, x, y, options.get("backward_passes_per_step", 1)):
            share.backward()
        if options.get("stop late") == (worker, loop.step):
            loop.stop()
        die_at("before step")
        if options.get("clip"):
            optimizer.synchronize()
            torch.nn.utils.clip_grad_norm_(model.parameters(), 0.05)
            with optimizer.skip_synchronize():
                optimizer.step()
        else:
            optimizer.step()
        die_at("after step")
        if options.get("changes") == loop.step:
            for parameter in model.parameters():
                parameter.grad.mul_(2)
        if options.get("schedule"):
            things["schedule"].step()
    result = {
        "step": loop.step,
        "size": hvd.size(),
        "used": used,
        "rates": rates,
        "parameters": parameters_of(model),
        "handed over": lagging is not None and lagging.was_handed_over,
        "state": [value for each in optimizer.state_dict()["state"].values() for value in each.values()],
    }
    hvd.shutdown()
    return result


def _in_parts(loss: Any, model: Any, x: Any, y: Any, parts: int) -> Any:
    """Return the loss; or, if its gradients are to be accumulated, that of each part of the batch, weighted."""
    import torch

    if parts == 1:
        return [loss]
    pairs = zip(x.chunk(parts), y.chunk(parts), strict=True)
    return (torch.nn.functional.mse_loss(model(a), b) * (len(a) / len(x)) for a, b in pairs)


class _Lagging:
    """In one step the gradients get to all workers but one, and a worker dies when they have."""

    def __init__(self, options: dict[str, Any], worker: int, loop: Any, reducer: Any) -> None:
        self._options, self._worker, self._loop, self._reducer = options, worker, loop, reducer
        self._is_over = self.was_handed_over = False
        self._run_out, self._load = reducer._run_out, reducer._reduced.load_state_dict
        reducer._run_out, reducer._reduced.load_state_dict = self._wait, self._take

    def _wait(self) -> Any:
        import time
        from pathlib import Path

        from farandole.core.basics import current
        from farandole.errors import WorkerLostError

        error = self._run_out()
        if self._loop.step != self._options["step"] or self._is_over:
            return error
        self._is_over = True
        got = Path(self._options["got"])
        assert error is None or self._worker == self._options["lags"]
        if self._worker == self._options["dies"]:
            while not got.exists():
                time.sleep(0.005)
            os.kill(os.getpid(), signal.SIGKILL)
        if self._worker != self._options["lags"]:
            got.touch()
            return None
        if error is not None:
            return error  # It has really lagged: the other one was dead before this one had everything.
        while current().engine.cause() is None:
            time.sleep(0.005)
        self._lose()
        return WorkerLostError("the test wants it")

    def _lose(self) -> None:
        for bundle in self._reducer._all_bundles():
            bundle.broken = True
            for entry in bundle.entries:
                entry.parameter.grad = None
                if entry.in_view is not None:
                    entry.in_view.fill_(float("nan"))

    def _take(self, state: Any) -> None:
        self._load(state)
        self.was_handed_over = True


def _write_down(loop: Any, used: dict[int, list[int]], rates: dict[int, float], optimizer: Any) -> None:
    loader = loop._loader
    commit = loader.commit

    def write_down(batch: Any, lost: Any = ()) -> None:
        shares = [share for rank, share in enumerate(batch.shares) if rank not in lost]
        used[loop.step] = [index for share in shares for index in loader.ledger.indices(share)]
        rates[loop.step] = optimizer.param_groups[0]["lr"]
        commit(batch, lost)

    loader.commit = write_down


def _make(call: str, loss: Any, step: int) -> Any:
    """Make a call that all ranks make; its result is as it should be in a world of any size."""
    import torch

    import farandole.torch as hvd

    value = torch.tensor([float(step)])
    if call == "allreduce":
        return float(hvd.allreduce(value, name="call"))
    if call == "allreduce_":
        return float(hvd.allreduce_(value, name="call"))
    if call == "grouped":
        return float(hvd.grouped_allreduce([value, value], name="call")[1])
    if call == "broadcast_":
        return float(hvd.broadcast_(value, 0, name="call"))
    if call == "allgather":
        return float(hvd.allgather(value, name="call").mean())
    return float(hvd.broadcast_object(step, 0, name="call"))


def replay(steps: dict[int, list[int]], options: dict[str, Any], rates: Any = None) -> list[Any]:
    """Return the parameters after these steps, taken by one process."""
    kind = options.get("model", "dense")
    model, samples = make_model(kind), samples_of(kind)
    optimizer = make_optimizer(options.get("optimizer", "sgd"), model.parameters())
    schedule = torch.optim.lr_scheduler.StepLR(optimizer, 2, 0.5) if options.get("schedule") else None
    for number in sorted(steps):
        optimizer.zero_grad()
        chosen = [samples[index] for index in steps[number]]
        x, y = torch.stack([each[0] for each in chosen]), torch.stack([each[1] for each in chosen])
        torch.nn.functional.mse_loss(model(x), y).backward()
        if options.get("clip"):
            torch.nn.utils.clip_grad_norm_(model.parameters(), 0.05)
        for group in optimizer.param_groups:
            group["lr"] = group["lr"] if rates is None else rates[number]
        optimizer.step()
        if schedule is not None:
            schedule.step()
    return parameters_of(model)


def run(job: ElasticJob, options: dict[str, Any], count: int = 3) -> list[dict[str, Any]]:
    """Run a training to its end, and return what those say who were not to die."""
    workers = job.add(count)
    job.start(train, options)
    return collect(job, workers, options)


def collect(job: ElasticJob, workers: list[int], options: dict[str, Any]) -> list[dict[str, Any]]:
    """Return what became of the workers that were not to die."""
    return job.collect_survivors(workers, options.get("deaths", ()))


def check(results: list[dict[str, Any]], options: dict[str, Any], tolerance: float = 1e-9, rates: Any = None) -> None:
    """Compare all that was seen with each other and with the replay."""
    steps: dict[int, list[int]] = {}
    for result in results:
        for step, used in result["used"].items():
            assert steps.setdefault(step, used) == used
        assert all(map(torch.equal, result["parameters"], results[0]["parameters"]))
        assert all(map(torch.equal, map(torch.as_tensor, result["state"]), map(torch.as_tensor, results[0]["state"])))
    assert sorted(steps) == list(range(results[0]["step"]))
    used = sorted(index for indices in steps.values() for index in indices)
    assert used == sorted(list(range(SAMPLES)) * options.get("epochs", 2))
    for mine, theirs in zip(results[0]["parameters"], replay(steps, options, rates), strict=True):
        torch.testing.assert_close(mine, theirs, rtol=tolerance, atol=tolerance)


# --- nothing happens -------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("size", [1, 3])
def test_an_undisturbed_training_is_that_of_a_fixed_job_bit_by_bit(
    nursery: Nursery, make_job: Callable[..., ElasticJob], size: int
) -> None:
    options = {"optimizer": "adam", "calls": ("allreduce",)}
    elastic = run(make_job(), options, size)
    check(elastic, options)
    world = World(nursery, size)
    try:
        # Here nobody gives the state to the others, so they begin alike.
        fixed = world.run(train, options | {"strangers": False})
    finally:
        world.close()
    check(fixed, options)
    assert all(map(torch.equal, elastic[0]["parameters"], fixed[0]["parameters"]))


def reduce_among_some() -> tuple[int, float]:
    """Train in a loop whose optimizer reduces over two ranks of three. Run by a worker."""
    import torch

    import farandole.torch as hvd

    pair = hvd.ProcessSet([0, 1])
    hvd.init(process_sets=[pair])
    weight = torch.nn.Parameter(torch.zeros(1))
    optimizer = hvd.DistributedOptimizer(torch.optim.SGD([weight], lr=1.0), [("weight", weight)], process_set=pair)
    loader = hvd.elastic.ElasticLoader(range(12), global_batch_size=3, shuffle=False)
    loop = hvd.elastic.steps(loader, optimizer=optimizer)
    for (number,) in loop:
        optimizer.zero_grad()
        (weight * float(number)).sum().backward()
        optimizer.step()
    hvd.shutdown()
    return loop.step, float(weight)


def test_an_optimizer_of_some_ranks_in_a_fixed_world(nursery: Nursery) -> None:
    world = World(nursery, 3)
    try:
        # Samples 0, 3, 6 and 9 are rank 0's, and so on.
        assert world.run(reduce_among_some) == [(4, -20.0), (4, -20.0), (4, -26.0)]
    finally:
        world.close()


def test_alone_without_any_launcher(nursery: Nursery) -> None:
    worker = nursery.fork({})
    try:
        from worlds import ship

        ship(train)
        worker.send(train, ({},))
        check([worker.receive()], {})
    finally:
        worker.close()


KINDS = {
    "few samples": {"batch": {"global_batch_size": 2}},
    "few samples and a schedule": {"batch": {"global_batch_size": 2}, "schedule": True},
    "few samples and calls": {"batch": {"global_batch_size": 2}, "calls": ("allreduce", "allgather")},
    "samples of each worker": {"batch": {"batch_size": 2}},
    "sparse": {"model": "sparse"},
    "sparse as dense": {"model": "sparse", "sparse_as_dense": True},
    "groups": {"groups": 2},
    "clipped": {"clip": True},
    "accumulated": {"backward_passes_per_step": 2},
    "accumulated of few samples": {"backward_passes_per_step": 3, "batch": {"global_batch_size": 5}, "groups": 1},
    "accumulated in place": {"backward_passes_per_step": 2, "zeroes in place": True, "optimizer": "momentum"},
    "schedule": {"schedule": True, "optimizer": "momentum"},
    "reading processes": {"batch": {"global_batch_size": 6, "num_workers": 1}},
}


@pytest.mark.parametrize("name", KINDS)
def test_all_kinds_of_trainings_survive_a_worker(name: str, make_job: Callable[..., ElasticJob]) -> None:
    options = {**KINDS[name], "deaths": {1: (2, "backward")}}
    check(run(make_job(), options, 4), options)


@pytest.mark.parametrize("phase", ["begin", "reading", "backward", "before step", "after step"])
def test_a_step_that_is_done_again_is_the_mean_over_the_samples_that_are_left(
    phase: str, make_job: Callable[..., ElasticJob]
) -> None:
    options = {"optimizer": "adam", "calls": ("allreduce",), "deaths": {0: (1, phase), 2: (3, phase)}}
    check(run(make_job(), options, 4), options)


@pytest.mark.parametrize("kind", [{}, {"backward_passes_per_step": 2}])
def test_without_kept_gradients_the_batch_is_given_out_again(
    kind: dict[str, Any], make_job: Callable[..., ElasticJob]
) -> None:
    options = {"optimizer": "momentum", "deaths": {1: (1, "before step"), 2: (2, "backward")}, **kind}
    check(run(make_job({"FARANDOLE_ELASTIC_KEEP_GRADIENTS": "0"}), options, 4), options)


@pytest.mark.parametrize(("compression", "tolerance"), [("bf16", 0.01), ("int8", 0.05)])
def test_compressed_gradients(compression: str, tolerance: float, make_job: Callable[..., ElasticJob]) -> None:
    options = {"model": "float", "compression": compression, "deaths": {1: (2, "before step")}}
    check(run(make_job(), options), options, tolerance)


CALLS = ("allreduce", "allreduce_", "grouped", "broadcast_", "allgather", "broadcast_object")


def test_calls_of_the_body_survive_workers(make_job: Callable[..., ElasticJob]) -> None:
    options = {"calls": CALLS, "deaths": {0: (1, "begin"), 2: (3, "before step"), 3: (5, "backward")}}
    check(run(make_job(), options, 5), options)


def test_any_rank_stops_all(nursery: Nursery, make_job: Callable[..., ElasticJob]) -> None:
    options = {"stop": (1, 2)}
    assert [result["step"] for result in run(make_job(), options)] == [3, 3, 3]
    world = World(nursery, 2)
    try:
        assert [result["step"] for result in world.run(train, options)] == [3, 3]
    finally:
        world.close()


def test_who_stops_with_gradients_on_their_way_stops_after_the_next_step(make_job: Callable[..., ElasticJob]) -> None:
    assert [result["step"] for result in run(make_job(), {"stop late": (1, 2)})] == [4, 4, 4]


# --- who has not got what the others have ----------------------------------------------------------------------------


LAGGING: dict[str, dict[str, Any]] = {
    "in places": {"optimizer": "adam"},
    "schedule": {"schedule": True, "optimizer": "momentum"},
    "sparse": {"model": "sparse"},
    "sparse as dense": {"model": "sparse", "sparse_as_dense": True},
    "compressed": {"model": "float", "compression": "bf16"},
    "clipped": {"clip": True},
    "accumulated in place": {"backward_passes_per_step": 2, "zeroes in place": True, "optimizer": "momentum"},
    "zeroed in place": {"zeroes in place": True},
    "changed unseen": {"optimizer": "old style"},
    "calls": {"calls": ("allreduce",)},
}


@pytest.mark.parametrize("step", [0, 1, 2, 4])
@pytest.mark.parametrize("name", LAGGING)
def test_who_lacks_the_gradients_gets_them_from_the_others(
    name: str, step: int, make_job: Callable[..., ElasticJob], tmp_path: Path
) -> None:
    lag = {"step": step, "lags": 1, "dies": 2, "got": str(tmp_path / "got")}
    options = {**LAGGING[name], "lag": lag, "deaths": {2: None}}
    results = run(make_job(), options, 3)
    assert [result["handed over"] for result in results] == [False, True]
    check(results, options, 0.01 if "compression" in options else 1e-9)
    # The dead worker's part is in the result.
    assert len(results[0]["used"][step]) == 6


def test_who_keeps_no_gradients_of_its_own_gets_them_too(make_job: Callable[..., ElasticJob], tmp_path: Path) -> None:
    lag = {"step": 2, "lags": 1, "dies": 2, "got": str(tmp_path / "got")}
    options = {"lag": lag, "deaths": {2: None}}
    results = run(make_job({"FARANDOLE_ELASTIC_KEEP_GRADIENTS": "0"}), options, 3)
    assert [result["handed over"] for result in results] == [False, True]
    check(results, options)


def test_who_cannot_get_the_gradients_any_more_has_to_go(make_job: Callable[..., ElasticJob], tmp_path: Path) -> None:
    lag = {"step": 3, "lags": 1, "dies": 2, "got": str(tmp_path / "got")}
    options = {"lag": lag, "deaths": {1: None, 2: None}, "changes": 3}
    job = make_job()
    job.add(3)
    job.start(train, options)
    with pytest.raises(WorkerFailed, match="cannot give it the result"):
        job.workers[1].receive()
    job.workers[1].kill(signal.SIGKILL)
    (result,) = job.collect([0])
    check([result], options)


# --- growing and shrinking -------------------------------------------------------------------------------------------


def test_a_world_shrinks_to_one_and_grows_again(make_job: Callable[..., ElasticJob]) -> None:
    from farandole.elastic.batches import LinearScaling

    options = {
        "optimizer": "adam",
        "batch": {"batch_size": 2},
        "rate": LinearScaling(),
        "epochs": 4,
        "deaths": {0: (1, "begin"), 1: (2, "backward")},
        "waits_at": 6,
        "until": 3,
    }
    job = make_job()
    workers = job.add(3)
    job.start(train, options)
    wait_until(lambda: job.service.world == (2,))
    new = job.add(2)
    job.start(train, options, workers=new)
    results = collect(job, [*workers, *new], options)
    assert {result["size"] for result in results} == {3}
    rates = results[0]["rates"]
    assert {round(rate / 0.01, 6) for rate in rates.values()} >= {1.0, round(1 / 3, 6)}
    check(results, options, rates=rates)


# --- the state -------------------------------------------------------------------------------------------------------


def grow(go: str) -> list[Any]:
    """Train, beside a large model with all sorts of state, until the world has two workers; return the whole state."""
    import hashlib
    from pathlib import Path

    import torch

    import farandole.torch as hvd
    from farandole.core.basics import current

    torch.set_num_threads(1)
    hvd.init()
    worker = current().settings.rank
    torch.manual_seed(worker)
    model = torch.nn.Sequential(torch.nn.Linear(4, 3), torch.nn.Linear(3, 1))
    large = torch.nn.Linear(1_500_000, 2)
    large.register_buffer("nothing", torch.empty(0, 3))
    large.register_buffer("number", torch.tensor(worker, dtype=torch.int16))
    optimizer = hvd.DistributedOptimizer(torch.optim.Adam(model.parameters(), lr=0.01), model.named_parameters())
    schedule = torch.optim.lr_scheduler.ExponentialLR(optimizer, 0.9)
    loader = hvd.elastic.ElasticLoader(torch.ones(1000, 4), batch_size=2)
    things = {"model": model, "large": large, "optimizer": optimizer, "schedule": schedule}
    loop = hvd.elastic.steps(loader, epochs=100, **things)
    for x in loop:
        optimizer.zero_grad()
        model(x).square().mean().backward()
        if hvd.size() == 2:
            loop.stop()
        optimizer.step()
        schedule.step()
        Path(go).touch()

    def digest(value: Any) -> Any:
        if isinstance(value, torch.Tensor):
            return value.dtype, value.shape, hashlib.sha256(value.numpy().tobytes()).hexdigest()
        if isinstance(value, dict):
            return {key: digest(each) for key, each in value.items()}
        return value

    return [digest(thing.state_dict()) for thing in things.values()]


def test_a_newcomer_gets_the_whole_state_bit_by_bit(make_job: Callable[..., ElasticJob], tmp_path: Any) -> None:
    job = make_job()
    first = job.add()
    job.start(grow, str(tmp_path / "go"))
    wait_until(lambda: (tmp_path / "go").exists())
    second = job.add()
    job.start(grow, str(tmp_path / "go"), workers=second)
    one, other = job.collect([*first, *second])
    assert repr(one) == repr(other)


def lose_state(directory: str, checkpoints: bool) -> int:
    """Train; the worker that holds the state dies while a newcomer waits. Return with which step this one began."""
    import time
    from pathlib import Path

    import torch

    import farandole.torch as hvd
    from farandole.core.basics import current
    from farandole.torch.elastic.checkpoint import Checkpoint

    hvd.init()
    first = current().settings.rank == 0
    model = torch.nn.Linear(2, 1)
    optimizer = hvd.DistributedOptimizer(torch.optim.SGD(model.parameters(), lr=0.1), model.named_parameters())
    loader = hvd.elastic.ElasticLoader(torch.ones(40, 2), batch_size=2)
    checkpoint = Checkpoint(directory, every_steps=1, wait_if_busy=True) if checkpoints else None
    loop = hvd.elastic.steps(loader, checkpoint=checkpoint, model=model, optimizer=optimizer)
    begun = None
    for x in loop:
        begun = loop.step if begun is None else begun
        optimizer.zero_grad()
        model(x).mean().backward()
        if first and loop.step == 5:
            Path(directory, "go").touch()
            while not Path(directory, "die").exists():
                time.sleep(0.01)
            os.kill(os.getpid(), signal.SIGKILL)
        optimizer.step()
    assert begun is not None
    return begun


@pytest.mark.parametrize("checkpoints", [False, True])
def test_a_state_that_is_lost_comes_from_a_checkpoint_or_not_at_all(
    checkpoints: bool, make_job: Callable[..., ElasticJob], tmp_path: Any
) -> None:
    job = make_job({"FARANDOLE_RESUME": "auto"})
    job.add()
    job.start(lose_state, str(tmp_path), checkpoints)
    wait_until(lambda: (tmp_path / "go").exists())
    second = job.add()
    job.start(lose_state, str(tmp_path), checkpoints, workers=second)
    wait_until(lambda: len(job.service.newcomers) == 1)
    (tmp_path / "die").touch()
    if checkpoints:
        # That of the last step may not have been complete.
        assert job.collect(second)[0] in (4, 5)
    else:
        with pytest.raises(WorkerFailed, match=r"StateLostError.*--checkpoint-dir"):
            job.collect(second)


def train_without_the_first() -> int:
    """Train; worker 0 dies as soon as it has told the roster that it holds the state, and others know of none yet."""
    import time

    import torch

    import farandole.torch as hvd
    from farandole.core.session import Session
    from farandole.errors import WorkerLostError
    from farandole.wire.roster_client import RosterClient

    torch.set_num_threads(1)
    worker = int(os.environ["FARANDOLE_WORKER"])
    exchange, report = Session.exchange, RosterClient.report_state

    def report_and_die(roster: Any, training: int = 0) -> None:
        report(roster, training)
        if worker == 0:
            os.kill(os.getpid(), signal.SIGKILL)

    def exchange_too_late(session: Any, name: str, payload: bytes) -> list[bytes]:
        result = exchange(session, name, payload)
        if name == "elastic.progress" and worker > 0 and session.world.generation == 1:
            while session.engine.cause() is None:
                time.sleep(0.01)
            raise WorkerLostError(str(session.engine.cause()))
        return result

    RosterClient.report_state, Session.exchange = report_and_die, exchange_too_late  # type: ignore[method-assign]
    hvd.init()
    model = torch.nn.Linear(2, 1)
    optimizer = hvd.DistributedOptimizer(torch.optim.SGD(model.parameters(), lr=0.1), model.named_parameters())
    loader = hvd.elastic.ElasticLoader(torch.ones(20, 2), batch_size=2)
    loop = hvd.elastic.steps(loader, model=model, optimizer=optimizer)
    for x in loop:
        optimizer.zero_grad()
        model(x).mean().backward()
        optimizer.step()
    hvd.shutdown()
    return loop.step


def test_a_state_with_which_no_step_was_taken_is_no_loss(make_job: Callable[..., ElasticJob]) -> None:
    job = make_job()
    workers = job.add(3)
    job.start(train_without_the_first)
    assert job.collect(workers[1:]) == [5, 5]


# --- misuse ----------------------------------------------------------------------------------------------------------


def misuse(which: str) -> str:
    """Ask for steps in a wrong way; return what it is told."""
    import torch

    import farandole.torch as hvd

    hvd.init()
    model = torch.nn.Linear(2, 1)
    optimizer: Any = torch.optim.SGD(model.parameters(), lr=0.1)
    if which == "adasum":
        optimizer = hvd.DistributedOptimizer(optimizer, model.named_parameters(), op=hvd.Adasum)
    if which == "rounds":
        optimizer = hvd.DistributedOptimizer(optimizer, model.named_parameters(), backward_passes_per_step=2)
    things: dict[str, Any] = {"model": model, "optimizer": optimizer}
    if which == "stateless":
        things = {"model": model, "counter": 7}
    loader: Any = hvd.elastic.ElasticLoader(torch.ones(40, 2), batch_size=2)
    if which == "sampler":
        things = {"model": model}
        loader = torch.utils.data.DataLoader(
            torch.ones(4, 2), sampler=torch.utils.data.WeightedRandomSampler(torch.ones(4), 4)
        )
    try:
        for x in hvd.elastic.steps(loader, **things):
            model(x).mean().backward()
    except ValueError as error:
        return str(error)
    return "nothing"


@pytest.mark.parametrize(
    ("which", "told"),
    [
        ("plain", "plain SGD; pass hvd.DistributedOptimizer"),
        ("rounds", "made no optimizer.step() with them. A round of this loop is a step"),
        ("stateless", "counter=7 has no state_dict"),
        ("sampler", "Pass hvd.elastic.ElasticLoader"),
    ],
)
def test_misuse_is_told_at_once(which: str, told: str, make_job: Callable[..., ElasticJob]) -> None:
    job = make_job()
    workers = job.add()
    job.start(misuse, which)
    (said,) = job.collect(workers)
    assert told in said


# --- whole programs --------------------------------------------------------------------------------------------------


def train_two(options: dict[str, Any]) -> list[Any]:
    """Train two models with an optimizer each, as adversaries do, some workers without samples. Run by a worker."""

    import torch

    import farandole.torch as hvd
    from farandole.core.basics import current

    torch.set_num_threads(1)
    hvd.init()
    worker = current().settings.rank
    torch.manual_seed(3)
    models = [torch.nn.Linear(3, 3), torch.nn.Linear(3, 1)]
    maker, judge = (
        hvd.DistributedOptimizer(
            torch.optim.Adam(model.parameters(), lr=0.01),
            [(f"{number}.{name}", parameter) for name, parameter in model.named_parameters()],
        )
        for number, model in enumerate(models)
    )
    loader = hvd.elastic.ElasticLoader(torch.randn(22, 3), **options["batch"])
    loop = hvd.elastic.steps(loader, epochs=2, first=models[0], second=models[1], maker=maker, judge=judge)
    for x in loop:
        judge.zero_grad()
        models[1](models[0](x).detach()).mean().backward()
        if options["deaths"].get(worker) == loop.step:
            os.kill(os.getpid(), signal.SIGKILL)
        judge.step()
        if loop.step % 2 == 0:
            maker.zero_grad()
            models[1](models[0](x)).mean().backward()
            judge.zero_grad() if not judge._pending else judge.synchronize()
            maker.step()
    return [loop.step, *(parameter.tolist() for model in models for parameter in model.parameters())]


@pytest.mark.parametrize("batch", [{"global_batch_size": 6}, {"global_batch_size": 2}])
def test_two_optimizers_in_one_body(batch: dict[str, int], make_job: Callable[..., ElasticJob]) -> None:
    job = make_job()
    workers = job.add(4)
    job.start(train_two, {"batch": batch, "deaths": {1: 1, 2: 3}})
    results = job.collect([0, 3])
    assert results[0] == results[1]
    assert len(workers) == 4


def read_stream(options: dict[str, Any]) -> list[Any]:
    """Train on a stream, through a DataLoader; return the numbers that were used, as all know. Run by a worker."""

    import torch

    import farandole.torch as hvd
    from farandole.core.basics import current

    class Stream(torch.utils.data.IterableDataset):  # type: ignore[type-arg]
        def __iter__(self) -> Any:
            return iter([torch.tensor([float(number)]) for number in range(17)])

    torch.set_num_threads(1)
    hvd.init()
    model = torch.nn.Linear(1, 1)
    optimizer = hvd.DistributedOptimizer(torch.optim.SGD(model.parameters(), lr=0.001), model.named_parameters())
    dataset: Any = Stream() if options["stream"] else torch.arange(17.0)[:, None]
    loader = torch.utils.data.DataLoader(dataset, batch_size=2, shuffle=not options["stream"] or None)
    loop = hvd.elastic.steps(loader, model=model, optimizer=optimizer)
    used: dict[int, Any] = {}
    _write_down(loop, used, {}, optimizer)
    for x in loop:
        if current().settings.rank == 1 and loop.step == 1:
            os.kill(os.getpid(), signal.SIGKILL)
        optimizer.zero_grad()
        model(x).mean().backward()
        optimizer.step()
    return sorted(index for indices in used.values() for index in indices)


@pytest.mark.parametrize("stream", [False, True])
def test_a_dataloader_is_shared_out(stream: bool, make_job: Callable[..., ElasticJob]) -> None:
    job = make_job()
    job.add(3)
    job.start(read_stream, {"stream": stream})
    assert job.collect([0, 2]) == [list(range(17))] * 2
