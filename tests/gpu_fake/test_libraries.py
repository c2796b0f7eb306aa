"""The libraries of the fake GPU, as the inspection of a host and Horovod's questions ask them."""

from __future__ import annotations

import json
import os
import subprocess

from fake_gpu_device import FakeGpu

from farandole.base import nccl_library
from farandole.control.agent.inspect import cuda_library
from farandole.control.agent.inspect.facts import CudaDriver


def ask(command: tuple[str, ...], fake_gpu: FakeGpu, **variables: str) -> dict[str, object]:
    environment = {**os.environ, "LD_LIBRARY_PATH": str(fake_gpu.libraries), **variables}
    done = subprocess.run(command, env=environment, capture_output=True, text=True, check=True, timeout=60)
    told: dict[str, object] = json.loads(done.stdout)
    return told


def test_driver_tells_version_and_devices(fake_gpu: FakeGpu) -> None:
    told = ask(cuda_library.question(), fake_gpu, FAKE_GPU_DEVICES="2", FAKE_GPU_DRIVER_VERSION="12040")
    found = cuda_library.read(told)
    assert found == CudaDriver(version=12040, devices=("Fake GPU", "Fake GPU"), uuids=found.uuids)
    assert len(set(found.uuids)) == 2 and all(len(uuid) == 32 for uuid in found.uuids)


def test_driver_that_cannot_start_tells_why(fake_gpu: FakeGpu) -> None:
    told = cuda_library.read(ask(cuda_library.question(), fake_gpu, FAKE_GPU_FAULT="cuInit:1:999"))
    assert told.devices == () and told.error.startswith("cuInit failed with error 999")


def test_nccl_that_the_loader_finds(fake_gpu: FakeGpu) -> None:
    told = ask(nccl_library.question(""), fake_gpu, FAKE_NCCL_VERSION="22705")
    assert told == {"version": 22705, "path": str((fake_gpu.libraries / nccl_library.NAME).resolve())}


def test_nccl_of_a_path(fake_gpu: FakeGpu) -> None:
    assert nccl_library.version(str(fake_gpu.libraries / nccl_library.NAME)) == 23007
