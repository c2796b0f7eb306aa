"""JAX's build for CUDA on the fake GPU: XLA itself calls the handler of its platform CUDA. `make test-cuda-fake`.

Kernels do not run there, so the programs consist of collectives and copies only.
"""

from __future__ import annotations

import json
import os
import shutil
import subprocess
import sys
from importlib import util
from pathlib import Path

import pytest

TESTS = Path(__file__).resolve().parents[1]
FAKE, XLA = TESTS / "gpu_fake", TESTS / "cuda_fake" / "xla"
# Library and sources, in the order in which they are linked.
LIBRARIES = {
    "libcuda.so.1": [*sorted((FAKE / "cuda").glob("*.cc")), XLA / "driver.cc"],
    "libnccl.so.2": sorted((FAKE / "nccl").glob("*.cc")),
    "libcudart.so.13": [FAKE / "cudart" / "cudart.cc"],
    "libnvidia-ml.so.1": [XLA / "nvml.cc"],
    "libcudnn.so.9": [XLA / "cudnn.cc"],
}


@pytest.fixture(scope="module")
def libraries(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Return the folder of the libraries that stand for those of CUDA."""
    compiler = shutil.which("g++") or shutil.which("clang++")
    spec = util.find_spec("nvidia")
    packages = [Path(each) for each in (spec.submodule_search_locations or ())] if spec else []
    headers = [found for each in packages for found in each.glob("cu13/include") if (found / "crt").exists()]
    if util.find_spec("jax_cuda13_plugin") is None or compiler is None or not headers:
        pytest.skip("JAX's build for CUDA, a C++ compiler or the headers of CUDA's runtime are not installed")
    folder = tmp_path_factory.mktemp("libraries")
    for name, sources in LIBRARIES.items():
        command = [compiler, "-std=c++20", "-O0", "-shared", "-fPIC", "-fvisibility=hidden", "-o", str(folder / name)]
        command += ["-DcuDeviceGetAttribute=fake_gpu_attribute"] if name == "libcuda.so.1" else []
        command += [f"-I{FAKE}", "-isystem", str(headers[0]), f"-Wl,-soname,{name}", *map(str, sources)]
        command += [str(folder / "libcuda.so.1"), "-Wl,-rpath,$ORIGIN"] if name != "libcuda.so.1" else []
        subprocess.run(command, check=True)
    return folder


# The first one waits for the compiler, too.
@pytest.mark.timeout(600)
@pytest.mark.parametrize("way", ["staged", "nccl"])
def test_compiled_collectives(libraries: Path, tmp_path: Path, way: str) -> None:
    environment = {
        **os.environ,
        "LD_LIBRARY_PATH": str(libraries),
        # JAX loads the real one of its packages otherwise, which refuses the fake driver.
        "LD_PRELOAD": str(libraries / "libcudart.so.13"),
        "FAKE_GPU_DEVICES": "2",
        "FAKE_GPU_TIME": "random",
        "FAKE_GPU_DELAY_US": "500",
        "FARANDOLE_GPU": way,
        "JAX_PLATFORMS": "cuda,cpu",
        "JAX_SKIP_CUDA_CONSTRAINTS_CHECK": "1",
        "XLA_PYTHON_CLIENT_PREALLOCATE": "false",
    }
    program = [sys.executable, str(Path(__file__).with_name("jax_program.py")), str(tmp_path)]
    command = [sys.executable, "-m", "farandole", "run", "-np", "2", *program]
    done = subprocess.run(command, env=environment, capture_output=True, text=True, timeout=110, check=False)
    assert done.returncode == 0, done.stdout + done.stderr
    for rank in (0, 1):
        gpu, found = json.loads((tmp_path / f"{rank}.json").read_text())
        assert gpu == rank
        for step in range(5):
            sums = [2.0 * step + 10, 5.0]
            assert {name: results[step] for name, results in found.items()} == {
                "allreduce": sums,
                "allgather": [step, 2, step + 10, 3],
                "alltoall": [step, step + 10] if rank == 0 else [2, 3],
                "reducescatter": sums[rank : rank + 1],
                "in a row": [2.0 * step + 20, 6],
                # That of a broadcast is the average, and zero where nothing was sent from.
                "gradient": [step + 5, 2.5] if rank == 0 else [0, 0],
                "eager": sums,
            }
