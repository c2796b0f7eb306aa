"""PyTorch's CPU build on the fake GPU: `torch.device("fakegpu")` in processes that load it (tests/gpu_fake/README.md).

It is loaded in workers, and not in pytest's process, because an accelerator would change the behaviour of other tests.
"""

from __future__ import annotations

import ctypes
import fcntl
import hashlib
import os
import platform
import shutil
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from types import ModuleType
from typing import Any, NamedTuple

import pytest

DEVICE = "fakegpu"

_ROOT = Path(__file__).resolve().parents[2]
_SOURCES = _ROOT / "tests" / "gpu_fake"
_PRESET = _ROOT / "build" / "release"
_BUILT = _ROOT / "build" / "gpu_fake"
_COMPILE_SECONDS = 600
# Variables of a process: where these libraries are.
_LIBRARIES, _DEVICE_LIBRARY = "FAKE_GPU_LIBRARIES", "FAKE_GPU_DEVICE_LIBRARY"


class FakeGpu(NamedTuple):
    """The libraries for processes that use the fake GPU.

    Attributes:
        libraries: the folder with libcuda.so.1 and libnccl.so.2.
        device: the library that adds the device to PyTorch.
    """

    libraries: Path
    device: Path

    def environment(self, *, devices: int = 1, time: str = "random", seed: int = 1) -> dict[str, str]:
        """Return the variables of a process, which the README describes."""
        return {
            "LD_LIBRARY_PATH": os.pathsep.join(filter(None, [str(self.libraries), os.environ.get("LD_LIBRARY_PATH")])),
            "FARANDOLE_NCCL_LIBRARY": str(self.libraries / "libnccl.so.2"),
            "FAKE_GPU_DEVICES": str(devices),
            "FAKE_GPU_TIME": time,
            "FAKE_GPU_SEED": str(seed),
            _LIBRARIES: str(self.libraries),
            _DEVICE_LIBRARY: str(self.device),
        }

    @classmethod
    def of_environment(cls) -> FakeGpu:
        """Return the fake GPU of this process's variables."""
        return cls(Path(os.environ[_LIBRARIES]), Path(os.environ[_DEVICE_LIBRARY]))

    def load(self) -> Driver:
        """Add the device "fakegpu" to this process, unless it has it, and return the driver's hooks for tests.

        Then opening "libcuda.so.1" gives the fake driver.
        """
        import torch

        driver = Driver(ctypes.CDLL(str(self.libraries / "libcuda.so.1"), mode=ctypes.RTLD_GLOBAL))
        if hasattr(torch, DEVICE):
            return driver
        torch.utils.rename_privateuse1_backend(DEVICE)
        torch.ops.load_library(self.device)
        torch._register_device_module(DEVICE, _device_module(torch, driver))
        torch.utils.generate_methods_for_privateuse1_backend(for_storage=True)
        return driver

    def load_for_farandole(self) -> Driver:
        """Load the device, and make farandole.torch treat its tensors like those of CUDA."""
        import torch

        from farandole.torch.collectives.tensors import RAW_STREAMS

        driver = self.load()
        RAW_STREAMS[DEVICE] = lambda index: torch.accelerator.current_stream(f"{DEVICE}:{index}").native_handle
        return driver


def plan_nccl_fault(fault: str, operation: int = 1) -> None:
    """Plan a fault in an NCCL operation of this process, whichever rank it has by then: 1 is the next operation.

    The README lists the faults.
    """
    nccl = ctypes.CDLL(os.environ["FARANDOLE_NCCL_LIBRARY"])
    nccl.fake_nccl_fault(f"rank-1:op{operation}:{fault}".encode())


def nccl_count(name: str) -> int:
    """Return a counter of the fake NCCL in this process (tests/gpu_fake/nccl/hooks.h)."""
    nccl = ctypes.CDLL(os.environ["FARANDOLE_NCCL_LIBRARY"])
    nccl.fake_nccl_count.restype = ctypes.c_uint64
    return int(nccl.fake_nccl_count(name.encode()))


class Driver:
    """The hooks of the fake driver (tests/gpu_fake/cuda/hooks.h)."""

    def __init__(self, library: ctypes.CDLL) -> None:
        self.library = library
        library.fake_gpu_count.restype = ctypes.c_uint64

    def count(self, name: str) -> int:
        """Return the value of a counter."""
        value = int(self.library.fake_gpu_count(name.encode()))
        if value == 2**64 - 1:
            raise LookupError(f"the fake GPU has no counter {name!r}")
        return value

    def device_count(self) -> int:
        """Initialize the driver, and return the number of devices."""
        found = ctypes.c_int(0)
        self.library.cuInit(0)
        self.library.cuDeviceGetCount(ctypes.byref(found))
        return found.value

    def memory(self, device: int) -> tuple[int, int]:
        """Return how many bytes of a device are free, and how many it has."""
        free, total, context = ctypes.c_size_t(0), ctypes.c_size_t(0), ctypes.c_void_p()
        for function, arguments in (
            ("cuDevicePrimaryCtxRetain", (ctypes.byref(context), device)),
            ("cuCtxPushCurrent_v2", (context,)),
            ("cuMemGetInfo_v2", (ctypes.byref(free), ctypes.byref(total))),
            ("cuCtxPopCurrent_v2", (None,)),
            ("cuDevicePrimaryCtxRelease_v2", (device,)),
        ):
            assert getattr(self.library, function)(*arguments) == 0, function
        return free.value, total.value

    def reset_counts(self) -> None:
        """Set the counters of operations to 0."""
        self.library.fake_gpu_reset_counts()

    def set_time(self, mode: str, seed: int = 1, longest_delay_us: int = 3000) -> None:
        """Set the mode that determines when streams run: "eager", "lazy" or "random"."""
        self.library.fake_gpu_time(mode.encode(), ctypes.c_uint(seed), ctypes.c_uint(longest_delay_us))

    def hold(self, stream: Any) -> None:
        """Stop a `torch.Stream` before its next operation."""
        self.library.fake_gpu_hold(ctypes.c_void_p(stream.native_handle))

    def release(self, stream: Any) -> None:
        """Continue a stopped `torch.Stream`."""
        self.library.fake_gpu_release(ctypes.c_void_p(stream.native_handle))


