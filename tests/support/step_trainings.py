"""A training in a loop of steps, and its replay.

Each worker records the samples that each step has used; the replay computes the gradient of the mean over these, in one
process without farandole, and must have the same parameters at the end.
"""

from __future__ import annotations

import os
import signal
from typing import Any

import torch
from elastic_worlds import ElasticJob
from fake_gpu_device import DEVICE, FakeGpu, nccl_count, plan_nccl_fault

SAMPLES = 22


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
    """An optimizer that adds the decay to the gradients, as before PyTorch 1.5."""

    def step(self, closure: Any = None) -> Any:
        for group in self.param_groups:
            for parameter in group["params"]:
                parameter.grad.data.add_(parameter.data, alpha=0.1)
        return super().step(closure)


def parameters_of(model: Any) -> Any:
    return [parameter.detach().clone() for parameter in model.parameters()]


def train(options: dict[str, Any]) -> dict[str, Any]:
    """Train, and die at the points in the options. Run by a worker."""
    import time

    import torch

    import farandole.torch as hvd
    from farandole.worker.core.basics import current
    from farandole.worker.elastic import world_changes

    torch.set_num_threads(1)
    device = options.get("device", "cpu")
    if device == DEVICE:
        FakeGpu.of_environment().load_for_farandole()
    hvd.init()
    worker = current().settings.rank
    kind = options.get("model", "dense")
    model = make_model(kind).to(device)
    if options.get("strangers", True):
        with torch.no_grad():
            for parameter in model.parameters():
                parameter.mul_(1.0 if worker == 0 else 5.0)  # A worker that gets no state has wrong values.
    death = options.get("deaths", {}).get(worker)
    loop: Any = None

    def die_at(phase: str) -> None:
        if death is not None and loop is not None and (loop.step, phase) == tuple(death):
            os.kill(os.getpid(), signal.SIGKILL)

    def will_have(size: int) -> bool:
        change = world_changes.pending_change()
        return hvd.size() + (0 if change is None else change.added) == size  # Newcomers may have come before.

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
    batches = hvd.elastic.AdaptiveBatch(**options["adaptive"]) if "adaptive" in options else None
    loop = hvd.elastic.steps(loader, epochs=options.get("epochs", 2), rate=rate, batches=batches, **things)
    first = next(model.parameters())
    first.register_hook(lambda gradient: die_at("backward"))
    used: dict[int, list[int]] = {}
    rates: dict[int, float] = {}
    write_down_steps(loop, used, rates, optimizer)
    lagging = _Lagging(options["lag"], worker, loop, optimizer._reducer) if "lag" in options else None
    sums = []
    passes = 0
    fault_step, fault = options.get("NCCL faults", {}).get(worker, (-1, ""))
    for x, y, _ in loop:
        passes += 1
        while loop.step == options.get("waits_at") and not will_have(options["until"]):
            time.sleep(0.01)
        die_at("begin")
        if loop.step == fault_step:
            plan_nccl_fault(fault)
        x, y = x.to(device), y.to(device)
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
        "aborts": nccl_count("aborts") if device == DEVICE else 0,
        "step": loop.step,
        "size": hvd.size(),
        "used": used,
        "passes": passes,
        "adaptation": None if loop._adaptation is None else loop._adaptation.value,
        "rates": rates,
        "parameters": parameters_of(model.cpu()),
        "handed over": lagging is not None and lagging.was_handed_over,
        "state": [
            torch.as_tensor(value).cpu() for each in optimizer.state_dict()["state"].values() for value in each.values()
        ],
    }
    hvd.shutdown()
    return result


def _in_parts(loss: Any, model: Any, x: Any, y: Any, parts: int) -> Any:
    """Return the loss or, if its gradients should be accumulated, the weighted loss of each part of the batch."""
    import torch

    if parts == 1:
        return [loss]
    pairs = zip(x.chunk(parts), y.chunk(parts), strict=True)
    return (torch.nn.functional.mse_loss(model(a), b) * (len(a) / len(x)) for a, b in pairs)


class _Lagging:
    """In one step, all workers except one get the gradients, and then a worker dies."""

    def __init__(self, options: dict[str, Any], worker: int, loop: Any, reducer: Any) -> None:
        self._options, self._worker, self._loop, self._reducer = options, worker, loop, reducer
        self._is_over = self.was_handed_over = False
        self._run_out, self._load = reducer._run_out, reducer._reduced.load_state_dict
        reducer._run_out, reducer._reduced.load_state_dict = self._wait, self._take

    def _wait(self) -> Any:
        import time
        from pathlib import Path

        from farandole.errors import WorkerLostError
        from farandole.worker.core.basics import current

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


def write_down_steps(loop: Any, used: dict[int, list[int]], rates: dict[int, float], optimizer: Any) -> None:
    """Record the samples that each step of a loop uses, and its learning rate, when the step counts."""
    loader = loop._loader
    commit = loader.commit

    def write_down(batch: Any, lost: Any = ()) -> None:
        shares = [share for rank, share in enumerate(batch.shares) if rank not in lost]
        used[loop.step] = [index for share in shares for index in loader.ledger.indices(share)]
        rates[loop.step] = optimizer.param_groups[0]["lr"]
        commit(batch, lost)

    loader.commit = write_down


def _make(call: str, loss: Any, step: int) -> Any:
    """Make a call that all ranks make, and check its result, which is the same in a world of any size."""
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
    """Run a training to its end, and return the results of the workers that should survive."""
    workers = job.add(count)
    job.start(train, options)
    return collect(job, workers, options)


def collect(job: ElasticJob, workers: list[int], options: dict[str, Any]) -> list[dict[str, Any]]:
    """Return the results of the workers that should survive."""
    return job.collect_survivors(workers, options.get("deaths", ()))


def check(results: list[dict[str, Any]], options: dict[str, Any], tolerance: float = 1e-9, rates: Any = None) -> None:
    """Compare the workers' records with each other and with the replay."""
    steps: dict[int, list[int]] = {}
    for result in results:
        for step, used in result["used"].items():
            assert steps.setdefault(step, used) == used
        assert all(map(torch.equal, result["parameters"], results[0]["parameters"]))
        assert all(map(torch.equal, result["state"], results[0]["state"]))
    assert sorted(steps) == list(range(results[0]["step"]))
    used = sorted(index for indices in steps.values() for index in indices)
    assert used == sorted(list(range(SAMPLES)) * options.get("epochs", 2))
    for mine, theirs in zip(results[0]["parameters"], replay(steps, options, rates), strict=True):
        torch.testing.assert_close(mine, theirs, rtol=tolerance, atol=tolerance)
