"""Scripts written for `horovod.ray`, whose text is theirs alone, run unchanged on a real cluster."""

from __future__ import annotations

import subprocess
import sys
from typing import Any

import pytest
from tests.ray.conftest import SECONDS

FIXED = """
import os, sys
import ray
import torch
from horovod.ray import RayExecutor

def train_fn(rate, steps=1):
    import horovod.torch as hvd
    hvd.init()
    model = torch.nn.Linear(2, 1)
    optimizer = torch.optim.SGD(model.parameters(), lr=rate * hvd.size())
    optimizer = hvd.DistributedOptimizer(optimizer, named_parameters=model.named_parameters())
    hvd.broadcast_parameters(model.state_dict(), root_rank=0)
    hvd.broadcast_optimizer_state(optimizer, root_rank=0)
    for _ in range(steps):
        optimizer.zero_grad()
        model(torch.ones(4, 2)).mean().backward()
        optimizer.step()
    return hvd.rank(), [float(number) for each in model.parameters() for number in each.flatten()]

ray.init(address=sys.argv[1])
settings = RayExecutor.create_settings(timeout_s=100, placement_group_timeout_s=100)
executor = RayExecutor(settings, num_workers=2, use_gpu=False)
executor.start(extra_env_vars={"MINE": 1})
(zero, first), (one, second) = executor.run(train_fn, args=[0.1], kwargs=dict(steps=3))
assert (zero, one) == (0, 1) and first == second
assert ray.get(executor.run_remote(lambda: os.environ["MINE"])) == ["1", "1"]
executor.shutdown()

class Counter:
    def __init__(self, start):
        self.count = start
    def add(self, number):
        self.count += number
        return self.count

executor = RayExecutor(settings, num_hosts=1, num_workers_per_host=2, cpus_per_worker=1)
executor.start(executable_cls=Counter, executable_args=[10])
assert executor.execute(lambda counter: counter.add(1)) == [11, 11]
assert executor.execute_single(lambda counter: counter.add(1)) == 12
assert executor.execute(lambda counter: counter.add(1)) == [13, 12]
executor.shutdown()
print("well done")
"""
ELASTIC = """
import sys
import ray
import torch
from horovod.ray import ElasticRayExecutor, RayExecutor, ray_logger

def training_fn():
    import horovod.torch as hvd
    hvd.init()
    model = torch.nn.Linear(1, 1)
    optimizer = hvd.DistributedOptimizer(torch.optim.SGD(model.parameters(), lr=0.1))
    state = hvd.elastic.TorchState(model, optimizer, batch=0)

    @hvd.elastic.run
    def train(state):
        while state.batch < 5:
            optimizer.zero_grad()
            model(torch.ones(2, 1)).mean().backward()
            optimizer.step()
            state.batch += 1
            ray_logger.log({"rank": hvd.rank(), "batch": state.batch})
            state.commit()
        return float(model.weight)

    return train(state)

ray.init(address=sys.argv[1])
logged = []
settings = ElasticRayExecutor.create_settings(min_num_proc=2, max_num_proc=2, verbose=True)
executor = ElasticRayExecutor(settings, use_gpu=False, cpus_per_slot=1)
executor.start()
first, second = executor.run(training_fn, callbacks=[logged.append])
assert first == second

executor = RayExecutor(RayExecutor.create_settings(verbose=True), min_workers=2, max_workers=2)
executor.start()
first, second = executor.run(training_fn, callbacks=[logged.append])
executor.shutdown()
assert first == second
assert sorted((each["rank"], each["batch"]) for each in logged) == sorted(
    2 * [(rank, batch) for rank in range(2) for batch in range(1, 6)]
)
print("well done")
"""


@pytest.mark.parametrize("program", [FIXED, ELASTIC], ids=["fixed", "elastic"])
def test_script_for_horovod_runs_unchanged(cluster: Any, nothing_left: None, program: str) -> None:
    address = cluster.get_runtime_context().gcs_address
    done = subprocess.run([sys.executable, "-c", program, address], capture_output=True, text=True, timeout=2 * SECONDS)
    assert done.returncode == 0, done.stdout + done.stderr
    assert "well done" in done.stdout