def _device_module(torch: ModuleType, driver: Driver) -> ModuleType:
    """Return the module `torch.<device>` that PyTorch requires."""
    module = ModuleType(f"torch.{DEVICE}")
    accelerator = torch.accelerator
    devices = driver.device_count()
    module.is_available = lambda: devices > 0  # type: ignore[attr-defined]
    module.device_count = lambda: devices  # type: ignore[attr-defined]
    module.current_device = accelerator.current_device_index  # type: ignore[attr-defined]
    module.set_device = accelerator.set_device_index  # type: ignore[attr-defined]
    module.is_initialized = lambda: True  # type: ignore[attr-defined]
    module.current_stream = accelerator.current_stream  # type: ignore[attr-defined]
    module.Stream = lambda device=DEVICE, priority=0: torch.Stream(device=device)  # type: ignore[attr-defined]
    module.Event = lambda: torch.Event(DEVICE)  # type: ignore[attr-defined]
    module.stream = lambda stream: stream  # type: ignore[attr-defined]
    module.synchronize = accelerator.synchronize  # type: ignore[attr-defined]
    module.mem_get_info = lambda device: driver.memory(torch.device(device).index)  # type: ignore[attr-defined]
    module._is_in_bad_fork = lambda: False  # type: ignore[attr-defined]
    module.manual_seed_all = lambda seed: None  # type: ignore[attr-defined]
    module.get_amp_supported_dtype = lambda: [torch.float16, torch.bfloat16]  # type: ignore[attr-defined]
    module.get_rng_state = lambda device=None: torch.get_rng_state()  # type: ignore[attr-defined]
    module.set_rng_state = lambda state, device=None: torch.set_rng_state(state)  # type: ignore[attr-defined]
    return module


def build() -> FakeGpu:
    """Return the libraries, which are compiled if necessary; skip the test if this is not possible."""
    compiler = shutil.which("g++") or shutil.which("clang++")
    if compiler is None:
        pytest.skip("there is no C++ compiler, with which the fake GPU is built")
    if not (_PRESET / "CMakeCache.txt").exists():
        pytest.skip("build/release is not there, in which the fake GPU is built; run `make native-tests`")
    _BUILT.mkdir(parents=True, exist_ok=True)
    with _only_one():
        cmake = shutil.which("cmake", path=os.pathsep.join([str(Path(sys.executable).parent), os.environ["PATH"]]))
        if cmake is None:
            pytest.skip("cmake is not installed, with which the fake GPU is built")
        command = [cmake, "--build", str(_PRESET), "--target", "fake_cuda", "fake_nccl"]
        _run(command, {**os.environ, "PATH": os.pathsep.join([str(Path(cmake).parent), os.environ["PATH"]])})
        libraries = _PRESET / "gpu_fake"
        return FakeGpu(libraries, _compiled_device(compiler, libraries))


@contextmanager
def _only_one() -> Iterator[None]:
    """Make sure that only one process at a time builds."""
    with (_BUILT / ".lock").open("w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        yield


def _run(command: list[str], environment: dict[str, str] | None = None) -> str:
    done = subprocess.run(
        command, capture_output=True, text=True, timeout=_COMPILE_SECONDS, env=environment, check=False
    )
    if done.returncode != 0:
        pytest.fail(f"{' '.join(command)}\n{done.stdout}{done.stderr}", pytrace=False)
    return done.stdout


def _compiled_device(compiler: str, libraries: Path) -> Path:
    """Return the library of PyTorch's device, compiled for these sources, this PyTorch and this compiler."""
    import torch

    source = _SOURCES / "torch_device.cc"
    used = [source, *(_SOURCES / "cuda" / name for name in ("abi.h", "api.h", "hooks.h"))]
    digest = hashlib.sha256("\n".join([torch.__version__, _run([compiler, "--version"]), platform.machine()]).encode())
    for file in used:
        digest.update(file.read_bytes())
    library = _BUILT / f"torch_device-{digest.hexdigest()[:16]}.so"
    if library.exists():
        return library
    for old in _BUILT.glob("torch_device-*.so"):
        old.unlink()
    package = Path(torch.__file__).parent
    include = package / "include"
    unfinished = library.with_suffix(".unfinished")
    # Without optimization: it takes a quarter of the time, and its tests wait more than they compute.
    flags = ["-std=c++20", "-O0", "-w", "-fPIC", "-shared"]
    includes = [f"-I{include}", f"-I{include / 'torch' / 'csrc' / 'api' / 'include'}", f"-I{_SOURCES}"]
    linked = [str(libraries / "libcuda.so.1"), f"-L{package / 'lib'}", "-lc10", "-ltorch", "-ltorch_cpu"]
    found_at = [f"-Wl,-rpath,{libraries}"]
    _run([compiler, *flags, *includes, str(source), "-o", str(unfinished), *linked, *found_at])
    unfinished.rename(library)
    return library


@pytest.fixture(scope="session")
def fake_gpu() -> FakeGpu:
    """Return the fake GPU, which workers load; the test is skipped if it cannot be built."""
    pytest.importorskip("torch", reason="PyTorch is not installed")
    return build()
