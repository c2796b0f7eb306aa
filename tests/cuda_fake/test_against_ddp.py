"""PyTorch's CUDA build on the fake GPU: farandole trains to the parameters to which DDP does. `make test-cuda-fake`."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest
import torch
from cuda_on_fake_gpu import variables

if torch.version.cuda is None:
    pytest.skip("this PyTorch is not a build for CUDA; run `make test-cuda-fake`", allow_module_level=True)

ROOT = Path(__file__).resolve().parents[2]
LIBRARIES = ROOT / "build" / "release" / "gpu_fake"


def environment(folder: Path, **more: str) -> dict[str, str]:
    """Return the variables of a process with fake GPUs."""
    path = os.pathsep.join([str(ROOT / "src"), str(ROOT / "tests" / "support")])
    return {**os.environ, **variables(LIBRARIES, folder, devices=4), "PYTHONPATH": path, **more}


IMPORT = """
import torch
def libraries():
    return {line.split()[-1] for line in open("/proc/self/maps") if "/lib" in line}
before = libraries()
import farandole.torch
loaded = [each.rpartition("/")[2] for each in libraries() - before]
print([each for each in loaded if "cuda" in each or "nccl" in each])
"""


def test_importing_loads_no_library_of_cuda() -> None:
    plain = {**os.environ, "PYTHONPATH": str(ROOT / "src")}
    done = subprocess.run([sys.executable, "-c", IMPORT], env=plain, capture_output=True, text=True, timeout=120)
    assert done.stdout == "[]\n", done.stderr


@pytest.mark.timeout(900)
@pytest.mark.parametrize(("size", "gpu"), [(2, "nccl"), (2, "staged"), (3, "auto"), (4, "nccl")])
def test_parameters_are_those_of_ddp(size: int, gpu: str, tmp_path: Path) -> None:
    program = [sys.executable, str(Path(__file__).with_name("trainings.py")), str(tmp_path)]
    done = subprocess.run(
        [sys.executable, "-m", "farandole", "run", "-np", str(size), *program],
        env=environment(tmp_path, FARANDOLE_GPU=gpu),
        capture_output=True,
        text=True,
        timeout=800,
    )
    assert done.returncode == 0, done.stdout + done.stderr
    reports = [json.loads(line[line.index("{") :]) for line in done.stdout.splitlines() if '{"' in line]
    assert len(reports) == size, done.stdout
    for report in reports:
        assert len(report) == 18
        for name, found in report.items():
            # Where 1 / size is rounded, the two differ in the last bit, and halves then round otherwise now and then.
            rounds = size == 3 and name.endswith(("autocast", "mixed precision"))
            assert found["difference"] < (1e-4 if rounds else 1e-6), name
            assert found["way"] > 0.01, name
            if gpu != "auto":
                assert (found["launches"] > 0) == (gpu == "nccl"), name
