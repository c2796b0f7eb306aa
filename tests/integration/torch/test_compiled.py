"""torch.compile and DistributedOptimizer: two workers, which compile, against one process, which does not.

One script for all cases: a process takes seconds to load the compiler.
"""

from __future__ import annotations

import json
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

SCRIPT = """
import json
import sys
import warnings

warnings.simplefilter("error")
warnings.filterwarnings("default", module="torch|sympy|ast|importlib")
warnings.filterwarnings("error", message="Dynamo detected")

import torch
import farandole.torch as hvd

hvd.init()


def train(how, distributed):
    torch.manual_seed(0)
    model = torch.nn.Sequential(torch.nn.Linear(6, 8), torch.nn.BatchNorm1d(8), torch.nn.Tanh(), torch.nn.Linear(8, 3))
    generator = torch.Generator().manual_seed(1)
    data = torch.randn(12, 6, generator=generator), torch.randn(12, 3, generator=generator)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1, momentum=0.9)
    if distributed:
        data = [tensor[hvd.rank() :: hvd.size()] for tensor in data]
        model = hvd.convert_sync_batchnorm(model)
        optimizer = hvd.DistributedOptimizer(optimizer, model.named_parameters())
    how, _, backend = how.partition(" ")
    called = torch.compile(model, backend=backend) if how == "model" else model

    def backward():
        loss = torch.nn.functional.mse_loss(called(data[0]), data[1])
        loss.backward()
        # A collective that is called where everything is compiled.
        return hvd.allreduce(loss.detach() * 2 + 1, name="loss") if distributed else loss

    def step():
        optimizer.zero_grad()
        backward_or_compiled()
        optimizer.step()

    backward_or_compiled = torch.compile(backward, backend=backend) if how == "backward" else backward
    step_or_compiled = torch.compile(step, backend=backend) if how == "step" else step
    for _ in range(3):
        step_or_compiled()
    return torch.cat([parameter.detach().reshape(-1) for parameter in model.parameters()]).tolist()


for how in sys.argv[1:]:
    results = hvd.allgather_object(train(how, distributed=True))
    if hvd.rank() == 0:
        print(json.dumps([how, train("", distributed=False), results]), flush=True)
"""


@pytest.mark.timeout(240)
def test_compiled_training_equals_uncompiled_training(tmp_path: Path) -> None:
    """The model, the backward pass, the whole step; also with the compiler that makes code, if there is a C++ compiler.

    The script turns warnings of our files into errors: the compiler warns where it looks into what it must not.
    """
    script = tmp_path / "compiled.py"
    script.write_text(SCRIPT)
    cases = ["model aot_eager", "backward aot_eager", "step aot_eager"]
    if shutil.which("g++"):
        cases.append("model inductor")
    command = [sys.executable, "-m", "farandole", "run", "-np", "2", sys.executable, str(script), *cases]
    done = subprocess.run(command, capture_output=True, text=True, timeout=230, check=False)
    assert done.returncode == 0, done.stdout + done.stderr
    answers = [
        json.loads(line.removeprefix("[0]<stdout>:"))
        for line in done.stdout.splitlines()
        if line.startswith('[0]<stdout>:["')
    ]
    assert [how for how, _, _ in answers] == cases
    for _, alone, (first, second) in answers:
        assert first == second == pytest.approx(alone, rel=1e-4, abs=1e-5)
